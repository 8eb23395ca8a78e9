//! all-MiniLM-L6-v2, a real embedding model, from its published folder: its tokens are those of the
//! tokenizers library, its vectors those of BERT written down a second time in f64.

use super::*;
use octavo_fixtures::{Lacks, skip};
use safetensors::SafeTensors;

/// Layers, heads, and values per head.
const SIZES: [usize; 3] = [6, 12, 32];
const WIDTH: usize = SIZES[1] * SIZES[2];

const TEXTS: [&str; 4] = [
    "The quick brown fox jumps over the lazy dog.",
    "A man is eating food.\nA girl is carrying a baby.",
    "Über façade — ＡＢＣ 你好 world, isn't it? 12345",
    "",
];

/// Returns the folder, if `OCTAVO_MINILM` names it.
fn folder() -> Option<PathBuf> {
    let folder = std::env::var_os("OCTAVO_MINILM").map(PathBuf::from);
    if folder.is_none() {
        skip(
            Lacks::Model,
            "OCTAVO_MINILM does not name the folder of MiniLM",
        );
    }
    folder
}

fn embedding(path: &Path, text: &str) -> Vec<f32> {
    let isa = Isa::available().into_iter().last().expect("one");
    load(path, isa, true).embed(text).expect("a vector")
}

#[test]
fn its_tokens_are_those_of_the_tokenizers_library() {
    let Some(folder) = folder() else { return };
    let theirs = tokenizers::Tokenizer::from_file(folder.join("tokenizer.json"));
    let mut theirs = theirs.expect("their library reads it");
    theirs.with_padding(None);
    theirs.with_truncation(None).expect("no limit");
    let view = hf::open(&folder, &OpenOptions::default()).expect("a folder");
    let ours = Tokenizer::from_gguf(&view).expect("a tokenizer");
    let prose = std::fs::read_to_string(workspace_root().join("README.md")).expect("there");
    // not Hangul: llama.cpp, and so this tokenizer, leaves its syllables whole
    let more = [
        "naïve Œuvre İstanbul ﬁne",
        "日本語テキスト",
        "a\u{200b}b\tc\r\n d",
        "😀!?…¿",
    ];
    let mut count = 0;
    for text in TEXTS.into_iter().chain(prose.lines()).chain(more) {
        let theirs = theirs.encode(text, true).expect("tokens");
        let ours = ours.encode(text.as_bytes(), EncodeOptions::PROMPT);
        assert_eq!(ours.expect("tokens"), theirs.get_ids(), "{text:?}");
        count += theirs.len();
    }
    assert!(count > 1000, "{count} tokens");
}

#[test]
fn its_vectors_are_those_of_bert_in_f64() {
    let Some(folder) = folder() else { return };
    let bytes = std::fs::read(folder.join("model.safetensors")).expect("there");
    let tensors = SafeTensors::deserialize(&bytes).expect("sound");
    let view = hf::open(&folder, &OpenOptions::default()).expect("a folder");
    hf::check(&view).expect("a model");
    let tokenizer = Tokenizer::from_gguf(&view).expect("a tokenizer");
    let dir = TempDir::new().expect("a folder");
    let file = dir.path().join("minilm.gguf");
    convert(&view, Some(TensorType::F32), &file, 2);
    for text in TEXTS {
        let tokens = tokenizer.encode(text.as_bytes(), EncodeOptions::PROMPT);
        let exact = Bert(&tensors).vector(&tokens.expect("tokens"));
        let ours = embedding(&folder, text);
        let off = |(a, b): (&f32, &f64)| (f64::from(*a) - b).abs();
        let worst = ours.iter().zip(&exact).map(off).fold(0.0, f64::max);
        assert!(worst < 1e-6, "{text:?}: {worst:e}");
        assert!(
            ours == embedding(&file, text),
            "{text:?}: the file's is another"
        );
    }
}

type Rows = Vec<Vec<f64>>;

/// BERT with GELU by tanh, as llama.cpp computes it.
struct Bert<'a>(&'a SafeTensors<'a>);

