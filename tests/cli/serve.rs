//! `octavo serve` as a program: its messages and its end.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use super::{octavo, stderr};

pub(super) struct Serving {
    child: Child,
    address: String,
    lines: BufReader<std::process::ChildStderr>,
}

/// Starts a server and waits for the line with its address.
pub(super) fn serve(args: &[&str]) -> Serving {
    serve_in(&[], args)
}

/// Does the same with these variables in the environment.
pub(super) fn serve_in(environment: &[(&str, &str)], args: &[&str]) -> Serving {
    let mut child = Command::new(env!("CARGO_BIN_EXE_octavo"))
        .envs(environment.iter().copied())
        .args(["serve", "--port", "0"])
        .args(args)
        .stderr(Stdio::piped())
        .spawn()
        .expect("the program runs");
    let mut lines = BufReader::new(child.stderr.take().expect("stderr"));
    let mut line = String::new();
    while !line.contains("http://") {
        line.clear();
        let n = lines.read_line(&mut line).expect("a line");
        assert!(n > 0, "it ended before it was ready");
    }
    let address = line.split("http://").nth(1).expect("an address");
    let address = address.split(' ').next().expect("an address").to_owned();
    Serving {
        child,
        address,
        lines,
    }
}

impl Serving {
    fn ask(&self, body: &str) -> TcpStream {
        self.send("/v1/completions", Some(body))
    }

    /// Sends a POST request with a body, or a GET request without one.
    pub(super) fn send(&self, path: &str, body: Option<&str>) -> TcpStream {
        self.try_send(path, body).expect("it listens and reads")
    }

    /// Does the same for a server that may be gone.
    pub(super) fn try_send(&self, path: &str, body: Option<&str>) -> io::Result<TcpStream> {
        let method = if body.is_some() { "POST" } else { "GET" };
        self.send_as(method, path, body.unwrap_or_default())
    }

    /// Sends a request with any method.
    pub(super) fn send_as(&self, method: &str, path: &str, body: &str) -> io::Result<TcpStream> {
        let mut stream = TcpStream::connect(&self.address)?;
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            self.address,
            body.len()
        );
        stream.write_all(request.as_bytes())?;
        Ok(stream)
    }

    /// Kills it, without a chance to do anything.
    pub(super) fn kill_now(&self) {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args(["-KILL", &id]).status();
        assert!(killed.expect("kill runs").success());
    }

    /// Kills it and waits for its end.
    pub(super) fn kill(mut self) {
        // it may have ended
        let _ = self.child.kill();
        self.child.wait().expect("it has ended");
    }

    pub(super) fn terminate(&self) {
        let id = self.child.id().to_string();
        let killed = Command::new("kill").args(["-TERM", &id]).status();
        assert!(killed.expect("kill runs").success());
    }

    /// Waits for its end; returns the exit code and the rest of its output.
    pub(super) fn end(mut self) -> (Option<i32>, String) {
        let start = Instant::now();
        while self.child.try_wait().expect("it can be asked").is_none() {
            assert!(start.elapsed() < Duration::from_secs(30), "it does not end");
            std::thread::sleep(Duration::from_millis(10));
        }
        let mut rest = String::new();
        self.lines.read_to_string(&mut rest).expect("text");
        (self.child.wait().expect("it has ended").code(), rest)
    }
}

