//! Tokenizers from GGUF metadata alone: BPE (`gpt2`), SPM (`llama`), WPM (`bert`), Unigram (`t5`)
//! and RWKV's (`rwkv`), with the same ids as llama.cpp for the same bytes.
//!
//! Contains everything between bytes and token ids, but no models and no chat: templates are in
//! `chat`. Every step is linear in the text, or n log n, since texts are untrusted.

mod agenda;
mod bpe;
mod charsmap;
mod detokenize;
mod error;
mod folding;
mod hash;
mod joins;
mod partition;
mod pre;
mod prefix;
mod read;
mod rwkv;
mod space;
mod specials;
mod spm;
mod texts;
mod unicode;
mod unigram;
mod utf8;
mod vocab;
mod wpm;

use std::collections::BTreeSet;

use gguf_rs_lite::Gguf;

use bpe::Bpe;
use partition::{Fragment, Partitioner};
use rwkv::Rwkv;
use specials::Defaults;
use spm::Spm;
use unigram::Unigram;
use vocab::{CONTROL, LSTRIP, Pieces, RSTRIP, UNKNOWN, Vocab};
use wpm::Wpm;

pub use detokenize::DetokenizeOptions;
pub use error::Error;
pub use joins::last_join;
pub use space::SpacePrefix;
pub use specials::{ENDS_KEY, STRIP_KEYS, SpecialTokens};
pub use utf8::Utf8Stream;

/// Longest text tokenized in one call, in bytes.
pub const MAX_TEXT_BYTES: usize = 1 << 30;

/// Encoding options. The default is for an untrusted text of its own: special tokens around it
/// where the model expects them, and none parsed from its contents.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EncodeOptions {
    /// Add BOS and EOS if the file asks for them, and any other tokens a model has around every
    /// text.
    pub add_special: bool,
    /// Parse control tokens written in the text. User-defined tokens are always parsed.
    pub parse_special: bool,
}

impl EncodeOptions {
    /// Options for a prompt in which control tokens may be written out.
    pub const PROMPT: EncodeOptions = EncodeOptions {
        add_special: true,
        parse_special: true,
    };

    /// Options for a piece of a longer text.
    pub const PIECE: EncodeOptions = EncodeOptions {
        add_special: false,
        parse_special: false,
    };
}

impl Default for EncodeOptions {
    fn default() -> Self {
        EncodeOptions {
            add_special: true,
            parse_special: false,
        }
    }
}

enum Kind {
    Bpe(Bpe),
    Spm(Spm),
    Wpm(Wpm),
    Unigram(Unigram),
    Rwkv(Rwkv),
}

impl Kind {
    /// Returns the value of `tokenizer.ggml.model`.
    fn name(&self) -> &'static str {
        match self {
            Kind::Bpe(_) => "gpt2",
            Kind::Spm(_) => "llama",
            Kind::Wpm(_) => "bert",
            Kind::Unigram(_) => "t5",
            Kind::Rwkv(_) => "rwkv",
        }
    }

    fn defaults(&self) -> Defaults {
        match self {
            Kind::Bpe(_) | Kind::Rwkv(_) => Defaults::None,
            Kind::Spm(_) => Defaults::Spm,
            Kind::Wpm(_) => Defaults::Wpm,
            Kind::Unigram(_) => Defaults::Unigram,
        }
    }
}

/// A tokenizer.
pub struct Tokenizer {
    vocab: Vocab,
    kind: Kind,
    pieces: Pieces,
    special: SpecialTokens,
    ends: BTreeSet<u32>,
    eog_ids: Vec<u32>,
    suppressed_ids: Vec<u32>,
    /// Special token finders without and with control tokens.
    partitioners: [Partitioner; 2],
    add_bos: bool,
    add_eos: bool,
    add_sep: bool,
    space_prefix: SpacePrefix,
    clean_spaces: bool,
    pre: String,
    warnings: Vec<String>,
}

