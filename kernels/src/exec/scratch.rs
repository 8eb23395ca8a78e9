//! Scratch memory of each thread during a step.

use std::cell::UnsafeCell;
use std::time::{Duration, Instant};

use super::arena::Codes;
use super::extent::Extent;
use super::grouping::Grouping;
use super::model::Model;
use super::sizes::{GENERATED_ROWS, PANEL_FLOATS, STRIP_PAIR, UNITS, sums_len};
use super::tiles::MAX_TILE;
use crate::matrix::Matrix;
use crate::memory::Floats;
use crate::program::Phase;
use octavo_simd::act::{ACT_GROUP, ActRow};
use octavo_simd::generic::attention::{QUERY_ROWS, SPAN_POSITIONS, padded};
use octavo_simd::table::{MAX_R, TiledKernels};

/// Generated rows of an expert multiplied at a time: as integers they stay in the L1 cache (some
/// 2.4 bytes a value, 78 KiB for 2048) or close to it, while the weights are unpacked once.
pub(super) const EXPERT_ROWS: usize = 16;

/// Scratch memory of one thread.
#[derive(Default)]
pub(super) struct Scratch {
    pub(super) panel: Floats,
    pub(super) sums: Floats,
    /// Query values, scores of a span of positions, and weighted sums of values.
    pub(super) q: Floats,
    pub(super) span: Floats,
    pub(super) out: Floats,
    pub(super) strip: Floats,
    /// A pair of strips packed from rows of the file.
    pub(super) packed: Floats,
    /// Activations of generated tokens in tiles.
    pub(super) tiled: Tiled,
    /// Scratch of [`PromptAttention`](octavo_simd::table::PromptAttention).
    pub(super) attention: Floats,
    /// Rows routed to each expert.
    pub(super) grouping: Grouping,
    /// Rows of an expert, one after the other: as integers, and as floats.
    pub(super) codes: Codes,
    pub(super) rows: Floats,
    /// Scores of the groups of experts.
    pub(super) scores: Vec<f32>,
    /// The extent this has room for.
    extent: Option<Extent>,
}

/// Activations of generated tokens in the matrix unit's form, and timings that tell whether it is
/// the faster one.
#[derive(Default)]
pub(super) struct Tiled {
    values: Floats,
    /// Group length of the formats that read these tiles; `None` while there are none.
    group: Option<usize>,
    /// For groups of 16 codes, and of 32.
    pace: [Pace; 2],
}

/// Recent times of products on vectors and on the matrix unit.
///
/// Two hardware threads of a core share one matrix unit, and the other one may run another program:
/// the unit takes two to four times as long then, which is longer than vectors take. Results are
/// the same, so whichever was faster a moment ago is used.
#[derive(Clone, Copy, Default)]
struct Pace {
    calls: u32,
    /// Duration of one call each.
    vectors: Duration,
    tiles: Duration,
}

/// Calls after which both ways are measured again: some milliseconds.
const MEASURED_EVERY: u32 = 256;

impl Tiled {
    /// Invalidates the tiles: other activations follow.
    pub(super) fn forget(&mut self) {
        self.group = None;
    }

    /// Multiplies some rows of `x` in the faster way, or in each way by turns while they are
    /// measured: `multiply` gets the tiles of all of them, or `None` to use vectors.
    ///
    /// # Safety
    /// As [`Tiled::of`].
    pub(super) unsafe fn faster(
        &mut self,
        kernels: &TiledKernels,
        (x, m, k): (&ActRow, usize, usize),
        multiply: impl FnOnce(Option<*const u8>),
    ) {
        let at = usize::from(kernels.group != 16);
        let pace = &mut self.pace[at];
        let call = pace.calls % MEASURED_EVERY;
        pace.calls = pace.calls.wrapping_add(1);
        let by_tiles = call == 1 || call > 1 && pace.tiles < pace.vectors;
        // SAFETY: the caller's promise.
        let tiles = by_tiles.then(|| unsafe { self.of(kernels, x, m, k) });
        let start = Instant::now();
        multiply(tiles);
        match call {
            0 => self.pace[at].vectors = start.elapsed(),
            1 => self.pace[at].tiles = start.elapsed(),
            _ => {}
        }
    }

