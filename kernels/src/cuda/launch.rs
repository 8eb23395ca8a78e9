//! The launch table: the kernel, grid and block size for each operation.
//!
//! Block sizes and the split of work depend on shapes only, never on the rest of the batch. Grids
//! and tiles chosen by device size (those of matrix products) only decide which block does a piece
//! of work.

mod candidates;
mod products;
mod recurrence;

pub use candidates::{candidate_parts, candidates, max_candidates};
pub use products::{
    EXPERT_TILE_BYTES, FLOAT_COLUMNS, Form, GEMV_COLUMNS, IMMA_COLUMNS, IMMA_FROM,
    activation_bytes, activations, expert_gemv, expert_imma, expert_tiles, gemm, gemv, imma,
    imma_in_all_tiles, kernel_names, normed_activations, sort_experts, wide_gemm,
    wide_gemm_in_all_tiles,
};
pub(super) use products::{IMMA_PARTS, WIDE_PARTS};
pub use recurrence::{
    MAX_SCAN_SIZE, MAX_WKV_KEYS, causal_conv, linear_attention, max_key_dim, selective_scan, wkv7,
};

use super::Ptr;
use super::modules::{Module, Part};
use super::pack::kernels_of;
use super::params::{
    Argmax, Attention, Concat, Constant, Embed, EmbeddingInputs, ExpertBias, Gather, Hadamard,
    Heads, JoinParts, KvWrite, MulVector, Norm, Normalize, Pair, Params, Peak, Rope,
    ScaleByPosition, Select, Slice, Softmax, TopK, Unary, WeightedSum,
};
use octavo_quant::TensorType;
use octavo_simd::function::{Activation, Function};
use octavo_simd::kv_layout::{KvType, KvTypes, PAGE_POSITIONS};

/// A kernel launch.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Module that contains the kernel.
    pub module: Module,
    /// Kernel name, as profilers show it.
    pub kernel: String,
    /// Grid size in blocks.
    pub grid: [u32; 3],
    /// Threads per block.
    pub threads: u32,
    /// Dynamic shared memory per block in bytes; the same in all launches of a kernel.
    pub shared: u32,
    /// Kernel parameters as 8-byte words.
    pub params: Vec<u64>,
}

/// Queries per tile of `attend_prompt`.
pub const TILE_QUERIES: usize = 64;
/// Parts of a row that `argmax` scans in parallel.
pub const ARGMAX_PARTS: u32 = 64;
/// Bytes of the partial result of one part.
pub const ARGMAX_PART_BYTES: usize = 16;

fn launch(
    module: Module,
    kernel: impl Into<String>,
    grid: [u32; 3],
    threads: u32,
    params: &impl Params,
) -> Launch {
    Launch {
        module,
        kernel: kernel.into(),
        grid,
        threads,
        shared: 0,
        params: params.words(),
    }
}

/// Returns the number of blocks of `threads` threads for `n` threads.
fn blocks(n: u64, threads: u32) -> u32 {
    u32::try_from(n.div_ceil(u64::from(threads))).expect("no step is larger than a grid")
}

/// Threads that normalize a group of `n` values, as in `cuda/norm.cuh`: one warp for short groups,
/// such as heads.
fn norm_threads(n: u32) -> u32 {
    match n {
        0..=256 => 32,
        257..=2048 => 256,
        _ => 1024,
    }
}

/// Applies `rms_norm` to `groups` groups of `p.n` values.
pub fn rms_norm(p: &Norm, groups: u32) -> Launch {
    let threads = norm_threads(p.n);
    launch(Module::Rows, "rms_norm", [groups, 1, 1], threads, p)
}

/// Applies `layer_norm` to `groups` groups of `p.n` values.
pub fn layer_norm(p: &Norm, groups: u32) -> Launch {
    let threads = norm_threads(p.n);
    launch(Module::Rows, "layer_norm", [groups, 1, 1], threads, p)
}

/// Multiplies every row by the factor of its position.
pub fn scale_by_position(p: &ScaleByPosition) -> Launch {
    let n = u64::from(p.rows) * u64::from(p.width);
    let grid = [blocks(n, 256), 1, 1];
    launch(Module::Rows, "scale_by_position", grid, 256, p)
}

/// Applies Hadamard transforms to groups of `p.order` adjacent values, one warp each.
pub fn hadamard(p: &Hadamard) -> Launch {
    let groups = u32::try_from(p.n / u64::from(p.order)).expect("no step is larger than a grid");
    launch(Module::Rows, "hadamard", [groups, 1, 1], 32, p)
}

