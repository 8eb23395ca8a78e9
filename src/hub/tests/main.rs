//! The hub against a stand-in on this machine: choice, cache, faults.

mod folders;
mod standin;

use std::fs;
use std::path::Path;
use std::time::{Duration, Instant};

use octavo_fixtures::{Lacks, skip};
use octavo_hub::{Cache, Connections, Error, Event, Hub, RemoteModel, Retries};
use standin::{Access, COMMIT, Fault, Standin, git_sha1, sha256};
use tempfile::TempDir;

const RETRIES: Retries = Retries {
    attempts: 3,
    wait: Duration::from_millis(1),
    idle: Duration::from_millis(500),
};

/// A stand-in, and a cache of its own.
struct Place {
    standin: Standin,
    folder: TempDir,
}

impl Place {
    fn new() -> Place {
        Place {
            standin: Standin::start(),
            folder: TempDir::new().expect("a folder"),
        }
    }

    /// Returns a place with a repository, u/r, that has one model.
    fn with_model(content: &[u8]) -> Place {
        let place = Place::new();
        place.standin.add("u/r", "m-Q4_K_M.gguf", content);
        place
    }

    fn hub_with(&self, token: Option<&str>) -> Hub {
        let cache = Cache::at(self.folder.path());
        let token = token.map(str::to_owned);
        Hub::new(&self.standin.url, token, cache, RETRIES).expect("a hub")
    }

    fn get(&self, name: &str) -> Result<Vec<u8>, Error> {
        get(&self.hub_with(None), name)
    }

    /// Returns the path of something in the repository's folder of the cache.
    fn cached(&self, path: &str) -> std::path::PathBuf {
        self.folder.path().join("models--u--r").join(path)
    }
}

fn model(name: &str) -> RemoteModel {
    let model = RemoteModel::parse(name).expect("a name");
    model.expect("not a path")
}

/// Fetches a model, and reads it.
fn get(hub: &Hub, name: &str) -> Result<Vec<u8>, Error> {
    let path = hub.model(&model(name), &mut |_| {})?;
    Ok(fs::read(path).expect("it is there"))
}

/// Returns bytes that differ from place to place.
fn bytes(n: usize) -> Vec<u8> {
    (0..n).map(|i| (i * i / 7 % 251) as u8).collect()
}

#[test]
fn a_model_is_kept_as_the_hubs_own_programs_keep_it() {
    let content = bytes(100_000);
    let place = Place::with_model(&content);
    place.standin.add("u/r", "README.md", b"read me");
    place.standin.add("u/r", "a/m-Q8_0.gguf", b"eight");
    assert_eq!(place.get("hf:u/r").expect("it is fetched"), content);
    let hash = sha256(&content);
    let link = place.cached(&format!("snapshots/{COMMIT}/m-Q4_K_M.gguf"));
    let target = fs::read_link(&link).expect("a link");
    assert_eq!(target, Path::new(&format!("../../blobs/{hash}")));
    assert_eq!(
        fs::read(place.cached("refs/main")).expect("it is noted"),
        COMMIT.as_bytes()
    );
    assert_eq!(
        place.standin.sent(),
        content.len(),
        "nothing else was fetched"
    );
    assert_eq!(place.get("hf:u/r:q8_0").expect("it is fetched"), b"eight");
    let link = place.cached(&format!("snapshots/{COMMIT}/a/m-Q8_0.gguf"));
    let target = fs::read_link(&link).expect("a link");
    assert!(target.starts_with("../../../blobs"), "{}", target.display());
    assert_eq!(
        place.get("hf:u/r/README.md@main").expect("it is fetched"),
        b"read me"
    );
    let blob = place.cached(&format!("blobs/{}", git_sha1(b"read me")));
    assert!(blob.is_file(), "a small file is named by Git's hash");
    // again, and offline
    place.standin.sent();
    assert_eq!(place.get("hf:u/r").expect("it is there"), content);
    assert_eq!(place.standin.sent(), 0);
    place.standin.state().requests.clear();
    let offline = place.hub_with(None).offline(true);
    assert_eq!(get(&offline, "hf:u/r").expect("it is there"), content);
    assert_eq!(place.standin.state().requests, [], "nobody is asked");
    let missing = get(&offline, "hf:u/other")
        .expect_err("it is not there")
        .to_string();
    assert!(missing.contains("not in the cache"), "{missing}");
    let models = offline.cache().models();
    let names: Vec<_> = models
        .iter()
        .map(|model| (&*model.file, model.bytes))
        .collect();
    assert_eq!(names, [("a/m-Q8_0.gguf", 5), ("m-Q4_K_M.gguf", 100_000)]);
    assert_eq!(models[1].quantization.as_deref(), Some("Q4_K_M"));
    let freed = offline
        .cache()
        .remove_file("u/r", "m-Q4_K_M.gguf")
        .expect("it is removed");
    assert_eq!((freed, offline.cache().models().len()), (100_000, 1));
    assert!(offline.cache().remove("u/r").expect("it is removed"));
    assert!(!offline.cache().remove("u/r").expect("there is none"));
}

