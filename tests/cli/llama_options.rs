//! llama.cpp's options: accepted if they mean the same here, or what is so anyway, else refused
//! with a reason.

use super::{bad, good};

#[test]
fn its_spellings_are_taken_where_the_meaning_is_ours() {
    let plain = good(&["run", "-p", "1+1=", "-n", "4", "--ignore-eos"]);
    for more in [
        &["-ub", "64"][..],
        &["--ubatch-size", "64", "-nr"],
        &["-ctk", "f16", "-ctv", "f16", "--threads", "1"],
        &["--ctx-size", "256", "-ngl", "0"],
        &[
            "-fa",
            "on",
            "-b",
            "2048",
            "-ub",
            "512",
            "--no-warmup",
            "--jinja",
        ],
        &["-fa", "-kvu", "--swa-full", "--cache-ram", "0"],
    ] {
        let common = ["run", "-p", "1+1=", "--predict", "4", "--ignore-eos"];
        assert_eq!(good(&[&common[..], more].concat()), plain, "{more:?}");
    }
    assert_eq!(good(&["run", "-p", "1+1=", "-n", "9", "-r", "2"]), "");
}

#[test]
fn the_others_are_refused_by_their_names() {
    for (line, says) in [
        ("run -no-cnv -p x", "octavo has no -no-cnv: "),
        ("run -cnv", "octavo has no -cnv: octavo chat"),
        ("run -p x -tb 2", "octavo has no -tb: -t N"),
        ("-hf org/model", "octavo has no -hf before its command"),
        ("serve -dr ai/model", "octavo has no -dr: hf:USER/REPO"),
        ("run -p x -hfd org/model", "octavo has no -hfd: --draft hf:"),
        ("serve --no-jinja", "octavo has no --no-jinja: "),
        ("run -p x -rpc host:1", "octavo has no -rpc: "),
        ("bench -pg 1,2", "octavo has no -pg: "),
        ("tokenize -ngl 3 -p x", "octavo tokenize has no -ngl"),
        ("run -p x -nkvo", "octavo has no -nkvo: "),
    ] {
        let error = bad(&line.split(' ').collect::<Vec<_>>(), 2);
        assert!(error.contains(says), "{line}: {error}");
        assert!(!error.contains("tip:"), "{line}: {error}");
    }
    // a value that looks like an option is a value
    good(&["run", "-n", "1", "-p", "-fa"]);
}
