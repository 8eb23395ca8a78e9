//! Idefics 3 and SmolVLM: SigLIP on tiles and on an overview of the image, and a projector that
//! reads squares of patches as one vector.

use octavo_engine::ImagePart;
use octavo_model::graph::once;

use super::{DecodedImage, Filter, Hparams, Images, Merge, Prompt, Size, Spec, Step};
use super::{Tiles, TokenLimits, VIT, gemma3, resample};
use crate::Error;
use crate::pixels::fit;

pub(super) const SPEC: Spec = Spec {
    names: &["idefics3"],
    images: Images::Tiles(tiles),
    prompt: Prompt::Tiles(prompt),
    bidirectional: |_| false,
    merge: Merge {
        default: 0,
        least: 2,
        ..VIT.merge
    },
    project: |b| {
        let (n, rows, merged) = (b.h.n_embd, b.h.n_projected, b.h.merged());
        let projection = b.tensors.matrix("mm.model.fc.weight", rows, merged)?;
        Ok(vec![
            b.layer_norm_step("v.post_ln", n, None)?,
            Step::Merge(once("pixel_shuffle")),
            Step::Product(projection, None),
        ])
    },
    ..gemma3::SPEC
};

/// Cuts an image into tiles, row by row, followed by an overview. Every image is enlarged or shrunk
/// to `preproc_image_size` on its longer side, and then to whole tiles. Where the file has no such
/// key, or limits are asked for, sizes follow from these as in encoders without tiles.
fn tiles(image: &DecodedImage, h: &Hparams, limits: TokenLimits) -> Result<Tiles, Error> {
    let (side, source) = (h.image_size, image.size());
    let tile = Size::square(side);
    if h.longest_side > 0 && limits == TokenLimits::default() {
        let image = resample(image, at_longest(source, h.longest_side)?, Filter::Lanczos);
        let whole = image.size().map(|length| length.next_multiple_of(side));
        let image = resample(&image, whole, Filter::Lanczos);
        let overview = resample(&image, tile, Filter::Lanczos);
        return Ok(Tiles::cut(&image, side).with(overview));
    }
    let area = |tokens: usize| tokens as f64 * (h.unit() * h.unit()) as f64;
    let most = limits.max.map_or(f64::INFINITY, area);
    let areas = [limits.min.map_or(0.0, area).min(most), most];
    let whole = match h.longest_side {
        0 => source.aligned(side, areas)?,
        longest => source.aligned_from(source.within(longest, side), side, areas)?,
    };
    let overview = resample(image, tile, Filter::Bicubic);
    Ok(Tiles::cut(&fit(image, whole, Filter::Bicubic), side).with(overview))
}

/// Returns the size whose longer side is this long, the other rounded up to an even number.
fn at_longest(source: Size, longest: usize) -> Result<Size, Error> {
    let Size { width, height } = source;
    let aspect = width as f64 / height as f64;
    let even = |side: f64| (side as usize).next_multiple_of(2);
    let size = match width >= height {
        true => Size {
            width: longest,
            height: even(longest as f64 / aspect),
        },
        false => Size {
            width: even(longest as f64 * aspect),
            height: longest,
        },
    };
    match size.width.min(size.height) {
        0 => Err(Error::TooNarrow { width, height }),
        _ => Ok(size),
    }
}

/// Returns the text around and between tiles: the place of each, and the overview last.
fn prompt([columns, rows]: [usize; 2], tokens: &[usize]) -> Vec<ImagePart> {
    let text = |text: String| ImagePart::Text(text);
    let mut tokens = tokens.iter().map(|n| ImagePart::Tokens(*n));
    let mut parts = Vec::new();
    for row in 1..=rows {
        for column in 1..=columns {
            let place = format!("{AROUND}<row_{row}_col_{column}>");
            parts.push(text(place));
            parts.extend(tokens.next());
        }
        let end = if row < rows { "\n" } else { "\n\n" };
        parts.push(text(end.to_owned()));
    }
    let overview = format!("{AROUND}<global-img>");
    parts.push(text(overview));
    parts.extend(tokens);
    parts.push(text(AROUND.to_owned()));
    parts
}

/// Stands around everything of an image.
const AROUND: &str = "<fake_token_around_image>";
