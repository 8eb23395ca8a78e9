//! JSON values as Python objects, by Python's own module `json`.

use pyo3::prelude::*;
use serde_json::Value;

use crate::error::Failure;

/// Reads what `json.dumps` makes of an object.
pub(crate) fn from_python(object: &Bound<'_, PyAny>) -> PyResult<Value> {
    let text: String = object
        .py()
        .import("json")?
        .call_method1("dumps", (object,))?
        .extract()?;
    parse(object.py(), &text)
}

/// Parses a text.
pub(crate) fn parse(py: Python<'_>, text: &str) -> PyResult<Value> {
    serde_json::from_str(text).map_err(|error| Failure::from(error).into_py(py))
}

/// Makes the object that `json.loads` reads.
pub(crate) fn to_python<'py>(py: Python<'py>, value: &Value) -> PyResult<Bound<'py, PyAny>> {
    py.import("json")?
        .call_method1("loads", (value.to_string(),))
}