impl Tokenizer {
    /// Reads the tokenizer of a file and validates all of it.
    pub fn from_gguf(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let key = "tokenizer.ggml.model";
        let file = || gguf.name().to_owned();
        match gguf.str(key)? {
            None => Err(Error::MissingKey { file: file(), key }),
            Some("gpt2") => Tokenizer::read_bpe(gguf, None),
            // regardless of the file's pre-tokenizer
            Some("gemma4") => Tokenizer::read_bpe(gguf, Some("gemma4")),
            Some("llama") => Tokenizer::read_spm(gguf),
            Some("bert") => Tokenizer::read_wpm(gguf),
            Some("t5") => Tokenizer::read_unigram(gguf),
            Some("rwkv") => Tokenizer::read_rwkv(gguf),
            Some(model) => Err(Error::UnsupportedModel {
                file: file(),
                model: error::printable(model.as_bytes()),
            }),
        }
    }

    /// Returns the token ids of a text, the same as llama.cpp's, also for invalid UTF-8.
    pub fn encode(&self, text: &[u8], options: EncodeOptions) -> Result<Vec<u32>, Error> {
        if text.len() > MAX_TEXT_BYTES {
            return Err(Error::TextTooLong {
                got: text.len(),
                limit: MAX_TEXT_BYTES,
            });
        }
        let mut out = Vec::new();
        if options.add_special && self.add_bos {
            out.extend(self.special.bos);
        }
        let partitioner = &self.partitioners[usize::from(options.parse_special)];
        let mut after_special = true;
        for fragment in partitioner.split(text) {
            match fragment {
                Fragment::Token(id) => {
                    out.push(id);
                    after_special = true;
                }
                Fragment::Text(range) => {
                    let first = range.start == 0;
                    let part = text.get(range).unwrap_or_default();
                    let prefix = self.space_prefix.comes_before(part, first, after_special);
                    self.encode_fragment(part, prefix, &mut out)?;
                    after_special = false;
                }
            }
        }
        if options.add_special && self.add_eos {
            out.extend(self.special.eos);
        }
        if options.add_special && self.add_sep {
            out.extend(self.special.sep);
        }
        Ok(out)
    }

    fn encode_fragment(&self, text: &[u8], prefix: bool, out: &mut Vec<u32>) -> Result<(), Error> {
        match &self.kind {
            Kind::Bpe(bpe) => {
                bpe.encode(&self.vocab, text, out);
                Ok(())
            }
            Kind::Spm(spm) => {
                let mut escaped = Vec::with_capacity(text.len() + text.len() / 2);
                if prefix {
                    vocab::escape_spaces(b" ", &mut escaped);
                }
                vocab::escape_spaces(text, &mut escaped);
                spm.encode(&self.vocab, &escaped, out)
            }
            Kind::Wpm(wpm) => {
                wpm.encode(&self.vocab, text, out);
                Ok(())
            }
            Kind::Unigram(unigram) => unigram.encode(&self.vocab, text, out),
            Kind::Rwkv(rwkv) => rwkv.encode(&self.vocab, &self.pieces, text, out),
        }
    }

    /// Returns the bytes a token decodes to, for special tokens their text; `None` for an id
    /// outside the vocabulary.
    pub fn piece(&self, id: u32) -> Option<&[u8]> {
        self.pieces.get(id)
    }

    /// Concatenates the pieces of `ids`; without `with_special`, control and unknown tokens are
    /// left out. Ids outside the vocabulary decode to nothing.
    pub fn decode(&self, ids: &[u32], with_special: bool) -> Vec<u8> {
        let shown = ids
            .iter()
            .filter(|id| with_special || !self.is_special(**id));
        shown
            .filter_map(|id| self.piece(*id))
            .flatten()
            .copied()
            .collect()
    }

    /// Returns the number of tokens.
    pub fn n_vocab(&self) -> usize {
        self.vocab.n
    }

    /// Returns all special tokens.
    pub fn special(&self) -> &SpecialTokens {
        &self.special
    }

    /// Returns the token that begins a text.
    pub fn bos(&self) -> Option<u32> {
        self.special.bos
    }

    /// Returns the token that ends a text.
    pub fn eos(&self) -> Option<u32> {
        self.special.eos
    }

