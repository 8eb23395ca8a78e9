//! The model that is built into the binary: `tiny-qwen3`, 2.6 million parameters, trained by
//! `demo/train_tiny.py`. It knows small sums, capitals and opposites, enough to see an engine
//! answer right without downloading anything.

/// The demo model's GGUF file, Q4_K_M, 1.67 MB.
pub fn demo_model() -> &'static [u8] {
    include_bytes!("../demo/tiny-qwen3-Q4_K_M.gguf")
}

#[cfg(test)]
mod tests {
    use super::*;
    use gguf_rs_lite::{Gguf, OpenOptions};

    #[test]
    fn the_demo_opens_and_continues_one_plus_one_with_two() {
        let gguf = Gguf::from_bytes(demo_model(), "demo", &OpenOptions::default()).unwrap();
        assert_eq!(gguf.str("general.architecture").unwrap(), Some("qwen3"));
        assert_eq!(gguf.str("general.name").unwrap(), Some("tiny-qwen3"));
        let oracle = crate::Oracle::open(&gguf).unwrap();
        let piece = |text: &[u8]| {
            let pieces = gguf.array("tokenizer.ggml.tokens").unwrap().unwrap();
            pieces.strings().unwrap().position(|p| p == text).unwrap() as u32
        };
        let logits = oracle
            .forward(&[piece(b"1"), piece(b"+"), piece(b"1"), piece(b"=")])
            .unwrap();
        let last = &logits[3 * oracle.n_vocab()..];
        assert_eq!(crate::metrics::top_k(last, 1), [piece(b"2")]);
    }
}