/// Rotates queries or keys.
pub fn rope(p: &Rope) -> Launch {
    let n = u64::from(p.rows) * u64::from(p.heads) * u64::from(p.head_dim);
    launch(Module::Rows, "rope", [blocks(n, 256), 1, 1], 256, p)
}

/// Writes embedding inputs (such as image embeddings), or adds them to `x`.
pub fn embedding_inputs(p: &EmbeddingInputs) -> Launch {
    let n = u64::from(p.rows) * u64::from(p.width);
    launch(
        Module::Rows,
        "embedding_inputs",
        [blocks(n, 256), 1, 1],
        256,
        p,
    )
}

/// Computes `a + b`.
pub fn add(p: &Pair) -> Launch {
    launch(Module::Rows, "add", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Computes `a * b`.
pub fn mul(p: &Pair) -> Launch {
    launch(Module::Rows, "mul", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Computes `a * b`, where each value of `b` multiplies a group of adjacent values of `a`.
pub fn mul_vector(p: &MulVector) -> Launch {
    launch(Module::Rows, "mul_vector", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Applies `f` to `n` values.
pub fn unary(f: Function, x: Ptr, out: Ptr, n: u64) -> Launch {
    let mut p = Unary {
        x,
        out,
        n,
        ..Unary::default()
    };
    let name = match f {
        Function::SoftCap(cap) => {
            p.a = cap;
            "soft_cap"
        }
        Function::Scale(factor) => {
            p.a = factor;
            "scale"
        }
        Function::Clamp(low, high) => {
            (p.a, p.b) = (low, high);
            "clamp"
        }
        Function::Gelu => "gelu_tanh",
        Function::SquaredRelu => "squared_relu",
        Function::Sigmoid => "sigmoid",
        Function::Silu => "silu",
        Function::Softplus => "softplus",
        Function::Exp => "exponential",
        Function::Xielu(by) => {
            (p.a, p.b, p.c, p.d) = (by.positive, by.negative, by.linear, by.least);
            "xielu"
        }
    };
    launch(Module::Rows, name, [blocks(n, 256), 1, 1], 256, &p)
}

/// Computes `act(a) * b`.
pub fn gate(act: Activation, p: &Pair) -> Launch {
    let name = match act {
        Activation::Silu => "swiglu",
        Activation::Gelu => "geglu",
        Activation::SwigluOai => "swiglu_oai",
    };
    launch(Module::Rows, name, [blocks(p.n, 256), 1, 1], 256, p)
}

/// Returns the number of the activation in [`Gemv::gated`].
pub(super) fn gate_of_gemv(act: Activation) -> u32 {
    match act {
        Activation::Silu => 1,
        Activation::Gelu => 2,
        Activation::SwigluOai => 3,
    }
}

/// Writes the same row to every row.
pub fn constant(p: &Constant) -> Launch {
    launch(Module::Rows, "constant", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Interleaves pieces of two rows.
pub fn concat(p: &Concat) -> Launch {
    launch(Module::Rows, "concat", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Keeps `p.part` of every `p.each` values.
pub fn slice(p: &Slice) -> Launch {
    launch(Module::Rows, "slice", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Assembles rows from the parts gathered from all ranks.
pub fn join_parts(p: &JoinParts) -> Launch {
    launch(Module::Rows, "join_parts", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Selects rows by index.
pub fn select_rows(p: &Select) -> Launch {
    launch(
        Module::Rows,
        "select_rows",
        [blocks(u64::from(p.rows) * u64::from(p.width), 256), 1, 1],
        256,
        p,
    )
}

/// Applies softmax to `rows` rows.
pub fn softmax(p: &Softmax, rows: u32) -> Launch {
    launch(Module::Experts, "softmax", [rows, 1, 1], 32, p)
}

/// Finds the indices of the largest values of `rows` rows.
pub fn top_k(p: &TopK, rows: u32) -> Launch {
    launch(Module::Experts, "top_k", [rows, 1, 1], 32, p)
}

/// Gathers values by index.
pub fn gather(p: &Gather) -> Launch {
    let grid = [blocks(p.total, 256), 1, 1];
    launch(Module::Experts, "gather", grid, 256, p)
}

/// Divides rows by their sums.
pub fn normalize(p: &Normalize) -> Launch {
    let grid = [blocks(p.rows.into(), 256), 1, 1];
    launch(Module::Experts, "normalize", grid, 256, p)
}

/// Computes the weighted sum of the parts of each row.
pub fn weighted_sum(p: &WeightedSum) -> Launch {
    let grid = [blocks(p.total, 256), 1, 1];
    launch(Module::Experts, "weighted_sum", grid, 256, p)
}

/// Adds to each part of a row the bias of its expert.
pub fn expert_bias(p: &ExpertBias) -> Launch {
    let grid = [blocks(p.total, 256), 1, 1];
    launch(Module::Experts, "expert_bias", grid, 256, p)
}

/// Result of `argmax` for a row with a non-finite value.
pub const NOT_FINITE: u32 = u32::MAX;

/// Finds the index of the largest value of each of `rows` rows, or [`NOT_FINITE`], in two launches;
/// `p.parts_n` is [`ARGMAX_PARTS`].
pub fn argmax(p: &Argmax, rows: u32) -> [Launch; 2] {
    [
        launch(Module::Rows, "argmax_parts", [p.parts_n, rows, 1], 256, p),
        launch(Module::Rows, "argmax_merge", [rows, 1, 1], 256, p),
    ]
}

/// Looks up rows of a packed embedding table.
pub fn embed(ty: TensorType, p: &Embed) -> Launch {
    let ty = kernels_of(ty);
    // rows in x: only this dimension of a grid is never too small
    let grid = [p.columns, blocks(2 * u64::from(p.table.units), 128), 1];
    launch(Module::Embed(ty), format!("embed_{ty}_rows"), grid, 128, p)
}

/// Cache types with kernels, which keys and values must share.
pub const KV_TYPES: [KvType; 6] = [
    KvType::F16,
    KvType::F32,
    KvType::Bf16,
    KvType::Q8_0,
    KvType::F8E4M3,
    KvType::Q4_0,
];

/// Returns the common type of a cache's keys and values if it has kernels.
pub fn kv_type(types: KvTypes) -> Option<KvType> {
    KV_TYPES.into_iter().find(|ty| types == ty.both())
}

/// Lists the names of these types for messages.
pub(super) fn kv_type_names() -> String {
    KvType::listed(&KV_TYPES)
}

/// Returns the part of kernels for a type of the cache.
fn part_of(kv: KvType) -> Part {
    let at = KV_TYPES.iter().position(|ty| *ty == kv);
    1 + at.expect("the plan checked the cache's type")
}

/// Part of attention's kernels that are for no type of the cache.
pub(super) const NO_KV_TYPE: Part = KV_TYPES.len() + 1;

/// Cache types with kernels for prompts on tensor cores, which read them as halves; each is a part
/// behind [`NO_KV_TYPE`].
pub(super) const PROMPT_TYPES: [KvType; 5] = [
    KvType::F16,
    KvType::Bf16,
    KvType::Q8_0,
    KvType::F8E4M3,
    KvType::Q4_0,
];

/// Returns the part of prompts' kernels for a type of the cache.
fn prompt_part_of(kv: KvType) -> Option<Part> {
    let at = PROMPT_TYPES.iter().position(|ty| *ty == kv)?;
    Some(NO_KV_TYPE + 1 + at)
}

/// Whether there are kernels for prompts on tensor cores for heads of this size: a warp has all of
/// a head or half of it, in pieces of 16 values.
pub(super) fn has_prompt_kernels(head_dim: usize) -> bool {
    match head_dim {
        16..=128 => head_dim.is_multiple_of(16),
        129..=256 => head_dim.is_multiple_of(32),
        _ => false,
    }
}

/// Writes keys and values to the KV cache.
pub fn kv_write(kv: KvType, p: &KvWrite) -> Launch {
    let n = u64::from(p.paging.rows) * u64::from(p.heads) * u64::from(p.head_dim);
    launch(
        Module::Kv(part_of(kv)),
        format!("kv_write_{}", kv_name(kv)),
        [blocks(n, 256), 1, 1],
        256,
        p,
    )
}

/// Applies everything between the QKV products and attention: biases, norms, RoPE, and writing the
/// KV cache.
pub fn heads(kv: KvType, p: &Heads) -> Launch {
    // with few rows, fewer per block, so that heads spread over more of the device
    let warps = p.paging.rows.min(HEADS_WARPS);
    let grid = [p.paging.rows.div_ceil(warps), p.q.n + p.k.n + p.v.n, 1];
    let name = format!("heads_{}", kv_name(kv));
    launch(Module::Kv(part_of(kv)), name, grid, 32 * warps, p)
}

/// Maximum number of rows per block of [`heads`].
const HEADS_WARPS: u32 = 4;

/// Maximum number of splits of a row's positions (split-KV).
pub const MAX_SPLITS: u32 = 32;

/// Returns the most splits of a row that attends to positions before `end`, as `shares_of` in
/// `cuda/attention_split.cuh` makes them.
pub fn splits_of(end: usize) -> usize {
    let of_warps = PAGE_POSITIONS * ATTEND_WARPS;
    end.div_ceil(of_warps).clamp(1, MAX_SPLITS as usize)
}

/// Warps of an `attend` block, each of which has a page at a time.
const ATTEND_WARPS: usize = 4;

/// Whether attention supports heads of `head_dim` values.
pub fn takes_head_dim(head_dim: usize) -> bool {
    head_dim.is_multiple_of(8) && (8..=256).contains(&head_dim)
}

/// Whether [`attend_prompt`] supports this; otherwise [`attend`] also runs prefill.
pub fn takes_prompt(kv: KvType, head_dim: usize, heads_per_kv: usize) -> bool {
    prompt_part_of(kv).is_some()
        && kv.both().takes(head_dim)
        && has_prompt_kernels(head_dim)
        && heads_per_kv <= TILE_QUERIES
}

/// Computes attention of any rows, for heads of `head_dim` values, in two launches. No row may have
/// more than `most_splits` splits.
pub fn attend(kv: KvType, head_dim: usize, p: &Attention, most_splits: u32) -> [Launch; 2] {
    assert!(
        takes_head_dim(head_dim),
        "heads of {head_dim} values: see `takes_head_dim`"
    );
    assert!(
        p.splits <= MAX_SPLITS,
        "{} splits: expected at most {MAX_SPLITS}",
        p.splits
    );
    let per_kv = p.heads / p.heads_kv;
    // four large heads leave no registers for slopes
    let is_full = head_dim > 128 && p.slopes != Ptr::NULL;
    let at_once = if per_kv == 1 || is_full { 1 } else { 4 };
    let grid = [
        p.heads_kv * per_kv.div_ceil(at_once),
        p.paging.rows,
        p.splits.min(most_splits),
    ];
    let module = |part| Module::Attention(head_dim, part);
    let name = format!("attend_{}_{head_dim}_{at_once}", kv_name(kv));
    let merge = format!("attend_{head_dim}_merge");
    let heads = [p.heads * p.paging.rows, 1, 1];
    [
        launch(module(part_of(kv)), name, grid, 128, p),
        launch(module(NO_KV_TYPE), merge, heads, 128, p),
    ]
}

/// Computes prefill attention in `tiles` tiles (see `cuda/attention_prompt.cuh`).
///
/// # Panics
/// For what [`takes_prompt`] does not take.
pub fn attend_prompt(kv: KvType, head_dim: usize, p: &Attention, tiles: u32) -> Launch {
    let name = format!("attend_prompt_{head_dim}_{}", kv_name(kv));
    let grid = [tiles, p.heads_kv, 1];
    let part = prompt_part_of(kv).unwrap_or_else(|| panic!("{kv}: see `takes_prompt`"));
    // 64 keys or values, each row padded by 8 halves
    let tile = 64 * 2 * (head_dim as u32 + 8);
    let (threads, shared) = match head_dim {
        ..=128 => (128, 4 * tile),
        // eight warps share 16 queries each by twos, and tell each other their scores of 64 keys
        _ => (256, 2 * tile + 8 * 16 * 64 * 4),
    };
    let module = Module::Attention(head_dim, part);
    Launch {
        shared,
        ..launch(module, name, grid, threads, p)
    }
}

/// Threads per block of `mma_peak`.
pub const PEAK_THREADS: u32 = 256;
/// Accumulators per thread of it.
pub const PEAK_SUMS: u32 = 8;

/// Runs tensor core products to measure their peak speed.
pub fn mma_peak(p: &Peak, blocks: u32) -> Launch {
    launch(Module::Probe, "mma_peak", [blocks, 1, 1], PEAK_THREADS, p)
}

/// Returns the name of a type within kernel names.
fn kv_name(kv: KvType) -> String {
    kv.name().to_ascii_uppercase()
}
