//! A server that speaks the hub's interface, with planted faults.

use std::collections::BTreeMap;
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex, MutexGuard};
use std::thread;
use std::time::Duration;

use sha1::Digest;

/// The commit that all repositories are at.
pub(crate) const COMMIT: &str = "0123456789abcdef0123456789abcdef01234567";

/// Answer of the server to the next request for the content of a file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fault {
    /// Sends this many bytes, and closes the connection.
    Cut(usize),
    /// Sends this many bytes, and nothing more for a while.
    Stall(usize),
    /// Sends other bytes of the right number.
    OtherBytes,
    /// Announces and sends fewer bytes.
    Short,
    /// Answers with this status, and asks to wait for some seconds.
    Status(u16, u64),
}

/// How a repository may be read.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Access {
    #[default]
    Open,
    /// Only with this token; the licence has not been accepted without it.
    Gated(&'static str),
    /// Only with this token; does not exist without it.
    Private(&'static str),
}

#[derive(Default)]
pub(crate) struct State {
    /// Files by repository and path.
    files: BTreeMap<(String, String), Stored>,
    access: BTreeMap<String, Access>,
    pub(crate) faults: Vec<Fault>,
    /// Statuses of the next requests for documents.
    pub(crate) refusals: Vec<(u16, u64)>,
    pub(crate) no_ranges: bool,
    /// Time that a connection waits before each 16 KiB of a content.
    pub(crate) pace: Duration,
    /// Contents that are being sent, and the highest number of them.
    pub(crate) sending: (usize, usize),
    /// Requests: their paths, and whether they had a token.
    pub(crate) requests: Vec<(String, bool)>,
    /// Bytes of contents sent.
    pub(crate) sent: usize,
}

/// A file, and its hashes.
#[derive(Clone)]
struct Stored {
    content: Arc<Vec<u8>>,
    sha256: String,
    git: String,
}

/// A running server; it ends with the process.
#[derive(Clone)]
pub(crate) struct Standin {
    pub(crate) url: String,
    state: Arc<Mutex<State>>,
}

impl Standin {
    /// Starts a hub, and another server that keeps its large files.
    pub(crate) fn start() -> Standin {
        let state = Arc::new(Mutex::new(State::default()));
        let storage = listen(&state, None);
        let url = listen(&state, Some(storage));
        Standin { url, state }
    }

    pub(crate) fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().expect("no panic")
    }

    pub(crate) fn add(&self, repo: &str, path: &str, content: &[u8]) {
        let key = (repo.to_owned(), path.to_owned());
        let stored = Stored {
            content: Arc::new(content.to_vec()),
            sha256: sha256(content),
            git: git_sha1(content),
        };
        self.state().files.insert(key, stored);
    }

    pub(crate) fn restrict(&self, repo: &str, access: Access) {
        self.state().access.insert(repo.to_owned(), access);
    }

    /// Returns the bytes sent since the last call.
    pub(crate) fn sent(&self) -> usize {
        std::mem::take(&mut self.state().sent)
    }
}

/// Starts to listen; `storage` is where large files are, unless it is this one.
fn listen(state: &Arc<Mutex<State>>, storage: Option<String>) -> String {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("http://{}", listener.local_addr().expect("an address"));
    let state = Arc::clone(state);
    thread::spawn(move || {
        for stream in listener.incoming().flatten() {
            let (state, storage) = (Arc::clone(&state), storage.clone());
            thread::spawn(move || answer(&state, storage.as_deref(), stream));
        }
    });
    url
}

struct Request {
    path: String,
    query: String,
    from: usize,
    /// Byte after the last one that is asked for.
    to: Option<usize>,
    token: Option<String>,
    /// ETag that the file must not have, or must have for a part of it.
    none_match: Option<String>,
    if_range: Option<String>,
    is_head: bool,
}

fn read(stream: &TcpStream) -> Option<Request> {
    let mut lines = BufReader::new(stream).lines();
    let first = lines.next()?.ok()?;
    let mut words = first.split(' ');
    let is_head = words.next()? == "HEAD";
    let (path, query) = match words.next()?.split_once('?') {
        Some((path, query)) => (path.to_owned(), query.to_owned()),
        None => (first.split(' ').nth(1)?.to_owned(), String::new()),
    };
    let (mut from, mut to, mut token) = (0, None, None);
    let (mut none_match, mut if_range) = (None, None);
    for line in lines {
        let line = line.ok()?;
        let Some((name, value)) = line.split_once(": ") else {
            break;
        };
        match &*name.to_ascii_lowercase() {
            "range" => {
                let (first, last) = value.strip_prefix("bytes=")?.split_once('-')?;
                from = first.parse().ok()?;
                to = last.parse::<usize>().ok().map(|last| last + 1);
            }
            "if-none-match" => none_match = Some(value.to_owned()),
            "if-range" => if_range = Some(value.to_owned()),
            "authorization" => token = value.strip_prefix("Bearer ").map(str::to_owned),
            _ => {}
        }
    }
    Some(Request {
        path,
        query,
        from,
        to,
        token,
        none_match,
        if_range,
        is_head,
    })
}

