//! Sound, from the bytes of a file to what an audio encoder reads, as llama.cpp's libmtmd computes
//! it: [`decode`] makes samples of one channel at [`SAMPLE_RATE`], [`LogMel`] the spectrogram.

mod decode;
mod fourier;
mod mel;
mod resample;

pub use decode::{AudioLimits, decode};
pub use mel::{LogMel, MelChunk};

/// Samples per second that audio encoders read.
pub const SAMPLE_RATE: u32 = 16_000;
