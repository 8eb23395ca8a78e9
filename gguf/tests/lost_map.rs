//! Files that change while they are mapped. This is a separate test program: a lost part raises a
//! signal, and both its handler and the exit that follows affect a whole process. The counting
//! allocator of the other tests would also run inside the handler.
#![cfg(unix)]

use std::fs::OpenOptions as Files;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::time::Duration;

use gguf_rs_lite::{Error, Gguf, OpenOptions, TensorType, Writer, guard_maps, replace_file};

/// Variable with the file's path, for a child process that runs this test program.
const CHILD: &str = "OCTAVO_LOST_MAP_CHILD";

/// The same for a child that also writes a file.
const CHILD_THAT_WRITES: &str = "OCTAVO_LOST_MAP_CHILD_THAT_WRITES";

/// Writes a file with a tensor of one megabyte.
fn file(dir: &tempfile::TempDir) -> PathBuf {
    let path = dir.path().join("model.gguf");
    let mut writer = Writer::new();
    writer.tensor("x", &[1 << 18], TensorType::F32, vec![1u8; 1 << 20]);
    writer.write_file(&path).expect("written");
    path
}

fn shorten(path: &Path) {
    Files::new()
        .write(true)
        .open(path)
        .and_then(|file| file.set_len(8192))
        .expect("shorter");
}

fn sum(gguf: &Gguf) -> u64 {
    gguf.data(&gguf.tensors()[0])
        .iter()
        .map(|b| u64::from(*b))
        .sum()
}

/// Runs in a child process whose exit another test checks.
#[test]
fn child() {
    let Some(path) = std::env::var_os(CHILD) else {
        return;
    };
    guard_maps("first: ", 1).expect("a handler");
    let dir = tempfile::tempdir().expect("a folder");
    // list entries are reused, and unmapped files do not matter
    for _ in 0..3 {
        let other = Gguf::open(&file(&dir), &OpenOptions::default()).expect("sound");
        assert_eq!(sum(&other), 1 << 20);
    }
    guard_maps("program: error: ", 7).expect("a handler");
    let gguf = Gguf::open(Path::new(&path), &OpenOptions::default()).expect("sound");
    shorten(Path::new(&path));
    // two threads at once still write one line
    std::thread::scope(|scope| {
        let sums = [scope.spawn(|| sum(&gguf)), scope.spawn(|| sum(&gguf))];
        for sum in sums {
            sum.join().expect("no panic");
        }
    });
    unreachable!("half of the file is gone");
}

/// Runs in a child process that writes a file while a map is lost, or while a signal is sent to it.
#[test]
fn child_that_writes() {
    let Some(path) = std::env::var_os(CHILD_THAT_WRITES) else {
        return;
    };
    guard_maps("program: error: ", 7).expect("a handler");
    let path = Path::new(&path);
    let gguf = Gguf::open(path, &OpenOptions::default()).expect("sound");
    let written = replace_file(&path.with_file_name("new"), |out| {
        out.write_all(b"half").expect("written");
        let names = std::fs::read_dir(path.parent().expect("a folder")).expect("listed");
        assert_eq!(names.count(), 2, "the temporary file is there");
        if std::env::var_os("SENT").is_some() {
            let kill = format!("kill -BUS {}", std::process::id());
            let killed = Command::new("sh").args(["-c", &kill]).status();
            assert!(killed.expect("sh runs").success());
            std::thread::sleep(Duration::from_secs(60));
        }
        shorten(path);
        std::hint::black_box(sum(&gguf));
        Ok::<(), Error>(())
    });
    unreachable!("half of the file is gone: {written:?}");
}

#[test]
fn temporary_files_go_with_the_process() {
    use std::os::unix::process::ExitStatusExt;
    for (sent, code, signal) in [(None, Some(7), None), (Some("1"), None, Some(7))] {
        let dir = tempfile::tempdir().expect("a folder");
        let path = file(&dir);
        let this = std::env::current_exe().expect("this program");
        let mut command = Command::new(this);
        command
            .args(["--exact", "child_that_writes", "--nocapture"])
            .env(CHILD_THAT_WRITES, &path)
            .envs(sent.map(|sent| ("SENT", sent)));
        let status = command.output().expect("it runs").status;
        assert_eq!((status.code(), status.signal()), (code, signal));
        let names = std::fs::read_dir(dir.path()).expect("listed").flatten();
        let names: Vec<_> = names.map(|entry| entry.file_name()).collect();
        assert_eq!(names, ["model.gguf"]);
    }
}

fn run(path: &Path) -> Output {
    let this = std::env::current_exe().expect("this program");
    let mut command = Command::new(this);
    command
        .args(["--exact", "child", "--nocapture"])
        .env(CHILD, path)
        .output()
        .expect("it runs")
}

#[test]
fn a_file_that_is_shortened_while_it_is_read_ends_the_process_with_one_line() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = file(&dir);
    let output = run(&path);
    let expected = format!(
        "program: error: {}: truncated while it was in use, or its disk failed\n",
        path.display()
    );
    assert_eq!(
        String::from_utf8_lossy(&output.stderr),
        expected,
        "{:?}",
        output.status
    );
    assert_eq!(output.status.code(), Some(7));
}

#[test]
fn a_file_that_changed_is_found_when_it_is_asked_for() {
    let dir = tempfile::tempdir().expect("a folder");
    let path = file(&dir);
    let open = || Gguf::open(&path, &OpenOptions::default()).expect("sound");
    let check = |gguf: &Gguf| gguf.check(&gguf.tensors()[0]);
    let gguf = open();
    check(&gguf).expect("as it was");
    // long enough for a different modification time on any file system
    std::thread::sleep(Duration::from_millis(50));
    let mut other = Files::new().write(true).open(&path).expect("there");
    other.write_all(b"GGUF").expect("written");
    let error = check(&gguf).expect_err("written to").to_string();
    assert!(
        error.ends_with(
            "changed while it was in use: expected 1048640 bytes, found others in their place"
        ),
        "{error}"
    );
    let gguf = open();
    shorten(&path);
    let error = check(&gguf).expect_err("shorter");
    assert!(
        matches!(
            error,
            Error::Changed {
                expected: 1_048_640,
                got: 8192,
                ..
            }
        ),
        "{error}"
    );
    // a new file of the same name, or none, does not affect the mapped one
    let path = file(&dir);
    let gguf = open();
    std::fs::write(dir.path().join("new"), b"another").expect("written");
    std::fs::rename(dir.path().join("new"), &path).expect("renamed");
    check(&gguf).expect("the mapped file is as it was");
    std::fs::remove_file(&path).expect("removed");
    check(&gguf).expect("the mapped file is as it was");
    let held = Gguf::open(
        &file(&dir),
        &OpenOptions {
            mmap: false,
            ..OpenOptions::default()
        },
    )
    .expect("sound");
    shorten(&path);
    check(&held).expect("in memory");
}
