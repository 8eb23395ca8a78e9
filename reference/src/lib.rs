//! What Octavo's numbers are compared with.
//!
//! * [`Oracle`]: a plain f64 forward pass, written from the definition of each architecture;
//! * [`golden`]: stock llama.cpp's logits, recorded once, with the command that made them;
//! * [`results`]: the file that llama.cpp's `llama-results` writes, in and out;
//! * [`kld_base`]: the file of log-probabilities that `llama-perplexity --kl-divergence-base`
//!   writes, in and out;
//! * [`formats`]: what other llama.cpp programs write, and how such files are recognised;
//! * [`metrics`]: how far two sets of logits are apart.
//!
//! Nothing here is fast on purpose, and nothing here is shared with the engine but the GGUF reader
//! and the scalar dequantizers: a fault in the engine's graph, kernels or hyperparameters cannot
//! hide in its own reference.

mod error;
pub mod formats;
pub mod golden;
pub mod kld_base;
pub mod metrics;
mod oracle;
pub mod results;

pub use error::Error;
pub use oracle::{ImageRows, Oracle, Piece, Pixels, Position, Prepared, Rgb, Tap, VisionOracle};
