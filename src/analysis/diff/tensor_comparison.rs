//! Comparison of one named tensor with the engine's.

use serde::Serialize;

/// Comparison of one tensor that both have.
#[derive(Clone, Debug, Serialize)]
pub struct TensorComparison {
    /// Name with the layer.
    pub name: String,
    /// Layer number.
    pub layer: Option<usize>,
    /// Number of earlier tensors of this name.
    pub occurrence: usize,
    /// Number of values compared.
    pub values: usize,
    /// Σ (ours - theirs)² / Σ theirs², less the rounding of the printed digits.
    pub nmse: f64,
    /// Position of the largest difference.
    pub position: usize,
    /// Channel of the largest difference.
    pub channel: usize,
    /// Our value there.
    pub a: f32,
    /// The reference's value there.
    pub b: f32,
    /// Whether it is outside the tolerance.
    pub outside: bool,
}
