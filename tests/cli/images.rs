//! Images in texts: `octavo diff` and `octavo embed`.

use std::process::{Command, Stdio};

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::{llama_cpp, shared};
use octavo_reference::metrics::nmse;

use super::{bad, folder, good, octavo, stderr, stdout};

/// Returns a file of the shared folder's vision models.
fn file(name: &str) -> Option<String> {
    let path = shared(&format!("vision/{name}"))?;
    Some(path.to_str().expect("UTF-8").to_owned())
}

/// Returns an image encoder, its text model and an image; `None` without the shared folder.
fn files(image: &str) -> Option<[String; 3]> {
    let names = ["vl-a-mmproj-F32.gguf", "vl-a-text-F32.gguf", image];
    let [mmproj, text, image] = names.map(file);
    Some([mmproj?, text?, image?])
}

/// Runs `octavo diff`; returns its exit code, and its output to stdout and stderr.
fn diff(args: &[&str]) -> (Option<i32>, String) {
    let output = octavo(&[&["diff"], args].concat()).output();
    let output = output.expect("the program runs");
    let all = format!("{}{}", stdout(&output), stderr(&output));
    (output.status.code(), all)
}

#[test]
fn towers_and_texts_with_images_are_compared_with_the_oracle() {
    let Some([mmproj, text, image]) = files("images/photo.png") else {
        return;
    };
    let tower = [&*mmproj, "--image", &image, "--b-exec", "oracle"];
    let (code, out) = diff(&tower);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("pixels                 0.00e0"), "{out}");
    assert!(out.contains("\nlayer_out-3 "), "{out}");
    let beside = ["--mmproj", &mmproj, "--image", &image, "-p", "What?"];
    let (code, out) = diff(&[&[&*text], &beside[..], &["--a-exec", "oracle"]].concat());
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("top-1 100.0 %"), "{out}");
    let (_, json) = diff(&[&[&*text], &beside[..], &["--a-exec", "oracle", "--json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    let tokens = json["tokens"].as_array().expect("ids");
    assert_eq!(tokens.iter().filter(|id| **id == -1).count(), 24, "{json}");
}

#[test]
fn what_does_not_go_together_is_refused() {
    let Some([mmproj, text, image]) = files("images/wide.png") else {
        return;
    };
    let cases: &[(&[&str], &str)] = &[
        (
            &[&mmproj, "--b-exec", "oracle"],
            "expected one --image FILE, got 0",
        ),
        (
            &[&mmproj, "-p", "x", "--b-exec", "oracle"],
            "a vision tower takes images",
        ),
        (
            &[&text, "--image", &image, "-p", "x", "--b-exec", "oracle"],
            "expected --mmproj FILE",
        ),
        (
            &[&mmproj, &text, "--image", &image],
            "expected \"clip\", for a file of a vision tower",
        ),
        (
            &[&mmproj, "--image", &mmproj, "--b-exec", "oracle"],
            "expected a PNG, JPEG, WebP, BMP or GIF file",
        ),
        (
            &[
                &mmproj,
                "--image",
                &image,
                "--b-exec",
                "oracle",
                "--same-routing",
            ],
            "chooses no experts",
        ),
    ];
    for (args, expected) in cases {
        let (code, out) = diff(args);
        assert_eq!(code, Some(2), "{args:?}: {out}");
        assert!(out.contains(expected), "{args:?}: {out}");
        assert_eq!(out.lines().count(), 1, "{args:?}: {out}");
    }
}

/// Compares with the output of an unmodified llama.cpp. Skipped if it is not built.
#[test]
fn towers_are_compared_with_what_llama_cpp_prints() {
    let (Some(mmproj), Some(text), Some(program)) = (
        file("vl-a-mmproj-F32.gguf"),
        file("vl-a-text-F32.gguf"),
        llama_cpp("llama-mtmd-cli"),
    ) else {
        return;
    };
    let images = ["photo", "wide"].map(|name| file(&format!("images/{name}.png")));
    let [photo, wide] = images.map(|image| image.expect("beside the models"));
    let dir = folder();
    let graph = dir.path().join("graph.txt");
    let status = Command::new(program)
        .args(["-m", &text, "--mmproj", &mmproj, "--image", &photo])
        .args(["-p", "?", "-n", "1", "-fa", "off", "-t", "1"])
        .env("MTMD_DEBUG_GRAPH", "1")
        .stdin(Stdio::null())
        .stdout(std::fs::File::create(&graph).expect("a file"))
        .stderr(Stdio::null())
        .status();
    assert!(status.expect("it runs").success());
    let graph = graph.to_str().expect("UTF-8");
    let (code, out) = diff(&[&mmproj, "--image", &photo, "--reference", graph]);
    assert_eq!(code, Some(0), "{out}");
    assert!(out.contains("within tolerance"), "{out}");
    let (code, out) = diff(&[&mmproj, "--image", &wide, "--reference", graph]);
    assert_eq!(code, Some(2), "{out}");
    assert!(out.contains("patches of the image"), "{out}");
    let limits = ["--image-min-tokens", "30"];
    let args = [&*mmproj, "--image", &photo, "--reference", graph];
    let (code, out) = diff(&[&args[..], &limits].concat());
    assert_eq!(code, Some(2), "{out}");
}

/// Reads F32 numbers from the bytes of a file.
fn floats(bytes: &[u8]) -> Vec<f32> {
    let (values, rest) = bytes.as_chunks::<4>();
    assert!(rest.is_empty());
    values.iter().map(|b| f32::from_le_bytes(*b)).collect()
}

/// The vectors of a text with an image are the hidden states that become its logits.
#[test]
fn vectors_of_images_become_logits() {
    let Some([mmproj, text, image]) = files("images/wide.png") else {
        return;
    };
    let dir = folder();
    let at = |name: &str| dir.path().join(name).display().to_string();
    let see = ["--mmproj", &mmproj, "--image", &image];
    let (vectors, logits) = (at("vectors.safetensors"), at("logits.gguf"));
    let embed = [
        "embed",
        &text,
        "--pooling",
        "none",
        "--no-normalize",
        "--dump",
        &vectors,
    ];
    good(&[&embed[..], &see[..], &["-p", "What?"]].concat());
    let ask = ["logits", &text, "--kv-type", "f32", "--dump", &logits];
    good(&[&ask[..], &see[..], &["-p", "What?"]].concat());

    let open = |path: &str| Gguf::open(path.as_ref(), &OpenOptions::default()).expect("sound");
    let (model, logits) = (open(&text), open(&logits));
    let tensor = |gguf: &Gguf, name: &str| floats(gguf.data(gguf.tensor(name).expect("there")));
    let vectors = std::fs::read(&vectors).expect("written");
    let vectors = safetensors::SafeTensors::deserialize(&vectors).expect("sound");
    let ids = vectors.tensor("tokens").expect("there");
    let tokens = ids.shape()[0];
    let image_tokens = ids.data().as_chunks::<4>().0;
    let image_tokens = image_tokens
        .iter()
        .filter(|id| i32::from_le_bytes(**id) == -1);
    assert_eq!(image_tokens.count(), 12);
    let rows = floats(vectors.tensor("embd").expect("there").data());
    // this model's output matrix is its embedding
    let output = tensor(&model, "token_embd.weight");
    let width = rows.len() / tokens;
    let product = |row: &[f32], of: &[f32]| -> f64 {
        let products = row
            .iter()
            .zip(of)
            .map(|(a, b)| f64::from(*a) * f64::from(*b));
        products.sum()
    };
    let ours = rows.chunks(width);
    let ours = ours.flat_map(|row| output.chunks(width).map(|of| product(row, of) as f32));
    let ours: Vec<f32> = ours.collect();
    let theirs = tensor(&logits, "logits");
    assert_eq!(ours.len(), theirs.len());
    let error = nmse(&ours, &theirs).expect("as many");
    assert!(error < 1e-10, "{error:e}");

    // the image alone, and refused together with --lines
    let alone = ["embed", &text, "--pooling", "last", "--json"];
    let alone = good(&[&alone[..], &see[..]].concat());
    let alone: serde_json::Value = serde_json::from_str(&alone).expect("JSON");
    let tokens = alone["tokens"].as_array().expect("ids");
    assert_eq!(tokens.iter().filter(|id| **id == -1).count(), 12);
    let error = bad(
        &[&["embed", &text, "--lines", "-p", "a"], &see[..]].concat(),
        2,
    );
    assert!(
        error.contains("--lines") && error.contains("--image"),
        "{error}"
    );
}
