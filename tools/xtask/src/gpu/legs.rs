//! GPU checks, one leg after the other. A failing leg is recorded, and the others still run.

use std::fs::OpenOptions;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use octavo_kernels::cuda::toolkits;
use serde_json::Value;

use super::pack::Programs;
use super::process::{self, Ran};
use super::{GpuArgs, Leg};

/// Tokens generated to compare runs with and without CUDA graphs.
const REPLAYS: &str = "1000";
/// Tokens of the prompt compared with the CPU: more than one batch, and the last one not full.
const PROMPT: u32 = 600;
/// Lengths of the generated texts whose hashes are compared with the CPU's: the first difference is
/// between two of these.
const LENGTHS: &str = "1,2,4,8,16";
/// Most failed tests that are run once more.
const AGAIN: usize = 20;
/// Kernels whose threads share memory or synchronise: racecheck and synccheck would take too long
/// for all tests.
const SHARING: [&str; 4] = [
    "cuda_shim::products::large_tiles",
    "cuda_shim::attention::",
    "cuda_shim::fused::",
    "cuda_shim::rows::",
];

/// Settings and results of a run.
pub(super) struct Legs<'a> {
    pub(super) args: &'a GpuArgs,
    /// Folder of models, and of the tests' compilation results.
    pub(super) dir: PathBuf,
    pub(super) programs: Programs,
    pub(super) limit: Duration,
    /// Failures, one line each.
    pub(super) failures: Vec<String>,
}

/// Returns the name of the first GPU.
pub(super) fn device(programs: &Programs, limit: Duration) -> Result<String, String> {
    let mut command = programs.octavo();
    usable(&json(process::run(
        command.args(["inspect", "--devices", "--json"]),
        limit,
        false,
    ))?)
}

/// Returns the name of the first GPU in the output of `inspect --devices`, if it works.
fn usable(devices: &Value) -> Result<String, String> {
    let Some(gpu) = devices["gpus"].get(0) else {
        return Err(format!(
            "no GPU: {}",
            devices["cuda"]["why"].as_str().unwrap_or("none is listed")
        ));
    };
    match gpu["why"].as_str() {
        None => Ok(gpu["name"].as_str().unwrap_or("a GPU").to_owned()),
        Some(why) => Err(format!("no GPU: {why}")),
    }
}

fn json(ran: Ran) -> Result<Value, String> {
    let text = ran.text()?;
    serde_json::from_str(&text).map_err(|error| format!("{error}: {text}"))
}

