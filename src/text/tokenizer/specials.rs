//! Special tokens: ids from keys, defaults and token texts; tokens that end generation.
//!
//! Some converters omit keys and types, so the texts of well-known tokens count too, as in
//! llama.cpp.

use std::collections::BTreeSet;

use gguf_rs_lite::{Array, Gguf};

use super::error::Error;
use super::vocab::{
    CONTROL, LSTRIP, NORMAL, RSTRIP, UNKNOWN, UNUSED, USER_DEFINED, Vocab, typed_array,
};

/// Special tokens of a vocabulary; `None` = it has no such token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
#[non_exhaustive]
pub struct SpecialTokens {
    /// Begins a text.
    pub bos: Option<u32>,
    /// Ends a text.
    pub eos: Option<u32>,
    /// Ends a turn.
    pub eot: Option<u32>,
    /// Ends a message.
    pub eom: Option<u32>,
    /// Replaces text missing from the vocabulary.
    pub unk: Option<u32>,
    /// Separates texts.
    pub sep: Option<u32>,
    /// Pads batches.
    pub pad: Option<u32>,
    /// Masks a token.
    pub mask: Option<u32>,
    /// Fill in the middle: before the text that precedes the gap.
    pub fim_pre: Option<u32>,
    /// Fill in the middle: before the text that follows the gap.
    pub fim_suf: Option<u32>,
    /// Fill in the middle: where the gap's text begins.
    pub fim_mid: Option<u32>,
    /// Fill in the middle: padding.
    pub fim_pad: Option<u32>,
    /// Fill in the middle: the repository.
    pub fim_rep: Option<u32>,
    /// Fill in the middle: between files.
    pub fim_sep: Option<u32>,
}

/// Default ids of special tokens without a key.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Defaults {
    None,
    Spm,
    Wpm,
    Unigram,
}

type Field = fn(&mut SpecialTokens) -> &mut Option<u32>;

/// Keys in reading order; the last three are older names, and later values override earlier ones.
const KEYS: [(&str, Field); 17] = [
    ("tokenizer.ggml.bos_token_id", |s| &mut s.bos),
    ("tokenizer.ggml.eos_token_id", |s| &mut s.eos),
    ("tokenizer.ggml.eot_token_id", |s| &mut s.eot),
    ("tokenizer.ggml.eom_token_id", |s| &mut s.eom),
    ("tokenizer.ggml.unknown_token_id", |s| &mut s.unk),
    ("tokenizer.ggml.seperator_token_id", |s| &mut s.sep),
    ("tokenizer.ggml.padding_token_id", |s| &mut s.pad),
    ("tokenizer.ggml.mask_token_id", |s| &mut s.mask),
    ("tokenizer.ggml.fim_pre_token_id", |s| &mut s.fim_pre),
    ("tokenizer.ggml.fim_suf_token_id", |s| &mut s.fim_suf),
    ("tokenizer.ggml.fim_mid_token_id", |s| &mut s.fim_mid),
    ("tokenizer.ggml.fim_pad_token_id", |s| &mut s.fim_pad),
    ("tokenizer.ggml.fim_rep_token_id", |s| &mut s.fim_rep),
    ("tokenizer.ggml.fim_sep_token_id", |s| &mut s.fim_sep),
    ("tokenizer.ggml.prefix_token_id", |s| &mut s.fim_pre),
    ("tokenizer.ggml.suffix_token_id", |s| &mut s.fim_suf),
    ("tokenizer.ggml.middle_token_id", |s| &mut s.fim_mid),
];

/// Texts that give a token its role if no key does, the likeliest first.
const BY_TEXT: [(Field, &[&str]); 8] = [
    (
        |s| &mut s.eot,
        &[
            "<|eot_id|>",
            "<|im_end|>",
            "<|end|>",
            "<end_of_turn>",
            "<|endoftext|>",
            "<|end_of_text|>",
            "<EOT>",
            "_<EOT>",
            "[EOT]",
            "<｜end▁of▁sentence｜>",
            "<end_of_utterance>",
        ],
    ),
    (|s| &mut s.eom, &["<|eom_id|>"]),
    (
        |s| &mut s.fim_pre,
        &[
            "<|fim_prefix|>",
            "<fim-prefix>",
            "<fim_prefix>",
            "<｜fim▁begin｜>",
            "<PRE>",
            "▁<PRE>",
            "<|code_prefix|>",
            "<|prefix|>",
        ],
    ),
    (
        |s| &mut s.fim_suf,
        &[
            "<|fim_suffix|>",
            "<fim-suffix>",
            "<fim_suffix>",
            "<｜fim▁hole｜>",
            "<SUF>",
            "▁<SUF>",
            "<|code_suffix|>",
            "<|suffix|>",
        ],
    ),
    (
        |s| &mut s.fim_mid,
        &[
            "<|fim_middle|>",
            "<fim-middle>",
            "<fim_middle>",
            "<｜fim▁end｜>",
            "<MID>",
            "▁<MID>",
            "<|code_middle|>",
            "<|middle|>",
        ],
    ),
    (
        |s| &mut s.fim_pad,
        &["<|fim_pad|>", "<fim-pad>", "<fim_pad>", "<PAD>", "[PAD]"],
    ),
    (
        |s| &mut s.fim_rep,
        &[
            "<|fim_repo|>",
            "<|repo_name|>",
            "<fim-repo>",
            "<REPO>",
            "<reponame>",
        ],
    ),
    (|s| &mut s.fim_sep, &["<|file_sep|>"]),
];

