//! Programs that may hang, or take the GPU's context with them when they fall.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// What a program printed, and how it ended.
pub(crate) struct Ran {
    pub(crate) text: String,
    pub(crate) result: Result<(), String>,
    /// It took longer than it had.
    pub(crate) stopped: bool,
}

impl Ran {
    /// What it printed, if it ended well.
    pub(crate) fn text(self) -> Result<String, String> {
        self.result.map(|()| self.text)
    }
}

/// Runs a program for so long at most. Each line is printed as it comes if `show`: whoever stops
/// all of this has seen how far it went.
pub(crate) fn run(command: &mut Command, limit: Duration, show: bool) -> Ran {
    let name = command.get_program().to_string_lossy().into_owned();
    let name = name.rsplit('/').next().unwrap_or_default().to_owned();
    let end = Instant::now() + limit;
    let mut text = String::new();
    let mut child = match command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn() {
        Ok(child) => child,
        Err(error) => {
            return Ran {
                text,
                result: Err(format!("cannot start {name}: {error}")),
                stopped: false,
            };
        }
    };
    let stdout = child.stdout.take().expect("it is piped");
    // not waited for: programs that a stopped one started may keep the pipe open
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        lines.try_for_each(|line| sender.send(String::from_utf8_lossy(&line).into_owned()))
    });
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                if show {
                    println!("{line}");
                }
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // it may have ended by itself just now
                let _ = child.kill();
                let _ = child.wait();
                let result = Err(format!("{name}: stopped after {} s", limit.as_secs()));
                return Ran {
                    text,
                    result,
                    stopped: true,
                };
            }
        }
    }
    let result = match child.wait() {
        Ok(status) if status.success() => Ok(()),
        Ok(status) => Err(format!("{name}: {status}")),
        Err(error) => Err(format!("{name}: {error}")),
    };
    Ran {
        text,
        result,
        stopped: false,
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    fn sh(script: &str, seconds: u64) -> Ran {
        run(
            Command::new("sh").args(["-c", script]),
            Duration::from_secs(seconds),
            false,
        )
    }

    #[test]
    fn what_was_printed_is_kept_however_it_ends() {
        assert_eq!(sh("echo a; echo b", 60).text(), Ok("a\nb\n".to_owned()));
        let failed = sh("echo a; exit 3", 60);
        assert_eq!(
            (failed.text.as_str(), failed.result),
            ("a\n", Err("sh: exit status: 3".to_owned()))
        );
        let hung = sh("echo a; exec sleep 600", 1);
        assert_eq!(
            (hung.text.as_str(), hung.result),
            ("a\n", Err("sh: stopped after 1 s".to_owned()))
        );
        let absent = run(
            &mut Command::new("/absent/x"),
            Duration::from_secs(1),
            false,
        )
        .result;
        assert!(absent.is_err_and(|error| error.starts_with("cannot start x: ")));
    }
}
