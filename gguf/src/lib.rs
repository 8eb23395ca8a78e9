//! GGUF files in and out.
mod types;
pub use types::{TensorType, removed_type_name};
