//! A server on a free port, and a minimal HTTP client: it can also disconnect midway, or send
//! invalid requests.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use octavo_engine::{Engine, EngineOptions, ModelSource};
use octavo_fixtures::tiny::File;
use octavo_server::{Address, LoadedModel, ModelOptions, Models, Options, Stop, serve};
use serde_json::Value;

/// Time after which a test counts as hung.
const PATIENCE: Duration = Duration::from_secs(60);

/// A server that runs until dropped.
pub(crate) struct Server {
    pub(crate) address: SocketAddr,
    pub(crate) stop: Stop,
    thread: Option<JoinHandle<()>>,
}

/// Returns the engine options of most tests.
pub(crate) fn small() -> EngineOptions {
    EngineOptions {
        threads: Some(2),
        sessions: 8,
        ..EngineOptions::default()
    }
}

impl Server {
    /// Starts a server with the usual options.
    pub(crate) fn usual() -> Server {
        Server::new(small(), Options::default())
    }

    pub(crate) fn new(engine: EngineOptions, options: Options) -> Server {
        Server::of(&ModelSource::Demo, engine, options)
    }

    /// Starts a server with these options of the model.
    pub(crate) fn of_model(engine: EngineOptions, model: ModelOptions) -> Server {
        let engine = Engine::load(&ModelSource::Demo, &engine, &mut |_| {}).expect("it loads");
        Server::with(engine, model, Options::default())
    }

    /// Starts a server for another model.
    pub(crate) fn of(source: &ModelSource, engine: EngineOptions, options: Options) -> Server {
        let engine = Engine::load(source, &engine, &mut |_| {}).expect("it loads");
        Server::with(engine, ModelOptions::default(), options)
    }

    /// Starts a server for a small random model with this chat template.
    pub(crate) fn chatting(template: &str) -> Server {
        static FILES: AtomicUsize = AtomicUsize::new(0);
        let mut file = File::running("qwen3");
        file.set("tokenizer.chat_template", template);
        let n = FILES.fetch_add(1, Ordering::Relaxed);
        let name = format!("octavo-server-test-{}-{n}.gguf", std::process::id());
        let path = std::env::temp_dir().join(name);
        std::fs::write(&path, file.bytes()).expect("written");
        let source = ModelSource::Path(path.clone());
        let server = Server::of(&source, small(), Options::default());
        std::fs::remove_file(path).expect("it is there");
        server
    }

    /// Starts a server for a loaded model.
    pub(crate) fn with(engine: Engine, model: ModelOptions, options: Options) -> Server {
        let loaded = LoadedModel {
            engine,
            options: model,
            bytes: 0,
        };
        Server::serving(Models::one(vec!["octavo".to_owned()], loaded), options)
    }

    /// Starts a server for the built-in model under these names.
    pub(crate) fn named(names: &[&str], options: Options) -> Server {
        let engine = Engine::load(&ModelSource::Demo, &small(), &mut |_| {}).expect("it loads");
        let loaded = LoadedModel {
            engine,
            options: ModelOptions::default(),
            bytes: 0,
        };
        let names = names.iter().map(|name| (*name).to_owned()).collect();
        Server::serving(Models::one(names, loaded), options)
    }

    /// Starts a server for these models.
    pub(crate) fn serving(models: Models, options: Options) -> Server {
        let stop = Stop::default();
        let (sender, receiver) = mpsc::channel();
        let options = Options { port: 0, ..options };
        let thread = std::thread::spawn({
            let stop = stop.clone();
            move || {
                let ready = |addresses: &[Address]| match addresses {
                    [Address::Port(address)] => sender.send(*address).expect("somebody waits"),
                    _ => panic!("{addresses:?}: expected a port"),
                };
                serve(models, options, &stop, ready, &mut |_| {}).expect("it serves");
            }
        });
        Server {
            address: receiver.recv_timeout(PATIENCE).expect("it begins"),
            stop,
            thread: Some(thread),
        }
    }

    /// Waits for the server to end.
    pub(crate) fn join(&mut self) {
        if let Some(thread) = self.thread.take() {
            thread.join().expect("it ends well");
        }
    }

