//! Tests of the vision crate's public interface.

mod audio;
mod batches;
mod bitmaps;
mod encoder;
mod faults;
mod hostile;
mod jpeg;
mod pixels;
mod support;
mod text;
