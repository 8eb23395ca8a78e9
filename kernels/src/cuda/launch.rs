//! The launch table: which kernel runs for an operation, and with how many threads.
//!
//! Sizes of blocks and how work is cut follow from shapes, never from what else is in a batch;
//! grids and tiles that a device's size decides (those of products) only say who does a piece of
//! work.

mod products;

pub use products::{
    Form, GEMV_COLUMNS, activation_bytes, activations, expert_gemv, gemm, gemv, kernel_names,
    normed_activations, wide_gemm, wide_gemm_in_all_tiles,
};

use super::Ptr;
use super::modules::Module;
use super::pack::kernels_of;
use super::params::{
    Argmax, Attention, CausalConv, Concat, Constant, Embed, ExpertBias, Gather, Given, Hadamard,
    Heads, JoinParts, KvWrite, LinearAttention, MulVector, Norm, Normalize, Pair, Params, Peak,
    Rope, ScaleByPosition, Select, Slice, Softmax, TopK, Unary, WeightedSum,
};
use crate::kv::{KvType, KvTypes};
use crate::op::{Activation, Function};
use octavo_quant::TensorType;

/// One launch of one kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    /// Where the kernel is.
    pub module: Module,
    /// Its name, which is what profilers show.
    pub kernel: String,
    /// Blocks.
    pub grid: [u32; 3],
    /// Threads of a block.
    pub threads: u32,
    /// Bytes of shared memory that its blocks get beside what the kernel has: the same in all
    /// launches of a kernel.
    pub shared: u32,
    /// Its parameters.
    pub params: Vec<u64>,
}

/// Queries of a tile of `attend_prompt`.
pub const TILE_QUERIES: usize = 64;
/// Parts of a row that `argmax` looks through at the same time.
pub const ARGMAX_PARTS: u32 = 64;
/// Bytes of one of them.
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

/// Blocks of `threads` for `n` threads.
fn blocks(n: u64, threads: u32) -> u32 {
    u32::try_from(n.div_ceil(u64::from(threads))).expect("no step is larger than a grid")
}

/// Threads that norm a group of `n` values, as in `cuda/norm.cuh`: a warp for the short ones, the
/// heads.
fn norm_threads(n: u32) -> u32 {
    match n {
        0..=256 => 32,
        257..=2048 => 256,
        _ => 1024,
    }
}

/// `rms_norm` of so many groups of `p.n` values.
pub fn rms_norm(p: &Norm, groups: u32) -> Launch {
    let threads = norm_threads(p.n);
    launch(Module::Rows, "rms_norm", [groups, 1, 1], threads, p)
}

/// `layer_norm` of so many groups of `p.n` values.
pub fn layer_norm(p: &Norm, groups: u32) -> Launch {
    let threads = norm_threads(p.n);
    launch(Module::Rows, "layer_norm", [groups, 1, 1], threads, p)
}

/// Every row times the factor of its position.
pub fn scale_by_position(p: &ScaleByPosition) -> Launch {
    let n = u64::from(p.rows) * u64::from(p.width);
    let grid = [blocks(n, 256), 1, 1];
    launch(Module::Rows, "scale_by_position", grid, 256, p)
}

/// Hadamard transforms of neighbours: a warp for each.
pub fn hadamard(p: &Hadamard) -> Launch {
    let groups = u32::try_from(p.n / u64::from(p.order)).expect("no step is larger than a grid");
    launch(Module::Rows, "hadamard", [groups, 1, 1], 32, p)
}

/// Rotates queries or keys.
pub fn rope(p: &Rope) -> Launch {
    let n = u64::from(p.rows) * u64::from(p.heads) * u64::from(p.head_dim);
    launch(Module::Rows, "rope", [blocks(n, 256), 1, 1], 256, p)
}

/// What is given in the place of embeddings, or the sum with it.
pub fn given(p: &Given) -> Launch {
    let n = u64::from(p.rows) * u64::from(p.width);
    launch(Module::Rows, "given", [blocks(n, 256), 1, 1], 256, p)
}

/// `a + b`.
pub fn add(p: &Pair) -> Launch {
    launch(Module::Rows, "add", [blocks(p.n, 256), 1, 1], 256, p)
}

/// `a * b`.
pub fn mul(p: &Pair) -> Launch {
    launch(Module::Rows, "mul", [blocks(p.n, 256), 1, 1], 256, p)
}

/// `a * b`, where each value of `b` is for neighbours.
pub fn mul_vector(p: &MulVector) -> Launch {
    launch(Module::Rows, "mul_vector", [blocks(p.n, 256), 1, 1], 256, p)
}

/// `f` of `n` values.
pub fn unary(f: Function, x: Ptr, out: Ptr, n: u64) -> Launch {
    let (name, parameter) = match f {
        Function::SoftCap(cap) => ("soft_cap", cap),
        Function::Scale(factor) => ("scale", factor),
        Function::Gelu => ("gelu_tanh", 0.0),
        Function::SquaredRelu => ("squared_relu", 0.0),
        Function::Sigmoid => ("sigmoid", 0.0),
        Function::Silu => ("silu", 0.0),
        Function::Softplus => ("softplus", 0.0),
        Function::Exp => ("exponential", 0.0),
    };
    let p = Unary {
        x,
        out,
        n,
        parameter,
        unused: 0,
    };
    launch(Module::Rows, name, [blocks(n, 256), 1, 1], 256, &p)
}

