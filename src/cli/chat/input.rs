//! Source of messages: lines that a person edits, with a history, or a pipe.

use std::io::{self, BufRead, Read};
use std::path::{Path, PathBuf};

use rustyline::error::ReadlineError;
use rustyline::{Config, DefaultEditor};

use super::super::failure::Failure;
use super::super::terminal;

pub(super) enum Line {
    Text(String),
    End,
    Interrupt,
}

/// Source of lines: a person, with editing and history, or a pipe.
pub(super) enum Input {
    Person {
        editor: Box<DefaultEditor>,
        history: Option<PathBuf>,
        interrupted: bool,
    },
    Pipe,
}

impl Input {
    pub(super) fn new(no_history: bool) -> Result<Input, Failure> {
        if !terminal::stdin_is_terminal() {
            return Ok(Input::Pipe);
        }
        let config = Config::builder()
            .max_history_size(1000)?
            .auto_add_history(true)
            .build();
        let mut editor = Box::new(DefaultEditor::with_config(config)?);
        let history = history_file().filter(|path| !no_history && is_history(path));
        if let Some(path) = &history {
            match editor.load_history(path) {
                Err(ReadlineError::Io(e)) if e.kind() == io::ErrorKind::NotFound => {}
                Err(e) => terminal::warn([format!("{}: {e}", path.display())]),
                Ok(()) => {}
            }
        }
        Ok(Input::Person {
            editor,
            history,
            interrupted: false,
        })
    }

    pub(super) fn is_terminal(&self) -> bool {
        matches!(self, Input::Person { .. })
    }

    pub(super) fn line(&mut self) -> Result<Line, Failure> {
        let Input::Person {
            editor,
            history,
            interrupted,
        } = self
        else {
            return pipe_line();
        };
        loop {
            match editor.readline("> ") {
                Ok(line) => {
                    *interrupted = false;
                    if let Some(path) = history {
                        save(editor, path);
                    }
                    return Ok(Line::Text(line));
                }
                Err(ReadlineError::Interrupted) if *interrupted => return Ok(Line::Interrupt),
                Err(ReadlineError::Interrupted) => {
                    *interrupted = true;
                    terminal::note("(Ctrl-C again or /exit leaves)");
                }
                Err(ReadlineError::Eof) => return Ok(Line::End),
                Err(error) => return Err(error.into()),
            }
        }
    }
}

/// Reads a message from a pipe: one line, without its line end.
fn pipe_line() -> Result<Line, Failure> {
    let mut line = Vec::new();
    let read = io::stdin().lock().read_until(b'\n', &mut line)?;
    if read == 0 {
        return Ok(Line::End);
    }
    let text = std::str::from_utf8(&line)
        .map_err(|error| Failure::Input(format!("stdin: expected a message in UTF-8: {error}")))?;
    Ok(Line::Text(text.trim_end_matches(['\n', '\r']).to_owned()))
}

/// Returns the path of the history file: by the XDG rules, on Windows in `%LOCALAPPDATA%`.
fn history_file() -> Option<PathBuf> {
    let absolute = |name: &str| {
        std::env::var_os(name)
            .map(PathBuf::from)
            .filter(|path| path.is_absolute())
    };
    let state = absolute("XDG_STATE_HOME").or_else(|| match cfg!(windows) {
        true => absolute("LOCALAPPDATA"),
        false => absolute("HOME").map(|home| home.join(".local/state")),
    })?;
    Some(state.join("octavo").join("history"))
}

/// Beginning of rustyline's history files.
const HISTORY: &[u8] = b"#V2\n";

/// Returns whether the history may be written there: rustyline overwrites any file. Warns if not.
fn is_history(path: &Path) -> bool {
    let Ok(found) = path.metadata() else {
        return true;
    };
    let mut start = Vec::new();
    let begins = |file: std::fs::File| file.take(HISTORY.len() as u64).read_to_end(&mut start);
    let readable = found.is_file() && std::fs::File::open(path).and_then(begins).is_ok();
    let ours = readable && (start.is_empty() || start == HISTORY);
    if !ours {
        terminal::warn([format!(
            "{}: expected earlier lines (it begins with #V2), it stays as it is",
            path.display()
        )]);
    }
    ours
}

fn save(editor: &mut DefaultEditor, path: &mut PathBuf) {
    let made = path.parent().map_or(Ok(()), std::fs::create_dir_all);
    if let Err(error) = made
        .map_err(ReadlineError::from)
        .and_then(|()| editor.save_history(path))
    {
        terminal::warn([format!("{}: {error}", path.display())]);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_earlier_lines_are_written_over() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("history");
        assert!(is_history(&path));
        for (content, ours) in [
            ("", true),
            ("#V2\nhello\n", true),
            ("notes", false),
            ("#V", false),
        ] {
            std::fs::write(&path, content).expect("written");
            assert_eq!(is_history(&path), ours, "{content:?}");
        }
        assert!(!is_history(dir.path()));
    }
}
