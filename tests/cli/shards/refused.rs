//! Errors of shards, each in one line: exit code 2, or 75 if the machine is at fault.

use super::*;

#[test]
fn shards_that_do_not_belong_together_are_refused() {
    let desk = Desk::new();
    let command = "perplexity @model.gguf -f @text.txt -c 32 --chunks 8";
    desk.shards(command, 3);
    let line = desk.bad("merge @3-1.shard @3-3.shard", 2);
    assert!(
        line.ends_with("shards missing: 2 of 3: expected every shard, got 2"),
        "{line}"
    );
    let line = desk.bad("merge @3-1.shard @3-2.shard @3-3.shard @3-2.shard", 2);
    assert!(
        line.contains("3-2.shard: shard 2/3 is there twice"),
        "{line}"
    );
    desk.good(&format!("{command} --shard 2/4 --out @4-2.shard"));
    let line = desk.bad("merge @3-1.shard @4-2.shard @3-3.shard", 2);
    assert!(
        line.contains("4-2.shard: ") && line.contains("shards: expected 3 as in"),
        "{line}"
    );
    for (more, what) in [
        ("-c 16", "tokens of a chunk: expected 32 as in"),
        ("-c 32 --chunks 7", "chunks: expected 8 as in"),
        ("-c 32 --kv-type f32", "KV cache: expected f16 as in"),
        ("-c 32 --no-repack", "weights: expected packed as in"),
        ("-c 32 --prompt-bits 8 --isa scalar", "rounding: expected "),
    ] {
        let chunks = if more.contains("--chunks") {
            ""
        } else {
            "--chunks 8"
        };
        let own = format!("perplexity @model.gguf -f @text.txt {chunks} {more}");
        desk.good(&format!("{own} --shard 2/3 --out @other.shard"));
        let line = desk.bad("merge @3-1.shard @other.shard @3-3.shard", 2);
        assert!(
            line.contains("other.shard: shard of another measurement: "),
            "{line}"
        );
        assert!(line.contains(what), "{more}: {line}");
    }
    // shards of another text, another model, another measurement
    std::fs::write(desk.at("more.txt"), "Something else. ".repeat(200)).expect("written");
    desk.good("quantize @model.gguf @coarse.gguf Q2_K --allow-requantize");
    for (own, what) in [
        ("perplexity @model.gguf -f @more.txt", "text: expected "),
        ("perplexity @coarse.gguf -f @text.txt", "model: expected "),
        (
            "imatrix @model.gguf -f @text.txt",
            "measurement: expected perplexity as in",
        ),
    ] {
        desk.good(&format!(
            "{own} -c 32 --chunks 8 --shard 2/3 --out @other.shard"
        ));
        let line = desk.bad("merge @3-1.shard @other.shard @3-3.shard", 2);
        assert!(line.contains(what), "{own}: {line}");
    }
}

#[test]
fn what_is_no_piece_is_refused() {
    let desk = Desk::new();
    let line = desk.bad("merge @none.shard", 2);
    assert!(line.contains("none.shard: "), "{line}");
    for (content, what) in [
        (&b""[..], "an empty file"),
        (b"octavo piece 99\n", "a shard of another version"),
        (b"GGUF", "something else"),
        (b"octavo piece 1\n", "damaged or cut off"),
        (
            &[&b"octavo piece 1\n"[..], &[0; 99]].concat(),
            "damaged or cut off",
        ),
    ] {
        std::fs::write(desk.at("x.shard"), content).expect("written");
        let line = desk.bad("merge @x.shard", 2);
        assert!(line.contains("x.shard: ") && line.contains(what), "{line}");
    }
    desk.bad("merge", 2);
}

