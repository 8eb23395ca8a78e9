//! One tensor of a model: its name, shape and place.

use crate::{TensorType, layout};

/// One tensor of a model.
#[derive(Clone, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub struct TensorInfo {
    /// Name, unique in the model, at most 63 bytes.
    pub name: String,
    /// Up to four dimensions in ggml's order: `dims[0]` is the length of a row (input features of a
    /// weight matrix).
    pub dims: Vec<u64>,
    /// Element type.
    pub ty: TensorType,
    /// Offset of the data in the data section of its file, in bytes.
    pub offset: u64,
    /// Bytes of data.
    pub bytes: u64,
    /// Index of the file that holds it.
    pub part: usize,
}

impl TensorInfo {
    /// Returns the dimensions without trailing ones of length 1, which ggml does not count: what
    /// llama.cpp writes once it has read the tensor.
    pub fn counted_dims(&self) -> &[u64] {
        let last = self.dims.iter().rposition(|&n| n != 1);
        let n = last.map_or(1, |last| last.saturating_add(1));
        self.dims.get(..n).unwrap_or(&self.dims)
    }

    /// Returns the number of elements.
    pub fn n_elements(&self) -> u64 {
        // an info that came from a file has a representable size
        layout::elements(&self.dims).unwrap_or(u64::MAX)
    }
}