/// Tokens that end generation wherever they exist.
const ENDS: [&str; 22] = [
    "<|eot_id|>",
    "<|im_end|>",
    "<|end|>",
    "<|return|>",
    "<|call|>",
    "<|flush|>",
    "<|calls|>",
    "<end_of_turn>",
    "<|endoftext|>",
    "</s>",
    "<|eom_id|>",
    "<EOT>",
    "_<EOT>",
    "[EOT]",
    "[EOS]",
    "<|end_of_text|>",
    "<end_of_utterance>",
    "<eos>",
    "<turn|>",
    "<|tool_response>",
    "<｜end▁of▁sentence｜>",
    "[e~[",
];

/// Parts of gpt-oss's message format: always parsed, always shown.
const ALWAYS_SHOWN: [&str; 4] = ["<|channel|>", "<|message|>", "<|start|>", "<|constrain|>"];

impl SpecialTokens {
    /// Reads ids from keys, over the defaults of the tokenizer model. An id outside the vocabulary
    /// is ignored, as in llama.cpp: some converters write one for a token that does not exist.
    pub(super) fn read(
        gguf: &Gguf,
        vocab: &Vocab,
        defaults: Defaults,
    ) -> Result<SpecialTokens, Error> {
        let mut special = SpecialTokens::default();
        if defaults == Defaults::Wpm {
            let default = |id: u32| ((id as usize) < vocab.n).then_some(id);
            special.pad = default(0);
            special.unk = default(100);
            special.bos = default(101);
            special.sep = default(102);
            special.mask = default(103);
        }
        if defaults == Defaults::Unigram {
            let default = |id: u32| ((id as usize) < vocab.n).then_some(id);
            special.pad = default(0);
            special.eos = default(1);
            special.unk = default(2);
        }
        if defaults == Defaults::Spm {
            // Only if the token has the right type; a file without types offers no other evidence.
            let default = |id: u32, kind| {
                let attrs = vocab.attrs(id);
                ((id as usize) < vocab.n && (attrs & kind != 0 || attrs == NORMAL && untyped(gguf)))
                    .then_some(id)
            };
            special.bos = default(1, CONTROL);
            special.eos = default(2, CONTROL);
            special.unk = default(0, UNKNOWN);
        }
        for (key, field) in KEYS {
            let there = |id: &u32| (*id as usize) < vocab.n;
            if let Some(id) = gguf.u32(key)?.filter(there) {
                *field(&mut special) = Some(id);
            }
        }
        Ok(special)
    }

    /// Returns a line for each key whose id is outside the vocabulary, and one for tokens with
    /// equal texts.
    pub(super) fn warnings(gguf: &Gguf, vocab: &Vocab) -> Result<Vec<String>, Error> {
        let mut warnings: Vec<String> = vocab.warnings().into_iter().collect();
        for (key, _) in KEYS {
            if let Some(id) = gguf.u32(key)?.filter(|id| *id as usize >= vocab.n) {
                let n = vocab.n;
                warnings.push(format!("{key} = {id} is ignored: there are {n} tokens"));
            }
        }
        Ok(warnings)
    }

    /// Assigns roles by text and corrects attributes; returns the ids that end generation.
    pub(super) fn complete(&mut self, vocab: &mut Vocab) -> BTreeSet<u32> {
        for (field, texts) in BY_TEXT {
            let slot = field(self);
            if slot.is_none()
                && let Some(id) = texts.iter().find_map(|text| vocab.id(text.as_bytes()))
            {
                *slot = Some(id);
                add(vocab, id, CONTROL);
            }
        }
        mark_unused(vocab);
        let mut ends: BTreeSet<u32> = [self.fim_pad, self.fim_rep, self.fim_sep]
            .into_iter()
            .flatten()
            .collect();
        for text in ENDS {
            if let Some(id) = vocab.id(text.as_bytes()) {
                ends.insert(id);
                add(vocab, id, CONTROL);
            }
        }
        for text in ALWAYS_SHOWN {
            if let Some(id) = vocab.id(text.as_bytes()) {
                set(vocab, id, USER_DEFINED);
            }
        }
        ends.extend([self.eos, self.eot, self.eom].into_iter().flatten());
        withdraw(vocab, &mut ends);
        ends
    }
}

fn untyped(gguf: &Gguf) -> bool {
    gguf.get("tokenizer.ggml.token_type").is_none()
}

fn add(vocab: &mut Vocab, id: u32, attr: u16) {
    if let Some(attrs) = vocab.attrs.get_mut(id as usize) {
        *attrs |= attr;
    }
}

fn set(vocab: &mut Vocab, id: u32, attr: u16) {
    if let Some(attrs) = vocab.attrs.get_mut(id as usize) {
        *attrs = attr;
    }
}

