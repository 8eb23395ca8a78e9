//! Vision encoders, one file each: a [`Spec`] says what is special about one, over blocks and steps
//! that all share. To add one takes its file, its `mod` and its line in [`ALL`].

mod gemma3;
mod gemma4uv;
mod gemma4v;
mod idefics3;
mod internvl;
mod kimivl;
mod lfm2;
mod llava;
mod pixtral;
mod qwen25vl;
mod qwen3vl;

use std::fmt;

use octavo_engine::ImagePart;
use octavo_kernels::Pairing;
use octavo_model::graph::Norm;
use octavo_model::keys::Keys;
use octavo_model::{Error, Rope};

use super::hparams::Hparams;
use super::layout::{COLUMN, ROW};
use super::positions::Positions;
use super::step::Step;
use super::weights::{Binder, Block};
use crate::pixels::{DecodedImage, Filter, Size, Tiles, TokenLimits, resample};

/// Every vision encoder.
const ALL: [Projector; 11] = [
    Projector(&qwen3vl::SPEC),
    Projector(&qwen25vl::SPEC),
    Projector(&gemma3::SPEC),
    Projector(&gemma4v::SPEC),
    Projector(&gemma4uv::SPEC),
    Projector(&pixtral::SPEC),
    Projector(&idefics3::SPEC),
    Projector(&internvl::SPEC),
    Projector(&lfm2::SPEC),
    Projector(&llava::SPEC),
    Projector(&kimivl::SPEC),
];

/// Kind of a vision encoder, by the type of its projector.
#[derive(Clone, Copy)]
pub struct Projector(&'static Spec);

impl Projector {
    /// Returns llama.cpp's name.
    pub fn name(self) -> &'static str {
        self.0.names[0]
    }

    /// Returns the one with this name.
    pub(super) fn named(name: &str) -> Option<Projector> {
        ALL.into_iter().find(|p| p.0.names.contains(&name))
    }

    /// Returns all names.
    pub(super) fn names() -> impl Iterator<Item = &'static str> {
        ALL.into_iter().flat_map(|p| p.0.names).copied()
    }

    pub(crate) fn spec(self) -> &'static Spec {
        self.0
    }
}

impl PartialEq for Projector {
    fn eq(&self, other: &Projector) -> bool {
        self.name() == other.name()
    }
}

