//! A weight matrix in its kernel's layout.

use crate::memory::{Memory, Size};
use crate::pool::Pool;
use crate::program::Phase;
use crate::strips::{StripRows, Strips, Weights};
use crate::weight_bytes::WeightBytes;
use octavo_isa::{Isa, PromptBits};
use octavo_quant::TensorType;
use octavo_simd::act::{Form, Tiled};
use octavo_simd::generic::gemm::{KC, Tiles};
use octavo_simd::table::{ActivationForm, Gemv, MAX_R, Packed, Table, TiledKernels};
use std::sync::Arc;

/// Error in making a matrix.
#[derive(Debug, thiserror::Error)]
pub enum MatrixError {
    /// The bytes are not a matrix of this shape.
    #[error("{rows} x {cols} {ty}: expected {expected} bytes, got {got}")]
    Size {
        /// Element type.
        ty: TensorType,
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// Bytes of such a matrix.
        expected: String,
        /// Bytes given.
        got: usize,
    },
    /// A type that holds no weights.
    #[error("{0}: no kernel multiplies this type")]
    Type(TensorType),
    /// The system has no room for a copy in the kernels' layout.
    #[error("{rows} x {cols} {ty}: no memory for {} of packed weights", Size(Some(*bytes)))]
    NoMemory {
        /// Element type.
        ty: TensorType,
        /// Outputs.
        rows: usize,
        /// Inputs.
        cols: usize,
        /// Bytes of the copy.
        bytes: usize,
    },
}

#[derive(Clone)]
enum Data {
    /// Strips, one after the other.
    Packed(Arc<Memory>),
    /// Rows as in the file.
    Rows(Arc<dyn WeightBytes>),
}

/// `y = W x` with W of `rows` x `cols`, in one of ggml's types; or several such matrices, the
/// experts, one below the other. Clones share the weights.
#[derive(Clone)]
pub struct Matrix {
    /// Element type in the file.
    pub ty: TensorType,
    /// Outputs, of all experts.
    pub rows: usize,
    /// Inputs.
    pub cols: usize,
    /// Number of experts; 1 for an ordinary matrix.
    experts: usize,
    isa: Isa,
    table: &'static Table,
    data: Data,
    /// `None`: a type that has no packed form.
    kernels: Option<Packed>,
    prompt_bits: PromptBits,
    strip_rows: StripRows,
}

impl Matrix {
    /// Takes a matrix of `rows` x `cols` in type `ty` from `source`. With `repack`, types that have
    /// kernels of their own are copied into strips, by all threads of `pool`; the source's bytes
    /// are not needed after that. Without it, strips are packed each time that they are read, with
    /// the same results.
    ///
    /// # Errors
    /// [`MatrixError`] if the bytes do not have the shape, the type cannot be multiplied, or there
    /// is no memory for a copy.
    pub fn new(
        isa: Isa,
        shape: (TensorType, usize, usize),
        source: Arc<dyn WeightBytes>,
        repack: bool,
        pool: &mut Pool,
    ) -> Result<Matrix, MatrixError> {
        Matrix::of_experts(isa, shape, 1, source, repack, pool)
    }

    /// As [`Matrix::new`], of `experts` matrices one below the other, `rows` in all, for
    /// [`Op::ExpertMatMul`](crate::Op::ExpertMatMul). Each begins with a strip of its own.
    ///
    /// # Errors
    /// As [`Matrix::new`].
    ///
    /// # Panics
    /// If the rows do not divide evenly among `experts` experts: a bug in the caller.
    pub fn of_experts(
        isa: Isa,
        (ty, rows, cols): (TensorType, usize, usize),
        experts: usize,
        source: Arc<dyn WeightBytes>,
        repack: bool,
        pool: &mut Pool,
    ) -> Result<Matrix, MatrixError> {
        assert!(
            experts > 0 && rows.is_multiple_of(experts),
            "{rows} rows of {experts} experts"
        );
        if !octavo_quant::can_dequantize(ty) {
            return Err(MatrixError::Type(ty));
        }
        let row_bytes = ty
            .row_bytes(cols as u64)
            .and_then(|b| usize::try_from(b).ok());
        let expected = row_bytes.and_then(|b| b.checked_mul(rows));
        let got = source.n_bytes();
        let Some(row_bytes) = row_bytes.filter(|_| expected == Some(got)) else {
            let expected = expected.map_or("a whole number of blocks a row".to_owned(), |b| {
                b.to_string()
            });
            return Err(MatrixError::Size {
                ty,
                rows,
                cols,
                expected,
                got,
            });
        };
        let table = isa.table();
        let kernels = (table.packed)(ty);
        let strip_rows = StripRows {
            row_bytes,
            expert_rows: rows / experts,
            r: table.strip,
        };
        let data = match kernels {
            Some(kernels) if repack => {
                let bytes = strip_rows.expert_strips() * experts * strip_rows.bytes();
                let memory = Memory::in_shared_mapping(bytes).ok_or(MatrixError::NoMemory {
                    ty,
                    rows,
                    cols,
                    bytes,
                })?;
                Data::Packed(Arc::new(
                    strip_rows.pack_all(&kernels, &*source, memory, pool),
                ))
            }
            _ => Data::Rows(source),
        };
        let prompt_bits = PromptBits::default();
        Ok(Matrix {
            ty,
            rows,
            cols,
            experts,
            isa,
            table,
            data,
            kernels: kernels.map(|kernels| of_bits(kernels, prompt_bits)),
            prompt_bits,
            strip_rows,
        })
    }

