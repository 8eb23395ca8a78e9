//! TLS: certificates, handshakes that never end, and bytes that are none.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::{Duration, Instant};

use base64::Engine as _;
use octavo_server::{Options, Tls};
use rustls::pki_types::{CertificateDer, ServerName};
use rustls::{ClientConfig, ClientConnection, RootCertStore, StreamOwned};
use tempfile::TempDir;

use crate::client::{Server, small};

/// A certificate for `localhost`, its key, and the authority that signed it.
const CERTIFICATE: &[u8] = include_bytes!("../fetch/tests/host.der");
const KEY: &[u8] = include_bytes!("../fetch/tests/host-key.der");
const AUTHORITY: &[u8] = include_bytes!("../fetch/tests/authority.der");

/// Time after which a connection that sends nothing must be closed, with some to spare.
const CLOSED: Duration = Duration::from_secs(13);

fn pem(label: &str, der: &[u8]) -> String {
    let text = base64::engine::general_purpose::STANDARD.encode(der);
    let lines: Vec<&str> = text
        .as_bytes()
        .chunks(64)
        .map(|line| std::str::from_utf8(line).expect("base64"))
        .collect();
    let lines = lines.join("\n");
    format!("-----BEGIN {label}-----\n{lines}\n-----END {label}-----\n")
}

/// A folder with a certificate and its key.
struct Files {
    folder: TempDir,
}

impl Files {
    fn new() -> Files {
        let files = Files {
            folder: tempfile::tempdir().expect("a folder"),
        };
        files.write("cert.pem", &pem("CERTIFICATE", CERTIFICATE));
        files.write("key.pem", &pem("PRIVATE KEY", KEY));
        files
    }

