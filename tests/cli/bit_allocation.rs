//! Tests of `octavo quantize --target-size` and its kin as a program.

use std::path::{Path, PathBuf};

use super::{bad, folder, good, json, octavo, stderr};

/// Files of a test: an F16 model, texts, outputs.
struct Files {
    dir: tempfile::TempDir,
    f16: String,
    text: String,
}

impl Files {
    fn new() -> Files {
        let dir = folder();
        let model =
            octavo_fixtures::workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
        let f16 = dir.path().join("f16.gguf");
        let (model, f16) = (text(&model), text(&f16));
        good(&["quantize", &model, &f16, "F16", "--allow-requantize"]);
        let license = octavo_fixtures::workspace_root().join("LICENSE-APACHE");
        Files {
            text: text(&license),
            f16,
            dir,
        }
    }

    fn path(&self, name: &str) -> String {
        text(&self.dir.path().join(name))
    }

    /// Runs `octavo quantize` with these arguments between the model and the text. The model's
    /// values are those of Q4_K, which is left out.
    fn quantize(&self, args: &[&str]) -> String {
        let all = [
            &["quantize", &self.f16][..],
            args,
            &["-f", &self.text, "--chunks", "2", "--probes", "Q3_K"],
            &["--types", "Q2_K,Q3_K,Q5_K,Q6_K,Q8_0,IQ4_XS"],
        ];
        let out = octavo(&all.concat()).output().expect("it runs");
        assert!(out.status.success(), "{}", stderr(&out));
        stderr(&out)
    }

    /// Returns the mean KL divergence of a model from the F16 one.
    fn mean_kl(&self, model: &str) -> f64 {
        let args = [
            "perplexity",
            model,
            "--against",
            &self.f16,
            "-f",
            &self.text,
        ];
        let json = json(&[&args[..], &["--chunks", "2", "--json"]].concat());
        json["kld"]["value"].as_f64().expect("a number")
    }
}

fn text(path: &Path) -> String {
    path.to_str().expect("UTF-8").to_owned()
}

fn bytes(path: &str) -> u64 {
    PathBuf::from(path).metadata().expect("the file").len()
}

#[test]
fn the_mix_of_a_size_loses_less_than_a_stock_mix_and_llama_quantize_can_make_it() {
    let files = Files::new();
    let (stock, mix, again) = (
        files.path("stock.gguf"),
        files.path("mix.gguf"),
        files.path("again.gguf"),
    );
    let (recipe, page) = (files.path("recipe"), files.path("page.html"));
    good(&["quantize", &files.f16, &stock, "Q3_K_M"]);
    let size = bytes(&stock).to_string();
    let goal = ["--target-size", &size, "--recipe", &recipe];
    let said = files.quantize(&[&[mix.as_str()][..], &goal, &["--html", &page]].concat());
    // all of the room is used, but for what the smallest step takes
    let made = bytes(&mix);
    assert!(
        made <= bytes(&stock) && made * 100 > bytes(&stock) * 97,
        "{made}: {said}"
    );
    assert!(files.mean_kl(&mix) < 0.9 * files.mean_kl(&stock), "{said}");
    assert!(said.contains("same top"), "{said}");
    // the recipe is all there is to it
    let named = said.lines().find_map(|l| l.split_once("with the type "));
    let (_, target) = named.expect("the type");
    good(&[
        "quantize",
        &files.f16,
        &again,
        target,
        "--tensor-type-file",
        &recipe,
    ]);
    assert_eq!(std::fs::read(&mix).unwrap(), std::fs::read(&again).unwrap());
    let html = std::fs::read_to_string(&page).expect("the page");
    assert!(html.contains("<svg") && html.contains("blk.0.attn_v.weight"));
}

#[test]
fn other_goals_are_met_and_types_can_be_fixed() {
    let files = Files::new();
    let (by_bits, by_kl) = (files.path("bits.gguf"), files.path("kl.gguf"));
    let kept = files.path("kept.jsonl");
    let keep = ["--sensitivities", kept.as_str(), "--measure-by", "group"];
    let said = files.quantize(&[&[by_bits.as_str(), "--target-bpw", "4.25"][..], &keep].concat());
    let bits = said.lines().find_map(|line| {
        let (before, _) = line.rsplit_once(" bits per weight")?;
        before.rsplit_once(' ')?.1.parse::<f64>().ok()
    });
    assert!(bits.is_some_and(|b| b <= 4.25 && b > 4.1), "{said}");
    let said = files.quantize(&[&[by_kl.as_str(), "--target-kl", "0.01"][..], &keep].concat());
    assert!(said.contains("sensitivities are known"), "{said}");
    let kl = files.mean_kl(&by_kl);
    assert!(kl <= 0.0102 && kl > 0.007, "{kl}: {said}");
    // a tensor whose type is given is left to it
    let fixed = files.path("fixed.gguf");
    let args = ["--target-bpw", "4.25", "--tensor-type", "attn_v=Q8_0"];
    files.quantize(&[&[fixed.as_str()][..], &args, &keep].concat());
    let shown = json(&["gguf", "show", &fixed, "--json"]);
    let tensors = shown["tensors"].as_array().expect("a list");
    let values = tensors.iter().filter(|t| {
        let name = t["name"].as_str();
        name.is_some_and(|name| name.contains("attn_v"))
    });
    assert!(values.clone().count() > 0 && values.clone().all(|t| t["type"] == "Q8_0"));
}

