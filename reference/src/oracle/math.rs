//! The operations of a transformer layer, in f64, straight from their formulas. All arrays are
//! `(n_tokens, width)`.

use std::ops::Range;

/// A weight of `n_in` columns; each row yields one output.
pub(super) struct Matrix {
    pub(super) n_in: usize,
    pub(super) data: Vec<f32>, // (n_out, n_in)
}

impl Matrix {
    pub(super) fn row(&self, index: usize) -> Option<&[f32]> {
        let start = index.checked_mul(self.n_in)?;
        self.data.get(start..start.checked_add(self.n_in)?)
    }

    /// Computes `y[t][o] = Σ_i w[o][i] · x[t][i]`. A row is converted to f64 once, then multiplied
    /// with every token.
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

/// Computes the dot product with eight partial sums, so that the additions are independent and the
/// compiler may vectorise them.
pub(super) fn dot(a: &[f64], b: &[f64]) -> f64 {
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

/// Computes `x / sqrt(mean(x²) + eps) ⊙ weight`, for every group of `weight.len()` values.
pub(super) fn rms_norm(x: &[f64], weight: &[f64], eps: f64) -> Vec<f64> {
    rms_norm_groups(x, weight.len().max(1), weight, eps)
}

/// Does the same for every group of `width` values; the groups of a row use consecutive weights.
pub(super) fn rms_norm_groups(x: &[f64], width: usize, weight: &[f64], eps: f64) -> Vec<f64> {
    x.chunks(width)
        .zip(weight.chunks(width).cycle())
        .flat_map(|(row, weight)| {
            let scale = 1.0 / (dot(row, row) / width as f64 + eps).sqrt();
            row.iter().zip(weight).map(move |(x, w)| x * scale * w)
        })
        .collect()
}

/// Computes `(x - mean) / sqrt(variance + eps) ⊙ weight`, for every group of `width` values; the
/// groups of a row use consecutive weights.
pub(super) fn layer_norm(x: &[f64], width: usize, weight: &[f64], eps: f64) -> Vec<f64> {
    x.chunks(width)
        .zip(weight.chunks(width).cycle())
        .flat_map(|(row, weight)| {
            let mean = row.iter().sum::<f64>() / width as f64;
            let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / width as f64;
            let scale = 1.0 / (variance + eps).sqrt();
            let normed = row.iter().zip(weight);
            normed.map(move |(x, w)| (x - mean) * scale * w)
        })
        .collect()
}

/// Activation of the feed-forward block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Activation {
    Silu,
    /// Tanh approximation, as in ggml.
    Gelu,
    /// Sigmoid approximation, as in ggml.
    GeluQuick,
    ReluSquared,
    Relu,
    /// xIELU, whose coefficients belong to a layer; always ungated.
    Xielu,
    /// gpt-oss: steeper, with gate and up clamped to 7; always gated, with 1 added to up.
    SiluClamped,
}

impl Activation {
    /// Applies the activation to one value.
    pub(super) fn of(self, x: f64) -> f64 {
        match self {
            Self::Silu => x * sigmoid(x),
            Self::Gelu => {
                let inner = (2.0 / std::f64::consts::PI).sqrt() * x * (1.0 + 0.044715 * x * x);
                0.5 * x * (1.0 + inner.tanh())
            }
            Self::GeluQuick => x * sigmoid(1.702 * x),
            Self::ReluSquared => x.max(0.0).powi(2),
            Self::Relu => x.max(0.0),
            Self::Xielu => unreachable!("a layer's coefficients are known where it is applied"),
            Self::SiluClamped => {
                let x = x.min(7.0);
                x * sigmoid(1.702 * x)
            }
        }
    }

    /// Computes `activation(gate) ⊙ up`.
    pub(super) fn gated(self, gate: &[f64], up: &[f64]) -> Vec<f64> {
        let gated = |u: f64| match self {
            Self::SiluClamped => u.clamp(-7.0, 7.0) + 1.0,
            _ => u,
        };
        let pairs = gate.iter().zip(up);
        pairs.map(|(&g, &u)| self.of(g) * gated(u)).collect()
    }

