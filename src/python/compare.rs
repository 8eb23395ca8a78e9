//! Comparisons of two computations, tensor by tensor.

use std::sync::Arc;

use octavo_llm::analysis::diff::{
    EngineExecution, Execution, Input, Options, RecordedExecution, RecordedTensor, compare_with,
};
use pyo3::prelude::*;
use pyo3::types::PyDict;
use serde_json::{Value, json};

use crate::arrays::{self, Input as Text};
use crate::call;
use crate::error::{BadArgument, Failure};
use crate::json;
use crate::load::Loaded;
use crate::model::Model;

/// Compares two models; returns the report as `octavo diff --json` has it.
#[pyfunction]
pub(crate) fn compare_models<'py>(
    py: Python<'py>,
    a: &Bound<'py, Model>,
    b: &Bound<'py, Model>,
    text: Text,
    same_routing: bool,
) -> PyResult<Bound<'py, PyAny>> {
    let (a, b) = (a.get().loaded(py)?, b.get().loaded(py)?);
    // each would wait for the other's step
    if Arc::ptr_eq(&a, &b) {
        let error = BadArgument {
            name: "b",
            expected: "another model than a".to_owned(),
            got: "the same".to_owned(),
        };
        return Err(Failure::from(error).into_py(py));
    }
    let report = call::run(py, move |_| {
        let tokens = text.tokens(&a.engine)?;
        let mut second = EngineExecution::new(&b.engine, &b.options)?;
        report(&a, &mut second, &tokens, same_routing)
    })?;
    json::to_python(py, &report)
}

/// Compares a model with arrays of another computation, by name.
#[pyfunction]
pub(crate) fn compare_arrays<'py>(
    py: Python<'py>,
    a: &Bound<'py, Model>,
    all: &Bound<'py, PyDict>,
    origin: String,
    text: Text,
) -> PyResult<Bound<'py, PyAny>> {
    let a = a.get().loaded(py)?;
    let all = arrays::of_dictionary(all)?;
    let report = call::run(py, move |_| {
        let tensors = all.into_iter();
        let tensors = tensors.map(|(name, width, data)| RecordedTensor { name, width, data });
        let tokens = text.tokens(&a.engine)?;
        let mut second = RecordedExecution::new(&origin, &a.engine, tensors.collect())?;
        report(&a, &mut second, &tokens, false)
    })?;
    json::to_python(py, &report)
}

fn report(
    a: &Loaded,
    second: &mut dyn Execution,
    tokens: &[u32],
    same_routing: bool,
) -> Result<Value, Failure> {
    let mut first = EngineExecution::new(&a.engine, &a.options)?;
    let options = Options { same_routing };
    let input = Input::from(tokens);
    let compared = compare_with(&mut first, second, input, options, &mut |_, _| {})?;
    let mut report = serde_json::to_value(&compared)?;
    report["a"] = json!(first.describe());
    report["b"] = json!(second.describe());
    report["tokens"] = json!(tokens);
    Ok(report)
}
