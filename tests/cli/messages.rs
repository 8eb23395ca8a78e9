//! Level of detail on stderr, the log file, and manual pages.

use super::{bad, folder, good, octavo, stderr, stdout};

#[test]
fn quiet_says_errors_alone_and_verbose_says_more() {
    let said = |args: &[&str]| {
        let output = octavo(args).output().expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let args = ["run", "-p", "1+1=", "-n", "2"];
    let (text, usual) = said(&args);
    assert!(
        usual.contains("built-in") && usual.contains("TTFT"),
        "{usual}"
    );
    let (quiet_text, quiet) = said(&[&args[..], &["-q"]].concat());
    assert_eq!((quiet_text, quiet.as_str()), (text, ""));
    let (_, verbose) = said(&[&["-v"], &args[..]].concat());
    assert!(verbose.contains("octavo: loaded "), "{verbose}");
    assert!(verbose.contains("context of "), "{verbose}");
    assert!(verbose.contains("octavo: ended after "), "{verbose}");
    assert!(bad(&["run", "-q", "nothing.gguf", "-p", "x"], 1).contains("nothing.gguf"));
    assert!(bad(&["run", "-q", "-v", "-p", "x"], 2).contains("--quiet"));
}

#[test]
fn a_log_has_every_message_and_replaces_nothing() {
    let dir = folder();
    let log = dir.path().join("log");
    let name = log.to_str().expect("UTF-8");
    let run = ["run", "-p", "1+1=", "-n", "2", "-q", "--log-file", name];
    for times in 1..3 {
        good(&run);
        let kept = std::fs::read_to_string(&log).expect("written");
        let lines: Vec<&str> = kept.lines().collect();
        assert_eq!(lines[0], "# messages of octavo");
        assert_eq!(
            lines.iter().filter(|line| line.contains("TTFT")).count(),
            times
        );
        let stamped = |line: &&str| line.starts_with("20") && &line[19..21] == "Z ";
        assert!(lines[1..].iter().all(stamped), "{kept}");
    }
    bad(&["run", "nothing.gguf", "-p", "x", "--log-file", name], 1);
    let kept = std::fs::read_to_string(&log).expect("written");
    assert!(kept.ends_with("(os error 2)\n"), "{kept}");
    let other = dir.path().join("model.gguf");
    std::fs::write(&other, "GGUF and more").expect("written");
    let name = other.to_str().expect("UTF-8");
    let error = bad(&["run", "-p", "x", "--log-file", name], 1);
    assert!(
        error.contains("--log-file") && error.contains("older log"),
        "{error}"
    );
    assert_eq!(std::fs::read(&other).expect("there"), b"GGUF and more");
}

#[test]
fn every_command_has_a_manual_page() {
    let page = good(&["man"]);
    assert!(page.contains(".TH octavo 1"), "{page}");
    for command in ["run", "serve", "quant-report"] {
        let page = good(&["man", command]);
        let option = if command == "run" {
            "n\\-predict"
        } else {
            "quiet"
        };
        assert!(page.contains(option), "{command}: {page}");
    }
    assert!(bad(&["man", "nothing"], 2).contains("expected one of run, chat"));
}

/// Rust's runtime opens the null device in place of a closed descriptor, and all output would be
/// lost; the null device itself is accepted.
#[test]
#[cfg(target_os = "linux")]
fn a_stdout_that_is_closed_from_the_start_is_an_error() {
    let run = |line: &str| {
        let output = std::process::Command::new("sh")
            .args([
                "-c",
                &format!("\"$0\" {line}"),
                env!("CARGO_BIN_EXE_octavo"),
            ])
            .output()
            .expect("sh runs");
        (output.status.code(), stderr(&output))
    };
    for command in [
        "run -p 1+1= -n 1",
        "tokenize -p x",
        "inspect",
        "logits -p x",
        "--help",
        "run --help",
        "--version",
        "man",
        "completions bash",
        "run nothing.gguf -p x",
    ] {
        let (code, said) = run(&format!("{command} >&-"));
        assert_eq!(code, Some(1), "{command}: {said}");
        assert!(
            said.starts_with("octavo: error: stdout: is closed"),
            "{command}: {said}"
        );
        assert_eq!(said.lines().count(), 1, "{command}: {said}");
    }
    for command in [
        "run -q -p 1+1= -n 1 >/dev/null",
        "run -q -p 1+1= -n 1 1<>/dev/null",
        "tokenize -q -p x >/dev/null 2>&-",
        "tokenize -q -p x <&- >/dev/null",
    ] {
        assert_eq!(run(command), (Some(0), String::new()), "{command}");
    }
}
