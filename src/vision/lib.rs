//! Image input for language models, as llama.cpp's libmtmd computes it: [`pixels`] decodes and
//! resizes an image file, [`tower`] reads a vision encoder's file and builds its graph, [`encoder`]
//! runs it on a device, [`ImageEncoder`] combines them for a text model, [`EncoderCache`] registers
//! encoded images with a loaded engine, and [`prompt`] inserts image tokens into prompts.
//!
//! [`audio`] decodes sound files and computes the spectrograms that audio encoders read.
//!
//! The only facts this crate uses of the text model are its embedding width and its number of
//! deepstack layers.

pub mod audio;
pub mod encoder;
mod encoder_cache;
mod error;
pub mod pixels;
pub mod prompt;
pub mod tower;

pub use encoder::Encoder;
pub use encoder_cache::{EncoderCache, ImageEncoder};
pub use error::Error;
pub use tower::Tower;
