//! Image input for language models, as llama.cpp's libmtmd computes it: [`pixels`] decodes and
//! resizes an image file, [`tower`] reads a vision encoder's file and builds its graph, [`encoder`]
//! runs it on a device, [`Viewer`] combines them for a text model, [`Sight`] registers encoded
//! images with a loaded engine, and [`prompt`] inserts image tokens into prompts.
//!
//! The only facts this crate uses of the text model are its embedding width and its number of
//! deepstack layers.

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
