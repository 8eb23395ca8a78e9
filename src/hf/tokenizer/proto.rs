//! `tokenizer.model`: the fields of SentencePiece's `ModelProto` that a BPE model needs to split
//! text.

use std::path::Path;

use prost::Message;

use super::super::{Error, MAX_SETTINGS, read_bytes};

/// File name.
pub(super) const FILE: &str = "tokenizer.model";

/// The SentencePiece model.
#[derive(Clone, PartialEq, Message)]
pub(super) struct ModelProto {
    #[prost(message, repeated, tag = "1")]
    pub(super) pieces: Vec<Piece>,
    #[prost(message, optional, tag = "2")]
    pub(super) trainer: Option<TrainerSpec>,
    #[prost(message, optional, tag = "3")]
    pub(super) normalizer: Option<NormalizerSpec>,
}

/// A token. Its types have the same numbers as GGUF's.
#[derive(Clone, PartialEq, Message)]
pub(super) struct Piece {
    #[prost(string, tag = "1")]
    pub(super) text: String,
    #[prost(float, tag = "2")]
    pub(super) score: f32,
    #[prost(int32, optional, tag = "3")]
    pub(super) ty: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct TrainerSpec {
    /// 1 unigram, 2 BPE, 3 word, 4 char.
    #[prost(int32, optional, tag = "3")]
    pub(super) model_type: Option<i32>,
    #[prost(int32, optional, tag = "4")]
    pub(super) vocab_size: Option<i32>,
    #[prost(bool, optional, tag = "24")]
    pub(super) treat_whitespace_as_suffix: Option<bool>,
    #[prost(bool, optional, tag = "35")]
    pub(super) byte_fallback: Option<bool>,
    #[prost(int32, optional, tag = "40")]
    pub(super) unk_id: Option<i32>,
    #[prost(int32, optional, tag = "41")]
    pub(super) bos_id: Option<i32>,
    #[prost(int32, optional, tag = "42")]
    pub(super) eos_id: Option<i32>,
    #[prost(int32, optional, tag = "43")]
    pub(super) pad_id: Option<i32>,
}

#[derive(Clone, PartialEq, Message)]
pub(super) struct NormalizerSpec {
    #[prost(string, optional, tag = "1")]
    pub(super) name: Option<String>,
    #[prost(bytes = "vec", optional, tag = "2")]
    pub(super) precompiled_charsmap: Option<Vec<u8>>,
    #[prost(bool, optional, tag = "3")]
    pub(super) add_dummy_prefix: Option<bool>,
    #[prost(bool, optional, tag = "4")]
    pub(super) remove_extra_whitespaces: Option<bool>,
    #[prost(bool, optional, tag = "5")]
    pub(super) escape_whitespaces: Option<bool>,
}

/// Number of BPE among model types.
pub(super) const BPE: i32 = 2;

impl ModelProto {
    /// Reads the folder's model, if it has one. Features that GGUF's SPM cannot express are
    /// refused.
    pub(super) fn read(dir: &Path) -> Result<Option<ModelProto>, Error> {
        let Some(bytes) = read_bytes(dir, FILE, MAX_SETTINGS)? else {
            return Ok(None);
        };
        let file = dir.join(FILE).display().to_string();
        let unsound = |error: String| Error::SentencePiece {
            file: file.clone(),
            error,
        };
        let model =
            ModelProto::decode(bytes.as_slice()).map_err(|error| unsound(error.to_string()))?;
        if model.pieces.is_empty() {
            // other tokenizers have text files of this name, which happen to parse as unknown
            // fields
            return Err(unsound("no tokens".to_owned()));
        }
        let refused = |wrong: Unsupported| Error::Value {
            file: file.clone(),
            key: wrong.key.to_owned(),
            expected: wrong.expected.to_owned(),
            got: wrong.got.chars().take(80).collect(),
        };
        let trainer = model.trainer.clone().unwrap_or_default();
        let normalizer = model.normalizer.clone().unwrap_or_default();
        check_trainer(&trainer).map_err(refused)?;
        check_normalizer(&normalizer).map_err(refused)?;
        check_pieces(&model.pieces).map_err(refused)?;
        Ok(Some(model))
    }
}

/// A field that asks for a feature that GGUF's SPM cannot express.
struct Unsupported {
    key: &'static str,
    expected: &'static str,
    got: String,
}

fn unsupported(
    key: &'static str,
    expected: &'static str,
    got: impl Into<String>,
) -> Result<(), Unsupported> {
    let got = got.into();
    Err(Unsupported { key, expected, got })
}

fn check_trainer(trainer: &TrainerSpec) -> Result<(), Unsupported> {
    let kind = trainer.model_type.unwrap_or(1);
    if kind != BPE {
        let name = usize::try_from(kind)
            .ok()
            .and_then(|kind| ["UNIGRAM", "BPE", "WORD", "CHAR"].get(kind.checked_sub(1)?));
        let got = name.map_or(kind.to_string(), |name| (*name).to_owned());
        return unsupported("trainer_spec.model_type", "BPE", got);
    }
    if trainer.treat_whitespace_as_suffix == Some(true) {
        return unsupported("trainer_spec.treat_whitespace_as_suffix", "false", "true");
    }
    Ok(())
}

fn check_normalizer(normalizer: &NormalizerSpec) -> Result<(), Unsupported> {
    let name = normalizer.name.as_deref().unwrap_or_default();
    let has_rules = normalizer
        .precompiled_charsmap
        .as_ref()
        .is_some_and(|map| !map.is_empty());
    if has_rules || !["identity", ""].contains(&name) {
        let got = format!("{name:?}, with rules");
        return unsupported("normalizer_spec", "identity: text as it is", got);
    }
    // the default is true
    if normalizer.remove_extra_whitespaces != Some(false) {
        return unsupported("normalizer_spec.remove_extra_whitespaces", "false", "true");
    }
    if normalizer.escape_whitespaces == Some(false) {
        return unsupported("normalizer_spec.escape_whitespaces", "true", "false");
    }
    Ok(())
}

fn check_pieces(pieces: &[Piece]) -> Result<(), Unsupported> {
    for (id, piece) in pieces.iter().enumerate() {
        if !piece.score.is_finite() {
            let got = format!("{} of token {id}", piece.score);
            return unsupported("pieces", "finite scores", got);
        }
        let ty = piece.ty.unwrap_or(1);
        if !(1..=6).contains(&ty) {
            let got = format!("{ty} of token {id}");
            return unsupported("pieces", "types from 1 to 6", got);
        }
    }
    Ok(())
}
