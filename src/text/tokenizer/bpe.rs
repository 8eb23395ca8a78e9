//! Byte-pair encoding: in each word, the adjacent pair whose merge has the lowest rank is merged
//! first.

use std::collections::HashMap;
use std::hash::BuildHasherDefault;

use gguf_rs_lite::{Array, Gguf};

use super::agenda::Agenda;
use super::error::Error;
use super::hash::KeyedHasher;
use super::pre::{Family, Splitter};
use super::unicode::{announced_len, byte_alphabet, decode, push_utf8};
use super::vocab::{Vocab, byte_text, escape_spaces, typed_array};

const MERGES: &str = "tokenizer.ggml.merges";

/// Text number of a text that is in neither the vocabulary nor a merge.
const UNKNOWN_TEXT: u32 = u32::MAX;

/// Returns the number of merges in a file: room to reserve for their texts.
pub(super) fn merge_count(gguf: &Gguf) -> Result<usize, Error> {
    Ok(gguf.array(MERGES)?.map_or(0, |array| array.len()))
}

/// A BPE model.
pub(super) struct Bpe {
    splitter: Splitter,
    family: &'static Family,
    /// Maps (left text, right text) to (rank, joined text), all as numbers in `Vocab::texts`.
    merges: HashMap<u64, (u32, u32), BuildHasherDefault<KeyedHasher>>,
    /// Text number of the initial symbol for each byte; unused with `raw_utf8`.
    byte_symbols: Vec<u32>,
    /// Tokens for a byte whose final symbol is not a token: usually one, possibly none or two.
    byte_fallback: Vec<Vec<u32>>,
}

impl Bpe {
    /// Reads the merges; texts that occur only in merges are appended to the vocabulary's texts.
    pub(super) fn read(
        gguf: &Gguf,
        vocab: &mut Vocab,
        family: &'static Family,
    ) -> Result<Bpe, Error> {
        let Some(merges) = typed_array(gguf, MERGES, "string", Array::strings)? else {
            return Err(Error::MissingKey {
                file: vocab.file.clone(),
                key: MERGES,
            });
        };
        let byte_symbols = (0..=u8::MAX).map(|byte| {
            let mut text = Vec::new();
            byte_alphabet().push(byte, &mut text);
            number(vocab, &text)
        });
        let byte_symbols = byte_symbols.collect();
        let mut table =
            HashMap::with_capacity_and_hasher(merges.len(), BuildHasherDefault::default());
        let mut joined = Vec::new();
        for (rank, merge) in (0_u32..).zip(merges) {
            // The first character may itself be a space.
            let Some(space) = merge.iter().skip(1).position(|byte| *byte == b' ') else {
                continue;
            };
            let (first, second) = (&merge[..=space], &merge[space + 2..]);
            if second.is_empty() {
                continue;
            }
            joined.clear();
            joined.extend_from_slice(first);
            joined.extend_from_slice(second);
            let pair = pair(number(vocab, first), number(vocab, second));
            let joined = number(vocab, &joined);
            table.entry(pair).or_insert((rank, joined));
        }
        let byte_fallback = (0..=u8::MAX)
            .map(|byte| fallback(vocab, family, byte))
            .collect();
        Ok(Bpe {
            splitter: Splitter::new(family),
            family,
            merges: table,
            byte_symbols,
            byte_fallback,
        })
    }

    /// Tokenizes text without special tokens.
    pub(super) fn encode(&self, vocab: &Vocab, text: &[u8], out: &mut Vec<u32>) {
        let mut escaped = Vec::new();
        let text = if self.family.escape_whitespaces {
            escape_spaces(text, &mut escaped);
            &escaped
        } else {
            text
        };
        let mut cps = Vec::new();
        decode(text, &mut cps);
        let mut work = Scratch::default();
        let mut from = 0;
        for to in self.splitter.split(&cps) {
            work.word.clear();
            for cp in cps.get(from..to).unwrap_or_default() {
                push_utf8(*cp, &mut work.word);
            }
            from = to;
            self.word(vocab, &mut work, out);
        }
    }

    fn word(&self, vocab: &Vocab, work: &mut Scratch, out: &mut Vec<u32>) {
        if let Some(id) = self.whole(vocab, work) {
            out.push(id);
            return;
        }
        self.start(vocab, work);
        for right in 1..work.symbols.len() {
            self.consider(right - 1, right, work);
        }
        while let Some((_, (left, len))) = work.agenda.pop() {
            let left = left as usize;
            let a = work.symbols[left];
            let right = a.next as usize;
            let Some(b) = work.symbols.get(right).copied() else {
                continue;
            };
            // Outdated: one of the two has been merged with another since.
            if a.len == 0 || a.len + b.len != len {
                continue;
            }
            let joined = self
                .merges
                .get(&pair(a.text, b.text))
                .map_or(UNKNOWN_TEXT, |(_, joined)| *joined);
            work.symbols[left] = Symbol {
                text: joined,
                len,
                next: b.next,
                ..a
            };
            work.symbols[right].len = 0;
            if let Some(after) = work.symbols.get_mut(b.next as usize) {
                after.prev = a_index(left);
            }
            if (a.prev as usize) < left {
                self.consider(a.prev as usize, left, work);
            }
            if (b.next as usize) < work.symbols.len() {
                self.consider(left, b.next as usize, work);
            }
        }
        self.emit(vocab, work, out);
    }