#[test]
fn a_download_goes_on_where_it_was_cut() {
    let content = bytes(400_000);
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Cut(150_000), Fault::Cut(0), Fault::Cut(100_000)];
    assert_eq!(place.get("hf:u/r").expect("it is fetched"), content);
    assert_eq!(place.standin.sent(), content.len(), "no byte twice");
    // cut for good, and continued by another process
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Cut(70_000), Fault::Cut(0), Fault::Cut(0)];
    let error = place.get("hf:u/r").expect_err("it is cut").to_string();
    assert!(error.contains("the connection ended early"), "{error}");
    assert!(error.contains("after 3 attempts"), "{error}");
    assert_eq!(place.get("hf:u/r").expect("it is fetched"), content);
    assert_eq!(place.standin.sent(), content.len(), "no byte twice");
    // a server that knows no ranges begins anew
    let place = Place::with_model(&content);
    place.standin.state().no_ranges = true;
    place.standin.state().faults = vec![Fault::Cut(70_000)];
    assert_eq!(place.get("hf:u/r").expect("it is fetched"), content);
    assert_eq!(place.standin.sent(), 70_000 + content.len());
}

/// Connections that share a file of a few hundred kilobytes.
const FEW: Connections = Connections {
    at_once: 4,
    segment: 32 << 10,
    fast: Duration::from_secs(60),
};

#[test]
fn a_large_file_that_comes_fast_comes_by_several_connections() {
    let content = bytes(1 << 20);
    let seconds = |connections: Connections| {
        let place = Place::with_model(&content);
        place.standin.state().pace = Duration::from_millis(25);
        let hub = place.hub_with(None).connections(connections);
        let start = Instant::now();
        assert_eq!(get(&hub, "hf:u/r").expect("it is fetched"), content);
        (
            start.elapsed().as_secs_f64(),
            place.standin.state().sending.1,
        )
    };
    let (alone, n) = seconds(Connections { at_once: 1, ..FEW });
    assert_eq!(n, 1);
    let (several, n) = seconds(FEW);
    // the first connection may end a little later than the others begin
    assert!((4..=5).contains(&n), "{n} connections");
    assert!(
        several < 0.6 * alone,
        "{several} s, one connection {alone} s"
    );
    // the file is too small, or the connection too slow
    let (segment, fast) = (400 << 10, Duration::ZERO);
    for alone in [Connections { segment, ..FEW }, Connections { fast, ..FEW }] {
        assert_eq!(seconds(alone).1, 1, "{alone:?}");
    }
}

#[test]
fn a_segment_that_is_cut_is_begun_again() {
    let content = bytes(1 << 20);
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Cut(150_000), Fault::Cut(2_000), Fault::Cut(0)];
    let hub = place.hub_with(None).connections(FEW);
    assert_eq!(get(&hub, "hf:u/r").expect("it is fetched"), content);
    // a stop in the middle, and a file of other bytes
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Cut(150_000), Fault::Stall(10_000)];
    let hub = place.hub_with(None).connections(FEW);
    assert_eq!(get(&hub, "hf:u/r").expect("it is fetched"), content);
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Cut(150_000), Fault::OtherBytes];
    let hub = place.hub_with(None).connections(FEW);
    let error = get(&hub, "hf:u/r").expect_err("other bytes").to_string();
    assert!(error.contains("sha256"), "{error}");
}

