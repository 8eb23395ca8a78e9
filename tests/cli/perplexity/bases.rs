//! Base files: writing, comparing, and refusals.

use super::*;

#[test]
fn a_base_is_written_and_compared_with() {
    let (folder, licence) = (Folder::new(), licence());
    let base = folder.name("base.kld");
    let plain = good(&["-f", &licence, "-c", "64", "--chunks", "6"]);
    let args = [
        "-f",
        &licence,
        "-c",
        "64",
        "--chunks",
        "6",
        "--kl-divergence-base",
        &base,
    ];
    assert_eq!(good(&args), plain);
    assert_eq!(folder.files(), ["base.kld"]);
    // header, tokens, 31 rows of 1024 codes
    let bytes = std::fs::read(&base).expect("a base");
    assert_eq!(bytes.len(), 20 + 6 * 64 * 4 + 6 * 31 * (8 + 2048));
    let again = folder.name("again.kld");
    good(&[
        "-f",
        &licence,
        "-c",
        "64",
        "--chunks",
        "6",
        "--save-all-logits",
        &again,
        "-t",
        "1",
    ]);
    assert!(std::fs::read(&again).expect("a base") == bytes);

    let compare = ["--kl-divergence-base", &base, "--kl-divergence"];
    is_a_table(&compare);
    is_an_object(&json(&compare));
    // the text may be given again, and a longer -c is harmless
    good(&[&compare[..], &["-f", &licence, "-c", "100"]].concat());
}

/// Asserts that a comparison prints the table of a base of six chunks.
fn is_a_table(compare: &[&str]) {
    let text = good(compare);
    let table = Regex::new(
        r"^ {3}\d( +-?\d+\.\d{4,5} ± +\d+\.\d{4,5}){3}( +\d+\.\d{3} ± +\d+\.\d{3} %){2}$",
    );
    let table = table.expect("a pattern");
    assert_eq!(
        text.lines().filter(|line| table.is_match(line)).count(),
        6,
        "{text}"
    );
    // the base cuts probabilities 16 nats below the top, which this text often reaches
    let same = [
        "Maximum KLD:   0.0000",
        "Same top p: 100.000 ± 0.000 %",
        "Cor(ln(PPL(Q)), ln(PPL(base))):  99.9",
    ];
    assert!(same.iter().all(|part| text.contains(part)), "{text}");
    // 93 tokens are too few for statistics
    let few = good(&[compare, &["--chunks", "3"]].concat());
    assert!(
        !few.contains("====") && few.lines().filter(|line| table.is_match(line)).count() == 3,
        "{few}"
    );
}

/// Asserts the same of the JSON object.
fn is_an_object(object: &Value) {
    assert_eq!(
        [&object["n_ctx"], &object["chunks"], &object["scored"]],
        [64, 6, 186]
    );
    assert_eq!(object["cut"], 16.0);
    assert_eq!(object["same_top"]["value"], 1.0);
    for key in [
        "value",
        "uncertainty",
        "maximum",
        "99.9%",
        "median",
        "0.1%",
        "minimum",
    ] {
        assert!(
            object["kld"][key].as_f64().is_some_and(|x| x.abs() < 1e-3),
            "{key}: {object}"
        );
        assert!(object["dp"][key].is_f64(), "{key}: {object}");
    }
}

#[test]
fn bases_that_do_not_fit_are_refused_with_one_line() {
    let (folder, licence) = (Folder::new(), licence());
    let base = folder.name("base.kld");
    good(&[
        "-f",
        &licence,
        "-c",
        "16",
        "--chunks",
        "4",
        "--kl-divergence-base",
        &base,
    ]);
    let bytes = std::fs::read(&base).expect("a base");
    let compare = |name: &str| {
        [
            "--kl-divergence".to_owned(),
            "--kl-divergence-base".to_owned(),
            name.to_owned(),
        ]
    };
    let refused = |name: &str, more: &[&str]| {
        let args = compare(name);
        let args: Vec<&str> = args
            .iter()
            .map(String::as_str)
            .chain(more.iter().copied())
            .collect();
        bad(&args, 1)
    };
    let short = folder.write("short", &bytes[..bytes.len() - 1]);
    assert!(refused(&short, &[]).contains("cut off (3 chunks are complete)"));
    let shape = Shape {
        n_ctx: 4,
        n_vocab: 6,
        n_chunks: 1,
    };
    let mut other = Writer::new(Vec::new(), "other", shape, &[0, 1, 2, 3]).expect("a header");
    other.rows(&vec![0; shape.row_bytes()]).expect("a row");
    let other = folder.write("other", &other.finish().expect("complete"));
    assert!(
        refused(&other, &[])
            .contains("made with another vocabulary: expected 1024 tokens as the model has, got 6")
    );
    let foreign = folder.write(
        "text",
        &b"something else, and some more of it, over and over ".repeat(20),
    );
    assert!(
        refused(&base, &["-f", &foreign]).contains("made from another text: token 0: expected ")
    );
    let start = folder.write(
        "start",
        &std::fs::read(&licence).expect("the licence")[..60],
    );
    assert!(refused(&base, &["-f", &start]).contains("made from another text: "));
    assert!(refused(&base, &["-c", "15"]).contains("chunks of 16 tokens: expected at most -c, 15"));
    assert!(refused(&demo(), &[]).contains("expected a file of log-probabilities"));
    assert!(refused(&folder.name("none"), &[]).contains("none: No such file"));
    assert!(refused(&folder.name(""), &[]).contains("expected a file of log-probabilities"));
}

#[test]
fn a_base_takes_the_place_of_nothing_else() {
    let (folder, licence) = (Folder::new(), licence());
    let model = folder.write("model.gguf", b"GGUF and so on");
    let args = ["-f", &licence, "-c", "16", "--kl-divergence-base", &model];
    assert!(
        bad(&args, 1).contains("expected a new name or that of an older file of log-probabilities")
    );
    assert_eq!(std::fs::read(&model).expect("there"), b"GGUF and so on");
    let nowhere = folder.name("none/base.kld");
    bad(
        &["-f", &licence, "-c", "16", "--kl-divergence-base", &nowhere],
        1,
    );
    bad(
        &[
            "-f",
            &licence,
            "-c",
            "16",
            "--kl-divergence-base",
            &folder.name(""),
        ],
        1,
    );
    // a text that is too short leaves nothing behind
    let short = folder.write("short", b"a few words");
    let base = folder.name("base.kld");
    bad(&["-f", &short, "--kl-divergence-base", &base], 1);
    assert_eq!(folder.files(), ["model.gguf", "short"]);
}
