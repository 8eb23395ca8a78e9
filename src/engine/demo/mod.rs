//! The built-in model: `tiny-qwen3`, 2.6 million parameters, trained by `train_tiny.py`. It knows
//! small sums, capitals and opposites, enough to see an engine answer right without downloading
//! anything.

/// A constant would be in every crate that calls the function below.
static DEMO_MODEL: &[u8] = include_bytes!("tiny-qwen3-Q4_K_M.gguf");

/// Returns the demo model's GGUF file, Q4_K_M, 1.67 MB.
pub fn demo_model() -> &'static [u8] {
    DEMO_MODEL
}
