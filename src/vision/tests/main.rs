//! Pictures from outside.

mod encoder;
mod pixels;
mod support;
mod text;
