//! Finds each weight of a model in its file, once, and refuses what is missing, misshapen or left
//! over.

use std::collections::HashMap;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

use super::{Layer, VecId, Vector, WeightId, WeightRef, Weights};
use crate::Error;
use crate::hparams::Hparams;

/// What surrounds the layers.
pub(crate) struct Ends {
    pub(crate) token_embd: WeightId,
    pub(crate) output_norm: VecId,
    pub(crate) output: WeightId,
    pub(crate) output_bias: Option<VecId>,
    pub(crate) rope_freqs: Option<VecId>,
}

/// A layer's query, key and value projections, separate or cut out of one fused tensor.
pub(crate) struct Qkv {
    pub(crate) w: [WeightId; 3],
    pub(crate) b: [Option<VecId>; 3],
}

/// Looks tensors up by name, checks them, and remembers which were used.
pub(crate) struct Binder<'a> {
    gguf: &'a Gguf,
    pub(crate) h: &'a Hparams,
    index: HashMap<&'a str, usize>,
    used: Vec<bool>,
    matrices: Vec<WeightRef>,
    vectors: Vec<Vector>,
}

impl<'a> Binder<'a> {
    fn new(gguf: &'a Gguf, h: &'a Hparams) -> Binder<'a> {
        let index = gguf
            .tensors()
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.as_str(), i))
            .collect();
        let used = vec![false; gguf.tensors().len()];
        Binder {
            gguf,
            h,
            index,
            used,
            matrices: Vec::new(),
            vectors: Vec::new(),
        }
    }

    fn file(&self) -> String {
        self.gguf.name().to_owned()
    }

    /// The tensor of this name, its shape checked and marked as used.
    fn take(
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

    fn missing(&self, name: &str, shape: &[usize]) -> Error {
        Error::MissingTensor {
            file: self.file(),
            tensor: name.to_owned(),
            expected: show_shape(shape),
        }
    }

    fn wrong_type(&self, info: &TensorInfo, expected: &'static str) -> Error {
        Error::TensorType {
            file: self.file(),
            tensor: info.name.clone(),
            expected,
            got: info.ty.name(),
        }
    }

    /// A matrix, or `None` if the file lacks it.
    pub(crate) fn optional_matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<WeightId>, Error> {
        let Some((tensor, info)) = self.take(name, &[cols, rows])? else {
            return Ok(None);
        };
        if !is_matrix_type(info.ty) {
            return Err(self.wrong_type(info, "F32, F16, BF16 or a quantized weight type"));
        }
        self.matrices.push(WeightRef {
            name: name.to_owned(),
            tensor,
            ty: info.ty,
            rows: rows as u64,
            cols: cols as u64,
            row_start: 0,
        });
        Ok(Some(WeightId(self.matrices.len() as u32 - 1)))
    }

    /// A matrix that must be there.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, Error> {
        self.optional_matrix(name, rows, cols)?
            .ok_or_else(|| self.missing(name, &[cols, rows]))
    }

    /// A vector, or `None` if the file lacks it.
    pub(crate) fn optional_vector(&mut self, name: &str, n: usize) -> Result<Option<VecId>, Error> {
        let Some((_, info)) = self.take(name, &[n])? else {
            return Ok(None);
        };
        // llama.cpp multiplies and adds f32 vectors only; a file with others runs nowhere
        if info.ty != TensorType::F32 {
            return Err(self.wrong_type(info, "F32"));
        }
        let bytes = self.gguf.data(info).chunks_exact(4);
        let data: Vec<f32> = bytes
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        if let Some(index) = data.iter().position(|x| !x.is_finite()) {
            return Err(self.bad_element(name, index, "a finite number", data[index]));
        }
        self.vectors.push(Vector {
            name: name.to_owned(),
            data,
        });
        Ok(Some(VecId(self.vectors.len() as u32 - 1)))
    }

    /// A vector that must be there.
    pub(crate) fn vector(&mut self, name: &str, n: usize) -> Result<VecId, Error> {
        self.optional_vector(name, n)?
            .ok_or_else(|| self.missing(name, &[n]))
    }

    fn bad_element(&self, name: &str, index: usize, expected: &'static str, got: f32) -> Error {
        Error::TensorValue {
            file: self.file(),
            tensor: name.to_owned(),
            index,
            expected,
            got,
        }
    }

    /// Token embedding, final norm and output matrix, which is the embedding if the file has no
    /// other.
    pub(crate) fn ends(&mut self) -> Result<Ends, Error> {
        let (n_embd, n_vocab) = (self.h.n_embd(), self.h.n_vocab());
        let token_embd = self.matrix("token_embd.weight", n_vocab, n_embd)?;
        let output_norm = self.vector("output_norm.weight", n_embd)?;
        let output = self
            .optional_matrix("output.weight", n_vocab, n_embd)?
            .unwrap_or(token_embd);
        Ok(Ends {
            token_embd,
            output_norm,
            output,
            output_bias: None,
            rope_freqs: None,
        })
    }

    /// `rope_freqs.weight`, whose values divide angles.
    pub(crate) fn rope_freqs(&mut self) -> Result<Option<VecId>, Error> {
        const NAME: &str = "rope_freqs.weight";
        let Some(id) = self.optional_vector(NAME, self.h.rope(0).n_rot.value / 2)? else {
            return Ok(None);
        };
        let data = &self.vectors[id.0 as usize].data;
        match data.iter().position(|&x| x <= 0.0) {
            Some(i) => Err(self.bad_element(NAME, i, "a divisor above 0", data[i])),
            None => Ok(Some(id)),
        }
    }

    /// A layer's Q, K and V: three tensors, or one with the rows of Q, then K, then V. Biases are
    /// optional.
    pub(crate) fn qkv(&mut self, l: usize) -> Result<Qkv, Error> {
        let n_embd = self.h.n_embd();
        let layer = &self.h.layers[l];
        let rows = [layer.q_width(), layer.kv_width(), layer.kv_width()];
        let names = ["attn_q", "attn_k", "attn_v"];
        let total = rows.iter().sum();
        let Some(fused) = self.optional_matrix(&blk(l, "attn_qkv.weight"), total, n_embd)? else {
            let mut qkv = Qkv {
                w: [WeightId(0); 3],
                b: [None; 3],
            };
            for i in 0..3 {
                qkv.w[i] =
                    self.matrix(&blk(l, &format!("{}.weight", names[i])), rows[i], n_embd)?;
                qkv.b[i] = self.optional_vector(&blk(l, &format!("{}.bias", names[i])), rows[i])?;
            }
            return Ok(qkv);
        };
        let w = self.split_matrix(fused, rows);
        if let Some(bias) = self.optional_vector(&blk(l, "attn_qkv.bias"), total)? {
            return Ok(Qkv {
                w,
                b: self.split_vector(bias, rows).map(Some),
            });
        }
        let mut b = [None; 3];
        for i in 0..3 {
            b[i] = self.optional_vector(&blk(l, &format!("{}.bias", names[i])), rows[i])?;
        }
        // llama.cpp adds separate biases to a fused product only when all three are there, else
        // silently none
        if let Some(i) = b
            .iter()
            .position(Option::is_none)
            .filter(|_| b.iter().any(Option::is_some))
        {
            return Err(self.missing(&blk(l, &format!("{}.bias", names[i])), &[rows[i]]));
        }
        Ok(Qkv { w, b })
    }

    fn split_matrix(&mut self, fused: WeightId, rows: [usize; 3]) -> [WeightId; 3] {
        let whole = self.matrices[fused.0 as usize].clone();
        let mut start = 0;
        let mut ids = [fused; 3];
        for (i, rows) in rows.into_iter().enumerate() {
            let part = WeightRef {
                rows: rows as u64,
                row_start: start,
                ..whole.clone()
            };
            start += part.rows;
            if i == 0 {
                self.matrices[fused.0 as usize] = part;
            } else {
                self.matrices.push(part);
                ids[i] = WeightId(self.matrices.len() as u32 - 1);
            }
        }
        ids
    }

    fn split_vector(&mut self, fused: VecId, rows: [usize; 3]) -> [VecId; 3] {
        let whole = self.vectors[fused.0 as usize].clone();
        let mut rest = whole.data.as_slice();
        let mut ids = [fused; 3];
        for (i, n) in rows.into_iter().enumerate() {
            let (part, tail) = rest.split_at(n);
            rest = tail;
            let part = Vector {
                name: whole.name.clone(),
                data: part.to_vec(),
            };
            if i == 0 {
                self.vectors[fused.0 as usize] = part;
            } else {
                self.vectors.push(part);
                ids[i] = VecId(self.vectors.len() as u32 - 1);
            }
        }
        ids
    }

    /// Marks a tensor as known but not used by the forward pass.
    pub(crate) fn ignore(&mut self, name: &str) {
        if let Some(&i) = self.index.get(name) {
            self.used[i] = true;
        }
    }

    /// The weights, if every tensor of the file found its place.
    fn finish(self, ends: Ends, layers: Vec<Layer>) -> Result<Weights, Error> {
        if let Some(i) = self.used.iter().position(|used| !used) {
            let tensor = self.gguf.tensors()[i].name.clone();
            return Err(Error::UnexpectedTensor {
                file: self.file(),
                why: why_unexpected(&tensor),
                tensor,
                arch: self.h.arch.name(),
                expected: self.used.iter().filter(|used| **used).count(),
                got: self.used.len(),
            });
        }
        Ok(Weights {
            matrices: self.matrices,
            vectors: self.vectors,
            token_embd: ends.token_embd,
            output_norm: ends.output_norm,
            output: ends.output,
            output_bias: ends.output_bias,
            rope_freqs: ends.rope_freqs,
            layers,
        })
    }
}

