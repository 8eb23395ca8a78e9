//! LLaVA 1.5 and 1.6: CLIP without its last block, on a square or on tiles and an overview, and a
//! projector of two products.

use gguf_rs_lite::Value;
use octavo_model::keys::{Source, show};

use super::{Binder, DecodedImage, Error, Filter, Hparams, Images, Keys, Merge, Positions, Prompt};
use super::{Size, Spec, Step, Tiles, TokenLimits, VIT, resample};
use crate::pixels::{fit, fit_on};

/// Colour around images, the mean of CLIP's: red, green and blue.
const AROUND: [u8; 3] = [122, 116, 104];
/// Sizes of tiled images, in pixels.
const SIZES: &str = "vision.image_grid_pinpoints";
/// Largest number of tiles that a file may ask for.
const MOST_TILES: usize = 256;

pub(super) const SPEC: Spec = Spec {
    names: &["mlp"],
    images: Images::Tiles(tiles),
    prompt: Prompt::Between(["", ""]),
    has_class_row: true,
    drops_first_row: true,
    merge: Merge {
        most: 1,
        ..VIT.merge
    },
    swaps_feed_forward: true,
    read_hparams,
    embed: |b| {
        let (n, embeddings) = (b.h.n_embd, Positions::of_square_and_class);
        let mut steps = vec![b.patches()?, b.positions(embeddings, "pos_embed")?];
        steps.extend(b.optional_layer_norm_step("v.pre_ln", n, "pre_ln")?);
        Ok(steps)
    },
    project,
    ..VIT
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    const LAYERS: &str = "vision.feature_layer";
    if let Some(layers) = k.get(LAYERS) {
        return Err(k.unsupported(LAYERS, "rows of the last block alone", show(&layers)));
    }
    // the last block of a file is not run
    if h.n_block < 2 {
        let expected = "at least 2, the last of which is not run";
        return Err(k.bad(
            k.full("vision.block_count"),
            expected,
            h.n_block.to_string(),
        ));
    }
    h.n_block -= 1;
    let Some(value) = k.get(SIZES) else {
        return Ok(());
    };
    h.sizes = sizes(&value, h.image_size).ok_or_else(|| {
        let expected = format!(
            "pairs of sides that are multiples of {}, for at most {MOST_TILES} tiles",
            h.image_size
        );
        k.bad(k.full(SIZES), expected, show(&value))
    })?;
    let sides: Vec<usize> = h.sizes.iter().flat_map(|s| [s.width, s.height]).collect();
    k.note(k.full(SIZES), sides, Source::File);
    Ok(())
}

/// Returns the sizes that a list of widths and heights says, all of whole tiles.
fn sizes(value: &Value<'_>, side: usize) -> Option<Vec<Size>> {
    let Value::Array(all) = value else {
        return None;
    };
    let whole = |v: Value<'_>| {
        let length = match v {
            Value::I32(x) => usize::try_from(x).ok()?,
            Value::U32(x) => usize::try_from(x).ok()?,
            _ => return None,
        };
        (length > 0 && length.is_multiple_of(side)).then_some(length)
    };
    let sides: Vec<usize> = all.iter().map(whole).collect::<Option<_>>()?;
    let pair = |sides: &[usize]| match *sides {
        [width, height] if (width / side).checked_mul(height / side)? <= MOST_TILES => {
            Some(Size { width, height })
        }
        _ => None,
    };
    sides.chunks(2).map(pair).collect()
}

/// Pads an image to a square, where the file has no sizes of tiled images. Else cuts one that is
/// larger than a tile, in the best of these sizes, followed by an overview; a small one has the
/// overview alone.
fn tiles(image: &DecodedImage, h: &Hparams, _: TokenLimits) -> Result<Tiles, crate::Error> {
    let (source, side) = (image.size(), h.image_size);
    let square = Size::square(side);
    if h.sizes.is_empty() {
        return Ok(Tiles::one(fit_on(image, square, Filter::Bicubic, AROUND)));
    }
    let overview = resample(image, square, Filter::Bicubic);
    if source.width <= side && source.height <= side {
        return Ok(Tiles::none().with(overview));
    }
    let whole = source.best_of(h.sizes.iter().copied()).unwrap_or(square);
    Ok(Tiles::cut(&fit(image, whole, Filter::Bicubic), side).with(overview))
}

fn project(b: &mut Binder<'_>) -> Result<Vec<Step>, Error> {
    let (n, rows) = (b.h.n_embd, b.h.n_projected);
    b.leave_out_block(b.h.n_block)?;
    b.tensors.ignore("v.image_newline");
    let mut steps = Vec::new();
    steps.extend(b.optional_layer_norm_step("v.post_ln", n, "norm_b")?);
    let inner = b.rows_of("mm.0.weight");
    steps.extend([
        Step::Affine(b.biased("mm.0", inner, n)?, [None; 2]),
        Step::Gelu(None),
        Step::Affine(b.biased("mm.2", rows, inner)?, [None; 2]),
    ]);
    Ok(steps)
}