    /// The same matrix with kernels that round prompts to `bits`, where there are any.
    #[must_use]
    pub fn with_prompt_bits(mut self, bits: PromptBits) -> Matrix {
        self.kernels = (self.table.packed)(self.ty).map(|kernels| of_bits(kernels, bits));
        self.prompt_bits = bits;
        self
    }

    /// Whether the weights were copied, so that the source's pages may be released.
    pub fn is_packed(&self) -> bool {
        matches!(self.data, Data::Packed(_))
    }

    /// Locks the packed weights in memory; rows in a file stay as they are.
    ///
    /// # Errors
    /// If the system refuses: more than it lets the process lock
    /// ([`lock_limit`](crate::lock_limit)), usually.
    pub fn lock(&self) -> std::io::Result<()> {
        match &self.data {
            Data::Packed(memory) => memory.lock(),
            Data::Rows(_) => Ok(()),
        }
    }

    /// Bytes of the copy of the weights.
    pub fn packed_bytes(&self) -> usize {
        match &self.data {
            Data::Packed(memory) => memory.len(),
            Data::Rows(_) => 0,
        }
    }

    /// The kernels that run for generated and for prompt tokens, for display and tests.
    pub fn kernel(&self) -> String {
        kernel_name(self.isa, self.ty, self.is_packed(), self.prompt_bits)
    }

    pub(crate) fn reads(&self, phase: Phase) -> Form {
        match self.kernels {
            Some(Packed {
                gemv: Gemv::Codes(_),
                ..
            }) if phase == Phase::Decode => Form::Codes,
            Some(Packed {
                gemv: Gemv::Float(_),
                ..
            }) if phase == Phase::Decode => Form::Floats,
            _ => self.prompt().0.form,
        }
    }

