//! `octavo diff` with pictures.

use std::process::{Command, Stdio};

use octavo_fixtures::{llama_cpp, shared};

use super::{folder, octavo, stderr, stdout};

/// A file of the shared folder's models that see.
fn file(name: &str) -> Option<String> {
    let path = shared(&format!("vision/{name}"))?;
    Some(path.to_str().expect("UTF-8").to_owned())
}

/// Runs `octavo diff`; its exit code, and what it printed to both.
fn diff(args: &[&str]) -> (Option<i32>, String) {
    let output = octavo(&[&["diff"], args].concat()).output();
    let output = output.expect("the program runs");
    let all = format!("{}{}", stdout(&output), stderr(&output));
    (output.status.code(), all)
}

#[test]
fn towers_and_texts_with_pictures_are_compared_with_the_oracle() {
    let (Some(mmproj), Some(text), Some(image)) = (
        file("vl-a-mmproj-F32.gguf"),
        file("vl-a-text-F32.gguf"),
        file("images/photo.png"),
    ) else {
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
    let (Some(mmproj), Some(text), Some(image)) = (
        file("vl-a-mmproj-F32.gguf"),
        file("vl-a-text-F32.gguf"),
        file("images/wide.png"),
    ) else {
        return;
    };
    let cases: &[(&[&str], &str)] = &[
        (
            &[&mmproj, "--b-exec", "oracle"],
            "expected one --image FILE, got 0",
        ),
        (
            &[&mmproj, "-p", "x", "--b-exec", "oracle"],
            "a vision tower sees pictures",
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
            "expected a PNG, JPEG or WebP file",
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

/// What stock llama.cpp prints on the spot. Skipped where it is not built.
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
    assert!(out.contains("patches of the picture"), "{out}");
    let limits = ["--image-min-tokens", "30"];
    let args = [&*mmproj, "--image", &photo, "--reference", graph];
    let (code, out) = diff(&[&args[..], &limits].concat());
    assert_eq!(code, Some(2), "{out}");
}
