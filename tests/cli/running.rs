//! Tests of `octavo run`, `chat` and `logits`.

mod interactive;
mod long;

use std::io::{BufRead, BufReader, Read};
use std::process::{Command as Plain, Stdio};

use octavo_fixtures::{Lacks, skip};
use octavo_reference::results::Results;
use serde_json::Value;

use super::{bad, fails_unread, folder, good, json, octavo, stderr, stdout, variant};

fn ids(value: &Value) -> Vec<u64> {
    value
        .as_array()
        .expect("an array")
        .iter()
        .map(|id| id.as_u64().expect("an id"))
        .collect()
}

#[test]
fn one_plus_one_is_two_without_a_model() {
    let output = octavo(&["run", "-p", "1+1="]).output().expect("runs");
    assert!(output.status.success());
    assert!(stdout(&output).starts_with('2'), "{}", stdout(&output));
    let notes = stderr(&output);
    let lines: Vec<&str> = notes.lines().collect();
    assert_eq!(lines.len(), 2, "{notes}");
    assert!(lines[0].contains("built-in demo model"), "{notes}");
    for part in [
        "prompt 4 tokens",
        "tokens/s",
        "TTFT",
        "TPOT",
        "memory",
        "stop",
    ] {
        assert!(lines[1].contains(part), "{part} is not in {}", lines[1]);
    }
}

#[test]
fn json_has_the_documented_shape() {
    let object = json(&["run", "-p", "1+1=", "--json"]);
    let keys: Vec<&str> = object
        .as_object()
        .expect("an object")
        .keys()
        .map(String::as_str)
        .collect();
    assert_eq!(
        keys,
        [
            "version",
            "line",
            "choice",
            "text",
            "prompt_tokens",
            "tokens",
            "finish_reason",
            "metrics"
        ]
    );
    assert!(object["text"].as_str().expect("text").starts_with('2'));
    assert_eq!(object["finish_reason"], "stop");
    let tokenized = good(&["tokenize", "-p", "1+1=", "--ids"]);
    assert_eq!(format!("{:?}\n", ids(&object["prompt_tokens"])), tokenized);
    let metrics = &object["metrics"];
    assert_eq!(metrics["prompt_tokens"], 4);
    assert_eq!(metrics["generated_tokens"], ids(&object["tokens"]).len());
    for rate in [
        "prompt_tokens_per_second",
        "generation_tokens_per_second",
        "time_to_first_token",
    ] {
        assert!(
            metrics[rate].as_f64().is_some_and(|x| x > 0.0),
            "{rate}: {metrics}"
        );
    }
    if cfg!(target_os = "linux") {
        assert!(
            metrics["peak_memory_bytes"]
                .as_u64()
                .is_some_and(|b| b > 1 << 20),
            "{metrics}"
        );
    }
    let object = json(&["run", "-p", "1+1=", "--json", "-n", "1", "--logprobs", "3"]);
    assert_eq!(
        (object["text"].as_str(), object["finish_reason"].as_str()),
        (Some("2"), Some("length"))
    );
    let first = &object["logprobs"][0];
    assert_eq!(first["id"], object["tokens"][0]);
    assert_eq!(first["top"].as_array().map(Vec::len), Some(3));
    assert_eq!(
        (&first["top"][0]["piece"], &first["top"][0]["logprob"]),
        (&first["piece"], &first["logprob"])
    );
    assert!(
        first["logprob"]
            .as_f64()
            .is_some_and(|l| (-1.0..0.0).contains(&l)),
        "{first}"
    );
}

#[test]
fn echo_puts_the_prompt_first() {
    let plain = good(&["run", "-p", "1+1="]);
    assert_eq!(
        good(&["run", "-p", "1+1=", "--echo"]),
        format!("1+1={plain}")
    );
    let object = json(&["run", "-p", "1+1=", "--echo", "--json"]);
    assert_eq!(object["text"], format!("1+1={plain}"));
}