#[test]
fn interrupted_and_divided_measurements_give_the_same_file() {
    let files = Files::new();
    let (whole, kept) = (files.path("whole.gguf"), files.path("kept.jsonl"));
    let goal = [
        "--target-bpw",
        "4.5",
        "--measure-by",
        "group",
        "--sensitivities",
    ];
    files.quantize(&[&[whole.as_str()][..], &goal, &[&kept]].concat());
    let lines = std::fs::read_to_string(&kept).expect("the file");
    let n = lines.lines().count();
    // four layers, seven roles, the embedding, and what the file is
    assert_eq!(n, 13, "{lines}");
    // killed within a line: it and those after it are measured again
    let cut: String = lines.split_inclusive('\n').take(n / 2).collect();
    std::fs::write(&kept, format!("{cut}{{\"tensor\":\"blk.")).expect("written");
    let resumed = files.path("resumed.gguf");
    let said = files.quantize(&[&[resumed.as_str()][..], &goal, &[&kept]].concat());
    assert!(
        said.contains(&format!("{} sensitivities are known", n / 2 - 1)),
        "{said}"
    );
    assert_eq!(std::fs::read_to_string(&kept).expect("the file"), lines);
    // two shards, in two files
    let (first, second) = (files.path("1.jsonl"), files.path("2.jsonl"));
    for (shard, file) in [("1/2", &first), ("2/2", &second)] {
        files.quantize(&[&goal[..], &[file], &["--shard", shard]].concat());
    }
    let divided = files.path("divided.gguf");
    let both = [first.as_str(), "--sensitivities", &second];
    files.quantize(&[&[divided.as_str()][..], &goal, &both].concat());
    let read = |path: &str| std::fs::read(path).expect("the model");
    assert!(read(&whole) == read(&resumed) && read(&whole) == read(&divided));
}

#[test]
fn what_cannot_be_is_refused() {
    let files = Files::new();
    let out = files.path("out.gguf");
    let refused = |args: &[&str], code: i32| {
        // no line of progress where the machine is slow
        let all = [&["quantize", "-q", &files.f16, &out][..], args].concat();
        let error = bad(&all, code);
        assert!(!Path::new(&out).exists(), "{args:?}");
        error
    };
    let text = ["-f", files.text.as_str(), "--chunks", "2"];
    let with = |args: &[&str], code| refused(&[args, &text].concat(), code);
    assert!(refused(&["--target-bpw", "4"], 2).contains("expected -f FILE"));
    assert!(with(&["Q4_K_M"], 2).contains("--file has no effect"));
    assert!(with(&["Q4_K_M", "--target-bpw", "4"], 2).contains("TYPE has no effect"));
    assert!(with(&["--pure", "--target-bpw", "4"], 2).contains("--pure has no effect"));
    assert!(refused(&["Q4_K_M", "--recipe", "r"], 2).contains("expected --target-size"));
    assert!(with(&["--target-bpw", "0"], 2).contains("above 0"));
    assert!(with(&["--target-kl", "1", "--target-bpw", "4"], 2).contains("cannot be used with"));
    let small = with(&["--target-size", "1000"], 1);
    assert!(
        small.contains("expected a size of at least") && small.contains("--types"),
        "{small}"
    );
    let weights = ["--target-bpw", "5", "--tensor-type", "attn_v=IQ2_XXS"];
    assert!(with(&weights, 1).contains("needs an importance matrix (--imatrix)"));
    let other = files.path("other.jsonl");
    std::fs::write(&other, "{\"tensor\":1}\n").expect("written");
    let kept = ["--target-bpw", "5", "--sensitivities", &other];
    assert!(with(&kept, 1).contains("line 1: expected the first line"));
    // measurements on another text
    std::fs::remove_file(&other).expect("removed");
    good(&[&["quantize", &files.f16, "--dry-run"][..], &kept, &text].concat());
    let error = with(&[&kept[..], &["--chunks", "3"]].concat()[..], 2);
    assert!(error.contains("--chunks"), "{error}");
    let whole = ["-f", &files.text, "--chunks", "3"];
    let error = refused(&[&kept[..], &whole].concat(), 1);
    assert!(error.contains("chunks: expected 3, got 2"), "{error}");
}
