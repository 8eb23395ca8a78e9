//! `--device`, `--gpu` and `inspect --devices`, with and without a GPU.

use octavo_fixtures::{Lacks, shared, skip};

use super::{bad, good, json, octavo, stderr};

/// Returns the reason that there is no GPU, as `inspect --devices` gives it; `None` if there is
/// one.
fn missing() -> Option<String> {
    let text = good(&["inspect", "--devices"]);
    let mut lines = text.lines();
    assert!(
        lines.next().is_some_and(|line| line.starts_with("cpu    ")
            && line.contains(" thread")
            && line.ends_with(')')),
        "{text}"
    );
    let memory = lines.next().expect("a line about memory");
    assert!(
        memory.starts_with("memory weights get ")
            && memory.contains(" pages (the system's setting"),
        "{text}"
    );
    let why = lines
        .next()
        .expect("a line about GPUs")
        .strip_prefix("cuda   none: ")
        .map(str::to_owned);
    assert!(why.is_none() || lines.next().is_none(), "{text}");
    why
}

#[test]
fn devices_are_listed_for_people_and_programs() {
    let object = json(&["inspect", "--devices", "--json"]);
    assert!(
        object["cpu"]["threads"].as_u64().is_some_and(|n| n > 0),
        "{object}"
    );
    let listed = object["gpus"].as_array().expect("a list").len();
    match missing() {
        Some(why) => assert_eq!((listed, object["cuda"]["why"].as_str()), (0, Some(&*why))),
        None => assert!(listed > 0, "{object}"),
    }
}

#[test]
fn a_gpu_that_is_demanded_and_missing_is_one_line() {
    let Some(why) = missing() else {
        return skip(Lacks::Device, "there is a GPU");
    };
    for args in [
        &["run", "-p", "1+1=", "--device", "cuda"][..],
        &["bench", "--device", "cuda"],
    ] {
        assert_eq!(bad(args, 1), format!("octavo: error: CUDA: {why}"));
    }
    assert_eq!(
        bad(&["diff", "-p", "1", "--b-device", "cuda"], 2),
        format!("octavo: error: CUDA: {why}")
    );
    if let Some(folder) = shared("vision") {
        let [tower, image] = ["vl-a-mmproj-F16.gguf", "images/wide.png"]
            .map(|name| folder.join(name).display().to_string());
        let out = std::env::temp_dir().join("octavo-tower-without-a-gpu.safetensors");
        let out = out.display().to_string();
        let line = format!("octavo: error: CUDA: {why}");
        let dump = ["inspect", &tower, "--image", &image, "--dump", &out];
        assert_eq!(bad(&[&dump[..], &["--device", "cuda"]].concat(), 1), line);
        let diff = ["diff", &tower, "--image", &image, "--b-device", "cuda"];
        assert_eq!(bad(&diff, 2), line);
    }
    // with an automatic choice the reason is printed only on request, not each time
    let line = format!("octavo: on the CPU: {why}");
    let driver = !why.contains("libcuda");
    for (args, told) in [
        (&["--device", "auto"][..], true),
        (&["--gpu-layers", "1"], true),
        (&["-ncmoe", "1"], true),
        (&["-ot", "exps=CPU"], true),
        (&[], driver),
    ] {
        let output = octavo(&[&["run", "-p", "1+1=", "-n", "1"], args].concat())
            .output()
            .expect("the program runs");
        let said = stderr(&output);
        assert!(
            output.status.success() && said.contains(&line) == told,
            "{args:?}: {said}"
        );
    }
}

