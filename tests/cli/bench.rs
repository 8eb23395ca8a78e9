//! Tests of `octavo bench` as a program.

use serde_json::Value;

use super::{bad, good};

const QUICK: [&str; 7] = ["bench", "-p", "8", "-n", "4", "-r", "2"];

fn with<'a>(more: &[&'a str]) -> Vec<&'a str> {
    [&QUICK[..], more].concat()
}

fn records(more: &[&str]) -> Vec<Value> {
    let text = good(&[&with(more)[..], &["-o", "json"]].concat());
    serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"))
}

#[test]
fn the_table_has_a_row_for_each_test() {
    let text = good(&with(&["-d", "0,5", "-t", "1"]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 2 + 4 + 2, "{text}");
    let cells = |line: &str| {
        line.split('|')
            .map(|c| c.trim().to_owned())
            .collect::<Vec<_>>()
    };
    let head = cells(lines[0]);
    assert_eq!(
        head[1..8],
        [
            "model", "size", "params", "backend", "threads", "test", "t/s"
        ]
    );
    for (line, test) in lines[2..]
        .iter()
        .zip(["pp8", "tg4", "pp8 @ d5", "tg4 @ d5"])
    {
        let row = cells(line);
        assert_eq!(
            (row.len(), row[6].as_str(), row[5].as_str()),
            (head.len(), test, "1"),
            "{line}"
        );
        assert!(row[7].contains(" ± "), "{line}");
        // decode tests report a read rate, prefill tests an arithmetic one
        let generation = test.starts_with("tg");
        assert_eq!(
            (row[8] == "-", row[10] == "-"),
            (!generation, generation),
            "{line}"
        );
        assert_eq!(line.chars().count(), lines[0].chars().count(), "{text}");
    }
    assert!(lines[7].starts_with("Measured limits: "), "{text}");
}

#[test]
fn hashes_depend_neither_on_runs_nor_on_threads() {
    let hash = |r: &Value| r["token_hash"].as_str().expect("a hash").to_owned();
    let (one, two) = (
        records(&["-t", "1,2", "-d", "0,20"]),
        records(&["-t", "2", "-d", "20", "-b", "3"]),
    );
    assert_eq!((one.len(), two.len()), (8, 2));
    for (a, b) in one[..4].iter().zip(&one[4..]) {
        let cpus = octavo_engine::threads::Machine::here().cpus();
        assert_eq!(
            (&a["n_threads"], &b["n_threads"]),
            (&1.into(), &cpus.min(2).into())
        );
        assert_eq!(hash(a), hash(b), "{a}");
    }
    assert_eq!(
        [hash(&one[2]), hash(&one[3])],
        [hash(&two[0]), hash(&two[1])]
    );
    assert!(one.iter().all(|r| hash(r).len() == 16) && hash(&one[1]) != hash(&one[3]));
}

#[test]
fn sequences_generate_together_and_threads_change_no_token() {
    let of = |threads: &str, batch: &str| {
        let more = ["--sequences", "1,3", "-d", "0,9", "--no-limits"];
        let mut all = records(&[&["-t", threads, "-b", batch], &more[..]].concat());
        all.retain(|r| r["n_prompt"] == 0);
        all
    };
    let (one, two) = (of("1", "512"), of("2", "4"));
    let counts: Vec<&Value> = one.iter().map(|r| &r["n_sequences"]).collect();
    assert_eq!(counts, [1, 3, 1, 3]);
    for (a, b) in one.iter().zip(&two) {
        assert_eq!(a["token_hash"], b["token_hash"], "{a}");
        assert_eq!(a["read_gb_s"].is_null(), a["n_sequences"] != 1, "{a}");
    }
    assert_ne!(one[1]["token_hash"], one[3]["token_hash"]);
}

#[test]
fn results_name_the_commit_they_are_of() {
    let git = |arguments: &[&str]| {
        let mut git = std::process::Command::new("git");
        let output = git
            .current_dir(env!("CARGO_MANIFEST_DIR"))
            .args(arguments)
            .output()
            .ok()?;
        String::from_utf8(output.stdout)
            .ok()
            .filter(|text| output.status.success() && !text.is_empty())
    };
    let record = &records(&["--isa", "scalar", "-t", "1"])[0];
    let commit = record["build_commit"].as_str().expect("a text");
    match git(&["rev-parse", "--short=9", "HEAD"]) {
        Some(head)
            if std::path::Path::new(env!("CARGO_MANIFEST_DIR"))
                .join(".git")
                .exists() =>
        {
            assert_eq!(commit.trim_end_matches("-changed"), head.trim());
            assert!(record["build_number"].as_u64() > Some(0));
        }
        _ => assert_eq!(
            (commit, record["build_number"].as_u64()),
            ("unknown", Some(0))
        ),
    }
}

#[test]
fn json_has_llama_benchs_fields_and_ours() {
    for r in records(&[
        "--isa",
        "scalar",
        "--kv-type",
        "f32",
        "--no-repack",
        "-t",
        "1",
    ]) {
        for text in [
            "build_commit",
            "cpu_info",
            "model_filename",
            "test_time",
            "kernels",
            "token_hash",
        ] {
            assert!(
                r[text].as_str().is_some_and(|t| !t.is_empty()),
                "{text}: {r}"
            );
        }
        assert_eq!(
            [&r["isa"], &r["type_k"], &r["type_v"]],
            ["scalar", "f32", "f32"]
        );
        assert_eq!(r["n_gpu_layers"], 0);
        assert_eq!(
            (&r["model_n_params"], r["n_depth"].as_u64()),
            (&2_624_256.into(), Some(0))
        );
        let prompt = r["n_prompt"] == 8;
        assert_eq!(r["n_gen"], if prompt { 0 } else { 4 });
        let samples = r["samples_ns"].as_array().expect("a list");
        let mean = samples
            .iter()
            .map(|s| s.as_f64().expect("a number"))
            .sum::<f64>()
            / 2.0;
        assert_eq!(
            (samples.len(), r["samples_ts"].as_array().map(Vec::len)),
            (2, Some(2))
        );
        assert!(
            (r["avg_ns"].as_f64().expect("a number") - mean).abs() <= 1.0,
            "{r}"
        );
        let used = if prompt {
            ["gflops", "gflops_peak", "flops_percent"]
        } else {
            ["read_gb_s", "read_gb_s_best", "read_percent"]
        };
        let [rate, best, percent] = used.map(|name| r[name].as_f64().expect("a number"));
        assert!(
            rate > 0.0 && (rate / best - percent / 100.0).abs() < 1e-9,
            "{r}"
        );
        assert!(r[if prompt { "read_gb_s" } else { "gflops" }].is_null());
    }
}

#[test]
fn limits_need_not_be_measured() {
    for r in records(&["--no-limits", "-t", "1"]) {
        assert!(r["avg_ts"].as_f64().is_some_and(|rate| rate > 0.0), "{r}");
        for name in [
            "read_gb_s_best",
            "read_percent",
            "gflops_peak",
            "flops_percent",
        ] {
            assert!(r.get(name).is_some_and(Value::is_null), "{name}: {r}");
        }
    }
    let text = good(&with(&["--no-limits", "-t", "1"]));
    assert!(text.ends_with("1 thread (given): not measured\n"), "{text}");
}

#[test]
fn csv_has_the_same_fields() {
    let text = good(&with(&["-t", "1", "-o", "csv"]));
    let lines: Vec<&str> = text.lines().collect();
    assert_eq!(lines.len(), 3, "{text}");
    let names: Vec<&str> = lines[0].split(',').collect();
    let record = &records(&["-t", "1"])[0];
    assert_eq!(
        names,
        record
            .as_object()
            .expect("an object")
            .keys()
            .collect::<Vec<_>>()
    );
    for line in &lines[1..] {
        let inside = line
            .strip_prefix('"')
            .and_then(|l| l.strip_suffix('"'))
            .expect("quoted");
        assert_eq!(inside.split("\",\"").count(), names.len(), "{line}");
    }
}

#[test]
fn bad_arguments_are_refused() {
    for (args, named) in [
        (&["-p", "0", "-n", "0"][..], "-p 0"),
        (&["-p", "x"], "x"),
        (&["-n", "1,,2"], "-n"),
        (&["-r", "0"], "0"),
        (&["-t", "0"], "0"),
        (&["-o", "yaml"], "yaml"),
        (&["--isa", "sse"], "sse"),
        (&["--kv-type", "q5_2"], "q5_2"),
    ] {
        let line = bad(&[&["bench"], args].concat(), 2);
        assert!(line.contains(named), "{line}");
    }
    assert!(bad(&["bench", "/nonexistent"], 1).contains("/nonexistent"));
}
