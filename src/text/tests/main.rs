//! Integration tests of the text crate.

mod answer;
mod chat_template;
mod stop;
mod tokenizer_gemma4;
mod tokenizer_hf;
mod tokenizer_hostile;
mod tokenizer_roundtrip;
mod tokenizer_rwkv;
mod tokenizer_unigram;
mod tokenizer_vocabs;
mod tokenizer_wpm;
