//! Limits that are exceeded: positions, memory, and files that change.

use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Child, ChildStdin, ChildStdout, Command, Output, Stdio};

use gguf_rs_lite::{Gguf, OpenOptions, TensorType, Writer};

use super::{folder, json, octavo, stderr, stdout, variant};

#[test]
fn a_full_context_is_told_when_it_happens() {
    let run = |args: &[&str]| {
        let output = octavo(args).output().expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stderr(&output)
    };
    let full = ["run", "-p", "1+1=", "-c", "32", "--ignore-eos"];
    let notes = run(&full);
    assert!(
        notes.contains("octavo: context full: 32 of 32 positions used; -c N"),
        "{notes}"
    );
    assert!(notes.trim_end().ends_with("| context full"), "{notes}");
    assert!(run(&[&full[..], &["--json"]].concat()).contains("context full: 32 of 32"));
    let few = [&full[..], &["-n", "3"]].concat();
    assert!(!run(&few).contains("context full"));
    let why = |args: &[&str]| {
        let object = json(&[args, &["--json"]].concat());
        ["finish_reason", "finish_detail"]
            .map(|key| object[key].as_str().unwrap_or("none").to_owned())
    };
    assert_eq!(why(&full), ["length", "context_full"]);
    assert_eq!(why(&few), ["length", "max_tokens"]);
    assert_eq!(why(&["run", "-p", "1+1="]), ["stop", "none"]);
    let output = octavo(&["chat", "-c", "24", "--ignore-eos"])
        .write_stdin("Hi\n")
        .output()
        .expect("runs");
    assert!(
        stderr(&output).contains("octavo: context full: 24 of 24 positions used; /reset"),
        "{}",
        stderr(&output)
    );
}

/// Writes a model with the demo's keys and wide layers, 28 MB of zeros.
fn wide(dir: &tempfile::TempDir) -> PathBuf {
    let width = 16_384u32;
    let demo = Gguf::from_bytes(octavo_engine::demo_model(), "demo", &OpenOptions::default())
        .expect("sound");
    let path = dir.path().join("wide.gguf");
    let mut writer = Writer::new();
    for (key, value) in demo.keys() {
        writer.set(key, value);
    }
    writer.set("qwen3.feed_forward_length", width);
    for t in demo.tensors() {
        let dims: Vec<u64> = match t.name.rsplit('.').nth(1) {
            Some("ffn_gate" | "ffn_up") => vec![t.dims[0], width.into()],
            Some("ffn_down") => vec![width.into(), t.dims[1]],
            _ => {
                writer.tensor(&t.name, &t.dims, t.ty, demo.data(t));
                continue;
            }
        };
        let bytes = dims.iter().product::<u64>() as usize / 32 * 18;
        writer.tensor(&t.name, &dims, TensorType::Q4_0, vec![0u8; bytes]);
    }
    writer.write_file(&path).expect("written");
    path
}

/// Runs the program with `kib` KiB of address space.
fn limited(kib: u64, args: &[&str]) -> Output {
    let line = format!("ulimit -v {kib}; exec \"$@\"");
    let mut command = Command::new("sh");
    command
        .args(["-c", &line, "sh", env!("CARGO_BIN_EXE_octavo")])
        .args(args);
    command
        .env_remove("RUST_BACKTRACE")
        .output()
        .expect("sh runs")
}

#[test]
fn memory_to_measure_with_may_lack() {
    // two threads read 256 MiB each
    let output = limited(400_000, &["bench", "-p", "0", "-n", "1", "-t", "2"]);
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{text}");
    let line = text.lines().last().expect("an error");
    assert!(
        line.starts_with("octavo: error: reading memory to measure it: no memory for 256 MiB")
            && line.ends_with("(--no-limits leaves that out)"),
        "{text}"
    );
}

