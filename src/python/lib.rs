//! The extension module of the Python package `octavo`: the library's calls, with numpy arrays and
//! Python's exceptions. What is computed is in the crates below; the package's Python part is in
//! `octavo/`.

mod answer;
mod arrays;
mod call;
mod command;
mod compare;
mod embed;
mod error;
mod gguf;
mod json;
mod load;
mod measure;
mod model;
mod params;
mod score;
mod stream;

use pyo3::prelude::*;

#[pymodule]
mod _octavo {
    #[pymodule_export]
    use super::answer::{Completion, Delta, Logprob, Timings};
    #[pymodule_export]
    use super::command::run_command;
    #[pymodule_export]
    use super::compare::{compare_arrays, compare_models};
    #[pymodule_export]
    use super::gguf::{GgufFile, dequantize, quantize_rows, write_gguf};
    #[pymodule_export]
    use super::measure::{measure_divergence, measure_perplexity, quantize_file};
    #[pymodule_export]
    use super::model::Model;
    #[pymodule_export]
    use super::score::score_continuations;
    #[pymodule_export]
    use super::stream::Stream;

    use pyo3::prelude::*;

    #[pymodule_init]
    fn init(module: &Bound<'_, PyModule>) -> PyResult<()> {
        module.add("__version__", env!("CARGO_PKG_VERSION"))
    }
}
