//! The programs that are compared, and one run of one of them.

use std::path::{Path, PathBuf};
use std::process::Command;

use serde_json::Value;

use super::test::Test;
use crate::side;

/// All ik_llama.cpp settings that may be its best: with and without repacking at load.
const IK_SETTINGS: [&str; 4] = ["-fa", "1", "-rtr", "0,1"];

/// A program that measures tests.
pub(super) struct Program {
    pub(super) name: &'static str,
    path: PathBuf,
    /// Arguments of every run.
    first: Vec<String>,
    /// Arguments of which one list at a time is used.
    pub(super) settings: Vec<Vec<&'static str>>,
}

impl Program {
    /// Octavo, with the arguments of `octavo bench` that only it has.
    pub(super) fn octavo(path: PathBuf, first: Vec<String>) -> Program {
        Program {
            name: "octavo",
            path,
            first,
            settings: vec![Vec::new()],
        }
    }

    /// The llama-bench of llama.cpp.
    pub(super) fn llama_cpp(dir: &Path, on_gpu: bool) -> Result<Program, String> {
        let settings: &[&str] = if on_gpu {
            &side::LLAMA_GPU_SETTINGS
        } else {
            &side::LLAMA_SETTINGS
        };
        Program::llama_bench("llama.cpp", dir, settings)
    }

    /// The llama-bench of ik_llama.cpp.
    pub(super) fn ik_llama_cpp(dir: &Path) -> Result<Program, String> {
        Program::llama_bench("ik_llama.cpp", dir, &IK_SETTINGS)
    }

    fn llama_bench(
        name: &'static str,
        dir: &Path,
        settings: &[&'static str],
    ) -> Result<Program, String> {
        Ok(Program {
            name,
            path: side::find(dir, "llama-bench")?,
            first: Vec::new(),
            settings: combinations(settings),
        })
    }

    /// Runs a test with a setting and a number of repetitions.
    pub(super) fn run(
        &self,
        setting: &[&str],
        model: &Path,
        test: Test,
        repetitions: u32,
    ) -> Result<Run, String> {
        let mut command = Command::new(&self.path);
        command.args(&self.first).args(setting);
        command.arg("-m").arg(model).args(test.args());
        command.args(["-r", &repetitions.to_string(), "-o", "json"]);
        let before = side::children_seconds()?;
        let output = command.output();
        let output = output.map_err(|error| format!("{}: {error}", self.path.display()))?;
        if !output.status.success() {
            let message = String::from_utf8_lossy(&output.stderr);
            return Err(format!(
                "{}: {}: {}",
                self.name,
                output.status,
                message.trim_end()
            ));
        }
        let record = side::records(self.name, &output.stdout)?.swap_remove(0);
        Ok(Run {
            rate: side::rate(&record)?,
            cpu: side::children_seconds()? - before,
            record,
        })
    }
}

/// Returns every choice from arguments that are lists: `-fa 0,1` is `-fa 0` and `-fa 1`.
fn combinations(lists: &[&'static str]) -> Vec<Vec<&'static str>> {
    lists.iter().fold(vec![Vec::new()], |chosen, list| {
        let with = |one: &'static str| {
            chosen
                .iter()
                .map(move |before| [&before[..], &[one]].concat())
        };
        list.split(',').flat_map(with).collect()
    })
}

/// One run of a program.
pub(super) struct Run {
    /// Tokens per second.
    pub(super) rate: f64,
    /// CPU seconds of the process, with loading.
    pub(super) cpu: f64,
    pub(super) record: Value,
}

/// Formats a setting for people: `-fa 1 -rtr 0`.
pub(super) fn setting_name(setting: &[&str]) -> String {
    setting.join(" ")
}