#[test]
fn options_without_effect_are_refused() {
    let desk = Desk::new();
    let shard = "--shard 1/1 --out @x.shard";
    let text = "perplexity @model.gguf -f @text.txt -c 32 --chunks 2";
    for (line, what) in [
        (format!("{text} --shard 1/2"), "--out"),
        (format!("{text} --out @x.shard"), "--shard"),
        (
            format!("{text} --shard 0/2 --out @x.shard"),
            "expected I/N such as 3/8",
        ),
        (
            format!("{text} --shard 3/2 --out @x.shard"),
            "expected I/N such as 3/8",
        ),
        (format!("{text} {shard} --json"), "--json"),
        (
            format!("{text} {shard} --kl-divergence-base @b"),
            "--kl-divergence too",
        ),
        (format!("{text} --force"), "--force has no effect"),
        (
            format!("quant-report @model.gguf -f @text.txt --html @p {shard}"),
            "--html",
        ),
        (
            format!("quant-report @model.gguf -f @text.txt --json {shard}"),
            "--json",
        ),
        (
            format!("diff @model.gguf -p x --b-isa scalar {shard}"),
            "expected --suite",
        ),
        (format!("diff --suite @s.toml --bless {shard}"), "--bless"),
        (
            "imatrix @model.gguf -f @text.txt -o @o.gguf --shard 1/2 --out @x".to_owned(),
            "--shard",
        ),
    ] {
        let error = desk.bad(&line, 2);
        assert!(error.contains(what), "{line}: {error}");
    }
    desk.good(&format!("{text} {shard}"));
    for option in ["-o @o.gguf", "--all", "--force", "--html @p.html"] {
        let error = desk.bad(&format!("merge @x.shard {option}"), 2);
        assert!(error.contains("has no effect"), "{error}");
    }
    desk.good("imatrix @model.gguf -f @text.txt -c 32 --shard 1/1 --out @i.shard");
    assert!(
        desk.bad("merge @i.shard", 2)
            .contains("expected -o OUT.gguf")
    );
    assert!(
        desk.bad("merge @i.shard --json -o @o.gguf", 2)
            .contains("--json has no effect")
    );
    assert!(
        desk.bad("merge @i.shard -o @i.shard", 2)
            .contains("is the input itself")
    );
}

/// Bad input is exit code 2 for a shard, because trying again does not help; a full disk or too
/// little memory is 75.
#[cfg(target_os = "linux")]
#[test]
fn exit_codes_say_whether_another_try_may_help() {
    let desk = Desk::new();
    let text = "perplexity @model.gguf -f @text.txt -c 32";
    let none = "perplexity @none.gguf -f @text.txt -c 32 --shard 1/2 --out @x.shard";
    assert!(desk.bad(none, 2).contains("none.gguf"));
    let line = desk.bad(&format!("{text} --shard 1/2 --out @none/x.shard"), 2);
    assert!(line.contains("none/x.shard"), "{line}");
    std::fs::write(desk.at("notes"), "that nobody wants to lose").expect("written");
    let line = desk.bad(&format!("{text} --shard 1/2 --out @notes"), 2);
    assert!(line.contains("an older shard of a measurement"), "{line}");
    let line = desk.bad(&format!("{text} --shard 1/2 --out @text.txt --force"), 2);
    assert!(line.contains("is the input itself"), "{line}");
    // the KV cache needs more memory than there is
    let large = "perplexity @model.gguf -f @text.txt -c 200000 --kv-type f32 -t 1";
    let words = desk.words(&format!("{large} --shard 1/2 --out @x.shard"));
    let output = Plain::new("sh")
        .args(["-c", "ulimit -v 400000; exec \"$0\" \"$@\""])
        .arg(env!("CARGO_BIN_EXE_octavo"))
        .args(words)
        .output()
        .expect("sh runs");
    let errors = stderr(&output);
    assert_eq!(output.status.code(), Some(75), "{errors}");
    assert!(errors.contains("no memory for 781 MiB"), "{errors}");
    assert!(!desk.at("x.shard").exists());
}

