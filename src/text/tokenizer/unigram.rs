//! Unigram: SentencePiece's model of a score for each token. A text becomes the tokens with the
//! highest sum of scores, found by Viterbi's algorithm.

use std::cmp::Reverse;

use gguf_rs_lite::{Array, Gguf};

use super::MAX_TEXT_BYTES;
use super::charsmap::Charsmap;
use super::error::Error;
use super::vocab::{NORMAL, UNUSED, USER_DEFINED, Vocab, typed_array};

/// U+2581, a space in tokens.
const SPACE: &[u8] = "\u{2581}".as_bytes();

/// U+FFFD, which replaces a byte that is not part of a character.
const REPLACEMENT: &[u8] = "\u{FFFD}".as_bytes();

/// Difference between the least score of a token and that of an unknown character.
const PENALTY: f32 = 10.0;

/// Data of the Unigram algorithm.
pub(super) struct Unigram {
    /// Tokens that texts are segmented into.
    tokens: PrefixIndex,
    /// Tokens that normalization leaves as they are.
    user_defined: PrefixIndex,
    charsmap: Option<Charsmap>,
    /// Token for characters without one, and its score.
    unknown: u32,
    unknown_score: f64,
    /// Whether a space is put before a text.
    add_space_prefix: bool,
    /// Whether several spaces become one, and none is left at the end.
    remove_extra_whitespaces: bool,
}

/// Best segmentation of a text up to a byte offset.
#[derive(Clone, Copy)]
struct Best {
    /// Its last token.
    token: u32,
    /// Byte offset where that token begins.
    start: u32,
    /// Sum of the scores.
    score: f64,
}

impl Unigram {
    /// Prepares a vocabulary; `unknown` replaces characters without a token.
    pub(super) fn read(gguf: &Gguf, vocab: &Vocab, unknown: u32) -> Result<Unigram, Error> {
        const MAP: &str = "tokenizer.ggml.precompiled_charsmap";
        let bytes = |array: &Array<'_>| {
            let of_i8 = array.i8s().map(|all| all.map(i8::cast_unsigned).collect());
            array.u8s().map(Iterator::collect).or(of_i8)
        };
        let map: Option<Vec<u8>> = typed_array(gguf, MAP, "u8 or i8", bytes)?;
        let map = map.map(|bytes| Charsmap::read(gguf.name(), &bytes));
        let with = |attrs| {
            let has = move |id: &u32| vocab.attrs(*id) & attrs != 0;
            PrefixIndex::new(vocab, vocab.ids().filter(has))
        };
        let normal = vocab.ids().filter(|id| vocab.attrs(*id) & NORMAL != 0);
        let least = normal.map(|id| score(vocab, id)).fold(f32::MAX, f32::min);
        let flag = |key: &str| Ok::<_, Error>(gguf.bool(key)?.unwrap_or(false));
        Ok(Unigram {
            tokens: with(NORMAL | USER_DEFINED | UNUSED),
            user_defined: with(USER_DEFINED),
            charsmap: map.transpose()?,
            unknown,
            unknown_score: f64::from(least - PENALTY),
            add_space_prefix: flag("tokenizer.ggml.add_space_prefix")?,
            remove_extra_whitespaces: flag("tokenizer.ggml.remove_extra_whitespaces")?,
        })
    }

    /// Appends the tokens of a text.
    pub(super) fn encode(
        &self,
        vocab: &Vocab,
        text: &[u8],
        out: &mut Vec<u32>,
    ) -> Result<(), Error> {
        let text = self.normalized(vocab, text)?;
        if text.is_empty() {
            return Ok(());
        }
        let best = self.best(vocab, &text);
        let first = out.len();
        let mut at = text.len();
        let mut last = None;
        while let Some(Best { token, start, .. }) = best.get(at).copied() {
            // unknown characters one after the other become one token
            if last != Some(self.unknown) || token != self.unknown {
                out.push(token);
            }
            last = Some(token);
            at = start as usize;
            if at == 0 {
                break;
            }
        }
        if let Some(own) = out.get_mut(first..) {
            own.reverse();
        }
        Ok(())
    }

    /// Returns the best segmentation up to each byte offset of a text.
    fn best(&self, vocab: &Vocab, text: &[u8]) -> Vec<Best> {
        let nowhere = Best {
            token: self.unknown,
            start: 0,
            score: -f64::MAX,
        };
        let mut best = vec![nowhere; text.len() + 1];
        if let Some(start) = best.first_mut() {
            start.score = 0.0;
        }
        let mut at = 0;
        while let Some(first) = text.get(at) {
            let rest = text.get(at..).unwrap_or_default();
            let character = len_by_first(*first).min(rest.len());
            let so_far = best.get(at).map_or(0.0, |best| best.score);
            let mut put = |len: usize, token: u32, score: f64| {
                let score = so_far + score;
                if let Some(place) = best.get_mut(at + len).filter(|best| score > best.score) {
                    let start = u32::try_from(at).unwrap_or(u32::MAX);
                    *place = Best {
                        token,
                        start,
                        score,
                    };
                }
            };
            let mut is_known = false;
            self.tokens.of(vocab, rest, |len, token| {
                is_known |= len == character;
                let is_free = vocab.attrs(token) & USER_DEFINED != 0;
                let score = if is_free { 0.0 } else { score(vocab, token) };
                put(len, token, f64::from(score));
            });
            if !is_known {
                put(character, self.unknown, self.unknown_score);
            }
            at += character;
        }
        best
    }

    /// Returns the text with replaced characters, and spaces as tokens have them.
    fn normalized(&self, vocab: &Vocab, text: &[u8]) -> Result<Vec<u8>, Error> {
        let mut out = Vec::with_capacity(text.len() + text.len() / 2);
        let (mut is_in_word, mut has_prefix) = (false, false);
        let mut at = 0;
        while let Some(rest) = text.get(at..).filter(|rest| !rest.is_empty()) {
            let (len, part) = self.part(vocab, rest)?;
            for byte in part {
                let is_space = *byte == b' ';
                if is_space && !self.remove_extra_whitespaces {
                    out.extend_from_slice(SPACE);
                }
                if !is_space && !is_in_word {
                    let is_first = self.add_space_prefix && !has_prefix;
                    if is_first || self.remove_extra_whitespaces {
                        out.extend_from_slice(SPACE);
                        has_prefix = true;
                    }
                }
                if !is_space {
                    out.push(*byte);
                }
                is_in_word = !is_space;
            }
            at += len;
            if out.len() > MAX_TEXT_BYTES {
                return Err(Error::TextTooLong {
                    got: out.len(),
                    limit: MAX_TEXT_BYTES,
                });
            }
        }
        Ok(out)
    }

    /// Returns the length of what is normalized next, and its replacement.
    fn part<'a>(&'a self, vocab: &Vocab, rest: &'a [u8]) -> Result<(usize, &'a [u8]), Error> {
        let mut longest = 0;
        let see = |len, _| longest = len;
        self.user_defined.of(vocab, rest, see);
        if longest == 0
            && let Some(map) = &self.charsmap
            && let Some(replaced) = map.longest(rest)?
        {
            return Ok(replaced);
        }
        let own = match longest {
            0 => len_of_character(rest),
            len => Some(len),
        };
        Ok(match own.and_then(|len| rest.get(..len)) {
            Some(part) => (part.len(), part),
            None => (1, REPLACEMENT),
        })
    }
}

