//! Kernel parameters: each struct mirrors the one of the same name in `cuda/*.cu`, which asserts
//! its size.
//!
//! Shapes and meanings are documented there. No struct has padding, so that its bytes are plain
//! words.

use super::Ptr;

/// A kernel's parameter struct, made of whole 8-byte words.
///
/// # Safety
/// `#[repr(C)]`, no padding, every bit pattern valid, alignment of at most 8 bytes, and a size that
/// is a multiple of 8 bytes.
pub unsafe trait Params: Copy {
    /// Copies the struct to words.
    fn words(&self) -> Vec<u64> {
        let n = size_of::<Self>() / 8;
        let mut words = vec![0u64; n];
        // SAFETY: both sides have the same number of bytes, all initialized: there is no padding.
        unsafe {
            std::ptr::copy_nonoverlapping(
                (&raw const *self).cast::<u8>(),
                words.as_mut_ptr().cast(),
                8 * n,
            )
        };
        words
    }
}

macro_rules! params {
    ($($(#[$doc:meta])* $name:ident, $bytes:literal { $($field:ident: $ty:ty),* $(,)? })*) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, Default, PartialEq)]
        #[repr(C)]
        #[allow(missing_docs)] // the fields' comments are the kernels'
        pub struct $name { $(pub $field: $ty),* }

        const _: () = assert!(size_of::<$name>() == $bytes && $bytes % 8 == 0);
        const _: () = assert!(0 $(+ size_of::<$ty>())* == $bytes, "no padding");

        // SAFETY: checked above; addresses, integers and floats allow every bit pattern.
        unsafe impl Params for $name {}
    )*};
}

params! {
    /// `formats.cuh`: a packed matrix.
    Matrix, 48 {
        low: Ptr, high: Ptr, scales: Ptr, supers: Ptr, rows: u32, cols: u32, units: u32,
        strips: u32,
    }
    /// `paging.cuh`: the rows of a step.
    Paging, 48 {
        positions: Ptr, sequences: Ptr, tables: Ptr, missing: Ptr, max_pages: u32, rows: u32,
        n_pages: u32, first_row: u32,
    }
    /// `activations.cu`.
    Arrange, 48 {
        x: Ptr, weight: Ptr, out: Ptr, scales: Ptr, rows: u32, cols: u32, units: u32, eps: f32,
    }
    /// `gemv.cuh`: one matrix, with the addend and the output of its product.
    GemvPart, 64 { w: Matrix, add: Ptr, out: Ptr }
    /// `gemv.cuh`.
    Gemv, 224 {
        parts: [GemvPart; 3], x: Ptr, integers: Ptr, tiles: u32, columns: u32, gated: u32,
        tile: u32,
    }
    /// `gemm.cuh`.
    Gemm, 88 { w: Matrix, x: Ptr, scales: Ptr, add: Ptr, out: Ptr, tokens: u32, unused: u32 }
    /// `embed.cuh`.
    Embed, 72 { table: Matrix, tokens: Ptr, out: Ptr, columns: u32, placeholder: u32 }
    /// `rows.cu`.
    Norm, 32 { x: Ptr, weight: Ptr, out: Ptr, eps: f32, n: u32 }
    /// `rope.cuh`.
    Rotation, 40 { cosines: Ptr, sines: Ptr, rope_positions: Ptr, axes: Ptr, pairs: u32, neox: u32 }
    /// `rows.cu`.
    Rope, 72 {
        x: Ptr, out: Ptr, rotation: Rotation, rows: u32, heads: u32, head_dim: u32, unused: u32,
    }
    /// `rows.cu`.
    EmbeddingInputs, 48 {
        x: Ptr, inputs: Ptr, indices: Ptr, out: Ptr, rows: u32, width: u32, stride: u32, from: u32,
    }
    /// `rows.cu`: two operands of an elementwise operation.
    Pair, 40 { a: Ptr, b: Ptr, out: Ptr, n: u64, period: u64 }
    /// `rows.cu`: an elementwise function.
    Unary, 40 { x: Ptr, out: Ptr, n: u64, a: f32, b: f32, c: f32, d: f32 }
    /// `rows.cu`.
    Hadamard, 32 { x: Ptr, out: Ptr, n: u64, order: u32, factor: f32 }
    /// `rows.cu`.
    ScaleByPosition, 40 {
        x: Ptr, factors: Ptr, positions: Ptr, out: Ptr, rows: u32, width: u32,
    }
    /// `rows.cu`.
    Slice, 40 { x: Ptr, out: Ptr, n: u64, each: u32, from: u32, part: u32, unused: u32 }
    /// `rows.cu`.
    JoinParts, 40 { parts: Ptr, out: Ptr, n: u64, width: u32, grain: u32, grains: u32, ranks: u32 }
    /// `rows.cu`.
    Constant, 32 { values: Ptr, out: Ptr, n: u64, width: u32, unused: u32 }
    /// `rows.cu`.
    Concat, 48 {
        a: Ptr, b: Ptr, out: Ptr, n: u64, first: u32, second: u32, pieces: u32, each: u32,
    }
    /// `rows.cu`.
    MulVector, 40 { a: Ptr, b: Ptr, out: Ptr, n: u64, neighbours: u32, period: u32 }
    /// `rows.cu`.
    Select, 32 { x: Ptr, indices: Ptr, out: Ptr, rows: u32, width: u32 }
    /// `rows.cu`.
    Argmax, 32 { x: Ptr, parts: Ptr, out: Ptr, n: u32, parts_n: u32 }
    /// `candidates.cuh`.
    Candidates, 32 { x: Ptr, parts: Ptr, out: Ptr, n: u32, most: u32 }
    /// `experts.cu`.
    Softmax, 24 { x: Ptr, out: Ptr, n: u32, unused: u32 }
    /// `experts.cu`.
    TopK, 32 { x: Ptr, out: Ptr, width: u32, n: u32, groups: u32, used: u32 }
    /// `experts.cu`.
    Gather, 40 { x: Ptr, ids: Ptr, out: Ptr, total: u64, width: u32, n: u32 }
    /// `experts.cu`.
    Normalize, 32 { x: Ptr, out: Ptr, rows: u32, n: u32, least: f32, unused: u32 }
    /// `experts.cu`.
    WeightedSum, 40 { x: Ptr, weights: Ptr, out: Ptr, total: u64, n: u32, count: u32 }
    /// `experts.cu`.
    ExpertBias, 48 { x: Ptr, bias: Ptr, ids: Ptr, out: Ptr, total: u64, n: u32, experts: u32 }
    /// `expert_gemv.cuh`.
    ExpertGemv, 88 {
        w: Matrix, x: Ptr, ids: Ptr, out: Ptr, n: u32, experts: u32, sharing: u32, unused: u32,
    }
    /// `experts.cu`.
    SortExperts, 40 {
        ids: Ptr, order: Ptr, tiles: Ptr, choices: u32, experts: u32, width: u32, unused: u32,
    }
    /// `expert_imma.cuh`.
    ExpertImma, 88 { w: Matrix, x: Ptr, order: Ptr, tiles: Ptr, out: Ptr, n: u32, sharing: u32 }
    /// `kv.cu`.
    KvWrite, 88 {
        k: Ptr, v: Ptr, pages_k: Ptr, pages_v: Ptr, paging: Paging, heads: u32, head_dim: u32,
    }
    /// `kv.cu`: queries, keys or values.
    HeadGroup, 32 { x: Ptr, bias: Ptr, norm: Ptr, n: u32, eps: f32 }
    /// `kv.cu`.
    Heads, 216 {
        q: HeadGroup, k: HeadGroup, v: HeadGroup, out: Ptr, pages_k: Ptr, pages_v: Ptr,
        rotation: Rotation, paging: Paging,
        head_dim: u32, unused: u32,
    }
    /// `recurrence.cu`: one part of the sequences' states.
    States, 24 { slots: Ptr, spans: Ptr, stride: u64 }
    /// `recurrence.cu`.
    CausalConv, 72 {
        x: Ptr, weight: Ptr, out: Ptr, sequences: Ptr, states: States, rows: u32, width: u32,
        kernel: u32, unused: u32,
    }
    /// `recurrence.cu`.
    LinearAttention, 104 {
        q: Ptr, k: Ptr, v: Ptr, decay: Ptr, rate: Ptr, out: Ptr, states: States, heads: u32,
        keys: u32, key_dim: u32, value_dim: u32, tiled: u32, delta: u32, scale: f32,
        decay_by_key: u32,
    }
    /// `recurrence.cu`.
    SelectiveScan, 80 {
        x: Ptr, steps: Ptr, b: Ptr, c: Ptr, a: Ptr, out: Ptr, states: States, width: u32, size: u32,
    }
    /// `recurrence.cu`.
    Wkv7, 96 {
        r: Ptr, decay: Ptr, k: Ptr, v: Ptr, removed: Ptr, replaced: Ptr, out: Ptr, states: States,
        heads: u32, key_dim: u32, value_dim: u32, unused: u32,
    }
    /// `probe.cu`.
    Peak, 16 { out: Ptr, rounds: u32, unused: u32 }
    /// `attention.cuh`.
    Attention, 176 {
        q: Ptr, pages_k: Ptr, pages_v: Ptr, sums: Ptr, states: Ptr, out: Ptr, integers: Ptr,
        tiles: Ptr, sinks: Ptr, slopes: Ptr, firsts: Ptr, ends: Ptr, paging: Paging,
        heads: u32, heads_kv: u32, splits: u32, scale: f32, cap: f32, window: u32, after: u32,
        chunked: u32,
    }
}
