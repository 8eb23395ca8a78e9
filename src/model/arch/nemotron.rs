//! Nemotron: layer norms with biases (the converter has added 1 to their weights), the square of
//! what is above 0 in place of a gate, and a part of each head turns.

use super::starcoder2::plain_layer;
use super::{DECODER, Feature, Norm, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "nemotron",
    norm: Norm::Layer,
    feature: Feature::SquaredRelu,
    layer: plain_layer,
    ..DECODER
};
