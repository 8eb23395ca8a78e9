//! Number and width of the heads in each layer.

use super::super::architecture::{Architecture, Recurrent};
use super::keys::{Keys, check_width};
use super::latent;
use crate::Error;

/// The heads of all layers.
pub(super) struct Heads {
    pub(super) n_head: Vec<usize>,
    pub(super) n_head_kv: Vec<usize>,
    /// Width of a query or key.
    pub(super) dim: usize,
    pub(super) value_dim: usize,
    /// Head width in layers with a window.
    pub(super) window_dim: usize,
}

impl Heads {
    pub(super) fn read(
        keys: &Keys<'_>,
        architecture: &Architecture,
        n_embd: usize,
        n_layer: usize,
    ) -> Result<Self, Error> {
        let (n_head, n_head_kv) = read_counts(keys, architecture, n_layer)?;
        if n_head.iter().all(|&heads| heads == 0) {
            return Ok(Self {
                n_head,
                n_head_kv,
                dim: 0,
                value_dim: 0,
                window_dim: 0,
            });
        }
        let (dim, value_dim) = match architecture.latent {
            true => {
                let dim = latent::read_key_dim(keys, n_embd, &n_head)?;
                (dim, dim)
            }
            false => read_dims(keys, "", n_embd, &n_head)?,
        };
        if value_dim != dim && !architecture.value_scale {
            let expected = format!("{dim}, the key length");
            return Err(keys.bad("attention.value_length", expected, value_dim));
        }
        let own = architecture
            .windows
            .is_some_and(|windows| windows.own_heads);
        let window_dim = match own {
            true => read_dims(keys, "_swa", n_embd, &n_head)?.0,
            false => dim,
        };
        Ok(Self {
            n_head,
            n_head_kv,
            dim,
            value_dim,
            window_dim,
        })
    }
}

/// Reads the query heads and KV heads of each layer.
fn read_counts(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<(Vec<usize>, Vec<usize>), Error> {
    // layers without KV heads are recurrent
    let headless = matches!(
        architecture.recurrent,
        Some(
            Recurrent::KimiDelta
                | Recurrent::ShortConv
                | Recurrent::Mamba1 { .. }
                | Recurrent::Mamba2
                | Recurrent::Plamo2
                | Recurrent::Rwkv7
        )
    );
    let least = usize::from(!headless);
    let n_head = keys
        .per_layer_from(least, "attention.head_count", n_layer)?
        .ok_or_else(|| keys.missing("attention.head_count"))?;
    let n_head_kv = keys
        .per_layer_from(least, "attention.head_count_kv", n_layer)?
        .unwrap_or_else(|| n_head.clone());
    for (il, (&heads, &kv_heads)) in n_head.iter().zip(&n_head_kv).enumerate() {
        if kv_heads > 0 && (heads == 0 || heads % kv_heads != 0) {
            let expected = format!("a divisor of the {heads} query heads of layer {il}");
            return Err(keys.bad("attention.head_count_kv", expected, kv_heads));
        }
    }
    Ok((n_head, n_head_kv))
}

/// Reads the widths of a key and of a value, from the keys with this ending.
fn read_dims(
    keys: &Keys<'_>,
    ending: &str,
    n_embd: usize,
    n_head: &[usize],
) -> Result<(usize, usize), Error> {
    let (key_length, value_length) = (
        format!("attention.key_length{ending}"),
        format!("attention.value_length{ending}"),
    );
    // The default head width is taken from layer 0, as in llama.cpp, even when other layers
    // have other head counts.
    let usual = n_embd.checked_div(n_head[0]).unwrap_or(0);
    let head_dim = keys.optional_count(&key_length)?.unwrap_or(usual);
    let values = keys.optional_count(&value_length)?.unwrap_or(usual);
    if values != head_dim && !ending.is_empty() {
        let expected = format!("{head_dim}, the key length");
        return Err(keys.bad(&value_length, expected, values));
    }
    if head_dim == 0 {
        let expected = format!("at most {n_embd}, the embedding length");
        return Err(keys.bad("attention.head_count", expected, n_head[0]));
    }
    check_width(keys, &key_length, n_head, head_dim)?;
    check_width(keys, &value_length, n_head, values)?;
    Ok((head_dim, values))
}
