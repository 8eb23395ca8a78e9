//! Where `octavo serve` listens besides ports, and options from the environment.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::os::fd::OwnedFd;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::Path;
use std::process::{Child, ChildStderr, Command, Stdio};

use super::serve::{read, serve, serve_in};
use super::{octavo, stderr};

const REQUEST: &str = "GET /v1/models HTTP/1.1\r\nhost: any.example\r\nconnection: close\r\n\r\n";

/// Waits for the line that says where it serves; returns that, and the rest of its lines.
fn ready(child: &mut Child) -> (String, BufReader<ChildStderr>) {
    let mut lines = BufReader::new(child.stderr.take().expect("stderr"));
    let mut line = String::new();
    while !line.contains("octavo: serving ") {
        line.clear();
        assert!(lines.read_line(&mut line).expect("a line") > 0, "it ended");
    }
    let (_, place) = line.split_once(" on ").expect("a place");
    let place = place.split(" (").next().expect("a place").to_owned();
    (place, lines)
}

fn program(args: &[&str]) -> Child {
    Command::new(env!("CARGO_BIN_EXE_octavo"))
        .arg("serve")
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs")
}

/// Begins the program with the default action of SIGHUP, which it would otherwise inherit: under
/// nohup it ignores that signal.
fn with_hangups(args: &[&str]) -> Child {
    Command::new("env")
        .args([
            "--default-signal=HUP",
            env!("CARGO_BIN_EXE_octavo"),
            "serve",
        ])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .expect("env runs")
}

fn signal(child: &Child, name: &str) {
    let killed = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status();
    assert!(killed.expect("kill runs").success());
}

fn ask(mut stream: impl Read + Write) -> String {
    stream.write_all(REQUEST.as_bytes()).expect("it reads");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn a_unix_socket_is_served_and_removed() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("octavo.sock");
    let host = path.to_str().expect("UTF-8");
    // left by a server that was killed
    drop(UnixListener::bind(&path).expect("a socket"));
    let mut child = program(&["--host", host]);
    let (place, _lines) = ready(&mut child);
    assert_eq!(place, format!("unix:{host}"));
    let answer = ask(UnixStream::connect(&path).expect("it listens"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    let mode = std::fs::metadata(&path)
        .expect("a socket")
        .permissions()
        .mode();
    assert_eq!(mode & 0o002, 0, "{mode:o}: others may connect");

    let second = octavo(&["serve", "--host", host])
        .output()
        .expect("it runs");
    let says = "expected a socket that nobody listens on, found one that answers (--host, --port)";
    assert!(stderr(&second).contains(says), "{}", stderr(&second));
    signal(&child, "-TERM");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
    assert!(!path.exists());

    std::fs::write(&path, "").expect("written");
    let unix = format!("unix:{host}");
    let third = octavo(&["serve", "--host", &unix])
        .output()
        .expect("it runs");
    let says = "expected no file or a socket, found another file";
    assert!(stderr(&third).contains(says), "{}", stderr(&third));
    assert!(path.exists());
}

/// Starts a server with a socket as its file descriptor 3, as systemd does.
fn activated(socket: OwnedFd) -> Child {
    let script = "exec 3<&0 </dev/null; LISTEN_FDS=1 LISTEN_PID=$$ exec \"$0\" serve --port 1";
    Command::new("sh")
        .args(["-c", script, env!("CARGO_BIN_EXE_octavo")])
        .stdin(socket)
        .stderr(Stdio::piped())
        .spawn()
        .expect("sh runs")
}

#[test]
fn several_addresses_are_served_at_once() {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x.sock");
    // any address of 127.0.0.0/8 is this machine
    let hosts = format!("127.0.0.1,127.0.0.2,{}", path.display());
    let mut child = program(&["--host", &hosts, "--port", "0"]);
    let (places, _lines) = ready(&mut child);
    let places: Vec<&str> = places.split(" and ").collect();
    let [first, second, third] = places[..] else {
        panic!("{places:?}");
    };
    let port = first.strip_prefix("http://127.0.0.1:").expect("an address");
    assert_eq!(second, format!("http://127.0.0.2:{port}"));
    assert_eq!(third, format!("unix:{}", path.display()));
    let request = "GET /health HTTP/1.1\r\nhost: x\r\nconnection: close\r\n\r\n";
    for host in ["127.0.0.1", "127.0.0.2"] {
        let mut stream = TcpStream::connect(format!("{host}:{port}")).expect("it listens");
        stream.write_all(request.as_bytes()).expect("it reads");
        assert!(read(stream).starts_with("HTTP/1.1 200"), "{host}");
    }
    // names are checked for the ports' sake
    let answer = ask(UnixStream::connect(&path).expect("it listens"));
    assert!(answer.starts_with("HTTP/1.1 403"), "{answer}");
    signal(&child, "-TERM");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));
}