    /// Returns llama.cpp's name for ungated activations.
    pub(super) fn plain_name(self) -> &'static str {
        match self {
            Self::Silu | Self::SiluClamped => "ffn_silu",
            Self::Gelu => "ffn_gelu",
            Self::GeluQuick => "ffn_gelu_quick",
            Self::ReluSquared => "ffn_sqr(relu)",
            Self::Relu => "ffn_relu",
            Self::Xielu => "ffn_xielu",
        }
    }

    /// Returns llama.cpp's name for the gated product.
    pub(super) fn gated_name(self) -> &'static str {
        match self {
            Self::Silu => "swiglu",
            Self::Gelu => "geglu",
            Self::GeluQuick => "geglu_quick",
            Self::ReluSquared | Self::Relu | Self::Xielu => "reglu",
            Self::SiluClamped => "swiglu_oai",
        }
    }
}

pub(super) fn sigmoid(x: f64) -> f64 {
    1.0 / (1.0 + (-x).exp())
}

/// Computes `ln(1 + exp(x))`, as in ggml.
pub(super) fn softplus(x: f64) -> f64 {
    if x > 20.0 { x } else { x.exp().ln_1p() }
}

/// Applies a causal convolution: each of `width` columns has its own kernel, whose last value
/// applies to the current row; rows before the first are zeros.
pub(super) fn convolve(x: &[f64], width: usize, kernels: &[f64]) -> Vec<f64> {
    let size = kernels.len() / width;
    let mut y = vec![0.0; x.len()];
    for (pos, row) in y.chunks_mut(width).enumerate() {
        for back in 0..size.min(pos + 1) {
            let seen = &x[(pos - back) * width..][..width];
            for (column, (y, x)) in row.iter_mut().zip(seen).enumerate() {
                *y += kernels[(column + 1) * size - 1 - back] * x;
            }
        }
    }
    y
}

/// Computes `c · tanh(x / c)`.
pub(super) fn cap(x: f64, c: f64) -> f64 {
    c * (x / c).tanh()
}

/// Returns some columns of rows of `width` values.
pub(super) fn columns(x: &[f64], width: usize, range: Range<usize>) -> Vec<f64> {
    x.chunks(width)
        .flat_map(|row| &row[range.clone()])
        .copied()
        .collect()
}

/// Computes `x *= factor`.
pub(super) fn scale(x: &mut [f64], factor: f64) {
    x.iter_mut().for_each(|x| *x *= factor);
}

/// Adds `bias` to every row.
pub(super) fn add_bias(x: &mut [f64], bias: &[f64]) {
    for row in x.chunks_mut(bias.len().max(1)) {
        add_into(row, bias);
    }
}

/// Computes `x += y`.
pub(super) fn add_into(x: &mut [f64], y: &[f64]) {
    x.iter_mut().zip(y).for_each(|(x, y)| *x += y);
}

/// Attention of one layer.
#[derive(Debug)]
pub(super) struct Attention<'a> {
    /// Width of a query or key.
    pub(super) head_dim: usize,
    pub(super) value_dim: usize,
    pub(super) n_head: usize,
    pub(super) n_head_kv: usize,
    /// Factor on scores.
    pub(super) scale: f64,
    /// Soft cap on scores, after that.
    pub(super) cap: Option<f64>,
    /// Number of keys a query sees, including its own; with bidirectional attention, half as many
    /// on either side.
    pub(super) window: Option<usize>,
    /// Whether the window begins at the last multiple of its length, instead of moving.
    pub(super) chunked: bool,
    /// Whether later keys are hidden.
    pub(super) causal: bool,
    /// Attention sinks: one score per head without a value.
    pub(super) sinks: Option<&'a [f64]>,
    /// Positions that each query sees, of those it would see otherwise.
    pub(super) chosen: Option<&'a [Vec<usize>]>,
    /// Fall of each head's scores with each position between query and key.
    pub(super) slopes: Option<&'a [f64]>,
}