#[test]
fn a_connection_that_stalls_is_given_up_and_begun_again() {
    let content = bytes(50_000);
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Stall(20_000)];
    let start = Instant::now();
    assert_eq!(place.get("hf:u/r").expect("it is fetched"), content);
    assert!(
        start.elapsed() < Duration::from_millis(2500),
        "{:?}",
        start.elapsed()
    );
    assert_eq!(place.standin.sent(), content.len());
}

#[test]
fn wrong_sizes_and_contents_never_get_a_name() {
    let content = bytes(30_000);
    let place = Place::with_model(&content);
    for (fault, expected) in [
        (Fault::OtherBytes, "m-Q4_K_M.gguf: sha256 "),
        (Fault::Short, "m-Q4_K_M.gguf: size 29999, expected 30000"),
    ] {
        place.standin.state().faults = vec![fault];
        let error = place.get("hf:u/r").expect_err("it is wrong").to_string();
        assert!(error.starts_with(expected), "{error}");
        let blobs = fs::read_dir(place.cached("blobs")).expect("a folder");
        assert_eq!(blobs.count(), 0, "{fault:?}");
    }
    // what an earlier attempt left is wrong, too
    let hash = sha256(&content);
    let incomplete = place.cached(&format!("blobs/{hash}.incomplete"));
    fs::write(&incomplete, [7; 10_000]).expect("written");
    let error = place.get("hf:u/r").expect_err("it is wrong").to_string();
    assert!(error.contains("sha256"), "{error}");
    assert_eq!(place.get("hf:u/r").expect("it is fetched"), content);
}

#[test]
fn busy_and_broken_servers_are_asked_again() {
    let content = bytes(1000);
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Status(503, 0), Fault::Status(429, 1)];
    place.standin.state().refusals = vec![(500, 0), (429, 0)];
    let start = Instant::now();
    assert_eq!(place.get("hf:u/r").expect("it is fetched"), content);
    assert!(
        start.elapsed() >= Duration::from_secs(1),
        "as long as it was asked to"
    );
    let place = Place::with_model(&content);
    place.standin.state().faults = vec![Fault::Status(429, 3600)];
    let error = place
        .get("hf:u/r")
        .expect_err("it takes an hour")
        .to_string();
    assert!(error.contains("429") && error.contains("3600 s"), "{error}");
    place.standin.state().faults = vec![Fault::Status(500, 0); 3];
    let error = place.get("hf:u/r").expect_err("it is broken").to_string();
    assert!(error.contains("the server answers 500"), "{error}");
}

#[test]
fn refusals_say_what_to_do_and_the_token_is_shown_to_the_hub_alone() {
    let content = bytes(1000);
    let place = Place::with_model(&content);
    let refused = |name: &str, token: Option<&str>| {
        let error = get(&place.hub_with(token), name).expect_err("refused");
        error.to_string()
    };
    place.standin.restrict("u/r", Access::Gated("hf_right"));
    let gated = refused("hf:u/r", None);
    let page = format!("{}/u/r", place.standin.url);
    assert_eq!(
        gated,
        format!("u/r: gated: accept its licence at {page}, then set HF_TOKEN")
    );
    place.standin.state().requests.clear();
    let with_token = place.hub_with(Some("hf_right"));
    assert_eq!(get(&with_token, "hf:u/r").expect("it is fetched"), content);
    let requests = place.standin.state().requests.clone();
    let shown = |(path, has_token): &(String, bool)| *has_token != path.starts_with("/storage/");
    assert!(requests.iter().all(shown), "{requests:?}");
    place.standin.restrict("u/r", Access::Private("hf_right"));
    assert!(refused("hf:u/r", None).contains("for a private one HF_TOKEN"));
    assert!(refused("hf:u/r", Some("hf_wrong")).contains("refuses the token"));
    assert!(refused("hf:u/none", None).contains("no such repository"));
    place.standin.restrict("u/r", Access::Open);
    let revision = refused("hf:u/r@v9", None);
    assert!(
        revision.starts_with("u/r: no revision v9: expected a branch"),
        "{revision}"
    );
    let file = refused("hf:u/r:Q5_K_M", None);
    assert_eq!(
        file,
        "u/r: no GGUF file of type Q5_K_M; it has m-Q4_K_M.gguf"
    );
    assert!(refused("hf:u/r/x.gguf", None).starts_with("u/r: no file x.gguf; it has"));
}

