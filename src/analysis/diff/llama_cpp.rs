//! Runs a stock llama.cpp and records its output.

use std::ffi::OsString;
use std::io::{self, Read};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::{Mutex, MutexGuard, PoisonError};

use gguf_rs_lite::{NewFile, replace_file};

use super::Error;

/// File name of the program that computes logits.
const PROGRAM: &str = match cfg!(windows) {
    true => "llama-results.exe",
    false => "llama-results",
};

/// Folder with llama.cpp's programs.
#[derive(Debug)]
pub struct LlamaCpp {
    folder: PathBuf,
}

impl LlamaCpp {
    /// Files that [`LlamaCpp::results`] writes.
    pub const KEPT: [&str; 4] = [
        "commands.txt",
        "prompt.txt",
        "llama-results.log",
        "llama-results.gguf",
    ];

    /// Finds the programs in `folder`, or in the subfolders where CMake puts them.
    ///
    /// # Errors
    /// If llama-results is in none of them.
    pub fn open(folder: &Path) -> Result<LlamaCpp, Error> {
        let places = [
            folder.to_owned(),
            folder.join("bin"),
            folder.join("build/bin"),
            // Visual Studio's
            folder.join("build/bin/Release"),
        ];
        match places
            .into_iter()
            .find(|place| place.join(PROGRAM).is_file())
        {
            Some(folder) => Ok(LlamaCpp { folder }),
            None => Err(Error::Program {
                program: folder.join(PROGRAM).display().to_string(),
                what: "not found: expected a folder with llama.cpp's programs (or its bin or \
                       build/bin)"
                    .to_owned(),
            }),
        }
    }

    /// Returns the version that llama-results prints, or an empty string.
    pub fn version(&self) -> String {
        let output = Command::new(self.folder.join(PROGRAM))
            .arg("--version")
            .stdin(Stdio::null())
            .output();
        // an old program without the option is no error: the command line is recorded as well
        output.map_or(String::new(), |out| {
            String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned()
        })
    }

    /// Computes the logits of all positions of a text: runs llama-results with f32 KV, no flash
    /// attention and no repacking, so that its only rounding is that of its kernels. The folder
    /// `keep` receives `llama-results.gguf` (the result, whose path is returned),
    /// `llama-results.log` (the program's output), `prompt.txt` and `commands.txt`.
    ///
    /// # Errors
    /// If the program cannot be run or fails; the message has the end of its output.
    pub fn results(
        &self,
        model: &Path,
        text: &[u8],
        (n_tokens, threads): (usize, usize),
        keep: &Path,
    ) -> Result<PathBuf, Error> {
        let io = |path: &Path, source| octavo_reference::Error::Io {
            path: path.into(),
            source,
        };
        std::fs::create_dir_all(keep).map_err(|source| io(keep, source))?;
        let [commands, prompt, log, out] = Self::KEPT.map(|name| keep.join(name));
        let program = self.folder.join(PROGRAM);
        let size = (n_tokens + 1).next_multiple_of(256).max(512).to_string();
        let threads = threads.to_string();
        let args = |out: &Path| {
            let mut args: Vec<OsString> = vec!["-m".into(), model.into(), "-o".into(), out.into()];
            args.extend(["-f".into(), prompt.clone().into()]);
            let fixed = [
                "-ctk",
                "f32",
                "-ctv",
                "f32",
                "-fa",
                "off",
                "--no-repack",
                "--no-escape",
                "-ngl",
                "0",
            ];
            args.extend(fixed.iter().map(Into::into));
            args.extend(
                ["-c", &size, "-b", &size, "-ub", &size, "-t", &threads]
                    .iter()
                    .map(Into::into),
            );
            args
        };
        let line: Vec<String> = std::iter::once(program.clone().into_os_string())
            .chain(args(&out))
            .map(|word| quoted(&word.to_string_lossy()))
            .collect();
        // written first: it marks the folder's other files as ours
        write(&commands, format!("{}\n", line.join(" ")).as_bytes())?;
        // llama.cpp drops one newline at the end of a file
        write(&prompt, &[text, b"\n"].concat())?;
        let failed = |what| Error::Program {
            program: program.display().to_string(),
            what,
        };
        // written under a temporary name until complete: a file left by another run must not pass
        // for this run's result
        let new = NewFile::beside(&out).map_err(octavo_reference::Error::from)?;
        let (status, said) = run(Command::new(&program).args(args(new.path())))
            .map_err(|e| failed(e.to_string()))?;
        write(&log, &said)?;
        let written = new.path().metadata().is_ok_and(|found| found.len() > 0);
        if status.success() && written {
            new.publish().map_err(octavo_reference::Error::from)?;
            return Ok(out);
        }
        let said = String::from_utf8_lossy(&said);
        let last = said
            .lines()
            .rev()
            .find(|line| !line.trim().is_empty())
            .unwrap_or("nothing");
        Err(failed(format!(
            "{status}; it last said: {last} (all of it is in {})",
            log.display()
        )))
    }
}

fn write(path: &Path, bytes: &[u8]) -> Result<(), Error> {
    let written = replace_file(path, |file| {
        let file = file.write_all(bytes);
        file.map_err(|source| octavo_reference::Error::Io {
            path: path.into(),
            source,
        })
    });
    Ok(written?)
}

/// The running program. The lock is held while one is started, so that no signal handler runs in
/// between.
static RUNNING: Mutex<Option<Child>> = Mutex::new(None);

fn running() -> MutexGuard<'static, Option<Child>> {
    RUNNING.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Kills the running llama.cpp, if there is one, and never releases the lock, so that a thread
/// waiting for the program blocks forever: for the signal thread, which ends the process next.
pub fn stop_llama_cpp() {
    let mut running = running();
    if let Some(child) = running.as_mut() {
        // the program may just have ended, which is fine
        let _ = child.kill();
    }
    std::mem::forget(running);
}

/// Runs a program to its end; returns its status, and stdout and stderr interleaved as printed.
fn run(command: &mut Command) -> io::Result<(ExitStatus, Vec<u8>)> {
    let (mut out, into) = io::pipe()?;
    *running() = Some(
        command
            .stdin(Stdio::null())
            .stdout(into.try_clone()?)
            .stderr(into)
            .spawn()?,
    );
    // the pipe ends when its last writer closes it: drop our copies
    command.stdout(Stdio::null()).stderr(Stdio::null());
    let mut said = Vec::new();
    out.read_to_end(&mut said)?;
    let child = running().take();
    let mut child = child.ok_or_else(|| io::Error::other("it is not there any more"))?;
    Ok((child.wait()?, said))
}

/// Quotes a word for a shell, if necessary.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-_./=+:,@%".contains(c);
    if !word.is_empty() && word.chars().all(plain) {
        word.to_owned()
    } else {
        format!("'{}'", word.replace('\'', "'\\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_are_quoted_for_a_shell() {
        assert_eq!(quoted("-m"), "-m");
        assert_eq!(quoted("a b"), "'a b'");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn a_folder_without_programs_is_named() {
        let error = LlamaCpp::open(Path::new("/nonexistent"))
            .expect_err("nothing there")
            .to_string();
        assert!(
            error.starts_with("/nonexistent/llama-results: not found"),
            "{error}"
        );
    }
}
