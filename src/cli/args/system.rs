//! Options of the system message.

use std::path::PathBuf;

use clap::Args;

use super::super::failure::Failure;
use super::super::{load, prompt};

/// Options of the system message: a text or a file.
#[derive(Debug, Args)]
pub(crate) struct SystemArgs {
    /// System message (also: -sys TEXT)
    #[arg(long, value_name = "TEXT", allow_hyphen_values = true)]
    system: Option<String>,
    /// Read the system message from FILE; - is stdin (also: -sysf FILE)
    #[arg(
        long,
        value_name = "FILE",
        conflicts_with = "system",
        allow_hyphen_values = true
    )]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    system_file: Option<PathBuf>,
}

impl SystemArgs {
    /// Returns the name of the option that is set.
    pub(crate) fn option(&self) -> Option<&'static str> {
        let file = self.system_file.as_ref().map(|_| "--system-file");
        self.system.as_ref().map(|_| "--system").or(file)
    }

    /// Checks that the file exists.
    pub(crate) fn check(&self) -> Result<(), Failure> {
        match &self.system_file {
            Some(path) if path.as_os_str() != "-" => load::check_there("--system-file", path),
            _ => Ok(()),
        }
    }

    /// Reads the message; one newline at the end of a file is dropped, as llama.cpp does.
    pub(crate) fn read(&self) -> Result<Option<String>, Failure> {
        let Some(path) = &self.system_file else {
            return Ok(self.system.clone());
        };
        let mut text = String::from_utf8(prompt::read(path)?).map_err(|_| {
            Failure::Input(format!("--system-file {}: expected UTF-8", path.display()))
        })?;
        if text.ends_with('\n') {
            text.pop();
        }
        Ok(Some(text))
    }
}
