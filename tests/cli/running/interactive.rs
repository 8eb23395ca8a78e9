//! Terminals, closed readers, and Ctrl-C.

use super::*;

#[test]
fn what_nobody_reads_is_an_error() {
    fails_unread(&["run", "-p", "The", "--ignore-eos", "-n", "400"]);
    fails_unread(&["run", "-p", "The", "-n", "4", "--json"]);
    fails_unread(&["tokenize", "-p", "The"]);
    fails_unread(&["embed", "-p", "The"]);
    fails_unread(&["run", "--help"]);
}

/// Reads prompts as in `octavo run MODEL < file` and `echo text | octavo run MODEL`.
#[test]
fn a_prompt_comes_from_a_pipe() {
    let piped = |args: &[&str], text: &str| {
        let output = octavo(args).write_stdin(text).output().expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        stdout(&output)
    };
    let args = ["run", "-n", "4", "--ignore-eos"];
    assert_eq!(
        piped(&args, "1+1="),
        good(&[&args[..], &["-p", "1+1="]].concat())
    );
    assert_eq!(
        piped(&["tokenize", "--ids"], "1+1=\n"),
        good(&["tokenize", "--ids", "-e", "-p", r"1+1=\n"])
    );
    assert!(bad(&["run", "-n", "4"], 2).contains("no text: expected -p TEXT"));
    assert!(bad(&["run", "--lines"], 2).contains("no text: expected -p TEXT"));
}

#[cfg(unix)]
#[test]
fn ctrl_c_ends_a_generation_cleanly() {
    let mut child = Plain::new(env!("CARGO_BIN_EXE_octavo"))
        .args([
            "run",
            "-p",
            "The",
            "--ignore-eos",
            "-c",
            "100000",
            "-t",
            "1",
        ])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("starts");
    let mut out = BufReader::new(child.stdout.take().expect("piped"));
    assert!(!out.fill_buf().expect("text").is_empty());
    let killed = Plain::new("sh")
        .args(["-c", &format!("kill -INT {}", child.id())])
        .status()
        .expect("sh runs");
    assert!(killed.success());
    let mut rest = Vec::new();
    out.read_to_end(&mut rest).expect("the rest");
    let output = child.wait_with_output().expect("ends");
    assert_eq!(output.status.code(), Some(130), "{}", stderr(&output));
    assert!(String::from_utf8(rest).is_ok(), "no half characters");
    assert!(
        stderr(&output).trim_end().ends_with("| cancelled"),
        "{}",
        stderr(&output)
    );
}

/// Returns the output of the program on a terminal, which util-linux's `script` provides; `None` if
/// that is not installed. Each time the first text of a pair in `typed` has been printed, the
/// second is typed.
#[cfg(target_os = "linux")]
fn on_a_terminal(arguments: &str, typed: &[(&str, &str)]) -> Option<String> {
    use std::io::Write;

    let command = format!("{} {arguments}", env!("CARGO_BIN_EXE_octavo"));
    let child = Plain::new("timeout")
        .args(["60", "script", "-qec", &command, "/dev/null"])
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn();
    let mut child = child.expect("coreutils has it");
    let mut stdin = child.stdin.take().expect("a pipe");
    let mut stdout = child.stdout.take().expect("a pipe");
    let (mut all, mut seen, mut piece) = (Vec::new(), 0, [0; 4096]);
    let mut typed = typed.iter();
    let mut next = typed.next();
    loop {
        let n = stdout.read(&mut piece).expect("it prints");
        if n == 0 {
            break;
        }
        all.extend(&piece[..n]);
        if let Some((printed, answer)) = next
            && String::from_utf8_lossy(&all[seen..]).contains(printed)
        {
            stdin.write_all(answer.as_bytes()).expect("it reads");
            seen = all.len();
            next = typed.next();
        }
    }
    if child.wait().expect("it ends").code() == Some(127) {
        skip(Lacks::System, "there is no `script`, which makes terminals");
        return None;
    }
    Some(String::from_utf8_lossy(&all).into_owned())
}

#[test]
#[cfg(target_os = "linux")]
fn without_a_text_a_terminal_gets_a_conversation() {
    let Some(text) = on_a_terminal("run -t 1 -n 4", &[("> ", "1+1=\r"), ("> ", "/exit\r")]) else {
        return;
    };
    assert!(text.contains("/help lists the commands"), "{text:?}");
    assert!(text.contains("\n2"), "{text:?}");
    // an output format for programs opens no conversation
    let text = on_a_terminal("run --json", &[]).expect("there is one");
    assert!(text.contains("no text: expected -p TEXT"), "{text:?}");
}

#[test]
#[cfg(target_os = "linux")]
fn figures_begin_a_line_on_a_terminal() {
    for arguments in ["run -p '1+1=' -n 3", "run -p '1+1=' -n 0 --echo"] {
        let Some(text) = on_a_terminal(arguments, &[]) else {
            return;
        };
        assert!(text.contains("\nprompt 4 tokens"), "{arguments}: {text:?}");
    }
}