fn answer(shared: &Mutex<State>, storage: Option<&str>, mut stream: TcpStream) -> Option<()> {
    let request = read(&stream)?;
    let mut state = shared.lock().expect("no panic");
    let has_token = request.token.is_some();
    state.requests.push((request.path.clone(), has_token));
    if let Some(rest) = request.path.strip_prefix("/storage/") {
        let stored = state.files.values().find(|stored| stored.sha256 == rest)?;
        let stored = stored.clone();
        return send(
            (shared, state),
            stream,
            &request,
            (&stored.content, &stored.sha256),
        );
    }
    if let Some(rest) = request.path.strip_prefix("/api/models/") {
        if let Some((status, wait)) = state.refusals.pop() {
            drop(state);
            return reply(
                &mut stream,
                status,
                &format!("retry-after: {wait}\r\n"),
                b"",
            );
        }
        let (repo, rest) = split(rest)?;
        if let Some((status, headers)) = refused(&state, &repo, &request) {
            return reply(&mut stream, status, headers, b"{\"error\":\"no\"}");
        }
        if rest.starts_with("revision/") || rest.is_empty() {
            let is_known = matches!(rest, "" | "revision/main") || rest.ends_with(COMMIT);
            let body = model_info(&state, &repo);
            return match is_known {
                true => reply(&mut stream, 200, "", body.as_bytes()),
                false => reply(&mut stream, 404, "x-error-code: RevisionNotFound\r\n", b""),
            };
        }
        if rest == "refs" {
            let body =
                format!("{{\"branches\":[{{\"name\":\"main\",\"targetCommit\":\"{COMMIT}\"}}]}}");
            return reply(&mut stream, 200, "", body.as_bytes());
        }
        return list(&state, storage?, &repo, &request, &mut stream);
    }
    let (repo, rest) = split(request.path.strip_prefix('/')?)?;
    let path = rest.strip_prefix("resolve/")?;
    let (_, path) = path
        .split_once('/')
        .filter(|(at, _)| matches!(*at, "main" | COMMIT))?;
    if let Some((status, headers)) = refused(&state, &repo, &request) {
        return reply(&mut stream, status, headers, b"");
    }
    let Some(stored) = state.files.get(&(repo, path.to_owned())).cloned() else {
        return reply(&mut stream, 404, "x-error-code: EntryNotFound\r\n", b"");
    };
    let about = format!(
        "x-repo-commit: {COMMIT}\r\nx-linked-size: {}\r\n",
        stored.content.len()
    );
    match storage.filter(|_| is_large(path)) {
        Some(storage) => {
            let hash = &stored.sha256;
            let headers = format!(
                "{about}x-linked-etag: \"{hash}\"\r\nlocation: {storage}/storage/{hash}\r\n"
            );
            reply(&mut stream, 302, &headers, b"")
        }
        None => send(
            (shared, state),
            stream,
            &request,
            (&stored.content, &stored.git),
        ),
    }
}

fn model_info(state: &State, repo: &str) -> String {
    let of_repo = state.files.keys().filter(|(of, _)| of == repo);
    let siblings: Vec<String> = of_repo
        .map(|(_, path)| format!("{{\"rfilename\":\"{path}\"}}"))
        .collect();
    let siblings = siblings.join(",");
    format!("{{\"id\":\"{repo}\",\"sha\":\"{COMMIT}\",\"siblings\":[{siblings}]}}")
}

/// Lists two files a page.
fn list(
    state: &State,
    _: &str,
    repo: &str,
    request: &Request,
    stream: &mut TcpStream,
) -> Option<()> {
    let from = request.query.split("cursor=").nth(1);
    let from: usize = from.map_or(0, |n| n.parse().expect("a cursor"));
    let of_repo = state.files.iter().filter(|((of, _), _)| of == repo);
    let all: Vec<String> = of_repo
        .map(|((_, path), stored)| {
            let (oid, size) = (&stored.git, stored.content.len());
            let lfs = match is_large(path) {
                true => format!(",\"lfs\":{{\"oid\":\"{}\",\"size\":{size}}}", stored.sha256),
                false => String::new(),
            };
            format!(
                "{{\"type\":\"file\",\"path\":\"{path}\",\"oid\":\"{oid}\",\"size\":{size}{lfs}}}"
            )
        })
        .chain(["{\"type\":\"directory\",\"path\":\"a\",\"oid\":\"00\",\"size\":0}".to_owned()])
        .collect();
    let to = (from + 2).min(all.len());
    let body = format!("[{}]", all[from..to].join(","));
    let host = stream.local_addr().ok()?;
    let next = format!("http://{host}{}?recursive=true&cursor={to}", request.path);
    let link = match to < all.len() {
        true => format!("link: <{next}>; rel=\"next\"\r\n"),
        false => String::new(),
    };
    reply(stream, 200, &link, body.as_bytes())
}