fn score(vocab: &Vocab, id: u32) -> f32 {
    vocab.scores.get(id as usize).copied().unwrap_or(0.0)
}

/// Returns the length of a character by its first byte.
fn len_by_first(first: u8) -> usize {
    match first >> 4 {
        0xF => 4,
        0xE => 3,
        0xC | 0xD => 2,
        _ => 1,
    }
}

/// Returns the length of the first character; `None` if it is none. As in llama.cpp, values are not
/// checked.
fn len_of_character(text: &[u8]) -> Option<usize> {
    let len = match text.first()? {
        0..=0x7F => 1,
        0xC0..=0xDF => 2,
        0xE0..=0xEF => 3,
        0xF0..=0xF7 => 4,
        _ => return None,
    };
    let rest = text.get(1..len)?;
    rest.iter().all(|byte| byte & 0xC0 == 0x80).then_some(len)
}

/// Index of the tokens that a text begins with.
struct PrefixIndex {
    /// Sorted by text; of equal texts the last token comes first.
    sorted: Vec<u32>,
    /// For each first byte, and one more, the place in `sorted` where its tokens begin.
    by_first: Vec<usize>,
}

impl PrefixIndex {
    fn new(vocab: &Vocab, ids: impl Iterator<Item = u32>) -> PrefixIndex {
        let text = |id: u32| vocab.texts.text(id);
        let mut sorted: Vec<u32> = ids.filter(|id| !text(*id).is_empty()).collect();
        sorted.sort_by_key(|id| (text(*id), Reverse(*id)));
        let starts = |byte: u16| {
            sorted.partition_point(|id| text(*id).first().is_some_and(|b| u16::from(*b) < byte))
        };
        PrefixIndex {
            by_first: (0..=256).map(starts).collect(),
            sorted,
        }
    }

    /// Calls `see` with length and id of each token that `text` begins with, shortest first.
    fn of(&self, vocab: &Vocab, text: &[u8], mut see: impl FnMut(usize, u32)) {
        let Some(first) = text.first().map(|byte| usize::from(*byte)) else {
            return;
        };
        let range = self.by_first.get(first..first + 2);
        let mut own = match range {
            Some(&[start, end]) => self.sorted.get(start..end).unwrap_or_default(),
            _ => return,
        };
        // all tokens in `own` begin with the first `len` bytes
        let mut len = 1;
        while let Some(id) = own.first() {
            let at = |id: &u32| vocab.texts.text(*id).get(len).copied();
            if at(id).is_none() {
                see(len, *id);
            }
            let Some(next) = text.get(len).copied() else {
                return;
            };
            // a token that ends here sorts before all that go on
            let start = own.partition_point(|id| at(id).is_none_or(|byte| byte < next));
            let end = own.partition_point(|id| at(id).is_none_or(|byte| byte <= next));
            own = own.get(start..end).unwrap_or_default();
            len += 1;
        }
    }
}
