//! Kernel dispatch by operation and format: a table of functions, one for every instruction set
//! (`kernels/isa/src/dispatch.rs` makes it, `kernels/isa/src/isa.rs` lists them).

use crate::act::{ActRow, Form};
use crate::function::{Activation, Function};
use crate::generic::batch::BatchKernels;
pub use crate::generic::batch::CodeKernel;
use crate::generic::{attention, elementwise, gemm, recurrence, routing};
use crate::kv_layout::{KvShape, KvType, KvTypes};
use octavo_quant::TensorType;

/// The kernels of one packed weight format.
#[derive(Clone, Copy)]
pub struct Packed {
    /// Packs rows of the file, at most a strip's, into a strip.
    pub pack: unsafe fn(&[&[u8]], &mut [u8]),
    /// Kernels for rows of activations of generated tokens.
    pub gemv: Gemv,
    /// Kernels for many rows of activations.
    pub prompt: PromptKernels,
    /// The same in 13 bits, if there are such kernels.
    pub prompt_int13: Option<PromptKernels>,
    /// The same in 8 bits, if there are such kernels.
    pub prompt_int8: Option<PromptKernels>,
}

/// Kernels that multiply prompts by one weight format.
#[derive(Clone, Copy)]
pub struct PromptKernels {
    /// Form that activations are converted to.
    pub activations: &'static ActivationForm,
    /// Converts a slice of a strip to a panel.
    pub panel: unsafe fn(*const u8, usize, usize, *mut f32),
    /// Multiply one strip, and a pair of them, by all tokens.
    pub tiles: [unsafe fn(&gemm::Tiles<'_>); 2],
    /// Zero point these kernels subtract from every code of the panel.
    pub offset: i32,
}

/// A form of prompt activations.
pub struct ActivationForm {
    pub form: Form,
    /// Tokens of a full tile.
    pub tile: usize,
    /// k of a panel; a multiple of every block length.
    pub slice: usize,
    /// Tiles and panels have a multiple of this many k: zeros follow the last ones.
    pub granule: usize,
    /// Bytes of a tile for each value, and of a panel for each weight.
    pub bytes: usize,
    /// Whether there are narrower tiles for the last tokens.
    pub narrow: bool,
    pub pack: unsafe fn(*const f32, usize, usize, usize, usize, *mut f32),
}

impl ActivationForm {
    /// Floats that `rows` rows of `k` values take in tiles, or of weights in a panel.
    pub fn floats(&self, rows: usize, k: usize) -> usize {
        rows * k.next_multiple_of(self.granule) * self.bytes / 4
    }
}

/// Kernels for weights that have no packed form: their rows become a panel of floats, `[kc][R]`.
#[derive(Clone, Copy)]
pub struct UnpackedKernels {
    pub activations: &'static ActivationForm,
    pub tiles: [unsafe fn(&gemm::Tiles<'_>); 2],
}

/// Generation kernels, by the form of their activations.
#[derive(Clone, Copy)]
pub enum Gemv {
    /// Integer activations.
    Codes(CodeKernels),
    /// Activations in f32.
    Float(FloatKernels),
}

/// Kernel that multiplies strips, given their weights per row, by a row of activations.
pub type FloatKernel = unsafe fn(*const u8, usize, *const f32, *mut f32);

/// Kernel that multiplies strips, given their weights per row, by rows of activations, given by
/// their addresses; results are a first row and a stride in floats.
pub type FloatRowsKernel = unsafe fn(*const u8, usize, &[*const f32], (*mut f32, usize));

/// Kernels that multiply activations by float weights: one strip, and a pair of them.
#[derive(Clone, Copy)]
pub struct FloatKernels {
    /// One row.
    pub row: [FloatKernel; 2],
    /// Several rows.
    pub rows: [FloatRowsKernel; 2],
}

/// Kernels that multiply integer activations by one weight format.
#[derive(Clone, Copy)]
pub struct CodeKernels {
    /// Multiply one strip, and a pair of them, by one row.
    pub row: [CodeKernel; 2],
    /// Multiplies a pair of strips by several rows.
    pub batch: BatchKernels,
    /// Multiplies a pair of strips by many rows, on a matrix unit.
    pub tiled: Option<TiledKernels>,
}

/// Kernels that multiply integer activations of many rows by one weight format, on a matrix unit.
#[derive(Clone, Copy)]
pub struct TiledKernels {
    /// Number of rows from which on it is the faster way.
    pub fewest: usize,
    /// Bytes of rows of activations in tiles, from the number of rows and their length.
    pub bytes: fn(usize, usize) -> usize,
    /// Codes that share a scale: formats with the same number read the same tiles.
    pub group: usize,
    /// Packs rows of `k` activations, given the first and their number, as tiles.
    pub pack: unsafe fn(&ActRow, usize, usize, *mut u8),
    /// Multiplies two strips, a stride in bytes apart, of `k` weights a row, by a number of rows in
    /// tiles; results in rows at a stride in floats.
    #[allow(
        clippy::type_complexity,
        reason = "each pair is an address and its stride or length"
    )]
    pub strips: unsafe fn((*const u8, usize), usize, (*const u8, usize), (*mut f32, usize)),
}

/// Rows of the widest strip.
pub const MAX_R: usize = 16;

/// Attention of many query rows together, which rounds more coarsely than f32: for prompts with
/// quantized weights, which are rounded too.
pub struct PromptAttention {
    /// Whether it supports the heads of a cache.
    pub takes: fn(&KvShape) -> bool,
    /// Query rows of a [`Block`](attention::Block), at most.
    pub rows: usize,
    /// Bytes of scratch, from the values of a head.
    pub scratch: fn(usize) -> usize,
    /// Kernels that convert keys, and values, of a type into the scratch.
    pub keys: fn(KvType) -> attention::PackSpan,
    pub values: fn(KvType) -> attention::PackSpan,
    /// Computes attention over the keys and values that these two convert.
    pub attend: unsafe fn(&attention::Block<'_>, [attention::PackSpan; 2], *mut u8),
}

/// Kernels of rows of logits in f64, of a number of values, by blocks: see
/// [`logits`](crate::generic::logits). Their results have the same bits in every table.
#[derive(Clone, Copy, Debug)]
pub struct LogitKernels {
    pub widen: unsafe fn(*const f32, usize, *mut f64, *mut f64) -> bool,
    pub maxima: unsafe fn(*const f64, usize, *mut f64),
    pub exp_sums: unsafe fn(*const f64, usize, f64, *mut [f64; 2]),
    /// The same of logits in f32.
    pub exp_sums_f32: unsafe fn(*const f32, usize, f64, *mut [f64; 2]),
    pub exps: unsafe fn(*const f64, usize, f64, *mut f64),
}

/// Normalizes a number of values by weights, with an epsilon.
pub type Norm = unsafe fn(*const f32, *const f32, f32, usize, *mut f32);

/// Every kernel of one instruction set.
pub struct Table {
    /// Whether this CPU has every instruction that the kernels were compiled with.
    pub detect: fn() -> bool,
    /// Rows of a strip.
    pub strip: usize,
    pub packed: fn(TensorType) -> Option<Packed>,
    /// Weights without a packed form.
    pub float_rows: UnpackedKernels,
    pub quantize: unsafe fn(*const f32, usize, &ActRow),
    /// Sets the calling thread up before its first kernel of a step, and tidies up after the last.
    pub enter: unsafe fn(),
    pub leave: unsafe fn(),
    /// Numbers of query rows taken at a time, largest first.
    pub queries: &'static [usize],
    /// Kernels for a number of query rows, one of `queries`, and pages of these types.
    pub attention: fn(usize, KvTypes) -> attention::SpanKernels,
    /// Replaces `attention` for prompts.
    pub prompt_attention: Option<PromptAttention>,
    pub rms_norm: Norm,
    pub layer_norm: Norm,
    pub unary: unsafe fn(Function, *const f32, usize, *mut f32),
    /// Kernel of an activation.
    pub gate: fn(Activation) -> unsafe fn(&elementwise::Operands),
    pub add: unsafe fn(&elementwise::Operands),
    pub mul: unsafe fn(&elementwise::Operands),
    pub convolve: unsafe fn(&recurrence::Columns),
    pub linear_attention: unsafe fn(&recurrence::Lanes),
    pub selective_scan: unsafe fn(&recurrence::ScanLanes),
    pub wkv7: unsafe fn(&recurrence::WkvLanes),
    pub softmax: unsafe fn(*const f32, usize, *mut f32),
    pub weighted_sum: unsafe fn(&routing::Parts),
    pub to_f16: unsafe fn(*const f32, usize, *mut u16),
    pub rotate: unsafe fn(*const f32, *const f32, *const f32, usize, *mut f32),
    pub logits: LogitKernels,
    /// Loops that measure memory bandwidth: without and with prefetch.
    pub read: [unsafe fn(*const f32, usize) -> f32; 2],
    /// Loops that measure arithmetic: with few and with many accumulators.
    pub multiply: [unsafe fn(usize) -> f32; 2],
    /// Loop that measures a matrix unit, and the multiply-adds of its iteration.
    pub busy_unit: Option<(unsafe fn(usize), usize)>,
}
