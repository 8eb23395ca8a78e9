//! Launches of matrix products, and of the kernels that convert their inputs.

use super::super::Ptr;
use super::super::modules::{Module, Part};
use super::super::pack::{self, STRIP, UNIT, kernels_of};
use super::super::params::{Arrange, ExpertGemv, ExpertImma, Gemm, Gemv, GemvPart, SortExperts};
use super::{Launch, blocks, launch, norm_threads};
use octavo_quant::TensorType;

/// Maximum number of activation columns per launch of `gemv`, for weights with codes.
pub const GEMV_COLUMNS: usize = 8;
/// Maximum number of activation columns per launch of `gemv`, for float weights.
pub const FLOAT_COLUMNS: usize = 16;
/// Warps per `gemv` block, and its maximum number of strips per tile.
const GEMV_WARPS: u32 = 8;
/// `gemv` blocks per multiprocessor: the register limit of the one-column kernel.
const GEMV_BLOCKS: u32 = 3;
/// Maximum number of activation columns per launch of `imma`.
pub const IMMA_COLUMNS: usize = 16;
/// Fewest columns for which `imma` is faster than `gemv`.
pub const IMMA_FROM: usize = 3;
/// Rows per `imma` tile, large and small.
const IMMA_ROWS: [u32; 2] = [64, 32];
/// Bytes of shared memory of an `imma` block, as in `cuda/imma.cuh`: the most that GPUs of every
/// architecture have.
const IMMA_SHARED: u32 = 99 * 1024;
/// Tokens and rows per `gemm` tile, small and large.
const GEMM_TILES: [u32; 2] = [64, 128];
/// Columns per K slice of `wide_gemm`.
const WIDE_SLICE: usize = 4 * UNIT;
/// Slices in shared memory at a time (pipeline stages).
const WIDE_STAGES: u32 = 3;

/// A tile of `wide_gemm`.
#[derive(Clone, Copy)]
struct WideTile {
    /// Rows of weights.
    rows: u32,
    tokens: u32,
    /// Resident blocks per multiprocessor.
    blocks: u32,
    /// Time of a product, relative to the largest tile.
    time: f64,
}

const WIDE_TILES: [WideTile; 3] = [
    WideTile {
        rows: 128,
        tokens: 256,
        blocks: 1,
        time: 1.0,
    },
    WideTile {
        rows: 128,
        tokens: 128,
        blocks: 1,
        time: 1.1,
    },
    WideTile {
        rows: 64,
        tokens: 128,
        blocks: 2,
        time: 1.2,
    },
];

/// Parts of the kernels of `imma`, of 8 and of 16 columns, and of `wide_gemm`, by tiles.
pub(in crate::cuda) const IMMA_PARTS: Part = 2;
pub(in crate::cuda) const WIDE_PARTS: Part = WIDE_TILES.len();

/// Layout of the input of a matrix product.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For `gemv` with quantized weights.
    Integers,
    /// For `gemv` with float weights.
    Floats,
    /// For `gemm`.
    Halves,
    /// For `wide_gemm`, with columns in its order.
    WideHalves,
}

impl Form {
    /// Returns the form that `gemv` multiplies weights of type `ty` with.
    pub fn of_gemv(ty: TensorType) -> Form {
        if pack::has_codes(ty) {
            Form::Integers
        } else {
            Form::Floats
        }
    }
}

/// Converts activations to the form that matrix products read.
pub fn activations(form: Form, p: &Arrange) -> Launch {
    let units = u64::from(p.rows) * u64::from(p.units);
    let (name, grid, threads) = match form {
        Form::Integers => ("activations_integers", blocks(32 * units, 128), 128),
        Form::Floats => ("activations_floats", blocks(32 * units, 128), 128),
        Form::Halves => ("activations_halves", p.rows, NORM_PART),
        Form::WideHalves => ("activations_wide", p.rows, NORM_PART),
    };
    launch(Module::Activations, name, [grid, 1, 1], threads, p)
}

/// Threads per block that converts a row, or a part of one, as in `cuda/norm.cuh`.
const NORM_PART: u32 = 256;

/// Applies `rms_norm` to rows and converts them, as [`activations`].
pub fn normed_activations(form: Form, p: &Arrange) -> Launch {
    let (name, (x, y, threads)) = match form {
        Form::Integers => {
            let parts = p.units.div_ceil(NORM_PART / 32);
            ("norm_integers", (p.rows, parts, NORM_PART))
        }
        Form::Floats => ("norm_floats", (p.rows, 1, norm_threads(p.cols))),
        Form::Halves => ("norm_halves", (p.rows, 1, NORM_PART)),
        Form::WideHalves => ("norm_wide", (p.rows, 1, NORM_PART)),
    };
    launch(Module::Activations, name, [x, y, 1], threads, p)
}

