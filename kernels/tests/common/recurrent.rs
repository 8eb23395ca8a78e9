//! Recurrent operations as programs, and their results in f64.

use octavo_kernels::{Instruction, KeyHeads, KvShape, Op, Program, Recurrence, matrix_state};

use super::{Rng, embed, program};

/// Relative error of one rounding: half a unit in the last place.
const U: f64 = f32::EPSILON as f64 / 2.0;

/// A program with one state part. Token `t` is row `t` of its inputs.
pub(crate) struct Case {
    pub(crate) ops: Vec<Instruction>,
    pub(crate) widths: Vec<usize>,
    pub(crate) state: usize,
}

impl Case {
    pub(crate) fn program(&self, kv: KvShape) -> Program {
        Program {
            states: vec![self.state],
            ..program(self.ops.clone(), &self.widths, kv)
        }
    }
}

/// Results of tokens 0, 1, … of one sequence, each with its error bound.
pub(crate) struct Exact(Vec<(f64, f64)>);

impl Exact {
    pub(crate) fn check(&self, what: &str, got: &[f32]) {
        assert_eq!(got.len(), self.0.len(), "{what}: other results");
        for (i, (got, (exact, allowed))) in got.iter().zip(&self.0).enumerate() {
            let error = (f64::from(*got) - exact).abs();
            assert!(
                error <= *allowed,
                "{what} at {i}: {got} for {exact}, which may be {allowed:e} off"
            );
        }
    }
}

/// Creates a convolution of random rows. Each of its sums has `kernel` products, and that many
/// roundings.
pub(crate) fn convolution(
    rng: &mut Rng,
    (n, width, kernel): (usize, usize, usize),
) -> (Case, Exact) {
    let (x, weight) = (rng.floats(n * width), rng.floats(kernel * width));
    let exact = (0..n * width).map(|i| {
        let (t, c) = (i / width, i % width);
        let rows = (0..kernel).filter(|j| t + j + 1 >= kernel);
        let terms = rows.map(|j| {
            let x = x[(t + j + 1 - kernel) * width + c];
            f64::from(x) * f64::from(weight[j * width + c])
        });
        terms.fold((0.0, 0.0), |(sum, allowed), term| {
            (sum + term, allowed + kernel as f64 * U * term.abs())
        })
    });
    let exact = Exact(exact.collect());
    let conv = Op::CausalConv {
        x: 0,
        weight: weight.into(),
        state: 0,
    };
    let case = Case {
        ops: vec![embed(n, width, &x, 0), conv.to(1)],
        widths: vec![width, width],
        state: (kernel - 1) * width,
    };
    (case, exact)
}

/// Sizes of a linear attention.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Sizes {
    /// Tokens.
    pub(crate) n: usize,
    pub(crate) heads: usize,
    pub(crate) keys: usize,
    pub(crate) key_dim: usize,
    pub(crate) value_dim: usize,
}

/// Random rows of one input.
struct Rows {
    width: usize,
    values: Vec<f32>,
}

impl Rows {
    fn new(width: usize, values: Vec<f32>) -> Rows {
        Rows { width, values }
    }

    fn at(&self, t: usize, i: usize) -> f64 {
        f64::from(self.values[t * self.width + i])
    }
}

/// Creates queries, keys, values, decays and rates as in programs.
fn inputs(rng: &mut Rng, s: Sizes, decay_by_key: bool) -> [Rows; 5] {
    let mut unit = |heads: usize| {
        let mut rows = rng.floats(s.n * heads * s.key_dim);
        for head in rows.chunks_mut(s.key_dim) {
            let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
            head.iter_mut().for_each(|x| *x /= length);
        }
        Rows::new(heads * s.key_dim, rows)
    };
    let (q, k) = (unit(s.keys), unit(s.keys));
    let v = Rows::new(
        s.heads * s.value_dim,
        rng.floats(s.n * s.heads * s.value_dim),
    );
    let mut part = |least: f32, width: usize| {
        let rows = rng.floats(s.n * width);
        let rows = rows
            .iter()
            .map(|x| least + (1.0 - least) * x.abs())
            .collect();
        Rows::new(width, rows)
    };
    let decays = if decay_by_key { s.key_dim } else { 1 };
    [q, k, v, part(0.5, s.heads * decays), part(0.0, s.heads)]
}

