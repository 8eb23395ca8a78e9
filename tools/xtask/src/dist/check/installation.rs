//! A place where the program runs, and what it must do in every place.

use std::fs::File;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::thread::sleep;
use std::time::{Duration, Instant};

use super::expect;
use super::transcript::Transcript;

/// Time that a server may take to start, also under emulation.
const START: Duration = Duration::from_secs(300);

/// Time that a program may take to end after Ctrl-C.
const END: Duration = Duration::from_secs(60);

/// A place where the program runs.
pub(super) struct Installation<'a> {
    /// Returns a command that runs the program there, without arguments.
    pub(super) octavo: &'a dyn Fn() -> Command,
    /// Path there of the small real model.
    pub(super) model: String,
    /// Folder for logs of servers.
    pub(super) logs: PathBuf,
}

impl Installation<'_> {
    /// Returns a command with arguments.
    pub(super) fn command(&self, arguments: &[&str]) -> Command {
        let mut command = (self.octavo)();
        command.args(arguments);
        command
    }

    /// Proves that the program adds, talks and serves.
    pub(super) fn prove(&self, transcript: &mut Transcript) -> Result<(), String> {
        let version = transcript.succeed(&mut self.command(&["--version"]))?;
        expect(&version, &format!("octavo {}", super::super::VERSION))?;
        let sum = ["run", "-q", "-p", "1+1=", "-n", "8"];
        let sum = transcript.succeed(&mut self.command(&sum))?;
        if !sum.starts_with('2') {
            return Err(format!("expected an answer that begins with 2, got: {sum}"));
        }
        let question = "What is the capital of France?";
        let run = [
            "run",
            "-q",
            &self.model,
            "--chat",
            "-p",
            question,
            "--temp",
            "0",
        ];
        expect(&transcript.succeed(&mut self.command(&run))?, "Paris")?;
        let chat = ["chat", "-q", &self.model, "--temp", "0", "--no-history"];
        let talk = format!("{question}\r\nAnd of Italy?\r\n");
        let talked = transcript.run_with(&mut self.command(&chat), &talk)?;
        expect(&talked.out, "Paris")?;
        expect(&talked.out, "Rome")?;
        self.serve(transcript, |server, transcript| {
            let body = format!(
                r#"{{"messages": [{{"role": "user", "content": "{question}"}}], "temperature": 0}}"#
            );
            expect(
                &server.post(transcript, "/v1/chat/completions", &body)?,
                "Paris",
            )
        })
    }

    /// Starts a server of the small real model, calls `work`, and ends the server by Ctrl-C.
    pub(super) fn serve(
        &self,
        transcript: &mut Transcript,
        work: impl FnOnce(&Server, &mut Transcript) -> Result<(), String>,
    ) -> Result<(), String> {
        let mut server = Server::start(self, transcript)?;
        let worked = server
            .wait(transcript)
            .and_then(|()| work(&server, transcript));
        let status = server.interrupt(transcript)?;
        let log = std::fs::read_to_string(&server.log).unwrap_or_default();
        transcript.say_lines(&log);
        worked?;
        match status.success() {
            true => Ok(()),
            false => Err(format!(
                "the server: expected exit code 0 after Ctrl-C, got {status}"
            )),
        }
    }
}

/// A running server.
pub(super) struct Server {
    child: Child,
    port: u16,
    log: PathBuf,
}

impl Server {
    fn start(place: &Installation<'_>, transcript: &mut Transcript) -> Result<Server, String> {
        let port = free_port()?;
        let mut command = place.command(&["serve", &place.model, "--port", &port.to_string()]);
        let log = place.logs.join("serve.log");
        let file = File::create(&log).map_err(|error| format!("{}: {error}", log.display()))?;
        transcript.say_command(&command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(file);
        let child = command.spawn().map_err(|error| error.to_string())?;
        Ok(Server { child, port, log })
    }

    /// Waits until it serves.
    fn wait(&mut self, transcript: &mut Transcript) -> Result<(), String> {
        let end = Instant::now() + START;
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            if let Ok(Some(status)) = self.child.try_wait() {
                return Err(format!("the server ended: {status}"));
            }
            if Instant::now() > end {
                return Err("the server did not start in time".to_owned());
            }
            sleep(Duration::from_millis(200));
        }
        expect(&self.get(transcript, "/health")?, "ok")
    }