/// Runs with growing memory limits until three in a row were enough; returns every error.
fn errors_while_memory_lacks(args: &[&str], step: u64) -> Vec<String> {
    let (mut errors, mut enough, mut started) = (Vec::new(), 0, false);
    for kib in (16_000..2_000_000).step_by(step as usize) {
        let output = limited(kib, args);
        let (code, text) = (output.status.code(), stderr(&output));
        let lines: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("octavo: error: "))
            .collect();
        // below some limit the system's loader fails before the program starts
        started |= code == Some(0) || !lines.is_empty();
        match code {
            _ if !started => continue,
            Some(0) => enough += 1,
            Some(1) => {
                let told = ["octavo: no MODEL", "octavo: warning: ", "octavo: error: "];
                let is_told = |line: &str| told.iter().any(|start| line.starts_with(start));
                assert!(
                    lines.len() == 1 && text.lines().all(is_told),
                    "{kib} KiB, {args:?}: {text}"
                );
                assert_eq!(stdout(&output), "", "{kib} KiB, {args:?}");
                errors.push(lines[0].to_owned());
                enough = 0;
            }
            _ => panic!("{kib} KiB, {args:?}: {:?}: {text}", output.status),
        }
        if enough == 3 {
            return errors;
        }
    }
    panic!("{args:?}: never enough; last {:?}", errors.last());
}

#[test]
#[cfg(target_os = "linux")]
fn too_little_memory_is_one_line_that_says_what_would_help() {
    let dir = folder();
    let model = wide(&dir);
    let model = model.to_str().expect("UTF-8");
    let prompt = ["-p", "1+1=", "-n", "2", "--device", "cpu"];
    let demo = errors_while_memory_lacks(&[&["run", "-t", "1"], &prompt[..]].concat(), 1777);
    assert!(
        demo.iter().all(|line| line.contains("no memory for ")),
        "{demo:?}"
    );
    for more in [
        &["-t", "1"][..],
        &["-t", "3"],
        &["-t", "2", "--no-mmap"],
        &["-t", "2", "--no-repack"],
    ] {
        let errors =
            errors_while_memory_lacks(&[&["run", model], &prompt[..], more].concat(), 2999);
        let weights = errors
            .iter()
            .filter(|line| line.contains("of packed weights"));
        let count = weights.clone().count();
        assert_eq!(
            count > 0,
            !more.contains(&"--no-repack"),
            "{more:?}: {errors:?}"
        );
        for line in weights {
            assert!(
                line.contains("error: tensor ") && line.contains("MiB of weights are packed"),
                "{line}"
            );
            assert!(
                line.contains("--no-repack") && line.contains("-c N"),
                "{line}"
            );
        }
    }
    let context = ["-t", "1", "-c", "40000", "--kv-type", "f32"];
    let errors =
        errors_while_memory_lacks(&[&["run", model], &prompt[..], &context].concat(), 9999);
    assert!(
        errors
            .iter()
            .any(|line| line.contains("KV cache of 40000 positions: no memory for ")),
        "{errors:?}"
    );
}

#[cfg(unix)]
#[test]
fn weights_that_cannot_be_locked_are_one_line() {
    let run = |lock: &str| {
        Command::new("sh")
            .args([
                "-c",
                "ulimit -l 64; exec \"$0\" \"$@\"",
                env!("CARGO_BIN_EXE_octavo"),
                "run",
                lock,
            ])
            .args(["-p", "1+1=", "-n", "2", "--device", "cpu"])
            .output()
            .expect("runs")
    };
    let (plain, locked) = (run("--temp=0"), run("--mlock"));
    if locked.status.success() {
        // users who may lock any amount of memory have no limit
        assert_eq!(stdout(&locked), stdout(&plain));
        return;
    }
    let line = stderr(&locked);
    let line = line.lines().last().expect("a line");
    assert!(
        line.starts_with("octavo: error: locking ")
            && line.contains(" MiB of weights in memory: ")
            && line.contains("; the limit (ulimit -l) is 64 KiB (without --mlock "),
        "{line}"
    );
}

/// Returns the memory that a process has locked, in KiB.
#[cfg(target_os = "linux")]
fn locked(process: u32) -> u64 {
    let status = std::fs::read_to_string(format!("/proc/{process}/status"));
    let status = status.unwrap_or_default();
    let line = status.lines().find_map(|line| line.strip_prefix("VmLck:"));
    let number = line.and_then(|line| line.split_whitespace().next());
    number.map_or(0, |number| number.parse().expect("a number"))
}

