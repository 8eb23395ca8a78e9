//! Error rules of operations that need only the errors and sizes of their inputs.

use octavo_kernels::{Activation, Function};

use super::{ErrorBound, Stats, U};

/// Applies `one` to every row; it returns (error, size).
pub(super) fn each_row(n: usize, one: impl Fn(usize) -> (f64, f64)) -> ErrorBound {
    let (error, size) = (0..n).map(one).unzip();
    ErrorBound { error, size }
}

pub(super) fn same(n: usize, x: &Stats) -> ErrorBound {
    each_row(n, |r| (x.error[r], x.size[r]))
}

/// Explains a value that is the same in both executions.
pub(super) fn constant(n: usize, size: f64) -> ErrorBound {
    each_row(n, |_| (0.0, size))
}

pub(super) fn merge(n: usize, x: &Stats, rows: usize) -> ErrorBound {
    let together = |of: &[f64], r: usize| rms_of(&of[rows * r..][..rows]);
    each_row(n, |r| (together(&x.error, r), together(&x.size, r)))
}

pub(super) fn concat(n: usize, a: &Stats, b: &Stats, each: [usize; 2]) -> ErrorBound {
    let each = each.map(|part| part as f64);
    let both = |a: f64, b: f64| ((each[0] * a * a + each[1] * b * b) / (each[0] + each[1])).sqrt();
    each_row(n, |r| {
        (both(a.error[r], b.error[r]), both(a.size[r], b.size[r]))
    })
}

/// Explains a part of a row, which may hold all of the row's error and size.
pub(super) fn slice(n: usize, x: &Stats, each: usize, width: usize) -> ErrorBound {
    let share = (each as f64 / width as f64).sqrt();
    each_row(n, |r| (share * x.error[r], share * x.size[r]))
}

pub(super) fn bias(n: usize, x: &Stats, bias: f64) -> ErrorBound {
    each_row(n, |r| {
        let size = x.size[r] + bias;
        (x.error[r] + U * size, size)
    })
}

pub(super) fn rotation(n: usize, x: &Stats, magnitude: f64) -> ErrorBound {
    each_row(n, |r| {
        let error = x.error[r] + 8.0 * U * x.size[r];
        (magnitude * error, magnitude * x.size[r])
    })
}

/// Explains a Hadamard transform: one rounding per addition a value passes through, and one for the
/// factor.
pub(super) fn hadamard(n: usize, x: &Stats, order: usize) -> ErrorBound {
    let roundings = f64::from(order.ilog2() + 2);
    each_row(n, |r| (x.error[r] + roundings * U * x.size[r], x.size[r]))
}

pub(super) fn gate(n: usize, gate: &Stats, up: &Stats, act: Activation) -> ErrorBound {
    // gpt-oss adds 1 to the up projection before gating
    let more = f64::from(u8::from(act == Activation::SwigluOai));
    each_row(n, |r| {
        let factor = up.size[r] + more;
        let error = 1.13 * gate.error[r] * factor + gate.size[r] * up.error[r];
        let size = gate.size[r] * factor;
        (4.0 * error + 16.0 * U * size, size)
    })
}

/// Explains a scale that follows the number of whole steps up to a position.
pub(super) fn scale_by_position(
    n: usize,
    x: &Stats,
    steps: impl Fn(usize) -> usize,
    rate: f32,
) -> ErrorBound {
    each_row(n, |r| {
        let factor = 1.0 + f64::from(rate) * ((1 + steps(r)) as f64).ln();
        let size = factor * x.size[r];
        (factor * x.error[r] + 2.0 * U * size, size)
    })
}

pub(super) fn sum(n: usize, a: &Stats, b: &Stats) -> ErrorBound {
    each_row(n, |r| {
        let size = a.size[r] + b.size[r];
        (a.error[r] + b.error[r] + U * size, size)
    })
}

pub(super) fn elementwise_product(n: usize, a: &Stats, b: &Stats) -> ErrorBound {
    each_row(n, |r| {
        let size = a.size[r] * b.size[r];
        let error = a.error[r] * b.size[r] + a.size[r] * b.error[r];
        (4.0 * error + 4.0 * U * size, size)
    })
}

/// Explains a product with factors of at most `by`.
pub(super) fn factors(n: usize, x: &Stats, by: f64) -> ErrorBound {
    each_row(n, |r| {
        let size = by * x.size[r];
        (by * x.error[r] + U * size, size)
    })
}

