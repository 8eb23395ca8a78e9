//! What the kernel tests share: seeded numbers, random weights of any type, one-operation programs.
#![allow(dead_code)] // every test file uses a part

use std::sync::Arc;

use octavo_kernels::{
    Executor, Isa, KvShape, KvStore, KvType, Matrix, Op, Pool, Program, Role, Rope, RowTable, Sequence, SlotInfo, Step,
};
use octavo_quant::TensorType;

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

    /// In [-1, 1).
    pub(crate) fn unit(&mut self) -> f32 {
        (self.bits() >> 40) as f32 / (1u64 << 23) as f32 - 1.0
    }

    pub(crate) fn floats(&mut self, n: usize) -> Vec<f32> {
        (0..n).map(|_| self.unit()).collect()
    }
}

/// Random bits as weights: every block whose values are finite and of ordinary size.
pub(crate) fn random_blocks(rng: &mut Rng, ty: TensorType, n: usize) -> Vec<u8> {
    let (len, bytes) = (ty.block_len(), ty.block_bytes());
    let mut all = Vec::with_capacity(n / len * bytes);
    let mut values = vec![0.0; len];
    for _ in 0..n / len {
        loop {
            let block: Vec<u8> = (0..bytes).map(|_| rng.bits() as u8).collect();
            octavo_quant::dequantize(ty, &block, &mut values).expect("one block");
            if values.iter().all(|v| v.is_finite() && v.abs() < 1e3) {
                all.extend(block);
                break;
            }
        }
    }
    all
}

pub(crate) fn f32_bytes(x: &[f32]) -> Vec<u8> {
    x.iter().flat_map(|v| v.to_le_bytes()).collect()
}

/// Embeds row `token` of a table of f32 rows.
pub(crate) fn embed(rows: usize, cols: usize, values: &[f32], out: usize) -> Op {
    let source = Arc::new(f32_bytes(values));
    Op::Embed { table: RowTable { ty: TensorType::F32, rows, cols, source }, out }
}

pub(crate) fn no_rope() -> Rope {
    Rope { frequencies: Vec::new(), magnitude: 1.0, neox: false }
}

pub(crate) const KV: KvShape = KvShape { n_layer: 1, n_head_kv: 1, head_dim: 2, ty: KvType::F32 };

/// A program over slots of these widths, the last one being the output.
pub(crate) fn program(ops: Vec<Op>, widths: &[usize], matrices: Vec<Matrix>, kv: KvShape) -> Program {
    let slots = widths.iter().map(|width| SlotInfo { width: *width, selected: false }).collect();
    Program { ops, slots, matrices, rope: no_rope(), kv, output: widths.len() - 1 }
}

/// Runs `m` tokens 0, 1, … of one sequence and returns the outputs of all.
pub(crate) fn run(executor: &mut Executor, kv: KvShape, role: Role, m: usize) -> Vec<f32> {
    let pages = m.div_ceil(16);
    let table: Vec<u32> = (0..pages as u32).collect();
    let tokens: Vec<u32> = (0..m as u32).collect();
    let seqs = [Sequence { tokens: &tokens, start: 0, table: &table, wanted: 0..m }];
    executor.step(&Step { role, seqs: &seqs }, &mut KvStore::new(kv, pages).expect("memory"), None).to_vec()
}

/// `y = W x` for rows 0..m of `x`, by the kernels of `isa`.
#[allow(clippy::too_many_arguments)] // a test's cell is exactly these
pub(crate) fn product(
    isa: Isa,
    (ty, rows, cols): (TensorType, usize, usize),
    raw: &[u8],
    x: &[f32],
    role: Role,
    repack: bool,
    threads: usize,
) -> (Vec<f32>, String) {
    let mut pool = Pool::new(threads).expect("threads");
    let matrix = Matrix::new(isa, (ty, rows, cols), Arc::new(raw.to_vec()), repack, &mut pool).expect("matrix");
    let kernel = matrix.kernel();
    let m = x.len() / cols;
    let ops = vec![embed(m, cols, x, 0), Op::MatMul { x: 0, w: 0, out: 1 }];
    let mut executor = Executor::new(isa, program(ops, &[cols, rows], vec![matrix], KV), pool);
    (run(&mut executor, KV, role, m), kernel)
}
