//! WPM: BERT's WordPiece. Text becomes words, lower-cased and without accents; a word becomes its
//! longest prefix that is a token, then the longest prefix of the rest, and so on, or one unknown
//! token if that fails.

use gguf_rs_lite::Gguf;

use super::error::Error;
use super::folding::{base, lower};
use super::prefix::Prefixes;
use super::unicode::{
    MARK, PUNCTUATION, SYMBOL, categories, decode, is_control, is_whitespace, push_utf8,
};
use super::vocab::Vocab;

/// U+2581, the first character of tokens that begin a word.
const WORD: &[u8] = "\u{2581}".as_bytes();

/// Data of the WPM algorithm.
pub(super) struct Wpm {
    tokens: Prefixes,
    unknown: u32,
    lowercase: bool,
    strip_accents: bool,
}

impl Wpm {
    /// Prepares a vocabulary; `unknown` replaces words that cannot be built from its tokens.
    pub(super) fn read(gguf: &Gguf, vocab: &Vocab, unknown: u32) -> Result<Wpm, Error> {
        let lowercase = gguf.bool("tokenizer.ggml.normalizer.lowercase")?;
        let lowercase = lowercase.unwrap_or(true);
        let strip_accents = gguf.bool("tokenizer.ggml.normalizer.strip_accents")?;
        let with_text = |id: &u32| !vocab.texts.text(*id).is_empty();
        let with_text = vocab.ids().filter(with_text).collect();
        Ok(Wpm {
            tokens: Prefixes::new(with_text, |id| vocab.texts.text(id)),
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

    /// Appends the tokens of a word, if there is one, and starts the next.
    fn end_word(&self, vocab: &Vocab, word: &mut Vec<u8>, out: &mut Vec<u32>) {
        if word.len() == WORD.len() {
            return;
        }
        let before = out.len();
        let mut rest = word.as_slice();
        while !rest.is_empty() {
            let text = |id| vocab.texts.text(id);
            let Some((id, len)) = self.tokens.longest(text, rest) else {
                out.truncate(before);
                out.push(self.unknown);
                break;
            };
            out.push(id);
            rest = rest.get(len..).unwrap_or_default();
        }
        word.truncate(WORD.len());
    }
}

/// Returns whether a character is a Chinese ideograph, a word by itself; ranges as in BERT's
/// tokenizer.
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
