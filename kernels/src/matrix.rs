//! A weight matrix in its kernel's layout.

use crate::memory::{Memory, Size};
use crate::pool::Pool;
use crate::program::Phase;
use crate::weight_bytes::WeightBytes;
use octavo_isa::{Isa, PromptBits};
use octavo_quant::TensorType;
use octavo_simd::act::Form;
use octavo_simd::generic::gemm::{KC, Tiles};
use octavo_simd::table::{
    ActivationForm, Gemv, MAX_R, Packed, Table, TiledKernels, UnpackedKernels,
};
use std::sync::{Arc, Mutex};

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

enum Data {
    /// Strips, one after the other.
    Packed(Memory),
    /// Rows as in the file.
    Rows(Arc<dyn WeightBytes>),
}

/// `y = W x` with W of `rows` x `cols`, in one of ggml's types; or several such matrices, the
/// experts, one below the other.
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
    kernels: Option<Packed>,
    prompt_bits: PromptBits,
    strip_bytes: usize,
}

/// The packed strips of a matrix, and the kernels that multiply generated tokens by them. To be
/// looked up once per product and not per strip: a strip of a small matrix takes no longer than the
/// lookup.
#[derive(Clone, Copy)]
pub(crate) struct Strips<'a> {
    pub(crate) gemv: &'a Gemv,
    first: *const u8,
    /// Bytes of a strip.
    pub(crate) bytes: usize,
    count: usize,
}

impl Strips<'_> {
    /// Start of strip `s`.
    pub(crate) fn at(&self, s: usize) -> *const u8 {
        assert!(s < self.count);
        self.first.wrapping_add(s * self.bytes)
    }
}

impl Matrix {
    /// Takes a matrix of `rows` x `cols` in type `ty` from `source`. With `repack`, types that have
    /// kernels of their own are copied into strips, by all threads of `pool`; the source's bytes
    /// are not needed after that.
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
        let kernels = (table.packed)(ty).filter(|_| repack);
        let strip_bytes = row_bytes * table.strip;
        let data = match kernels {
            Some(kernels) => {
                let bytes = (rows / experts).div_ceil(table.strip) * experts * strip_bytes;
                let memory = Memory::in_shared_mapping(bytes).ok_or(MatrixError::NoMemory {
                    ty,
                    rows,
                    cols,
                    bytes,
                })?;
                Data::Packed(pack_strips(
                    &kernels,
                    (row_bytes, rows / experts),
                    &*source,
                    table.strip,
                    memory,
                    pool,
                ))
            }
            None => Data::Rows(source),
        };
        Ok(Matrix {
            ty,
            rows,
            cols,
            experts,
            isa,
            table,
            data,
            kernels,
            prompt_bits: PromptBits::default(),
            strip_bytes,
        })
    }

    /// The same matrix with kernels that round prompts to `bits`, where there are any.
    #[must_use]
    pub fn with_prompt_bits(mut self, bits: PromptBits) -> Matrix {
        let packed = self.kernels.and_then(|_| (self.table.packed)(self.ty));
        self.kernels = packed.map(|kernels| of_bits(kernels, bits));
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
            _ => self.prompt(phase).0.form,
        }
    }

    /// The form of a prompt's tokens and the kernels for one and two strips. Generated tokens come
    /// here where there is no packed form, and keep to f32.
    pub(crate) fn prompt(
        &self,
        phase: Phase,
    ) -> (&'static ActivationForm, [unsafe fn(&Tiles<'_>); 2]) {
        match &self.kernels {
            Some(kernels) => (kernels.prompt.activations, kernels.prompt.tiles),
            None => {
                let rows = self.rows_kernels(phase);
                (rows.activations, rows.tiles)
            }
        }
    }

    /// Zero point that the prompt kernels subtract from every code of a panel.
    pub(crate) fn panel_offset(&self) -> i32 {
        self.kernels.map_or(0, |kernels| kernels.prompt.offset)
    }

    fn rows_kernels(&self, phase: Phase) -> &'static UnpackedKernels {
        let table = self.table;
        // rows of floats keep their precision
        let quantized = self.ty.block_len() >= 32 && self.cols.is_multiple_of(32);
        if quantized && phase == Phase::Prefill {
            &table.quantized_rows
        } else {
            &table.float_rows
        }
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
        self.expert_rows().div_ceil(self.table.strip)
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

    /// The packed strips; `None` if the rows are as in the file.
    pub(crate) fn packed_strips(&self) -> Option<Strips<'_>> {
        let Data::Packed(memory) = &self.data else {
            return None;
        };
        Some(Strips {
            gemv: &self.kernels.as_ref()?.gemv,
            first: memory.as_ptr(),
            bytes: self.strip_bytes,
            count: self.strips(),
        })
    }

    /// Start of strip `s`.
    fn strip(&self, s: usize) -> *const u8 {
        self.packed_strips()
            .expect("strips are asked for of packed matrices only")
            .at(s)
    }

    /// The packed weights k in `k0..k1` of strip `s`, of whole blocks: none if they are not packed.
    pub(crate) fn packed(&self, s: usize, k0: usize, k1: usize) -> &[u8] {
        let Data::Packed(memory) = &self.data else {
            return &[];
        };
        // called for every panel of a prompt: a lookup in the table of types would take longer
        let at = |k: usize| k * self.strip_bytes / self.cols;
        &memory.bytes()[s * self.strip_bytes..][at(k0)..at(k1.max(k0))]
    }

    /// Writes k in `k0..k1` of strip `s` as a panel of the form `prompt` says; rows beyond the last
    /// are zero.
    pub(crate) fn panel(&self, phase: Phase, s: usize, k0: usize, k1: usize, out: &mut [f32]) {
        let r = self.table.strip;
        let tokens = self.prompt(phase).0;
        assert!(
            k0 <= k1
                && k1 <= self.cols
                && k0.is_multiple_of(tokens.slice)
                && k1 - k0 <= tokens.slice
        );
        assert!(out.len() * 4 >= (k1 - k0) * r * tokens.bytes);
        if let Some(kernels) = &self.kernels {
            // SAFETY: strip `s` is whole (checked by `strip`), k1 <= cols, slices of k start at
            // multiples of the slice and so of every block, and `out` was checked.
            return unsafe { (kernels.prompt.panel)(self.strip(s), k0, k1, out.as_mut_ptr()) };
        }
        let Some(convert) = self.rows_kernels(phase).convert else {
            return self.float_panel(s, k0, k1, out);
        };
        for k in (k0..k1).step_by(KC) {
            let end = k1.min(k + KC);
            let mut floats = [0f32; KC * MAX_R];
            self.float_panel(s, k, end, &mut floats);
            // SAFETY: a panel of floats goes to its place in `out`, which was checked; k is a
            // multiple of 32.
            unsafe {
                let at = out
                    .as_mut_ptr()
                    .cast::<u8>()
                    .add((k - k0) * r * tokens.bytes);
                convert(floats.as_ptr(), end - k, at.cast());
            }
        }
    }

    /// Rows as `[k1 - k0][R]` floats.
    fn float_panel(&self, s: usize, k0: usize, k1: usize, out: &mut [f32]) {
        let Data::Rows(source) = &self.data else {
            unreachable!("unpacked")
        };
        let r = self.table.strip;
        let row_bytes = self.strip_bytes / r;
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
        PromptBits::Sixteen => kernels.prompt,
    };
    Packed { prompt, ..kernels }
}