#[test]
fn a_hub_that_is_away_is_no_error_once_a_model_is_cached() {
    let content = bytes(1000);
    let place = Place::with_model(&content);
    place.get("hf:u/r").expect("it is fetched");
    let away = "http://127.0.0.1:1";
    let cache = Cache::at(place.folder.path());
    let hub = Hub::new(away, None, cache, RETRIES).expect("a hub");
    let mut reported = 0;
    let path = hub.model(&model("hf:u/r"), &mut |event| {
        reported += usize::from(matches!(event, Event::HubIsAway { .. }));
    });
    assert_eq!(
        fs::read(path.expect("it is cached")).expect("it is there"),
        content
    );
    assert_eq!(reported, 1);
    let error = get(&hub, "hf:u/other")
        .expect_err("it is not cached")
        .to_string();
    assert!(error.contains("after 3 attempts"), "{error}");
}

#[test]
fn two_that_ask_for_the_same_file_download_it_once() {
    let content = bytes(2_000_000);
    let place = Place::with_model(&content);
    std::thread::scope(|scope| {
        let all = [0; 4].map(|_| scope.spawn(|| place.get("hf:u/r")));
        for one in all {
            assert_eq!(
                one.join().expect("no panic").expect("it is fetched"),
                content
            );
        }
    });
    assert_eq!(place.standin.sent(), content.len());
}

#[test]
fn one_that_waits_takes_what_another_left_where_there_are_no_links() {
    let content = bytes(1000);
    let place = Place::with_model(&content);
    let locks = place.folder.path().join(".locks/models--u--r");
    fs::create_dir_all(&locks).expect("a folder");
    let lock = fs::File::create(locks.join(sha256(&content) + ".lock")).expect("a lock");
    lock.lock().expect("it is free");
    std::thread::scope(|scope| {
        let other = scope.spawn(|| place.get("hf:u/r").expect("it is there"));
        std::thread::sleep(Duration::from_millis(300));
        let file = place.cached(&format!("snapshots/{COMMIT}/m-Q4_K_M.gguf"));
        fs::create_dir_all(file.parent().expect("a folder")).expect("it is made");
        fs::write(file, &content).expect("it is written");
        drop(lock);
        assert_eq!(other.join().expect("no panic"), content);
    });
    assert_eq!(place.standin.sent(), 0);
}

#[test]
fn split_models_and_siblings_are_whole() {
    let place = Place::new();
    for (path, content) in [
        ("big/m-Q8_0-00001-of-00002.gguf", &b"one"[..]),
        ("big/m-Q8_0-00002-of-00002.gguf", b"two"),
        ("mmproj-F16.gguf", b"encoder"),
    ] {
        place.standin.add("u/r", path, content);
    }
    let hub = place.hub_with(None);
    let path = hub
        .model(&model("hf:u/r"), &mut |_| {})
        .expect("it is fetched");
    assert!(
        path.ends_with("big/m-Q8_0-00001-of-00002.gguf"),
        "{}",
        path.display()
    );
    let second = path.with_file_name("m-Q8_0-00002-of-00002.gguf");
    assert_eq!(fs::read(second).expect("it is there"), b"two");
    let sibling = hub.sibling(&model("hf:u/r"), "mmproj", &mut |_| {});
    let sibling = sibling.expect("it is fetched").expect("there is one");
    assert_eq!(fs::read(sibling).expect("it is there"), b"encoder");
    let none = hub.sibling(&model("hf:u/r"), "mtp-", &mut |_| {});
    assert_eq!(none.expect("a listing"), None);
}

