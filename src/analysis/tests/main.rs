//! Integration tests of the lab crate.

mod architectures;
mod diff;
mod images;
mod imatrix;
mod perplexity;
mod quantize;
mod quantize_arch;
mod quantize_mix;
mod quantize_towers;
mod recorded_routing;
mod routing;
mod shards;
