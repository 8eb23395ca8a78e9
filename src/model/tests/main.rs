//! The model crate from outside.

mod files;
mod forward;
mod graph;
mod hostile;
mod lenient;
mod rope;
mod support;