#[test]
fn sockets_of_a_service_manager_are_taken() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("an address");
    // who comes before the server is answered by it
    let early = TcpStream::connect(address).expect("it is queued");
    let mut child = activated(listener.into());
    let (place, _lines) = ready(&mut child);
    assert_eq!(place, format!("http://{address}"));
    let request = REQUEST.replace("any.example", "localhost");
    let mut early = early;
    early.write_all(request.as_bytes()).expect("it reads");
    let answer = read(early);
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    signal(&child, "-TERM");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));

    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("x");
    let mut child = activated(UnixListener::bind(&path).expect("a socket").into());
    let (place, _lines) = ready(&mut child);
    assert_eq!(place, format!("unix:{}", path.display()));
    let answer = ask(UnixStream::connect(&path).expect("it listens"));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    signal(&child, "-TERM");
    child.wait().expect("it ends");
    assert!(path.exists(), "it belongs to the service manager");

    let file = std::fs::File::open("/dev/null").expect("a file");
    let output = activated(file.into()).wait_with_output().expect("it ends");
    let says = "LISTEN_FDS: expected listening TCP or Unix sockets, found another";
    assert!(stderr(&output).contains(says), "{}", stderr(&output));
}

/// Writes the certificate and the key of the server's tests as PEM.
fn certificate(folder: &Path) -> [String; 2] {
    let tests = octavo_fixtures::workspace_root().join("src/server/fetch/tests");
    [("host.der", "CERTIFICATE"), ("host-key.der", "PRIVATE KEY")].map(|(name, label)| {
        let output = Command::new("base64").arg(tests.join(name)).output();
        let output = output.expect("base64 runs").stdout;
        let text = String::from_utf8(output).expect("base64");
        let path = folder.join(name).with_extension("pem");
        let text = format!("-----BEGIN {label}-----\n{text}-----END {label}-----\n");
        std::fs::write(&path, text).expect("written");
        path.to_str().expect("UTF-8").to_owned()
    })
}

#[test]
fn a_certificate_is_read_again_on_sighup() {
    let folder = tempfile::tempdir().expect("a folder");
    let [own, key] = certificate(folder.path());
    let args = [
        "--port",
        "0",
        "--ssl-cert-file",
        &own,
        "--ssl-key-file",
        &key,
    ];
    let mut child = with_hangups(&args);
    let (place, mut lines) = ready(&mut child);
    assert!(place.starts_with("https://127.0.0.1:"), "{place}");
    let mut next = |child: &Child| {
        signal(child, "-HUP");
        let mut line = String::new();
        lines.read_line(&mut line).expect("a line");
        line
    };
    assert_eq!(next(&child), "octavo: the certificate was read again\n");
    std::fs::write(&own, "").expect("written");
    let line = next(&child);
    let says = "expected a certificate in PEM form, found an empty file";
    assert!(
        line.contains("stays in use") && line.contains(says),
        "{line}"
    );
    signal(&child, "-TERM");
    assert_eq!(child.wait().expect("it ends").code(), Some(0));

    for (args, says) in [
        (&["--ssl-cert-file", &own][..], "--ssl-key-file"),
        (
            &["--ssl-cert-file", &key, "--ssl-key-file", &key],
            "found a private key",
        ),
        (
            &["--ssl-cert-file", "/nowhere", "--ssl-key-file", &key],
            "/nowhere: No such file",
        ),
    ] {
        let output = octavo(&[&["serve"], args].concat())
            .output()
            .expect("it runs");
        assert!(
            stderr(&output).contains(says),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn the_environment_sets_options() {
    let variables = [
        ("OCTAVO_ALIAS", "nice,fine"),
        ("OCTAVO_STRICT_MODEL", "1"),
        ("OCTAVO_PORT", "1"),
        ("OCTAVO_QUEUE", ""),
    ];
    // the port is on the command line
    let serving = serve_in(&variables, &[]);
    let models = read(serving.send("/v1/models", None));
    assert!(
        models.contains("\"nice\"") && models.contains("\"fine\""),
        "{models}"
    );
    let other = r#"{"model": "other", "prompt": "a", "max_tokens": 1}"#;
    let answer = read(serving.send("/v1/completions", Some(other)));
    assert!(answer.starts_with("HTTP/1.1 404"), "{answer}");
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
    // and without them
    let serving = serve(&["--alias", "plain"]);
    let answer = read(serving.send("/v1/completions", Some(other)));
    assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));

    let run = |name: &str, value: &str, args: &[&str]| {
        octavo(args).env(name, value).output().expect("it runs")
    };
    let asked = ["run", "-p", "1+1=", "-q"];
    let one = run("OCTAVO_N_PREDICT", "1", &asked);
    let same = octavo(&[&asked[..], &["-n", "1"]].concat())
        .output()
        .expect("it runs");
    assert!(
        one.status.success() && one.stdout == same.stdout,
        "{}",
        stderr(&one)
    );
    let wrong = run("OCTAVO_N_PREDICT", "many", &asked);
    let says = "the environment sets OCTAVO_N_PREDICT)";
    assert!(stderr(&wrong).contains(says), "{}", stderr(&wrong));
    assert_eq!(wrong.status.code(), Some(2));
    let wrong = run("OCTAVO_ECHO", "perhaps", &asked);
    let says = "OCTAVO_ECHO: expected 1 or 0, found perhaps";
    assert!(stderr(&wrong).contains(says), "{}", stderr(&wrong));
    // no secret in the help
    let help = run("OCTAVO_API_KEY", "geheim", &["serve", "--help"]);
    assert!(help.status.success());
    assert!(!String::from_utf8_lossy(&help.stdout).contains("geheim"));
}