impl fmt::Debug for Projector {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// A vision encoder as data, plus functions that read and bind its particular keys and tensors.
/// All start from [`VIT`].
pub(crate) struct Spec {
    /// Values of `clip.projector_type`; the first is llama.cpp's own.
    pub(super) names: &'static [&'static str],
    /// Sizes of images, or how they are cut into tiles.
    pub(crate) images: Images,
    /// Text and tokens that a prompt has in place of an image.
    pub(crate) prompt: Prompt,
    /// Whether tokens of an image attend to each other in the text model.
    pub(crate) bidirectional: fn(&Hparams) -> bool,
    /// Square of patches that becomes one image token.
    pub(super) merge: Merge,
    /// A row that belongs to no patch follows the patches through the blocks (CLS).
    pub(super) has_class_row: bool,
    /// The row of the first patch is left out, and the class row is the last (as in llama.cpp).
    pub(super) drops_first_row: bool,
    /// Pixels go from -1 to 1 after they are normalised.
    pub(super) centred: bool,
    /// Whether there are blocks at all.
    pub(super) has_blocks: bool,
    /// Kind of norm before attention and before the feed-forward block.
    pub(super) norm: Norm,
    /// Matrices and layer norms of blocks have biases.
    pub(super) biases: bool,
    /// Inputs and outputs of products may have bounds (`x.input_min` and so on).
    pub(super) clamps: bool,
    /// Old files have the names of `ffn_up` and `ffn_down` the other way round.
    pub(super) swaps_feed_forward: bool,
    /// Rotation of queries and keys.
    pub(super) rotation: Rotation,
    /// Factor on attention scores, from the width of a head.
    pub(super) scale: fn(usize) -> f32,
    /// Values of a head that are rotated together are whole groups of this many.
    pub(super) head_multiple: usize,
    /// llama.cpp's names of a block's values.
    pub(super) taps: BlockTaps,
    /// llama.cpp has the rows of patches in raster order.
    pub(crate) raster: bool,
    /// Reads further keys and adjusts the hyperparameters.
    pub(super) read_hparams: fn(&mut Keys<'_>, &mut Hparams) -> Result<(), Error>,
    /// Binds the steps from pixels to the first block.
    pub(super) embed: fn(&mut Binder<'_>) -> Result<Vec<Step>, Error>,
    /// Binds a block.
    pub(super) block: fn(&mut Binder<'_>, usize) -> Result<Block, Error>,
    /// Binds the steps from the last block to the rows of the text model.
    pub(super) project: fn(&mut Binder<'_>) -> Result<Vec<Step>, Error>,
}

/// Sizes of images, or how they are cut into tiles.
#[derive(Clone, Copy)]
pub(crate) enum Images {
    /// Any size of whole image tokens, with a number of them within limits: by default these.
    Dynamic {
        min: usize,
        max: usize,
        /// Another way to resize images than padding them.
        cut: Option<Cut>,
    },
    /// Always the square of `image_size`.
    Square,
    /// Tiles of the square of `image_size`.
    Tiles(fn(&DecodedImage, &Hparams, TokenLimits) -> Result<Tiles, crate::Error>),
}

impl Images {
    /// Returns any size, padded, with a number of tokens between these by default.
    const fn dynamic(min: usize, max: usize) -> Images {
        let cut = None;
        Images::Dynamic { min, max, cut }
    }
}

/// Resizes images of any size, within limits on the number of tokens of what is not a tile.
#[derive(Clone, Copy)]
pub(crate) struct Cut {
    /// Side in pixels of tiles that large images are cut into.
    pub(crate) side: usize,
    pub(crate) tiles: fn(&DecodedImage, &Hparams, [usize; 2]) -> Result<Tiles, crate::Error>,
}

/// Text and tokens that a prompt has in place of an image.
#[derive(Clone, Copy)]
pub(crate) enum Prompt {
    /// The image's tokens between two texts.
    Between([&'static str; 2]),
    /// A list, from the columns and rows of tiles and the number of image tokens of each; that of
    /// an overview follows.
    Tiles(fn([usize; 2], &[usize]) -> Vec<ImagePart>),
}

/// Square of patches that becomes one image token.
#[derive(Clone, Copy)]
pub(super) struct Merge {
    /// Key of its side in patches.
    pub(super) key: &'static str,
    pub(super) default: usize,
    pub(super) least: usize,
    pub(super) most: usize,
}

/// Rotation of queries and keys by the row and the column of a patch.
#[derive(Clone, Copy)]
pub(super) enum Rotation {
    None,
    /// All pairs of a head by one table.
    Whole(fn(usize) -> Rope),
    /// The pairs of either half of a head by a table of its own.
    Halves(fn(usize) -> [Rope; 2]),
}

impl Rotation {
    /// Returns the tables for heads of this width.
    pub(super) fn ropes(self, head_dim: usize) -> Vec<Rope> {
        match self {
            Rotation::None => Vec::new(),
            Rotation::Whole(rope) => vec![rope(head_dim)],
            Rotation::Halves(ropes) => ropes(head_dim).to_vec(),
        }
    }
}

/// llama.cpp's names of a block's values.
#[derive(Clone, Copy)]
pub(super) struct BlockTaps {
    /// The input of attention.
    pub(super) normed: &'static str,
    /// Queries and keys after RoPE.
    pub(super) rotated: [&'static str; 2],
}

/// llama.cpp's common vision transformer: layer norms with biases, full attention, no RoPE.
const VIT: Spec = Spec {
    names: &[],
    images: Images::Square,
    prompt: Prompt::Between(["", ""]),
    bidirectional: |_| false,
    merge: Merge {
        key: "vision.projector.scale_factor",
        default: 1,
        least: 1,
        most: 64,
    },
    has_class_row: false,
    drops_first_row: false,
    centred: false,
    has_blocks: true,
    norm: Norm::Layer,
    biases: true,
    clamps: false,
    swaps_feed_forward: false,
    rotation: Rotation::None,
    scale: |head_dim| 1.0 / (head_dim as f32).sqrt(),
    head_multiple: 2,
    taps: BlockTaps {
        normed: "layer_inp_normed",
        rotated: ["Qcur_pos", "Kcur_pos"],
    },
    raster: true,
    read_hparams: |_, _| Ok(()),
    embed: |b| Ok(vec![b.patches()?]),
    block: |b, l| b.block(l),
    project: |_| Ok(Vec::new()),
};

/// The two projectors of Qwen: patches in the order of image tokens, and llama.cpp's names of them.
const QWEN: Spec = Spec {
    images: Images::dynamic(8, 4096),
    prompt: Prompt::Between(["<|vision_start|>", "<|vision_end|>"]),
    // llama.cpp's graph knows no other
    merge: Merge {
        key: "vision.spatial_merge_size",
        default: 2,
        least: 2,
        most: 2,
    },
    rotation: Rotation::Whole(qwen3vl::rope),
    head_multiple: 4,
    taps: BlockTaps {
        normed: "ln1",
        rotated: ["Qcur_rope", "Kcur_rope"],
    },
    raster: false,
    ..VIT
};

/// Returns the 2D RoPE of neighbouring pairs: either half of a head is rotated along an axis, with
/// frequencies shifted by so many halves of a step.
fn rope_of_neighbours(head_dim: usize, halves: [(usize, usize); 2]) -> Rope {
    /// Base; llama.cpp reads no key.
    const BASE: f64 = 10_000.0;
    Rope {
        pairing: Pairing::Norm,
        frequencies: halves
            .map(|(_, shift)| frequencies(BASE, head_dim, shift))
            .concat(),
        magnitude: 1.0,
        axes: halves.map(|(axis, _)| vec![axis; head_dim / 4]).concat(),
    }
}

/// Returns the frequencies `base^(-4 (i + shift / 2) / head_dim)` of a quarter of a head's values.
fn frequencies(base: f64, head_dim: usize, shift: usize) -> Vec<f64> {
    let exponent = |i: usize| -((4 * i + 2 * shift) as f64) / head_dim as f64;
    (0..head_dim / 4).map(|i| base.powf(exponent(i))).collect()
}
