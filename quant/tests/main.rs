//! The formats from outside.

mod dequantize_golden;
mod ggml_digests;
mod properties;
mod quantize_models;
