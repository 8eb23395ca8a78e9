//! The oracle and its files from outside.

mod golden;
mod kld_base;
mod models;
mod results;
mod variants;