/// Computes the results in f64, and the magnitude of the intermediate sums.
fn exactly(s: Sizes, how: &Recurrence, [q, k, v, decay, rate]: &[Rows; 5]) -> (Vec<f64>, f64) {
    let mut out = vec![0.0; s.n * s.heads * s.value_dim];
    let mut largest = 0f64;
    for (head, i) in (0..s.heads).flat_map(|h| (0..s.value_dim).map(move |i| (h, i))) {
        let mut row = vec![0.0; s.key_dim];
        let key = match how.heads {
            KeyHeads::Grouped => head / (s.heads / s.keys),
            KeyHeads::Tiled => head % s.keys,
        };
        for t in 0..s.n {
            for (j, m) in row.iter_mut().enumerate() {
                *m *= match how.decay_by_key {
                    false => decay.at(t, head),
                    true => decay.at(t, head * s.key_dim + j),
                };
            }
            let dot = |row: &[f64], with: &Rows| -> f64 {
                let terms = row.iter().enumerate();
                terms
                    .map(|(j, m)| m * with.at(t, key * s.key_dim + j))
                    .sum()
            };
            let known = if how.delta { dot(&row, k) } else { 0.0 };
            let change = rate.at(t, head) * (v.at(t, head * s.value_dim + i) - known);
            for (j, m) in row.iter_mut().enumerate() {
                *m += change * k.at(t, key * s.key_dim + j);
            }
            largest = row.iter().fold(largest, |most, m| most.max(m.abs()));
            let at = (t * s.heads + head) * s.value_dim + i;
            out[at] = f64::from(how.scale) * dot(&row, q);
        }
    }
    (out, largest)
}

/// Creates a linear attention of random numbers. The state decays and is added to in three
/// roundings per token, of which less than half remains after one token; queries and keys have
/// length 1, and their products as many roundings as terms, doubled for the part subtracted (delta
/// rule).
pub(crate) fn linear_attention(
    rng: &mut Rng,
    s: Sizes,
    heads: KeyHeads,
    (delta, decay_by_key): (bool, bool),
) -> (Case, Exact) {
    let how = Recurrence {
        key_dim: s.key_dim,
        heads,
        delta,
        decay_by_key,
        scale: 0.7,
    };
    let inputs = inputs(rng, s, decay_by_key);
    let (exact, largest) = exactly(s, &how, &inputs);
    let tables = inputs.iter().enumerate();
    let mut ops: Vec<Instruction> = tables
        .map(|(slot, rows)| embed(s.n, rows.width, &rows.values, slot))
        .collect();
    let op = Op::LinearAttention {
        q: 0,
        k: 1,
        v: 2,
        decay: 3,
        rate: 4,
        how,
        state: 0,
    };
    ops.push(op.to(5));
    let mut widths: Vec<usize> = inputs.iter().map(|rows| rows.width).collect();
    widths.push(s.heads * s.value_dim);
    let state = matrix_state(s.heads, s.key_dim, s.value_dim).expect("a small state");
    let allowed = largest * U * (16.0 + 4.0 * s.key_dim as f64);
    let exact = exact.into_iter().map(|exact| (exact, allowed)).collect();
    (Case { ops, widths, state }, Exact(exact))
}