/// Marks control tokens with "unused" in their text as unused.
fn mark_unused(vocab: &mut Vocab) {
    for id in vocab.ids() {
        let says_so = || vocab.texts.text(id).windows(6).any(|w| w == b"unused");
        if vocab.attrs(id) & CONTROL != 0 && says_so() {
            add(vocab, id, UNUSED);
        }
    }
}

/// Removes texts that usually end generation, in two cases where they do not.
fn withdraw(vocab: &mut Vocab, ends: &mut BTreeSet<u32>) {
    let ending = |text: &str| vocab.id(text.as_bytes()).filter(|id| ends.contains(id));
    let call = ending("<|call|>").or(ending("<|calls|>")).is_some();
    let harmony = call && (ending("<|return|>").is_some() || ending("<|flush|>").is_some());
    let end = ending("<|end|>").filter(|_| harmony);
    let plain = ending("<|tool_response>")
        .or(ending("<|plamo:eos|>"))
        .is_some();
    let s = ending("</s>").filter(|_| plain);
    for (id, attr) in [(end, USER_DEFINED), (s, NORMAL)] {
        if let Some(id) = id {
            ends.remove(&id);
            set(vocab, id, attr);
        }
    }
}

/// Returns tokens that must never be sampled. Ids outside the vocabulary are ignored, as in
/// llama.cpp.
pub(super) fn suppressed(gguf: &Gguf, vocab: &Vocab) -> Result<Vec<u32>, Error> {
    let key = "tokenizer.ggml.suppress_tokens";
    let Some(ids) = typed_array(gguf, key, "i32", Array::i32s)? else {
        return Ok(Vec::new());
    };
    let known = |id: i32| u32::try_from(id).ok().filter(|id| vocab.ids().contains(id));
    Ok(ids.filter_map(known).collect())
}

/// Keys for tokens that strip the white space before and after them: Hugging Face's flags, for
/// which llama.cpp has no key.
pub const STRIP_KEYS: [&str; 2] = ["tokenizer.octavo.lstrip", "tokenizer.octavo.rstrip"];

/// Key for further tokens that end generation: folders may have more than the three for which
/// llama.cpp has keys.
pub const ENDS_KEY: &str = "tokenizer.octavo.ends";

/// Returns the file's further end tokens.
pub(super) fn more_ends(gguf: &Gguf, vocab: &Vocab) -> Result<Vec<u32>, Error> {
    own_ids(gguf, vocab, ENDS_KEY)
}

/// Reads the ids of one of our own keys, all of which must be in the vocabulary.
fn own_ids(gguf: &Gguf, vocab: &Vocab, key: &'static str) -> Result<Vec<u32>, Error> {
    let ids = typed_array(gguf, key, "u32", |a| {
        a.u32s().map(Iterator::collect::<Vec<u32>>)
    })?
    .unwrap_or_default();
    match ids.iter().find(|id| **id as usize >= vocab.n) {
        Some(&got) => Err(Error::SpecialId {
            file: vocab.file.clone(),
            key,
            n_vocab: vocab.n,
            got,
        }),
        None => Ok(ids),
    }
}

/// Sets the tokens that strip white space. llama.cpp's files do not store this: for them it follows
/// from the names of a few models.
pub(super) fn set_strip(gguf: &Gguf, vocab: &mut Vocab, pre: &str) -> Result<(), Error> {
    if STRIP_KEYS.iter().any(|key| gguf.get(key).is_some()) {
        for (key, attr) in STRIP_KEYS.into_iter().zip([LSTRIP, RSTRIP]) {
            for id in own_ids(gguf, vocab, key)? {
                add(vocab, id, attr);
            }
        }
        return Ok(());
    }
    let name = gguf
        .str("general.name")?
        .unwrap_or_default()
        .to_ascii_lowercase();
    let arch = gguf.str("general.architecture")?.unwrap_or_default();
    let any = |text: &str, parts: &[&str]| parts.iter().any(|part| text.contains(part));
    if any(pre, &["jina-v2-de", "jina-v2-es", "jina-v2-code"])
        || any(arch, &["nomic-bert-moe", "jina-bert-v3"])
    {
        if let Some(id) = vocab.id(b"<mask>") {
            add(vocab, id, LSTRIP);
        }
    } else if any(&name, &["phi-3", "phi3"]) {
        let special = UNKNOWN | CONTROL | USER_DEFINED;
        for id in vocab
            .ids()
            .filter(|id| vocab.attrs(*id) & special != 0)
            .collect::<Vec<_>>()
        {
            add(vocab, id, RSTRIP);
        }
        if let Some(id) = vocab.id(b"</s>") {
            add(vocab, id, RSTRIP);
        }
        for text in ["<unk>", "<s>", "<|endoftext|>"] {
            if let Some(attrs) = vocab
                .id(text.as_bytes())
                .and_then(|id| vocab.attrs.get_mut(id as usize))
            {
                *attrs &= !RSTRIP;
            }
        }
    } else if any(&name, &["modern-bert"])
        && let Some(id) = vocab.id(b"[MASK]")
    {
        add(vocab, id, LSTRIP);
    }
    Ok(())
}