/// `act(a) * b`.
pub fn gate(act: Activation, p: &Pair) -> Launch {
    let name = match act {
        Activation::Silu => "swiglu",
        Activation::Gelu => "geglu",
        Activation::SwigluOai => "swiglu_oai",
    };
    launch(Module::Rows, name, [blocks(p.n, 256), 1, 1], 256, p)
}

/// How [`Gemv::gated`] says which gate it is.
pub(super) fn gate_of_gemv(act: Activation) -> u32 {
    match act {
        Activation::Silu => 1,
        Activation::Gelu => 2,
        Activation::SwigluOai => 3,
    }
}

/// The same row in every row.
pub fn constant(p: &Constant) -> Launch {
    launch(Module::Rows, "constant", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Pieces of two rows in turn.
pub fn concat(p: &Concat) -> Launch {
    launch(Module::Rows, "concat", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Keeps some of every so many values.
pub fn slice(p: &Slice) -> Launch {
    launch(Module::Rows, "slice", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Rows of the parts that ranks have of them.
pub fn join_parts(p: &JoinParts) -> Launch {
    launch(Module::Rows, "join_parts", [blocks(p.n, 256), 1, 1], 256, p)
}

/// Keeps rows by number.
pub fn select_rows(p: &Select) -> Launch {
    launch(
        Module::Rows,
        "select_rows",
        [blocks(u64::from(p.rows) * u64::from(p.width), 256), 1, 1],
        256,
        p,
    )
}

/// Softmax of so many rows.
pub fn softmax(p: &Softmax, rows: u32) -> Launch {
    launch(Module::Experts, "softmax", [rows, 1, 1], 32, p)
}

/// Places of the largest values of so many rows.
pub fn top_k(p: &TopK, rows: u32) -> Launch {
    launch(Module::Experts, "top_k", [rows, 1, 1], 32, p)
}

/// Values at places.
pub fn gather(p: &Gather) -> Launch {
    let grid = [blocks(p.total, 256), 1, 1];
    launch(Module::Experts, "gather", grid, 256, p)
}

/// Rows divided by their sums.
pub fn normalize(p: &Normalize) -> Launch {
    let grid = [blocks(p.rows.into(), 256), 1, 1];
    launch(Module::Experts, "normalize", grid, 256, p)
}

/// Parts of rows, each times its weight, added up.
pub fn weighted_sum(p: &WeightedSum) -> Launch {
    let grid = [blocks(p.total, 256), 1, 1];
    launch(Module::Experts, "weighted_sum", grid, 256, p)
}

/// Each part of a row and the bias of its expert.
pub fn expert_bias(p: &ExpertBias) -> Launch {
    let grid = [blocks(p.total, 256), 1, 1];
    launch(Module::Experts, "expert_bias", grid, 256, p)
}

/// What `argmax` says of a row that has a value that is not finite.
pub const NOT_FINITE: u32 = u32::MAX;

/// Where the largest value of each of `rows` rows is, or [`NOT_FINITE`]: two launches, `p.parts_n`
/// being [`ARGMAX_PARTS`].
pub fn argmax(p: &Argmax, rows: u32) -> [Launch; 2] {
    [
        launch(Module::Rows, "argmax_parts", [p.parts_n, rows, 1], 256, p),
        launch(Module::Rows, "argmax_merge", [rows, 1, 1], 256, p),
    ]
}

/// Rows of a packed table.
pub fn embed(ty: TensorType, p: &Embed) -> Launch {
    let ty = kernels_of(ty);
    // rows first: only that side of a grid is never too short
    let grid = [p.columns, blocks(2 * u64::from(p.table.units), 128), 1];
    launch(Module::Embed(ty), format!("embed_{ty}_rows"), grid, 128, p)
}

/// Types of the cache that there are kernels for, of keys and values alike.
pub const KV_TYPES: [KvType; 6] = [
    KvType::F16,
    KvType::F32,
    KvType::Bf16,
    KvType::Q8_0,
    KvType::F8E4M3,
    KvType::Q4_0,
];

/// The type of a cache's keys and values, if there are kernels for them.
pub fn kv_type(types: KvTypes) -> Option<KvType> {
    KV_TYPES.into_iter().find(|ty| types == ty.both())
}

/// The names of all of these types, for people.
pub(super) fn kv_type_names() -> String {
    KvType::listed(&KV_TYPES)
}

/// Stores keys and values.
pub fn kv_write(kv: KvType, p: &KvWrite) -> Launch {
    let n = u64::from(p.paging.rows) * u64::from(p.heads) * u64::from(p.head_dim);
    launch(
        Module::Kv,
        format!("kv_write_{}", kv_name(kv)),
        [blocks(n, 256), 1, 1],
        256,
        p,
    )
}

/// What is done to queries, keys and values between their products and attention, the cache's part
/// included.
pub fn heads(kv: KvType, p: &Heads) -> Launch {
    // few rows, few to a block: then heads have more of the device
    let warps = p.paging.rows.min(HEADS_WARPS);
    let grid = [p.paging.rows.div_ceil(warps), p.q.n + p.k.n + p.v.n, 1];
    let name = format!("heads_{}", kv_name(kv));
    launch(Module::Kv, name, grid, 32 * warps, p)
}

/// Rows of a block of [`heads`], at most.
const HEADS_WARPS: u32 = 4;

/// Parts of a row's positions, at most.
pub const MOST_SPLITS: u32 = 32;

/// Whether attention has kernels for heads of so many values.
pub fn takes_head_dim(head_dim: usize) -> bool {
    head_dim.is_multiple_of(8) && (8..=256).contains(&head_dim)
}

/// Whether [`attend_prompt`] has a kernel for this; otherwise [`attend`] does for prompts too.
pub fn takes_prompt(kv: KvType, head_dim: usize, heads_per_kv: usize) -> bool {
    kv == KvType::F16
        && head_dim.is_multiple_of(16)
        && (16..=128).contains(&head_dim)
        && heads_per_kv <= TILE_QUERIES
}

/// Attention of any rows, for heads of `head_dim` values: two launches.
pub fn attend(kv: KvType, head_dim: usize, p: &Attention) -> [Launch; 2] {
    assert!(
        takes_head_dim(head_dim),
        "heads of {head_dim} values: see `takes_head_dim`"
    );
    assert!(
        p.splits <= MOST_SPLITS,
        "{} splits: expected at most {MOST_SPLITS}",
        p.splits
    );
    let per_kv = p.heads / p.heads_kv;
    let at_once = if per_kv == 1 { 1 } else { 4 };
    let grid = [
        p.heads_kv * per_kv.div_ceil(at_once),
        p.paging.rows,
        p.splits,
    ];
    let module = Module::Attention(head_dim);
    let name = format!("attend_{}_{head_dim}_{at_once}", kv_name(kv));
    let merge = format!("attend_{head_dim}_merge");
    let heads = [p.heads * p.paging.rows, 1, 1];
    [
        launch(module, name, grid, 128, p),
        launch(module, merge, heads, 128, p),
    ]
}

/// Attention of prompts in so many tiles (see `cuda/attention_prompt.cuh`).
pub fn attend_prompt(head_dim: usize, p: &Attention, tiles: u32) -> Launch {
    let name = format!("attend_prompt_{head_dim}_F16");
    let grid = [tiles, p.heads_kv, 1];
    Launch {
        // two tiles of 64 keys and two of as many values, their rows eight halves apart
        shared: 4 * 64 * 2 * (head_dim as u32 + 8),
        ..launch(Module::Attention(head_dim), name, grid, 128, p)
    }
}

/// A convolution over the rows of sequences, and the rows that it keeps.
pub fn causal_conv(p: &CausalConv) -> Launch {
    let grid = [blocks(u64::from(p.rows) * u64::from(p.width), 256), 1, 1];
    launch(Module::Recurrence, "causal_conv", grid, 256, p)
}

/// Lengths of keys that `linear_attention` is compiled for: a shorter key is one with zeros.
const KEY_DIMS: [usize; 3] = [64, 128, 256];
/// Values of a head that a block of `linear_attention` works on.
const LINEAR_VALUES: u32 = 32;

/// The longest key of [`linear_attention`].
pub const MOST_KEY_DIM: usize = KEY_DIMS[KEY_DIMS.len() - 1];

/// Attention by the states of so many sequences.
///
/// # Panics
/// For keys of more than [`MOST_KEY_DIM`] values.
pub fn linear_attention(p: &LinearAttention, sequences: u32) -> Launch {
    let fits = |dim: &usize| p.key_dim as usize <= *dim;
    let dim = KEY_DIMS.into_iter().find(fits);
    let dim = dim.unwrap_or_else(|| panic!("keys of {} values: see `MOST_KEY_DIM`", p.key_dim));
    // sequences first: only that side of a grid is never too short
    let grid = [sequences * p.heads, p.value_dim.div_ceil(LINEAR_VALUES), 1];
    let name = format!("linear_attention_{dim}");
    launch(Module::Recurrence, name, grid, 128, p)
}

/// Threads of an `mma_peak` block.
pub const PEAK_THREADS: u32 = 256;
/// Sums of its threads.
pub const PEAK_SUMS: u32 = 8;

/// Products on tensor cores, for their own sake.
pub fn mma_peak(p: &Peak, blocks: u32) -> Launch {
    launch(Module::Probe, "mma_peak", [blocks, 1, 1], PEAK_THREADS, p)
}

/// A type as the names of kernels have it.
fn kv_name(kv: KvType) -> String {
    kv.name().to_ascii_uppercase()
}
