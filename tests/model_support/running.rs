//! Files small enough to be broken a thousand ways, yet whole: they tokenize, chat and generate.

use gguf_rs_lite::TensorType;

use super::breaking::Rng;
use super::{File, Val};

const TEMPLATE: &str = "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}<|end|>";

/// A number in -0.2 to 0.2.
fn weight(rng: &mut Rng) -> f32 {
    (rng.below(4001) as f32 - 2000.0) * 1e-4
}

impl File {
    /// A model of two layers with random weights, a vocabulary (SentencePiece for llama, else BPE)
    /// and a chat template.
    pub fn running(arch: &'static str) -> File {
        let mut f = File::new(arch, 2);
        let n_vocab = if arch == "llama" {
            f.sentence_piece()
        } else {
            f.byte_pairs()
        };
        f.kv.push(("tokenizer.chat_template".to_owned(), TEMPLATE.into()));
        let mut rng = Rng(7);
        for t in &mut f.tensors {
            if matches!(t.name.as_str(), "token_embd.weight" | "output.weight") {
                t.dims[1] = n_vocab as u64;
            }
            let n: u64 = t.dims.iter().product();
            let norm = t.name.contains("norm");
            t.values = Some(
                (0..n)
                    .map(|_| {
                        if norm {
                            1.0 + weight(&mut rng)
                        } else {
                            weight(&mut rng)
                        }
                    })
                    .collect(),
            );
        }
        // the largest two as bytes: quantized rows are read too, and the file stays small
        f.tensors
            .iter_mut()
            .filter(|t| t.name.ends_with("ffn_up.weight"))
            .for_each(|t| {
                (t.ty, t.values) = (TensorType::Q8_0, None);
            });
        f
    }

    fn vocabulary(
        &mut self,
        model: &str,
        pre: &str,
        tokens: Vec<String>,
        types: Vec<i32>,
    ) -> usize {
        let n = tokens.len();
        self.set("tokenizer.ggml.model", model);
        self.set("tokenizer.ggml.pre", pre);
        self.set("tokenizer.ggml.tokens", tokens);
        self.set("tokenizer.ggml.token_type", types);
        self.set("tokenizer.ggml.eos_token_id", Val::U32(2));
        self.set("tokenizer.ggml.add_bos_token", Val::Bool(model == "llama"));
        n
    }

    fn byte_pairs(&mut self) -> usize {
        let mut tokens: Vec<String> = ["<|user|>", "<|system|>", "<|end|>"]
            .map(str::to_owned)
            .to_vec();
        let mut types = vec![3; tokens.len()];
        // GPT-2's alphabet: printable bytes stand for themselves, the others for what follows
        // U+0100
        let mut others = 0x100..;
        for byte in 0..=255u32 {
            let printable = matches!(byte, 0x21..=0x7e | 0xa1..=0xac | 0xae..=0xff);
            let code = if printable {
                byte
            } else {
                others.next().expect("endless")
            };
            tokens.push(char::from_u32(code).expect("a character").to_string());
        }
        let merges = ["h e", "l l", "he ll", "hell o", "\u{120} w"]
            .map(str::to_owned)
            .to_vec();
        tokens.extend(merges.iter().map(|merge| merge.replace(' ', "")));
        types.resize(tokens.len(), 1);
        self.set("tokenizer.ggml.merges", merges);
        self.vocabulary("gpt2", "qwen2", tokens, types)
    }

    fn sentence_piece(&mut self) -> usize {
        let mut tokens: Vec<String> = ["<unk>", "<s>", "</s>"].map(str::to_owned).to_vec();
        let mut types = vec![2, 3, 3];
        tokens.extend((0..=255).map(|byte| format!("<0x{byte:02X}>")));
        types.resize(tokens.len(), 6);
        let pieces = [
            "\u{2581}",
            "h",
            "e",
            "l",
            "o",
            "he",
            "ll",
            "hell",
            "hello",
            "\u{2581}hello",
            "\u{2581}w",
        ];
        tokens.extend(pieces.map(str::to_owned));
        types.resize(tokens.len(), 1);
        let scores: Vec<f32> = (0..tokens.len())
            .map(|i| if i < 259 { 0.0 } else { i as f32 - 300.0 })
            .collect();
        self.set("tokenizer.ggml.scores", scores);
        self.set("tokenizer.ggml.bos_token_id", Val::U32(1));
        self.set("tokenizer.ggml.unknown_token_id", Val::U32(0));
        self.vocabulary("llama", "default", tokens, types)
    }
}
