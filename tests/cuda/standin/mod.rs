//! Models through the code that calls the real driver, on a stand-in for the driver: the tests of
//! this folder again, and failures that only a driver can cause.

mod failures;
mod fit;
mod layers;
mod machines;

use std::path::{Path, PathBuf};
use std::process::Command;

use octavo_fixtures::some_of;
use octavo_kernels::KvType;
use octavo_kernels::cuda::Gpu;

use super::machine::scratch_dir;
use super::on_standin::{Driver, run};
use super::{Sequences, limits, prepare, small, text};
use octavo_engine::backend::Phase;

/// Returns a stand-in, if the compilers that it needs are there.
fn driver() -> Option<Driver> {
    Driver::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Returns a command for the program, on the stand-in.
fn octavo(driver: &Driver, settings: &str) -> Command {
    driver.command(Path::new(env!("CARGO_BIN_EXE_octavo")), settings)
}

/// Opens a GPU, with the compiled kernels of other tests.
fn gpu(ordinal: usize) -> Gpu {
    Gpu::open(ordinal, Some(cache())).expect("a stand-in")
}

fn cache() -> octavo_kernels::cuda::Cache {
    let dir: PathBuf = scratch_dir(env!("CARGO_TARGET_TMPDIR")).join("cubins");
    octavo_kernels::cuda::Cache::new(dir)
}

/// Goldens, devices that share a model, captures, pages, neighbours: whenever the work runs.
#[test]
fn models_run_through_the_driver() {
    let Some(driver) = driver() else { return };
    let runs = [
        (
            "late",
            &["cuda::goldens::the_committed", "cuda::engine"][..],
        ),
        (
            "random:3",
            &[
                "cuda::steps",
                "cuda::two_devices",
                "cuda::experts::launches",
            ],
        ),
    ];
    std::thread::scope(|scope| {
        for (execute, tests) in runs {
            let driver = &driver;
            scope.spawn(move || {
                let arguments = [tests, &["--test-threads", "1"]].concat();
                let ended = driver.tests(&arguments, &format!("execute={execute}"));
                let text = ended.text(&tests.join(", "));
                assert!(text.contains(" 0 failed; 0 ignored"), "{text}");
                let passed = text.matches(" ... ok").count();
                assert!(passed >= 3, "{text}");
                println!("{}: {passed} tests, work runs {execute}", tests.join(", "));
            });
        }
    });
}

/// Tokens of the long generation.
const TOKENS: usize = 1000;

#[test]
fn a_thousand_tokens_are_the_same_captured_and_not() {
    let Some(driver) = driver() else { return };
    let ended = driver.inside("cuda::standin::long_generation", "execute=late");
    let text = ended.text("a long generation");
    assert!(text.contains("1000 tokens, all alike"), "{text}");
}

#[test]
#[ignore = "runs on the stand-in"]
fn long_generation() {
    let model = small("llama");
    let limits = || limits(1, 1, TOKENS);
    let mut plain = prepare(gpu(0), &model, KvType::F16, limits(), false);
    let mut captured = prepare(gpu(0), &model, KvType::F16, limits(), true);
    let (mut one, mut other) = (Sequences::new(1, TOKENS), Sequences::new(1, TOKENS));
    for (i, token) in text(TOKENS).into_iter().enumerate() {
        let expected = one.run(&mut plain, Phase::Decode, &[&[token]]);
        let got = other.run(&mut captured, Phase::Decode, &[&[token]]);
        assert!(got == expected, "token {i}");
    }
    println!("{TOKENS} tokens, all alike");
}

/// Ranks with GPUs of their own gather through the host, or by NCCL.
#[test]
fn ranks_run_through_the_driver() {
    let Some(driver) = driver() else { return };
    let orders = ["late", "random:11"];
    for execute in some_of(orders, 1, 2) {
        let tests = ["cuda::ranks::ranks_with_devices", "--test-threads", "1"];
        let ended = driver.tests(&tests, &format!("devices=4 execute={execute}"));
        let text = ended.text("ranks");
        assert!(text.contains("5 passed"), "{text}");
    }
}

/// Two GPUs of one process, each with its own context and thread, are independent.
#[test]
fn two_gpus_do_not_meet() {
    let Some(driver) = driver() else { return };
    let ended = driver.inside("cuda::standin::on_two_gpus", "devices=2 execute=random:5");
    let text = ended.text("two GPUs");
    assert!(text.contains("both alike"), "{text}");
}

#[test]
#[ignore = "runs on the stand-in"]
fn on_two_gpus() {
    let model = small("qwen3");
    let generate = |gpu: Gpu| {
        let mut cuda = prepare(gpu, &model, KvType::F16, limits(9, 1, 32), true);
        let mut sequence = Sequences::new(1, 32);
        let mut all = sequence.run(&mut cuda, Phase::Prefill, &[&text(9)]);
        for token in text(12) {
            all.extend(sequence.run(&mut cuda, Phase::Decode, &[&[token]]));
        }
        all
    };
    let (first, second) = (gpu(0), gpu(1));
    let (first, second) = std::thread::scope(|scope| {
        let other = scope.spawn(|| generate(second));
        (generate(first), other.join().expect("it runs"))
    });
    assert!(first == second);
    println!("both alike");
}