impl Legs<'_> {
    pub(super) fn run(&mut self, leg: Leg) {
        match leg {
            Leg::Tests => self.tests(),
            Leg::Sanitize => self.sanitize(),
            Leg::Replays => {
                let models = self.models().into_iter().take(1);
                self.each(models, |legs, model| legs.replays(model));
            }
            Leg::Diff => {
                let (models, n) = (self.models(), self.args.types.len());
                let largest = models[models.len() - n..].to_vec();
                self.each(models.into_iter().take(n), |legs, model| legs.diff(model));
                self.each(largest, |legs, model| legs.first_tokens(model));
            }
            Leg::Bench => self.each(self.models(), |legs, model| legs.measure(model)),
        }
    }

    fn note(&mut self, what: &str, result: Result<(), String>) {
        if let Err(error) = result {
            println!("failed: {what}: {error}");
            self.failures.push(format!("{what}: {error}"));
        }
    }

    /// Returns every size in every type.
    fn models(&self) -> Vec<(String, String)> {
        let types = |preset: &String| {
            self.args
                .types
                .iter()
                .map(move |ty| (preset.clone(), ty.clone()))
                .collect()
        };
        self.args
            .presets
            .iter()
            .flat_map(|preset| -> Vec<_> { types(preset) })
            .collect()
    }

    /// Applies a check to models, creating missing ones.
    fn each(
        &mut self,
        models: impl IntoIterator<Item = (String, String)>,
        what: impl Fn(&Self, &Path) -> Result<(), String>,
    ) {
        for (preset, ty) in models {
            let done = model(&self.dir, &preset, &ty).and_then(|model| {
                println!("-- {preset} {ty}");
                what(self, &model)
            });
            self.note(&format!("{preset} {ty}"), done);
        }
    }

    fn octavo(&self, task: &str, model: &Path, arguments: &[&str], show: bool) -> Ran {
        self.octavo_lines(task, model, arguments, &mut |line| {
            if show {
                println!("{line}");
            }
        })
    }

    /// Runs a task, and gives each line of its output to `see` as it arrives.
    pub(super) fn octavo_lines(
        &self,
        task: &str,
        model: &Path,
        arguments: &[&str],
        see: &mut dyn FnMut(&str),
    ) -> Ran {
        let mut command = self.programs.octavo();
        process::run_lines(
            command.arg(task).arg(model).args(arguments),
            self.limit,
            see,
        )
    }

    /// Applies a check to the model of a size and type.
    pub(super) fn of_model(
        &mut self,
        preset: &str,
        ty: &str,
        what: impl FnOnce(&Self, &Path) -> Result<(), String>,
    ) {
        let done = model(&self.dir, preset, ty).and_then(|model| what(self, &model));
        self.note(&format!("{preset} {ty}"), done);
    }

    /// Runs the tests of both programs.
    fn tests(&mut self) {
        for (at, tests) in self.programs.tests.clone().into_iter().enumerate() {
            self.some_tests(at, &[tests.module]);
        }
    }

    /// Runs tests of a program; failed ones once more, each in a process of its own: a crashing
    /// kernel breaks the context of all tests beside and after it.
    pub(super) fn some_tests(&mut self, at: usize, names: &[&str]) {
        let program = self.programs.tests[at].program.clone();
        let name = program
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        println!("-- {name}");
        let start = || Command::new(&program);
        let mut command = start();
        self.programs.on_gpu(&mut command, &self.dir).args(names);
        let all = process::run(&mut command, self.limit, true);
        let failed = failed_tests(&all.text);
        for test in failed.iter().take(AGAIN) {
            println!("-- {test}, alone");
            let mut command = start();
            self.programs
                .on_gpu(&mut command, &self.dir)
                .args([test, "--exact"]);
            let alone = process::run(&mut command, self.limit, true);
            let alone = match alone.result {
                Ok(()) => "beside others, not alone".to_owned(),
                Err(error) => format!("alone too: {}", panicked(&alone.text).unwrap_or(&error)),
            };
            self.note(test, Err(alone));
        }
        let others = failed.len().saturating_sub(AGAIN);
        let ended = all
            .result
            .map_err(|error| format!("{error}, {} tests failed", failed.len()));
        if failed.is_empty() || others > 0 {
            self.note("tests", ended);
        }
    }

    /// Runs the kernels' tests under compute-sanitizer. Tests that inject faults run on the CPU in
    /// any case.
    pub(super) fn sanitize(&mut self) {
        let Some(sanitizer) = of_cuda("compute-sanitizer") else {
            println!("skipped: compute-sanitizer (part of CUDA) was not found");
            return;
        };
        let kernels = self.programs.tests[0].clone();
        for (tool, tests) in [
            ("memcheck", &[kernels.module][..]),
            ("racecheck", &SHARING),
            ("synccheck", &SHARING),
        ] {
            println!("-- {tool}");
            let mut command = Command::new(&sanitizer);
            command
                .args(["--tool", tool, "--error-exitcode", "1"])
                .arg(&kernels.program);
            command
                .args(["--test-threads", "1", "--skip", "faults"])
                .args(tests);
            let ran = process::run(
                self.programs.on_gpu(&mut command, &self.dir),
                self.limit,
                true,
            );
            self.note(tool, ran.result);
        }
    }

    /// Returns the token hashes of a benchmark without repetitions.
    fn hashes(&self, model: &Path, device: &str, more: &[&str]) -> Result<Vec<String>, String> {
        let arguments = [
            &["--device", device, "-p", "0", "-r", "1", "-o", "json"],
            more,
        ]
        .concat();
        let records = json(self.octavo("bench", model, &arguments, false))?;
        let hash = |record: &Value| record["token_hash"].as_str().map(str::to_owned);
        let all: Option<Vec<String>> = records
            .as_array()
            .and_then(|all| all.iter().map(hash).collect());
        all.filter(|all| !all.is_empty())
            .ok_or_else(|| format!("no hash of tokens: {records}"))
    }

    /// Checks that generation does not depend on CUDA graph capture.
    pub(super) fn replays(&self, model: &Path) -> Result<(), String> {
        let captured = self.hashes(model, "cuda", &["-n", REPLAYS])?;
        let plain = self.hashes(model, "cuda", &["-n", REPLAYS, "--no-cuda-graph"])?;
        if captured != plain {
            return Err(format!(
                "captured generation chose other tokens: {captured:?}, expected {plain:?}"
            ));
        }
        println!("{REPLAYS} tokens, captured and not: {}", plain[0]);
        Ok(())
    }

    /// Checks that every tensor of a prompt is within its bound of the CPU's.
    pub(super) fn diff(&self, model: &Path) -> Result<(), String> {
        // below the smallest preset's vocabulary
        let tokens: Vec<String> = (0..PROMPT)
            .map(|i| ((i * i + 7 * i) % 1009).to_string())
            .collect();
        let arguments = [
            "--a-device",
            "cpu",
            "--b-device",
            "cuda",
            "--tokens",
            &tokens.join(","),
        ];
        self.octavo("diff", model, &arguments, true).result
    }

    /// Reports how many generated tokens equal the CPU's. Devices round differently, so that nearly
    /// equal logits may swap, and every later token then differs: this is reported, but never a
    /// failure.
    fn first_tokens(&self, model: &Path) -> Result<(), String> {
        let [cpu, gpu] = [
            self.hashes(model, "cpu", &["-n", LENGTHS])?,
            self.hashes(model, "cuda", &["-n", LENGTHS])?,
        ];
        println!("{}", alike(&cpu, &gpu));
        Ok(())
    }

    fn measure(&self, model: &Path) -> Result<(), String> {
        let arguments = [
            "--device",
            "cuda",
            "-p",
            "512,2048",
            "-n",
            "128",
            "-d",
            "0,1024,4096",
            "-o",
            "csv",
        ];
        let ran = self.octavo("bench", model, &arguments, true);
        append(&self.args.csv, &ran.text)?;
        ran.result
    }
}

