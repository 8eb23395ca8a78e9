//! Layers that share the keys and values of others, and per-layer embeddings of tokens.

use super::super::architecture::Architecture;
use super::keys::Keys;
use super::{LayerDims, MAX_WIDTH};
use crate::Error;

const SHARED: &str = "attention.shared_kv_layers";
const WIDTH: &str = "embedding_length_per_layer_input";

/// Lets the last layers read keys and values of the last two that have their own: windowed ones
/// those of the second to last, the others those of the last.
pub(super) fn share(
    keys: &Keys<'_>,
    architecture: &Architecture,
    layers: &mut [LayerDims],
) -> Result<(), Error> {
    let n = match architecture.shared_layers {
        true => keys.integer(SHARED)?.unwrap_or(0),
        false => 0,
    };
    if n > layers.len().saturating_sub(2) {
        if n == 0 {
            return Ok(());
        }
        let expected = format!("at least 2 of the {} layers left", layers.len());
        return Err(keys.bad(SHARED, expected, n));
    }
    let first = layers.len() - n;
    for il in first..layers.len() {
        let layer = layers[il];
        let from = first - if layer.window.is_some() { 2 } else { 1 };
        let kept = layers[from];
        let shape = |of: LayerDims| (of.window, of.n_head_kv, of.head_dim);
        if shape(kept) != shape(layer) || !layer.n_head.is_multiple_of(kept.n_head_kv) {
            let expected = format!("layer {il} with a window and heads as layer {from} has");
            return Err(keys.bad(SHARED, expected, n));
        }
        layers[il].kv_from = Some(from);
    }
    Ok(())
}

/// Reads the width of a token's embedding for one layer, if there are per-layer embeddings.
pub(super) fn read_width(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<Option<usize>, Error> {
    if !architecture.shared_layers {
        return Ok(None);
    }
    let width = keys.integer(WIDTH)?.unwrap_or(0);
    if width.checked_mul(n_layer).is_none_or(|all| all > MAX_WIDTH) {
        let expected = format!("at most {MAX_WIDTH} values for all layers together");
        return Err(keys.bad(WIDTH, expected, width));
    }
    Ok(Some(width).filter(|&width| width > 0))
}
