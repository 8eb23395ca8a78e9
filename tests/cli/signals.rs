//! No temporary file is left when a signal ends the program, whatever it was doing, and the exit
//! code tells the signal.
#![cfg(unix)]

use std::fs;
use std::path::Path;
use std::process::{Child, Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use octavo_fixtures::{Lacks, skip};

use super::kept::program;
use super::outputs::Desk;

/// Returns whether the tests run with a signal ignored, which programs inherit: jobs in the
/// background of a script ignore SIGQUIT, those of nohup SIGHUP.
fn is_ignored(number: u32) -> bool {
    let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
    let ignored = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    let mask = ignored.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok());
    mask.is_some_and(|mask| mask >> (number - 1) & 1 == 1)
}

/// Returns signals and their exit codes; without SIGHUP if the tests run with it ignored.
fn signals() -> Vec<(&'static str, i32)> {
    let mut all = vec![("INT", 130), ("TERM", 143)];
    if is_ignored(1) {
        skip(Lacks::System, "SIGHUP is ignored here");
    } else {
        all.push(("HUP", 129));
    }
    all
}

/// Maximum time to wait; everything here is faster, also on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// The running program, killed on drop.
struct Started(Child);

impl Started {
    fn ended(&mut self) -> Option<ExitStatus> {
        self.0.try_wait().expect("known")
    }

    fn send(&self, signal: &str) {
        let command = format!("kill -{signal} {}", self.0.id());
        assert!(
            Command::new("sh")
                .args(["-c", &command])
                .status()
                .expect("sh runs")
                .success()
        );
    }

