//! Drivers, GPUs, compilers and folders as users have them.

use std::fs;
use std::path::PathBuf;
use std::process::Command;

use octavo_engine::{DeviceChoice, Engine, EngineOptions, ModelSource};

use super::super::on_standin::nvrtc;
use super::{Driver, driver, octavo, run};

/// Returns the lines of `inspect --devices` about GPUs.
fn listed(command: &mut Command) -> Vec<String> {
    let text = run(command.args(["inspect", "--devices"])).text("inspect");
    let lines = text.lines().filter(|line| line.starts_with("cuda"));
    lines.map(str::to_owned).collect()
}

/// Returns the built-in model's output, of enough tokens for captures.
fn answer(command: &mut Command) -> String {
    let arguments = ["run", "-p", "1+1=", "-n", "8", "--ignore-eos"];
    let text = run(command.args(arguments).args(["--device", "cuda"])).text("run");
    let (text, _) = text
        .split_once("prompt 4 tokens")
        .expect("how long it took");
    let lines = text.lines().filter(|line| !line.starts_with("octavo: "));
    lines.collect::<Vec<_>>().join("\n")
}

/// Every generation of GPUs, with the oldest and the newest driver that can run the compiler's
/// output.
#[test]
fn gpus_are_used_with_every_driver_and_compiler_that_fit() {
    let fits = "runs the kernels' self-test";
    let cases = [
        (
            "12.9",
            12020,
            "7.5",
            "compute capability 7.5: expected 8.0 or newer",
        ),
        ("12.9", 12020, "8.0", fits),
        ("12.9", 12080, "9.0", fits),
        ("12.9", 13000, "12.0", fits),
        ("12.9", 13010, "11.0", "12.9 does not compile for sm_110)"),
        (
            "13.0",
            12090,
            "9.0",
            "of version 12 to 12 that compiles for sm_90 was not found (",
        ),
        ("13.0", 13000, "8.7", fits),
        ("13.0", 13010, "10.0", fits),
        ("13.0", 13020, "11.0", fits),
    ];
    for (compiler, version, capability, says) in cases {
        let Some(driver) = Driver::with(env!("CARGO_TARGET_TMPDIR"), compiler) else {
            return;
        };
        let settings = format!("driver={version} capability={capability}");
        let lines = listed(&mut octavo(&driver, &settings));
        assert!(
            lines.len() == 1 && lines[0].contains(says),
            "NVRTC {compiler}, {settings}: expected '{says}', got {lines:?}"
        );
    }
}

#[test]
fn a_compiler_that_fits_is_found_behind_one_that_does_not() {
    let (Some(driver), Some(old), Some(new)) = (driver(), nvrtc("12.9"), nvrtc("13.0")) else {
        return;
    };
    for (settings, first, second) in [
        ("driver=12040", &new, &old),
        ("driver=13000 capability=11.0", &old, &new),
    ] {
        let mut command = octavo(&driver, settings);
        let lines = listed(command.env("CUDA_HOME", first).env("CUDA_PATH", second));
        assert!(lines[0].ends_with("self-test"), "{settings}: {lines:?}");
    }
    let lines = listed(octavo(&driver, "").env_remove("CUDA_HOME"));
    assert!(
        lines[0].ends_with("of version 12 to 13 that compiles for sm_90 was not found"),
        "{lines:?}"
    );
}

#[test]
fn a_gpu_that_does_not_answer_hides_no_other() {
    let Some(driver) = driver() else { return };
    let lines = listed(&mut octavo(&driver, "devices=2 broken=1,0"));
    assert!(
        lines[0].ends_with("GPU 0: cuDeviceGet: invalid device ordinal"),
        "{lines:?}"
    );
    assert!(lines[1].ends_with("self-test"), "{lines:?}");
}

#[test]
fn a_stub_of_the_driver_is_called_one() {
    let Some(driver) = driver() else { return };
    let lines = listed(&mut octavo(&driver, "fail=cuInit:34"));
    let says = "cuInit: CUDA driver is a stub library: the loader found libcuda.so of a toolkit";
    assert!(lines[0].contains(says), "{lines:?}");
}

#[test]
fn a_gpu_that_computes_wrong_is_not_used() {
    let Some(driver) = driver() else { return };
    let lines = listed(&mut octavo(&driver, "kernel_idles=1"));
    let says = "GPU 0 (a stand-in) failed its self-test";
    assert!(lines[0].ends_with(says), "{lines:?}");
}

#[test]
fn a_gpu_that_is_not_there_is_refused_by_number() {
    let Some(driver) = driver() else { return };
    let mut command = octavo(&driver, "devices=2");
    command.args(["run", "-p", "1+1=", "-n", "1", "--gpu", "2"]);
    let ended = run(command.args(["--device", "cuda"]));
    let says = "GPU 2: expected a number below 2";
    assert!(!ended.ok && ended.text.contains(says), "{}", ended.text);
}

