//! Launches of products, and of what brings their inputs into the kernels' forms.

use super::super::Ptr;
use super::super::modules::Module;
use super::super::pack::{self, STRIP, UNIT, kernels_of};
use super::super::params::{Arrange, ExpertGemv, Gemm, Gemv};
use super::{Launch, blocks, launch, norm_threads};
use octavo_quant::TensorType;

/// Most columns of activations that `gemv` takes.
pub const GEMV_COLUMNS: usize = 8;
/// Warps of a `gemv` block, and the most strips that it takes at a time.
const GEMV_WARPS: u32 = 8;
/// `gemv` blocks for each multiprocessor: as many as registers allow of those for one column.
const GEMV_BLOCKS: u32 = 3;
/// Tokens and rows of `gemm` tiles, small and large.
const GEMM_TILES: [u32; 2] = [64, 128];
/// Columns of a slice of `wide_gemm`.
const WIDE_SLICE: usize = 4 * UNIT;
/// Its slices in shared memory at a time.
const WIDE_STAGES: u32 = 3;

/// A tile of `wide_gemm`.
#[derive(Clone, Copy)]
struct WideTile {
    /// Of weights.
    rows: u32,
    tokens: u32,
    /// Blocks that a multiprocessor runs at a time.
    blocks: u32,
    /// Time that a product takes in it, of what it takes in the largest tiles.
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

/// The form that an input of products is in.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// For `gemv`, with codes.
    Integers,
    /// For `gemv`, with floats.
    Floats,
    /// For `gemm`.
    Halves,
    /// For `wide_gemm`, columns in its order.
    WideHalves,
}

impl Form {
    /// What `gemv` multiplies weights of type `ty` with.
    pub fn of_gemv(ty: TensorType) -> Form {
        if pack::has_codes(ty) {
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
        Form::Halves => ("activations_halves", p.rows, NORM_PART),
        Form::WideHalves => ("activations_wide", p.rows, NORM_PART),
    };
    launch(Module::Activations, name, [grid, 1, 1], threads, p)
}

/// Threads of blocks that bring a row into a form, or a part of it: as in `cuda/norm.cuh`.
const NORM_PART: u32 = 256;

/// The same of rows that `rms_norm` has to come before.
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

/// Bytes of `rows` rows of activations in a form.
pub fn activation_bytes(form: Form, rows: usize, cols: usize) -> usize {
    match form {
        Form::Integers => rows * cols.div_ceil(UNIT) * 5 * 16,
        Form::Floats => rows * cols.div_ceil(UNIT) * 8 * 16,
        Form::Halves => rows * cols.next_multiple_of(2 * UNIT) * 2,
        Form::WideHalves => rows * cols.next_multiple_of(WIDE_SLICE) * 2,
    }
}

/// Parts of a row of so many units that warps of `gemv` share, as `parts_of` in `cuda/gemv.cuh`.
fn parts_of(units: u32) -> u32 {
    if units < 256 { 1 } else { 4 }
}

/// Products with up to [`GEMV_COLUMNS`] rows of activations, on a device of so many
/// multiprocessors. All matrices are of the same type; how they are cut into tiles is decided here.
pub fn gemv(ty: TensorType, p: &Gemv, multiprocessors: u32) -> Launch {
    let columns = p.columns.max(1).next_power_of_two();
    assert!(
        columns as usize <= GEMV_COLUMNS,
        "{columns} columns: expected at most {GEMV_COLUMNS}"
    );
    let matrices = if p.gated != 0 { 1 } else { p.parts.len() };
    let tiles = |tile: u32| -> u32 {
        let parts = p.parts[..matrices].iter();
        parts.map(|part| part.w.strips.div_ceil(tile)).sum()
    };
    let blocks = multiprocessors * GEMV_BLOCKS;
    // small tiles where large ones would leave some of the device idle
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
    launch(
        Module::Gemv(ty),
        format!("gemv_{ty}_{columns}"),
        [p.tiles.min(blocks).max(1), 1, 1],
        32 * GEMV_WARPS,
        &p,
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

/// As [`gemm`], where warps multiply in groups: in tiles of the size that should take the least
/// time.
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

/// In each size of tiles: what comes of them is the same.
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
        Launch {
            shared: WIDE_STAGES * self.tokens * 2 * WIDE_SLICE as u32,
            ..launch(Module::WideGemm(ty), name, [x, y, 1], 2 * self.rows, p)
        }
    }
}

/// Products of so many experts of rows, counted over all rows.
pub fn expert_gemv(ty: TensorType, p: &ExpertGemv, choices: u32) -> Launch {
    let ty = kernels_of(ty);
    let across = GEMV_WARPS / parts_of(p.w.units);
    // choices first: only that side of a grid is never too short
    let grid = [choices, p.n.div_ceil(STRIP as u32).div_ceil(across), 1];
    let name = format!("expert_gemv_{ty}_1");
    launch(Module::ExpertGemv(ty), name, grid, 32 * GEMV_WARPS, p)
}

/// The kernels that multiply weights of type `ty`, for people: of generated tokens, of prompts.
pub fn kernel_names(ty: TensorType) -> String {
    match pack::is_packed(ty) {
        true => format!("gemv_{0}, gemm_{0}", kernels_of(ty)),
        false => format!("gemv_F32, gemm_F32 from {ty} as floats"),
    }
}
