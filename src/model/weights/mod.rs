//! Weights bound once to typed fields: names, shapes and element types are checked here and never
//! looked up again.
//!
//! Matrices stay in the file (a [`WeightRef`] says where); norms, biases and `rope_freqs` are small
//! and are read.

mod bind;

use std::ops::Range;

pub(crate) use bind::{Binder, Ends, bind, blk};
use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

/// A matrix of the model, by its place in [`Weights::matrices`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct WeightId(pub u32);

/// A vector of the model, by its place in [`Weights::vectors`].
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

    /// The rows' bytes, all [`WeightRef::n_bytes`].
    ///
    /// # Panics
    /// If `gguf` is not the file the weight was bound from.
    pub fn bytes<'a>(&self, gguf: &'a Gguf) -> &'a [u8] {
        let start = self.row_start as usize * self.row_bytes();
        &gguf.data(self.info(gguf))[start..start + self.n_bytes()]
    }

    /// A range of the bytes, which is whole rows; in `room`, if the file does not have them as they
    /// are.
    ///
    /// # Panics
    /// As [`WeightRef::bytes`].
    pub fn read<'a>(&self, gguf: &'a Gguf, range: Range<usize>, room: &'a mut Vec<u8>) -> &'a [u8] {
        let info = self.info(gguf);
        if !gguf.is_made(info) {
            return &self.bytes(gguf)[range];
        }
        room.resize(range.len(), 0);
        gguf.read(
            info,
            self.row_start as usize * self.row_bytes() + range.start,
            room,
        );
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
}

/// One layer's weights; what an architecture does not have is `None`.
#[derive(Clone, Debug, PartialEq)]
pub struct Layer {
    /// (n_embd)
    pub attn_norm: VecId,
    /// (n_head * head_dim, n_embd)
    pub wq: WeightId,
    /// (n_head_kv * head_dim, n_embd)
    pub wk: WeightId,
    /// (n_head_kv * head_dim, n_embd)
    pub wv: WeightId,
    /// (n_head * head_dim)
    pub bq: Option<VecId>,
    /// (n_head_kv * head_dim)
    pub bk: Option<VecId>,
    /// (n_head_kv * head_dim)
    pub bv: Option<VecId>,
    /// (head_dim), applied to each query head before the rotary embedding
    pub q_norm: Option<VecId>,
    /// (head_dim), applied to each key head before the rotary embedding
    pub k_norm: Option<VecId>,
    /// (n_embd, n_head * head_dim)
    pub wo: WeightId,
    /// (n_embd)
    pub bo: Option<VecId>,
    /// (n_embd)
    pub ffn_norm: VecId,
    /// (n_ff, n_embd)
    pub gate: WeightId,
    /// (n_ff)
    pub gate_bias: Option<VecId>,
    /// (n_ff, n_embd)
    pub up: WeightId,
    /// (n_ff)
    pub up_bias: Option<VecId>,
    /// (n_embd, n_ff)
    pub down: WeightId,
    /// (n_embd)
    pub down_bias: Option<VecId>,
}

/// All weights of a model.
#[derive(Clone, Debug, PartialEq)]
pub struct Weights {
    /// Every matrix; [`WeightId`] indexes it.
    pub matrices: Vec<WeightRef>,
    /// Every vector; [`VecId`] indexes it.
    pub vectors: Vec<Vector>,
    /// (n_vocab, n_embd)
    pub token_embd: WeightId,
    /// (n_embd)
    pub output_norm: VecId,
    /// (n_vocab, n_embd); `token_embd` itself when tied
    pub output: WeightId,
    /// (n_vocab)
    pub output_bias: Option<VecId>,
    /// (n_rot / 2): divisors of the rotary angles
    pub rope_freqs: Option<VecId>,
    /// The layers in order.
    pub layers: Vec<Layer>,
}

impl Weights {
    /// A matrix.
    pub fn matrix(&self, id: WeightId) -> &WeightRef {
        &self.matrices[id.0 as usize]
    }

    /// A vector's values.
    pub fn vector(&self, id: VecId) -> &[f32] {
        &self.vectors[id.0 as usize].data
    }

    /// Whether the output matrix is the token embedding.
    pub fn is_tied(&self) -> bool {
        self.output == self.token_embd
    }
}
