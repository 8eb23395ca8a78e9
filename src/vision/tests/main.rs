//! Pictures from outside.

mod bitmaps;
mod encoder;
mod hostile;
mod jpeg;
mod pixels;
mod support;
mod text;
