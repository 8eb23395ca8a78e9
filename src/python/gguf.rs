//! GGUF files as Python objects; the classes that users see are in `octavo/gguf.py`.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::{
    Array, Gguf, OwnedArray, OwnedValue, TensorData, TensorInfo, TensorType, Value, ValueType,
    Writer,
};
use numpy::{IntoPyArray, PyArray1, PyReadonlyArray1};
use pyo3::exceptions::{PyKeyError, PyTypeError};
use pyo3::prelude::*;
use pyo3::types::PyBytes;

use crate::call;
use crate::error::{BadArgument, Failure};
use crate::load;

/// An open model file.
#[pyclass(frozen, module = "octavo")]
pub(crate) struct GgufFile(Arc<Gguf>);

impl GgufFile {
    pub(crate) fn of(gguf: Arc<Gguf>) -> GgufFile {
        GgufFile(gguf)
    }

    fn tensor(&self, name: &str) -> PyResult<&TensorInfo> {
        let missing = || PyKeyError::new_err(format!("{}: no tensor {name}", self.0.name()));
        self.0.tensor(name).ok_or_else(missing)
    }
}

/// A tensor: name, shape in numpy's order, type, bytes, and the path and offset of its data if a
/// file has it as it is.
type Row = (String, Vec<u64>, &'static str, u64, Option<(String, u64)>);

#[pymethods]
impl GgufFile {
    #[new]
    #[pyo3(signature = (source=None, *, offline=false))]
    fn open(py: Python<'_>, source: Option<PathBuf>, offline: bool) -> PyResult<GgufFile> {
        let gguf = call::run(py, move |_| {
            let opened = load::source(source.as_deref(), offline);
            let opened = opened.and_then(|source| Ok(source.open(true)?));
            opened.map_err(|failure| match &source {
                Some(path) => Failure::of_file(failure, path),
                None => failure,
            })
        })?;
        Ok(GgufFile(Arc::new(gguf)))
    }

    /// Name of the file.
    #[getter]
    fn name(&self) -> &str {
        self.0.name()
    }

    /// Keys in the file's order, with the types of their values: "u32", "[string]", ...
    fn key_types(&self) -> Vec<(String, String)> {
        let keys = self.0.keys();
        keys.map(|(key, value)| (key.to_owned(), type_name(&value)))
            .collect()
    }

    /// Value of a key: a number, bool, string, or list of these; a string that is not UTF-8 is
    /// bytes.
    fn value<'py>(&self, py: Python<'py>, key: &str) -> PyResult<Bound<'py, PyAny>> {
        match self.0.get(key) {
            Some(value) => to_python(py, &value),
            None => Err(PyKeyError::new_err(format!(
                "{}: no key {key}",
                self.0.name()
            ))),
        }
    }

    /// Tensors in the file's order.
    fn tensors(&self) -> Vec<Row> {
        let row = |tensor: &TensorInfo| {
            let path = self.0.part_name(tensor);
            let is_plain = !self.0.is_made(tensor) && Path::new(path).is_file();
            let offset = self.0.file_offset(tensor).filter(|_| is_plain);
            let place = offset.map(|offset| (path.to_owned(), offset));
            let shape = tensor.dims.iter().rev().copied().collect();
            let name = tensor.name.clone();
            (name, shape, tensor.ty.name(), tensor.bytes, place)
        };
        self.0.tensors().iter().map(row).collect()
    }

    /// Copies the bytes of a tensor.
    fn read<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<u8>>> {
        let tensor = self.tensor(name)?;
        Ok(py.detach(|| self.0.data(tensor).to_vec()).into_pyarray(py))
    }

    /// Dequantizes a tensor.
    fn dequantize<'py>(&self, py: Python<'py>, name: &str) -> PyResult<Bound<'py, PyArray1<f32>>> {
        let tensor = self.tensor(name)?;
        let values = py.detach(|| values_of(tensor.ty, self.0.data(tensor)));
        Ok(values
            .map_err(|failure| failure.into_py(py))?
            .into_pyarray(py))
    }
}

fn values_of(ty: TensorType, blocks: &[u8]) -> Result<Vec<f32>, Failure> {
    let n = blocks.len() / ty.block_bytes().max(1) * ty.block_len();
    let mut values = vec![0.0; n];
    octavo_quant::dequantize(ty, blocks, &mut values)?;
    Ok(values)
}

fn type_of(name: &str) -> Result<TensorType, Failure> {
    TensorType::from_name(&name.to_uppercase()).ok_or_else(|| {
        let names: Vec<&str> = TensorType::all().map(TensorType::name).collect();
        Failure::from(BadArgument {
            name: "type",
            expected: format!("one of {}", names.join(", ")),
            got: name.to_owned(),
        })
    })
}

/// Dequantizes blocks of a type.
#[pyfunction]
pub(crate) fn dequantize<'py>(
    py: Python<'py>,
    blocks: PyReadonlyArray1<'py, u8>,
    type_name: &str,
) -> PyResult<Bound<'py, PyArray1<f32>>> {
    let blocks = blocks.as_slice()?;
    let values = py.detach(|| values_of(type_of(type_name)?, blocks));
    Ok(values
        .map_err(|failure| failure.into_py(py))?
        .into_pyarray(py))
}