    fn at(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    fn write(&self, name: &str, text: &str) {
        std::fs::write(self.at(name), text).expect("written");
    }

    fn tls(&self) -> Tls {
        Tls::load(&self.at("cert.pem"), &self.at("key.pem")).expect("a certificate")
    }
}

fn serving(tls: Tls) -> Server {
    let tls = Some(tls);
    Server::new(
        small(),
        Options {
            tls,
            ..Options::default()
        },
    )
}

type Secured = StreamOwned<ClientConnection, TcpStream>;

/// Opens an encrypted connection that offers these protocols.
fn secured(server: &Server, protocols: &[&str]) -> Secured {
    let mut roots = RootCertStore::empty();
    roots.add(CertificateDer::from(AUTHORITY)).expect("a root");
    let provider = Arc::new(rustls::crypto::ring::default_provider());
    let mut config = ClientConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("ciphers")
        .with_root_certificates(roots)
        .with_no_client_auth();
    config.alpn_protocols = protocols
        .iter()
        .map(|name| name.as_bytes().to_vec())
        .collect();
    let name = ServerName::try_from("localhost").expect("a name");
    let connection = ClientConnection::new(Arc::new(config), name).expect("a client");
    StreamOwned::new(connection, server.connect())
}

/// Sends a request and returns the answer's status line.
fn ask(server: &Server) -> String {
    let mut stream = secured(server, &["h2", "http/1.1"]);
    let body = r#"{"prompt": "1+1=", "max_tokens": 1}"#;
    let request = format!(
        "POST /v1/completions HTTP/1.1\r\nhost: localhost\r\nconnection: close\r\n\
         content-length: {}\r\n\r\n{body}",
        body.len()
    );
    stream.write_all(request.as_bytes()).expect("it reads");
    let mut line = String::new();
    let mut reader = BufReader::new(stream);
    reader.read_line(&mut line).expect("an answer");
    let mut rest = String::new();
    // an orderly end, without which rustls reports an error
    reader.read_to_string(&mut rest).expect("the rest");
    let protocol = reader.get_ref().conn.alpn_protocol();
    assert_eq!(protocol, Some(&b"http/1.1"[..]));
    line.trim().to_owned()
}

#[test]
fn answers_are_encrypted() {
    let files = Files::new();
    let server = serving(files.tls());
    assert_eq!(ask(&server), "HTTP/1.1 200 OK");
    // neither HTTP in the open nor a protocol that is not spoken
    for bytes in [
        &b"GET /health HTTP/1.1\r\nhost: localhost\r\n\r\n"[..],
        &[0; 600],
    ] {
        let mut stream = server.connect();
        stream.write_all(bytes).expect("it reads");
        let mut answer = Vec::new();
        let _ = stream.read_to_end(&mut answer);
        let text = String::from_utf8_lossy(&answer);
        assert!(!text.contains("HTTP/1.1 200"), "{text}");
    }
    let mut only_h2 = secured(&server, &["h2"]);
    assert!(only_h2.write_all(b"x").is_err());
    assert_eq!(ask(&server), "HTTP/1.1 200 OK");
}

#[test]
fn a_certificate_is_read_again_and_a_bad_one_is_not_taken() {
    let files = Files::new();
    let tls = files.tls();
    let server = serving(tls.clone());
    let open = secured(&server, &[]);
    files.write("cert.pem", "nothing");
    let error = tls.reload().expect_err("no certificate").to_string();
    let expected = "cert.pem: expected a certificate in PEM form, found no PEM";
    assert!(error.ends_with(expected), "{error}");
    assert_eq!(ask(&server), "HTTP/1.1 200 OK");
    // with its authority
    let both = [CERTIFICATE, AUTHORITY].map(|der| pem("CERTIFICATE", der));
    files.write("cert.pem", &both.concat());
    tls.reload().expect("a certificate");
    assert_eq!(ask(&server), "HTTP/1.1 200 OK");
    let mut stream = secured(&server, &[]);
    stream.flush().expect("a handshake");
    stream.write_all(b"\r\n").expect("a handshake");
    assert_eq!(stream.conn.peer_certificates().map(<[_]>::len), Some(2));
    drop(open);
}

#[test]
fn errors_name_the_file_and_what_is_wrong() {
    let files = Files::new();
    let key = pem("PRIVATE KEY", KEY);
    let certificate = pem("CERTIFICATE", CERTIFICATE);
    let authority = pem("CERTIFICATE", AUTHORITY);
    let encrypted = pem("ENCRYPTED PRIVATE KEY", KEY);
    let cut = &certificate[..certificate.len() / 2];
    let of_certificate = [
        (
            "",
            "cert.pem: expected a certificate in PEM form, found an empty file",
        ),
        (
            "text",
            "cert.pem: expected a certificate in PEM form, found no PEM",
        ),
        (
            &key,
            "cert.pem: expected a certificate in PEM form, found a private key",
        ),
        (cut, "cert.pem: expected a certificate in PEM form, found "),
        (
            &pem("CERTIFICATE", b"nonsense"),
            "cert.pem: expected an X.509 certificate, found one that cannot be used (BadEncoding)",
        ),
        (
            &authority,
            "key.pem: expected the key of the certificate in ",
        ),
    ];
    let load = || Tls::load(&files.at("cert.pem"), &files.at("key.pem"));
    let says = |part: &str| {
        let error = load().expect_err(part).to_string();
        assert!(error.contains(part), "{part}: {error}");
    };
    for (text, part) in of_certificate {
        files.write("cert.pem", text);
        says(part);
    }
    files.write("cert.pem", &certificate);
    let of_key = [
        (
            "",
            "key.pem: expected a private key in PEM form, not encrypted, found an empty file",
        ),
        (&certificate, "not encrypted, found a certificate"),
        (&encrypted, "not encrypted, found an encrypted key"),
        (
            &pem("PRIVATE KEY", b"nonsense"),
            "key.pem: expected a private key (RSA, ECDSA or Ed25519), found ",
        ),
    ];
    for (text, part) in of_key {
        files.write("key.pem", text);
        says(part);
    }
    let nowhere = Tls::load(Path::new("/nowhere/cert.pem"), &files.at("key.pem"));
    let error = nowhere.expect_err("no file").to_string();
    assert!(
        error.starts_with("/nowhere/cert.pem: No such file"),
        "{error}"
    );
}

#[test]
fn handshakes_that_never_end_hold_nobody_up() {
    let files = Files::new();
    let server = serving(files.tls());
    // the head of a record, and half of a greeting, of which the rest never comes
    let half = [&[0x16, 3, 1, 2, 0, 1, 0, 1, 0xfc, 3, 3][..], &[7; 100]].concat();
    let start = Instant::now();
    let slow: Vec<TcpStream> = (0..300)
        .map(|i| {
            let mut stream = server.connect();
            let bytes = [&b""[..], &half, &half[..3]][i % 3];
            stream.write_all(bytes).expect("it reads");
            stream
        })
        .collect();
    assert_eq!(ask(&server), "HTTP/1.1 200 OK");
    assert!(start.elapsed() < Duration::from_secs(10));
    // each is closed, so that it takes no place of others for ever
    for mut stream in slow {
        stream.set_read_timeout(Some(CLOSED)).expect("a timeout");
        let mut rest = Vec::new();
        match stream.read_to_end(&mut rest) {
            Ok(_) => {}
            Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::ConnectionReset),
        }
    }
    assert!(
        start.elapsed() < CLOSED + Duration::from_secs(7),
        "{:?}",
        start.elapsed()
    );
    // nor does one who finishes it and then says nothing
    let mut silent = secured(&server, &[]);
    silent.flush().expect("a handshake");
    silent
        .conn
        .complete_io(&mut silent.sock)
        .expect("a handshake");
    silent
        .sock
        .set_read_timeout(Some(CLOSED))
        .expect("a timeout");
    let mut rest = Vec::new();
    match silent.read_to_end(&mut rest) {
        Ok(_) => {}
        Err(error) => assert_eq!(error.kind(), std::io::ErrorKind::UnexpectedEof),
    }
    assert!(
        rest.is_empty() || rest.starts_with(b"HTTP/1.1 408"),
        "{rest:?}"
    );
}