/// Creates a selective scan of random numbers: steps and rates that leave between nothing and
/// almost all of the state. A number of the state takes three roundings a token and those of an
/// exponential, and a result as many as numbers.
pub(crate) fn selective_scan(
    rng: &mut Rng,
    (n, width, size): (usize, usize, usize),
) -> (Case, Exact) {
    let [x, steps, b, c] =
        [width, width, size, size].map(|width| Rows::new(width, rng.floats(n * width)));
    let steps = Rows::new(width, steps.values.iter().map(|x| x.abs()).collect());
    let rates = rng.floats(size * width);
    let a: Vec<f32> = rates.iter().map(|x| -3.0 * x.abs()).collect();
    let mut exact = vec![(0.0, 0.0); n * width];
    for at in 0..width {
        let (mut h, mut most) = (vec![0.0; size], vec![0.0; size]);
        for t in 0..n {
            let step = steps.at(t, at);
            let (mut sum, mut largest) = (0.0, 0.0);
            for j in 0..size {
                let decay = (step * f64::from(a[j * width + at])).exp();
                let change = step * x.at(t, at) * b.at(t, j);
                h[j] = decay * h[j] + change;
                most[j] = decay * most[j] + change.abs();
                sum += h[j] * c.at(t, j);
                largest += most[j] * c.at(t, j).abs();
            }
            let roundings = 8.0 * (t + 2) as f64 + size as f64;
            exact[t * width + at] = (sum, largest * U * roundings);
        }
    }
    let inputs = [x, steps, b, c];
    let tables = inputs.iter().enumerate();
    let mut ops: Vec<Instruction> = tables
        .map(|(slot, rows)| embed(n, rows.width, &rows.values, slot))
        .collect();
    let op = Op::SelectiveScan {
        x: 0,
        steps: 1,
        b: 2,
        c: 3,
        a: a.into(),
        state: 0,
    };
    ops.push(op.to(4));
    let case = Case {
        ops,
        widths: vec![width, width, size, size, width],
        state: matrix_state(1, size, width).expect("a small state"),
    };
    (case, Exact(exact))
}

/// Creates a time mixing of RWKV 7 of random numbers: keys to remove of length 1, to replace along
/// these, as trained models have them, and decays from 0.55 on. There are as many keys as heads.
pub(crate) fn wkv7(rng: &mut Rng, s: Sizes) -> (Case, Exact) {
    let keys = s.heads * s.key_dim;
    let [r, k, removed, rates] = [0; 4].map(|_| Rows::new(keys, rng.floats(s.n * keys)));
    let values = s.heads * s.value_dim;
    let v = Rows::new(values, rng.floats(s.n * values));
    let decay = rng.floats(s.n * keys);
    let decay = decay.iter().map(|x| 0.55 + 0.45 * x.abs()).collect();
    let decay = Rows::new(keys, decay);
    let unit = removed.values.chunks(s.key_dim).flat_map(|head| {
        let length = head.iter().map(|x| x * x).sum::<f32>().sqrt();
        head.iter().map(move |x| x / length)
    });
    let removed = Rows::new(keys, unit.collect());
    let pairs = removed.values.iter().zip(&rates.values);
    let replaced = Rows::new(keys, pairs.map(|(x, rate)| x * rate.abs()).collect());
    let mut exact = vec![0.0; s.n * values];
    let mut largest = 0f64;
    for (head, i) in (0..s.heads).flat_map(|h| (0..s.value_dim).map(move |i| (h, i))) {
        let mut row = vec![0.0; s.key_dim];
        for t in 0..s.n {
            let of = |x: &Rows, j: usize| x.at(t, head * s.key_dim + j);
            let held: f64 = (0..s.key_dim).map(|j| row[j] * of(&removed, j)).sum();
            let at = head * s.value_dim + i;
            for (j, m) in row.iter_mut().enumerate() {
                let lost = held * of(&replaced, j);
                *m = *m * of(&decay, j) - lost + v.at(t, at) * of(&k, j);
                largest = largest.max(m.abs());
                exact[t * values + at] += *m * of(&r, j);
            }
        }
    }
    // a matrix is multiplied by one of norm 1 at most, and changed in some roundings for each key
    let roundings = (8.0 + 4.0 * s.key_dim as f64) * (s.n + 1) as f64;
    let allowed = largest * U * roundings * (s.key_dim as f64).sqrt();
    let inputs = [r, decay, k, v, removed, replaced];
    let tables = inputs.iter().enumerate();
    let mut ops: Vec<Instruction> = tables
        .map(|(slot, rows)| embed(s.n, rows.width, &rows.values, slot))
        .collect();
    let op = Op::Wkv7 {
        r: 0,
        decay: 1,
        k: 2,
        v: 3,
        removed: 4,
        replaced: 5,
        key_dim: s.key_dim,
        state: 0,
    };
    ops.push(op.to(6));
    let mut widths: Vec<usize> = inputs.iter().map(|rows| rows.width).collect();
    widths.push(values);
    let state = matrix_state(s.heads, s.key_dim, s.value_dim).expect("a small state");
    let exact = exact.into_iter().map(|exact| (exact, allowed)).collect();
    (Case { ops, widths, state }, Exact(exact))
}
