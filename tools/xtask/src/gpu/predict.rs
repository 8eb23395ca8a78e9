//! Predicted speeds on an H200, from the launches of a step, the bytes that each reads and the
//! instructions that it issues. Written before anything is measured, so that a difference shows
//! what is not understood.

use std::fmt::Write as _;
use std::path::Path;

/// Bytes a second that the products read of the weights: 90 % of a copy (measured).
const BANDWIDTH: f64 = 3.7e12;
/// Seconds of a launch beside what it reads: fitted to two measured models.
const LAUNCH: f64 = 3.3e-6;
/// Instructions of warps a second: 132 multiprocessors issue four in each cycle.
const ISSUES: f64 = 132.0 * 4.0 * 1.755e9;
/// Part of the issue slots that a loop of products fills.
const FILLED: f64 = 0.65;
/// Bytes a second that attention reads of the cache, for one sequence (measured) and for many.
const CACHE: [f64; 2] = [1.1e12, 2.2e12];
/// Seconds of a weight and a column of `gemv` beyond the first, on the pipe of `dp4a` (measured).
const DP4A: f64 = 5.7e-14;
/// Multiplications a second of prompts on tensor cores, of weights and of attention, and seconds of
/// a launch of theirs (fitted to three measured speeds).
const PROMPT: [f64; 2] = [160e12, 120e12];
const PROMPT_LAUNCH: f64 = 22e-6;

/// A weight type: bytes of a unit of 32 weights as the kernels store them, and instructions of
/// `imma` for 16 rows and 8 columns of a unit, in tiles for 8 and for 16 columns (from the machine
/// code).
struct Weights {
    unit: f64,
    tile: [f64; 2],
}

const Q4_K: Weights = Weights {
    unit: 18.5,
    tile: [76.6, 51.6],
};
const Q6_K: Weights = Weights {
    unit: 26.25,
    tile: [110.8, 75.8],
};
const Q8_0: Weights = Weights {
    unit: 34.0,
    tile: [61.8, 40.7],
};
const MXFP4: Weights = Weights {
    unit: 17.0,
    tile: [75.0, 50.0],
};
/// Multiplied by FMA.
const F32: Weights = Weights {
    unit: 128.0,
    tile: [200.0, 200.0],
};

impl Weights {
    fn are_codes(&self) -> bool {
        self.unit < 64.0
    }
}

/// One launch of products of a layer: outputs, inputs, type, and how many of a layer's there are.
struct Product {
    rows: f64,
    cols: f64,
    weights: &'static Weights,
    each: f64,
}

/// A mixture: experts, those used for a token, and the launches of their products.
struct Mixture {
    experts: f64,
    used: f64,
    products: Vec<Product>,
}

struct Model {
    name: &'static str,
    layers: f64,
    products: Vec<Product>,
    mixture: Option<Mixture>,
    head: Product,
    /// Launches of a layer that are no products.
    others: f64,
    /// Floats of a position's keys and values in a layer.
    cached: f64,
    /// Floats of a position's queries in a layer.
    queries: f64,
}

fn product(rows: f64, cols: f64, weights: &'static Weights, each: f64) -> Product {
    Product {
        rows,
        cols,
        weights,
        each,
    }
}

fn models() -> Vec<Model> {
    vec![
        Model {
            name: "qwen3 8.2B Q4_K_M",
            layers: 36.0,
            products: vec![
                product(5120.0, 4096.0, &Q4_K, 1.0),
                product(1024.0, 4096.0, &Q4_K, 0.5),
                product(1024.0, 4096.0, &Q6_K, 0.5),
                product(4096.0, 4096.0, &Q4_K, 1.0),
                product(24576.0, 4096.0, &Q4_K, 1.0),
                product(4096.0, 12288.0, &Q4_K, 0.5),
                product(4096.0, 12288.0, &Q6_K, 0.5),
            ],
            mixture: None,
            head: product(151_936.0, 4096.0, &Q6_K, 1.0),
            others: 5.0,
            cached: 2048.0,
            queries: 4096.0,
        },
        Model {
            name: "qwen3 0.6B Q8_0",
            layers: 28.0,
            products: vec![
                product(4096.0, 1024.0, &Q8_0, 1.0),
                product(1024.0, 2048.0, &Q8_0, 1.0),
                product(6144.0, 1024.0, &Q8_0, 1.0),
                product(1024.0, 3072.0, &Q8_0, 1.0),
            ],
            mixture: None,
            head: product(151_936.0, 1024.0, &Q8_0, 1.0),
            others: 5.0,
            cached: 2048.0,
            queries: 2048.0,
        },
        Model {
            name: "gpt-oss 20B MXFP4",
            layers: 24.0,
            products: vec![
                product(5120.0, 2880.0, &Q8_0, 1.0),
                product(2880.0, 4096.0, &Q8_0, 1.0),
                product(32.0, 2880.0, &F32, 1.0),
            ],
            mixture: Some(Mixture {
                experts: 32.0,
                used: 4.0,
                products: vec![
                    product(2880.0, 2880.0, &MXFP4, 2.0),
                    product(2880.0, 2880.0, &MXFP4, 1.0),
                ],
            }),
            head: product(201_088.0, 2880.0, &Q8_0, 1.0),
            others: 14.0,
            cached: 1024.0,
            queries: 4096.0,
        },
        Model {
            name: "qwen3moe 30B-A3B Q4_K_M",
            layers: 48.0,
            products: vec![
                product(5120.0, 2048.0, &Q4_K, 1.0),
                product(2048.0, 4096.0, &Q4_K, 1.0),
                product(128.0, 2048.0, &F32, 1.0),
            ],
            mixture: Some(Mixture {
                experts: 128.0,
                used: 8.0,
                products: vec![
                    product(768.0, 2048.0, &Q4_K, 2.0),
                    product(2048.0, 768.0, &Q6_K, 1.0),
                ],
            }),
            head: product(151_936.0, 2048.0, &Q6_K, 1.0),
            others: 11.0,
            cached: 1024.0,
            queries: 4096.0,
        },
    ]
}

