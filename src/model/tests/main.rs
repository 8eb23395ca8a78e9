//! The model crate from outside.

mod files;
mod forward;
mod graph;
mod hostile;
mod lenient;
mod mtp;
mod outline;
mod rope;
mod support;