    /// `m` rows of `k` activations in tiles. They are made once, and again only after `forget` or
    /// for kernels of another group length.
    ///
    /// # Safety
    /// `x` is the first of the rows, which are finished, and the same ones each time; the kernels
    /// are of this CPU.
    pub(super) unsafe fn of(
        &mut self,
        kernels: &TiledKernels,
        x: &ActRow,
        m: usize,
        k: usize,
    ) -> *const u8 {
        let to = self.values.as_mut_ptr().cast::<u8>();
        if self.group != Some(kernels.group) {
            assert!((kernels.bytes)(m, k) <= self.values.len() * 4);
            // SAFETY: they fit, and the rows are the caller's promise.
            unsafe { (kernels.pack)(x, m, k, to) };
            self.group = Some(kernels.group);
        }
        to
    }
}

/// The scratch of each thread of the pool.
pub(super) struct Scratches(Box<[UnsafeCell<Scratch>]>);

// SAFETY: each is used by the thread of its number only, see `of`.
unsafe impl Sync for Scratches {}

impl Scratches {
    pub(super) fn new(threads: usize) -> Scratches {
        Scratches((0..threads).map(|_| UnsafeCell::default()).collect())
    }

    /// The scratch of a thread.
    ///
    /// # Safety
    /// The calling thread has this number, and no other reference to its scratch.
    #[allow(clippy::mut_from_ref, reason = "each thread has its own")]
    pub(super) unsafe fn of(&self, thread: usize) -> &mut Scratch {
        // SAFETY: the caller's promise.
        unsafe { &mut *self.0[thread].get() }
    }
}

impl Scratch {
    /// Makes room for a step of the executor's model.
    pub(super) fn reserve(&mut self, model: &Model, extent: &Extent) {
        // called before every section
        if self.extent == Some(*extent) {
            return;
        }
        self.panel.grow(STRIP_PAIR * PANEL_FLOATS);
        self.sums.grow(UNITS * sums_len(extent.most_rows()));
        let head_dims = model.program.caches.iter().map(|kv| kv.head_dim);
        let head_dim = head_dims.max().unwrap_or(0);
        self.q.grow(QUERY_ROWS * head_dim);
        self.span.grow(QUERY_ROWS * SPAN_POSITIONS);
        self.out.grow(QUERY_ROWS * padded(head_dim));
        let rows = extent.most_rows().min(GENERATED_ROWS);
        self.strip.grow(2 * STRIP_PAIR * MAX_R * rows);
        // for prompts too, so that memory does not lack only once the first token is out
        let pairs = model.matrices.iter().map(Matrix::pair_bytes);
        self.packed.grow(pairs.max().unwrap_or(0).div_ceil(4));
        if extent.phase == Phase::Decode {
            let rows = extent.most_rows();
            let bytes = model.matrices.iter().filter_map(|matrix| {
                let tiled = matrix.tiled().filter(|tiled| tiled.fewest <= rows)?;
                Some((tiled.bytes)(rows, matrix.cols))
            });
            self.tiled.values.grow(bytes.max().unwrap_or(0) / 4);
        }
        let experts = model.experts;
        if experts.used > 0 {
            let rows = extent.most_rows();
            self.grouping.reserve(rows * experts.used, experts.count);
            self.rows.grow(MAX_TILE * experts.cols);
            if extent.phase == Phase::Decode {
                let groups = experts.cols.div_ceil(ACT_GROUP);
                self.codes.reserve(rows.min(EXPERT_ROWS) * groups);
            }
        }
        if let Some(attention) = model.prompt_attention {
            let caches = model.program.caches.iter();
            let bytes = caches.map(|kv| (attention.scratch)(kv.head_dim)).max();
            self.attention.grow(bytes.unwrap_or(0) / 4);
        }
        self.extent = Some(*extent);
    }
}
