//! Every (format, instruction set, phase) against f64 products of the oracle's dequantized weights,
//! at the edges of every block, strip and tile, within derived error bounds.

mod floats;
mod folded;

use crate::common::{
    Form, KV, Rng, all_or_one, embed, exact, f32_bytes, is_taken, product, product_in, program,
    random_blocks, run, weight_types,
};
use octavo_fixtures::{Lacks, skip};
use octavo_kernels::{
    Executor, Isa, KvStore, Matrix, Op, Phase, Pool, PromptBits, Step, StepSequence, has_minimum,
    packed_types,
};
use octavo_quant::TensorType as T;
use std::sync::Arc;

fn instruction_sets() -> Vec<Isa> {
    for isa in Isa::ALL {
        if !isa.is_available() {
            skip(Lacks::InstructionSet, isa);
        }
    }
    Isa::available()
}

/// Every detected instruction set runs and reports its kernel. On known machines,
/// `OCTAVO_EXPECT_ISA` lists the sets that must run, because undetected sets are not tested.
#[test]
fn the_expected_instruction_sets_run() {
    let mut ran = Vec::new();
    for isa in instruction_sets() {
        let (y, kernel) = product(
            isa,
            (T::Q8_0, 9, 32),
            &[0; 9 * 34],
            &[1.0; 32],
            Phase::Decode,
            true,
            1,
        );
        assert_eq!(y, [0.0; 9]);
        println!("ran {kernel}");
        assert!(kernel.starts_with(&format!("{isa}: ")), "{kernel}");
        ran.push(isa.name());
    }
    assert!(ran.contains(&Isa::Scalar.name()), "{ran:?}");
    if let Ok(expected) = std::env::var("OCTAVO_EXPECT_ISA") {
        assert_eq!(
            ran.join(","),
            expected,
            "instruction sets that ran, and those of OCTAVO_EXPECT_ISA"
        );
    }
}

/// Exact products of all tokens and rows, with error bounds, cached by form: they take longer than
/// any kernel, and instruction sets share them.
struct Exact<'a> {
    w: Vec<f32>,
    x: &'a [f32],
    cols: usize,
    has_minimum: bool,
    forms: Vec<(Form, Vec<(f64, f64)>)>,
}

