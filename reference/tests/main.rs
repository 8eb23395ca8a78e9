//! The oracle and its files from outside.

mod architectures;
mod golden;
mod hostile;
mod kld_base;
mod model;
mod models;
mod results;
mod variants;