    fn curl(
        &self,
        transcript: &mut Transcript,
        path: &str,
        more: &[&str],
    ) -> Result<String, String> {
        let address = format!("http://127.0.0.1:{}{path}", self.port);
        let mut command = Command::new("curl");
        command.args(["--silent", "--show-error", "--fail-with-body"]);
        transcript.succeed(command.arg(&address).args(more))
    }

    /// Asks it for a path.
    pub(super) fn get(&self, transcript: &mut Transcript, path: &str) -> Result<String, String> {
        self.curl(transcript, path, &[])
    }

    /// Sends it a body of JSON.
    pub(super) fn post(
        &self,
        transcript: &mut Transcript,
        path: &str,
        body: &str,
    ) -> Result<String, String> {
        self.curl(transcript, path, &["--json", body])
    }

    /// Sends it Ctrl-C, and waits for its end.
    fn interrupt(&mut self, transcript: &mut Transcript) -> Result<ExitStatus, String> {
        interrupt(&mut self.child, transcript)
    }
}

/// Sends a program Ctrl-C, and waits for its end; stops it if it does not end in time.
pub(super) fn interrupt(
    child: &mut Child,
    transcript: &mut Transcript,
) -> Result<ExitStatus, String> {
    let mut kill = Command::new("kill");
    let _ = transcript.run(kill.args(["-INT", &child.id().to_string()]))?;
    let end = Instant::now() + END;
    loop {
        match child.try_wait().map_err(|error| error.to_string())? {
            Some(status) => {
                transcript.say(&format!("[{status}]"));
                return Ok(status);
            }
            None if Instant::now() > end => {
                let _ = child.kill();
                let _ = child.wait();
                return Err("did not end after Ctrl-C".to_owned());
            }
            None => sleep(Duration::from_millis(100)),
        }
    }
}

/// Returns a port that nothing listens on.
fn free_port() -> Result<u16, String> {
    let listener = TcpListener::bind("127.0.0.1:0").map_err(|error| error.to_string())?;
    let address = listener.local_addr().map_err(|error| error.to_string())?;
    Ok(address.port())
}

/// Fails if the program for Linux needs libraries that a bare system may lack, or a newer glibc.
pub(super) fn check_needs(
    transcript: &mut Transcript,
    objdump: &str,
    program: &Path,
    newest: &str,
) -> Result<(), String> {
    const LIBRARIES: [&str; 8] = [
        "libc.so.6",
        "libm.so.6",
        "libdl.so.2",
        "libpthread.so.0",
        "librt.so.1",
        "libutil.so.1",
        "ld-linux-x86-64.so.2",
        "ld-linux-aarch64.so.1",
    ];
    let output = Command::new(objdump).arg("-p").arg(program).output();
    let output = output.map_err(|error| format!("{objdump}: {error}"))?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let (mut libraries, mut versions) = (Vec::new(), Vec::new());
    for line in text.lines().map(str::trim) {
        if let Some(library) = line.strip_prefix("NEEDED") {
            libraries.push(library.trim().to_owned());
        }
        if let Some(version) = line.split("GLIBC_").nth(1) {
            versions.push(numbers(version));
        }
    }
    let highest = versions.iter().max().cloned().unwrap_or_default();
    let shown: Vec<String> = highest.iter().map(u32::to_string).collect();
    let libraries_shown = libraries.join(", ");
    transcript.say(&format!(
        "needs {libraries_shown}; glibc {} or newer",
        shown.join(".")
    ));
    if highest.is_empty() || highest > numbers(newest) {
        return Err(format!("expected glibc {newest} at most"));
    }
    match libraries
        .iter()
        .find(|name| !LIBRARIES.contains(&name.as_str()))
    {
        Some(other) => Err(format!("{other}: a bare system may lack it")),
        None => Ok(()),
    }
}

fn numbers(version: &str) -> Vec<u32> {
    version
        .trim()
        .split('.')
        .map_while(|part| part.parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn versions_are_compared_by_number() {
        assert!(numbers("2.17") > numbers("2.4") && numbers("2.2.5") < numbers("2.17"));
    }
}