#[test]
fn the_most_tokens_and_stop_strings_are_kept() {
    assert_eq!(good(&["run", "-p", "1+1=", "-n", "0"]), "");
    assert_eq!(good(&["run", "-p", "1+1=", "-n", "1"]), "2");
    let object = json(&[
        "run",
        "-p",
        "The capital of France is",
        "--stop",
        "ari",
        "--json",
    ]);
    assert_eq!(object["finish_reason"], "stop");
    assert_eq!(
        object["text"].as_str().map(str::trim),
        Some("P"),
        "{object}"
    );
    let object = json(&["run", "-p", "1+1=", "-n", "9", "--ignore-eos", "--json"]);
    assert_eq!(
        (
            ids(&object["tokens"]).len(),
            object["finish_reason"].as_str()
        ),
        (9, Some("length"))
    );
    let object = json(&["run", "-p", "1+1=", "--stop-id", "20", "--json"]);
    assert_eq!(
        (object["text"].as_str(), ids(&object["tokens"])),
        (Some(""), vec![20])
    );
    // up to the end of the context: 4 prompt tokens and 28 more, of which the last needs no
    // position
    let object = json(&["run", "-p", "1+1=", "-c", "32", "--ignore-eos", "--json"]);
    assert_eq!(
        (
            ids(&object["tokens"]).len(),
            object["finish_reason"].as_str()
        ),
        (29, Some("length"))
    );
}

#[test]
fn a_seed_repeats_and_greedy_does_not_draw() {
    let run = |seed: &str| {
        good(&[
            "run", "-p", "The", "--temp", "2", "--top-k", "0", "--seed", seed, "-n", "12",
        ])
    };
    assert_eq!(run("1"), run("1"));
    assert!(
        (2..8).any(|seed| run(&seed.to_string()) != run("1")),
        "seven seeds with the same text"
    );
    let greedy = good(&["run", "-p", "1+1="]);
    assert_eq!(good(&["run", "-p", "1+1=", "--greedy"]), greedy);
    assert_eq!(good(&["run", "-p", "1+1=", "--temp", "0"]), greedy);
    assert_eq!(
        json(&["run", "-p", "1+1=", "--json"])["metrics"].get("seed"),
        None
    );
    assert_eq!(
        json(&["run", "-p", "1+1=", "--json", "--seed", "9"])["metrics"]["seed"],
        9
    );
    assert!(!good(&["run", "-p", "1+1=", "-n", "1", "--logit-bias", "20-inf"]).contains('2'));
}

#[test]
fn how_it_is_computed_changes_no_greedy_text() {
    let text = good(&["run", "-p", "The capital of France is"]);
    for extra in [
        &["-t", "1"][..],
        &["-t", "3"],
        &["-b", "1"],
        &["--no-mmap"],
        &["--no-repack"],
        &["-ctk", "f32", "-ctv", "f32"],
        &["--kv-type", "f32"],
        &["--isa", "scalar"],
    ] {
        let args = [&["run", "-p", "The capital of France is"][..], extra].concat();
        assert_eq!(good(&args), text, "{extra:?}");
    }
    let dir = folder();
    let file = variant(&dir, "copy.gguf", true, |_| {});
    let file = file.to_str().expect("UTF-8");
    assert_eq!(good(&["run", file, "-p", "The capital of France is"]), text);
    assert_eq!(
        good(&["run", "-m", file, "-p", "The capital of France is"]),
        text
    );
}

/// The files with the logits of every position are byte for byte equal.
#[test]
fn threads_and_batches_change_no_logit() {
    let dir = folder();
    let path = dir.path().join("out.gguf");
    let dump = |args: &[&str]| {
        let fixed = [
            "logits",
            "-p",
            "12+30=42\n1+1=2\nThe capital of France is Paris",
            "--no-special",
        ];
        good(&[&fixed[..], &["--dump", path.to_str().expect("UTF-8")], args].concat());
        std::fs::read(&path).expect("a dump")
    };
    for way in [
        &["--isa", "auto"][..],
        &["--isa", "scalar", "--kv-type", "f32"],
        &["--isa", "auto", "--no-repack"],
    ] {
        let expected = dump(&[way, &["-t", "1", "-b", "512"]].concat());
        for (threads, batch) in [
            ("1", "1"),
            ("1", "7"),
            ("2", "512"),
            ("2", "1"),
            ("3", "7"),
            ("8", "16"),
        ] {
            let got = dump(&[way, &["-t", threads, "-b", batch]].concat());
            assert!(got == expected, "{way:?} -t {threads} -b {batch}");
        }
        // with taps the computation stops after every op
        assert!(
            dump(&[way, &["--taps", "."]].concat()) == expected,
            "{way:?} with taps"
        );
    }
}

