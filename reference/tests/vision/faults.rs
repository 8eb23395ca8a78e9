//! Mistakes
