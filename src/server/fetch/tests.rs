//! Fetching from a local test host.

#[path = "../tests/web.rs"]
mod web;

use std::time::Instant;

use rustls::pki_types::{CertificateDer, PrivateKeyDer, PrivatePkcs8KeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};

use super::*;
use web::Web;

const IMAGE: &[u8] = b"whatever is in the file";

/// Byte limit for a request's images.
const MAX_BYTES: usize = 100_000;

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .expect("threads")
}

fn fetcher(hosts: &[&str], roots: RootCertStore) -> Fetcher {
    let hosts = hosts.iter().map(|host| host.parse().expect("a host"));
    let bounds = Bounds {
        bytes: MAX_BYTES,
        time: Duration::from_secs(2),
    };
    Fetcher::new(hosts.collect(), bounds, roots)
}

/// Fetches images; returns the message on failure.
fn fetch(fetcher: &Fetcher, urls: &[String]) -> Result<Vec<Vec<u8>>, String> {
    let image_urls: Vec<_> = urls
        .iter()
        .map(|url| ImageUrl {
            field: "messages".to_owned(),
            url: url.clone(),
        })
        .collect();
    match runtime().block_on(fetcher.all(&image_urls)) {
        Ok(fetched) => Ok(urls
            .iter()
            .map(|url| fetched.file(url).expect("all are there").to_owned())
            .collect()),
        Err(error) => {
            let error = error.to_json();
            assert_eq!(error["error"]["param"], "messages");
            assert_eq!(error["error"]["type"], "invalid_request_error");
            let message = error["error"]["message"].as_str().expect("a text");
            assert!(!message.contains('\n'), "{message}");
            Err(message.to_owned())
        }
    }
}

#[test]
fn images_come_as_they_are() {
    let web = Web::new(IMAGE);
    let fetcher = fetcher(&[&web.host()], RootCertStore::empty());
    for path in [
        "/image",
        "/bytes",
        "/untyped",
        "/to/0",
        "/to/4",
        "/beside",
        "/image#part",
    ] {
        assert_eq!(
            fetch(&fetcher, &[web.url(path)]).expect(path),
            [IMAGE],
            "{path}"
        );
    }
    web.asked();
    // each URL is fetched once, however often it occurs
    let urls = ["/image", "/bytes", "/image"].map(|path| web.url(path));
    assert_eq!(fetch(&fetcher, &urls).expect("both"), [IMAGE; 3]);
    assert_eq!(web.asked(), ["/image", "/bytes"]);
    let shouted = web.url("/image").replace("http", "HTTP");
    assert!(is_remote(&shouted) && fetch(&fetcher, &[shouted]).is_ok());
    for other in [
        "data:image/png;base64,AQID",
        "AQID",
        "file:///a",
        "ftp://a/b",
    ] {
        assert!(!is_remote(other), "{other}");
    }
}

#[test]
fn what_goes_wrong_is_said_in_a_line() {
    let web = Web::new(IMAGE);
    let fetcher = fetcher(&[&web.host()], RootCertStore::empty());
    for (path, expected) in [
        (
            "/text",
            "expected an image, found \"text/html; charset=utf-8\"",
        ),
        ("/none", "expected status 200, found 404"),
        ("/round", "expected at most 5 redirects, found more"),
        ("/to/6", "expected at most 5 redirects, found more"),
        ("/private", "may fetch images from, found 127.0.0.2"),
        ("/metadata", "may fetch images from, found 169.254.169.254"),
        ("/file", "expected http or https, found file"),
        ("/nowhere", "found a redirect to nowhere"),
        ("/huge", "expected at most 100000 bytes"),
        ("/endless", "expected at most 100000 bytes"),
        ("/cut", "the image ended before its end"),
        ("/closed", "expected an answer of HTTP"),
        ("/noise", "expected an answer of HTTP"),
    ] {
        let error = fetch(&fetcher, &[web.url(path)]).expect_err(path);
        assert!(error.contains(expected), "{path}: {error}");
    }
    for (url, expected) in [
        ("http://", "expected a URL: empty host"),
        ("http://a b/", "expected a URL: invalid"),
        (
            "http://me:secret@127.0.0.1/",
            "without a user and a password",
        ),
        ("https://127.0.0.1:99999/", "expected a URL: invalid port"),
    ] {
        let error = fetch(&fetcher, &[url.to_owned()]).expect_err(url);
        assert!(error.contains(expected), "{url}: {error}");
    }
    let closed = closed_port();
    let fetcher = self::fetcher(&["127.0.0.1", "no.such.invalid"], RootCertStore::empty());
    let error = fetch(&fetcher, &[format!("http://127.0.0.1:{closed}/")]);
    let error = error.expect_err("nobody listens");
    assert!(
        error.contains("127.0.0.1: cannot connect: connection refused"),
        "{error}"
    );
    let error = fetch(&fetcher, &["http://no.such.invalid/".to_owned()]).expect_err("no host");
    assert!(
        error.contains("no.such.invalid: expected an address, found none"),
        "{error}"
    );
}

/// Returns a port without a listener.
fn closed_port() -> u16 {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("a port");
    listener.local_addr().expect("an address").port()
}

