//! Arrays between the library and numpy.

use numpy::{IntoPyArray, PyArray2, PyArrayMethods, PyReadonlyArray2};
use pyo3::prelude::*;
use pyo3::pybacked::PyBackedBytes;
use pyo3::types::PyDict;

use octavo_llm::engine::Engine;
use octavo_llm::text::tokenizer::EncodeOptions;

use crate::error::Failure;

/// A text, or the token ids of one.
#[derive(FromPyObject)]
pub(crate) enum Input {
    /// A text.
    #[pyo3(transparent, annotation = "str")]
    Text(String),
    /// A text that need not be UTF-8.
    #[pyo3(transparent, annotation = "bytes")]
    Bytes(PyBackedBytes),
    /// Token ids.
    #[pyo3(transparent, annotation = "Sequence[int]")]
    Ids(Vec<u32>),
}

impl Input {
    /// Returns the token ids, those of a text as the command line has them.
    pub(crate) fn tokens(&self, engine: &Engine) -> Result<Vec<u32>, Failure> {
        self.encode(engine, EncodeOptions::PROMPT)
    }

    /// Returns the token ids, those of a text with these options.
    pub(crate) fn encode(
        &self,
        engine: &Engine,
        options: EncodeOptions,
    ) -> Result<Vec<u32>, Failure> {
        let bytes = match self {
            Input::Ids(ids) => return Ok(ids.clone()),
            Input::Text(text) => text.as_bytes(),
            Input::Bytes(bytes) => bytes,
        };
        Ok(engine.tokenizer().encode(bytes, options)?)
    }
}

/// Moves rows of `width` values into an array, without a copy.
pub(crate) fn rows<'py>(
    py: Python<'py>,
    values: Vec<f32>,
    width: usize,
) -> PyResult<Bound<'py, PyArray2<f32>>> {
    let n = values.len() / width.max(1);
    values.into_pyarray(py).reshape([n, width])
}

/// A named array: name, values per row, values.
pub(crate) type Named = (String, usize, Vec<f32>);

/// Moves named arrays into a dictionary.
pub(crate) fn dictionary(py: Python<'_>, arrays: Vec<Named>) -> PyResult<Bound<'_, PyDict>> {
    let all = PyDict::new(py);
    for (name, width, values) in arrays {
        all.set_item(name, rows(py, values, width)?)?;
    }
    Ok(all)
}

/// Copies arrays of two dimensions out of a dictionary.
pub(crate) fn of_dictionary(all: &Bound<'_, PyDict>) -> PyResult<Vec<Named>> {
    all.iter()
        .map(|(name, array)| {
            let array: PyReadonlyArray2<'_, f32> = array.extract()?;
            let array = array.as_array();
            let values = array.iter().copied().collect();
            Ok((name.extract()?, array.ncols(), values))
        })
        .collect()
}
