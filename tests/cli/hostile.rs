//! Files damaged at seeded random places: the program ends soon, with exit code 0 or with one line,
//! and never by a panic or a signal.

use std::time::{Duration, Instant};

use super::{folder, octavo, stderr};
use octavo_fixtures::breaking::{Rng, damage};

/// Truncates the file, flips a bit or writes an extreme number: among the first bytes, where the
/// sizes are, or anywhere.
fn mutate(rng: &mut Rng, file: &[u8]) -> Vec<u8> {
    let mut bytes = file.to_vec();
    if rng.below(8) == 0 {
        bytes.truncate(rng.below(file.len()));
        return bytes;
    }
    let reach = if rng.below(2) == 0 {
        1500
    } else {
        file.len() - 8
    };
    for _ in 0..[1, 1, 2, 8][rng.below(4)] {
        let at = rng.below(reach);
        damage(rng, &mut bytes, at);
    }
    bytes
}

#[test]
fn broken_files_give_one_line_and_no_crash() {
    let dir = folder();
    let path = dir.path().join("broken.gguf");
    let file = path.to_str().expect("UTF-8");
    let models = [
        "src/engine/demo/tiny-qwen3-Q4_K_M.gguf",
        "reference/models/rnd-llama-Q4_K_M.gguf",
    ];
    let commands = [
        &["inspect", file][..],
        &["inspect", file, "--json", "--tensors"],
        &["tokenize", file, "-p", "hello world"],
        &["logits", file, "-p", "hello", "--taps", "l_out"],
        &["run", file, "-p", "hi there", "-n", "4", "--no-mmap"],
        &[
            "run",
            file,
            "--chat",
            "-p",
            "hi there",
            "-n",
            "4",
            "--no-repack",
        ],
    ];
    let mut rng = Rng(2);
    let (mut refused, mut slowest) = (0, Duration::ZERO);
    for model in models {
        let sound = std::fs::read(octavo_fixtures::workspace_root().join(model))
            .expect("a committed model");
        for case in 0..250 {
            std::fs::write(&path, mutate(&mut rng, &sound)).expect("written");
            let args = commands[rng.below(commands.len())];
            let start = Instant::now();
            let output = octavo(args)
                .timeout(Duration::from_secs(60))
                .output()
                .expect("it runs and ends");
            slowest = slowest.max(start.elapsed());
            let text = stderr(&output);
            let errors: Vec<&str> = text.lines().filter(|line| line.contains("error")).collect();
            let what = || {
                format!(
                    "{model}, case {case}: {args:?}: {:?}: {text}",
                    output.status
                )
            };
            match output.status.code() {
                Some(0) => assert!(errors.is_empty(), "{}", what()),
                Some(1) => {
                    refused += 1;
                    assert!(
                        errors.len() == 1 && errors[0].starts_with("octavo: error: "),
                        "{}",
                        what()
                    );
                    assert!(errors[0].chars().count() < 1000, "{}", what());
                }
                _ => panic!("{}", what()),
            }
        }
    }
    println!("{refused} of 500 refused; slowest {slowest:?}");
    assert!(
        (100..500).contains(&refused),
        "{refused} refused: the mutations are too mild or too wild"
    );
}
