//! The `octavo` program.
fn main() {}
