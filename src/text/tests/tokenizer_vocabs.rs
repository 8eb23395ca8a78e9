//! llama.cpp's own tokenizer tests: each vocabulary file with its `.inp` and `.out`, ids exact.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::shared;
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};

#[test]
fn every_pair_of_every_vocabulary_is_exact() {
    let Some(folder) = shared("vocabs") else {
        return;
    };
    let (mut files, mut pairs) = (0, 0);
    for entry in std::fs::read_dir(&folder).expect("the folder of vocabularies can be read") {
        let path = entry.expect("an entry of the folder").path();
        if path.extension().is_none_or(|ext| ext != "gguf") {
            continue;
        }
        let name = path.display().to_string();
        let read = |suffix: &str| {
            std::fs::read_to_string(format!("{name}.{suffix}")).expect("the pairs can be read")
        };
        let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a vocabulary file");
        let tokenizer = Tokenizer::from_gguf(&gguf).expect("its tokenizer");
        let (inputs, outputs) = (read("inp"), read("out"));
        let inputs: Vec<&str> = inputs.split("\n__ggml_vocab_test__\n").collect();
        // The last input is an empty line at the end of the file; each line of ids belongs to one
        // input.
        let outputs: Vec<&str> = outputs.lines().collect();
        let inputs = &inputs[..inputs.len().min(outputs.len())];
        assert_eq!(inputs.len(), outputs.len(), "{name}");
        for (i, (input, output)) in inputs.iter().zip(&outputs).enumerate() {
            let expected: Vec<u32> = output
                .split_ascii_whitespace()
                .map(|id| id.parse().expect("an id"))
                .collect();
            let ids = tokenizer
                .encode(input.as_bytes(), EncodeOptions::PIECE)
                .expect("ids");
            assert_eq!(ids, expected, "{name}, input {i}: {input:?}");
            pairs += 1;
        }
        files += 1;
    }
    println!("{pairs} pairs of {files} vocabularies");
    assert!(
        files >= 7 && pairs >= 7 * 40,
        "{pairs} pairs of {files} vocabularies"
    );
}