/// Describes the first difference of two texts, from hashes of ever longer prefixes.
fn alike(cpu: &[String], gpu: &[String]) -> String {
    let same = cpu.iter().zip(gpu).take_while(|(a, b)| a == b).count();
    let lengths: Vec<&str> = LENGTHS.split(',').collect();
    match (same.checked_sub(1).map(|i| lengths[i]), lengths.get(same)) {
        (Some(n), None) => format!("{n} tokens are the CPU's"),
        (n, Some(others)) => format!(
            "{} tokens are the CPU's, not all of {others}: two logits may be almost alike, this \
             is no failure",
            n.unwrap_or("0")
        ),
        (None, None) => "no tokens were compared".to_owned(),
    }
}

/// Appends CSV lines to a file; the header line is written only once.
fn append(csv: &Path, text: &str) -> Result<(), String> {
    let wrong = |error: std::io::Error| format!("{}: {error}", csv.display());
    if let Some(dir) = csv.parent() {
        std::fs::create_dir_all(dir).map_err(wrong)?;
    }
    let has_header = std::fs::metadata(csv).is_ok_and(|m| m.len() > 0);
    let mut file = OpenOptions::new()
        .create(true)
        .append(true)
        .open(csv)
        .map_err(wrong)?;
    let lines: String = text
        .lines()
        .skip(usize::from(has_header))
        .map(|line| format!("{line}\n"))
        .collect();
    file.write_all(lines.as_bytes()).map_err(wrong)
}

