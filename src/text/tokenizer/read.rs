//! Reads the tokenizer of a file, each kind of model in its own way.

use gguf_rs_lite::Gguf;

use super::bpe::{self, Bpe};
use super::error::{self, Error};
use super::partition::Partitioner;
use super::rwkv::Rwkv;
use super::specials::{self, Defaults, SpecialTokens};
use super::spm::Spm;
use super::unigram::Unigram;
use super::vocab::{Pieces, Vocab};
use super::wpm::Wpm;
use super::{Kind, SpacePrefix, Tokenizer, pre};

impl Tokenizer {
    pub(super) fn read_bpe(gguf: &Gguf, always: Option<&'static str>) -> Result<Tokenizer, Error> {
        let mut warnings = Vec::new();
        let pre =
            match always.map_or_else(|| gguf.str("tokenizer.ggml.pre"), |pre| Ok(Some(pre)))? {
                Some(pre) if !pre.is_empty() => pre,
                _ => {
                    warnings.push(
                        "tokenizer.ggml.pre is missing: text is split by the rules of 'default'"
                            .to_owned(),
                    );
                    "default"
                }
            };
        let Some(family) = pre::family(pre) else {
            return Err(Error::UnknownPre {
                file: gguf.name().to_owned(),
                pre: error::printable(pre.as_bytes()),
            });
        };
        let mut vocab = Vocab::read(gguf, bpe::merge_count(gguf)?)?;
        let kind = Kind::Bpe(Bpe::read(gguf, &mut vocab, family)?);
        let mut tokenizer = Tokenizer::assemble(gguf, vocab, kind, pre, warnings)?;
        tokenizer.pieces = tokenizer.vocab.pieces(family.escape_whitespaces);
        tokenizer.add_bos = family.always_bos
            || gguf
                .bool("tokenizer.ggml.add_bos_token")?
                .unwrap_or(family.add_bos);
        tokenizer.clean_spaces = !family.keep_spaces;
        tokenizer.finish(gguf)
    }

    pub(super) fn read_spm(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let vocab = Vocab::read(gguf, 0)?;
        if vocab.scores.is_empty() {
            return Err(Error::MissingKey {
                file: vocab.file,
                key: "tokenizer.ggml.scores",
            });
        }
        let unknown = SpecialTokens::read(gguf, &vocab, Defaults::Spm)?.unk;
        let kind = Kind::Spm(Spm::new(&vocab, unknown));
        let mut tokenizer = Tokenizer::assemble(gguf, vocab, kind, "default", Vec::new())?;
        tokenizer.pieces = tokenizer.vocab.pieces(true);
        tokenizer.add_bos = gguf.bool("tokenizer.ggml.add_bos_token")?.unwrap_or(true);
        tokenizer.space_prefix = SpacePrefix::read(gguf, true)?;
        tokenizer.finish(gguf)
    }

    /// Reads a WPM tokenizer; CLS and SEP surround every text, regardless of the file.
    pub(super) fn read_wpm(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let vocab = Vocab::read(gguf, 0)?;
        let special = SpecialTokens::read(gguf, &vocab, Defaults::Wpm)?;
        let needed = |id: Option<u32>, key| {
            let file = vocab.file.clone();
            id.ok_or(Error::MissingKey { file, key })
        };
        needed(special.bos, "tokenizer.ggml.bos_token_id")?;
        needed(special.sep, "tokenizer.ggml.seperator_token_id")?;
        let unknown = needed(special.unk, "tokenizer.ggml.unknown_token_id")?;
        let kind = Kind::Wpm(Wpm::read(gguf, &vocab, unknown)?);
        let mut tokenizer = Tokenizer::assemble(gguf, vocab, kind, "default", Vec::new())?;
        tokenizer.pieces = tokenizer.vocab.pieces(true);
        tokenizer.add_bos = true;
        tokenizer.add_eos = false;
        tokenizer.add_sep = true;
        tokenizer.clean_spaces = true;
        tokenizer.finish(gguf)
    }