#[test]
fn chat_applies_the_template() {
    let object = json(&["run", "--chat", "-p", "Hi", "--json", "--echo", "-n", "1"]);
    let text = object["text"].as_str().expect("text");
    let prompt = "<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n";
    assert!(text.starts_with(prompt), "{text}");
    let by_hand = json(&["run", "-p", prompt, "--json", "-n", "1"]);
    assert_eq!(object["prompt_tokens"], by_hand["prompt_tokens"]);
    let with_system = json(&[
        "run", "--chat", "-sys", "-S", "-p", "Hi", "--json", "--echo", "-n", "1",
    ]);
    assert!(
        with_system["text"]
            .as_str()
            .expect("text")
            .starts_with("<|im_start|>system\n-S<|im_end|>\n")
    );
    assert!(bad(&["run", "--system", "x", "-p", "y"], 2).contains("--chat"));
    let dir = folder();
    let system = dir.path().join("system");
    std::fs::write(&system, "-S\n").expect("written");
    let system = system.to_str().expect("UTF-8");
    for name in ["--system-file", "-sysf"] {
        let args = [
            "run", "--chat", name, system, "-p", "Hi", "--json", "--echo", "-n", "1",
        ];
        assert_eq!(json(&args)["text"], with_system["text"]);
    }
    assert!(bad(&["run", "--system-file", system, "-p", "y"], 2).contains("--system-file"));
    assert!(bad(&["chat", "--system-file", "/nothing"], 1).contains("/nothing"));
    let bare = variant(&dir, "bare.gguf", true, |w| {
        w.remove("tokenizer.chat_template");
    });
    let bare = bare.to_str().expect("UTF-8");
    assert!(bad(&["run", bare, "--chat", "-p", "x"], 1).contains("tokenizer.chat_template"));
    assert!(bad(&["chat", bare], 1).contains("tokenizer.chat_template"));
    let broken = variant(&dir, "broken.gguf", true, |w| {
        w.set("tokenizer.chat_template", "{% for");
    });
    let broken = broken.to_str().expect("UTF-8");
    bad(&["run", broken, "--chat", "-p", "x"], 1);
}

#[test]
fn another_template_is_named_read_or_written_out() {
    let prompt = |more: &[&str]| {
        let usual = ["run", "--chat", "-p", "Hi", "--json", "--echo", "-n", "1"];
        let object = json(&[&usual, more].concat());
        object["text"].as_str().expect("text").to_owned()
    };
    let plain = "{% for m in messages %}[{{ m.content }}]{% endfor %}{{ enable_thinking }}{{ a }}";
    let dir = folder();
    let file = dir.path().join("plain.jinja");
    std::fs::write(&file, plain).expect("written");
    let file = file.to_str().expect("UTF-8");
    assert!(prompt(&["--chat-template", file]).starts_with("[Hi]True"));
    assert!(prompt(&["--chat-template", plain, "--reasoning", "off"]).starts_with("[Hi]False"));
    let kwargs = [
        "--chat-template",
        plain,
        "--chat-template-kwargs",
        "{\"a\": 7}",
    ];
    assert!(prompt(&kwargs).starts_with("[Hi]True7"));
    assert!(prompt(&["--chat-template", "zephyr"]).starts_with("<|user|>\nHi<|endoftext|>\n"));
    // the file's own names come first
    let named = variant(&dir, "named.gguf", true, |w| {
        w.set(
            "tokenizer.chat_template.zephyr",
            "own:{{ messages[0].content }}",
        );
    });
    let named = named.to_str().expect("UTF-8");
    assert!(prompt(&["-m", named, "--chat-template", "zephyr"]).starts_with("own:Hi"));
    let run = ["run", "--chat", "-p", "x"];
    for (more, code, part) in [
        (
            ["--chat-template", "nobody"],
            2,
            "expected the name of a template",
        ),
        (
            ["--chat-template-kwargs", "[1]"],
            2,
            "expected a JSON object",
        ),
        (
            ["--chat-template-kwargs", "{\"messages\": 1}"],
            2,
            "cannot be set",
        ),
        (["--chat-template", "{% for"], 1, "chat template"),
    ] {
        let error = bad(&[&run[..], &more].concat(), code);
        assert!(error.contains(part), "{error}");
    }
    assert!(bad(&["run", "-p", "x", "--chat-template", "zephyr"], 2).contains("--chat"));
}

#[test]
fn a_conversation_from_a_pipe_reuses_the_cache() {
    let talk = |input: &str| {
        let output = octavo(&["chat", "-n", "8", "--greedy"])
            .write_stdin(input)
            .output()
            .expect("runs");
        assert!(output.status.success(), "{}", stderr(&output));
        (stdout(&output), stderr(&output))
    };
    let (text, notes) =
        talk("/help\nHi\n\nAgain\n/stats\n/reset\nHi\n/stats\n/frob\n/exit\nnever\n");
    let one = talk("Hi\n").0;
    assert!(text.starts_with(&one), "{text:?} and {one:?}");
    assert!(text.ends_with(&one), "the same answer after /reset");
    assert!(
        notes.contains("/reset") && notes.contains("Ctrl-D"),
        "{notes}"
    );
    let stats: Vec<&str> = notes.lines().filter(|l| l.contains("tokens/s")).collect();
    assert_eq!(stats.len(), 2, "{notes}");
    assert!(
        stats[0].contains("cached)"),
        "the second turn reads only what is new: {}",
        stats[0]
    );
    assert!(notes.contains("2 turns | context "), "{notes}");
    assert!(notes.contains("/frob is not a command"), "{notes}");
    assert_eq!(talk("").0, "");
}