impl Attention<'_> {
    /// Computes `softmax(scale · q·k) · v` over the positions that each query sees. Query head `h`
    /// reads KV head `h / (n_head / n_head_kv)`.
    pub(super) fn run(&self, q: &[f64], k: &[f64], v: &[f64]) -> Vec<f64> {
        let (key_dim, value_dim) = (self.head_dim, self.value_dim);
        let (q_width, out_width) = (self.n_head * key_dim, self.n_head * value_dim);
        let n = q.len() / q_width;
        let mut out = vec![0.0; n * out_width];
        let rows = q.chunks(q_width).zip(out.chunks_mut(out_width));
        for (pos, (q, out)) in rows.enumerate() {
            let chosen = self.chosen.map(|chosen| &chosen[pos]);
            let is_chosen = |t: &usize| chosen.is_none_or(|chosen| chosen.contains(t));
            let seen: Vec<usize> = self.seen(pos, n).filter(is_chosen).collect();
            let heads = q.chunks(key_dim).zip(out.chunks_mut(value_dim));
            for (h, (q, out)) in heads.enumerate() {
                let head = h / (self.n_head / self.n_head_kv);
                let row = |t: usize| t * self.n_head_kv + head;
                let key = |t: usize| &k[row(t) * key_dim..][..key_dim];
                let slope = self.slopes.map_or(0.0, |slopes| slopes[h]);
                let fall = |t: usize| slope * pos.abs_diff(t) as f64;
                let scores = seen.iter().map(|&t| self.score(q, key(t)) - fall(t));
                let p = softmax_beside(scores.collect(), self.sinks.map(|sinks| sinks[h]));
                for (&t, p) in seen.iter().zip(p) {
                    out.iter_mut()
                        .zip(&v[row(t) * value_dim..][..value_dim])
                        .for_each(|(out, v)| *out += p * v);
                }
            }
        }
        out
    }

    /// Returns the positions, of `n`, that the query at `pos` sees.
    fn seen(&self, pos: usize, n: usize) -> Range<usize> {
        match (self.causal, self.window) {
            (true, None) => 0..pos + 1,
            (true, Some(chunk)) if self.chunked => pos / chunk * chunk..pos + 1,
            (true, Some(window)) => (pos + 1).saturating_sub(window)..pos + 1,
            (false, None) => 0..n,
            (false, Some(window)) => {
                let reach = window / 2;
                pos.saturating_sub(reach)..n.min((pos + 1).saturating_add(reach))
            }
        }
    }

    fn score(&self, q: &[f64], k: &[f64]) -> f64 {
        let score = dot(q, k) * self.scale;
        self.cap.map_or(score, |c| cap(score, c))
    }
}

/// Returns the softmax of scores and a sink, without the sink's share.
fn softmax_beside(mut scores: Vec<f64>, sink: Option<f64>) -> Vec<f64> {
    let all = scores.iter().copied().chain(sink);
    let max = all.fold(f64::NEG_INFINITY, f64::max);
    scores.iter_mut().for_each(|p| *p = (*p - max).exp());
    let sum = scores.iter().sum::<f64>() + sink.map_or(0.0, |sink| (sink - max).exp());
    scores.iter_mut().for_each(|p| *p /= sum);
    scores
}