    /// Returns the token that ends a turn.
    pub fn eot(&self) -> Option<u32> {
        self.special.eot
    }

    /// Returns the token for text missing from the vocabulary.
    pub fn unk(&self) -> Option<u32> {
        self.special.unk
    }

    /// Returns the padding token.
    pub fn pad(&self) -> Option<u32> {
        self.special.pad
    }

    /// Returns whether a token ends generation.
    pub fn is_eog(&self, id: u32) -> bool {
        self.ends.contains(&id)
    }

    /// Returns the tokens that end generation, ascending.
    pub fn eog_ids(&self) -> &[u32] {
        &self.eog_ids
    }

    /// Returns tokens that must never be sampled (`tokenizer.ggml.suppress_tokens`), even though
    /// the model may give them high logits.
    pub fn suppressed_ids(&self) -> &[u32] {
        &self.suppressed_ids
    }

    /// Returns whether a token is a control or unknown token: not part of the text.
    pub fn is_special(&self, id: u32) -> bool {
        self.vocab.attrs(id) & (CONTROL | UNKNOWN) != 0
    }

    /// Returns whether a special token strips the white space (before, after) it.
    pub fn strips(&self, id: u32) -> (bool, bool) {
        let attrs = self.vocab.attrs(id);
        (attrs & LSTRIP != 0, attrs & RSTRIP != 0)
    }

    /// Returns where SPM puts a space that is not in the text.
    pub fn space_prefix(&self) -> SpacePrefix {
        self.space_prefix
    }

    /// Returns whether `add_special` puts a BOS token first.
    pub fn add_bos(&self) -> bool {
        self.add_bos && self.special.bos.is_some()
    }

    /// Returns whether `add_special` puts a separator last.
    pub fn add_sep(&self) -> bool {
        self.add_sep
    }

    /// Returns whether `add_special` puts an EOS token last.
    pub fn add_eos(&self) -> bool {
        self.add_eos && self.special.eos.is_some()
    }

    /// Returns the text of a token as in the file; empty for an id outside the vocabulary.
    pub fn token_text(&self, id: u32) -> &[u8] {
        if (id as usize) < self.vocab.n {
            self.vocab.texts.text(id)
        } else {
            &[]
        }
    }

    /// Returns the token with exactly this text (as in the file: `Ġthe`, not ` the`).
    pub fn token_to_id(&self, text: &[u8]) -> Option<u32> {
        self.vocab.id(text)
    }

    /// Returns `gpt2`, `llama`, `bert`, `t5` or `rwkv`.
    pub fn model_name(&self) -> &str {
        self.kind.name()
    }

    /// Returns the name of the pre-tokenizer in use.
    pub fn pre_name(&self) -> &str {
        &self.pre
    }

    /// Returns oddities of this tokenizer that do not keep it from working.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Returns the patterns by which a `tokenizer.ggml.pre` splits text, each within the pieces of
    /// the one before, and whether whole words that are tokens bypass the merges; `None` for an
    /// unknown one, or one that needs more than patterns.
    pub fn patterns_of_pre(name: &str) -> Option<(&'static [String], bool)> {
        pre::patterns(name)
    }

    /// Returns the `tokenizer.ggml.pre` of a Hugging Face tokenizer that splits text by these
    /// patterns, each within the pieces of the one before; `None` if there is none. Several names
    /// may mean the same: `expected` ones come first.
    pub fn recognise_pre(
        regexes: &[String],
        ignore_merges: bool,
        expected: &[&'static str],
    ) -> Option<&'static str> {
        pre::recognise(regexes, ignore_merges, expected)
    }

    /// Returns every known `tokenizer.ggml.pre`.
    pub fn pre_tokenizers() -> impl Iterator<Item = &'static str> {
        pre::names()
    }
}

impl std::fmt::Debug for Tokenizer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let n_vocab = self.n_vocab();
        f.debug_struct("Tokenizer")
            .field("model", &self.model_name())
            .field("pre", &self.pre)
            .field("n_vocab", &n_vocab)
            .finish()
    }
}
