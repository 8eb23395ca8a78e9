//! Helpers shared by the kernel tests: seeded numbers, random weights of any type, one-operation
//! programs.

pub(crate) mod device;
pub(crate) use device as machine;
pub(crate) mod e4m3;
pub(crate) mod layers;
pub(crate) mod recurrent;
pub(crate) mod standin;

use std::sync::Arc;

use octavo_kernels::{
    Executor, Instruction, Isa, KvShape, KvStore, KvType, Matrix, Op, Pairing, Phase, Pool,
    Program, PromptBits, Rope, RowSet, RowTable, Step, StepSequence, ValueShape,
};
use octavo_quant::TensorType;

/// Lists every type that weights can have.
pub(crate) fn weight_types() -> impl Iterator<Item = TensorType> {
    TensorType::all()
        .chain(TensorType::AWQ)
        .filter(|ty| octavo_quant::can_dequantize(*ty))
}

/// Whether the CPU is emulated (`tools/aarch64.sh`), about fifty times slower: tests then run a
/// part of the cases, which run in full on real CPUs.
fn is_emulated() -> bool {
    std::env::var_os("OCTAVO_EMULATED").is_some_and(|value| value == "1")
}

/// Returns all of some equivalent cases, or only the first on an emulated CPU.
pub(crate) fn all_or_one<T>(cases: &[T]) -> &[T] {
    all_or_turn(cases, 0)
}

/// Returns all of some equivalent cases, or on an emulated CPU one of them, another in each turn.
pub(crate) fn all_or_turn<T>(cases: &[T], turn: usize) -> &[T] {
    if is_emulated() {
        std::slice::from_ref(&cases[turn % cases.len()])
    } else {
        cases
    }
}

/// Whether to run the case at this index: always, or one in eleven on an emulated CPU, which has
/// no factor in common with the numbers of types and sizes, so that every one of them is taken
/// somewhere.
pub(crate) fn is_taken(place: usize) -> bool {
    !is_emulated() || place.is_multiple_of(11)
}

/// A small seeded generator (SplitMix64).
pub(crate) struct Rng(pub(crate) u64);