/// Name of the kernels that run for a tensor of type `ty` on `isa`, with prompts rounded to `bits`.
pub fn kernel_name(isa: Isa, ty: TensorType, packed: bool, bits: PromptBits) -> String {
    let table = isa.table();
    let form = |tokens: &ActivationForm| match tokens.form {
        Form::Int16 => "int16 panels",
        Form::Int8 => "int8 panels",
        Form::Bf16 => "bf16 tiles",
        _ => "f32 panels",
    };
    let kernels = (table.packed)(ty).filter(|_| packed);
    match kernels.map(|kernels| of_bits(kernels, bits)) {
        Some(Packed { gemv, prompt, .. }) => {
            let activations = if matches!(gemv, Gemv::Codes(_)) {
                "int16"
            } else {
                "f32"
            };
            let form = form(prompt.activations);
            format!(
                "{isa}: {ty} x {activations} strips of {}, {form} for prompts",
                table.strip
            )
        }
        None if ty.block_len() >= 32
            && form(table.quantized_rows.activations) != form(table.float_rows.activations) =>
        {
            let (one, other) = (
                form(table.float_rows.activations),
                form(table.quantized_rows.activations),
            );
            format!("{isa}: {one} from {ty} rows, {other} for prompts")
        }
        None => format!(
            "{isa}: {} from {ty} rows",
            form(table.float_rows.activations)
        ),
    }
}

/// Bytes of a source that a thread packs and then releases at a time: small enough that all threads
/// have work to the end, and large enough that releasing, which interrupts every other thread, is
/// rare.
const PIECE: std::ops::Range<usize> = 128 << 10..2 << 20;

/// Fills `memory`, which has room for all strips of `r` rows; every `expert_rows` rows begin with a
/// new one.
fn pack_strips(
    kernels: &Packed,
    (row_bytes, expert_rows): (usize, usize),
    source: &dyn WeightBytes,
    r: usize,
    mut memory: Memory,
    pool: &mut Pool,
) -> Memory {
    let n = source.n_bytes();
    let (strip_bytes, expert_bytes) = (row_bytes * r, row_bytes * expert_rows);
    if strip_bytes == 0 || expert_bytes == 0 {
        return memory;
    }
    let expert_strips = expert_rows.div_ceil(r);
    // first and last row of a strip
    let rows_of = |strip: usize| {
        let expert = strip / expert_strips * expert_bytes;
        let at = expert + strip % expert_strips * strip_bytes;
        at..(at + strip_bytes).min(expert + expert_bytes)
    };
    let piece = (n / 32).clamp(PIECE.start, PIECE.end).div_ceil(strip_bytes);
    let pieces = memory.bytes_mut().chunks_mut(piece * strip_bytes);
    let work = Mutex::new(pieces.enumerate());
    pool.run_long_tasks(&|_| {
        let mut room = Vec::new();
        loop {
            // a panic in `pack` is a broken invariant that the pool passes on; the lock is not held
            // at that time
            let Some((i, to)) = work.lock().expect("no panic under the lock").next() else {
                break;
            };
            let first = i * piece;
            let start = rows_of(first).start;
            source.ahead(start);
            let mut end = start;
            for (strip, to) in to.chunks_exact_mut(strip_bytes).enumerate() {
                let at = rows_of(first + strip);
                end = at.end;
                let from = source.rows(at, &mut room);
                let rows: Vec<&[u8]> = from.chunks_exact(row_bytes).collect();
                // SAFETY: the kernels are those of a CPU that has the instruction set: the matrix
                // was made with an `Isa`, which is one that was detected.
                unsafe { (kernels.pack)(&rows, to) };
            }
            source.passed(start..end);
        }
    });
    memory
}
