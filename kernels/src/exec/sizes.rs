//! Numbers of rows, strips and positions that one thread takes at a time.

use octavo_simd::generic::attention::padded;
use octavo_simd::generic::gemm;
use octavo_simd::table::MAX_R;

use super::tiles::MAX_TILE;

/// Positions of a generated token's attention that one thread takes: fixed, so that results do not
/// depend on threads. Keys and values of a piece are `4 * head_dim * PIECE` bytes in f16, 256 KiB
/// for heads of 128: some 20 us of reading, far more than it costs to take a piece and to merge it.
pub(super) const PIECE: usize = 512;
/// Strips of a prompt product multiplied at a time: `STRIP_PAIR * NT` sums, and as many weights and
/// one activation, fit the vector registers (24 + 2 + 1 of AVX-512's 32).
pub(super) const STRIP_PAIR: usize = 2;
/// Pairs of strips that share each slice of activations, at most. Their sums, `UNITS * 2 * R * 4`
/// bytes a token, and the slice itself, `KC * 4`, are 1 MiB for 512 tokens: half of the L2 cache (2
/// MiB) of the Xeon with AMX where this was measured, whose L3 cache gives a core less bandwidth
/// than the matrix unit consumes.
pub(super) const UNITS: usize = 8;
/// Generated tokens that a pair of strips is multiplied by at a time: their integers, `2 *
/// GENERATED_ROWS` bytes for each input, stay in the L2 cache (128 KiB for 1024 inputs), and the
/// weights are unpacked once for all of them.
pub(super) const GENERATED_ROWS: usize = 64;
/// Floats of a strip's panel, in any form: see [`gemm::KC`] for the cache that two of them fit.
pub(super) const PANEL_FLOATS: usize = gemm::KC * MAX_R;
/// Tokens of a prompt whose attention one thread takes at a time.
pub(super) const QUERY_BLOCK: usize = 32;
/// Rows that go through a stage at a time, see [`Stages`](super::plan::Stages): enough that weights
/// are seldom read again, and few enough that a block's intermediate values, some 100 KB a row of a
/// large vision tower, are far less than the values kept for all rows. A multiple of windows; where
/// rows are merged, it is rounded down to whole groups of them.
pub(super) const STAGE_ROWS: usize = 512;

/// Floats of the sums of a pair of strips for `m` tokens.
pub(super) const fn sums_len(m: usize) -> usize {
    (m + MAX_TILE) * STRIP_PAIR * MAX_R
}

/// Floats of one partial result: weighted sums, maximum, sum.
pub(super) const fn piece_len(head_dim: usize) -> usize {
    padded(head_dim) + 2
}