#[test]
fn only_public_addresses_are_asked_unless_they_are_named() {
    let web = Web::new(IMAGE);
    let port = web.address.port();
    let public = fetcher(&["public"], RootCertStore::empty());
    for host in [
        "127.0.0.1",
        "localhost",
        "2130706433",
        "0x7f.1",
        "0.0.0.0",
        "[::1]",
        "[::ffff:127.0.0.1]",
        "[::]",
        "169.254.169.254",
        "10.0.0.1",
    ] {
        let error = fetch(&public, &[format!("http://{host}:{port}/image")]).expect_err(host);
        assert!(
            error.contains("expected a host with a public address"),
            "{host}: {error}"
        );
    }
    // if only named hosts are allowed, no other host is contacted, whatever its address
    let named = fetcher(&["example.org", "localhost:1"], RootCertStore::empty());
    for host in ["127.0.0.1", "localhost", "1.1.1.1"] {
        let error = fetch(&named, &[format!("http://{host}:{port}/image")]).expect_err(host);
        assert!(
            error.contains("may fetch images from, found"),
            "{host}: {error}"
        );
    }
    assert_eq!(web.asked(), [""; 0]);
    let both = fetcher(&["public", "localhost"], RootCertStore::empty());
    let url = |host: &str, path: &str| format!("http://{host}:{port}{path}");
    assert!(fetch(&both, &[url("localhost", "/image")]).is_ok());
    let error = fetch(&both, &[url("localhost", "/private")]).expect_err("127.0.0.2");
    assert!(
        error.contains("a public address, found 127.0.0.2"),
        "{error}"
    );
    assert_eq!(web.asked(), ["/image", "/private"]);
}

#[test]
fn images_of_a_request_are_bounded_together() {
    let web = Web::new(&[7; MAX_BYTES / 2]);
    let fetcher = fetcher(&[&web.host()], RootCertStore::empty());
    let urls = ["/image", "/bytes", "/untyped"].map(|path| web.url(path));
    assert!(fetch(&fetcher, &urls[..2]).is_ok());
    let error = fetch(&fetcher, &urls).expect_err("one too many");
    assert!(
        error.contains("at most 100000 bytes, of all images together"),
        "{error}"
    );
    // the time limit is shared too
    let start = Instant::now();
    let slow = [web.url("/slow"), web.url("/image")];
    let error = fetch(&fetcher, &slow).expect_err("it never ends");
    assert!(
        error.contains("expected the image within 2 seconds"),
        "{error}"
    );
    assert!(
        (2..20).contains(&start.elapsed().as_secs()),
        "{:?}",
        start.elapsed()
    );
    web.wait_left(1);
}

#[test]
fn as_many_are_fetched_at_a_time_as_there_are_places() {
    let web = Web::new(IMAGE);
    let fetcher = fetcher(&[&web.host()], RootCertStore::empty());
    let urls = [ImageUrl {
        field: String::new(),
        url: web.url("/image"),
    }];
    let runtime = runtime();
    let one = || runtime.block_on(async { timeout(PATIENCE, fetcher.all(&urls)).await });
    let mut held: Vec<_> = (0..PLACES).map(|_| one().expect("in time").ok()).collect();
    let soon = Duration::from_millis(100);
    let next = runtime.block_on(async { timeout(soon, fetcher.all(&urls)).await });
    assert!(next.is_err(), "all places are taken");
    held.pop();
    assert!(one().expect("in time").is_ok());
}

#[test]
fn nothing_is_fetched_for_who_is_gone() {
    let web = Web::new(IMAGE);
    let fetcher = fetcher(&[&web.host()], RootCertStore::empty());
    let urls = [ImageUrl {
        field: String::new(),
        url: web.url("/slow"),
    }];
    let runtime = runtime();
    // the runtime provides timers
    let _entered = runtime.enter();
    let mut fetching = Box::pin(fetcher.all(&urls));
    while web.asked().is_empty() {
        let soon = timeout(Duration::from_millis(10), &mut fetching);
        assert!(runtime.block_on(soon).is_err(), "it has no end");
    }
    drop(fetching);
    web.wait_left(1);
    assert_eq!(fetcher.places.available_permits(), PLACES);
}

#[test]
fn secure_hosts_are_who_they_say_they_are() {
    let file = |bytes: &'static [u8]| CertificateDer::from(bytes);
    let key = PrivatePkcs8KeyDer::from(&include_bytes!("tests/host-key.der")[..]);
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions")
        .with_no_client_auth()
        .with_single_cert(
            vec![file(include_bytes!("tests/host.der"))],
            PrivateKeyDer::from(key),
        )
        .expect("a key that fits");
    let config = Arc::new(config);
    let web = Web::with(IMAGE, move |stream| {
        let connection = ServerConnection::new(Arc::clone(&config)).expect("a configuration");
        Box::new(StreamOwned::new(connection, stream))
    });
    let mut roots = RootCertStore::empty();
    let authority = file(include_bytes!("tests/authority.der"));
    roots.add(authority).expect("an authority");
    let port = web.address.port();
    let trusting = fetcher(&["localhost", "127.0.0.1"], roots);
    let good = format!("https://localhost:{port}/image");
    assert_eq!(
        fetch(&trusting, std::slice::from_ref(&good)).expect("it is"),
        [IMAGE]
    );
    assert_eq!(web.asked(), ["/image"]);
    // the certificate covers the name only
    let error = fetch(&trusting, &[format!("https://127.0.0.1:{port}/image")]);
    let error = error.expect_err("another name");
    assert!(error.contains("127.0.0.1: no secure connection"), "{error}");
    let distrusting = fetcher(&["localhost"], RootCertStore::empty());
    let error = fetch(&distrusting, &[good]).expect_err("an unknown authority");
    assert!(error.contains("localhost: no secure connection"), "{error}");
    assert_eq!(web.asked(), [""; 0]);
}