pub(super) fn read(mut stream: TcpStream) -> String {
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn a_server_answers_and_ends_when_it_is_told_to() {
    let serving = serve(&["--alias", "nice", "--parallel", "2", "--kv-memory", "4M"]);
    let answer = read(serving.ask(r#"{"prompt": "1+1=", "max_tokens": 1, "temperature": 0}"#));
    assert!(
        answer.starts_with("HTTP/1.1 200") && answer.contains("\"text\":\"2\""),
        "{answer}"
    );
    assert!(answer.contains("\"model\":\"nice\""), "{answer}");
    let start = Instant::now();
    serving.terminate();
    let (code, rest) = serving.end();
    // only the line of the request
    assert_eq!((code, rest.lines().count()), (Some(0), 1), "{rest}");
    assert!(
        start.elapsed() < Duration::from_secs(5),
        "nobody was under way"
    );
}

#[test]
fn who_is_under_way_is_answered_before_the_program_ends() {
    let serving = serve(&[]);
    let body = r#"{"prompt": "1+1=", "max_tokens": 400, "ignore_eos": true}"#;
    let streams: Vec<TcpStream> = (0..4).map(|_| serving.ask(body)).collect();
    std::thread::sleep(Duration::from_millis(150));
    serving.terminate();
    for stream in streams {
        let answer = read(stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
        assert!(answer.contains("\"completion_tokens\":400"), "{answer}");
    }
    assert_eq!(serving.end().0, Some(0));
}

#[test]
fn who_takes_too_long_is_told_so_and_the_program_ends() {
    let prompts = vec!["\"1+1=\""; 64].join(",");
    let body = format!(r#"{{"prompt": [{prompts}], "max_tokens": 450, "ignore_eos": true}}"#);
    for (drain, signals) in [("1", 1), ("60", 2)] {
        let serving = serve(&["--drain", drain]);
        let stream = serving.ask(&body);
        std::thread::sleep(Duration::from_millis(150));
        let start = Instant::now();
        for _ in 0..signals {
            serving.terminate();
            // two pending signals would count as one
            std::thread::sleep(Duration::from_millis(100));
        }
        let answer = read(stream);
        assert!(answer.starts_with("HTTP/1.1 503"), "{answer}");
        assert_eq!(serving.end().0, Some(0));
        assert!(start.elapsed() < Duration::from_secs(20), "{drain}");
    }
}

#[test]
fn what_cannot_be_served_is_said_in_a_line() {
    let taken = TcpListener::bind("127.0.0.1:0").expect("a port");
    let port = taken.local_addr().expect("an address").port().to_string();
    let cases: [(&[&str], &str); 8] = [
        (&["--port", &port], "cannot listen on 127.0.0.1:"),
        (&["/nowhere/model.gguf"], "/nowhere/model.gguf"),
        (&["--api-key-file", "/nowhere/keys"], "/nowhere/keys"),
        (&["--kv-memory", "much"], "expected a size"),
        (&["--no-such-option"], "--no-such-option"),
        (&["--fetch-images", "public"], "--mmproj"),
        (
            &["--mmproj", "m.gguf", "--media-path", "/nowhere"],
            "--media-path /nowhere: ",
        ),
        (
            &["--mmproj", "m.gguf", "--fetch-images", "a.org,http://b"],
            "or a host and perhaps its port (a.org, 10.0.0.5:8000), found \"http://b\"",
        ),
    ];
    for (args, said) in cases {
        let output = octavo(&[&["serve"], args].concat())
            .output()
            .expect("the program runs");
        assert!(!output.status.success(), "{args:?}");
        assert!(
            stderr(&output).contains(said),
            "{args:?}: {}",
            stderr(&output)
        );
    }
}

#[test]
fn each_request_is_a_line_on_stderr() {
    let body = r#"{"prompt": "1+1=", "max_tokens": 1}"#;
    let serving = serve(&[]);
    read(serving.ask(body));
    read(serving.ask(r#"{"prompt": 1.5}"#));
    serving.terminate();
    let (code, rest) = serving.end();
    assert_eq!(code, Some(0));
    let lines: Vec<&str> = rest.lines().collect();
    let [good, bad] = lines[..] else {
        panic!("{rest}");
    };
    assert!(
        good.contains(" POST /v1/completions 200 prompt=4 cached=0 generated=1 "),
        "{good}"
    );
    assert!(
        bad.contains(" POST /v1/completions 400 ") && bad.contains("error: prompt"),
        "{bad}"
    );

    let serving = serve(&["--log-format", "json", "--temp", "0"]);
    let answer = read(serving.ask(body));
    assert!(
        answer.contains("\"text\":\"2\""),
        "greedy by the server's option: {answer}"
    );
    serving.terminate();
    let (_, rest) = serving.end();
    let line: serde_json::Value = serde_json::from_str(&rest).expect("one object");
    assert_eq!(line["route"], "/v1/completions");
    assert_eq!(
        (&line["status"], &line["prompt_tokens"]),
        (&200.into(), &4.into())
    );
    let id = line["request_id"].as_str().expect("a name");
    assert!(
        answer.contains(&format!("X-Request-Id: {id}\r")),
        "{answer}"
    );
}

#[test]
fn the_log_of_requests_follows_the_options_of_all_commands() {
    let dir = super::folder();
    let log = dir.path().join("log");
    let log = log.to_str().expect("UTF-8");
    let said = |options: &[&str]| {
        let serving = serve(options);
        read(serving.ask(r#"{"prompt": "1+1=", "max_tokens": 1}"#));
        let mut probe = TcpStream::connect(&serving.address).expect("it listens");
        let request = format!(
            "GET /health HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\r\n",
            serving.address
        );
        probe.write_all(request.as_bytes()).expect("it reads");
        read(probe);
        serving.terminate();
        let (code, rest) = serving.end();
        assert_eq!(code, Some(0), "{rest}");
        ["/v1/completions", "/health"].map(|route| rest.contains(route))
    };
    assert_eq!(said(&[]), [true, false]);
    assert_eq!(said(&["-v"]), [true, true]);
    assert_eq!(said(&["-q", "--log-file", log]), [false, false]);
    let kept = std::fs::read_to_string(log).expect("written");
    let line = kept.lines().find(|line| line.contains("/v1/completions"));
    // the line has a time, only once
    assert!(
        line.is_some_and(|line| line[10..].matches('Z').count() == 1),
        "{kept}"
    );
    assert!(!kept.contains("/health"), "{kept}");
}

#[test]
fn nobody_reads_the_log_and_the_server_goes_on() {
    let serving = serve(&[]);
    // more lines than a pipe can hold
    for _ in 0..800 {
        let answer = read(serving.ask(r#"{"prompt": []}"#));
        assert!(answer.starts_with("HTTP/1.1 400"), "{answer}");
    }
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
}

/// Returns the CPU time of a process in seconds.
#[cfg(target_os = "linux")]
fn cpu_seconds(child: &Child) -> f64 {
    let stat = std::fs::read_to_string(format!("/proc/{}/stat", child.id())).expect("it runs");
    // the process name before it may have any characters
    let (_, rest) = stat.rsplit_once(')').expect("a name in brackets");
    let fields = rest.split_whitespace().skip(11).take(2);
    let ticks: f64 = fields
        .map(|ticks| ticks.parse::<f64>().expect("a number"))
        .sum();
    ticks / 100.0
}

/// Processes that keep CPUs busy, each in a session of its own.
#[cfg(target_os = "linux")]
struct Busy(Vec<Child>);

#[cfg(target_os = "linux")]
impl Busy {
    fn begin(n: usize) -> Busy {
        let start = |_| {
            let mut command = Command::new("setsid");
            command.args(["timeout", "60", "sh", "-c", "while :; do :; done"]);
            command.spawn().expect("setsid and sh are there")
        };
        Busy((0..n).map(start).collect())
    }
}

#[cfg(target_os = "linux")]
impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // `timeout` forwards the signal
            let id = child.id().to_string();
            let ended = Command::new("kill").args(["-TERM", &id]).status();
            ended.expect("kill runs");
            child.wait().expect("it ends");
        }
    }
}

/// All threads of a step wait, and spin, for one that has lost its CPU to other work: embeddings
/// once took a hundred times as long as on an idle machine.
#[cfg(target_os = "linux")]
#[test]
fn embeddings_take_no_more_of_a_busy_cpu_than_completions() {
    let serving = serve(&["-t", "2", "--no-cache-prompt"]);
    let send = |path: &str, body: &str| {
        let mut stream = TcpStream::connect(&serving.address).expect("it listens");
        let request = format!(
            "POST {path} HTTP/1.1\r\nhost: {}\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            serving.address,
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let answer = read(stream);
        assert!(answer.starts_with("HTTP/1.1 200"), "{answer}");
    };
    let completion = r#"{"prompt": "What is 12+34?", "max_tokens": 1, "temperature": 0}"#;
    let embedding = r#"{"input": "What is 12+34?"}"#;
    send("/v1/completions", completion);
    send("/v1/embeddings", embedding);
    let busy = Busy::begin(2 * std::thread::available_parallelism().map_or(2, usize::from));
    let taken = |path: &str, body: &str| {
        let before = cpu_seconds(&serving.child);
        (0..40).for_each(|_| send(path, body));
        cpu_seconds(&serving.child) - before
    };
    let completions = taken("/v1/completions", completion);
    let embeddings = taken("/v1/embeddings", embedding);
    drop(busy);
    println!("40 completions took {completions:.2} s of CPU, 40 embeddings {embeddings:.2} s");
    assert!(
        embeddings <= 3.0 * completions + 0.1,
        "completions {completions} s, embeddings {embeddings} s"
    );
    serving.terminate();
    assert_eq!(serving.end().0, Some(0));
}
