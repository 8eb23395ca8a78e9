//! Model folders of repositories without GGUF files.

use super::*;

#[test]
fn folders_come_with_those_of_their_modules() {
    let place = Place::new();
    let hub = place.hub_with(None);
    for (path, content) in [
        ("config.json", &b"{}"[..]),
        ("model.safetensors", b"weights"),
        ("tokenizer.json", b"{}"),
        ("pytorch_model.bin", b"other weights"),
        ("1_Pooling/config.json", b"{}"),
        ("onnx/config.json", b"{}"),
        ("2_Dense/more/config.json", b"{}"),
    ] {
        place.standin.add("u/folder", path, content);
    }
    let folder = hub
        .model(&model("hf:u/folder"), &mut |_| {})
        .expect("it is fetched");
    let pooling = folder.join("1_Pooling/config.json");
    assert_eq!(fs::read(pooling).expect("it is there"), b"{}");
    let mut names: Vec<String> = fs::read_dir(folder)
        .expect("a folder")
        .map(|entry| {
            entry
                .expect("an entry")
                .file_name()
                .to_string_lossy()
                .into_owned()
        })
        .collect();
    names.sort();
    assert_eq!(
        names,
        [
            "1_Pooling",
            "config.json",
            "model.safetensors",
            "tokenizer.json"
        ]
    );
}
