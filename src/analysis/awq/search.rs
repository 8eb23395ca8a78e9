//! Grid search for the AWQ scales.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_rs_lite::TensorType;
use octavo_quant::{dequantize, quantize};

use super::Inputs;

/// Ratios tried: 0, 1 / 20, ... 19 / 20.
const STEPS: usize = 20;
/// Matrix rows per unit of thread work.
const ROWS: usize = 16;
/// Smallest raw scale, before scales are centred around 1.
const SMALLEST: f32 = 1e-4;

/// A matrix and the type it is rounded to.
pub(super) struct Linear<'a> {
    /// `[rows][width of the inputs]`
    pub(super) weights: &'a [f32],
    pub(super) ty: TensorType,
}

/// Best scales found.
pub(super) struct Found {
    pub(super) ratio: f32,
    /// Scale of each input channel.
    pub(super) scales: Vec<f32>,
    pub(super) error: f64,
    pub(super) unscaled: f64,
}

/// Returns `magnitude ^ ratio`, normalised so that the largest and smallest scale are equally far
/// from 1.
fn scales(inputs: &Inputs, ratio: f32) -> Vec<f32> {
    let raw: Vec<f32> = inputs
        .magnitude
        .iter()
        .map(|m| m.powf(ratio).max(SMALLEST))
        .collect();
    let (lo, hi) = raw
        .iter()
        .fold((f32::MAX, 0f32), |(lo, hi), &s| (lo.min(s), hi.max(s)));
    let middle = (lo * hi).sqrt();
    raw.into_iter().map(|s| s / middle).collect()
}

/// Finds the ratio whose scales change the outputs of all matrices least.
pub(super) fn best_scales(
    linears: &[Linear<'_>],
    inputs: &Inputs,
    threads: usize,
) -> Result<Found, octavo_quant::Error> {
    let over_all = |row: &RowTransform<'_>| -> Result<f64, octavo_quant::Error> {
        linears.iter().try_fold(0.0, |sum, linear| {
            Ok(sum + squares(linear, inputs, threads, row)?)
        })
    };
    let energy = over_all(&|_, w, out| {
        out.copy_from_slice(w);
        Ok(())
    })?;
    let mut found: Option<Found> = None;
    let mut unscaled = 0.0;
    for step in 0..STEPS {
        let ratio = step as f32 / STEPS as f32;
        let scales = scales(inputs, ratio);
        let error = over_all(&|ty, w, out| rounding(ty, w, &scales, out))?;
        let error = if energy > 0.0 { error / energy } else { 0.0 };
        if step == 0 {
            unscaled = error;
        }
        if found.as_ref().is_none_or(|best| error < best.error) {
            found = Some(Found {
                ratio,
                scales,
                error,
                unscaled,
            });
        }
    }
    Ok(found.expect("the first is better than none"))
}

/// Computes from a weight row (and its type) the row that the inputs are multiplied by.
type RowTransform<'a> =
    dyn Fn(TensorType, &[f32], &mut [f32]) -> Result<(), octavo_quant::Error> + Sync + 'a;

/// Computes the change that rounding the scaled weights makes: rounded minus exact.
fn rounding(
    ty: TensorType,
    w: &[f32],
    scales: &[f32],
    out: &mut [f32],
) -> Result<(), octavo_quant::Error> {
    let scaled: Vec<f32> = w.iter().zip(scales).map(|(w, s)| w * s).collect();
    let mut blocks = Vec::new();
    quantize(ty, &scaled, w.len(), None, &mut blocks)?;
    dequantize(ty, &blocks, out)?;
    out.iter_mut()
        .zip(w)
        .zip(scales)
        .for_each(|((q, w), s)| *q = *q / s - w);
    Ok(())
}

/// Sums the squared outputs on the sample, with `row` applied to each of the matrix's rows.
fn squares(
    linear: &Linear<'_>,
    inputs: &Inputs,
    threads: usize,
    row: &RowTransform<'_>,
) -> Result<f64, octavo_quant::Error> {
    let width = inputs.width;
    let (next, sums) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let mut made = vec![0.0; width];
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            let rows = linear.weights.chunks(ROWS * width).nth(part)?;
            let mut sum = 0.0;
            for w in rows.chunks_exact(width) {
                if let Err(error) = row(linear.ty, w, &mut made) {
                    return Some(error);
                }
                for x in inputs.sample.chunks_exact(width) {
                    let y = f64::from(dot(&made, x));
                    sum += y * y;
                }
            }
            sums.lock()
                .expect("no panic under the lock")
                .push((part, sum));
        }
    };
    let mut failed = None;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        for thread in all {
            failed = thread
                .join()
                .expect("no panic in a search")
                .or(failed.take());
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    // add in row order, so that the result does not depend on the number of threads
    let mut sums = sums.into_inner().expect("no panic under the lock");
    sums.sort_unstable_by_key(|s| s.0);
    Ok(sums.iter().map(|s| s.1).sum())
}

/// Returns a dot product in 16 partial sums, which compilers vectorize.
fn dot(a: &[f32], b: &[f32]) -> f32 {
    const LANES: usize = 16;
    let mut sums = [0f32; LANES];
    let (a, b) = (a.as_chunks::<LANES>(), b.as_chunks::<LANES>());
    for (a, b) in a.0.iter().zip(b.0) {
        for i in 0..LANES {
            sums[i] += a[i] * b[i];
        }
    }
    let rest: f32 = a.1.iter().zip(b.1).map(|(a, b)| a * b).sum();
    sums.iter().sum::<f32>() + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    /// One loud input channel among quiet ones: its weights need precision, and the search finds
    /// that.
    #[test]
    fn loud_inputs_are_scaled_up() {
        let width = 64;
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let loud = |i: usize| if i == 5 { 30.0 } else { 1.0 };
        let sample: Vec<f32> = (0..32 * width)
            .map(|i| random() * loud(i % width))
            .collect();
        let magnitude: Vec<f32> = (0..width).map(|i| 0.25 * loud(i)).collect();
        let weights: Vec<f32> = (0..40 * width).map(|_| random()).collect();
        let inputs = Inputs {
            width,
            magnitude,
            sample,
            rows: 32,
        };
        let linear = Linear {
            weights: &weights,
            ty: TensorType::AWQ_G32,
        };
        let found = best_scales(&[linear], &inputs, 2).unwrap();
        assert!(
            found.ratio > 0.0 && found.error < 0.7 * found.unscaled,
            "{} {} {}",
            found.ratio,
            found.error,
            found.unscaled
        );
        assert!(
            found.scales[5] > 1.5 * found.scales[6],
            "{:?}",
            &found.scales[4..7]
        );
        let one = best_scales(
            &[Linear {
                weights: &weights,
                ty: TensorType::AWQ_G32,
            }],
            &inputs,
            1,
        )
        .unwrap();
        assert_eq!(found.scales, one.scales);
    }
}