pub(super) fn softmax(n: usize, x: &Stats, width: f64) -> ErrorBound {
    each_row(n, |r| {
        let size = 1.0 / width.sqrt();
        // arguments are rounded too, the largest in proportion to its size
        let own = U * (16.0 + width.sqrt() * (1.0 + x.size[r])) * size;
        (0.5 * x.error[r] + own, size)
    })
}

/// Explains a gather of one out of `of` values: the largest may be among them, with all of the
/// error.
pub(super) fn gather(n: usize, x: &Stats, ids: &Stats, of: f64) -> ErrorBound {
    let few = of.max(1.0).sqrt();
    each_row(n, |r| {
        let size = few * x.size[r];
        (few * x.error[r] + others(ids, r, size), size)
    })
}

pub(super) fn normalize(n: usize, x: &Stats, width: f64, least: f32) -> ErrorBound {
    each_row(n, |r| {
        let sum = (width.sqrt() * x.size[r]).max(least.into());
        let size = x.size[r] / sum;
        let error = x.error[r] / sum * (1.0 + width.sqrt());
        (error + U * (width + 1.0) * size, size)
    })
}

/// Adds the error that other expert choices may cause to a value computed from `ids`.
pub(super) fn of_choices(mut bound: ErrorBound, ids: &Stats) -> ErrorBound {
    for (r, error) in bound.error.iter_mut().enumerate() {
        *error += others(ids, r, bound.size[r]);
    }
    bound
}

pub(super) fn expert_bias(n: usize, x: &Stats, ids: &Stats, bias: f64) -> ErrorBound {
    each_row(n, |r| {
        let size = x.size[r] + bias;
        (x.error[r] + U * size + others(ids, r, bias), size)
    })
}

pub(super) fn of_function(n: usize, x: &Stats, f: Function) -> ErrorBound {
    each_row(n, |r| unary(f, x.error[r], x.size[r]))
}

/// Returns error and size of a function's value from those of its argument. Only an upper bound of
/// the size is known, so a few roundings of it are allowed for.
fn unary(f: Function, error: f64, size: f64) -> (f64, f64) {
    match f {
        Function::SoftCap(cap) => {
            let size = size.min(cap.into());
            (error + 16.0 * U * size, size)
        }
        Function::Scale(factor) => {
            let factor = f64::from(factor.abs());
            (factor * (error + U * size), factor * size)
        }
        Function::Clamp(low, high) => {
            let most = f64::from(low.abs().max(high.abs()));
            (error, size.min(most))
        }
        Function::Gelu => (1.13 * error + 16.0 * U * size, size),
        // values are not all alike: the square of a row's rms is less than the rms of the squares
        Function::SquaredRelu => (
            4.0 * (2.0 * size * error + U * size * size),
            4.0 * size * size,
        ),
        Function::Sigmoid => (error + 16.0 * U, 1.0),
        Function::Silu => (1.13 * error + 16.0 * U * size, size),
        Function::Softplus => {
            let size = size + std::f64::consts::LN_2;
            (error + 16.0 * U * size, size)
        }
        // for x <= 0, a relative change of x changes e^x by no more than that fraction of 1 / e,
        // however large x is
        Function::Exp => {
            let part = error / size.max(f64::MIN_POSITIVE);
            (error.min(0.4 * part) + 16.0 * U, 1.0)
        }
        // as the square where there is one: see above
        Function::Xielu(by) => {
            let [positive, negative, linear] =
                [by.positive, by.negative, by.linear].map(|by| f64::from(by.abs()));
            let value = linear * size + negative * size + 4.0 * positive * size * size;
            let slope = linear + negative + 8.0 * positive * size;
            (slope * error + 16.0 * U * value, value)
        }
    }
}

/// Returns the error that other expert choices may cause in a value of this size: twice all of it.
fn others(ids: &Stats, row: usize, size: f64) -> f64 {
    if ids.error[row] > 0.0 {
        2.0 * size
    } else {
        0.0
    }
}

/// Returns the rms of errors or sizes that each cover equally many values.
pub(super) fn rms_of(x: &[f64]) -> f64 {
    (x.iter().map(|x| x * x).sum::<f64>() / x.len().max(1) as f64).sqrt()
}

pub(super) fn rms(x: &[f32]) -> f64 {
    (x.iter().map(|x| f64::from(*x).powi(2)).sum::<f64>() / x.len().max(1) as f64).sqrt()
}

pub(super) fn largest(x: &[f32]) -> f64 {
    x.iter().fold(0.0, |m, x| m.max(f64::from(x.abs())))
}
