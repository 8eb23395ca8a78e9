//! The matrices and vectors of a file that a graph uses, by number.

use std::ops::Range;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

/// A matrix of the model, by its index in [`Tensors::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A vector of the model, by its index in [`Tensors::vectors`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct VecId(pub u32);

/// A matrix inside the file: `rows` output features, each a row of `cols` input features.
#[derive(Clone, Debug, PartialEq)]
pub struct WeightRef {
    /// The tensor's name.
    pub name: String,
    /// Index into `gguf.tensors()`.
    pub tensor: usize,
    /// Element type.
    pub ty: TensorType,
    /// Output features.
    pub rows: u64,
    /// Input features.
    pub cols: u64,
    /// First row inside the tensor: not 0 for the K and V parts of a fused `attn_qkv.weight`.
    pub row_start: u64,
    /// Choice of rows, where they are not contiguous.
    pub pieces: Option<Pieces>,
    /// Factor of every product with the matrix: NVFP4's `x.scale`, otherwise 1.
    pub scale: f32,
    /// The bytes of all rows, where the file has columns as rows, or other values to make them of.
    pub transposed: Option<Arc<Vec<u8>>>,
}

/// The same range of rows from each matrix of a stack: one part of every expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Rows of each stacked matrix in the tensor.
    pub each: u64,
    /// Rows of each that belong to the weight, contiguous.
    pub rows: u64,
}

impl WeightRef {
    /// Returns the bytes of one row.
    pub fn row_bytes(&self) -> usize {
        // the reader refused rows that are not whole blocks or do not fit in memory
        self.ty.row_bytes(self.cols).map_or(0, |b| b as usize)
    }

    /// Returns the bytes of all rows.
    pub fn n_bytes(&self) -> usize {
        self.rows as usize * self.row_bytes()
    }

    /// Returns the byte offset of the first row in the tensor.
    pub fn offset(&self) -> usize {
        self.row_start as usize * self.row_bytes()
    }

    /// Returns the offset in the tensor of byte `at` of the weight.
    pub fn place(&self, at: usize) -> usize {
        let Some(Pieces { each, rows }) = self.pieces else {
            return self.offset() + at;
        };
        let piece = (rows as usize * self.row_bytes()).max(1);
        self.offset() + at / piece * (each as usize * self.row_bytes()) + at % piece
    }

    /// Returns the row of the tensor that is row `i` of the weight.
    pub fn tensor_row(&self, i: usize) -> usize {
        let row = match self.pieces {
            Some(Pieces { each, rows }) => {
                let rows = (rows as usize).max(1);
                i / rows * each as usize + i % rows
            }
            None => i,
        };
        self.row_start as usize + row
    }

    /// Returns the rows' bytes, all [`WeightRef::n_bytes`].
    ///
    /// # Panics
    /// If `gguf` is not the file the weight was bound from, or the rows are not contiguous.
    pub fn bytes<'a>(&'a self, gguf: &'a Gguf) -> &'a [u8] {
        if let Some(bytes) = &self.transposed {
            return &bytes[self.offset()..][..self.n_bytes()];
        }
        assert!(self.pieces.is_none(), "{}: rows of pieces", self.name);
        let start = self.offset();
        &gguf.data(self.info(gguf))[start..start + self.n_bytes()]
    }

    /// Returns a range of the bytes: whole rows of one piece. Uses `room` where the file does not
    /// store them in this form.
    ///
    /// # Panics
    /// If `gguf` is not the file the weight was bound from.
    pub fn read<'a>(
        &'a self,
        gguf: &'a Gguf,
        range: Range<usize>,
        room: &'a mut Vec<u8>,
    ) -> &'a [u8] {
        if let Some(bytes) = &self.transposed {
            return &bytes[self.offset()..][range];
        }
        let info = self.info(gguf);
        let start = self.place(range.start);
        if !gguf.is_made(info) {
            return &gguf.data(info)[start..][..range.len()];
        }
        room.resize(range.len(), 0);
        gguf.read(info, start, room);
        room
    }

    fn info<'a>(&self, gguf: &'a Gguf) -> &'a TensorInfo {
        let info = gguf
            .tensors()
            .get(self.tensor)
            .filter(|t| t.name == self.name);
        info.unwrap_or_else(|| {
            panic!(
                "{} has no tensor {} at {}",
                gguf.name(),
                self.name,
                self.tensor
            )
        })
    }

    /// Returns whether the weight is the whole tensor, so that its pages may be released once it is
    /// packed.
    pub fn is_whole(&self, gguf: &Gguf) -> bool {
        let rows = gguf
            .tensors()
            .get(self.tensor)
            .map(|t| t.dims.iter().skip(1).product::<u64>());
        rows == Some(self.rows)
    }
}

/// A vector, read from the file.
#[derive(Clone, Debug, PartialEq)]
pub struct Vector {
    /// The tensor's name.
    pub name: String,
    /// Its values, all finite.
    pub data: Vec<f32>,
    /// Whether it is derived, or given by the architecture, instead of read from the file.
    pub is_made: bool,
}

/// All matrices and vectors that a graph uses.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    /// Every matrix; [`WeightId`] indexes it.
    pub matrices: Vec<WeightRef>,
    /// Every vector; [`VecId`] indexes it.
    pub vectors: Vec<Vector>,
}

impl Tensors {
    /// Returns a matrix.
    pub fn matrix(&self, id: WeightId) -> &WeightRef {
        &self.matrices[id.0 as usize]
    }

    /// Returns a vector's values.
    pub fn vector(&self, id: VecId) -> &[f32] {
        &self.vectors[id.0 as usize].data
    }
}