fn refused(state: &State, repo: &str, request: &Request) -> Option<(u16, &'static str)> {
    let is_there = state.files.keys().any(|(of, _)| of == repo);
    let has = |token: &str| request.token.as_deref() == Some(token);
    match state.access.get(repo).copied().unwrap_or_default() {
        Access::Gated(token) if !has(token) => Some((403, "x-error-code: GatedRepo\r\n")),
        Access::Private(token) if !has(token) => Some((401, "")),
        _ if !is_there => Some((404, "x-error-code: RepoNotFound\r\n")),
        _ => None,
    }
}

/// Sends a file's content, with the next fault.
fn send(
    (shared, mut state): (&Mutex<State>, MutexGuard<'_, State>),
    mut stream: TcpStream,
    request: &Request,
    (content, hash): (&[u8], &str),
) -> Option<()> {
    let etag = format!("\"{hash}\"");
    if request.none_match.as_ref() == Some(&etag) {
        drop(state);
        return reply(&mut stream, 304, "", b"");
    }
    let fault = match state.faults.is_empty() || request.is_head {
        true => None,
        false => Some(state.faults.remove(0)),
    };
    let is_other = request.if_range.as_ref().is_some_and(|tag| *tag != etag);
    let (from, to) = match state.no_ranges || is_other {
        true => (0, None),
        false => (request.from, request.to),
    };
    let to = to.unwrap_or(content.len()).min(content.len());
    let mut part = content.get(from..to)?.to_vec();
    let mut status = match from > 0 || to < content.len() {
        true => 206,
        false => 200,
    };
    let mut announced = part.len();
    match fault {
        Some(Fault::Status(of_fault, wait)) => {
            drop(state);
            return reply(
                &mut stream,
                of_fault,
                &format!("retry-after: {wait}\r\n"),
                b"",
            );
        }
        Some(Fault::OtherBytes) => part.iter_mut().for_each(|byte| *byte ^= 1),
        Some(Fault::Short) => {
            part.pop();
            announced = part.len();
        }
        Some(Fault::Cut(n) | Fault::Stall(n)) => part.truncate(n),
        None => {}
    }
    if request.is_head {
        part.clear();
        status = 200;
    }
    state.sent += part.len();
    state.sending.0 += 1;
    state.sending.1 = state.sending.1.max(state.sending.0);
    let (pace, accepts) = (state.pace, if state.no_ranges { "none" } else { "bytes" });
    drop(state);
    let range = match status {
        206 => format!(
            "content-range: bytes {from}-{}/{}\r\n",
            to - 1,
            content.len()
        ),
        _ => String::new(),
    };
    let head = format!(
        "HTTP/1.1 {status} x\r\ncontent-length: {announced}\r\nconnection: close\r\n\
         accept-ranges: {accepts}\r\nx-repo-commit: {COMMIT}\r\netag: {etag}\r\n{range}\r\n"
    );
    let sent = send_slowly(&mut stream, head.as_bytes(), &part, pace);
    shared.lock().expect("no panic").sending.0 -= 1;
    sent?;
    if let Some(Fault::Stall(_)) = fault {
        thread::sleep(Duration::from_secs(3));
    }
    Some(())
}

/// Sends a head and a content, and waits before each piece of it.
fn send_slowly(stream: &mut TcpStream, head: &[u8], part: &[u8], pace: Duration) -> Option<()> {
    stream.write_all(head).ok()?;
    if pace.is_zero() {
        return stream.write_all(part).ok();
    }
    for piece in part.chunks(16 << 10) {
        thread::sleep(pace);
        stream.write_all(piece).ok()?;
    }
    Some(())
}

fn reply(stream: &mut TcpStream, status: u16, headers: &str, body: &[u8]) -> Option<()> {
    let n = body.len();
    let head =
        format!("HTTP/1.1 {status} x\r\ncontent-length: {n}\r\nconnection: close\r\n{headers}\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(body).ok()
}

/// Splits off the user and the repository.
fn split(path: &str) -> Option<(String, &str)> {
    let mut parts = path.splitn(3, '/');
    let repo = format!("{}/{}", parts.next()?, parts.next()?);
    Some((repo, parts.next().unwrap_or_default()))
}

fn is_large(path: &str) -> bool {
    path.ends_with(".gguf") || path.ends_with(".safetensors")
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

pub(crate) fn sha256(content: &[u8]) -> String {
    hex(&sha2::Sha256::digest(content))
}

pub(crate) fn git_sha1(content: &[u8]) -> String {
    let head = format!("blob {}\0", content.len());
    hex(&sha1::Sha1::digest([head.as_bytes(), content].concat()))
}