impl Product {
    fn bytes(&self) -> f64 {
        self.rows * self.cols / 32.0 * self.weights.unit
    }

    /// Seconds for `n` columns, in launches of up to 16, without the launches themselves.
    fn seconds(&self, n: f64) -> f64 {
        let passes = (n / 16.0).ceil();
        let in_pass = (n / passes).ceil();
        let [narrow, wide] = self.weights.tile;
        let read = self.bytes() / BANDWIDTH;
        if in_pass < 3.0 {
            return read + (in_pass - 1.0) * self.rows * self.cols * DP4A;
        }
        let issued = if in_pass < 9.0 { narrow } else { 2.0 * wide };
        let tiles = self.rows / 16.0 * self.cols / 32.0;
        passes * read.max(tiles * issued / (ISSUES * FILLED))
    }
}

impl Mixture {
    /// Seconds of `n` rows, each of which reads its experts; from three rows on, codes that several
    /// chose are read once.
    fn seconds(&self, n: f64) -> f64 {
        if n < 3.0 || !self.products[0].weights.are_codes() {
            let of_one = self.products.iter().map(|p| p.each * p.seconds(1.0));
            return n * self.used * of_one.sum::<f64>();
        }
        let chosen = self.experts * (1.0 - (1.0 - self.used / self.experts).powf(n));
        let rows_each = (n * self.used / chosen).max(1.0);
        let of_one = self.products.iter().map(|p| p.each * p.seconds(rows_each));
        chosen * of_one.sum::<f64>()
    }
}

impl Model {
    /// Seconds of a step of `n` sequences, each behind `depth` tokens.
    fn step(&self, n: f64, depth: f64) -> f64 {
        let passes = (n / 16.0).ceil();
        let dense: f64 = self.products.iter().map(|p| p.each * p.seconds(n)).sum();
        let launches: f64 = self.products.iter().map(|p| p.each * passes).sum();
        let sparse = self.mixture.as_ref().map_or(0.0, |m| m.seconds(n));
        let of_experts = self
            .mixture
            .as_ref()
            .map_or(0.0, |m| m.products.len() as f64 + 1.0);
        let cache = if n < 2.0 { CACHE[0] } else { CACHE[1] };
        let attention = n * depth * self.cached * 2.0 / cache;
        let layer = dense + sparse + attention + LAUNCH * (launches + of_experts + self.others);
        self.layers * layer + self.head.seconds(n) + LAUNCH * (passes + 3.0)
    }

    /// Seconds of a prompt of `n` tokens.
    fn prompt(&self, n: f64) -> f64 {
        let weights = |p: &Product| p.each * p.rows * p.cols;
        let dense: f64 = self.products.iter().map(weights).sum();
        let sparse = self.mixture.as_ref().map_or(0.0, |m| m.seconds(n));
        let attention = n * n * self.queries;
        let layer = n * dense / PROMPT[0] + attention / PROMPT[1] + sparse;
        let launches = self.products.len() as f64 + self.others;
        self.layers * (layer + PROMPT_LAUNCH * launches) + self.head.seconds(1.0)
    }
}

/// Writes the predictions as CSV.
pub(super) fn write(to: &Path) -> Result<(), String> {
    let mut text = String::from("gpu,model,test,tokens_per_second\n");
    let mut line = |model: &Model, test: String, speed: f64| {
        writeln!(
            text,
            "\"NVIDIA H200\",\"{}\",\"{test}\",{speed:.0}",
            model.name
        )
        .expect("a string takes all");
    };
    for model in models() {
        for depth in [0.0, 4096.0] {
            for n in [1.0, 2.0, 4.0, 8.0, 16.0, 64.0] {
                let test = format!("{n} sequences @ d{depth}");
                line(&model, test, n / model.step(n, depth));
            }
        }
        for n in [512.0, 2048.0] {
            line(&model, format!("pp{n}"), n / model.prompt(n));
        }
    }
    std::fs::write(to, text).map_err(|error| format!("{}: {error}", to.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Predictions are near the speeds measured on an H200 before batches had kernels of their own.
    #[test]
    fn one_sequence_is_predicted_as_it_was_measured() {
        let models = models();
        for (model, depth, measured) in [(0, 0.0, 410.0), (0, 4096.0, 334.0), (1, 0.0, 981.0)] {
            let predicted = 1.0 / models[model].step(1.0, depth);
            let off = (predicted / measured - 1.0_f64).abs();
            assert!(off < 0.12, "{predicted}, measured {measured}");
        }
        // two sequences have the same kernels now as then
        let two = 2.0 / models[0].step(2.0, 0.0);
        assert!((two / 696.0 - 1.0).abs() < 0.12, "{two}");
        for (model, n, measured) in [
            (0, 512.0, 15_677.0),
            (0, 2048.0, 18_909.0),
            (1, 512.0, 59_073.0),
        ] {
            let predicted = n / models[model].prompt(n);
            let off = (predicted / measured - 1.0_f64).abs();
            assert!(off < 0.25, "{predicted}, measured {measured}");
        }
    }
}
