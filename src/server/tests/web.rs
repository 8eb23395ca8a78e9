//! A web host: one image, and various failures.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// Time limit for expected events.
const PATIENCE: Duration = Duration::from_secs(60);

/// A connection, plain or TLS.
pub(crate) trait Stream: Read + Write {}

impl<T: Read + Write> Stream for T {}

/// A host that runs until the process ends.
pub(crate) struct Web {
    pub(crate) address: SocketAddr,
    shared: Arc<Shared>,
}

struct Shared {
    image: Vec<u8>,
    address: SocketAddr,
    /// Requested paths.
    asked: Mutex<Vec<String>>,
    /// Number of endless responses whose reader disconnected.
    left: AtomicUsize,
}

impl Web {
    /// Starts a host with this image.
    pub(crate) fn new(image: &[u8]) -> Web {
        Web::with(image, |stream| Box::new(stream))
    }

    /// Starts a host whose connections are wrapped first.
    pub(crate) fn with(
        image: &[u8],
        wrap: impl Fn(TcpStream) -> Box<dyn Stream> + Clone + Send + 'static,
    ) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("an address");
        let shared = Arc::new(Shared {
            image: image.to_owned(),
            address,
            asked: Mutex::default(),
            left: AtomicUsize::new(0),
        });
        let of_thread = Arc::clone(&shared);
        std::thread::spawn(move || {
            for stream in listener.incoming() {
                let (shared, wrap) = (Arc::clone(&of_thread), wrap.clone());
                let stream = stream.expect("a connection");
                // an error means that the client disconnected, as some tests intend
                std::thread::spawn(move || shared.answer(wrap(stream)));
            }
        });
        Web { address, shared }
    }

    /// Returns the host's name for the list of allowed hosts.
    pub(crate) fn host(&self) -> String {
        self.address.to_string()
    }

    pub(crate) fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    /// Takes the requested paths.
    pub(crate) fn asked(&self) -> Vec<String> {
        std::mem::take(&mut self.shared.asked.lock().expect("nobody panics"))
    }

    /// Waits until `n` clients have left in the middle of an endless response.
    pub(crate) fn wait_left(&self, n: usize) {
        let start = Instant::now();
        while self.shared.left.load(Ordering::SeqCst) < n {
            assert!(start.elapsed() < PATIENCE, "nobody left {}", self.address);
            std::thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Shared {
    fn answer(&self, stream: Box<dyn Stream>) -> std::io::Result<()> {
        let mut reader = BufReader::new(stream);
        let path = read_request(&mut reader)?;
        let mut stream = reader.into_inner();
        let path = path.as_str();
        self.asked
            .lock()
            .expect("nobody panics")
            .push(path.to_owned());
        let file = |kind: &str| {
            let n = self.image.len();
            let kind = match kind {
                "" => String::new(),
                kind => format!("content-type: {kind}\r\n"),
            };
            [
                format!("HTTP/1.1 200 OK\r\n{kind}content-length: {n}\r\n\r\n").as_bytes(),
                &self.image,
            ]
            .concat()
        };
        let moved = |to: &str| {
            format!("HTTP/1.1 302 Found\r\nlocation: {to}\r\ncontent-length: 0\r\n\r\n")
                .into_bytes()
        };
        let port = self.address.port();
        let answer = match path {
            "/image" => file("image/png"),
            "/bytes" => file("application/octet-stream"),
            "/untyped" => file(""),
            "/text" => file("text/html; charset=utf-8"),
            "/to/0" => moved("/image"),
            "/beside" => moved("image?of=it#here"),
            "/image?of=it" => file("image/png"),
            "/round" => moved("/round"),
            "/private" => moved(&format!("http://127.0.0.2:{port}/image")),
            "/metadata" => moved("http://169.254.169.254/latest/meta-data/"),
            "/file" => moved("file:///etc/passwd"),
            "/nowhere" => b"HTTP/1.1 302 Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
            "/huge" => b"HTTP/1.1 200 OK\r\ncontent-length: 1000000000000\r\n\r\n".to_vec(),
            "/cut" => b"HTTP/1.1 200 OK\r\ncontent-length: 1000\r\n\r\nabc".to_vec(),
            "/closed" => Vec::new(),
            "/noise" => b"hello, is it me you are looking for?\r\n\r\n".to_vec(),
            "/endless" => return self.without_end(stream, &[0; 1 << 16], Duration::ZERO),
            "/slow" => return self.without_end(stream, b"a", Duration::from_millis(20)),
            _ => match path.strip_prefix("/to/") {
                Some(n) => {
                    let n: usize = n.parse().expect("a number");
                    moved(&format!("/to/{}", n - 1))
                }
                None => b"HTTP/1.1 404 Not Found\r\ncontent-length: 0\r\n\r\n".to_vec(),
            },
        };
        stream.write_all(&answer)?;
        stream.flush()
    }

    /// Sends a piece repeatedly until the reader disconnects.
    fn without_end(
        &self,
        mut stream: Box<dyn Stream>,
        piece: &[u8],
        pause: Duration,
    ) -> std::io::Result<()> {
        stream.write_all(b"HTTP/1.1 200 OK\r\ncontent-type: image/png\r\n\r\n")?;
        while stream
            .write_all(piece)
            .and_then(|()| stream.flush())
            .is_ok()
        {
            std::thread::sleep(pause);
        }
        self.left.fetch_add(1, Ordering::SeqCst);
        Ok(())
    }
}

/// Reads a request's head; returns its path.
fn read_request(reader: &mut impl BufRead) -> std::io::Result<String> {
    let mut first = String::new();
    reader.read_line(&mut first)?;
    let path = first.split(' ').nth(1).unwrap_or_default().to_owned();
    let mut line = String::new();
    while reader.read_line(&mut line)? > 2 {
        line.clear();
    }
    Ok(path)
}
