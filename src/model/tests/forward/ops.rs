//! Reference ops, row by row.

use super::Matrix;
use octavo_kernels::{Activation, Function, Recurrence, TopGroups, Xielu};
use octavo_model::Op;
use std::ops::Range;

pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
    a.iter().zip(b).map(|(a, b)| a * b).sum()
}

/// The positions of the best keys; repeats the last where there are few.
pub(super) fn select_keys(q: &[f64], weights: &[f64], keys: &[Vec<f64>], n: usize) -> Vec<f64> {
    let score = |key: &Vec<f64>| -> f64 {
        let heads = q.chunks_exact(key.len()).zip(weights);
        heads.map(|(q, w)| w * dot(q, key).max(0.0)).sum()
    };
    let scores: Vec<f64> = keys.iter().map(score).collect();
    let mut order: Vec<usize> = (0..keys.len()).collect();
    order.sort_by(|a, b| scores[*b].total_cmp(&scores[*a]));
    order.truncate(n);
    order.sort_unstable();
    let last = order[order.len() - 1];
    order.resize(n, last);
    order.iter().map(|p| *p as f64).collect()
}

pub(super) fn concat(a: &[f64], b: &[f64], each: [usize; 2]) -> Vec<f64> {
    let pieces = a.chunks(each[0]).zip(b.chunks(each[1]).cycle());
    pieces.flat_map(|(a, b)| [a, b].concat()).collect()
}

pub(super) fn slice(row: &[f64], each: usize, part: Range<usize>) -> Vec<f64> {
    let pieces = row.chunks_exact(each);
    pieces
        .flat_map(|piece| piece[part.clone()].to_vec())
        .collect()
}

pub(super) fn add_bias(row: &[f64], bias: &[f32]) -> Vec<f64> {
    let both = row.iter().zip(bias);
    both.map(|(x, b)| x + f64::from(*b)).collect()
}

pub(super) fn mul_vector(row: &[f64], by: &[f32]) -> Vec<f64> {
    let each = row.len() / by.len();
    let one = |(i, x): (usize, &f64)| x * f64::from(by[i / each]);
    row.iter().enumerate().map(one).collect()
}

pub(super) fn gate(act: Activation, g: f64, u: f64) -> f64 {
    match act {
        Activation::Silu => g / (1.0 + (-g).exp()) * u,
        Activation::Gelu => gelu(g) * u,
        Activation::SwigluOai => {
            let (g, u) = (g.min(7.0), u.clamp(-7.0, 7.0));
            g / (1.0 + (-1.702 * g).exp()) * (u + 1.0)
        }
    }
}

pub(super) fn function(f: Function, x: f64) -> f64 {
    match f {
        Function::SoftCap(cap) => f64::from(cap) * (x / f64::from(cap)).tanh(),
        Function::Scale(factor) => f64::from(factor) * x,
        Function::Gelu => gelu(x),
        Function::Clamp(low, high) => x.clamp(low.into(), high.into()),
        Function::SquaredRelu => x.max(0.0).powi(2),
        Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Function::Silu => x / (1.0 + (-x).exp()),
        Function::Softplus => x.exp().ln_1p(),
        Function::Exp => x.exp(),
        Function::Xielu(by) => xielu(&by, x),
    }
}

fn xielu(by: &Xielu, x: f64) -> f64 {
    let curve = match x > 0.0 {
        true => f64::from(by.positive) * x * x,
        false => f64::from(by.negative) * (x.min(by.least.into()).exp_m1() - x),
    };
    curve + f64::from(by.linear) * x
}

pub(super) fn scale_by_position(x: &Matrix, op: Op) -> Matrix {
    let Op::ScaleByPosition {
        rate, step, offset, ..
    } = op
    else {
        unreachable!("{op:?}");
    };
    let scaled = |(t, row): (usize, &Vec<f64>)| {
        let steps = (t + offset) / step;
        let factor = 1.0 + f64::from(rate) * ((1 + steps) as f64).ln();
        row.iter().map(|x| factor * x).collect()
    };
    x.iter().enumerate().map(scaled).collect()
}

/// Multiplies neighbours with their factor.
pub(super) fn scale_rows(row: &[f64], by: &[f64]) -> Vec<f64> {
    let each = row.len() / by.len();
    row.iter()
        .enumerate()
        .map(|(i, x)| x * by[i / each])
        .collect()
}

pub(super) fn softmax(row: &[f64]) -> Vec<f64> {
    let max = row.iter().copied().fold(f64::MIN, f64::max);
    let e: Vec<f64> = row.iter().map(|x| (x - max).exp()).collect();
    let sum: f64 = e.iter().sum();
    e.iter().map(|e| e / sum).collect()
}

pub(super) fn gather(row: &[f64], ids: &[f64]) -> Vec<f64> {
    ids.iter().map(|id| row[*id as usize]).collect()
}

pub(super) fn normalize(row: &[f64], least: f32) -> Vec<f64> {
    let sum = row.iter().sum::<f64>().max(least.into());
    row.iter().map(|x| x / sum).collect()
}

/// Multiplies the row with the chosen experts: one input for all of them, or one for each.
pub(super) fn expert_product(row: &[f64], ids: &[f64], w: &Matrix, experts: usize) -> Vec<f64> {
    let (n, cols) = (w.len() / experts, w[0].len());
    let mut out = Vec::new();
    for (i, id) in ids.iter().enumerate() {
        let at = if row.len() == cols { 0 } else { i * cols };
        let expert = &w[*id as usize * n..(*id as usize + 1) * n];
        out.extend(expert.iter().map(|w| dot(&row[at..at + cols], w)));
    }
    out
}

