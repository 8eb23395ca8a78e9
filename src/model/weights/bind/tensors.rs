//! Finds tensors by name, for any kind of model.

use std::collections::HashMap;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

use crate::error::Error;
use crate::graph::Norm;
use crate::weights::{NormWeights, Tensors, VecId, Vector, WeightId, WeightRef};

/// Looks tensors up by name, checks them, and records which were used.
#[derive(Debug)]
pub struct TensorBinder<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) index: HashMap<&'a str, usize>,
    used: Vec<bool>,
    found: Tensors,
}

impl<'a> TensorBinder<'a> {
    /// Creates a binder for a file, with nothing bound.
    pub fn new(gguf: &'a Gguf) -> TensorBinder<'a> {
        // vectors are read right away, and lie between matrices all over the file
        let is_vector = |t: &&TensorInfo| t.ty == TensorType::F32 && t.dims.len() == 1;
        gguf.tensors()
            .iter()
            .filter(is_vector)
            .for_each(|t| gguf.want(t));
        let index = gguf
            .tensors()
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.as_str(), i))
            .collect();
        TensorBinder {
            gguf,
            index,
            used: vec![false; gguf.tensors().len()],
            found: Tensors::default(),
        }
    }

    pub(crate) fn file(&self) -> String {
        self.gguf.name().to_owned()
    }

    /// Returns the tensor of this name, if any, with its shape checked, and marks it as used.
    pub(crate) fn take(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<(usize, &'a TensorInfo)>, Error> {
        let Some(&i) = self.index.get(name) else {
            return Ok(None);
        };
        let info = &self.gguf.tensors()[i];
        let padded = |n: usize| shape.get(n).map_or(1, |&d| d as u64);
        let n_dims = info.dims.len().max(shape.len());
        if (0..n_dims).any(|n| info.dims.get(n).copied().unwrap_or(1) != padded(n)) {
            let (expected, got) = (show_shape(shape), show_shape(&info.dims));
            return Err(Error::TensorShape {
                file: self.file(),
                tensor: name.to_owned(),
                expected,
                got,
            });
        }
        self.used[i] = true;
        Ok(Some((i, info)))
    }

    pub(crate) fn missing(&self, name: &str, shape: &[usize]) -> Error {
        Error::MissingTensor {
            file: self.file(),
            tensor: name.to_owned(),
            expected: show_shape(shape),
        }
    }

    pub(crate) fn wrong_type(&self, info: &TensorInfo, expected: &'static str) -> Error {
        Error::TensorType {
            file: self.file(),
            tensor: info.name.clone(),
            expected,
            got: info.ty.name(),
        }
    }

    /// Binds a matrix, with the factor of its products if there is one; `None` if the file lacks
    /// it.
    pub fn optional_matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<WeightId>, Error> {
        let found = self.matrix_of(name, &[cols, rows])?;
        if let Some(id) = found
            && let Some(scale) = self.scale_of(name, 1)?
        {
            self.found.matrices[id.0 as usize].scale = self.values(scale)[0];
        }
        Ok(found)
    }

    /// Binds the `n` factors an NVFP4 file stores beside the matrix of this name: `x.scale` for
    /// `x.weight`. Those of its inputs, `x.input_scale`, are for programs that round inputs to four
    /// bits.
    pub(crate) fn scale_of(&mut self, name: &str, n: usize) -> Result<Option<VecId>, Error> {
        let Some(stem) = scaled_stem(name) else {
            return Ok(None);
        };
        self.ignore(&format!("{stem}.input_scale"));
        self.optional_vector(&format!("{stem}.scale"), n)
    }

    /// Binds a tensor of this shape as a matrix: all dimensions but the first are rows.
    pub(crate) fn matrix_of(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<WeightId>, Error> {
        let Some((tensor, info)) = self.take(name, shape)? else {
            return Ok(None);
        };
        if !is_matrix_type(info.ty) {
            return Err(self.wrong_type(info, "F32, F16, BF16 or a quantized weight type"));
        }
        self.found.matrices.push(WeightRef {
            name: name.to_owned(),
            tensor,
            ty: info.ty,
            rows: shape[1..].iter().product::<usize>() as u64,
            cols: shape[0] as u64,
            row_start: 0,
            pieces: None,
            scale: 1.0,
            transposed: None,
        });
        Ok(Some(WeightId(self.found.matrices.len() as u32 - 1)))
    }

    /// Binds a required matrix.
    pub fn matrix(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, Error> {
        self.optional_matrix(name, rows, cols)?
            .ok_or_else(|| self.missing(name, &[cols, rows]))
    }

    /// Binds the kernels of a convolution whose stride equals the kernel size: a matrix with one
    /// row per kernel, with its values in file order.
    pub fn kernels(&mut self, name: &str, kernel: &[usize], n: usize) -> Result<WeightId, Error> {
        let shape = [kernel, &[n]].concat();
        let Some((tensor, info)) = self.take(name, &shape)? else {
            return Err(self.missing(name, &shape));
        };
        // other types have blocks, which end with the file's rows
        if !matches!(
            info.ty,
            TensorType::F32 | TensorType::F16 | TensorType::BF16
        ) {
            return Err(self.wrong_type(info, "F32, F16 or BF16"));
        }
        self.found.matrices.push(WeightRef {
            name: name.to_owned(),
            tensor,
            ty: info.ty,
            rows: n as u64,
            cols: kernel.iter().product::<usize>() as u64,
            row_start: 0,
            pieces: None,
            scale: 1.0,
            transposed: None,
        });
        Ok(WeightId(self.found.matrices.len() as u32 - 1))
    }

    /// Binds a matrix whose columns are the file's rows. It takes memory of its own.
    pub fn transposed(&mut self, name: &str, rows: usize, cols: usize) -> Result<WeightId, Error> {
        let Some((tensor, info)) = self.take(name, &[rows, cols])? else {
            return Err(self.missing(name, &[rows, cols]));
        };
        let data = self.gguf.data(info);
        let transpose = |data: &[u8], size: usize| -> Vec<u8> {
            let column = |row: usize| data.chunks_exact(size).skip(row).step_by(rows);
            (0..rows).flat_map(column).flatten().copied().collect()
        };
        let (ty, bytes) = match info.ty {
            TensorType::F32 => (info.ty, transpose(data, 4)),
            TensorType::F16 | TensorType::BF16 => (info.ty, transpose(data, 2)),
            // blocks of other types are parts of the file's rows
            ty => {
                let mut values = vec![0.0f32; rows * cols];
                if octavo_quant::dequantize(ty, data, &mut values).is_err() {
                    return Err(self.wrong_type(info, "a type that holds weights"));
                }
                let data: Vec<u8> = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                (TensorType::F32, transpose(&data, 4))
            }
        };
        self.found.matrices.push(WeightRef {
            name: name.to_owned(),
            tensor,
            ty,
            rows: rows as u64,
            cols: cols as u64,
            row_start: 0,
            pieces: None,
            scale: 1.0,
            transposed: Some(Arc::new(bytes)),
        });
        Ok(WeightId(self.found.matrices.len() as u32 - 1))
    }

    /// Binds a vector; `None` if the file lacks it.
    pub fn optional_vector(&mut self, name: &str, n: usize) -> Result<Option<VecId>, Error> {
        match self.take(name, &[n])? {
            Some((_, info)) => self.vector_of(name, info).map(Some),
            None => Ok(None),
        }
    }

    /// Binds all values of a tensor as a vector.
    pub(crate) fn vector_of(&mut self, name: &str, info: &TensorInfo) -> Result<VecId, Error> {
        let data = self.read_floats(name, info)?;
        self.found.vectors.push(Vector {
            name: name.to_owned(),
            data,
            is_made: false,
        });
        Ok(VecId(self.found.vectors.len() as u32 - 1))
    }

    pub(super) fn read_floats(&self, name: &str, info: &TensorInfo) -> Result<Vec<f32>, Error> {
        // llama.cpp multiplies and adds f32 vectors only; a file with other types runs nowhere
        if info.ty != TensorType::F32 {
            return Err(self.wrong_type(info, "F32"));
        }
        let bytes = self.gguf.data(info).chunks_exact(4);
        let data: Vec<f32> = bytes
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        self.all_finite(name, &data)?;
        Ok(data)
    }

    /// # Errors
    /// [`Error`] naming the first value that is not finite.
    pub(super) fn all_finite(&self, name: &str, values: &[f32]) -> Result<(), Error> {
        match values.iter().position(|x| !x.is_finite()) {
            Some(i) => Err(self.bad_element(name, i, "a finite number", values[i])),
            None => Ok(()),
        }
    }

    /// Adds a vector that is not in the file: derived from others, or given by the architecture.
    pub fn made_vector(&mut self, name: &str, data: Vec<f32>) -> VecId {
        self.found.vectors.push(Vector {
            name: name.to_owned(),
            data,
            is_made: true,
        });
        VecId(self.found.vectors.len() as u32 - 1)
    }

    /// Adds a matrix with rows of `cols` values, made of those of the tensor `name`.
    pub(crate) fn made_matrix(&mut self, name: &str, cols: usize, values: &[f32]) -> WeightId {
        let bytes = values.iter().flat_map(|x| x.to_le_bytes()).collect();
        self.found.matrices.push(WeightRef {
            name: name.to_owned(),
            tensor: self.index.get(name).copied().unwrap_or(0),
            ty: TensorType::F32,
            rows: (values.len() / cols) as u64,
            cols: cols as u64,
            row_start: 0,
            pieces: None,
            scale: 1.0,
            transposed: Some(Arc::new(bytes)),
        });
        WeightId(self.found.matrices.len() as u32 - 1)
    }

    /// Returns a vector.
    pub(crate) fn found(&self, id: VecId) -> &Vector {
        &self.found.vectors[id.0 as usize]
    }

    /// Returns a vector's values, for changes.
    pub(crate) fn values_mut(&mut self, id: VecId) -> &mut Vec<f32> {
        &mut self.found.vectors[id.0 as usize].data
    }

    /// Returns a vector's values.
    pub fn values(&self, id: VecId) -> &[f32] {
        &self.found.vectors[id.0 as usize].data
    }

    /// Binds a required vector.
    pub fn vector(&mut self, name: &str, n: usize) -> Result<VecId, Error> {
        self.optional_vector(name, n)?
            .ok_or_else(|| self.missing(name, &[n]))
    }

    pub(crate) fn bad_element(
        &self,
        name: &str,
        index: usize,
        expected: &'static str,
        got: f32,
    ) -> Error {
        Error::TensorValue {
            file: self.file(),
            tensor: name.to_owned(),
            index,
            expected,
            got,
        }
    }

    /// Binds a norm's weights, with the bias that layer norms may have; `None` if the file lacks
    /// them.
    pub fn optional_norm(
        &mut self,
        name: &str,
        kind: Norm,
        n: usize,
        tap: &'static str,
    ) -> Result<Option<NormWeights>, Error> {
        let Some(weight) = self.optional_vector(&format!("{name}.weight"), n)? else {
            return Ok(None);
        };
        let bias = match kind {
            Norm::Rms => None,
            Norm::BiasedRms => Some(self.vector(&format!("{name}.bias"), n)?),
            Norm::Layer => self.optional_vector(&format!("{name}.bias"), n)?,
        };
        Ok(Some(NormWeights {
            weight,
            bias,
            tap: Some(tap),
            numbered: true,
            ones: None,
        }))
    }

    /// Binds a norm's required weights.
    pub fn norm(
        &mut self,
        name: &str,
        kind: Norm,
        n: usize,
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        self.optional_norm(name, kind, n, tap)?
            .ok_or_else(|| self.missing(&format!("{name}.weight"), &[n]))
    }

    /// Splits a matrix into parts of `rows` rows each.
    pub fn split_matrix<const N: usize>(
        &mut self,
        fused: WeightId,
        rows: [usize; N],
    ) -> [WeightId; N] {
        let whole = self.found.matrices[fused.0 as usize].clone();
        let mut start = 0;
        let mut ids = [fused; N];
        for (i, rows) in rows.into_iter().enumerate() {
            let part = WeightRef {
                rows: rows as u64,
                row_start: start,
                ..whole.clone()
            };
            start += part.rows;
            if i == 0 {
                self.found.matrices[fused.0 as usize] = part;
            } else {
                self.found.matrices.push(part);
                ids[i] = WeightId(self.found.matrices.len() as u32 - 1);
            }
        }
        ids
    }

    /// Splits a vector into parts of `rows` values each.
    pub fn split_vector(&mut self, fused: VecId, rows: [usize; 3]) -> [VecId; 3] {
        let whole = self.found.vectors[fused.0 as usize].clone();
        let mut rest = whole.data.as_slice();
        let mut ids = [fused; 3];
        for (i, n) in rows.into_iter().enumerate() {
            let (part, tail) = rest.split_at(n);
            rest = tail;
            let part = Vector {
                name: whole.name.clone(),
                data: part.to_vec(),
                is_made: whole.is_made,
            };
            if i == 0 {
                self.found.vectors[fused.0 as usize] = part;
            } else {
                self.found.vectors.push(part);
                ids[i] = VecId(self.found.vectors.len() as u32 - 1);
            }
        }
        ids
    }

    /// Returns whether the file has a tensor of this name.
    pub fn has(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Marks a tensor as known but not used by the forward pass.
    pub fn ignore(&mut self, name: &str) {
        if let Some(&i) = self.index.get(name) {
            self.used[i] = true;
        }
    }

    /// Marks all tensors as used whose names `is_unused` accepts.
    pub(crate) fn ignore_all(&mut self, is_unused: impl Fn(&str) -> bool) {
        let unused = self.index.iter().filter(|(name, _)| is_unused(name));
        for (_, &i) in unused {
            self.used[i] = true;
        }
    }

    /// Returns everything bound, if every tensor of the file was used, except those whose names
    /// `may_stay` accepts.
    pub fn finish(
        self,
        arch: &'static str,
        may_stay: impl Fn(&str) -> bool,
    ) -> Result<Tensors, Error> {
        let is_left_over =
            |(i, used): (usize, &bool)| !used && !may_stay(&self.gguf.tensors()[i].name);
        if let Some(i) = self.used.iter().enumerate().position(is_left_over) {
            let tensor = self.gguf.tensors()[i].name.clone();
            return Err(Error::UnexpectedTensor {
                file: self.file(),
                why: why_unexpected(&tensor),
                tensor,
                arch,
                expected: self.used.iter().filter(|used| **used).count(),
                got: self.used.len(),
            });
        }
        Ok(self.found)
    }
}

/// Returns whether a matrix may have this type: true for every type that holds weights. The rest
/// are indices or activations.
fn is_matrix_type(ty: TensorType) -> bool {
    use TensorType as T;
    !matches!(
        ty,
        T::I8 | T::I16 | T::I32 | T::I64 | T::F64 | T::Q8_1 | T::Q8_K
    )
}

/// Returns the stem of the names of a matrix's factors, if a file may have them. A router's scale
/// belongs to the norm before it, and outside the layers only the output is a product.
fn scaled_stem(name: &str) -> Option<&str> {
    let stem = name.strip_suffix(".weight")?;
    let multiplies = stem == "output" || stem.starts_with("blk.");
    (multiplies && !stem.ends_with(".ffn_gate_inp")).then_some(stem)
}

pub(super) fn show_shape<D: std::fmt::Display>(dims: &[D]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn why_unexpected(name: &str) -> &'static str {
    if name.ends_with(".scale") || name.ends_with(".input_scale") {
        "there is no matrix that it scales"
    } else if name.contains("_exps.") || name.contains("ffn_gate_inp") {
        "there are no experts in this architecture"
    } else if name.starts_with("rope_factors_") {
        "expected only with rope.scaling.type longrope"
    } else {
        "no such tensor in this architecture"
    }
}
