//! Runs a stock llama.cpp and keeps what it said.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use super::Error;

/// A folder with llama.cpp's programs.
#[derive(Debug)]
pub struct LlamaCpp {
    folder: PathBuf,
}

impl LlamaCpp {
    /// Finds the programs in `folder` or in its `bin` or `build/bin`.
    ///
    /// # Errors
    /// If llama-results is in none of them.
    pub fn open(folder: &Path) -> Result<LlamaCpp, Error> {
        let places = [folder.to_owned(), folder.join("bin"), folder.join("build/bin")];
        match places.into_iter().find(|place| place.join("llama-results").is_file()) {
            Some(folder) => Ok(LlamaCpp { folder }),
            None => Err(Error::Program {
                program: folder.join("llama-results").display().to_string(),
                what: "not found: expected a folder with llama.cpp's programs (or its bin or build/bin)".to_owned(),
            }),
        }
    }

    /// What llama-results says of its version, or nothing.
    pub fn version(&self) -> String {
        let output = Command::new(self.folder.join("llama-results")).arg("--version").stdin(Stdio::null()).output();
        // an old program without the option is no reason to fail: the command line is recorded as well
        output.map_or(String::new(), |out| String::from_utf8_lossy(&[out.stdout, out.stderr].concat()).into_owned())
    }

    /// Logits of all positions of a text: runs llama-results with f32 KV, no flash attention and no repacking, so that
    /// its only rounding is that of its kernels. `keep` receives `llama-results.gguf` (the result, whose path is
    /// returned), `llama-results.log` (what it printed), `prompt.txt` and `commands.txt`.
    ///
    /// # Errors
    /// If the program cannot be run or fails; its last words are in the message.
    pub fn results(
        &self,
        model: &Path,
        text: &[u8],
        (n_tokens, threads): (usize, usize),
        keep: &Path,
    ) -> Result<PathBuf, Error> {
        let io = |path: &Path, source| octavo_reference::Error::Io { path: path.into(), source };
        let write = |name: &str, bytes: &[u8]| {
            let path = keep.join(name);
            std::fs::write(&path, bytes).map_err(|source| io(&path, source)).map(|()| path)
        };
        std::fs::create_dir_all(keep).map_err(|source| io(keep, source))?;
        // llama.cpp drops one newline at the end of a file
        let prompt = write("prompt.txt", &[text, b"\n"].concat())?;
        let out = keep.join("llama-results.gguf");
        // one that is left from another run must not be taken for this one's
        match std::fs::remove_file(&out) {
            Err(source) if source.kind() != std::io::ErrorKind::NotFound => return Err(io(&out, source).into()),
            _ => {}
        }
        let program = self.folder.join("llama-results");
        let size = (n_tokens + 1).next_multiple_of(256).max(512).to_string();
        let threads = threads.to_string();
        let mut args: Vec<std::ffi::OsString> = vec!["-m".into(), model.into(), "-o".into(), out.clone().into()];
        args.extend(["-f".into(), prompt.into()]);
        let fixed = ["-ctk", "f32", "-ctv", "f32", "-fa", "off", "--no-repack", "--no-escape", "-ngl", "0"];
        args.extend(fixed.iter().map(Into::into));
        args.extend(["-c", &size, "-b", &size, "-ub", &size, "-t", &threads].iter().map(Into::into));
        let line: Vec<String> = std::iter::once(program.as_os_str())
            .chain(args.iter().map(std::ffi::OsString::as_os_str))
            .map(|word| quoted(&word.to_string_lossy()))
            .collect();
        write("commands.txt", format!("{}\n", line.join(" ")).as_bytes())?;
        let log_path = keep.join("llama-results.log");
        let log = File::create(&log_path).map_err(|source| io(&log_path, source))?;
        let log_too = log.try_clone().map_err(|source| io(&log_path, source))?;
        let failed = |what| Error::Program { program: program.display().to_string(), what };
        let mut command = Command::new(&program);
        command.args(&args).stdin(Stdio::null()).stdout(log).stderr(log_too);
        let status = command.status().map_err(|error| failed(error.to_string()))?;
        if status.success() && out.is_file() {
            return Ok(out);
        }
        let said = std::fs::read(&log_path).map_err(|source| io(&log_path, source))?;
        let said = String::from_utf8_lossy(&said);
        let last = said.lines().rev().find(|line| !line.trim().is_empty()).unwrap_or("nothing");
        Err(failed(format!("{status}; it last said: {last} (all of it is in {})", log_path.display())))
    }
}

/// A word as a shell takes it.
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
        let error = LlamaCpp::open(Path::new("/nonexistent")).expect_err("nothing there").to_string();
        assert!(error.starts_with("/nonexistent/llama-results: not found"), "{error}");
    }
}
