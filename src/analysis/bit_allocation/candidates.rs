//! The types that each tensor may get, their sizes, and how far each moves the tensor's weights.

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use octavo_quant::{can_quantize, dequantize, needs_importance, quantize};
use regex::Regex;

use super::Error;
use crate::eval::for_each;
use crate::imatrix::Importance;
use crate::quant_report::{is_float_matrix, weights};
use crate::quantize::mix::{self, fallback, requires_importance};
use crate::quantize::{Target, change_to};

/// Values of a tensor whose rounding is measured: whole rows, evenly spread over it. The squared
/// error of so many is within 1 % of that of all.
const SAMPLED: u64 = 1 << 18;

/// A type that a tensor may get.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Candidate {
    /// The type.
    pub ty: TensorType,
    /// Bytes of the tensor in it, padded as in the file.
    pub bytes: u64,
    /// Squared error of the weights, as a fraction of their squares: both weighted with the
    /// importance of the inputs, if it is known. 0 for the type of the source.
    pub error: f64,
}

/// A tensor and its candidates, by size; the last is the type of the source.
#[derive(Clone, Debug)]
pub struct Candidates {
    /// Tensor in the source.
    pub tensor: TensorInfo,
    /// Its candidates, at least one.
    pub types: Vec<Candidate>,
}

impl Candidates {
    /// Returns the candidate of a type.
    pub fn of(&self, ty: TensorType) -> Option<&Candidate> {
        self.types.iter().find(|candidate| candidate.ty == ty)
    }
}

/// Everything that the candidates depend on.
#[derive(Clone, Copy)]
pub(super) struct Choice<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) importance: Option<&'a Importance>,
    /// Types to choose from.
    pub(super) types: &'a [TensorType],
    /// Types of tensors that are not to be chosen; the first match decides.
    pub(super) fixed: &'a [(Regex, TensorType)],
    pub(super) threads: usize,
}