    /// The form of a prompt's tokens and the kernels for one and two strips. Generated tokens come
    /// here where there is no packed form.
    pub(crate) fn prompt(&self) -> (&'static ActivationForm, [unsafe fn(&Tiles<'_>); 2]) {
        match &self.kernels {
            Some(kernels) => (kernels.prompt.activations, kernels.prompt.tiles),
            None => (
                self.table.float_rows.activations,
                self.table.float_rows.tiles,
            ),
        }
    }

    /// Floats of one input in tiles.
    pub(crate) fn tile_floats(&self) -> usize {
        self.prompt().0.floats(1, self.cols)
    }

    /// Zero point that the prompt kernels subtract from every code of a panel.
    pub(crate) fn panel_offset(&self) -> i32 {
        self.kernels.map_or(0, |kernels| kernels.prompt.offset)
    }

    /// Rows of a strip.
    pub(crate) fn strip_rows(&self) -> usize {
        self.table.strip
    }

    /// How many experts; 1 for an ordinary matrix.
    pub(crate) fn experts(&self) -> usize {
        self.experts
    }

    /// Rows of an expert: all, in an ordinary matrix.
    pub(crate) fn expert_rows(&self) -> usize {
        self.rows / self.experts
    }

    /// Strips of an expert, the last one perhaps not full.
    pub(crate) fn expert_strips(&self) -> usize {
        self.strip_rows.expert_strips()
    }

    /// Strips, an expert's last one perhaps not full.
    pub(crate) fn strips(&self) -> usize {
        self.expert_strips() * self.experts
    }

    /// Matrix-unit kernels for generated tokens, if any.
    pub(crate) fn tiled(&self) -> Option<TiledKernels> {
        match self.kernels?.gemv {
            Gemv::Codes(kernels) => kernels.tiled,
            Gemv::Float(_) => None,
        }
    }

    /// The strips, packed or to be packed; `None` if the type has no packed form.
    pub(crate) fn packed_strips(&self) -> Option<Strips<'_>> {
        Some(Strips {
            kernels: self.kernels.as_ref()?,
            rows: self.strip_rows,
            weights: match &self.data {
                Data::Packed(memory) => Weights::Packed(memory.as_ptr()),
                Data::Rows(source) => Weights::Rows(source.bytes()),
            },
            count: self.strips(),
        })
    }

    /// Bytes of a pair of strips that are packed when they are read; 0 if they are packed already.
    pub(crate) fn pair_bytes(&self) -> usize {
        match &self.data {
            Data::Rows(_) if self.kernels.is_some() => 2 * self.strip_rows.bytes(),
            Data::Rows(_) | Data::Packed(_) => 0,
        }
    }

    /// The packed weights k in `k0..k1` of strip `s`, of whole blocks: none if they are not packed.
    pub(crate) fn packed(&self, s: usize, k0: usize, k1: usize) -> &[u8] {
        let Data::Packed(memory) = &self.data else {
            return &[];
        };
        // called for every panel of a prompt: a lookup in the table of types would take longer
        let bytes = self.strip_rows.bytes();
        let at = |k: usize| k * bytes / self.cols;
        &memory.bytes()[s * bytes..][at(k0)..at(k1.max(k0))]
    }

    /// Writes k in `k0..k1` of strip `s` as a panel of the form `prompt` says; rows beyond the last
    /// are zero.
    pub(crate) fn panel(&self, s: usize, k0: usize, k1: usize, out: &mut [f32]) {
        let r = self.table.strip;
        let tokens = self.prompt().0;
        assert!(s < self.strips());
        assert!(
            k0 <= k1
                && k1 <= self.cols
                && k0.is_multiple_of(tokens.slice)
                && k1 - k0 <= tokens.slice
        );
        assert!(out.len() >= tokens.floats(r, k1 - k0));
        let Some(kernels) = &self.kernels else {
            return self.float_panel(s, k0, k1, out);
        };
        match &self.data {
            Data::Packed(memory) => {
                let strip = &memory.bytes()[s * self.strip_rows.bytes()..];
                // SAFETY: the strip is whole, k1 <= cols, slices of k start at multiples of the
                // slice and so of every block, and `out` was checked.
                unsafe { (kernels.prompt.panel)(strip.as_ptr(), k0, k1, out.as_mut_ptr()) };
            }
            Data::Rows(source) => {
                let at = |k: usize| k / self.ty.block_len() * self.ty.block_bytes();
                let mut room = [0; KC * MAX_R * size_of::<f32>()];
                let strip = &mut room[..(at(k1) - at(k0)) * r];
                let rows = &source.bytes()[self.strip_rows.of(s)];
                self.strip_rows.pack(kernels, rows, at(k0)..at(k1), strip);
                // SAFETY: these blocks of the strip are k from 0 on; the rest as above.
                unsafe { (kernels.prompt.panel)(strip.as_ptr(), 0, k1 - k0, out.as_mut_ptr()) };
            }
        }
    }

    /// Rows as `[k1 - k0][R]` floats.
    fn float_panel(&self, s: usize, k0: usize, k1: usize, out: &mut [f32]) {
        let Data::Rows(source) = &self.data else {
            unreachable!("unpacked")
        };
        let r = self.table.strip;
        let row_bytes = self.strip_rows.row_bytes;
        let (len, bytes) = (self.ty.block_len(), self.ty.block_bytes());
        let mut row = [0f32; KC];
        out[..(k1 - k0) * r].fill(0.0);
        let (expert, first) = (s / self.expert_strips(), s % self.expert_strips() * r);
        for i in 0..r.min(self.expert_rows() - first) {
            let at = (expert * self.expert_rows() + first + i) * row_bytes;
            let raw = &source.bytes()[at + k0 / len * bytes..at + k1 / len * bytes];
            octavo_quant::dequantize(self.ty, raw, &mut row[..k1 - k0])
                .expect("lengths were checked in `new`");
            for (to, w) in out.chunks_exact_mut(r).zip(&row[..k1 - k0]) {
                to[i] = *w;
            }
        }
    }
}

/// Replaces the prompt kernels by those that round to `bits`, where there are any.
fn of_bits(kernels: Packed, bits: PromptBits) -> Packed {
    let prompt = match bits {
        PromptBits::Eight => kernels.prompt_int8.unwrap_or(kernels.prompt),
        PromptBits::Thirteen => kernels.prompt_int13.unwrap_or(kernels.prompt),
        PromptBits::Sixteen => kernels.prompt,
    };
    Packed { prompt, ..kernels }
}

/// Name of the kernels that run for a tensor of type `ty` on `isa`, with prompts rounded to `bits`.
pub fn kernel_name(isa: Isa, ty: TensorType, packed: bool, bits: PromptBits) -> String {
    let table = isa.table();
    let form = |tokens: &ActivationForm| match tokens.form {
        Form::Tiles(Tiled::Int16) => "int16 panels",
        Form::Tiles(Tiled::Int13) => "int13 panels",
        Form::Tiles(Tiled::Int8) => "int8 panels",
        Form::Tiles(Tiled::Bf16) => "bf16 tiles",
        Form::Tiles(Tiled::Bf16x3) => "bf16x3 tiles",
        Form::Tiles(Tiled::F32) | Form::Codes | Form::Floats => "f32 panels",
    };
    let Some(kernels) = (table.packed)(ty) else {
        return format!(
            "{isa}: {} from {ty} rows",
            form(table.float_rows.activations)
        );
    };
    let Packed { gemv, prompt, .. } = of_bits(kernels, bits);
    let activations = match gemv {
        Gemv::Codes(_) => "int16",
        Gemv::Float(_) => "f32",
    };
    let when = if packed { "" } else { " packed when read" };
    let (r, form) = (table.strip, form(prompt.activations));
    format!("{isa}: {ty} x {activations} strips of {r}{when}, {form} for prompts")
}
