//! Tests of the quant crate's public interface.

mod dequantize_golden;
mod ggml_digests;
mod properties;
mod quantize_models;