/// Returns the bytes of `rows` rows of activations in a form.
pub fn activation_bytes(form: Form, rows: usize, cols: usize) -> usize {
    match form {
        Form::Integers => rows * cols.div_ceil(UNIT) * 5 * 16,
        Form::Floats => rows * cols.div_ceil(UNIT) * 8 * 16,
        Form::Halves => rows * cols.next_multiple_of(2 * UNIT) * 2,
        Form::WideHalves => rows * cols.next_multiple_of(WIDE_SLICE) * 2,
    }
}

/// Returns the number of `gemv` warps that share a row of `units` units, as `parts_of` in
/// `cuda/gemv.cuh`.
fn parts_of(units: u32) -> u32 {
    if units < 256 { 1 } else { 4 }
}

/// Multiplies matrices of one type by up to [`GEMV_COLUMNS`] rows of activations, or
/// [`FLOAT_COLUMNS`] if they are floats; chooses the tiles by the number of multiprocessors.
pub fn gemv(ty: TensorType, p: &Gemv, multiprocessors: u32) -> Launch {
    let columns = p.columns.max(1).next_power_of_two();
    let most = match pack::has_codes(ty) {
        true => GEMV_COLUMNS,
        false => FLOAT_COLUMNS,
    };
    assert!(
        columns as usize <= most,
        "{columns} columns: expected at most {most}"
    );
    let matrices = if p.gated != 0 { 1 } else { p.parts.len() };
    let tiles = |tile: u32| -> u32 {
        let parts = p.parts[..matrices].iter();
        parts.map(|part| part.w.strips.div_ceil(tile)).sum()
    };
    let blocks = multiprocessors * GEMV_BLOCKS;
    // small tiles where large ones would leave part of the device idle
    let tile = match p.integers == Ptr::NULL && tiles(GEMV_WARPS) < 2 * blocks {
        true => GEMV_WARPS / parts_of(p.parts[0].w.units),
        false => GEMV_WARPS,
    };
    let p = Gemv {
        tile,
        tiles: tiles(tile),
        ..*p
    };
    let ty = kernels_of(ty);
    let module = match columns as usize > GEMV_COLUMNS {
        true => Module::FloatGemv(ty),
        false => Module::Gemv(ty),
    };
    launch(
        module,
        format!("gemv_{ty}_{columns}"),
        [p.tiles.min(blocks).max(1), 1, 1],
        32 * GEMV_WARPS,
        &p,
    )
}

/// Multiplies matrices of one type with codes by up to [`IMMA_COLUMNS`] rows of activations, on
/// tensor cores; the results have the bits of [`gemv`]. Chooses the tiles by the number of
/// multiprocessors.
pub fn imma(ty: TensorType, p: &Gemv, multiprocessors: u32) -> Launch {
    // rounds of blocks, each of which reads its rows of weights and all activations
    let time = |rows: &u32| {
        let rounds = imma_tiles(p, *rows).div_ceil(multiprocessors.max(1));
        u64::from(rounds) * u64::from(rows + IMMA_COLUMNS as u32)
    };
    let rows = IMMA_ROWS.into_iter().min_by_key(time);
    imma_of(ty, p, rows.expect("there are tiles"))
}

/// Returns launches in every tile size; all give the same results.
pub fn imma_in_all_tiles(ty: TensorType, p: &Gemv) -> [Launch; 2] {
    IMMA_ROWS.map(|rows| imma_of(ty, p, rows))
}

fn imma_tiles(p: &Gemv, rows: u32) -> u32 {
    let matrices = if p.gated != 0 { 1 } else { p.parts.len() };
    let tiles = |part: &GemvPart| part.w.strips.div_ceil(rows / STRIP as u32);
    p.parts[..matrices].iter().map(tiles).sum()
}

fn imma_of(ty: TensorType, p: &Gemv, rows: u32) -> Launch {
    let columns = (p.columns as usize).next_multiple_of(IMMA_COLUMNS / 2);
    assert!(
        columns <= IMMA_COLUMNS,
        "{columns} columns: expected at most {IMMA_COLUMNS}"
    );
    let ty = kernels_of(ty);
    let name = format!("imma_{ty}_{rows}_{columns}");
    let grid = [imma_tiles(p, rows).max(1), 1, 1];
    Launch {
        shared: IMMA_SHARED,
        ..launch(
            Module::Imma(ty, part_of(columns)),
            name,
            grid,
            32 * GEMV_WARPS,
            p,
        )
    }
}

/// Returns the part of kernels of so many columns.
fn part_of(columns: usize) -> Part {
    columns.div_ceil(IMMA_COLUMNS / IMMA_PARTS)
}

/// Multiplies by any number of rows of activations, in large tiles where each multiprocessor then
/// gets at least two.
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

