//! The matrices and vectors of a file that a graph computes with, by number.

use std::ops::Range;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

/// A matrix of the model, by its place in [`Tensors::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A vector of the model, by its place in [`Tensors::vectors`].
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
    /// Of which rows, unless they are neighbours.
    pub pieces: Option<Pieces>,
    /// Factor of every product with the matrix: what an NVFP4 file has beside it, otherwise 1.
    pub scale: f32,
}

/// Rows of a weight that are some of each of several matrices one below the other: the same part of
/// every expert.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Pieces {
    /// Rows of such a matrix in the tensor.
    pub each: u64,
    /// How many of them the weight has, neighbours.
    pub rows: u64,
}

impl WeightRef {
    /// Bytes of one row.
    pub fn row_bytes(&self) -> usize {
        // the reader refused rows that are not whole blocks or do not fit in memory
        self.ty.row_bytes(self.cols).map_or(0, |b| b as usize)
    }

    /// Bytes of all rows.
    pub fn n_bytes(&self) -> usize {
        self.rows as usize * self.row_bytes()
    }

    /// Where its rows begin in the tensor, in bytes.
    pub fn offset(&self) -> usize {
        self.row_start as usize * self.row_bytes()
    }

    /// Where a byte of the weight is in the tensor.
    pub fn place(&self, at: usize) -> usize {
        let Some(Pieces { each, rows }) = self.pieces else {
            return self.offset() + at;
        };
        let piece = (rows as usize * self.row_bytes()).max(1);
        self.offset() + at / piece * (each as usize * self.row_bytes()) + at % piece
    }

    /// The rows' bytes, all [`WeightRef::n_bytes`].
    ///
    /// # Panics
    /// If `gguf` is not the file the weight was bound from, or the rows are no neighbours.
    pub fn bytes<'a>(&self, gguf: &'a Gguf) -> &'a [u8] {
        assert!(self.pieces.is_none(), "{}: rows of pieces", self.name);
        let start = self.offset();
        &gguf.data(self.info(gguf))[start..start + self.n_bytes()]
    }

    /// A range of the bytes, which is whole rows, of one piece; in `room`, if the file does not
    /// have them as they are.
    ///
    /// # Panics
    /// If `gguf` is not the file the weight was bound from.
    pub fn read<'a>(&self, gguf: &'a Gguf, range: Range<usize>, room: &'a mut Vec<u8>) -> &'a [u8] {
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

    /// Whether the weight is the whole tensor, so that its pages may be released once it is packed.
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
    /// It follows from others, or from the architecture, and is not in the file.
    pub is_made: bool,
}

/// All that a graph computes with.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Tensors {
    /// Every matrix; [`WeightId`] indexes it.
    pub matrices: Vec<WeightRef>,
    /// Every vector; [`VecId`] indexes it.
    pub vectors: Vec<Vector>,
}

impl Tensors {
    /// A matrix.
    pub fn matrix(&self, id: WeightId) -> &WeightRef {
        &self.matrices[id.0 as usize]
    }

    /// A vector's values.
    pub fn vector(&self, id: VecId) -> &[f32] {
        &self.vectors[id.0 as usize].data
    }
}
