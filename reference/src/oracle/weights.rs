//! The tensors of a file, checked and dequantized.

use super::math::{Matrix, scale};
use crate::Error;
use gguf_rs_lite::{Gguf, TensorInfo};
use std::cell::RefCell;
use std::collections::HashSet;

/// Tensors by name, with dims checked, dequantized on request.
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

    pub(super) fn wrong_dims(&self, name: &str, expected: String, got: &[u64]) -> Error {
        Error::Dims {
            file: self.gguf.name().into(),
            tensor: name.into(),
            expected,
            got: got.to_vec(),
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

    /// Reads one row for each of `n_out` kernels with dims `kernel`.
    pub(super) fn kernels(
        &self,
        name: &str,
        kernel: [usize; 3],
        n_out: usize,
    ) -> Result<Matrix, Error> {
        let dims: Vec<u64> = kernel.iter().chain([&n_out]).map(|&n| n as u64).collect();
        let data = self
            .read(name, &dims)?
            .ok_or_else(|| self.missing(name, format!("{dims:?}")))?;
        let n_in = kernel.iter().product();
        Ok(Matrix { n_in, data })
    }

    /// Returns the dims of a tensor, if the file has it.
    pub(super) fn dims(&self, name: &str) -> Option<&[u64]> {
        self.gguf.tensor(name).map(|info| &info.dims[..])
    }

    pub(super) fn required_vector(&self, name: &str, len: usize) -> Result<Vec<f64>, Error> {
        self.vector(name, len)?
            .ok_or_else(|| self.missing(name, format!("[{len}]")))
    }

    pub(super) fn required_rows(
        &self,
        name: &str,
        len: usize,
        n: usize,
    ) -> Result<Vec<f64>, Error> {
        self.rows(name, len, n)?
            .ok_or_else(|| self.missing(name, format!("[{len}, {n}]")))
    }

    /// Reads `n` rows of `len` values.
    pub(super) fn rows(&self, name: &str, len: usize, n: usize) -> Result<Option<Vec<f64>>, Error> {
        let data = self.read(name, &[len as u64, n as u64])?;
        Ok(data.map(|data| data.into_iter().map(f64::from).collect()))
    }

    /// Reads all values of a tensor of these dims.
    pub(super) fn planes<const N: usize>(
        &self,
        name: &str,
        dims: [usize; N],
    ) -> Result<Vec<f64>, Error> {
        let data = self.read(name, &dims.map(|n| n as u64))?;
        let data = data.ok_or_else(|| self.missing(name, format!("{dims:?}")))?;
        Ok(data.into_iter().map(f64::from).collect())
    }

    /// Opens matrices stacked in one tensor, each of which is dequantized on request.
    pub(super) fn experts(
        &self,
        name: &str,
        [n_in, n_out, count]: [usize; 3],
    ) -> Result<ExpertMatrices<'_>, Error> {
        let info = self
            .find(name, &[n_in as u64, n_out as u64, count as u64])?
            .ok_or_else(|| self.missing(name, format!("[{n_in}, {n_out}, {count}]")))?;
        Ok(ExpertMatrices {
            weights: self,
            info,
            n_in,
            n_out,
        })
    }

    pub(super) fn vector(&self, name: &str, len: usize) -> Result<Option<Vec<f64>>, Error> {
        let data = self.read(name, &[len as u64])?;
        Ok(data.map(|data| data.into_iter().map(f64::from).collect()))
    }

    /// Multiplies products with the matrix of this name by the factor beside it, if there is one.
    /// The factor of the inputs is for programs that round these to four bits.
    pub(super) fn scale_product(&self, matrix: &str, y: &mut [f64]) -> Result<(), Error> {
        self.used
            .borrow_mut()
            .insert(format!("{matrix}.input_scale"));
        let factor = self.vector(&format!("{matrix}.scale"), 1)?;
        if let Some(&factor) = factor.as_ref().and_then(|factor| factor.first()) {
            scale(y, factor);
        }
        Ok(())
    }

    fn read(&self, name: &str, dims: &[u64]) -> Result<Option<Vec<f32>>, Error> {
        let Some(info) = self.find(name, dims)? else {
            return Ok(None);
        };
        if self.only_check {
            return Ok(Some(Vec::new()));
        }
        let n = info.n_elements() as usize;
        self.dequantize(info, self.gguf.data(info), n).map(Some)
    }

    /// Returns the tensor of a name, if the file has it, with its dims checked.
    fn find(&self, name: &str, dims: &[u64]) -> Result<Option<&'a TensorInfo>, Error> {
        let Some(info) = self.gguf.tensor(name) else {
            return Ok(None);
        };
        self.used.borrow_mut().insert(name.into());
        if !same_dims(info, dims) {
            return Err(self.wrong_dims(name, format!("{dims:?}"), &info.dims));
        }
        Ok(Some(info))
    }

    fn dequantize(&self, info: &TensorInfo, bytes: &[u8], n: usize) -> Result<Vec<f32>, Error> {
        let mut values = vec![0f32; n];
        octavo_quant::dequantize(info.ty, bytes, &mut values).map_err(|source| {
            Error::Dequantize {
                file: self.gguf.name().into(),
                tensor: info.name.clone(),
                source,
            }
        })?;
        Ok(values)
    }
}

/// The matrices of all experts of a layer. Rows are whole blocks, so that each expert's bytes can
/// be read separately.
pub(super) struct ExpertMatrices<'w> {
    weights: &'w Weights<'w>,
    info: &'w TensorInfo,
    n_in: usize,
    n_out: usize,
}

impl ExpertMatrices<'_> {
    /// Reads the matrix of an expert.
    pub(super) fn get(&self, expert: usize) -> Result<Matrix, Error> {
        let n = self.n_in * self.n_out;
        let bytes = self.weights.gguf.data(self.info);
        let each = bytes.len() / (self.info.n_elements() as usize / n);
        let bytes = bytes.get(expert * each..(expert + 1) * each).unwrap_or(&[]);
        let data = self.weights.dequantize(self.info, bytes, n)?;
        Ok(Matrix {
            n_in: self.n_in,
            data,
        })
    }
}

/// Returns whether dims are equal, apart from trailing dims of 1.
fn same_dims(info: &TensorInfo, dims: &[u64]) -> bool {
    let n = info.dims.len().max(dims.len());
    (0..n).all(|i| info.dims.get(i).unwrap_or(&1) == dims.get(i).unwrap_or(&1))
}
