//! Multi-token prediction (MTP, llama.cpp's NextN): a layer after the model's own layers that
//! predicts the token after the next one, from the next token and the hidden state before it. It is
//! seen as a model of its own, of one layer, whose steps bring the hidden states.

use gguf_rs_lite::{Gguf, OwnedValue, Value};

use crate::arch::Arch;
use crate::error::Error;
use crate::hparams::PREDICTION_LAYERS;

/// Beginning of the names of the tensors that an MTP layer has in addition.
const NEXTN: &str = "nextn.";

/// Returns a file's MTP layer as a file of its own: keys of a model of one layer, and the
/// tensors of the layer, of the embeddings and of the head, under the names that they have in any
/// model. The bytes are shared. With several such layers it is the first.
///
/// # Errors
/// [`Error::NoMtp`] if the file has no such layer, or one of an architecture whose layers
/// are not known.
pub fn mtp_layer(gguf: &Gguf) -> Result<Gguf, Error> {
    let arch = Arch::of_file(gguf)?;
    let absent = |reason: &'static str| Error::NoMtp {
        file: gguf.name().to_owned(),
        arch: arch.name(),
        reason,
    };
    if !arch.spec().mtp {
        return Err(absent(
            "of an architecture whose MTP layers are not supported",
        ));
    }
    let key = |suffix: &str| format!("{}.{suffix}", arch.name());
    let count = |suffix: &str| {
        let value = gguf.get(&key(suffix)).and_then(|value| value.as_int());
        value
            .and_then(|value| u32::try_from(value).ok())
            .unwrap_or(0)
    };
    let (blocks, behind) = (count("block_count"), count(PREDICTION_LAYERS));
    let layer = blocks.checked_sub(behind).filter(|_| behind > 0);
    let layer = layer.ok_or_else(|| absent("without MTP layers"))?;
    let names = Names::new(gguf, layer);
    if gguf
        .tensor(&format!("{}{NEXTN}eh_proj.weight", names.block))
        .is_none()
    {
        return Err(absent("without the tensors of its MTP layer"));
    }
    let mut keys: Vec<(String, OwnedValue)> = vec![
        // the others are not part of the forward pass
        (key(PREDICTION_LAYERS), (blocks - 1).into()),
        (key("full_attention_interval"), 1_u32.into()),
        (key("leading_dense_block_count"), 0_u32.into()),
    ];
    if let Some(Value::Array(flags)) = gguf.get(&key("attention.recurrent_layers")) {
        let none: Vec<bool> = vec![false; flags.len()];
        keys.push((key("attention.recurrent_layers"), none.into()));
    }
    let named = gguf.clone().with_names(|name| names.of(name));
    named
        .and_then(|head| head.with_keys(keys))
        .map_err(Error::Gguf)
}

/// Returns whether a file has an MTP layer and no others, so that it is of use only beside
/// the model that it belongs to.
pub fn is_mtp_only(gguf: &Gguf) -> bool {
    let is_first = |name: &str| name.starts_with("blk.0.");
    let tensors = gguf.tensors();
    tensors
        .iter()
        .any(|tensor| tensor.name.contains(".nextn.eh_proj."))
        && !tensors.iter().any(|tensor| is_first(&tensor.name))
}

/// Names of tensors in a model of the MTP layer alone.
struct Names {
    /// Beginning of the names of the layer's tensors.
    block: String,
    has_embedding: bool,
    has_norm: bool,
    has_head: bool,
    has_output: bool,
}

impl Names {
    fn new(gguf: &Gguf, layer: u32) -> Names {
        let block = format!("blk.{layer}.");
        let has = |name: &str| {
            gguf.tensor(&format!("{block}{NEXTN}{name}.weight"))
                .is_some()
        };
        Names {
            has_embedding: has("embed_tokens"),
            has_norm: has("shared_head_norm"),
            has_head: has("shared_head_head"),
            has_output: gguf.tensor("output.weight").is_some(),
            block,
        }
    }

    /// Returns the name of the file's tensor of this name; `None` if the layer does not use it.
    fn of(&self, name: &str) -> Option<String> {
        if let Some(rest) = name.strip_prefix(&self.block) {
            return Some(
                match rest.strip_prefix(NEXTN).map(|own| own.split('.').next()) {
                    Some(Some("embed_tokens")) => "token_embd.weight".to_owned(),
                    Some(Some("shared_head_norm")) => "output_norm.weight".to_owned(),
                    Some(Some("shared_head_head")) => "output.weight".to_owned(),
                    _ => format!("blk.0.{rest}"),
                },
            );
        }
        let is_used = match name {
            "output_norm.weight" => !self.has_norm,
            "output.weight" => !self.has_head,
            // also the head, where it has none of its own
            "token_embd.weight" if self.has_embedding => {
                let is_head = !self.has_head && !self.has_output;
                return is_head.then(|| "output.weight".to_owned());
            }
            _ => !name.starts_with("blk."),
        };
        is_used.then(|| name.to_owned())
    }
}
