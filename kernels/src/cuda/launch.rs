//! The launch table: which kernel runs for an operation, and with how many threads.
//!
//! Sizes of blocks and how work is cut follow from shapes, never from what else is in a batch;
//! grids that a device's size decides (`gemv`) only say who does a piece of work.

use super::Ptr;
use super::modules::Module;
use super::pack::{STRIP, UNIT, kernels_of};
use super::params::{
    Argmax, Arrange, Attention, CausalConv, Concat, Constant, Embed, ExpertBias, ExpertGemv,
    Gather, Gemm, Gemv, Given, Hadamard, Heads, KvWrite, LinearAttention, MulVector, Norm,
    Normalize, Pair, Params, Peak, Rope, ScaleByPosition, Select, Slice, Softmax, TopK, Unary,
    WeightedSum,
};
use crate::kv::KvType;
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
    /// Its parameters.
    pub params: Vec<u64>,
}

/// Most columns of activations that `gemv` takes.
pub const GEMV_COLUMNS: usize = 8;
/// Queries of a tile of `attend_prompt`.
pub const TILE_QUERIES: usize = 64;
/// Parts of a row that `argmax` looks through at the same time.
pub const ARGMAX_PARTS: u32 = 64;
/// Bytes of one of them.
pub const ARGMAX_PART_BYTES: usize = 16;
/// Warps of a `gemv` block, and strips of a warp at a time: one.
const GEMV_WARPS: u32 = 8;
/// `gemv` blocks for each multiprocessor: enough that reads of some wait while others multiply.
const GEMV_BLOCKS: u32 = 4;
/// Tokens and rows of `gemm` tiles, small and large.
const GEMM_TILES: [u32; 2] = [64, 128];

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
        params: params.words(),
    }
}

/// Blocks of `threads` for `n` threads.
fn blocks(n: u64, threads: u32) -> u32 {
    u32::try_from(n.div_ceil(u64::from(threads))).expect("no step is larger than a grid")
}

/// Threads that norm a group of `n` values: a warp for the short ones, the heads.
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

/// Products of so many experts of rows, counted over all rows.
pub fn expert_gemv(ty: TensorType, p: &ExpertGemv, choices: u32) -> Launch {
    let ty = kernels_of(ty);
    // choices first: only that side of a grid is never too short
    let grid = [choices, p.n.div_ceil(STRIP as u32).div_ceil(GEMV_WARPS), 1];
    let name = format!("expert_gemv_{ty}_1");
    launch(Module::ExpertGemv(ty), name, grid, 32 * GEMV_WARPS, p)
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

/// The form that an input of products is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For `gemv`, with codes.
    Integers,
    /// For `gemv`, with floats.
    Floats,
    /// For `gemm`.
    Halves,
}

impl Form {
    /// What `gemv` multiplies weights of type `ty` with.
    pub fn of_gemv(ty: TensorType) -> Form {
        if super::pack::has_codes(ty) {
            Form::Integers
        } else {
            Form::Floats
        }
    }
}

/// Activations in the form that products read.
pub fn activations(form: Form, p: &Arrange) -> Launch {
    let units = u64::from(p.rows) * u64::from(p.units);
    let (name, grid, threads) = match form {
        Form::Integers => ("activations_integers", blocks(32 * units, 128), 128),
        Form::Floats => ("activations_floats", blocks(32 * units, 128), 128),
        Form::Halves => ("activations_halves", p.rows, norm_threads(p.cols)),
    };
    launch(Module::Activations, name, [grid, 1, 1], threads, p)
}

/// The same of rows that `rms_norm` has to come before.
pub fn normed_activations(form: Form, p: &Arrange) -> Launch {
    let name = match form {
        Form::Integers => "norm_integers",
        Form::Floats => "norm_floats",
        Form::Halves => "norm_halves",
    };
    let threads = norm_threads(p.cols);
    launch(Module::Activations, name, [p.rows, 1, 1], threads, p)
}

/// Bytes of `rows` rows of activations in a form.
pub fn activation_bytes(form: Form, rows: usize, cols: usize) -> usize {
    match form {
        Form::Integers => rows * cols.div_ceil(UNIT) * 5 * 16,
        Form::Floats => rows * cols.div_ceil(UNIT) * 8 * 16,
        Form::Halves => rows * cols.next_multiple_of(2 * UNIT) * 2,
    }
}

/// Products with up to [`GEMV_COLUMNS`] rows of activations, on a device of so many
/// multiprocessors. All matrices are of the same type.
pub fn gemv(ty: TensorType, p: &Gemv, multiprocessors: u32) -> Launch {
    let columns = p.columns.max(1).next_power_of_two();
    assert!(
        columns as usize <= GEMV_COLUMNS,
        "{columns} columns: expected at most {GEMV_COLUMNS}"
    );
    let blocks = p
        .strips
        .div_ceil(GEMV_WARPS)
        .min(multiprocessors * GEMV_BLOCKS)
        .max(1);
    let ty = kernels_of(ty);
    launch(
        Module::Gemv(ty),
        format!("gemv_{ty}_{columns}"),
        [blocks, 1, 1],
        32 * GEMV_WARPS,
        p,
    )
}

/// A product with any number of rows of activations, on a device of so many multiprocessors: in
/// large tiles where each of them then gets two.
pub fn gemm(ty: TensorType, p: &Gemm, multiprocessors: u32) -> Launch {
    let grid = |tile: u32| [p.w.rows.div_ceil(tile), p.tokens.div_ceil(tile), 1];
    let [small, large] = GEMM_TILES;
    let [x, y, _] = grid(large);
    let tile = if u64::from(x) * u64::from(y) >= 2 * u64::from(multiprocessors) {
        large
    } else {
        small
    };
    let ty = kernels_of(ty);
    launch(
        Module::Gemm(ty),
        format!("gemm_{ty}_{tile}"),
        grid(tile),
        256,
        p,
    )
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
    let grid = [p.paging.rows, p.q.n + p.k.n + p.v.n, 1];
    launch(Module::Kv, format!("heads_{}", kv_name(kv)), grid, 32, p)
}

/// Parts of a row's positions, at most.
pub const MOST_SPLITS: u32 = 16;

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
    [
        launch(
            module,
            format!("attend_{}_{head_dim}_{at_once}", kv_name(kv)),
            grid,
            128,
            p,
        ),
        launch(
            module,
            format!("attend_{head_dim}_merge"),
            [p.heads * p.paging.rows, 1, 1],
            128,
            p,
        ),
    ]
}

/// Attention of prompts in so many tiles (see `cuda/attention.cuh`).
pub fn attend_prompt(head_dim: usize, p: &Attention, tiles: u32) -> Launch {
    let name = format!("attend_prompt_{head_dim}_F16");
    launch(
        Module::Attention(head_dim),
        name,
        [tiles, p.heads_kv, 1],
        128,
        p,
    )
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

/// The kernels that multiply weights of type `ty`, for people: of generated tokens, of prompts.
pub fn kernel_names(ty: TensorType) -> String {
    match super::pack::is_packed(ty) {
        true => format!("gemv_{0}, gemm_{0}", kernels_of(ty)),
        false => format!("gemv_F32, gemm_F32 from {ty} as floats"),
    }
}

/// A type as the names of kernels have it.
fn kv_name(kv: KvType) -> String {
    kv.name().to_ascii_uppercase()
}
