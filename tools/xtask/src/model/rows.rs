//! Random rows, drawn from a pool so that a large model takes no longer than writing its bytes.

use std::collections::HashMap;
use std::io::{self, Write};
use std::sync::Arc;

use gguf_rs_lite::{RowSource, TensorType};

use crate::random::Random;

/// Number of values quantized for each type and deviation.
const POOL: usize = 1 << 18;

/// Values per row of the pool.
const ROW: usize = 4096;

/// Quantized blocks to draw from.
pub(super) struct Pool {
    bytes: Vec<u8>,
    /// Bytes drawn at a time: a block, or several small ones.
    group_bytes: usize,
    /// Values drawn at a time.
    pub(super) group: usize,
}

impl Pool {
    fn new(ty: TensorType, deviation: f32, seed: u64) -> Result<Pool, String> {
        let mut random = Random::new(seed, &format!("{ty} {deviation}"));
        let values: Vec<f32> = (0..POOL).map(|_| deviation * random.normal()).collect();
        let mut bytes = Vec::new();
        // every column is equally important
        octavo_quant::quantize(ty, &values, ROW, Some(&[1.0; ROW]), &mut bytes)
            .map_err(|error| error.to_string())?;
        // all block lengths are powers of two
        let group = ty.block_len().max(64);
        Ok(Pool {
            group_bytes: group / ty.block_len() * ty.block_bytes(),
            group,
            bytes,
        })
    }

    /// Writes `n` values.
    pub(super) fn draw(&self, n: u64, mut random: Random, out: &mut dyn Write) -> io::Result<()> {
        let groups = self.bytes.len() / self.group_bytes;
        let mut buffer = Vec::with_capacity(1 << 20);
        for _ in 0..n / self.group as u64 {
            let at = random.below(groups) * self.group_bytes;
            buffer.extend_from_slice(&self.bytes[at..at + self.group_bytes]);
            if buffer.len() + self.group_bytes > 1 << 20 {
                out.write_all(&buffer)?;
                buffer.clear();
            }
        }
        out.write_all(&buffer)
    }
}

/// Rows of a folder's tensor, each with its own seed.
pub(super) struct Drawn {
    pub(super) pool: Arc<Pool>,
    pub(super) seed: u64,
    pub(super) name: String,
    pub(super) cols: u64,
    pub(super) row_bytes: usize,
}

impl RowSource for Drawn {
    fn fill(&self, first: u64, out: &mut [u8]) {
        for (row, mut out) in (first..).zip(out.chunks_exact_mut(self.row_bytes)) {
            let random = Random::new(self.seed, &format!("{} {row}", self.name));
            self.pool
                .draw(self.cols, random, &mut out)
                .expect("rows are as long as their values");
        }
    }
}

/// A vector of a folder, as bytes.
pub(super) struct Vector(pub(super) Vec<u8>);

impl RowSource for Vector {
    fn fill(&self, _: u64, out: &mut [u8]) {
        out.copy_from_slice(&self.0);
    }
}

/// Returns a random vector: norms near 1, biases near 0, decay rates below it.
pub(super) fn vector(name: &str, n: u64, mut random: Random) -> Vec<u8> {
    let mut one = || {
        if name.ends_with(".bias") {
            0.1 * random.normal()
        } else if name.ends_with("ssm_a") {
            // negative rates make states decay
            -0.5 * random.uniform()
        } else {
            0.9 + 0.2 * random.uniform()
        }
    };
    (0..n).flat_map(|_| one().to_le_bytes()).collect()
}

/// Pools by type and row length.
#[derive(Default)]
pub(super) struct Pools(HashMap<(TensorType, u64), Arc<Pool>>);

impl Pools {
    pub(super) fn get(
        &mut self,
        ty: TensorType,
        cols: u64,
        seed: u64,
    ) -> Result<Arc<Pool>, String> {
        if let Some(pool) = self.0.get(&(ty, cols)) {
            return Ok(pool.clone());
        }
        let pool = Arc::new(Pool::new(ty, 1.0 / (cols as f32).sqrt(), seed)?);
        self.0.insert((ty, cols), pool.clone());
        Ok(pool)
    }
}
