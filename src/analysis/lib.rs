//! Verifies and measures an engine: [`diff`] finds the first wrong value, [`eval`] measures
//! perplexity and divergence, [`imatrix`], [`quantize`] and [`awq`] make smaller files and
//! [`quant_report`] measures their loss, [`merge_lora`] merges adapters into weights,
//! [`mod@bench`] measures speed, [`facts`] lists the contents of a file, and [`files`] compares,
//! checks and changes files; [`report`] draws HTML pages of results. [`shards`] are those of long
//! measurements.

pub mod awq;
pub mod bench;
pub mod bit_allocation;
pub mod diff;
pub mod eval;
pub mod facts;
pub mod files;
pub mod imatrix;
pub mod merge_lora;
pub mod quant_report;
pub mod quantize;
pub mod report;
pub mod shards;
