//! ggml block formats, scalar.
pub use gguf_rs_lite::TensorType;