    pub(crate) fn connect(&self) -> TcpStream {
        let stream = TcpStream::connect(self.address).expect("it listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        stream
    }

    /// Sends a request and returns the stream to read its answer from.
    pub(crate) fn send(&self, method: &str, path: &str, headers: &str, body: &[u8]) -> TcpStream {
        let mut stream = self.connect();
        let head = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n{headers}\
             content-length: {}\r\n\r\n",
            self.address,
            body.len()
        );
        stream.write_all(head.as_bytes()).expect("it reads");
        // a server that answers before reading everything may close the connection
        let _ = stream.write_all(body);
        stream
    }

    pub(crate) fn get(&self, path: &str) -> Answer {
        read(self.send("GET", path, "", b""))
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Answer {
        read(self.send("POST", path, "", body.to_string().as_bytes()))
    }

    /// Returns the pieces of a streamed answer: the text after `data:`.
    pub(crate) fn stream(&self, path: &str, body: &Value) -> Vec<String> {
        let answer = self.post(path, body);
        assert_eq!(answer.status, 200, "{}", answer.text);
        let lines = answer.text.lines();
        lines
            .filter_map(|line| line.strip_prefix("data: "))
            .map(str::to_owned)
            .collect()
    }

    /// Waits until no request runs or waits; returns the `/cache` state then.
    pub(crate) fn idle(&self) -> Value {
        let start = Instant::now();
        loop {
            let slots = self.get("/cache").json();
            if slots["requests"].as_array().is_some_and(Vec::is_empty) {
                return slots;
            }
            assert!(start.elapsed() < PATIENCE, "still busy: {slots}");
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop.stop();
        self.stop.stop();
        if let Some(thread) = self.thread.take()
            && thread.join().is_err()
            && !std::thread::panicking()
        {
            panic!("the server ended badly");
        }
    }
}

/// A received response.
#[derive(Debug)]
pub(crate) struct Answer {
    pub(crate) status: u16,
    pub(crate) head: String,
    pub(crate) text: String,
}

impl Answer {
    pub(crate) fn json(&self) -> Value {
        serde_json::from_str(&self.text).unwrap_or_else(|error| panic!("{error}: {self:?}"))
    }

    /// Returns the field that an error is about.
    pub(crate) fn param(&self) -> String {
        self.json()["error"]["param"]
            .as_str()
            .unwrap_or_default()
            .to_owned()
    }
}

/// Reads a response to its end.
pub(crate) fn read(stream: TcpStream) -> Answer {
    let mut reader = BufReader::new(stream);
    let mut head = String::new();
    loop {
        let mut line = String::new();
        let n = reader.read_line(&mut line).expect("an answer");
        if n == 0 || line == "\r\n" {
            break;
        }
        head.push_str(&line);
    }
    let status = head
        .split(' ')
        .nth(1)
        .and_then(|word| word.parse().ok())
        .unwrap_or(0);
    let is_chunked = head
        .to_ascii_lowercase()
        .contains("transfer-encoding: chunked");
    let mut bytes = Vec::new();
    if is_chunked {
        while let Some(chunk) = chunk(&mut reader) {
            bytes.extend(chunk);
        }
    } else {
        reader.read_to_end(&mut bytes).expect("the body");
    }
    let text = String::from_utf8(bytes).expect("text");
    Answer { status, head, text }
}

/// Reads the next chunk of a body; `None` at its end.
pub(crate) fn chunk(reader: &mut impl BufRead) -> Option<Vec<u8>> {
    let mut line = String::new();
    reader.read_line(&mut line).ok()?;
    let n = usize::from_str_radix(line.trim(), 16)
        .ok()
        .filter(|n| *n > 0)?;
    let mut bytes = vec![0; n + 2];
    reader.read_exact(&mut bytes).ok()?;
    bytes.truncate(n);
    Some(bytes)
}

/// Returns the JSON of an answer that must be a success.
pub(crate) fn ok(server: &Server, path: &str, body: &Value) -> Value {
    let answer = server.post(path, body);
    assert_eq!(answer.status, 200, "{path} {body}: {}", answer.text);
    answer.json()
}
