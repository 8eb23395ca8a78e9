//! Errors of options are reported before a model is opened, with the option's name.

use crate::cli::{bad, good, octavo, stderr};

/// Path that does not exist.
const NOTHING: &str = "/nothing/there";

/// Returns the options with a file as their value, as the help of a command lists them.
fn files(command: &str) -> Vec<String> {
    let help = good(&[command, "--help"]);
    let option = |line: &str| {
        let (name, value) = line.trim_start().rsplit_once(" <")?;
        let name = name.split(", ").last()?;
        let is_file = value.contains("FILE") || value.starts_with("MODEL");
        (is_file && name.starts_with("--")).then(|| name.to_owned())
    };
    help.lines().filter_map(option).collect()
}

/// Commands with a model that does not exist: other missing files are reported first.
const COMMANDS: [&str; 9] = [
    "run no-model.gguf -p x",
    "chat no-model.gguf --no-history",
    "serve no-model.gguf --port 0",
    "logits no-model.gguf -p x",
    "embed no-model.gguf -p x",
    "perplexity no-model.gguf",
    "imatrix no-model.gguf",
    "quantize no-model.gguf no-output.gguf Q8_0",
    "quant-report no-model.gguf -f /etc/hosts",
];

/// Options of files that are written, or of the model itself.
const OTHERS: [&str; 9] = [
    "--model",
    "--log-file",
    "--html",
    "--out",
    "--output",
    "--dump",
    "--kl-divergence-base",
    "--recipe",
    "--sensitivities",
];

#[test]
fn files_of_options_are_looked_for_before_the_model() {
    let mut n = 0;
    for line in COMMANDS {
        let common: Vec<&str> = line.split(' ').collect();
        let own = files(common[0]);
        for option in own.iter().filter(|own| !OTHERS.contains(&own.as_str())) {
            let mut args = common.clone();
            let beside: &[&str] = match option.as_str() {
                "--image" => &["--mmproj", "/etc/hosts"],
                "--system-file" | "--chat-template" if common[0] == "run" => &["--chat"],
                "--against" | "--lora" | "--control-vector" if common[0] == "perplexity" => {
                    &["-f", "/etc/hosts"]
                }
                "--also" if common[0] == "perplexity" => {
                    &["-f", "/etc/hosts", "--against", "/etc/hosts"]
                }
                "--file" if common[0] == "quantize" => {
                    args.retain(|arg| *arg != "Q8_0");
                    &["awq"]
                }
                // the one model would conflict with several
                "--models" => {
                    args.remove(1);
                    &[]
                }
                "--ssl-cert-file" => &["--ssl-key-file", "/etc/hosts"],
                "--ssl-key-file" => &["--ssl-cert-file", NOTHING],
                // another text would conflict with it
                "--file" => {
                    args.truncate(2);
                    &[]
                }
                _ => &[],
            };
            args.extend(beside);
            args.extend([option.as_str(), NOTHING]);
            if common[0] == "imatrix" {
                args.extend(["--output", "/dev/null"]);
            }
            let output = octavo(&args).output().expect("runs");
            let said = stderr(&output);
            assert!(!output.status.success(), "{args:?}");
            assert!(said.contains(NOTHING), "{args:?}: {said}");
            assert!(!said.contains("no-model"), "{args:?}: {said}");
            n += 1;
        }
    }
    assert!(n > 20, "{n} options");
}

#[test]
fn values_are_refused_before_the_model_is_opened() {
    for (line, says) in [
        ("serve --cors-origin example.org", "--cors-origin"),
        (
            "serve --cors-origin https://example.org/page",
            "--cors-origin",
        ),
        ("serve --allow-host http://example.org", "--allow-host"),
        ("serve --allow-host example.org:80", "--allow-host"),
        (
            "serve --host 256.0.0.1 --port 1",
            "cannot listen on 256.0.0.1:1",
        ),
        (
            "chat --image-min-tokens 9 --mmproj /etc/hosts --image-max-tokens 3",
            "--image-min-tokens 9",
        ),
        ("run --stop= -p x", "--stop"),
        ("run --logit-bias 1 -p x", "--logit-bias"),
    ] {
        let mut args: Vec<&str> = line.split(' ').collect();
        args.insert(1, "no-model.gguf");
        let output = octavo(&args).output().expect("runs");
        let said = stderr(&output);
        assert!(
            !output.status.success() && said.contains(says),
            "{line}: {said}"
        );
        assert!(!said.contains("no-model"), "{line}: {said}");
    }
}

#[test]
fn options_without_an_effect_are_refused_by_their_names() {
    for (line, says) in [
        (
            "run -p x --device cpu --no-cuda-graph",
            "--no-cuda-graph has no effect",
        ),
        (
            "run -p x --device cpu --no-paged-check",
            "--no-paged-check has no effect",
        ),
        ("run -p x --beams 2 --temp 0.5", "--beams"),
        ("run -p x --beams 2 --lookup on", "--lookup"),
        ("run -p x --system y", "--system has no effect"),
        (
            "run -p x --logprobs 2",
            "--logprobs: expected --json with it",
        ),
        (
            "run -p x --chat-template chatml",
            "--chat-template: expected --chat with it",
        ),
        (
            "run -p x --image y",
            "--image: expected --mmproj <FILE> with it",
        ),
        (
            "logits -p x --force",
            "--force: expected --dump <OUT.gguf> with it",
        ),
        (
            "diff -p x --a-exec oracle --tol-kl 1",
            "--tol-kl has no effect",
        ),
        (
            "diff -p x --a-exec oracle --tol-nmse 1",
            "--tol-nmse has no effect",
        ),
        (
            "diff -p x --a-exec oracle --against exact",
            "--against has no effect",
        ),
        (
            "quantize a b Q8_0 --include-weights x",
            "--include-weights has no effect",
        ),
        ("run -p x -t -5", "--threads"),
        ("run -p x --log-file", "--log-file"),
    ] {
        let error = bad(&line.split(' ').collect::<Vec<_>>(), 2);
        assert!(error.contains(says), "{line}: {error}");
    }
}
