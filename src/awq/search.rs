//! The search for scales.

use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};

use gguf_rs_lite::TensorType;
use octavo_quant::{dequantize, quantize};

use super::Inputs;

/// Ratios that are tried: 0, 1 / 20, ... 19 / 20.
const STEPS: usize = 20;
/// Rows that a thread takes at a time.
const ROWS: usize = 16;
/// The smallest scale before they are brought around 1.
const SMALLEST: f32 = 1e-4;

/// A matrix, and what it is rounded to.
pub(super) struct Linear<'a> {
    /// `[rows][width of the inputs]`
    pub(super) weights: &'a [f32],
    pub(super) ty: TensorType,
}

/// What was found.
pub(super) struct Found {
    pub(super) ratio: f32,
    /// Of each input.
    pub(super) scales: Vec<f32>,
    pub(super) error: f64,
    pub(super) unscaled: f64,
}

/// The scales of magnitudes to the power of a ratio: their largest and smallest are as far from 1.
fn scales(inputs: &Inputs, ratio: f32) -> Vec<f32> {
    let raw: Vec<f32> = inputs.magnitude.iter().map(|m| m.powf(ratio).max(SMALLEST)).collect();
    let (lo, hi) = raw.iter().fold((f32::MAX, 0f32), |(lo, hi), &s| (lo.min(s), hi.max(s)));
    let middle = (lo * hi).sqrt();
    raw.into_iter().map(|s| s / middle).collect()
}

/// The ratio whose scales change the outputs of all matrices least.
pub(super) fn best_scales(
    linears: &[Linear<'_>],
    inputs: &Inputs,
    threads: usize,
) -> Result<Found, octavo_quant::Error> {
    let mut found: Option<Found> = None;
    let mut unscaled = 0.0;
    for step in 0..STEPS {
        let ratio = step as f32 / STEPS as f32;
        let scales = scales(inputs, ratio);
        let (mut error, mut energy) = (0.0, 0.0);
        for linear in linears {
            let sums = outputs(linear, inputs, &scales, threads)?;
            error += sums.0;
            energy += sums.1;
        }
        let error = if energy > 0.0 { error / energy } else { 0.0 };
        if step == 0 {
            unscaled = error;
        }
        if found.as_ref().is_none_or(|best| error < best.error) {
            found = Some(Found { ratio, scales, error, unscaled });
        }
    }
    Ok(found.expect("the first is better than none"))
}

/// The squared differences of a matrix's outputs on the sample when its scaled weights are rounded, and the squares of the
/// outputs, both summed.
fn outputs(
    linear: &Linear<'_>,
    inputs: &Inputs,
    scales: &[f32],
    threads: usize,
) -> Result<(f64, f64), octavo_quant::Error> {
    let width = inputs.width;
    let (next, sums) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    let work = || {
        let (mut scaled, mut rounded, mut blocks) = (Vec::new(), vec![0.0; width], Vec::new());
        loop {
            let part = next.fetch_add(1, Ordering::Relaxed);
            let rows = linear.weights.chunks(ROWS * width).nth(part)?;
            let mut sum = (0.0, 0.0);
            for w in rows.chunks_exact(width) {
                scaled.clear();
                scaled.extend(w.iter().zip(scales).map(|(w, s)| w * s));
                blocks.clear();
                let result = quantize(linear.ty, &scaled, width, None, &mut blocks)
                    .and_then(|()| dequantize(linear.ty, &blocks, &mut rounded));
                if let Err(error) = result {
                    return Some(error);
                }
                rounded.iter_mut().zip(w).zip(scales).for_each(|((q, w), s)| *q = *q / s - w);
                for x in inputs.sample.chunks_exact(width) {
                    let (d, y) = (dot(&rounded, x), dot(w, x));
                    sum.0 += f64::from(d) * f64::from(d);
                    sum.1 += f64::from(y) * f64::from(y);
                }
            }
            sums.lock().expect("no panic under the lock").push((part, sum));
        }
    };
    let mut failed = None;
    std::thread::scope(|scope| {
        let all: Vec<_> = (0..threads.max(1)).map(|_| scope.spawn(work)).collect();
        for thread in all {
            failed = thread.join().expect("no panic in a search").or(failed.take());
        }
    });
    if let Some(error) = failed {
        return Err(error);
    }
    // in order, so that the number of threads leaves no trace
    let mut sums = sums.into_inner().expect("no panic under the lock");
    sums.sort_unstable_by_key(|s| s.0);
    Ok(sums.iter().fold((0.0, 0.0), |(a, b), s| (a + s.1.0, b + s.1.1)))
}

/// A product of vectors in as many sums as a compiler makes a vector of.
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

    /// One loud input among quiet ones: its weights need precision, and the search finds that.
    #[test]
    fn loud_inputs_are_scaled_up() {
        let width = 64;
        let mut state = 1u32;
        let mut random = || {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            (state >> 8) as f32 / (1 << 24) as f32 - 0.5
        };
        let loud = |i: usize| if i == 5 { 30.0 } else { 1.0 };
        let sample: Vec<f32> = (0..32 * width).map(|i| random() * loud(i % width)).collect();
        let magnitude: Vec<f32> = (0..width).map(|i| 0.25 * loud(i)).collect();
        let weights: Vec<f32> = (0..40 * width).map(|_| random()).collect();
        let inputs = Inputs { width, magnitude, sample, rows: 32 };
        let linear = Linear { weights: &weights, ty: TensorType::AWQ_G32 };
        let found = best_scales(&[linear], &inputs, 2).unwrap();
        assert!(
            found.ratio > 0.0 && found.error < 0.7 * found.unscaled,
            "{} {} {}",
            found.ratio,
            found.error,
            found.unscaled
        );
        assert!(found.scales[5] > 1.5 * found.scales[6], "{:?}", &found.scales[4..7]);
        let one = best_scales(&[Linear { weights: &weights, ty: TensorType::AWQ_G32 }], &inputs, 1).unwrap();
        assert_eq!(found.scales, one.scales);
    }
}