#[cfg(target_os = "linux")]
#[test]
fn bench_locks_weights_or_says_that_it_cannot() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_octavo"))
        .args(["bench", "--device", "cpu", "--no-limits", "--mlock"])
        .args(["-p", "256", "-n", "0", "-r", "1000"])
        .stdout(Stdio::null())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let ended = loop {
        if let Some(status) = child.try_wait().expect("its state") {
            break Some(status);
        }
        if locked(child.id()) > 1024 {
            child.kill().expect("killed");
            break None;
        }
        std::thread::sleep(std::time::Duration::from_millis(5));
    };
    let line = stderr(&child.wait_with_output().expect("ends"));
    let refused = line.starts_with("octavo: error: locking ");
    assert!(ended.is_none_or(|s| !s.success() && refused), "{line}");
}

/// Function that changes a file.
type Change = fn(&Path);

/// Starts a conversation that reads its weights from the file, and waits for one answer.
fn talking(model: &Path) -> (Child, ChildStdin, BufReader<ChildStdout>) {
    let mut child = Command::new(env!("CARGO_BIN_EXE_octavo"))
        .args(["chat", "--no-repack", "--device", "cpu", "-n", "4"])
        .arg(model)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let (mut stdin, mut out) = (
        child.stdin.take().expect("a pipe"),
        BufReader::new(child.stdout.take().expect("a pipe")),
    );
    stdin.write_all(b"Hi\n").expect("it listens");
    let mut answer = String::new();
    out.read_line(&mut answer).expect("an answer");
    (child, stdin, out)
}

fn one_line(child: Child, what: &str) -> String {
    let output = child.wait_with_output().expect("ends");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{what}: {text}");
    assert!(
        text.lines().count() == 1 && text.starts_with("octavo: error: "),
        "{what}: {text}"
    );
    text
}

#[test]
#[cfg(unix)]
fn a_model_that_changes_while_it_is_in_use_is_one_line() {
    let dir = folder();
    let changes: [(&str, Change); 2] = [
        ("truncated", |path| {
            let file = std::fs::OpenOptions::new()
                .write(true)
                .open(path)
                .expect("there");
            file.set_len(4096).expect("shorter");
        }),
        // opening it for writing truncates the file: the mapped content is gone before there is new
        // content
        ("overwritten", |path| {
            std::fs::write(path, vec![0x5a; 3 << 20]).expect("written")
        }),
    ];
    for (what, change) in changes {
        let path = variant(&dir, &format!("{what}.gguf"), true, |_| {});
        let (child, mut stdin, _out) = talking(&path);
        change(&path);
        // the first answer may still be running when the file changes, and then this is not read
        // any more
        match stdin.write_all(b"Again\n") {
            Err(error) if error.kind() != std::io::ErrorKind::BrokenPipe => panic!("{error}"),
            _ => drop(stdin),
        }
        let text = one_line(child, what);
        assert!(
            text.contains(&format!("{what}.gguf: ")) && text.contains("while it was in use"),
            "{text}"
        );
    }
}

#[test]
#[cfg(unix)]
fn a_model_that_is_truncated_during_a_step_is_one_line() {
    // the point of the computation at that time is random
    for _ in 0..8 {
        truncated_during_a_step();
    }
}

#[cfg(unix)]
fn truncated_during_a_step() {
    let dir = folder();
    let path = variant(&dir, "model.gguf", true, |_| {});
    let mut child = Command::new(env!("CARGO_BIN_EXE_octavo"))
        .args([
            "run",
            "--no-repack",
            "--device",
            "cpu",
            "-p",
            "1+1=",
            "--ignore-eos",
            "-c",
            "100000",
        ])
        .arg(&path)
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("a pipe"));
    out.read_until(b'2', &mut Vec::new()).expect("text");
    let reader = std::thread::spawn(move || std::io::copy(&mut out, &mut std::io::sink()));
    std::fs::OpenOptions::new()
        .write(true)
        .open(&path)
        .and_then(|file| file.set_len(4096))
        .expect("shorter");
    let output = child.wait_with_output().expect("ends");
    reader.join().expect("no panic").expect("read to the end");
    let text = stderr(&output);
    assert_eq!(output.status.code(), Some(1), "{}: {text}", output.status);
    let errors: Vec<&str> = text
        .lines()
        .filter(|line| !line.starts_with("octavo: warning: context "))
        .collect();
    assert!(
        errors.len() == 1 && errors[0].contains("while it was in use"),
        "{text}"
    );
}
