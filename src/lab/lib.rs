//! Proves and weighs an engine's numbers: [`diff`] finds the first wrong value, [`eval`] measures
//! perplexity and divergence, [`imatrix`], [`quantize`] and [`awq`] make smaller files and
//! [`quant_report`] says what they cost, [`mod@bench`] how fast they run, [`facts`] what is in a
//! file; [`report`] draws pages of it. [`pieces`] are parts of
//! long measurements.

pub mod awq;
pub mod bench;
pub mod diff;
pub mod eval;
pub mod facts;
pub mod imatrix;
pub mod pieces;
pub mod quant_report;
pub mod quantize;
pub mod report;
