//! Pictures from outside.

mod encoder;
mod hostile;
mod jpeg;
mod pixels;
mod support;
mod text;
