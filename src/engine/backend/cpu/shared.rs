//! Packed weights that several networks of one file have in common: a model and its MTP
//! layer, which mostly end with the same matrix.

use std::collections::HashMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError};

use gguf_rs_lite::{Gguf, TensorType};
use octavo_kernels::{Isa, Matrix};
use octavo_model::WeightRef;

/// Packed weights by their place in a file. Clones are the same weights.
#[derive(Clone, Default)]
pub struct SharedWeights(Arc<Mutex<HashMap<Place, Matrix>>>);

/// A matrix in a file, and the way that it is packed.
#[derive(Clone, PartialEq, Eq, Hash)]
pub(super) struct Place {
    file: String,
    offset: u64,
    first_row: u64,
    shape: [u64; 2],
    experts: usize,
    ty: TensorType,
    isa: Isa,
}

impl Place {
    /// Returns the place of a weight; `None` if it is not in a GGUF file as it is.
    pub(super) fn of(gguf: &Gguf, weight: &WeightRef, experts: usize, isa: Isa) -> Option<Place> {
        let tensor = &gguf.tensors()[weight.tensor];
        let is_apart = weight.pieces.is_some() || weight.transposed.is_some();
        if is_apart {
            return None;
        }
        Some(Place {
            file: gguf.part_name(tensor).to_owned(),
            offset: gguf.file_offset(tensor)?,
            first_row: weight.row_start,
            shape: [weight.rows, weight.cols],
            experts,
            ty: weight.ty,
            isa,
        })
    }
}

impl SharedWeights {
    /// Returns the matrix of a place, if it is packed.
    pub(super) fn get(&self, place: &Place) -> Option<Matrix> {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.get(place).cloned()
    }

    /// Adds a matrix that is packed.
    pub(super) fn add(&self, place: Place, matrix: &Matrix) {
        let mut all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        all.insert(place, matrix.clone());
    }
}

impl fmt::Debug for SharedWeights {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        write!(f, "{} shared weights", all.len())
    }
}
