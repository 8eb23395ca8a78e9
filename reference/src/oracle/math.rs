//! The operations of a transformer layer, in f64, straight from their formulas. All arrays are
//! `(n_tokens, width)`.

/// A weight of `n_in` columns; each row gives one output.
pub(super) struct Matrix {
    pub(super) n_in: usize,
    pub(super) data: Vec<f32>, // (n_out, n_in)
}

impl Matrix {
    pub(super) fn row(&self, index: usize) -> Option<&[f32]> {
        let start = index.checked_mul(self.n_in)?;
        self.data.get(start..start.checked_add(self.n_in)?)
    }

    /// `y[t][o] = Σ_i w[o][i] · x[t][i]`. A row is widened once and then meets every token.
    pub(super) fn times(&self, x: &[f64]) -> Vec<f64> {
        let n_out = self.data.len() / self.n_in;
        let mut y = vec![0.0; x.len() / self.n_in * n_out];
        let mut row = vec![0f64; self.n_in];
        for (o, weights) in self.data.chunks_exact(self.n_in).enumerate() {
            row.iter_mut()
                .zip(weights)
                .for_each(|(wide, &w)| *wide = f64::from(w));
            for (y, x) in y.chunks_exact_mut(n_out).zip(x.chunks_exact(self.n_in)) {
                y[o] = dot(&row, x);
            }
        }
        y
    }
}

/// Eight partial sums, so that the additions do not wait for each other and the compiler may
/// vectorise them.
fn dot(a: &[f64], b: &[f64]) -> f64 {
    let (a8, b8) = (a.chunks_exact(8), b.chunks_exact(8));
    let tail: f64 = a8
        .remainder()
        .iter()
        .zip(b8.remainder())
        .map(|(a, b)| a * b)
        .sum();
    let mut sums = [0.0; 8];
    for (a, b) in a8.zip(b8) {
        for ((sum, a), b) in sums.iter_mut().zip(a).zip(b) {
            *sum += a * b;
        }
    }
    sums.iter().sum::<f64>() + tail
}

/// `x / sqrt(mean(x²) + eps) ⊙ weight`, for every group of `weight.len()` values.
pub(super) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    let n = weight.len().max(1);
    x.chunks(n)
        .flat_map(|row| {
            let scale = 1.0 / (dot(row, row) / n as f64 + eps).sqrt();
            row.iter().zip(weight).map(move |(x, w)| x * scale * w)
        })
        .collect()
}

/// `silu(gate) ⊙ up`, with `silu(g) = g / (1 + e^-g)`.
pub(super) fn swiglu(gate: &[f64], up: &[f64]) -> Vec<f64> {
    gate.iter()
        .zip(up)
        .map(|(&g, &u)| g / (1.0 + (-g).exp()) * u)
        .collect()
}

/// Adds `bias` to every row.
pub(super) fn add_bias(x: &mut [f64], bias: &[f64]) {
    for row in x.chunks_mut(bias.len().max(1)) {
        add_into(row, bias);
    }
}

/// `x += y`.
pub(super) fn add_into(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Causal attention: `softmax(q·k / sqrt(head_dim)) · v` over the positions up to each query's own.
/// Query head `h` reads key-value head `h / (n_head / n_head_kv)`.
pub(super) fn attention(
    q: &[f64],
    k: &[f64],
    v: &[f64],
    head_dim: usize,
    n_head: usize,
    n_head_kv: usize,
) -> Vec<f64> {
    let (q_width, kv_width) = (n_head * head_dim, n_head_kv * head_dim);
    let mut out = vec![0.0; q.len()];
    for (pos, (q, out)) in q.chunks(q_width).zip(out.chunks_mut(q_width)).enumerate() {
        for (h, (q, out)) in q.chunks(head_dim).zip(out.chunks_mut(head_dim)).enumerate() {
            let first = h / (n_head / n_head_kv) * head_dim;
            let at = |x: usize| x * kv_width + first..x * kv_width + first + head_dim;
            let mut p: Vec<f64> = (0..=pos)
                .map(|t| dot(q, &k[at(t)]) / (head_dim as f64).sqrt())
                .collect();
            let max = p.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            p.iter_mut().for_each(|p| *p = (*p - max).exp());
            let sum: f64 = p.iter().sum();
            for (t, p) in p.iter().enumerate() {
                out.iter_mut()
                    .zip(&v[at(t)])
                    .for_each(|(out, v)| *out += p / sum * v);
            }
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dot_equals_the_plain_sum_at_every_tail() {
        for n in 0..40 {
            let a: Vec<f64> = (0..n).map(|i| f64::from(i) - 7.0).collect();
            let b: Vec<f64> = (0..n).map(|i| f64::from(i * i % 11)).collect();
            let plain: f64 = a.iter().zip(&b).map(|(a, b)| a * b).sum();
            assert_eq!(dot(&a, &b), plain, "length {n}"); // small integers: exact in any order
        }
    }

    #[test]
    fn a_single_position_attends_to_itself_only() {
        let (q, k, v) = ([0.3, -2.0, 5.0, 1.0], [9.0, -9.0], [4.0, 7.0]);
        assert_eq!(attention(&q, &k, &v, 2, 2, 1), [4.0, 7.0, 4.0, 7.0]);
    }

    #[test]
    fn equal_scores_average_the_past() {
        let (q, k, v) = ([0.0; 3], [1.0, 2.0, 3.0], [3.0, 6.0, 12.0]);
        let out = attention(&q, &k, &v, 1, 1, 1);
        assert!(
            out.iter()
                .zip([3.0, 4.5, 7.0])
                .all(|(a, b)| (a - b).abs() < 1e-14),
            "{out:?}"
        );
    }

    #[test]
    fn a_row_index_past_the_end_is_none() {
        let m = Matrix {
            n_in: 2,
            data: vec![1.0; 6],
        };
        assert!(m.row(2).is_some() && m.row(3).is_none() && m.row(usize::MAX).is_none());
    }
}
