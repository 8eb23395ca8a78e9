//! Pictures for language models, as llama.cpp's libmtmd computes them: [`pixels`] come of an image
//! file, [`tower`] is what a file of a vision tower says and how its rows are computed, [`encoder`]
//! runs it on a device, [`Viewer`] is both for a text model, [`Sight`] shows a loaded one what is
//! seen, and [`prompt`] puts pictures among its tokens.
//!
//! Knows of a text model no more than the width of its embeddings and how many of its layers gain a
//! part of what stands for a picture's cell.

pub mod encoder;
mod error;
pub mod pixels;
pub mod prompt;
mod sight;
pub mod tower;

pub use encoder::Encoder;
pub use error::Error;
pub use sight::{Sight, Viewer};
pub use tower::Tower;
