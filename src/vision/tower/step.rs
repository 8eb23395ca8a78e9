//! The steps of a vision encoder before its first block and after its last one: each makes rows of
//! rows.

use octavo_model::graph::{Named, Norm, once};
use octavo_model::weights::NormWeights;
use octavo_model::{VecId, WeightId};

use super::weights::Affine;

/// A step. Names are llama.cpp's of the results.
#[derive(Clone, Debug)]
pub(super) enum Step {
    /// Sum of the products with patch kernels, one for each frame of a video moment: an image is
    /// all frames.
    Patches(Vec<WeightId>),
    /// Adds position embeddings.
    Positions(Option<Named>),
    /// Norm, with its epsilon, and the block's number in names.
    Norm(NormWeights, Norm, f32, Option<usize>),
    /// Product and bias, and their names.
    Affine(Affine, [Option<Named>; 2]),
    /// Product.
    Product(WeightId, Option<Named>),
    /// Adds a vector.
    Bias(VecId, Option<Named>),
    /// Multiplies with a vector.
    MulVector(VecId, Option<Named>),
    /// Multiplies with a number.
    Scale(f32, Option<Named>),
    /// GELU, whatever the activation of the blocks is.
    Gelu(Option<Named>),
    /// The patches of an image token side by side as one row: by row, column and channel.
    Merge(Option<Named>),
    /// Mean of the patches of an image token.
    Average(Option<Named>),
    /// Merged patches by channel, row and column.
    ByChannel,
}

impl Step {
    /// Returns a merge whose result has no name.
    pub(super) fn merge() -> Step {
        Step::Merge(None)
    }

    /// Returns two products with GELU between, named as llama.cpp names a feed-forward block's.
    pub(super) fn two_products([up, down]: [Affine; 2], layer: Option<usize>) -> [Step; 3] {
        let named = |name| once(name).map(|named| Named { layer, ..named });
        let taps = match up.bias {
            Some(_) => [named("ffn_up"), named("ffn_up_b")],
            None => [None, named("ffn_up")],
        };
        [
            Step::Affine(up, taps),
            Step::Gelu(named("ffn_gelu")),
            Step::Affine(down, [named("ffn_down"), None]),
        ]
    }
}
