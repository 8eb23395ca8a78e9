//! References that Octavo's numbers are compared with.
//!
//! * [`Oracle`]: a plain f64 forward pass, written from the definition of each architecture;
//! * [`AssistantOracle`]: the same of an assistant, which reads another model's keys and values;
//! * [`golden`]: stock llama.cpp's logits, recorded once, with the command that made them;
//! * [`results`]: the file of llama.cpp's `llama-results`, reader and writer;
//! * [`kld_base`]: the file of log-probabilities of `llama-perplexity --kl-divergence-base`, reader
//!   and writer;
//! * [`formats`]: recognition and readers of other llama.cpp programs' files;
//! * [`metrics`]: distances between two sets of logits.
//!
//! Nothing here is optimised, on purpose, and nothing is shared with the engine except the GGUF
//! reader and the scalar dequantizers: a fault in the engine's graph, kernels or hyperparameters
//! cannot hide in its own reference.

mod error;
pub mod formats;
pub mod golden;
pub mod kld_base;
pub mod metrics;
mod oracle;
pub mod results;

pub use error::Error;
pub use oracle::{
    AssistantOracle, CachedRows, ImageRows, Oracle, Piece, Pixels, Position, Predicted, Prepared,
    Rgb, Tap, VisionOracle,
};
