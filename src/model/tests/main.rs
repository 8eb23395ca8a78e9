//! The model crate from outside.

mod files;
mod forward;
mod graph;
mod hostile;
mod rope;
mod support;