/// Without a cache folder of the user, everything is compiled at every start.
#[test]
fn code_that_nobody_keeps_is_compiled() {
    let Some(driver) = driver() else { return };
    let mut command = octavo(&driver, "");
    let lines = listed(command.env_remove("XDG_CACHE_HOME").env_remove("HOME"));
    assert!(lines[0].ends_with("self-test"), "{lines:?}");
}

/// Memory used by the file cache does not count as free on such a GPU, but can be allocated.
#[test]
fn memory_that_files_fill_is_free_where_a_gpu_has_no_other() {
    let Some(driver) = driver() else { return };
    let run_with = |settings: &str| {
        let mut command = octavo(&driver, settings);
        run(command.args(["run", "-p", "1+1=", "-n", "4", "--device", "cuda"]))
    };
    let own = run_with("free=10485760");
    assert!(
        !own.ok && own.text.contains(" and 0 MiB are free"),
        "{}",
        own.text
    );
    let shared = run_with("free=10485760 integrated=1").text("an integrated GPU");
    assert!(shared.contains('2'), "{shared}");
}

/// Page-locked memory and captures only make things faster, so they may fail.
#[test]
fn what_is_only_faster_may_fail() {
    let Some(driver) = driver() else { return };
    let answered = answer(&mut octavo(&driver, ""));
    for settings in [
        "pinned=0",
        "fail=cuStreamBeginCapture:900",
        "fail=cuStreamEndCapture:901",
        "fail=cuGraphInstantiate:2",
        "fail=cuGraphUpload:2",
    ] {
        let got = answer(&mut octavo(&driver, settings));
        assert_eq!(got, answered, "{settings}");
    }
}

#[test]
fn folders_of_code_may_be_shared_damaged_or_closed() {
    let Some(driver) = driver() else { return };
    let dir = tempfile::TempDir::new().expect("a folder");
    let with = |home: &std::path::Path| {
        let mut command = octavo(&driver, "");
        command.env("XDG_CACHE_HOME", home);
        command
    };
    let works = |command: &mut Command, what: &str| {
        let lines = listed(command);
        assert!(lines[0].ends_with("self-test"), "{what}: {lines:?}");
    };
    // both compile, and one of them finishes first
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| works(&mut with(dir.path()), "two at a time"));
        }
    });
    let kernels = dir.path().join("octavo/kernels");
    let files = || -> Vec<PathBuf> {
        let entries = fs::read_dir(&kernels).expect("a folder");
        entries.map(|entry| entry.expect("a file").path()).collect()
    };
    let all = files();
    assert_eq!(all.len(), 1, "one module, and nothing beside it: {all:?}");
    let right = fs::read(&all[0]).expect("a file");
    for damaged in [
        &right[..right.len() / 2],
        &[][..],
        &[&right[..], b"x"].concat(),
    ] {
        fs::write(&all[0], damaged).expect("it is written");
        works(&mut with(dir.path()), "damaged");
        assert!(fs::read(&all[0]).expect("a file") == right, "it is mended");
    }
    works(
        &mut with("/proc/nowhere".as_ref()),
        "a folder that cannot be",
    );
    // like a full disk: a file ends where there is no more room
    let full = tempfile::TempDir::new().expect("a folder");
    let script = "ulimit -f 8; trap '' XFSZ; exec \"$0\" inspect --devices";
    let mut shell = driver.command("/bin/sh".as_ref(), "");
    shell.args(["-c", script, env!("CARGO_BIN_EXE_octavo")]);
    let text = run(shell.env("XDG_CACHE_HOME", full.path())).text("a full disk");
    assert!(text.contains("self-test"), "{text}");
    let left = full.path().join("octavo/kernels");
    let left = fs::read_dir(left).expect("a folder").count();
    assert_eq!(left, 0, "no part of a file stays");
}

/// An unusable GPU leaves the CPU's default batch size, a usable one has its own.
#[test]
fn batches_are_those_of_what_computes() {
    let Some(driver) = driver() else { return };
    for (settings, expected) in [
        ("capability=7.5", "cpu 512"),
        ("free=10485760", "cpu 512"),
        ("", "cuda 2048"),
    ] {
        let ended = driver.inside("cuda::standin::machines::batch_of_auto", settings);
        let text = ended.text(settings);
        assert!(text.contains(expected), "{settings}: {text}");
    }
}

#[test]
#[ignore = "runs on the stand-in"]
fn batch_of_auto() {
    let options = EngineOptions {
        device: DeviceChoice::Auto {
            gpu: 0,
            asked: true,
        },
        ctx: Some(4096),
        threads: Some(2),
        ..EngineOptions::default()
    };
    let engine = Engine::load(&ModelSource::Demo, &options, &mut |_| {}).expect("it loads");
    let what = engine.describe();
    let device = what.split(',').next().unwrap_or_default();
    println!("{device} {}", engine.batch());
}