/// As [`gemm`], with warpgroup matrix multiply, in the tile size estimated to be fastest.
pub fn wide_gemm(ty: TensorType, p: &Gemm, multiprocessors: u32) -> Launch {
    let time = |tile: &WideTile| {
        let [x, y] = tile.grid(p);
        let slots = multiprocessors * tile.blocks;
        let waves = (u64::from(x) * u64::from(y)).div_ceil(u64::from(slots));
        waves as f64 * f64::from(tile.rows * tile.tokens * tile.blocks) * tile.time
    };
    let best = WIDE_TILES.iter().min_by(|a, b| time(a).total_cmp(&time(b)));
    best.expect("there are tiles").launch(ty, p)
}

/// Returns launches in every tile size; all give the same results.
pub fn wide_gemm_in_all_tiles(ty: TensorType, p: &Gemm) -> Vec<Launch> {
    let tiles = WIDE_TILES.iter();
    tiles.map(|tile| tile.launch(ty, p)).collect()
}

impl WideTile {
    fn grid(&self, p: &Gemm) -> [u32; 2] {
        [p.w.rows.div_ceil(self.rows), p.tokens.div_ceil(self.tokens)]
    }

    fn launch(&self, ty: TensorType, p: &Gemm) -> Launch {
        let ty = kernels_of(ty);
        let name = format!("wide_gemm_{ty}_{}_{}", self.rows, self.tokens);
        let [x, y] = self.grid(p);
        let same = |tile: &WideTile| (tile.rows, tile.tokens) == (self.rows, self.tokens);
        let part = 1 + WIDE_TILES.iter().position(same).expect("one of them");
        Launch {
            shared: WIDE_STAGES * self.tokens * 2 * WIDE_SLICE as u32,
            ..launch(
                Module::WideGemm(ty, part),
                name,
                [x, y, 1],
                2 * self.rows,
                p,
            )
        }
    }
}

/// Multiplies rows by their experts; `choices` counts the experts over all rows.
pub fn expert_gemv(ty: TensorType, p: &ExpertGemv, choices: u32) -> Launch {
    let ty = kernels_of(ty);
    let across = GEMV_WARPS / parts_of(p.w.units);
    // choices in x: only this dimension of a grid is never too small
    let grid = [choices, p.n.div_ceil(STRIP as u32).div_ceil(across), 1];
    let name = format!("expert_gemv_{ty}_1");
    launch(Module::ExpertGemv(ty), name, grid, 32 * GEMV_WARPS, p)
}

/// Bytes of a tile of choices (`ExpertTile` in `cuda/experts.cuh`).
pub const EXPERT_TILE_BYTES: usize = 16;

/// Returns the most choices per tile of [`expert_imma`], and the number of tiles that
/// [`sort_experts`] writes.
pub fn expert_tiles(choices: usize, experts: usize) -> [usize; 2] {
    // narrow tiles where most experts have few choices
    let width = match choices <= 6 * experts {
        true => IMMA_COLUMNS / 2,
        false => IMMA_COLUMNS,
    };
    [width, choices / width + experts]
}

/// Sorts the choices of rows by expert, and deals those of each expert to tiles.
pub fn sort_experts(p: &SortExperts) -> Launch {
    launch(Module::Experts, "sort_experts", [p.experts, 1, 1], 256, p)
}

/// Multiplies rows by their experts, in `tiles` tiles of up to `width` choices, on tensor cores;
/// the results have the bits of [`expert_gemv`].
pub fn expert_imma(ty: TensorType, p: &ExpertImma, [width, tiles]: [usize; 2]) -> Launch {
    let time = |rows: &u32| p.n.div_ceil(*rows) * (rows + width as u32);
    let rows = IMMA_ROWS.into_iter().min_by_key(time);
    let rows = rows.expect("there are tiles");
    let ty = kernels_of(ty);
    let name = format!("expert_imma_{ty}_{rows}_{width}");
    // tiles in x: only this dimension of a grid is never too small
    let grid = [small(tiles), p.n.div_ceil(rows), 1];
    Launch {
        shared: IMMA_SHARED,
        ..launch(
            Module::ExpertImma(ty, part_of(width)),
            name,
            grid,
            32 * GEMV_WARPS,
            p,
        )
    }
}

fn small(n: usize) -> u32 {
    u32::try_from(n).expect("no step is larger than a grid")
}

/// Names the kernels that multiply weights of type `ty`: decode, then prefill.
pub fn kernel_names(ty: TensorType) -> String {
    match pack::is_packed(ty) {
        true => format!("gemv_{0}, gemm_{0}", kernels_of(ty)),
        false => format!("gemv_F32, gemm_F32 from {ty} as floats"),
    }
}