impl Rng {
    pub(crate) fn bits(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a value in [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Fills blocks with random bits, until their values are finite and of ordinary size.
pub(crate) fn random_blocks(rng: &mut Rng, ty: TensorType, n: usize) -> Vec<u8> {
    let (len, bytes) = (ty.block_len(), ty.block_bytes());
    let mut all = Vec::with_capacity(n / len * bytes + 8);
    while all.len() < n / len * bytes {
        all.extend(rng.bits().to_le_bytes());
    }
    all.truncate(n / len * bytes);
    let mut values = vec![0.0; n];
    octavo_quant::dequantize(ty, &all, &mut values).expect("whole blocks");
    for (block, values) in all
        .chunks_exact_mut(bytes)
        .zip(values.chunks_exact_mut(len))
    {
        while !values.iter().all(|v| v.is_finite() && v.abs() < 1e3) {
            block.fill_with(|| rng.bits() as u8);
            octavo_quant::dequantize(ty, block, values).expect("one block");
        }
    }
    all
}

/// Computes one row times one token: exact value and error bound of a correct kernel.
///
/// Every path dequantizes a weight in at most eight roundings and adds `k` products in f32; the
/// roundings of a sum of `k` terms grow like a random walk, to `sqrt(k)` of them, doubled as a
/// margin for the longest walk: `(2 sqrt(k) + 8) eps sum|w x|`. Formats with a minimum subtract it
/// separately from `scale * code`, and both parts exceed their difference: given the range of a
/// group's codes, by at most four times the largest weight of the group. Integer kernels also round
/// activations to 1/32639, to 1/4095, or in bytes to 1/127, of the largest that share a scale: half
/// a step each. In bf16, weights and activations are both rounded to 8 bits, at most half of the
/// last one, and factors and products below the smallest normal number are zero. In halves they are
/// rounded to 11 bits, or to multiples of 2^-24 where they are small: weights unscaled, activations
/// scaled so that the largest of the row is at least 2^13.
pub(crate) fn exact(w: &[f32], x: &[f32], has_minimum: bool, form: Form) -> (f64, f64) {
    let eps = f64::from(f32::EPSILON);
    let narrow = match form {
        Form::Bf16 => 2.0 * 2f64.powi(-9) + 2f64.powi(-18),
        Form::Halves => 2.0 * 2f64.powi(-11) + 2f64.powi(-22),
        _ => 0.0,
    };
    let shared = match form {
        Form::Integers(n) => n,
        Form::Int13 => 256,
        _ => 32,
    };
    let half_a_step = match form {
        Form::Integers(_) => 0.5 / 32639.0 + 2.0 * eps,
        Form::Int13 => 0.5 / 4095.0 + 2.0 * eps,
        Form::Int8 => 0.5 / 127.0 + 2.0 * eps,
        _ => 0.0,
    };
    let scale = |at: usize| {
        x[at / shared * shared..]
            .iter()
            .take(shared)
            .fold(0.0f64, |a, b| a.max(f64::from(b.abs())))
    };
    let largest = |v: &[f32]| v.iter().fold(0.0f64, |a, b| a.max(f64::from(b.abs())));
    let most = largest(x);
    let value = w
        .iter()
        .zip(x)
        .map(|(w, x)| f64::from(*w) * f64::from(*x))
        .sum();
    let roundings = 2.0 * (w.len() as f64).sqrt() + 8.0;
    let mut bound = 0.0;
    for (g, (w, x)) in w.chunks(32).zip(x.chunks(32)).enumerate() {
        let apart = if has_minimum { 4.0 * largest(w) } else { 0.0 };
        let step = scale(32 * g) * half_a_step;
        for (w, x) in w.iter().zip(x) {
            let (w, x) = (f64::from(w.abs()), f64::from(x.abs()));
            bound += (w + apart) * x * eps * roundings + w * step + w * x * narrow;
            if form == Form::Bf16 {
                bound += (w + x + 1.0) * f64::from(f32::MIN_POSITIVE);
            }
            if form == Form::Halves {
                bound += x * 2f64.powi(-25) + w * most * 2f64.powi(-38);
            }
        }
    }
    (value, bound + f64::from(f32::MIN_POSITIVE))
}

/// Rounding of activations.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Form {
    Floats,
    /// Integers, with one scale per this many.
    Integers(usize),
    /// Integers of 13 bits, with one scale per 256.
    Int13,
    /// Bytes, with one scale per 32.
    Int8,
    Bf16,
    /// Halves, in prefill on the GPU.
    Halves,
}

impl Form {
    /// Determines the form from the name of the kernel that ran.
    pub(crate) fn of(kernel: &str, phase: Phase) -> Form {
        match phase {
            Phase::Decode if kernel.contains("x int16 strips") => Form::Integers(32),
            Phase::Prefill if kernel.contains("int16 panels") => Form::Integers(256),
            Phase::Prefill if kernel.contains("int13 panels") => Form::Int13,
            Phase::Prefill if kernel.contains("int8 panels") => Form::Int8,
            Phase::Prefill if kernel.contains("bf16 tiles") => Form::Bf16,
            _ => Form::Floats,
        }
    }
}

pub(crate) fn f32_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Embeds row `token` of a table of f32 rows.
pub(crate) fn embed(rows: usize, cols: usize, values: &[f32], out: usize) -> Instruction {
    let source = Arc::new(f32_bytes(values));
    Op::Embed {
        table: RowTable {
            ty: TensorType::F32,
            rows,
            cols,
            source,
        },
        placeholder: None,
    }
    .to(out)
}

pub(crate) fn no_rope() -> Rope {
    Rope {
        frequencies: Vec::new(),
        magnitude: 1.0,
        pairing: Pairing::Norm,
        axes: Vec::new(),
    }
}

pub(crate) const KV: KvShape = KvShape {
    n_layer: 1,
    n_head_kv: 1,
    head_dim: 2,
    types: KvType::F32.both(),
};

/// Creates a program over slots of these widths, the last one being the output.
pub(crate) fn program(ops: Vec<Instruction>, widths: &[usize], kv: KvShape) -> Program {
    let slots = widths
        .iter()
        .map(|width| ValueShape {
            width: *width,
            rows: RowSet::All,
        })
        .collect();
    Program {
        ops,
        slots,
        ropes: vec![no_rope()],
        caches: vec![kv],
        states: vec![],
        output: widths.len() - 1,
        kept: None,
        embedding_input_width: 0,
        on_host: vec![],
    }
}

/// Runs `m` tokens 0, 1, … of one sequence and returns the outputs of all.
pub(crate) fn run(executor: &mut Executor, kv: KvShape, phase: Phase, m: usize) -> Vec<f32> {
    let pages = m.div_ceil(16);
    let table: Vec<u32> = (0..pages as u32).collect();
    let tokens: Vec<u32> = (0..m as u32).collect();
    let seqs = [StepSequence {
        tokens: &tokens,
        start: 0,
        tables: &[&table],
        outputs: 0..m,
        ..StepSequence::default()
    }];
    executor
        .step(
            &Step {
                phase,
                seqs: &seqs,
                input: &[],
            },
            &mut KvStore::new(&[kv], pages).expect("memory"),
            None,
        )
        .to_vec()
}

/// Calls [`product_in`] with the default bits of prefill.
#[allow(clippy::too_many_arguments)] // a test's cell is exactly these
pub(crate) fn product(
    isa: Isa,
    shape: (TensorType, usize, usize),
    raw: &[u8],
    x: &[f32],
    phase: Phase,
    repack: bool,
    threads: usize,
) -> (Vec<f32>, String) {
    let bits = PromptBits::default();
    product_in(bits, isa, shape, raw, x, phase, repack, threads)
}

/// Computes `y = W x` for rows 0..m of `x`, by the kernels of `isa`.
#[allow(clippy::too_many_arguments)] // a test's cell is exactly these
pub(crate) fn product_in(
    bits: PromptBits,
    isa: Isa,
    (ty, rows, cols): (TensorType, usize, usize),
    raw: &[u8],
    x: &[f32],
    phase: Phase,
    repack: bool,
    threads: usize,
) -> (Vec<f32>, String) {
    let mut pool = Pool::new(threads).expect("threads");
    let matrix = Matrix::new(
        isa,
        (ty, rows, cols),
        Arc::new(raw.to_vec()),
        repack,
        &mut pool,
    )
    .expect("matrix")
    .with_prompt_bits(bits);
    let kernel = matrix.kernel();
    let m = x.len() / cols;
    let ops = vec![embed(m, cols, x, 0), Op::MatMul { x: 0, w: 0 }.to(1)];
    let mut executor = Executor::new(isa, program(ops, &[cols, rows], KV), vec![matrix], pool);
    (run(&mut executor, KV, phase, m), kernel)
}
