//! Removes layers from a model, like llama-quantize's `--prune-layers`.

use std::collections::BTreeSet;

use gguf_rs_lite::{Gguf, OwnedValue, Value};

use super::Error;

/// Layers to remove from a model.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Prune(BTreeSet<u32>);

impl Prune {
    /// Removes these layers, counted from 0.
    pub fn new(layers: impl IntoIterator<Item = u32>) -> Prune {
        Prune(layers.into_iter().collect())
    }

    /// Returns whether no layer is removed.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// Returns a tensor's name after pruning; `None` if its layer is removed.
    pub fn name(&self, name: &str) -> Option<String> {
        let numbered = name
            .strip_prefix("blk.")
            .and_then(|rest| rest.split_once('.'));
        let Some((layer, rest)) = numbered else {
            return Some(name.to_owned());
        };
        let Ok(layer) = layer.parse::<u32>() else {
            return Some(name.to_owned());
        };
        if self.0.contains(&layer) {
            return None;
        }
        let before = self.0.range(..layer).count() as u32;
        Some(format!("blk.{}.{rest}", layer - before))
    }

    /// Returns the model without these layers.
    ///
    /// # Errors
    /// A layer that does not exist, no remaining layers, or a key with a value for each layer.
    pub fn apply(&self, gguf: Gguf) -> Result<Gguf, Error> {
        let architecture = gguf.str("general.architecture")?.unwrap_or_default();
        let key = format!("{architecture}.block_count");
        let layers = gguf.u32(&key)?.unwrap_or(0);
        let refused = |reason: String| Error::Prune {
            file: gguf.name().to_owned(),
            reason,
        };
        if let Some(layer) = self.0.iter().find(|layer| **layer >= layers) {
            return Err(refused(format!(
                "layer {layer}: expected one below {layers}"
            )));
        }
        let left = layers - self.0.len() as u32;
        if left == 0 {
            return Err(refused(
                "no layer would be left: expected one at least".to_owned(),
            ));
        }
        let each = gguf.keys().find(|(name, value)| {
            let of_layers =
                matches!(value, Value::Array(all) if all.len() as u64 == u64::from(layers));
            of_layers && name.starts_with(&format!("{architecture}."))
        });
        if let Some((name, _)) = each {
            return Err(refused(format!(
                "key {name}: expected one value for all layers, got one for each"
            )));
        }
        let gguf = gguf.with_keys([(key, OwnedValue::U32(left))])?;
        Ok(gguf.with_names(|name| self.name(name))?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_behind_those_left_out_move_up() {
        let prune = Prune::new([1, 2, 5]);
        for (name, expected) in [
            ("blk.0.ffn_up.weight", Some("blk.0.ffn_up.weight")),
            ("blk.1.ffn_up.weight", None),
            ("blk.3.ffn_up.weight", Some("blk.1.ffn_up.weight")),
            ("blk.10.attn_q.bias", Some("blk.7.attn_q.bias")),
            ("output.weight", Some("output.weight")),
            ("blk.x", Some("blk.x")),
        ] {
            assert_eq!(prune.name(name).as_deref(), expected, "{name}");
        }
    }
}