#[test]
fn a_file_at_an_address_is_kept_by_its_address() {
    let content = bytes(5000);
    let place = Place::with_model(&content);
    let url = format!("{}/u/r/resolve/{COMMIT}/m-Q4_K_M.gguf", place.standin.url);
    place.standin.state().faults = vec![Fault::Cut(1000)];
    assert_eq!(place.get(&url).expect("it is fetched"), content);
    // a second start asks whether the file has changed
    place.standin.sent();
    assert_eq!(place.get(&url).expect("it is there"), content);
    assert_eq!(place.standin.sent(), 0);
    let newer = bytes(6000);
    place.standin.add("u/r", "m-Q4_K_M.gguf", &newer);
    let offline = get(&place.hub_with(None).offline(true), &url);
    assert_eq!(offline.expect("it is there"), content);
    assert_eq!(place.get(&url).expect("it is fetched again"), newer);
    // a server that fails is no reason not to start
    place.standin.state().faults = vec![Fault::Status(500, 0)];
    assert_eq!(place.get(&url).expect("it is there"), newer);
    // what is there of a file that changes meanwhile is not its beginning
    let file = format!("{}/u/r/resolve/{COMMIT}/n-Q4_K_M.gguf", place.standin.url);
    place.standin.add("u/r", "n-Q4_K_M.gguf", &content);
    place.standin.state().faults = vec![Fault::Cut(3000), Fault::Cut(0), Fault::Cut(0)];
    place.get(&file).expect_err("it is cut");
    place.standin.add("u/r", "n-Q4_K_M.gguf", &newer[1..]);
    assert_eq!(place.get(&file).expect("it is fetched"), newer[1..]);
    let error = place
        .get(&url.replace("m-Q4", "x-Q4"))
        .expect_err("it is not there");
    assert!(matches!(error, Error::NotFound { .. }), "{error}");
}

/// Files that `huggingface_hub` has downloaded are not downloaded again, and the other way round.
/// Needs a Python with that package, named by OCTAVO_HUB_PYTHON.
#[test]
fn the_cache_is_shared_with_huggingface_hub() {
    let Ok(python) = std::env::var("OCTAVO_HUB_PYTHON") else {
        return skip(Lacks::System, "OCTAVO_HUB_PYTHON is not set");
    };
    let content = bytes(300_000);
    let run = |place: &Place, code: &str| {
        let output = std::process::Command::new(&python)
            .args(["-c", &format!("from huggingface_hub import *; {code}")])
            .env("HF_ENDPOINT", &place.standin.url)
            .env("HF_HUB_CACHE", place.folder.path())
            .env("HF_HUB_DISABLE_XET", "1")
            .env("NO_PROXY", "127.0.0.1")
            .env_remove("HF_TOKEN")
            .output()
            .expect("Python runs");
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        assert!(output.status.success(), "{said}");
        String::from_utf8(output.stdout).expect("UTF-8")
    };
    let theirs = Place::with_model(&content);
    run(&theirs, "hf_hub_download('u/r', 'm-Q4_K_M.gguf')");
    theirs.standin.sent();
    assert_eq!(theirs.get("hf:u/r").expect("it is cached"), content);
    assert_eq!(theirs.standin.sent(), 0, "it was there");
    let ours = Place::with_model(&content);
    ours.standin.add("u/r", "config.json", b"{}");
    ours.get("hf:u/r").expect("it is fetched");
    ours.get("hf:u/r/config.json").expect("it is fetched");
    ours.standin.sent();
    let path = run(&ours, "print(hf_hub_download('u/r', 'm-Q4_K_M.gguf'))");
    assert_eq!(fs::read(path.trim()).expect("it is there"), content);
    run(
        &ours,
        "hf_hub_download('u/r', 'config.json', local_files_only=True)",
    );
    assert_eq!(ours.standin.sent(), 0, "it was there");
    let scanned = run(
        &ours,
        "print(scan_cache_dir().size_on_disk, scan_cache_dir().warnings)",
    );
    assert_eq!(scanned, format!("{} []\n", content.len() + 2));
}
