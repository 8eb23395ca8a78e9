//! Nemotron: layer norms with biases (the converter has already added 1 to their weights), squared
//! ReLU without a gate, and only a part of each head is rotated.

use super::starcoder2::plain_layer;
use super::{DECODER, Feature, Norm, Spec};

pub(super) const SPEC: Spec = Spec {
    name: "nemotron",
    norm: Norm::Layer,
    feature: Feature::SquaredRelu,
    layer: plain_layer,
    ..DECODER
};
