//! Launches of operations that keep a state of each sequence.

use super::{Launch, Module, blocks, launch};
use crate::cuda::params::{CausalConv, LinearAttention, SelectiveScan, Wkv7};

/// Convolves over the rows of sequences, and saves the states that are kept.
pub fn causal_conv(p: &CausalConv) -> Launch {
    let grid = [blocks(u64::from(p.rows) * u64::from(p.width), 256), 1, 1];
    launch(Module::Recurrence, "causal_conv", grid, 256, p)
}

/// Key lengths that `linear_attention` is compiled for; shorter keys are padded with zeros.
const KEY_DIMS: [usize; 3] = [64, 128, 256];
/// Values of a head per block of `linear_attention`.
const LINEAR_VALUES: u32 = 32;

/// Key lengths that it is compiled for with decays by key.
const KEY_DIMS_BY_KEY: [usize; 2] = [64, 128];

/// Returns the maximum key length of [`linear_attention`], with or without decays by key.
pub const fn max_key_dim(decay_by_key: bool) -> usize {
    match decay_by_key {
        false => KEY_DIMS[KEY_DIMS.len() - 1],
        true => KEY_DIMS_BY_KEY[KEY_DIMS_BY_KEY.len() - 1],
    }
}

/// Computes linear attention with the states of `sequences` sequences.
///
/// # Panics
/// For keys of more than [`max_key_dim`] values.
pub fn linear_attention(p: &LinearAttention, sequences: u32) -> Launch {
    let fits = |dim: &usize| p.key_dim as usize <= *dim;
    let by_key = p.decay_by_key != 0;
    let dims = if by_key {
        &KEY_DIMS_BY_KEY[..]
    } else {
        &KEY_DIMS
    };
    let dim = dims.iter().copied().find(fits);
    let dim = dim.unwrap_or_else(|| panic!("keys of {} values: see `max_key_dim`", p.key_dim));
    // sequences in x: only this dimension of a grid is never too small
    let grid = [sequences * p.heads, p.value_dim.div_ceil(LINEAR_VALUES), 1];
    let kind = if by_key { "_by_key" } else { "" };
    let name = format!("linear_attention{kind}_{dim}");
    launch(Module::Recurrence, name, grid, 128, p)
}

/// Numbers of a value's state that `selective_scan` is compiled for; fewer are padded.
const SCAN_SIZES: [usize; 2] = [16, 64];

/// Maximum numbers of a value's state of [`selective_scan`].
pub const MAX_SCAN_SIZE: usize = SCAN_SIZES[SCAN_SIZES.len() - 1];

/// Maximum key length of [`wkv7`].
pub const MAX_WKV_KEYS: usize = 64;

/// Computes a selective scan with the states of `sequences` sequences.
///
/// # Panics
/// For states of more than [`MAX_SCAN_SIZE`] numbers a value.
pub fn selective_scan(p: &SelectiveScan, sequences: u32) -> Launch {
    let size = SCAN_SIZES.into_iter().find(|size| p.size as usize <= *size);
    let size = size.unwrap_or_else(|| panic!("{} numbers: see `MAX_SCAN_SIZE`", p.size));
    let grid = [sequences, p.width.div_ceil(128), 1];
    launch(
        Module::Recurrence,
        format!("selective_scan_{size}"),
        grid,
        128,
        p,
    )
}

/// Computes the time mixing of RWKV 7 with the states of `sequences` sequences.
///
/// # Panics
/// For keys of more than [`MAX_WKV_KEYS`] values.
pub fn wkv7(p: &Wkv7, sequences: u32) -> Launch {
    let keys = MAX_WKV_KEYS as u32;
    assert!(p.key_dim <= keys, "keys of {} values", p.key_dim);
    let grid = [sequences * p.heads, p.value_dim.div_ceil(keys), 1];
    launch(Module::Recurrence, "wkv7", grid, keys, p)
}