/// Quantizes rows of values to blocks of a type.
#[pyfunction]
pub(crate) fn quantize_rows<'py>(
    py: Python<'py>,
    values: PyReadonlyArray1<'py, f32>,
    row: usize,
    type_name: &str,
    importance: Option<PyReadonlyArray1<'py, f32>>,
) -> PyResult<Bound<'py, PyArray1<u8>>> {
    let values = values.as_slice()?;
    let importance = importance.as_ref().map(|all| all.as_slice()).transpose()?;
    let quantized = py.detach(|| {
        let mut blocks = Vec::new();
        octavo_quant::quantize(type_of(type_name)?, values, row, importance, &mut blocks)?;
        Ok(blocks)
    });
    let blocks = quantized.map_err(|failure: Failure| failure.into_py(py))?;
    Ok(blocks.into_pyarray(py))
}

fn type_name(value: &Value<'_>) -> String {
    match value {
        Value::Array(array) => format!("[{}]", array.elem_type()),
        other => other.value_type().to_string(),
    }
}

fn string<'py>(py: Python<'py>, text: &[u8]) -> PyResult<Bound<'py, PyAny>> {
    match std::str::from_utf8(text) {
        Ok(text) => Ok(text.into_pyobject(py)?.into_any()),
        Err(_) => Ok(PyBytes::new(py, text).into_any()),
    }
}

fn to_python<'py>(py: Python<'py>, value: &Value<'_>) -> PyResult<Bound<'py, PyAny>> {
    if let Some(number) = value.as_int() {
        return Ok(number.into_pyobject(py)?.into_any());
    }
    match value {
        Value::F32(x) => Ok(x.into_pyobject(py)?.into_any()),
        Value::F64(x) => Ok(x.into_pyobject(py)?.into_any()),
        Value::Bool(x) => Ok(x.into_pyobject(py)?.to_owned().into_any()),
        Value::Str(text) => string(py, text),
        Value::Array(array) => list(py, array),
        other => Err(PyTypeError::new_err(format!(
            "a value of type {}",
            other.value_type()
        ))),
    }
}

fn list<'py>(py: Python<'py>, array: &Array<'_>) -> PyResult<Bound<'py, PyAny>> {
    let all: Vec<Bound<'py, PyAny>> = array
        .iter()
        .map(|value| to_python(py, &value))
        .collect::<PyResult<_>>()?;
    Ok(all.into_pyobject(py)?.into_any())
}

/// A key to write: name, type, value.
type Key<'py> = (String, String, Bound<'py, PyAny>);

/// A tensor to write: name, shape in numpy's order, type, bytes.
type Written<'py> = (String, Vec<u64>, String, PyReadonlyArray1<'py, u8>);

/// Writes a GGUF file: all of it or nothing.
#[pyfunction]
pub(crate) fn write_gguf(
    py: Python<'_>,
    path: PathBuf,
    keys: Vec<Key<'_>>,
    tensors: Vec<Written<'_>>,
) -> PyResult<u64> {
    let raise = |failure: Failure| failure.into_py(py);
    let mut writer = Writer::new();
    for (name, ty, value) in &keys {
        writer.set(name, owned(ty, value)?);
    }
    for (name, shape, ty, data) in &tensors {
        let ty = type_of(ty).map_err(raise)?;
        let dims: Vec<u64> = shape.iter().rev().copied().collect();
        writer.tensor(name, &dims, ty, TensorData::Borrowed(data.as_slice()?));
    }
    let written = writer.write_file(&path);
    written.map_err(|error| raise(Failure::of_file(error, &path)))
}

/// Returns the bytes of a string, or of bytes.
fn text(value: &Bound<'_, PyAny>) -> PyResult<Vec<u8>> {
    match value.extract::<String>() {
        Ok(text) => Ok(text.into_bytes()),
        Err(_) => value.extract(),
    }
}

/// Converts a value to the type of this name.
fn owned(ty: &str, value: &Bound<'_, PyAny>) -> PyResult<OwnedValue> {
    let unknown = || PyTypeError::new_err(format!("{ty}: expected the type of a key"));
    let element = ty.strip_prefix('[').and_then(|rest| rest.strip_suffix(']'));
    let is_named = |id: &u32| {
        let known = ValueType::from_id(*id).map(ValueType::name);
        known == Some(element.unwrap_or(ty))
    };
    let id = (0..13).find(is_named).ok_or_else(unknown)?;
    macro_rules! convert {
        ($($variant:ident),*) => {
            match (ValueType::from_id(id), element.is_some()) {
                $(
                    (Some(ValueType::$variant), false) => OwnedValue::$variant(value.extract()?),
                    (Some(ValueType::$variant), true) => {
                        OwnedValue::Array(OwnedArray::$variant(value.extract()?))
                    }
                )*
                (Some(ValueType::String), false) => OwnedValue::Str(text(value)?),
                (Some(ValueType::String), true) => {
                    let all = value.try_iter()?.map(|one| text(&one?));
                    OwnedValue::Array(OwnedArray::Str(all.collect::<PyResult<_>>()?))
                }
                _ => return Err(unknown()),
            }
        };
    }
    Ok(convert!(
        U8, I8, U16, I16, U32, I32, U64, I64, F32, F64, Bool
    ))
}
