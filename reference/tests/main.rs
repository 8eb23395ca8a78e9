//! Tests of the reference crate's public interface.

mod architectures;
mod equivalents;
mod golden;
mod hostile;
mod kld_base;
mod model;
mod models;
mod results;
mod variants;
mod vision;