    /// Reads a Unigram tokenizer.
    pub(super) fn read_unigram(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let vocab = Vocab::read(gguf, 0)?;
        let special = SpecialTokens::read(gguf, &vocab, Defaults::Unigram)?;
        let unknown = special.unk.ok_or_else(|| Error::MissingKey {
            file: vocab.file.clone(),
            key: "tokenizer.ggml.unknown_token_id",
        })?;
        let kind = Kind::Unigram(Unigram::read(gguf, &vocab, unknown)?);
        let mut tokenizer = Tokenizer::assemble(gguf, vocab, kind, "default", Vec::new())?;
        tokenizer.pieces = tokenizer.vocab.pieces(true);
        let flag = |key: &str| gguf.bool(key);
        tokenizer.add_bos = flag("tokenizer.ggml.add_bos_token")?.unwrap_or(false);
        tokenizer.add_eos = flag("tokenizer.ggml.add_eos_token")?.unwrap_or(true);
        tokenizer.finish(gguf)
    }

    /// Reads an RWKV tokenizer. Nothing surrounds a text, regardless of the file.
    pub(super) fn read_rwkv(gguf: &Gguf) -> Result<Tokenizer, Error> {
        let vocab = Vocab::read(gguf, 0)?;
        let unknown = SpecialTokens::read(gguf, &vocab, Defaults::None)?.unk;
        let (rwkv, pieces) = Rwkv::read(&vocab, unknown)?;
        let kind = Kind::Rwkv(rwkv);
        let mut tokenizer = Tokenizer::assemble(gguf, vocab, kind, "default", Vec::new())?;
        tokenizer.pieces = pieces;
        tokenizer.add_eos = false;
        tokenizer.finish(gguf)
    }

    /// Reads special tokens, and the flags shared by all kinds.
    fn assemble(
        gguf: &Gguf,
        mut vocab: Vocab,
        kind: Kind,
        pre: &str,
        mut warnings: Vec<String>,
    ) -> Result<Self, Error> {
        let mut special = SpecialTokens::read(gguf, &vocab, kind.defaults())?;
        warnings.extend(SpecialTokens::warnings(gguf, &vocab)?);
        let mut ends = special.complete(&mut vocab);
        ends.extend(specials::more_ends(gguf, &vocab)?);
        Ok(Tokenizer {
            pieces: Pieces::default(),
            special,
            eog_ids: ends.iter().copied().collect(),
            suppressed_ids: specials::suppressed(gguf, &vocab)?,
            ends,
            partitioners: [Partitioner::default(), Partitioner::default()],
            add_bos: false,
            add_eos: gguf.bool("tokenizer.ggml.add_eos_token")?.unwrap_or(false),
            add_sep: false,
            space_prefix: SpacePrefix::read(gguf, false)?,
            clean_spaces: false,
            pre: pre.to_owned(),
            warnings,
            vocab,
            kind,
        })
    }

    fn finish(mut self, gguf: &Gguf) -> Result<Tokenizer, Error> {
        specials::set_strip(gguf, &mut self.vocab, &self.pre)?;
        self.partitioners = [
            Partitioner::new(&self.vocab, false),
            Partitioner::new(&self.vocab, true),
        ];
        // WPM tokens are never generated
        if self.special.eos.is_none() && !matches!(self.kind, Kind::Wpm(_)) {
            self.warnings
                .push("the vocabulary names no EOS token".to_owned());
        }
        for (is_added, token, name) in [
            (self.add_bos, self.special.bos, "BOS"),
            (self.add_eos, self.special.eos, "EOS"),
        ] {
            if is_added && token.is_none() {
                self.warnings.push(format!(
                    "the file asks for a {name} token to be added but names none: none is added"
                ));
            }
        }
        let empty = self
            .vocab
            .ids()
            .filter(|id| self.vocab.texts.text(*id).is_empty())
            .count();
        if empty > 0 {
            self.warnings.push(format!(
                "{empty} tokens have no text: they never occur in a prompt and print nothing"
            ));
        }
        Ok(self)
    }
}
