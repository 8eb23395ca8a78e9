//! The tensors of a file, checked and dequantized.

use super::math::Matrix;
use crate::Error;
use gguf_rs_lite::{Gguf, TensorInfo};
use std::cell::RefCell;
use std::collections::HashSet;

/// Tensors by name, dims checked, dequantized when asked for.
pub(super) struct Weights<'a> {
    gguf: &'a Gguf,
    /// Check names and dims, and return matrices without values (for a pass over no tokens).
    only_check: bool,
    pub(super) used: RefCell<HashSet<String>>,
}

impl<'a> Weights<'a> {
    pub(super) fn new(gguf: &'a Gguf, only_check: bool) -> Self {
        Self {
            gguf,
            only_check,
            used: RefCell::new(HashSet::new()),
        }
    }

    pub(super) fn has(&self, name: &str) -> bool {
        self.gguf.tensor(name).is_some()
    }

    pub(super) fn missing(&self, name: &str, expected: String) -> Error {
        Error::MissingTensor {
            file: self.gguf.name().into(),
            tensor: name.into(),
            expected,
        }
    }

    pub(super) fn matrix(&self, name: &str, n_in: usize, n_out: usize) -> Result<Matrix, Error> {
        self.optional_matrix(name, n_in, n_out)?
            .ok_or_else(|| self.missing(name, format!("[{n_in}, {n_out}]")))
    }

    pub(super) fn optional_matrix(
        &self,
        name: &str,
        n_in: usize,
        n_out: usize,
    ) -> Result<Option<Matrix>, Error> {
        let data = self.read(name, &[n_in as u64, n_out as u64])?;
        Ok(data.map(|data| Matrix { n_in, data }))
    }

    pub(super) fn required_vector(&self, name: &str, len: usize) -> Result<Vec<f64>, Error> {
        self.vector(name, len)?
            .ok_or_else(|| self.missing(name, format!("[{len}]")))
    }

    /// `n` rows of `len` values, one after another.
    pub(super) fn required_rows(
        &self,
        name: &str,
        len: usize,
        n: usize,
    ) -> Result<Vec<f64>, Error> {
        let data = self
            .read(name, &[len as u64, n as u64])?
            .ok_or_else(|| self.missing(name, format!("[{len}, {n}]")))?;
        Ok(data.into_iter().map(f64::from).collect())
    }

    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Option<Vec<f64>>, Error> {
        let data = self.read(name, &[len as u64])?;
        Ok(data.map(|data| data.into_iter().map(f64::from).collect()))
    }

    fn read(&self, name: &str, dims: &[u64]) -> Result<Option<Vec<f32>>, Error> {
        let Some(info) = self.gguf.tensor(name) else {
            return Ok(None);
        };
        self.used.borrow_mut().insert(name.into());
        if !same_dims(info, dims) {
            return Err(Error::Dims {
                file: self.gguf.name().into(),
                tensor: name.into(),
                expected: format!("{dims:?}"),
                got: info.dims.clone(),
            });
        }
        if self.only_check {
            return Ok(Some(Vec::new()));
        }
        let mut values = vec![0f32; info.n_elements() as usize];
        octavo_quant::dequantize(info.ty, self.gguf.data(info), &mut values).map_err(|source| {
            Error::Dequantize {
                file: self.gguf.name().into(),
                tensor: name.into(),
                source,
            }
        })?;
        Ok(Some(values))
    }
}

/// A tensor may be declared with trailing dims of 1.
fn same_dims(info: &TensorInfo, dims: &[u64]) -> bool {
    let n = info.dims.len().max(dims.len());
    (0..n).all(|i| info.dims.get(i).unwrap_or(&1) == dims.get(i).unwrap_or(&1))
}