#[test]
fn options_that_would_do_nothing_are_refused() {
    let line = bad(&["run", "-p", "x", "--device", "cpu", "--gpu", "1"], 2);
    assert_eq!(
        line,
        "octavo: error: --gpu 1 has no effect: expected --device auto or cuda with it"
    );
    let line = bad(
        &["run", "-p", "x", "--device", "cuda", "--isa", "scalar"],
        2,
    );
    assert_eq!(
        line,
        "octavo: error: --isa scalar has no effect: expected --device auto or cpu, or \
         --gpu-layers or --n-cpu-moe, with it"
    );
    let line = bad(&["run", "-p", "x", "--device", "cpu", "-ngl", "3"], 2);
    assert_eq!(
        line,
        "octavo: error: --gpu-layers 3 has no effect: expected --device auto or cuda with it"
    );
    let line = bad(&["run", "-p", "x", "-ngl", "some"], 2);
    assert!(line.contains("--gpu-layers <N>"), "{line}");
    let line = bad(&["inspect", "--device", "cuda"], 2);
    assert!(
        line.contains("--device cuda: a file is described as the CPU runs it"),
        "{line}"
    );
}

/// Options that keep experts on the CPU, in llama.cpp's spellings, are for models on a GPU.
#[test]
fn experts_stay_on_the_cpu_where_a_gpu_has_the_rest() {
    let pattern = r"blk\.(\d{1,2})\.ffn_.*_exps=CPU";
    let named = format!("--override-tensor {pattern}");
    for (given, named) in [
        (&["-ncmoe", "3"][..], "--n-cpu-moe 3"),
        (&["--n-cpu-moe", "3"], "--n-cpu-moe 3"),
        (&["-cmoe"], "--cpu-moe"),
        (&["--cpu-moe"], "--cpu-moe"),
        (&["-ot", pattern], &named),
        (&["--override-tensor", pattern], &named),
    ] {
        let on_cpu = ["run", "-p", "x", "--device", "cpu"];
        let line = bad(&[&on_cpu[..], given].concat(), 2);
        let expected = "has no effect: expected --device auto or cuda with it";
        assert_eq!(line, format!("octavo: error: {named} {expected}"));
        // without a GPU all is on the CPU
        let text = good(&[&["run", "-p", "1+1=", "-n", "1", "-ngl", "0"], given].concat());
        assert!(text.contains('2'), "{given:?}: {text}");
    }
    for (value, expected) in [
        (
            "exps=CUDA0",
            "expected REGEX=CPU, got exps=CUDA0: tensors can be kept on the CPU, and",
        ),
        ("exps", "expected REGEX=CPU, got exps"),
        ("a=CPU,exps", "expected REGEX=CPU, got a=CPU,exps"),
        ("ex(ps=CPU", "regex parse error"),
    ] {
        let line = bad(&["run", "-p", "x", "-ot", value], 2);
        assert!(line.contains(expected), "{value}: {line}");
    }
    let line = bad(&["run", "-p", "x", "-cmoe", "-ncmoe", "3"], 2);
    assert!(line.contains("cannot be used with"), "{line}");
    for command in [
        "run",
        "chat",
        "serve",
        "bench",
        "diff",
        "logits",
        "perplexity",
    ] {
        let help = good(&[command, "--help"]);
        let all = [
            "--n-cpu-moe <N>",
            "--cpu-moe",
            "--override-tensor <REGEX=CPU>",
        ];
        assert!(
            all.iter().all(|option| help.contains(option)),
            "{command}: {help}"
        );
    }
}

/// llama.cpp's spellings of --gpu-layers; with 0 layers no GPU is searched for.
#[test]
fn no_layers_for_a_gpu_are_the_cpu() {
    for spelling in ["-ngl", "--gpu-layers", "--n-gpu-layers"] {
        let text = good(&[
            "run", "-p", "1+1=", "-n", "1", "--device", "cuda", spelling, "0",
        ]);
        assert!(text.contains('2'), "{spelling}: {text}");
    }
    for command in ["run", "chat", "bench", "diff", "logits", "perplexity"] {
        let help = good(&[command, "--help"]);
        assert!(
            help.contains("--gpu-layers <N>") && help.contains("-ngl N"),
            "{command}: {help}"
        );
    }
}
