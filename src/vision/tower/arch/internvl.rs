//! InternVL 2.5 and later: tiles and an overview, a class row after the patches, a factor for each
//! channel of a block's results, and a projector that reads squares of patches as one vector.

use octavo_engine::ImagePart;

use super::{Binder, Block, DecodedImage, Error, Filter, Hparams, Images, Keys, Positions, Prompt};
use super::{Size, Spec, Step, Tiles, TokenLimits, VIT, resample};
use crate::pixels::fit;

/// Epsilon of the projector's norm; no key stores it.
const EPS: f32 = 1e-5;
/// Maximum number of tiles that a file may ask for.
const MOST_TILES: usize = 256;

pub(super) const SPEC: Spec = Spec {
    names: &["internvl"],
    images: Images::Tiles(tiles),
    prompt: Prompt::Tiles(prompt),
    has_class_row: true,
    read_hparams: limits_of_tiles,
    embed: |b| {
        Ok(vec![
            b.patches()?,
            b.positions(Positions::of_square_and_class, "pos_embed")?,
        ])
    },
    block,
    project: |b| {
        let merged = b.h.merged();
        let norm = b.layer_norm_step_with("mm.model.mlp.0", merged, None, EPS)?;
        let mut steps = vec![Step::merge(), norm];
        let names = ["mm.model.mlp.1", "mm.model.mlp.3"];
        steps.extend(b.two_products(names, b.h.n_projected, None)?);
        Ok(steps)
    },
    ..VIT
};

fn limits_of_tiles(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let max = k
        .count("vision.preproc_max_tiles", 1..=MOST_TILES, Some(12))?
        .value;
    let min = k.count("vision.preproc_min_tiles", 1..=max, Some(1))?.value;
    h.tiles = [min, max];
    if (h.n_embd, h.n_block) == (3200, 45) {
        // llama.cpp takes its norms for RMS norms
        let expected = "another encoder than the 6B's, of 45 blocks";
        return Err(k.unsupported("vision.block_count", expected, h.n_block.to_string()));
    }
    Ok(())
}

/// Binds a block. Norms of queries and keys, which some files have, are of a head or of all heads.
fn block(b: &mut Binder<'_>, l: usize) -> Result<Block, Error> {
    let name = |tensor: &str| format!("v.blk.{l}.{tensor}");
    let n = b.h.n_embd;
    Ok(Block {
        attn_scale: b.tensors.optional_vector(&name("ls1.weight"), n)?,
        ffn_scale: b.tensors.optional_vector(&name("ls2.weight"), n)?,
        ..b.block(l)?
    })
}

/// Cuts an image into tiles, row by row, followed by an overview. Of all grids within the file's
/// limits it takes the one in which most pixels of the image are left and least of the grid is
/// wasted. A small image has the overview alone.
fn tiles(image: &DecodedImage, h: &Hparams, _: TokenLimits) -> Result<Tiles, crate::Error> {
    let (side, source) = (h.image_size, image.size());
    let overview = resample(image, Size::square(side), Filter::Bicubic);
    if source.width <= side && source.height <= side {
        return Ok(Tiles::none().with(overview));
    }
    let best = source.best_of(grids(side, h.tiles));
    let whole = best.unwrap_or(Size::square(side));
    Ok(Tiles::cut(&fit(image, whole, Filter::Bicubic), side).with(overview))
}

/// Returns all sizes of `min` to `max` tiles.
fn grids(side: usize, [min, max]: [usize; 2]) -> impl Iterator<Item = Size> {
    let of_columns = move |columns| (min..=max / columns).map(move |rows| (columns, rows));
    (min..=max)
        .flat_map(of_columns)
        .map(move |(columns, rows)| Size {
            width: columns * side,
            height: rows * side,
        })
}

/// Returns all tiles and the overview one behind the other, between two control tokens.
fn prompt(_: [usize; 2], tokens: &[usize]) -> Vec<ImagePart> {
    let text = |text: &str| ImagePart::Text(text.to_owned());
    let all = ImagePart::Tokens(tokens.iter().sum());
    vec![text("<img>"), all, text("</img>")]
}