/// Returns the test names in libtest's lines `test NAME ... FAILED`.
fn failed_tests(text: &str) -> Vec<String> {
    let name = |line: &str| {
        Some(
            line.strip_prefix("test ")?
                .strip_suffix(" ... FAILED")?
                .to_owned(),
        )
    };
    text.lines().filter_map(name).collect()
}

/// Returns a failed test's panic message: the line after the location.
fn panicked(text: &str) -> Option<&str> {
    text.lines()
        .skip_while(|line| !line.contains(" panicked at "))
        .nth(1)
}

/// Finds a program of CUDA.
pub(super) fn of_cuda(name: &str) -> Option<PathBuf> {
    let mut dirs: Vec<PathBuf> = toolkits()
        .into_iter()
        .map(|root| root.join("bin"))
        .collect();
    dirs.extend(
        std::env::var_os("PATH")
            .iter()
            .flat_map(std::env::split_paths)
            .collect::<Vec<_>>(),
    );
    dirs.into_iter()
        .map(|dir| dir.join(name))
        .find(|path| path.is_file())
}

fn model(dir: &Path, preset: &str, ty: &str) -> Result<PathBuf, String> {
    let path = dir.join(format!("qwen3-{preset}-{ty}.gguf"));
    if !path.is_file() {
        let part = path.with_extension("part");
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let arguments = [
            "model", "--arch", "qwen3", "--preset", preset, "--type", ty, "--out",
        ];
        crate::must(Command::new(this).args(arguments).arg(&part))?;
        std::fs::rename(&part, &path).map_err(|error| format!("{}: {error}", path.display()))?;
    }
    Ok(path)
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn only_a_gpu_that_works_will_do() {
        let gpu = |why: Value| json!({"gpus": [{"name": "H200", "why": why}]});
        assert_eq!(usable(&gpu(Value::Null)), Ok("H200".to_owned()));
        assert_eq!(
            usable(&gpu(json!("too old"))),
            Err("no GPU: too old".to_owned())
        );
        let none = json!({"gpus": [], "cuda": {"why": "no driver"}});
        assert_eq!(usable(&none), Err("no GPU: no driver".to_owned()));
    }

    #[test]
    fn texts_part_between_two_lengths() {
        let hashes = |text: &str| text.chars().map(String::from).collect::<Vec<_>>();
        assert_eq!(
            alike(&hashes("abcde"), &hashes("abcde")),
            "16 tokens are the CPU's"
        );
        let says = |gpu: &str| alike(&hashes("abcde"), &hashes(gpu));
        assert!(
            says("abcxy").starts_with("4 tokens are the CPU's, not all of 8: "),
            "{}",
            says("abcxy")
        );
        assert!(
            says("vwxyz").starts_with("0 tokens are the CPU's, not all of 1: "),
            "{}",
            says("vwxyz")
        );
    }

    #[test]
    fn failed_tests_are_known_by_their_lines() {
        let text =
            "test a::b ... ok\ntest a::c ... FAILED\n\nfailures:\n    a::c\ntest d ... FAILED\n";
        assert_eq!(failed_tests(text), ["a::c", "d"]);
        assert_eq!(
            panicked("thread 'a::c' (7) panicked at a.rs:8:9:\nof this\nstack backtrace:\n"),
            Some("of this")
        );
        assert_eq!(panicked(text), None);
    }

    #[test]
    fn a_table_has_one_head() {
        let dir = tempfile::tempdir().expect("a folder");
        let csv = dir.path().join("new/bench.csv");
        append(&csv, "names\n1\n").expect("it is written");
        append(&csv, "names\n2\n3\n").expect("it is written");
        assert_eq!(
            std::fs::read_to_string(&csv).expect("it is there"),
            "names\n1\n2\n3\n"
        );
    }
}
