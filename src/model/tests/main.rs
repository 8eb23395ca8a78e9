//! The model crate from outside.

mod assistant;
mod files;
mod forward;
mod graph;
mod hostile;
mod lenient;
mod mtp;
mod outline;
mod rope;
mod support;