impl Choice<'_> {
    /// Returns the candidates of every tensor that quantization may change, in the order of the new
    /// file; `progress` receives the number of tensors done and of all.
    ///
    /// # Errors
    /// A model without tensors in F32, F16 or BF16 to quantize, values that cannot be quantized.
    pub(super) fn candidates(
        &self,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Vec<Candidates>, Error> {
        let mut tensors: Vec<&TensorInfo> = self.gguf.tensors().iter().collect();
        tensors.sort_by(|a, b| mix::order(&a.name, &b.name));
        tensors.retain(|t| is_float_matrix(self.gguf, t));
        if tensors.is_empty() {
            return Err(Error::NothingToChoose {
                file: self.gguf.name().to_owned(),
            });
        }
        let n = tensors.len();
        let mut all = Vec::with_capacity(n);
        for (done, t) in tensors.into_iter().enumerate() {
            all.push(self.of(t)?);
            self.gguf.release(t);
            progress(done + 1, n);
        }
        Ok(all)
    }

    fn of(&self, t: &TensorInfo) -> Result<Candidates, Error> {
        let fixed = self.fixed.iter().find(|(name, _)| name.is_match(&t.name));
        let types = match fixed {
            Some((_, ty)) => vec![change_to(t, *ty, |_| false)?.to],
            None => self.choosable(t),
        };
        let mut candidates: Vec<Candidate> = types
            .into_iter()
            .map(|ty| Candidate {
                ty,
                bytes: padded_bytes(self.gguf, t, ty),
                error: 0.0,
            })
            .collect();
        candidates.sort_by_key(|candidate| candidate.bytes);
        // without a choice there is nothing to compare
        if candidates.len() > 1 {
            self.measure(t, &mut candidates)?;
        }
        Ok(Candidates {
            tensor: t.clone(),
            types: candidates,
        })
    }

    /// Returns the types that a tensor may get, without repetitions: those that its rows fit, or
    /// their fallbacks, and its own.
    fn choosable(&self, t: &TensorInfo) -> Vec<TensorType> {
        let own = padded_bytes(self.gguf, t, t.ty);
        let lacks_weights = |ty| {
            (needs_importance(ty) || requires_importance(Target::COPY, &t.name, ty))
                && weights(self.importance, t).is_none()
        };
        let fallbacks = self.types.iter().filter_map(|ty| fallback(*ty, t.dims[0]));
        let mut types: Vec<TensorType> = fallbacks
            .filter(|ty| can_quantize(*ty) && !lacks_weights(*ty))
            .filter(|ty| padded_bytes(self.gguf, t, *ty) < own)
            .collect();
        types.push(t.ty);
        types.sort_unstable_by_key(|ty| ty.id());
        types.dedup();
        types
    }

    /// Measures the errors of a tensor's candidates.
    fn measure(&self, t: &TensorInfo, candidates: &mut [Candidate]) -> Result<(), Error> {
        let width = t.dims[0].max(1);
        let n_rows = t.n_elements() / width;
        let n = n_rows.min((SAMPLED / width).max(1));
        let mut rows: Vec<(u64, Result<Vec<f64>, octavo_quant::Error>)> =
            (0..n).map(|i| (i * n_rows / n, Ok(Vec::new()))).collect();
        let types: Vec<TensorType> = candidates.iter().map(|c| c.ty).collect();
        for_each(self.threads, &mut rows, |_, (row, errors)| {
            *errors = self.row_errors(t, *row, &types);
        });
        let mut sums = vec![0.0; types.len() + 1];
        for (_, errors) in rows {
            let errors = errors.map_err(|source| {
                Error::Quantize(crate::quantize::Error::Quant {
                    tensor: t.name.clone(),
                    source,
                })
            })?;
            sums.iter_mut().zip(errors).for_each(|(sum, e)| *sum += e);
        }
        let squares = sums.pop().unwrap_or_default().max(f64::MIN_POSITIVE);
        for (candidate, sum) in candidates.iter_mut().zip(sums) {
            candidate.error = sum / squares;
        }
        Ok(())
    }

    /// Returns the squared error of a row in each type, and the sum of its squares.
    fn row_errors(
        &self,
        t: &TensorInfo,
        row: u64,
        types: &[TensorType],
    ) -> Result<Vec<f64>, octavo_quant::Error> {
        let width = t.dims[0] as usize;
        // a row of an opened file fits into memory
        let bytes = t.ty.row_bytes(t.dims[0]).unwrap_or_default() as usize;
        let mut source = vec![0; bytes];
        self.gguf.read(t, row as usize * bytes, &mut source);
        let (mut exact, mut rounded) = (vec![0.0; width], vec![0.0; width]);
        dequantize(t.ty, &source, &mut exact)?;
        let matrix = (row / t.dims.get(1).copied().unwrap_or(1).max(1)) as usize;
        let weights = weights(self.importance, t).and_then(|w| w.chunks_exact(width).nth(matrix));
        let weight = |i: usize| f64::from(weights.map_or(1.0, |weights| weights[i]));
        let mut sums = Vec::with_capacity(types.len() + 1);
        let mut coarse = Vec::new();
        for &ty in types {
            coarse.clear();
            quantize(ty, &exact, width, weights, &mut coarse)?;
            dequantize(ty, &coarse, &mut rounded)?;
            let errors = exact.iter().zip(&rounded).enumerate();
            sums.push(
                errors
                    .map(|(i, (x, y))| weight(i) * (f64::from(*x) - f64::from(*y)).powi(2))
                    .sum(),
            );
        }
        let squares = exact.iter().enumerate();
        sums.push(
            squares
                .map(|(i, x)| weight(i) * f64::from(*x).powi(2))
                .sum(),
        );
        Ok(sums)
    }
}

/// Returns the bytes of a tensor in a type, padded as in the file.
pub(super) fn padded_bytes(gguf: &Gguf, t: &TensorInfo, ty: TensorType) -> u64 {
    let row = t.dims[0];
    let rows = t.n_elements().checked_div(row).unwrap_or(0);
    let bytes = ty.row_bytes(row).and_then(|bytes| bytes.checked_mul(rows));
    let alignment = u64::from(gguf.alignment().max(1));
    bytes
        .and_then(|bytes| bytes.checked_next_multiple_of(alignment))
        .unwrap_or(u64::MAX)
}