    /// Returns the token of the whole word, if the family looks up whole words.
    fn whole(&self, vocab: &Vocab, work: &mut Scratch) -> Option<u32> {
        let newlines = self.family.whole_newlines && work.word.iter().all(|byte| *byte == b'\n');
        if !self.family.ignore_merges && !newlines {
            return None;
        }
        if self.family.raw_utf8 {
            return vocab.id(&work.word);
        }
        work.mapped.clear();
        for byte in &work.word {
            byte_alphabet().push(*byte, &mut work.mapped);
        }
        vocab.id(&work.mapped)
    }

    /// Splits the word into its initial symbols: bytes, or characters with `raw_utf8`.
    fn start(&self, vocab: &Vocab, work: &mut Scratch) {
        work.agenda.clear();
        work.symbols.clear();
        let mut rest = work.word.as_slice();
        while let Some(first) = rest.first() {
            let len = if self.family.raw_utf8 {
                announced_len(*first).min(rest.len())
            } else {
                1
            };
            let (symbol, tail) = rest.split_at(len);
            let text = if self.family.raw_utf8 {
                vocab.texts.get(symbol).unwrap_or(UNKNOWN_TEXT)
            } else {
                self.byte_symbols
                    .get(usize::from(*first))
                    .copied()
                    .unwrap_or(UNKNOWN_TEXT)
            };
            let index = a_index(work.symbols.len());
            work.symbols.push(Symbol {
                text,
                len: a_index(len),
                prev: index.wrapping_sub(1),
                next: index + 1,
            });
            rest = tail;
        }
    }

    /// Queues a pair if it has a merge.
    fn consider(&self, left: usize, right: usize, work: &mut Scratch) {
        let (a, b) = (work.symbols[left], work.symbols[right]);
        if let Some((rank, _)) = self.merges.get(&pair(a.text, b.text)) {
            work.agenda.push(*rank, (a_index(left), a.len + b.len));
        }
    }

    fn emit(&self, vocab: &Vocab, work: &Scratch, out: &mut Vec<u32>) {
        let mut at = 0;
        for symbol in work.symbols.iter().filter(|symbol| symbol.len > 0) {
            let end = at + symbol.len as usize;
            if (symbol.text as usize) < vocab.n {
                out.push(symbol.text);
            } else {
                // No token has this text: split it into bytes, dropping those without a token, as
                // in llama.cpp.
                for byte in work.word.get(at..end).unwrap_or_default() {
                    out.extend(
                        self.byte_fallback
                            .get(usize::from(*byte))
                            .into_iter()
                            .flatten(),
                    );
                }
            }
            at = end;
        }
    }
}

/// Converts an index in a word, which is far shorter than 2^32 bytes.
#[expect(clippy::cast_possible_truncation, reason = "see above")]
fn a_index(i: usize) -> u32 {
    i as u32
}

fn pair(left: u32, right: u32) -> u64 {
    u64::from(left) << 32 | u64::from(right)
}

/// Returns the number of a text, adding it if necessary.
fn number(vocab: &mut Vocab, text: &[u8]) -> u32 {
    vocab.texts.insert(text).unwrap_or_else(|id| id)
}

/// Returns the tokens for a single byte: in the byte alphabet its character's own UTF-8 bytes.
fn fallback(vocab: &Vocab, family: &Family, byte: u8) -> Vec<u32> {
    if family.raw_utf8 {
        return vocab.id(byte_text(byte).as_bytes()).into_iter().collect();
    }
    let mut mapped = Vec::new();
    byte_alphabet().push(byte, &mut mapped);
    mapped
        .iter()
        .filter_map(|part| vocab.id(std::slice::from_ref(part)))
        .collect()
}

#[derive(Debug, Clone, Copy)]
struct Symbol {
    /// Number of its text.
    text: u32,
    /// Bytes of the word it covers; 0 = merged into the one before.
    len: u32,
    /// Neighbours; an index past the end means none.
    prev: u32,
    next: u32,
}

/// Buffers reused across words.
#[derive(Default)]
struct Scratch {
    word: Vec<u8>,
    mapped: Vec<u8>,
    symbols: Vec<Symbol>,
    /// Candidate merges by rank.
    agenda: Agenda,
}
