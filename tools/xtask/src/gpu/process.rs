//! Runs programs that may hang, or crash and take the GPU context with them.

use std::io::{BufRead, BufReader};
use std::process::{Command, Stdio};
use std::sync::mpsc::{self, RecvTimeoutError};
use std::thread;
use std::time::{Duration, Instant};

/// Output of a program, and how it ended.
pub(crate) struct Ran {
    pub(crate) text: String,
    pub(crate) result: Result<(), String>,
    /// Whether it exceeded its time limit.
    pub(crate) stopped: bool,
}

impl Ran {
    /// Returns the output, if the program succeeded.
    pub(crate) fn text(self) -> Result<String, String> {
        self.result.map(|()| self.text)
    }
}

/// Runs a program with a time limit. If `show`, each line is printed as it arrives, so that the
/// progress is visible even if the whole run is interrupted.
pub(crate) fn run(command: &mut Command, limit: Duration, show: bool) -> Ran {
    run_lines(command, limit, &mut |line| {
        if show {
            println!("{line}");
        }
    })
}

/// As [`run`], and gives each line to `see` as it arrives.
pub(crate) fn run_lines(command: &mut Command, limit: Duration, see: &mut dyn FnMut(&str)) -> Ran {
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
    // not joined: programs started by a stopped one may keep the pipe open
    let (sender, lines) = mpsc::channel();
    thread::spawn(move || {
        let mut lines = BufReader::new(stdout).split(b'\n').map_while(Result::ok);
        lines.try_for_each(|line| sender.send(String::from_utf8_lossy(&line).into_owned()))
    });
    loop {
        match lines.recv_timeout(end.saturating_duration_since(Instant::now())) {
            Ok(line) => {
                see(&line);
                text.push_str(&line);
                text.push('\n');
            }
            Err(RecvTimeoutError::Disconnected) => break,
            Err(RecvTimeoutError::Timeout) => {
                // it may just have ended by itself
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
        let mut seen = Vec::new();
        let mut command = Command::new("sh");
        command.args(["-c", "echo a; echo b"]);
        run_lines(&mut command, Duration::from_secs(60), &mut |line| {
            seen.push(line.to_owned());
        });
        assert_eq!(seen, ["a", "b"]);
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
