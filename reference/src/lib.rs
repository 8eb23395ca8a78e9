//! The model-level oracle, golden files and the built-in demo model.
