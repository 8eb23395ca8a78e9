//! The rows of the table.

use super::*;
use crate::hf::types::towers;
use octavo_fixtures::shared;

#[test]
fn quantize() {
    let desk = Desk::new();
    desk.good(
        "imatrix @model.gguf -f @text -o @OUT -c 16 --chunks 2",
        "matrix",
    );
    let args = "quantize @model.gguf @OUT Q8_0 --allow-requantize --imatrix @matrix";
    let reads = &["model.gguf", "matrix"];
    Writer {
        args,
        reads,
        code: 1,
        older: Older::Refused,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn convert() {
    let desk = Desk::new();
    desk.good(
        "quantize @model.gguf @OUT awq --no-search --group 64",
        "awq",
    );
    let reads = &["awq/model.safetensors", "awq/config.json"];
    Writer {
        args: "convert @awq @OUT",
        reads,
        code: 1,
        older: Older::Refused,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn convert_to_a_tower() {
    let Some((_dir, folder)) = towers::seeing_folder() else {
        return;
    };
    let desk = Desk::new();
    fs::create_dir(desk.at("seeing")).expect("made");
    for entry in fs::read_dir(folder).expect("lists") {
        let entry = entry.expect("an entry");
        let to = desk.at("seeing").join(entry.file_name());
        fs::copy(entry.path(), to).expect("copied");
    }
    // the model goes to /dev/null, so that it never exists already
    Writer {
        args: "convert @seeing /dev/null --mmproj @OUT",
        reads: &["seeing/model.safetensors", "seeing/config.json"],
        code: 1,
        older: Older::Refused,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn imatrix() {
    let args = "imatrix @model.gguf -f @text -o @OUT -c 16 --chunks 2";
    let reads = &["model.gguf", "text"];
    Writer {
        args,
        reads,
        code: 1,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&Desk::new());
}

#[test]
fn logits() {
    let reads = &["model.gguf", "few"];
    let args = "logits @model.gguf -f @few --dump @OUT";
    Writer {
        args,
        reads,
        code: 1,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&Desk::new());
}

#[test]
fn embed() {
    let reads = &["model.gguf", "few"];
    let args = "embed @model.gguf -f @few --dump @OUT";
    Writer {
        args,
        reads,
        code: 1,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&Desk::new());
}

#[test]
fn inspect() {
    let names = ["vl-a-mmproj-F32.gguf", "images/photo.png"];
    let [Some(tower), Some(photo)] = names.map(|name| shared(&format!("vision/{name}"))) else {
        return;
    };
    let desk = Desk::new();
    fs::copy(tower, desk.at("mmproj.gguf")).expect("copied");
    fs::copy(photo, desk.at("photo.png")).expect("copied");
    Writer {
        args: "inspect @mmproj.gguf --image @photo.png --dump @OUT",
        reads: &["mmproj.gguf", "photo.png"],
        code: 1,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn perplexity() {
    let args = "perplexity @model.gguf -f @text -c 16 --chunks 2 --kl-divergence-base @OUT";
    let reads = &["model.gguf", "text"];
    Writer {
        args,
        reads,
        code: 1,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&Desk::new());
}

#[test]
fn diff_of_two_files() {
    let desk = Desk::new();
    fs::copy(desk.at("model.gguf"), desk.at("other.gguf")).expect("copied");
    let args = "diff @model.gguf @other.gguf -f @few --html @OUT";
    let reads = &["model.gguf", "other.gguf", "few"];
    Writer {
        args,
        reads,
        code: 2,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn diff_with_a_reference() {
    let args = "diff @model.gguf --reference @golden --html @OUT";
    let reads = &["model.gguf", "golden"];
    Writer {
        args,
        reads,
        code: 2,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&Desk::new());
}

/// Creates a desk with a suite of its model and golden.
fn suite() -> Desk {
    let desk = Desk::new();
    let text = "models = [\"model.gguf\"]\ngoldens = \"goldens\"\n[prompts]\nsum = \"1+1=\"\n";
    fs::write(desk.at("suite.toml"), text).expect("written");
    desk.good("diff --suite @suite.toml --bless", "");
    desk
}

#[test]
fn diff_of_a_suite() {
    Writer {
        args: "diff --suite @suite.toml --html @OUT",
        reads: &["suite.toml", "model.gguf", "goldens/model/sum.gguf"],
        code: 2,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&suite());
}

/// Tests the row of a shard, which is kept if it is complete and of the same work.
fn shard(desk: &Desk, work: &str, reads: &[&str], same_bytes: bool) {
    // a shard of other work is replaced
    desk.good(&format!("{work} --shard 2/2 --out @OUT"), "other part");
    let first = format!("{work} --shard 1/2 --out @OUT");
    desk.good(&first, "first part");
    desk.good(&first, "other part");
    let row = Writer {
        args: &first,
        reads,
        code: 2,
        older: Older::Done,
        same_bytes,
    };
    let made = fs::read(desk.at("first part")).expect("there");
    row.check(&desk.at("other part"), &made);
    row.row(desk);
}

#[test]
fn piece_of_perplexity() {
    let work = "perplexity @model.gguf -f @text -c 16 --chunks 2";
    shard(&Desk::new(), work, &["model.gguf", "text"], true);
}

#[test]
fn piece_of_a_divergence() {
    let desk = Desk::new();
    let base = "perplexity @model.gguf -f @text -c 16 --chunks 2 --kl-divergence-base @OUT";
    desk.good(base, "base");
    let work = "perplexity @model.gguf --kl-divergence --kl-divergence-base @base";
    shard(&desk, work, &["model.gguf", "base"], true);
}

#[test]
fn piece_of_imatrix() {
    let work = "imatrix @model.gguf -f @text -c 16 --chunks 2";
    shard(&Desk::new(), work, &["model.gguf", "text"], true);
}

#[test]
fn piece_of_a_suite() {
    let reads = &["suite.toml", "model.gguf", "goldens/model/sum.gguf"];
    shard(&suite(), "diff --suite @suite.toml", reads, true);
}

#[test]
fn piece_of_a_report() {
    let desk = Desk::new();
    let to_f16 = "quantize @model.gguf @OUT F16 --allow-requantize";
    desk.good(to_f16, "f16.gguf");
    let work = "quant-report @f16.gguf -f @text -c 16 --chunks 2 --types Q4_0 --also @model.gguf";
    // the output has speeds, which differ
    shard(&desk, work, &["f16.gguf", "text", "model.gguf"], false);
}

/// Computes both parts of some work, as files `1` and `2`.
fn parts(desk: &Desk, work: &str) {
    for part in ["1", "2"] {
        desk.good(&format!("{work} --shard {part}/2 --out @OUT"), part);
    }
}

#[test]
fn merge_to_an_importance_matrix() {
    let desk = Desk::new();
    parts(&desk, "imatrix @model.gguf -f @text -c 16 --chunks 2");
    Writer {
        args: "merge @1 @2 -o @OUT",
        reads: &["1", "2"],
        code: 2,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn merge_to_a_page() {
    let desk = Desk::new();
    let to_f16 = "quantize @model.gguf @OUT F16 --allow-requantize";
    desk.good(to_f16, "f16.gguf");
    parts(
        &desk,
        "quant-report @f16.gguf -f @text -c 16 --chunks 2 --types Q4_0",
    );
    Writer {
        args: "merge @1 @2 --html @OUT",
        reads: &["1", "2"],
        code: 2,
        older: Older::Replaced,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn quant_report() {
    let desk = Desk::new();
    desk.good(
        "quantize @model.gguf @OUT F16 --allow-requantize",
        "f16.gguf",
    );
    let args = "quant-report @f16.gguf -f @text -c 16 --chunks 1 --types Q4_0 --also @model.gguf \
                --html @OUT";
    let reads = &["f16.gguf", "text", "model.gguf"];
    // the output has speeds, which differ
    Writer {
        args,
        reads,
        code: 1,
        older: Older::Replaced,
        same_bytes: false,
    }
    .row(&desk);
    // another command's page is another kind
    desk.good("diff @model.gguf --reference @golden --html @OUT", "page");
    let before = fs::read(desk.at("page")).expect("there");
    let (code, text) = desk.run(args, "page");
    assert!(
        code == Some(1) && text.contains("older page of octavo quant-report"),
        "{text}"
    );
    assert_eq!(fs::read(desk.at("page")).expect("there"), before);
}

#[test]
fn gguf_set() {
    Writer {
        args: "gguf set @model.gguf general.name=str:another -o @OUT",
        reads: &["model.gguf"],
        code: 1,
        older: Older::Refused,
        same_bytes: true,
    }
    .row(&Desk::new());
}

#[test]
fn gguf_merge() {
    let desk = Desk::new();
    desk.good("gguf split @model.gguf @OUT", "p");
    Writer {
        args: "gguf merge @p-00001-of-00001.gguf @OUT",
        reads: &["p-00001-of-00001.gguf"],
        code: 1,
        older: Older::Refused,
        same_bytes: true,
    }
    .row(&desk);
}

#[test]
fn gguf_extract() {
    Writer {
        args: "gguf extract @model.gguf @OUT attn_v",
        reads: &["model.gguf"],
        code: 1,
        older: Older::Refused,
        same_bytes: true,
    }
    .row(&Desk::new());
}

#[test]
fn gguf_insert() {
    let desk = Desk::new();
    desk.good("gguf extract @model.gguf @OUT attn_v", "v.safetensors");
    Writer {
        args: "gguf insert @model.gguf @v.safetensors -o @OUT",
        reads: &["model.gguf", "v.safetensors"],
        code: 1,
        older: Older::Refused,
        same_bytes: true,
    }
    .row(&desk);
}
