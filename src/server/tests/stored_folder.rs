//! Responses that are stored in a folder: they survive the server, and nothing else is touched.

use std::path::Path;

use octavo_server::Options;
use serde_json::{Value, json};

use crate::client::{Server, ok, read, small};

const PATH: &str = "/v1/responses";

fn serving(folder: &Path, keys: &[&str]) -> Server {
    let options = Options {
        response_store: Some(folder.to_owned()),
        keys: keys.iter().map(|key| (*key).to_owned()).collect(),
        ..Options::default()
    };
    Server::new(small(), options)
}

fn asked(input: &str) -> Value {
    json!({ "input": input, "temperature": 0, "max_output_tokens": 8 })
}

fn id(response: &Value) -> &str {
    response["id"].as_str().expect("an id")
}

fn path(response: &Value) -> String {
    format!("{PATH}/{}", id(response))
}

fn delete(server: &Server, response: &Value) {
    let answer = read(server.send("DELETE", &path(response), "", b""));
    assert_eq!(answer.status, 200, "{}", answer.text);
}

fn names(folder: &Path) -> Vec<String> {
    let files = std::fs::read_dir(folder).expect("a folder");
    let name = |file: std::fs::DirEntry| file.file_name().to_string_lossy().into_owned();
    let mut names: Vec<String> = files.map(|file| name(file.expect("a file"))).collect();
    names.sort();
    names
}

#[test]
fn responses_survive_a_restart_and_are_continued() {
    let outer = tempfile::tempdir().expect("a folder");
    let folder = outer.path().join("new/responses");
    let server = serving(&folder, &[]);
    let first = ok(&server, PATH, &asked("1+1="));
    delete(&server, &ok(&server, PATH, &asked("2+2=")));
    let mut unstored = asked("3+3=");
    unstored["store"] = json!(false);
    ok(&server, PATH, &unstored);
    let more = json!({ "input": "4+4=", "previous_response_id": id(&first) });
    let count =
        |server: &Server| ok(server, "/v1/responses/input_tokens", &more)["input_tokens"].clone();
    let tokens = count(&server);
    drop(server);
    assert_eq!(names(&folder), [format!("{}.json", id(&first))]);

    let server = serving(&folder, &[]);
    assert_eq!(server.get(&path(&first)).json(), first);
    assert_eq!(count(&server), tokens);
    let second = ok(&server, PATH, &more);
    delete(&server, &first);
    drop(server);
    assert_eq!(names(&folder), [format!("{}.json", id(&second))]);
}

#[test]
fn neither_a_crash_nor_foreign_files_nor_names_do_harm() {
    let outer = tempfile::tempdir().expect("a folder");
    let folder = outer.path().join("responses");
    let server = serving(&folder, &[]);
    let response = ok(&server, PATH, &asked("1+1="));
    drop(server);
    let file = |response: &Value| {
        json!({ "version": 1, "owner": null, "input": [], "response": response }).to_string()
    };
    let foreign = [
        ("resp_bb.json", "{\"version\":1,\"inp".to_owned()),
        ("resp_cc.json", json!({ "version": 2 }).to_string()),
        ("resp_dd.json", file(&json!("text"))),
        ("resp_ZZ.json", file(&response)),
        ("notes.txt", "mine".to_owned()),
        ("../resp_ff.json", file(&response)),
    ];
    for (name, text) in &foreign {
        std::fs::write(folder.join(name), text).expect("written");
    }
    let mut running = response.clone();
    running["status"] = json!("in_progress");
    std::fs::write(folder.join("resp_aa.json"), file(&running)).expect("written");
    std::fs::write(folder.join("resp_ee.unfinished"), "{").expect("written");

    let server = serving(&folder, &[]);
    assert_eq!(server.get(&path(&response)).json(), response);
    // the server before did not end it
    let failed = server.get(&format!("{PATH}/resp_aa")).json();
    assert_eq!(
        (&failed["status"], &failed["error"]["code"]),
        (&json!("failed"), &json!("server_error"))
    );
    for id in [
        "resp_bb",
        "resp_cc",
        "resp_dd",
        "resp_ZZ",
        "notes.txt",
        "..%2Fresp_ff",
        "%2e%2e%2fresp_ff",
        "resp_aa.json",
        "..%5cresp_ff",
        "%00",
        ".",
    ] {
        for method in ["GET", "DELETE"] {
            let answer = read(server.send(method, &format!("{PATH}/{id}"), "", b""));
            assert!([404, 405].contains(&answer.status), "{id}: {}", answer.text);
        }
        let more = json!({ "input": "1", "previous_response_id": id });
        assert_eq!(server.post(PATH, &more).status, 400, "{id}");
    }
    drop(server);
    assert!(!folder.join("resp_ee.unfinished").exists());
    for (name, text) in &foreign {
        let found = std::fs::read_to_string(folder.join(name));
        assert_eq!(&found.expect("it is there"), text, "{name}");
    }
}

#[test]
fn callers_see_their_own_after_a_restart_and_no_file_has_a_key() {
    let folder = tempfile::tempdir().expect("a folder");
    let keys = ["geheim-a", "geheim-b"];
    let send = |server: &Server, method: &str, path: &str, key: &str, body: &str| {
        let header = format!("authorization: Bearer {key}\r\n");
        read(server.send(method, path, &header, body.as_bytes()))
    };
    let server = serving(folder.path(), &keys);
    let body = asked("1+1=").to_string();
    let response = send(&server, "POST", PATH, keys[0], &body).json();
    drop(server);
    let stored = names(folder.path());
    assert_eq!(stored.len(), 1);
    let file = folder.path().join(&stored[0]);
    let text = std::fs::read_to_string(&file).expect("text");
    assert!(!text.contains("geheim"), "{text}");
    #[cfg(unix)]
    {
        use std::os::unix::fs::PermissionsExt;
        let mode = file.metadata().expect("a file").permissions().mode();
        assert_eq!(mode & 0o077, 0, "{mode:o}");
    }
    let server = serving(folder.path(), &keys);
    let status = |key: &str| send(&server, "GET", &path(&response), key, "").status;
    assert_eq!((status(keys[1]), status(keys[0])), (404, 200));
}
