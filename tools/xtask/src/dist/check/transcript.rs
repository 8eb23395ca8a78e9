//! A proof's transcript: every command and what it printed, on stdout and in a file.

use std::fs::File;
use std::io::Write;
use std::path::Path;
use std::process::{Command, Stdio};

/// A transcript that is being written.
pub(super) struct Transcript {
    file: File,
    /// Parts of commands that have shorter names here.
    names: Vec<(String, &'static str)>,
}

/// Output of a command, and its exit code; none if a signal ended it.
pub(super) struct Printed {
    pub(super) code: Option<i32>,
    pub(super) out: String,
    pub(super) err: String,
}

/// Lines of a command's output that are shown at most.
const LINES: usize = 12;

impl Transcript {
    /// Creates a transcript in a folder.
    pub(super) fn create(dir: &Path, name: &str) -> Result<Transcript, String> {
        let path = dir.join(format!("{name}.txt"));
        let file = File::create(&path).map_err(|error| format!("{}: {error}", path.display()))?;
        let names = Vec::new();
        Ok(Transcript { file, names })
    }

    /// From now on, shows this part of a command, such as the path of a folder, as `name`.
    pub(super) fn shorten(&mut self, part: &str, name: &'static str) {
        self.names.push((part.to_owned(), name));
    }

    /// Adds a line.
    pub(super) fn say(&mut self, line: &str) {
        let line = self.short(line);
        println!("{line}");
        // a lost line costs nothing: what is proved does not depend on it
        let _ = writeln!(self.file, "{line}");
    }

    fn short(&self, text: &str) -> String {
        let replace = |text: String, (path, name): &(String, &str)| text.replace(path, name);
        self.names.iter().fold(text.to_owned(), replace)
    }

    /// Adds a command as a shell would take it.
    pub(super) fn say_command(&mut self, command: &Command) {
        let words = std::iter::once(command.get_program()).chain(command.get_args());
        let words: Vec<String> = words.map(|word| quoted(&word.to_string_lossy())).collect();
        self.say(&format!("$ {}", words.join(" ")));
    }

    /// Runs a command with a text on stdin, and adds it with its output.
    pub(super) fn run_with(
        &mut self,
        command: &mut Command,
        input: &str,
    ) -> Result<Printed, String> {
        self.say_command(command);
        let program = command.get_program().to_string_lossy().into_owned();
        let failed = |error| format!("{program}: {error}");
        command
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(failed)?;
        // a program that reads nothing may have closed it
        let _ = child
            .stdin
            .take()
            .map(|mut stdin| stdin.write_all(input.as_bytes()));
        let output = child.wait_with_output().map_err(failed)?;
        let printed = Printed {
            code: output.status.code(),
            out: String::from_utf8_lossy(&output.stdout).into_owned(),
            err: String::from_utf8_lossy(&output.stderr).into_owned(),
        };
        self.say_lines(&printed.out);
        self.say_lines(&printed.err);
        if printed.code != Some(0) {
            self.say(&format!("[{}]", output.status));
        }
        Ok(printed)
    }

    /// Runs a command, and adds it with its output.
    pub(super) fn run(&mut self, command: &mut Command) -> Result<Printed, String> {
        self.run_with(command, "")
    }

    /// Does the same as [`Transcript::run`], and fails if the command does; returns its stdout.
    pub(super) fn succeed(&mut self, command: &mut Command) -> Result<String, String> {
        let printed = self.run(command)?;
        match printed.code {
            Some(0) => Ok(printed.out),
            code => Err(format!(
                "{}: exit code {code:?}",
                command.get_program().to_string_lossy()
            )),
        }
    }

    /// Adds the first lines of an output.
    pub(super) fn say_lines(&mut self, text: &str) {
        let n = text.lines().count();
        for line in text.lines().take(LINES) {
            // answers of servers are single lines
            let start: String = line.chars().take(400).collect();
            self.say(&start);
        }
        if n > LINES {
            self.say(&format!("[{} more lines]", n - LINES));
        }
    }
}

/// Returns a word as a shell would take it.
fn quoted(word: &str) -> String {
    let is_plain = |c: char| c.is_alphanumeric() || "-_./:=,@+%".contains(c);
    match !word.is_empty() && word.chars().all(is_plain) {
        true => word.to_owned(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

#[cfg(all(test, unix))]
mod tests {
    use super::*;

    #[test]
    fn a_transcript_has_commands_outputs_and_exit_codes() {
        let dir = tempfile::tempdir().unwrap();
        let mut transcript = Transcript::create(dir.path(), "test").unwrap();
        transcript.shorten("/very/long", "SHORT");
        let script = "cat; echo /very/long/path >&2; exit 3";
        let mut command = Command::new("sh");
        let printed = transcript
            .run_with(command.args(["-c", script]), "it's\n")
            .unwrap();
        assert_eq!((printed.code, printed.out.as_str()), (Some(3), "it's\n"));
        let written = std::fs::read_to_string(dir.path().join("test.txt")).unwrap();
        let expected = "$ sh -c 'cat; echo SHORT/path >&2; exit 3'\nit's\nSHORT/path\n\
                        [exit status: 3]\n";
        assert_eq!(written, expected);
        assert!(transcript.succeed(command.args(["-c", script])).is_err());
        assert_eq!(quoted("it's"), "'it'\\''s'");
    }
}
