//! WPM: BERT's word pieces. Text becomes words without accents and capitals; a word becomes the
//! longest token that it begins with, then the longest that the rest begins with, and so on, or one
//! unknown token if that does not come out.

use gguf_rs_lite::Gguf;

use super::error::Error;
use super::folding::{base, lower};
use super::unicode::{
    MARK, PUNCTUATION, SYMBOL, categories, decode, is_control, is_whitespace, push_utf8,
};
use super::vocab::Vocab;

/// U+2581: tokens that begin a word begin with it.
const WORD: &[u8] = "\u{2581}".as_bytes();

/// The algorithm's own data.
pub(super) struct Wpm {
    /// Tokens by their bytes.
    sorted: Vec<u32>,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
}

impl Wpm {
    /// Prepares a vocabulary; `unknown` stands for words that it does not make.
    pub(super) fn read(gguf: &Gguf, vocab: &Vocab, unknown: u32) -> Result<Wpm, Error> {
        let lowercase = gguf.bool("tokenizer.ggml.normalizer.lowercase")?;
        let lowercase = lowercase.unwrap_or(true);
        let strip_accents = gguf.bool("tokenizer.ggml.normalizer.strip_accents")?;
        let with_text = |id: &u32| !vocab.texts.text(*id).is_empty();
        let mut sorted: Vec<u32> = vocab.ids().filter(with_text).collect();
        sorted.sort_unstable_by_key(|id| vocab.texts.text(*id));
        Ok(Wpm {
            sorted,
            unknown,
            lowercase,
            strip_accents: strip_accents.unwrap_or(lowercase),
        })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) {
        let mut cps = Vec::new();
        decode(text, &mut cps);
        let mut word = WORD.to_vec();
        for cp in cps {
            let cp = if self.strip_accents { base(cp) } else { cp };
            if is_whitespace(cp) {
                self.end_word(vocab, &mut word, out);
                continue;
            }
            let category = categories().of(cp);
            let is_dropped = matches!(cp, 0 | 0xFFFD)
                || is_control(cp)
                || (self.strip_accents && category & MARK != 0);
            if is_dropped {
                continue;
            }
            let stands_alone = category & PUNCTUATION != 0
                || (cp < 0x7F && category & SYMBOL != 0)
                || is_ideograph(cp);
            if stands_alone {
                self.end_word(vocab, &mut word, out);
            }
            push_utf8(if self.lowercase { lower(cp) } else { cp }, &mut word);
            if stands_alone {
                self.end_word(vocab, &mut word, out);
            }
        }
        self.end_word(vocab, &mut word, out);
    }

    /// Appends the tokens of a word, if there is one, and begins another.
    fn end_word(&self, vocab: &Vocab, word: &mut Vec<u8>, out: &mut Vec<u32>) {
        if word.len() == WORD.len() {
            return;
        }
        let before = out.len();
        let mut rest = word.as_slice();
        while !rest.is_empty() {
            let Some((id, len)) = self.longest(vocab, rest) else {
                out.truncate(before);
                out.push(self.unknown);
                break;
            };
            out.push(id);
            rest = rest.get(len..).unwrap_or_default();
        }
        word.truncate(WORD.len());
    }

    /// The longest token that bytes begin with, and its length: the candidates are narrowed down
    /// byte by byte, so that no more are looked at than the longest token has.
    fn longest(&self, vocab: &Vocab, bytes: &[u8]) -> Option<(u32, usize)> {
        let mut candidates = self.sorted.as_slice();
        let mut found = None;
        for (at, byte) in bytes.iter().enumerate() {
            // those that end before this byte come first
            let byte_of = |id: &u32| vocab.texts.text(*id).get(at).copied();
            let start = candidates.partition_point(|id| byte_of(id) < Some(*byte));
            candidates = candidates.get(start..)?;
            let end = candidates.partition_point(|id| byte_of(id) <= Some(*byte));
            candidates = candidates.get(..end)?;
            let Some(first) = candidates.first() else {
                break;
            };
            if vocab.texts.text(*first).len() == at + 1 {
                found = Some((*first, at + 1));
            }
        }
        found
    }
}

/// Chinese characters, each of which is a word; the ranges are those of BERT's tokenizer.
fn is_ideograph(cp: u32) -> bool {
    matches!(
        cp,
        0x4E00..=0x9FFF
            | 0x3400..=0x4DBF
            | 0x20000..=0x2A6DF
            | 0x2A700..=0x2B73F
            | 0x2B740..=0x2B81F
            | 0x2B920..=0x2CEAF
            | 0xF900..=0xFAFF
            | 0x2F800..=0x2FA1F
    )
}