/// Binds every tensor of the file to its field.
pub(crate) fn bind(gguf: &Gguf, h: &Hparams) -> Result<Weights, Error> {
    let spec = h.arch.spec();
    let mut binder = Binder::new(gguf, h);
    let ends = (spec.ends)(&mut binder)?;
    let layers = (0..h.n_layer())
        .map(|l| (spec.layer)(&mut binder, l))
        .collect::<Result<Vec<_>, _>>()?;
    binder.finish(ends, layers)
}

/// `blk.<layer>.<rest>`.
pub(crate) fn blk(layer: usize, rest: &str) -> String {
    format!("blk.{layer}.{rest}")
}

/// Types a matrix may have: every type that holds weights. The rest are indices or activations.
fn is_matrix_type(ty: TensorType) -> bool {
    use TensorType as T;
    !matches!(
        ty,
        T::I8 | T::I16 | T::I32 | T::I64 | T::F64 | T::Q8_1 | T::Q8_K
    )
}

fn show_shape<D: std::fmt::Display>(dims: &[D]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn why_unexpected(name: &str) -> &'static str {
    if name.ends_with(".scale") || name.ends_with(".input_scale") {
        "per-tensor scales are not supported"
    } else if name.contains("_exps.") || name.contains("ffn_gate_inp") {
        "mixtures of experts are not supported"
    } else if name.starts_with("rope_factors_") {
        "longrope is not supported"
    } else {
        "no such tensor in this architecture"
    }
}