/// Shards of small bases, and of comparisons with them: cut off, with a flipped bit, or cut off
/// with a digest that fits.
#[test]
fn damaged_shards_of_small_bases_are_refused() {
    let desk = Desk::new();
    let text = "perplexity @model.gguf -f @text.txt -c 32 --chunks 4";
    desk.good(&format!(
        "{text} --base-top 5 --shard 1/1 --out @base.shard"
    ));
    desk.good("merge @base.shard -o @small.kld");
    desk.good(
        "perplexity @model.gguf --kl-divergence --kl-divergence-base @small.kld \
         --shard 1/1 --out @figures.shard",
    );
    const DIGEST: usize = 32;
    for name in ["base", "figures"] {
        let bytes = std::fs::read(desk.at(&format!("{name}.shard"))).expect("written");
        let refused = |bytes: &[u8], what: &str| {
            std::fs::write(desk.at("x.shard"), bytes).expect("written");
            let line = desk.bad("merge @x.shard -o @x.kld", 2);
            let says = line.contains("x.shard: ") && line.contains("expected ");
            assert!(says && line.contains(what), "{name}: {line}");
            assert!(!desk.at("x.kld").exists());
        };
        let content = &bytes[..bytes.len() - DIGEST];
        for n in (20..bytes.len()).step_by(bytes.len() / 16) {
            refused(&bytes[..n], "damaged or cut off");
            let mut flipped = bytes.clone();
            flipped[n] ^= 1 << (n % 8);
            refused(&flipped, "damaged or cut off");
            if n < content.len() {
                let cut = &content[..n];
                let digest = <sha2::Sha256 as sha2::Digest>::digest(cut);
                refused(&[cut, &digest].concat(), "the fields of a shard");
            }
        }
    }
}

/// Files of one kind where another is expected.
#[test]
fn foreign_files_in_place_of_shards_are_refused() {
    let desk = Desk::new();
    let text = "-f @text.txt -c 32 --chunks 4";
    desk.good(&format!(
        "perplexity @model.gguf {text} --shard 1/1 --out @p.shard"
    ));
    desk.good(&format!(
        "perplexity @model.gguf {text} --base-top 5 --shard 1/1 --out @b.shard"
    ));
    desk.good("merge @b.shard -o @b.kld");
    desk.good("quantize @model.gguf @f16.gguf F16 --allow-requantize");
    let text = std::fs::read_to_string(desk.at("text.txt")).expect("there");
    std::fs::write(desk.at("long.txt"), text.repeat(4)).expect("written");
    let choice = "quantize -q @f16.gguf --target-bpw 5 -f @long.txt --chunks 2 --measure-by group";
    desk.good(&format!("{choice} --shard 1/20 --sensitivities @s.jsonl"));
    let compare = "perplexity @model.gguf --kl-divergence --kl-divergence-base";
    for (line, code, says) in [
        (
            "merge @s.jsonl".to_owned(),
            2,
            "s.jsonl: expected a shard of a measurement (it begins with",
        ),
        ("merge @b.kld".to_owned(), 2, "b.kld: expected a shard"),
        (
            "merge @p.shard @b.shard".to_owned(),
            2,
            "b.shard: shard of another measurement: ",
        ),
        (format!("{compare} @b.shard"), 1, "b.shard: expected "),
        (
            format!("{choice} --shard 2/20 --sensitivities @p.shard"),
            1,
            "p.shard: line 1: expected the first line of a file of sensitivities, got \"octavo",
        ),
        (
            format!("{choice} @o.gguf --sensitivities @s.jsonl --sensitivities @b.kld"),
            1,
            "b.kld: line 1: expected the first line of a file of sensitivities, got ",
        ),
    ] {
        let error = desk.bad(&line, code);
        assert!(error.contains(says), "{line}: {error}");
    }
    // a line of another kind, and a figure that is none
    let whole = std::fs::read_to_string(desk.at("s.jsonl")).expect("written");
    let head = whole.lines().next().expect("a first line");
    for other in [
        "{\"tensor\":\"a\",\"type\":\"Q9_K\",\"mean_kl\":1}",
        "{\"tensor\":\"a\",\"type\":\"Q4_K\",\"mean_kl\":1e999}",
        "[]",
    ] {
        std::fs::write(desk.at("s.jsonl"), format!("{head}\n{other}\n")).expect("written");
        let error = desk.bad(
            &format!("{choice} --shard 2/20 --sensitivities @s.jsonl"),
            1,
        );
        let expected = "s.jsonl: line 2: expected a tensor, a type, and a mean KL divergence, got ";
        assert!(error.contains(expected), "{other}: {error}");
    }
}
