//! Scores of small rerankers against stock llama.cpp's, and the tokens of their pairs.

use std::path::Path;

use octavo_engine::{Engine, Pooling};
use octavo_fixtures::{Lacks, shared, skip};
use octavo_kernels::{Isa, IsaChoice};
use octavo_text::pair::PairFormat;
use serde_json::Value;

use crate::embeddings::{embed, load};

/// The models, and how far llama.cpp's scores may be off: it takes GELU from a table of halves.
const MODELS: [(&str, f32); 5] = [
    ("bge-reranker", 1e-3),
    ("classifier", 1e-3),
    ("cross-encoder", 1e-3),
    ("modern-bert-reranker", 1e-3),
    ("qwen3-reranker", 1e-5),
];

/// A query with documents, as llama.cpp read and scored them.
struct Pairs {
    query: String,
    documents: Vec<String>,
    tokens: Vec<Vec<u32>>,
    scores: Vec<Vec<f32>>,
}

impl Pairs {
    fn read(path: &Path) -> Pairs {
        let text = std::fs::read_to_string(path).expect("pairs");
        let pairs = serde_json::from_str::<Value>(&text).expect("JSON")["pairs"].take();
        let of = |name: &str| pairs[name].clone();
        Pairs {
            query: serde_json::from_value(of("query")).expect("a text"),
            documents: serde_json::from_value(of("documents")).expect("texts"),
            tokens: serde_json::from_value(of("tokens")).expect("ids"),
            scores: serde_json::from_value(of("scores")).expect("scores"),
        }
    }

    /// Returns the tokens of each pair.
    fn encode(&self, engine: &Engine) -> Vec<Vec<u32>> {
        let format = PairFormat::from_gguf(engine.gguf(), engine.tokenizer()).expect("a format");
        let pair = |document: &String| format.encode(engine.tokenizer(), &self.query, document);
        let pairs = self.documents.iter().map(|one| pair(one).expect("tokens"));
        pairs.collect()
    }
}

#[test]
fn scores_are_those_of_llama_cpp() {
    let Some(folder) = shared("feat/embed") else {
        return;
    };
    for isa in Isa::ALL {
        if !isa.is_available() {
            skip(Lacks::InstructionSet, isa);
            continue;
        }
        // the products of a prompt are rounded
        let rounding = 20.0 * isa.prompt_rounding().products as f32;
        for (name, bound) in MODELS {
            let model = folder.join(format!("models/{name}-F32.gguf"));
            let engine = load(&model, IsaChoice::Only(isa), 2);
            let pairs = Pairs::read(&folder.join(format!("goldens/{name}-F32/rerank.json")));
            let tokens = pairs.encode(&engine);
            assert_eq!(tokens, pairs.tokens, "{name}");
            let texts: Vec<&[u32]> = tokens.iter().map(Vec::as_slice).collect();
            let together = embed(&engine, &texts, Pooling::Rank);
            for (text, (ours, theirs)) in texts.iter().zip(together.iter().zip(&pairs.scores)) {
                assert_eq!(ours.len(), theirs.len(), "{name}");
                let worst = ours.iter().zip(theirs).map(|(a, b)| (a - b).abs());
                let worst = worst.fold(0.0, f32::max);
                let allowed = bound + rounding;
                assert!(
                    worst <= allowed,
                    "{name} {isa}: {ours:?}, expected {theirs:?}"
                );
                let alone = embed(&engine, &[text], Pooling::Rank);
                assert_eq!(&alone[0], ours, "{name} {isa}: the same bits alone");
            }
        }
    }
}

#[test]
fn the_files_way_of_pooling_and_its_labels_are_read() {
    let Some(folder) = shared("feat/embed/models") else {
        return;
    };
    let of = |name: &str| load(&folder.join(name), IsaChoice::Auto, 1);
    let qwen = of("qwen3-reranker-F32.gguf");
    assert_eq!(qwen.pooling(), Pooling::Rank);
    assert_eq!(qwen.hparams().labels, ["yes", "no"]);
    let several = of("classifier-F32.gguf");
    assert_eq!(
        several.hparams().labels,
        ["negative", "neutral", "positive"]
    );
    assert_eq!(several.embedding_width(Pooling::Rank), 3);
    let none = of("e5-F32.gguf");
    assert!(none.classifier().is_none());
}

#[test]
fn a_query_does_not_bring_the_document_in() {
    let Some(folder) = shared("feat/embed/models") else {
        return;
    };
    let engine = load(&folder.join("qwen3-reranker-F32.gguf"), IsaChoice::Auto, 1);
    let tokenizer = engine.tokenizer();
    let format = PairFormat::Template("{query}|{document}|{query}".to_owned());
    let tokens = format
        .encode(tokenizer, "{document}", "x{query}")
        .expect("tokens");
    let text = String::from_utf8(tokenizer.decode(&tokens, true)).expect("UTF-8");
    assert_eq!(text, "{document}|x{query}|{document}");
    // a document that would fill the memory is refused before it does
    let many = "{document}".repeat(1 << 16);
    let format = PairFormat::Template(many);
    let error = format.encode(tokenizer, "", &"x".repeat(1 << 20));
    assert!(error.is_err(), "64 GiB");
}