impl Bert<'_> {
    fn values(&self, name: &str) -> Vec<f64> {
        let tensor = self.0.tensor(name).expect("there");
        let floats = tensor.data().as_chunks().0.iter();
        floats.map(|b| f64::from(f32::from_le_bytes(*b))).collect()
    }

    fn product(&self, rows: &Rows, name: &str) -> Rows {
        let weight = self.values(&format!("{name}.weight"));
        let bias = self.values(&format!("{name}.bias"));
        let row = |x: &Vec<f64>| {
            let dot = |(w, b): (&[f64], &f64)| w.iter().zip(x).map(|(w, x)| w * x).sum::<f64>() + b;
            weight.chunks(x.len()).zip(&bias).map(dot).collect()
        };
        rows.iter().map(row).collect()
    }

    fn normed(&self, rows: &Rows, name: &str) -> Rows {
        let weight = self.values(&format!("{name}.weight"));
        let bias = self.values(&format!("{name}.bias"));
        let row = |x: &Vec<f64>| {
            let n = x.len() as f64;
            let mean = x.iter().sum::<f64>() / n;
            let variance = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
            let scale = 1.0 / (variance + 1e-12).sqrt();
            let one = |((x, w), b): ((&f64, &f64), &f64)| (x - mean) * scale * w + b;
            x.iter().zip(&weight).zip(&bias).map(one).collect()
        };
        rows.iter().map(row).collect()
    }

    fn vector(&self, tokens: &[u32]) -> Vec<f64> {
        let of = |name: &str| self.values(&format!("embeddings.{name}_embeddings.weight"));
        let (words, positions, types) = (of("word"), of("position"), of("token_type"));
        let embedded = tokens.iter().enumerate().map(|(at, token)| {
            let word = &words[*token as usize * WIDTH..][..WIDTH];
            let position = &positions[at * WIDTH..][..WIDTH];
            (0..WIDTH)
                .map(|i| word[i] + position[i] + types[i])
                .collect()
        });
        let mut rows = self.normed(&embedded.collect(), "embeddings.LayerNorm");
        for layer in 0..SIZES[0] {
            let name = |part: &str| format!("encoder.layer.{layer}.{part}");
            let mixed = self.attention(&rows, &name("attention.self"));
            let mixed = self.product(&mixed, &name("attention.output.dense"));
            rows = self.normed(&sum(&rows, &mixed), &name("attention.output.LayerNorm"));
            let mut inner = self.product(&rows, &name("intermediate.dense"));
            inner.iter_mut().flatten().for_each(|x| *x = gelu(*x));
            let outer = self.product(&inner, &name("output.dense"));
            rows = self.normed(&sum(&rows, &outer), &name("output.LayerNorm"));
        }
        let mean = |i: usize| rows.iter().map(|row| row[i]).sum::<f64>() / rows.len() as f64;
        let mean: Vec<f64> = (0..WIDTH).map(mean).collect();
        let length = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
        mean.iter().map(|x| x / length).collect()
    }

    fn attention(&self, rows: &Rows, name: &str) -> Rows {
        let [queries, keys, values] =
            ["query", "key", "value"].map(|part| self.product(rows, &format!("{name}.{part}")));
        let dim = SIZES[2];
        let of_row = |query: &Vec<f64>| {
            let of_head = |head: usize| {
                let own = head * dim..(head + 1) * dim;
                let score = |key: &Vec<f64>| {
                    let pairs = query[own.clone()].iter().zip(&key[own.clone()]);
                    pairs.map(|(q, k)| q * k).sum::<f64>() / (dim as f64).sqrt()
                };
                let weights: Vec<f64> = keys.iter().map(|key| score(key).exp()).collect();
                let all: f64 = weights.iter().sum();
                let mixed = |i: usize| {
                    let pairs = weights.iter().zip(&values);
                    pairs.map(|(w, value)| w * value[i]).sum::<f64>() / all
                };
                own.clone().map(mixed).collect::<Vec<f64>>()
            };
            (0..SIZES[1]).flat_map(of_head).collect()
        };
        queries.iter().map(of_row).collect()
    }
}

fn sum(a: &Rows, b: &Rows) -> Rows {
    let rows = a.iter().zip(b);
    rows.map(|(a, b)| a.iter().zip(b).map(|(a, b)| a + b).collect())
        .collect()
}

fn gelu(x: f64) -> f64 {
    let inner = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044_715 * x.powi(3));
    0.5 * x * (1.0 + inner.tanh())
}