pub(super) fn expert_bias(row: &[f64], ids: &[f64], bias: &[f32]) -> Vec<f64> {
    let n = row.len() / ids.len();
    let biased = |(i, x): (usize, &f64)| x + f64::from(bias[ids[i / n] as usize * n + i % n]);
    row.iter().enumerate().map(biased).collect()
}

pub(super) fn expert_sum(row: &[f64], weights: &[f64]) -> Vec<f64> {
    let n = row.len() / weights.len();
    let parts = || weights.iter().enumerate();
    (0..n)
        .map(|i| parts().map(|(p, w)| w * row[p * n + i]).sum())
        .collect()
}

fn gelu(x: f64) -> f64 {
    let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    x / 2.0 * (1.0 + z.tanh())
}

/// Applies a causal convolution: the last row of weights applies to the token's own value, the
/// others to the rows before it.
pub(super) fn convolve(x: &Matrix, weight: &[f32]) -> Matrix {
    let width = x[0].len();
    let kernel = weight.len() / width;
    let at = |t: usize, c: usize| {
        let rows = (0..kernel).filter(|j| t + j + 1 >= kernel);
        rows.map(|j| x[t + j + 1 - kernel][c] * f64::from(weight[j * width + c]))
            .sum()
    };
    (0..x.len())
        .map(|t| (0..width).map(|c| at(t, c)).collect())
        .collect()
}

/// Computes linear attention, with one row of state for each value of a head.
pub(super) fn linear_attention([q, k, v, decay, rate]: [&Matrix; 5], how: Recurrence) -> Matrix {
    let (heads, d) = (rate[0].len(), how.key_dim);
    let decay_of = |t: usize, head: usize, j: usize| match how.decay_by_key {
        false => decay[t][head],
        true => decay[t][head * d + j],
    };
    let n = v[0].len() / heads;
    let mut out = vec![vec![0.0; heads * n]; v.len()];
    for at in 0..heads * n {
        let head = at / n;
        let key = how.heads.key_of(head, heads, q[0].len() / d) * d;
        let mut row = vec![0.0; d];
        for t in 0..v.len() {
            let (q, k) = (&q[t][key..key + d], &k[t][key..key + d]);
            let dot = |row: &[f64], with: &[f64]| -> f64 {
                row.iter().zip(with).map(|(a, b)| a * b).sum()
            };
            let fade = |(j, m): (usize, &mut f64)| *m *= decay_of(t, head, j);
            row.iter_mut().enumerate().for_each(fade);
            let known = if how.delta { dot(&row, k) } else { 0.0 };
            let change = rate[t][head] * (v[t][at] - known);
            row.iter_mut().zip(k).for_each(|(m, k)| *m += change * k);
            out[t][at] = f64::from(how.scale) * dot(&row, q);
        }
    }
    out
}

/// Computes a selective scan; `a` has a row for each value of `b`.
pub(super) fn selective_scan([x, steps, b, c]: [&Matrix; 4], a: &[f32]) -> Matrix {
    let (width, size) = (x[0].len(), b[0].len());
    let mut out = vec![vec![0.0; width]; x.len()];
    for at in 0..width {
        let mut h = vec![0.0; size];
        for t in 0..x.len() {
            let step = steps[t][at];
            for (j, h) in h.iter_mut().enumerate() {
                let rate = f64::from(a[j * width + at]);
                *h = (step * rate).exp() * *h + step * x[t][at] * b[t][j];
                out[t][at] += *h * c[t][j];
            }
        }
    }
    out
}

/// Computes the time mixing of RWKV 7, with one row of state for each value of a head.
pub(super) fn wkv7(inputs: [&Matrix; 6], key_dim: usize) -> Matrix {
    let [r, decay, k, v, removed, replaced] = inputs;
    let (heads, width) = (r[0].len() / key_dim, v[0].len());
    let mut out = vec![vec![0.0; width]; v.len()];
    for at in 0..width {
        let first = at / (width / heads) * key_dim;
        let mut row = vec![0.0; key_dim];
        for t in 0..v.len() {
            let of = |x: &Matrix, j: usize| x[t][first + j];
            let held: f64 = (0..key_dim).map(|j| row[j] * of(removed, j)).sum();
            for (j, m) in row.iter_mut().enumerate() {
                *m = *m * of(decay, j) - held * of(replaced, j) + v[t][at] * of(k, j);
                out[t][at] += *m * of(r, j);
            }
        }
    }
    out
}

/// Returns the indices of the largest values, within the best groups where there are any.
pub(super) fn top_k(row: &[f64], n: usize, groups: Option<TopGroups>) -> Vec<f64> {
    let descending = |values: &[f64]| {
        let mut order: Vec<usize> = (0..values.len()).collect();
        order.sort_by(|a, b| values[*b].total_cmp(&values[*a]));
        order
    };
    let mut row = row.to_vec();
    if let Some(TopGroups { count, used }) = groups {
        let len = row.len() / count;
        let score = |group: &[f64]| {
            let order = descending(group);
            group[order[0]] + group[order[1]]
        };
        let scores: Vec<f64> = row.chunks_exact(len).map(score).collect();
        for group in &descending(&scores)[used..] {
            row[group * len..(group + 1) * len].fill(f64::NEG_INFINITY);
        }
    }
    descending(&row)[..n].iter().map(|at| *at as f64).collect()
}
