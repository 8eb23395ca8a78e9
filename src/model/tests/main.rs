//! The model crate from outside.

mod files;
mod forward;
mod graph;
mod hostile;
mod lenient;
mod outline;
mod rope;
mod support;