impl<'a> Exact<'a> {
    fn new(ty: T, cols: usize, raw: &[u8], x: &'a [f32]) -> Exact<'a> {
        let mut w = vec![0.0; raw.len() / ty.block_bytes() * ty.block_len()];
        octavo_quant::dequantize(ty, raw, &mut w).expect("whole rows");
        let has_minimum = has_minimum(ty);
        Exact {
            w,
            x,
            cols,
            has_minimum,
            forms: Vec::new(),
        }
    }

    /// Returns the products in a form, `[tokens][rows]`.
    fn of(&mut self, form: Form) -> &[(f64, f64)] {
        let at = self
            .forms
            .iter()
            .position(|f| f.0 == form)
            .unwrap_or_else(|| {
                let (rows, tokens) = (
                    self.w.chunks_exact(self.cols),
                    self.x.chunks_exact(self.cols),
                );
                let pairs = tokens.flat_map(|x| rows.clone().map(move |w| (w, x)));
                self.forms.push((
                    form,
                    pairs
                        .map(|(w, x)| exact(w, x, self.has_minimum, form))
                        .collect(),
                ));
                self.forms.len() - 1
            });
        &self.forms[at].1
    }
}

struct Cell {
    isa: Isa,
    ty: T,
    rows: usize,
    cols: usize,
    tokens: usize,
    phase: Phase,
    bits: PromptBits,
}

fn check(cell: &Cell, raw: &[u8], exact: &mut Exact<'_>) -> String {
    let &Cell {
        isa,
        ty,
        rows,
        cols,
        tokens,
        phase,
        bits,
    } = cell;
    // two threads at every shape, but not for every number of tokens: waiting for each other is
    // slow
    let threads = if tokens == 3 { 2 } else { 1 };
    let shape = (ty, rows, cols);
    let (y, kernel) = product_in(bits, isa, shape, raw, exact.x, phase, true, threads);
    assert_eq!(y.len(), rows * tokens);
    let exact = exact.of(Form::of(&kernel, phase));
    let (mut outside, mut worst) = (0, (0.0, String::new()));
    for t in 0..tokens {
        for r in 0..rows {
            let (value, bound) = exact[t * rows + r];
            let got = f64::from(y[t * rows + r]);
            let ratio = (got - value).abs() / bound;
            if ratio.is_nan() || ratio > 1.0 {
                outside += 1;
            }
            if ratio.is_nan() || ratio > worst.0 {
                worst = (
                    ratio,
                    format!("row {r}, token {t}: expected {value}, got {got}, bound {bound:e}"),
                );
            }
        }
    }
    assert_eq!(
        outside, 0,
        "{kernel}: {rows} x {cols}, {tokens} tokens, {phase:?}: {} x bound: {}",
        worst.0, worst.1
    );
    kernel
}

/// Runs a type over edge shapes on every instruction set, and returns the kernels that ran.
fn edges(ty: T, bits: PromptBits) -> Vec<String> {
    let block = ty.block_len();
    let mut kernels = Vec::new();
    let isas = instruction_sets();
    let mut rng = Rng(ty.id().into());
    for (i, rows) in [1, 7, 8, 9, 16, 17, 33, 48].into_iter().enumerate() {
        let widths = [block.max(32), 3 * block.max(32), 256 + block.max(32), 1024];
        for (j, cols) in widths.into_iter().enumerate() {
            if !is_taken(i + j + ty.id() as usize) {
                continue;
            }
            let cols = cols.next_multiple_of(block);
            let raw = random_blocks(&mut rng, ty, rows * cols);
            for (phase, tokens) in [
                (Phase::Prefill, 1),
                (Phase::Prefill, 3),
                (Phase::Prefill, 14),
                (Phase::Prefill, 29),
                (Phase::Decode, 1),
                (Phase::Decode, 3),
            ] {
                let x = rng.floats(tokens * cols);
                let mut exact = Exact::new(ty, cols, &raw, &x);
                for &isa in &isas {
                    kernels.push(check(
                        &Cell {
                            isa,
                            ty,
                            rows,
                            cols,
                            tokens,
                            phase,
                            bits,
                        },
                        &raw,
                        &mut exact,
                    ));
                }
            }
        }
    }
    kernels.sort();
    kernels.dedup();
    kernels
}

#[test]
fn packed_formats_match_the_oracle() {
    for ty in packed_types() {
        let kernels = edges(ty, PromptBits::Sixteen);
        assert!(
            kernels.iter().all(|k| k.contains("strips")),
            "{ty}: {kernels:?}"
        );
    }
}

/// Formats of blocks of 256 have scales that can be folded.
#[test]
fn prompts_in_thirteen_bits_match_the_oracle() {
    for ty in packed_types() {
        let name = ty.to_string();
        let folds = name.ends_with("_K") || name.starts_with("TQ") || name.starts_with("IQ");
        let folds = folds && ty != T::IQ4_NL;
        for kernel in edges(ty, PromptBits::Thirteen) {
            let expected = folds && !kernel.starts_with("amx: ");
            assert_eq!(kernel.contains("int13 panels"), expected, "{kernel}");
        }
    }
}

/// Formats with 8-bit prefill kernels are determined by their largest code: without VNNI, 8-bit
/// codes do not fit. Those whose codes are decoded to panels first have none.
#[test]
fn prompts_in_eight_bits_match_the_oracle() {
    let wide = |kernel: &str| ["Q8_0", "IQ4"].iter().any(|ty| kernel.contains(ty));
    let decoded = ["IQ1", "IQ2", "IQ3", "TQ", "Q1_0", "Q2_0"];
    for ty in packed_types() {
        let name = ty.to_string();
        if decoded.iter().any(|prefix| name.starts_with(prefix)) {
            continue;
        }
        let quantized = ty.block_len() > 1;
        for kernel in edges(ty, PromptBits::Eight) {
            let narrow = ["avx2: ", "amx: ", "neon: ", "dotprod: ", "i8mm: "];
            let lacks = narrow.iter().any(|isa| kernel.starts_with(isa))
                && (!kernel.starts_with("avx2: ") || wide(&kernel));
            let expected = quantized && !lacks;
            assert_eq!(kernel.contains("int8 panels"), expected, "{kernel}");
        }
    }
}

#[test]
fn other_formats_match_the_oracle_through_panels() {
    for ty in weight_types().filter(|ty| packed_types().all(|packed| packed != *ty)) {
        let kernels = edges(ty, PromptBits::Sixteen);
        assert!(
            kernels.iter().all(|k| k.contains("panels from")),
            "{ty}: {kernels:?}"
        );
    }
}

/// Strips packed when they are read are those packed before, which the oracle has checked.
#[test]
fn without_repacking_every_type_gives_the_same_bits() {
    let mut rng = Rng(23);
    for ty in packed_types() {
        let (rows, cols) = (35, ty.block_len().max(32) + 256);
        let cols = cols.next_multiple_of(ty.block_len());
        let raw = random_blocks(&mut rng, ty, rows * cols);
        for (phase, tokens) in [(Phase::Prefill, 14), (Phase::Decode, 1), (Phase::Decode, 5)] {
            let x = rng.floats(tokens * cols);
            for isa in instruction_sets() {
                for bits in PromptBits::ALL {
                    let read = |repack| {
                        let shape = (ty, rows, cols);
                        product_in(bits, isa, shape, &raw, &x, phase, repack, 1)
                    };
                    let ((packed, _), (y, kernel)) = (read(true), read(false));
                    assert!(kernel.contains("packed when read"), "{kernel}");
                    assert!(packed == y, "{kernel}: {phase:?}, {tokens} tokens");
                }
            }
        }
    }
}

#[test]
fn results_do_not_depend_on_threads_batch_or_repacking() {
    for (phase, bits) in [
        (Phase::Prefill, PromptBits::Sixteen),
        (Phase::Prefill, PromptBits::Thirteen),
        (Phase::Prefill, PromptBits::Eight),
        (Phase::Decode, PromptBits::Sixteen),
    ] {
        for isa in instruction_sets() {
            let mut rng = Rng(9);
            for ty in [
                T::Q4_K,
                T::Q5_K,
                T::Q6_K,
                T::Q8_0,
                T::F16,
                T::Q2_K,
                T::IQ3_S,
                T::IQ1_M,
                T::TQ1_0,
            ] {
                let (rows, cols, tokens) = (70, 512, 29);
                let raw = random_blocks(&mut rng, ty, rows * cols);
                let x = rng.floats(tokens * cols);
                let read = |x: &[f32], threads, repack| {
                    let shape = (ty, rows, cols);
                    product_in(bits, isa, shape, &raw, x, phase, repack, threads).0
                };
                let of = |x: &[f32], threads| read(x, threads, true);
                let all = of(&x, 1);
                let what = format!("{isa} {ty} {phase:?} in {bits} bits");
                for threads in [2, 3] {
                    assert!(all == of(&x, threads), "{what}: {threads} threads");
                }
                assert!(all == read(&x, 2, false), "{what}: packed when read");
                for (t, x) in x.chunks_exact(cols).enumerate() {
                    let one = &all[t * rows..(t + 1) * rows];
                    assert!(of(x, 1) == one, "{what}: token {t} alone differs");
                }
            }
        }
    }
}

/// Int8 prefill is bit-identical across instruction sets if every float step is exact: scales are
/// powers of two, and the largest of each 32 activations is the largest integer, so that the others
/// are unchanged. Activations and codes all at the ends of their ranges test the limits of 16-bit
/// sums.
#[test]
fn bytes_of_prompts_are_multiplied_exactly_on_every_instruction_set() {
    let (rows, cols) = (33, 512);
    let mut rng = Rng(22);
    for ty in [T::Q4_0, T::Q5_0, T::Q8_0, T::IQ4_NL] {
        let mut raw = random_blocks(&mut rng, ty, rows * cols);
        for (b, block) in raw.chunks_exact_mut(ty.block_bytes()).enumerate() {
            block[..2].copy_from_slice(&half_one().to_le_bytes());
            // the first rows have only the largest and the smallest codes
            match b / (cols / 32) {
                0 => block[2..].fill(0xff),
                1 => block[2..].fill(0x00),
                2 => block[2..].fill(0x7f),
                3 => block[2..].fill(0x80),
                _ => {}
            }
        }
        let mut x = vec![127.0; cols];
        x.extend(vec![-127.0; cols]);
        x.extend((0..cols).map(|i| [127.0, (rng.bits() % 255) as f32 - 127.0][(i % 32).min(1)]));
        let mut w = vec![0.0; rows * cols];
        octavo_quant::dequantize(ty, &raw, &mut w).expect("whole rows");
        for isa in instruction_sets() {
            let (bits, shape) = (PromptBits::Eight, (ty, rows, cols));
            let (y, kernel) = product_in(bits, isa, shape, &raw, &x, Phase::Prefill, true, 1);
            if !kernel.contains("int8 panels") {
                continue;
            }
            let pairs = x
                .chunks_exact(cols)
                .flat_map(|x| w.chunks_exact(cols).map(move |w| (w, x)));
            for (i, (y, (w, x))) in y.iter().zip(pairs).enumerate() {
                let dot: f64 = w.iter().zip(x).map(|(w, x)| f64::from(*w * *x)).sum();
                assert_eq!(f64::from(*y), dot, "{kernel}: {i}");
            }
        }
    }
}

/// Tokens decoded together share unpacked weights; each is bit-identical to the token alone. The
/// counts cover every number of rows, partial strips and strips without a second, and partial
/// chunks of k.
#[test]
fn tokens_generated_together_get_the_bits_of_each_alone() {
    for ty in packed_types() {
        let mut rng = Rng(ty.id().into());
        let cols = 512 + ty.block_len().max(32);
        for &rows in all_or_one(&[83, 72, 64]) {
            let raw = random_blocks(&mut rng, ty, rows * cols);
            let mut x = rng.floats(67 * cols);
            // two tokens with the largest integers
            x[..cols].fill(1.0);
            x[cols..2 * cols].fill(-1.0);
            for isa in instruction_sets() {
                let of = |x: &[f32]| {
                    let shape = (ty, rows, cols);
                    product(isa, shape, &raw, x, Phase::Decode, true, 1).0
                };
                let alone: Vec<f32> = x[..17 * cols].chunks_exact(cols).flat_map(of).collect();
                for tokens in [2, 3, 4, 5, 6, 7, 8, 9, 11, 17, 67] {
                    let together = of(&x[..tokens * cols]);
                    let n = rows * tokens.min(17);
                    assert!(
                        bits(&together[..n]) == bits(&alone[..n]),
                        "{isa} {ty}: {rows} rows, {tokens} tokens differ from each alone"
                    );
                }
            }
        }
    }
}

/// Integer parts are bit-identical across instruction sets: with power-of-two scales and
/// activations every float step is exact, so whole results must be equal.
#[test]
fn integer_parts_are_equal_on_every_instruction_set() {
    let isas = instruction_sets();
    let (rows, cols) = (33, 512);
    let mut rng = Rng(21);
    for ty in [T::Q4_0, T::Q5_0, T::Q8_0] {
        let mut raw = random_blocks(&mut rng, ty, rows * cols);
        for block in raw.chunks_exact_mut(ty.block_bytes()) {
            block[..2].copy_from_slice(&half_one().to_le_bytes());
        }
        // the largest of each group of 32 is the largest integer, so every activation is an integer
        // of 15 bits
        let x: Vec<f32> = (0..cols)
            .map(|i| {
                if i % 32 == 7 {
                    32639.0
                } else {
                    (rng.bits() % 65279) as f32 - 32639.0
                }
            })
            .collect();
        let mut w = vec![0.0; rows * cols];
        octavo_quant::dequantize(ty, &raw, &mut w).expect("whole rows");
        for isa in &isas {
            let (y, _) = product(*isa, (ty, rows, cols), &raw, &x, Phase::Decode, true, 1);
            for (r, y) in y.iter().enumerate() {
                // integer sums of a group are exact; groups are added in f32 in order
                let groups = w[r * cols..(r + 1) * cols].chunks(32).zip(x.chunks(32));
                let expected = groups.fold(0.0f32, |sum, (w, x)| {
                    let dot: i64 = w.iter().zip(x).map(|(w, x)| *w as i64 * *x as i64).sum();
                    sum + dot as f32
                });
                assert_eq!(*y, expected, "{isa} {ty} row {r}");
            }
        }
    }
}

/// Rows computed by several threads equal those computed by one.
#[test]
fn rows_of_outputs_are_divided_among_threads() {
    let (rows, cols) = (24, 64);
    for tokens in [1, 2, 9, 40] {
        let x = Rng(3).floats(tokens * cols);
        let raw = Arc::new(f32_bytes(&Rng(4).floats(rows * cols)));
        let mut pool = Pool::new(3).expect("threads");
        let shape = (T::F32, rows, cols);
        let matrix = Matrix::new(Isa::Scalar, shape, raw, true, &mut pool).expect("a matrix");
        let ops = vec![embed(tokens, cols, &x, 0), Op::MatMul { x: 0, w: 0 }.to(1)];
        let program = program(ops, &[cols, rows], KV);
        let mut executor = Executor::new(Isa::Scalar, program, vec![matrix], pool);
        let whole = run(&mut executor, KV, Phase::Decode, tokens);
        let ids: Vec<u32> = (0..tokens as u32).collect();
        let table: Vec<u32> = (0..tokens.div_ceil(16) as u32).collect();
        let seqs = [StepSequence {
            tokens: &ids,
            start: 0,
            tables: &[&table],
            outputs: 0..tokens,
            ..StepSequence::default()
        }];
        let step = Step {
            phase: Phase::Decode,
            seqs: &seqs,
            input: &[],
        };
        let mut store = KvStore::new(&[KV], table.len()).expect("memory");
        let by_rows = executor.step_by_rows(&step, &mut store, &<[f32]>::to_vec);
        let expected: Vec<Vec<f32>> = whole.chunks_exact(rows).map(<[f32]>::to_vec).collect();
        assert!(by_rows == expected, "{tokens} tokens");
    }
}

fn bits(y: &[f32]) -> Vec<u32> {
    y.iter().map(|y| y.to_bits()).collect()
}

fn half_one() -> u16 {
    0x3c00
}
