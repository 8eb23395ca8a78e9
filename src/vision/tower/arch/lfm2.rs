//! LFM2-VL: SigLIP 2 on images of any size, large ones in tiles and an overview, a table of
//! positions that is stretched over what it looks at, and a projector that reads squares of patches
//! as one vector.

use octavo_engine::ImagePart;
use octavo_model::graph::once;

use super::{Cut, DecodedImage, Error, Filter, Hparams, Images, Keys, Merge, Positions, Prompt};
use super::{Size, Spec, Step, Tiles, VIT, gemma3, resample};
use crate::pixels::fit;

/// Epsilon of the projector's norm; no key stores it.
const EPS: f32 = 1e-5;
/// Side of a tile in pixels; no key stores it.
const TILE: usize = 512;
/// Fewest and most tiles of an image that is cut.
const TILES: [usize; 2] = [2, 10];
/// Images with more pixels than this times the largest overview are cut.
const MOST_OVERVIEWS: f64 = 2.0;

pub(super) const SPEC: Spec = Spec {
    names: &["lfm2"],
    images: Images::Dynamic {
        min: 64,
        max: 256,
        cut: Some(Cut { side: TILE, tiles }),
    },
    prompt: Prompt::Tiles(prompt),
    bidirectional: |_| false,
    merge: Merge {
        default: 0,
        least: 2,
        ..VIT.merge
    },
    swaps_feed_forward: false,
    read_hparams: check_tile,
    embed: |b| {
        Ok(vec![
            b.patches()?,
            b.patch_bias("patch_bias")?,
            b.positions(Positions::resized, "pos_embed")?,
        ])
    },
    project: |b| {
        let (n, merged) = (b.h.n_embd, b.h.merged());
        let mut steps = vec![
            b.layer_norm_step("v.post_ln", n, None)?,
            Step::Merge(once("pixel_shuffle")),
        ];
        if b.tensors.has("mm.input_norm.weight") {
            steps.push(b.layer_norm_step_with("mm.input_norm", merged, None, EPS)?);
        }
        let inner = b.rows_of("mm.1.weight");
        steps.extend(b.two_products(["mm.1", "mm.2"], inner, None)?);
        Ok(steps)
    },
    ..gemma3::SPEC
};

fn check_tile(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    if TILE.is_multiple_of(h.unit()) {
        return Ok(());
    }
    let expected = format!(
        "a side that goes into tiles of {TILE} pixels {} times",
        h.merge
    );
    Err(k.bad(k.full("vision.patch_size"), expected, h.patch.to_string()))
}

/// Resizes an image within the limits; cuts one with many more pixels into tiles, row by row,
/// followed by the resized image.
fn tiles(image: &DecodedImage, h: &Hparams, limits: [usize; 2]) -> Result<Tiles, crate::Error> {
    let source = image.size();
    let overview = source.for_image_tokens(h.unit(), limits)?;
    let overview = resample(image, overview, Filter::Bilinear);
    // halves are rounded to the even number
    let rounded = |side: usize| {
        let units = (side as f64 / h.unit() as f64).round_ties_even();
        (units * h.unit() as f64).max(h.patch as f64)
    };
    let area = rounded(source.width) * rounded(source.height);
    let most = (limits[1] as f64) * (h.unit() as f64).powi(2);
    if area <= most * MOST_OVERVIEWS {
        return Ok(Tiles::one(overview));
    }
    let whole = best_grid(source).map(|n| n * TILE);
    Ok(Tiles::cut(&fit(image, whole, Filter::Bilinear), TILE).with(overview))
}

/// Returns the columns and rows of the grid whose aspect ratio is the nearest; of those with the
/// same, the largest that an image fills by more than a half.
fn best_grid(source: Size) -> Size {
    let aspect = source.width as f32 / source.height as f32;
    let area = (source.width * source.height) as f32;
    let (mut best, mut grid) = (f32::MAX, Size::square(1));
    for Size { width, height } in grids() {
        let off = (aspect - width as f32 / height as f32).abs();
        let fills = area > 0.5 * (TILE * TILE * width * height) as f32;
        if off < best || (off == best && fills) {
            (best, grid) = (off, Size { width, height });
        }
    }
    grid
}

/// Returns all grids, by their number of tiles and then by their longer side.
fn grids() -> Vec<Size> {
    let [min, max] = TILES;
    let all = (1..=max).flat_map(|width| (1..=max).map(move |height| Size { width, height }));
    let mut all: Vec<Size> = all
        .filter(|grid| (min..=max).contains(&(grid.width * grid.height)))
        .collect();
    let rank = |grid: &Size| {
        (
            grid.width * grid.height,
            grid.width.max(grid.height),
            grid.width,
        )
    };
    all.sort_by_key(rank);
    all
}

/// Returns the text around and between tiles: the place of each, and the overview last. An image
/// that is not cut stands alone.
fn prompt([columns, _]: [usize; 2], tokens: &[usize]) -> Vec<ImagePart> {
    let text = |text: String| ImagePart::Text(text);
    let mut parts = vec![text("<|image_start|>".to_owned())];
    let (overview, tiles) = tokens.split_last().unwrap_or((&0, &[]));
    for (i, tile) in tiles.iter().enumerate() {
        let (row, column) = (i / columns + 1, i % columns + 1);
        parts.push(text(format!("<|img_row_{row}_col_{column}|>")));
        parts.push(ImagePart::Tokens(*tile));
    }
    if !tiles.is_empty() {
        parts.push(text("<|img_thumbnail|>".to_owned()));
    }
    parts.push(ImagePart::Tokens(*overview));
    parts.push(text("<|image_end|>".to_owned()));
    parts
}
