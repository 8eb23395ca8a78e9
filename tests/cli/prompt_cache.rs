//! `--prompt-cache` of a server that is stopped, restarted and killed.

use std::io::Read;
use std::path::Path;
use std::time::{Duration, Instant};

use serde_json::Value;

use super::serve::{Serving, serve};
use super::{octavo, stderr};

/// Texts that begin alike in pairs, long enough for several files.
fn prompts() -> Vec<String> {
    let text = |n: usize| {
        let line = |i: usize| format!("{}+{}={} ", i * (n / 2 + 3) % 10, i % 7, (i + n / 2) % 10);
        let lines: String = (0..90).map(line).collect();
        format!("{lines} {n}+1=")
    };
    (0..6).map(text).collect()
}

fn start(dir: &Path, more: &[&str]) -> Serving {
    let dir = dir.to_str().expect("a name in Unicode");
    let args = ["-c", "1024", "--parallel", "2", "--prompt-cache", dir];
    serve(&[&args, more].concat())
}

/// Returns the text and the number of cached tokens of an answer; `None` if it is not whole.
fn ask(serving: &Serving, prompt: &str) -> Option<(String, u64)> {
    let body = format!(r#"{{"prompt": "{prompt}", "max_tokens": 6, "temperature": 0}}"#);
    let mut answer = String::new();
    let mut stream = serving.try_send("/v1/completions", Some(&body)).ok()?;
    stream.read_to_string(&mut answer).ok()?;
    let body = answer.split("\r\n\r\n").nth(1)?;
    let answer: Value = serde_json::from_str(body).ok()?;
    let text = answer["choices"][0]["text"].as_str()?.to_owned();
    let cached = &answer["usage"]["prompt_tokens_details"]["cached_tokens"];
    Some((text, cached.as_u64().unwrap_or(0)))
}

fn ask_all(serving: &Serving) -> Vec<(String, u64)> {
    let answers = prompts().into_iter().map(|prompt| ask(serving, &prompt));
    answers.map(|answer| answer.expect("an answer")).collect()
}

fn has_half_a_file(dir: &Path) -> bool {
    let names = std::fs::read_dir(dir).expect("a folder");
    let mut names = names.flatten().map(|entry| entry.file_name());
    names.any(|name| name.to_string_lossy().ends_with(".tmp"))
}

/// Kills servers at random moments, half of them while a file is being written. `OCTAVO_KILLS` says
/// how many.
#[test]
fn a_server_killed_at_any_moment_leaves_no_wrong_text() {
    let kills = std::env::var("OCTAVO_KILLS").map_or(10, |n| n.parse().expect("a number"));
    let plain = serve(&["-c", "1024", "--parallel", "2"]);
    let expected: Vec<String> = ask_all(&plain).into_iter().map(|(text, _)| text).collect();
    plain.kill();
    let dir = tempfile::tempdir().expect("a folder");
    let began = Instant::now();
    let whole = start(dir.path(), &[]);
    let first = ask_all(&whole);
    let round = began.elapsed();
    whole.kill();
    assert!(
        first
            .iter()
            .zip(&expected)
            .all(|((text, _), expected)| text == expected)
    );
    let (mut seed, mut halves) = (1u64, 0);
    for n in 0..kills {
        seed = seed
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1_442_695_040_888_963_407);
        let part = (seed >> 40) as f64 / (1u64 << 24) as f64;
        // a folder that keeps little has to be written again and again
        let serving = start(dir.path(), &["--prompt-cache-size", "3M"]);
        std::thread::scope(|scope| {
            let asking = scope.spawn(|| {
                for (prompt, expected) in prompts().iter().zip(&expected) {
                    match ask(&serving, prompt) {
                        Some((text, _)) => assert_eq!(text, *expected, "after {n} kills"),
                        None => return,
                    }
                }
            });
            let began = Instant::now();
            if n % 2 == 0 {
                std::thread::sleep(round.mul_f64(part));
            } else {
                while !has_half_a_file(dir.path()) && !asking.is_finished() {
                    assert!(
                        began.elapsed() < Duration::from_secs(60),
                        "it does not answer"
                    );
                }
                std::thread::sleep(Duration::from_micros((part * 300.0) as u64));
            }
            serving.kill_now();
            asking.join().expect("no wrong text");
        });
        halves += u32::from(has_half_a_file(dir.path()));
        serving.kill();
    }
    eprintln!("{kills} servers killed, {halves} of them left half a file");
    // what the last ones left is read or passed over, and then all of it is there
    for is_last in [false, true] {
        let serving = start(dir.path(), &[]);
        assert!(!has_half_a_file(dir.path()), "what was left is removed");
        for ((text, cached), expected) in ask_all(&serving).iter().zip(&expected) {
            assert_eq!(text, expected);
            assert!(!is_last || *cached > 100, "{cached} tokens cached");
        }
        serving.terminate();
        assert_eq!(serving.end().0, Some(0));
    }
}

#[test]
fn a_folder_that_cannot_be_used_is_refused_and_so_is_a_size_without_one() {
    let file = tempfile::NamedTempFile::new().expect("a file");
    let path = file.path().to_str().expect("a name in Unicode");
    let out = octavo(&["serve", "--port", "0", "--prompt-cache", path])
        .output()
        .expect("it runs");
    assert!(!out.status.success());
    assert!(
        stderr(&out).contains(&format!("prompt cache {path}: ")),
        "{}",
        stderr(&out)
    );
    let out = octavo(&["serve", "--port", "0", "--prompt-cache-size", "1G"])
        .output()
        .expect("it runs");
    assert!(
        !out.status.success() && stderr(&out).contains("--prompt-cache"),
        "{}",
        stderr(&out)
    );
}