#[test]
fn logits_agree_in_every_form() {
    let last = json(&["logits", "-p", "1+1=", "--json", "--top", "3"]);
    assert_eq!(last["positions"].as_array().map(Vec::len), Some(1));
    assert_eq!(last["positions"][0]["pos"], 3);
    let top = &last["positions"][0]["top"];
    assert_eq!(
        (top.as_array().map(Vec::len), &top[0]["piece"]),
        (Some(3), &Value::from("2"))
    );
    assert!(top[0]["logit"].as_f64() > top[1]["logit"].as_f64());
    let tokens: Vec<String> = ids(&last["tokens"]).iter().map(u64::to_string).collect();
    assert_eq!(
        json(&[
            "logits",
            "--tokens",
            &tokens.join(","),
            "--json",
            "--top",
            "3"
        ]),
        last
    );
    let all = json(&["logits", "-p", "1+1=", "--json", "--all", "--top", "3"]);
    assert_eq!(all["positions"].as_array().map(Vec::len), Some(4));
    assert_eq!(all["positions"][3], last["positions"][0]);
    let text = good(&["logits", "-p", "1+1=", "--top", "2"]);
    assert!(text.contains("position 3, after token 31 \"=\":"), "{text}");
    let logit = top[0]["logit"].as_f64().expect("a number") as f32;
    assert!(
        text.contains(&format!("{logit:?}")),
        "{logit} in full precision in {text}"
    );
}

#[test]
fn a_dump_is_a_results_file_of_all_positions() {
    let dir = folder();
    let path = dir.path().join("out.gguf");
    let name = path.to_str().expect("UTF-8");
    let all = json(&[
        "logits", "-p", "1+1=", "--json", "--all", "--top", "1000000", "--dump", name,
    ]);
    let results = Results::read(&path).expect("a results file");
    assert_eq!(
        results
            .tokens
            .iter()
            .map(|&id| u64::from(id))
            .collect::<Vec<_>>(),
        ids(&all["tokens"])
    );
    assert_eq!(results.logits.len(), 4 * results.n_vocab);
    for (pos, row) in results.logits.chunks(results.n_vocab).enumerate() {
        for top in all["positions"][pos]["top"].as_array().expect("an array") {
            let id = top["id"].as_u64().expect("an id") as usize;
            // as f32: serde_json's reader may be off by a unit in the last place of an f64
            assert_eq!(
                top["logit"].as_f64().map(|l| l as f32),
                Some(row[id]),
                "position {pos}, token {id}"
            );
        }
    }
}

#[test]
fn taps_show_named_tensors_whatever_the_batch() {
    let text = good(&[
        "logits",
        "-p",
        "1+1=",
        "--taps",
        "^(l_out-0|result_norm|Qcur-0)$",
    ]);
    let lines: Vec<&str> = text.lines().take(4).collect();
    assert!(
        lines[0].starts_with("Qcur-0 ") && lines[1].starts_with("Qcur-0 #2 "),
        "{text}"
    );
    assert!(
        lines[2].starts_with("l_out-0 ") && lines[2].contains("[4, 256]"),
        "{text}"
    );
    assert!(
        lines[3].starts_with("result_norm ") && lines[3].contains("[1, 256]"),
        "{text}"
    );
    for part in ["min ", "max ", "mean ", "norm ", "nan 0"] {
        assert!(lines[2].contains(part), "{part} is not in {}", lines[2]);
    }
    let whole = json(&["logits", "-p", "1+1=", "--taps", "l_out-0", "--json"]);
    let parts = json(&[
        "logits", "-p", "1+1=", "--taps", "l_out-0", "--json", "-b", "1",
    ]);
    assert_eq!(whole["taps"].as_array().map(Vec::len), Some(1));
    for field in ["name", "occurrence", "shape", "min", "max", "nan"] {
        assert_eq!(whole["taps"][0][field], parts["taps"][0][field], "{field}");
    }
    assert!(
        bad(&["logits", "-p", "x", "--taps", "no-such"], 1).contains("attn_norm-0"),
        "names there are"
    );
    bad(&["logits", "-p", "x", "--taps", "("], 2);
}
