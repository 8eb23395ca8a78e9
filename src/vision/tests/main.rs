//! Pictures from outside.

mod encoder;
mod hostile;
mod pixels;
mod support;
mod text;