/// Computes the softmax of every row of `width` values.
pub(super) fn softmax_rows(x: &[f64], width: usize) -> Vec<f64> {
    x.chunks(width)
        .flat_map(|row| softmax_beside(row.to_vec(), None))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    const ONE_HEAD: Attention<'_> = Attention {
        head_dim: 1,
        value_dim: 1,
        n_head: 1,
        n_head_kv: 1,
        scale: 1.0,
        cap: None,
        window: None,
        chunked: false,
        causal: true,
        sinks: None,
        chosen: None,
        slopes: None,
    };

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
        let attention = Attention {
            head_dim: 2,
            value_dim: 2,
            n_head: 2,
            ..ONE_HEAD
        };
        assert_eq!(attention.run(&q, &k, &v), [4.0, 7.0, 4.0, 7.0]);
    }

    #[test]
    fn equal_scores_average_the_past() {
        let (q, k, v) = ([0.0; 3], [1.0, 2.0, 3.0], [3.0, 6.0, 12.0]);
        let close = |out: Vec<f64>, expected: [f64; 3]| {
            assert!(
                out.iter().zip(expected).all(|(a, b)| (a - b).abs() < 1e-14),
                "{out:?}"
            );
        };
        close(ONE_HEAD.run(&q, &k, &v), [3.0, 4.5, 7.0]);
        let window = Some(2);
        close(
            Attention { window, ..ONE_HEAD }.run(&q, &k, &v),
            [3.0, 4.5, 9.0],
        );
        let chunks = Attention {
            window: Some(2),
            chunked: true,
            ..ONE_HEAD
        };
        close(chunks.run(&q, &k, &v), [3.0, 4.5, 12.0]);
        let all = Attention {
            causal: false,
            ..ONE_HEAD
        };
        close(all.run(&q, &k, &v), [7.0; 3]);
        // a window of 3 reaches one position on either side
        for window in [Some(2), Some(3)] {
            close(Attention { window, ..all }.run(&q, &k, &v), [4.5, 7.0, 9.0]);
        }
        // keys at distance 0, 1 and 2 weigh 1, 1/2 and 1/4
        let slopes = Some(&[2f64.ln()][..]);
        close(
            Attention { slopes, ..ONE_HEAD }.run(&q, &k, &v),
            [3.0, 5.0, 63.0 / 7.0],
        );
        // an additional score of 0, beside one, two and three of them
        let sinks = Some(&[0.0][..]);
        close(
            Attention { sinks, ..ONE_HEAD }.run(&q, &k, &v),
            [1.5, 3.0, 5.25],
        );
    }

    #[test]
    fn a_layer_norm_takes_the_weights_of_each_group_in_turn() {
        let x = [1.0, 3.0, 5.0, 9.0, 2.0, 0.0, 0.0, 4.0];
        let normed = layer_norm(&x, 2, &[1.0, 2.0, 3.0, 4.0], 0.0);
        assert_eq!(normed, [-1.0, 2.0, -3.0, 4.0, 1.0, -2.0, -3.0, 4.0]);
    }

    #[test]
    fn activations_are_those_of_the_definitions() {
        let close = |a: f64, b: f64| assert!((a - b).abs() < 1e-12, "{a} {b}");
        close(Activation::Silu.of(1.0), 0.731_058_578_630_004_9);
        close(Activation::Gelu.of(1.0), 0.841_191_990_608_276_1);
        close(
            Activation::GeluQuick.of(-1.0),
            -1.0 / (1.0 + 1.702f64.exp()),
        );
        close(Activation::ReluSquared.of(-2.0), 0.0);
        close(Activation::ReluSquared.of(3.0), 9.0);
        let clamped = Activation::SiluClamped.gated(&[1.0, 9.0], &[0.5, -9.0]);
        close(clamped[0], 1.5 / (1.0 + (-1.702f64).exp()));
        close(clamped[1], -6.0 * 7.0 / (1.0 + (-1.702f64 * 7.0).exp()));
        close(cap(30.0, 3.0), 3.0 * 10f64.tanh());
    }

    #[test]
    fn a_convolution_sees_the_latest_rows() {
        let x = [1.0, 10.0, 2.0, 20.0, 3.0, 30.0];
        // columns 1, 2, 3 with kernel (4, 5), and 10, 20, 30 with (0, 1)
        let y = convolve(&x, 2, &[4.0, 5.0, 0.0, 1.0]);
        assert_eq!(y, [5.0, 10.0, 14.0, 20.0, 23.0, 30.0]);
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