    /// Waits for its end; returns the exit code.
    fn code(&mut self) -> Option<i32> {
        self.0.wait().expect("ends").code()
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        // a program that has ended cannot be killed, which is fine
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn start(desk: &Desk, args: &str) -> Started {
    let args = args.split_whitespace().map(|word| {
        word.strip_prefix('@')
            .map_or(word.to_owned(), |name| desk.name(name))
    });
    let mut command = Command::new(env!("CARGO_BIN_EXE_octavo"));
    command
        .args(args)
        .env("TMPDIR", desk.at("tmp"))
        .stdout(Stdio::null())
        .stderr(Stdio::null());
    Started(command.spawn().expect("starts"))
}

/// Returns new files in the folder and in that of temporary files.
fn new_files(desk: &Desk, before: &[String]) -> Vec<String> {
    let mut names = Vec::new();
    for folder in ["", "tmp", "keep"] {
        let entries = fs::read_dir(desk.at(folder))
            .into_iter()
            .flatten()
            .flatten();
        names.extend(
            entries.map(|entry| format!("{folder}/{}", entry.file_name().to_string_lossy())),
        );
    }
    names.retain(|name| !before.contains(name));
    names
}

fn wait_for(what: &str, mut there: impl FnMut() -> bool) {
    let start = Instant::now();
    while !there() {
        assert!(start.elapsed() < PATIENCE, "{what} took too long");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Starts the command, waits until it has made a temporary file, and sends each signal.
fn leaves_nothing(desk: &Desk, args: &str) {
    fs::create_dir_all(desk.at("tmp")).expect("made");
    fs::create_dir_all(desk.at("keep")).expect("made");
    for (signal, code) in signals() {
        let before = new_files(desk, &[]);
        let mut child = start(desk, args);
        // the check before the work makes a temporary file for a moment; one that stays or is
        // filled belongs to the work
        let mut seen = 0;
        wait_for(args, || {
            assert_eq!(child.ended(), None, "{args}: ended before the signal");
            seen = if new_files(desk, &before).is_empty() {
                0
            } else {
                seen + 1
            };
            seen > 20
        });
        child.send(signal);
        assert_eq!(child.code(), Some(code), "{args}: {signal}");
        assert_eq!(new_files(desk, &before), [""; 0], "{args}: {signal}");
    }
}

/// Writes a text that keeps a command busy.
fn long(desk: &Desk) {
    let text = fs::read(desk.at("text")).expect("there").repeat(400);
    fs::write(desk.at("long"), text).expect("written");
}

#[test]
fn a_model_that_is_quantized() {
    leaves_nothing(
        &Desk::new(),
        "quantize @model.gguf @out IQ3_S --pure --allow-requantize -t 1",
    );
}

/// Tests all other signals that end a program, sent to it or raised by a limit.
#[test]
fn any_signal_that_ends_a_program() {
    use std::os::unix::process::ExitStatusExt;
    let desk = Desk::new();
    fs::create_dir_all(desk.at("tmp")).expect("made");
    let args = "quantize @model.gguf @out IQ3_S --pure --allow-requantize -t 1";
    let signals = [
        ("QUIT", 3),
        ("ABRT", 6),
        ("ALRM", 14),
        ("USR1", 10),
        ("USR2", 12),
        ("XCPU", 24),
        ("VTALRM", 26),
        ("PROF", 27),
        ("SYS", 31),
        ("BUS", 7),
    ];
    for (signal, number) in signals {
        if is_ignored(number) {
            skip(Lacks::System, format_args!("SIG{signal} is ignored here"));
            continue;
        }
        let mut child = start(&desk, args);
        let mut seen = 0;
        wait_for(args, || {
            assert_eq!(child.ended(), None, "{signal}: ended before the signal");
            seen = if desk.temporary_files().is_empty() {
                0
            } else {
                seen + 1
            };
            seen > 20
        });
        child.send(signal);
        let status = child.0.wait().expect("ends");
        let ended_by = status.signal().or(status.code().map(|code| code - 128));
        assert!(
            ended_by.is_some_and(|number| number > 0),
            "{signal}: {status}"
        );
        assert_eq!(desk.temporary_files(), [""; 0], "{signal}");
        assert!(!desk.at("out").exists(), "{signal}");
    }
    let limited = "ulimit -f 20; exec \"$0\" quantize \"$1\" \"$2\" F32 --allow-requantize";
    let output = Command::new("bash")
        .args(["-c", limited, env!("CARGO_BIN_EXE_octavo")])
        .args([desk.name("model.gguf"), desk.name("out")])
        .output()
        .expect("bash runs");
    assert!(!output.status.success());
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(said.contains("octavo: error: "), "{said}");
    assert!(said.contains("File too large"), "{said}");
    assert_eq!(said.matches("octavo: error").count(), 1, "{said}");
    assert_eq!(desk.temporary_files(), [""; 0]);
}

#[test]
fn what_a_killed_run_has_left_is_removed_and_told_of() {
    let desk = Desk::new();
    let left = desk.at(".out.gguf.4000000000-0.tmp");
    fs::write(&left, "half").expect("written");
    let output = Command::new(env!("CARGO_BIN_EXE_octavo"))
        .args(["quantize", &desk.name("model.gguf"), &desk.name("out.gguf")])
        .args(["Q8_0", "--allow-requantize"])
        .output()
        .expect("runs");
    let said = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{said}");
    assert!(
        said.contains(".out.gguf.4000000000-0.tmp: removed"),
        "{said}"
    );
    assert!(!left.exists());
}

#[test]
fn a_base_that_is_scored() {
    let desk = Desk::new();
    long(&desk);
    leaves_nothing(
        &desk,
        "perplexity @model.gguf -f @long -c 64 -t 1 --kl-divergence-base @out",
    );
}

#[test]
fn the_models_of_a_report() {
    let desk = Desk::new();
    long(&desk);
    desk.good(
        "quantize @model.gguf @OUT F16 --allow-requantize",
        "f16.gguf",
    );
    leaves_nothing(
        &desk,
        "quant-report @f16.gguf -f @long -c 64 -t 1 --html @out",
    );
}

#[test]
fn a_comparison_with_llama_cpp_and_the_program_itself() {
    let desk = Desk::new();
    program(
        &desk,
        "test \"$1\" = --version && exit; echo $$ > \"${2%model.gguf}pid\"; echo half > \"$4\"; \
         exec sleep 20",
    );
    let args = "diff @model.gguf --llama-cpp @ --keep @keep -p x";
    for (signal, code) in signals() {
        let mut child = start(&desk, args);
        wait_for(args, || {
            fs::read_to_string(desk.at("pid")).is_ok_and(|pid| pid.ends_with('\n'))
        });
        wait_for(args, || hidden(&desk.at("keep")) == 1);
        child.send(signal);
        assert_eq!(child.code(), Some(code), "{signal}");
        assert_eq!(hidden(&desk.at("keep")), 0, "{signal}");
        let pid = fs::read_to_string(desk.at("pid")).expect("there");
        // an ended process is a zombie until init reaps it
        let runs = || {
            fs::read_to_string(format!("/proc/{}/cmdline", pid.trim()))
                .is_ok_and(|line| !line.is_empty())
        };
        wait_for("the end of llama-results", || !runs());
        fs::remove_file(desk.at("pid")).expect("removed");
    }
}

fn hidden(folder: &Path) -> usize {
    let entries = fs::read_dir(folder).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().to_string_lossy().starts_with('.'))
        .count()
}

/// Starts the program as `nohup` does.
#[test]
fn a_hangup_that_is_ignored_stays_ignored() {
    let desk = Desk::new();
    long(&desk);
    let shell = "trap '' HUP; exec \"$0\" perplexity \"$1\" -f \"$2\" -c 64 -t 1 \
                 --kl-divergence-base \"$3\"";
    let child = Command::new("sh")
        .args([
            "-c",
            shell,
            env!("CARGO_BIN_EXE_octavo"),
            &desk.name("model.gguf"),
            &desk.name("long"),
        ])
        .arg(desk.at("out"))
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .expect("starts");
    let mut child = Started(child);
    // the check before the work makes a temporary file for a moment
    let mut seen = 0;
    wait_for("a base", || {
        seen = if desk.temporary_files().is_empty() {
            0
        } else {
            seen + 1
        };
        seen > 20
    });
    child.send("HUP");
    std::thread::sleep(Duration::from_millis(300));
    assert_eq!(child.ended(), None, "it goes on");
    child.send("TERM");
    assert_eq!(child.code(), Some(143));
    assert_eq!(desk.temporary_files(), [""; 0]);
}
