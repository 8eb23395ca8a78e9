//! Changes the sample rate as miniaudio does, which libmtmd decodes with: linear interpolation
//! beside a Butterworth low-pass filter of fourth order at half the lower rate. Every operation is
//! its, in its order and precision, so that samples are equal to the bit.

/// Second-order sections of the filter; each is of order 2.
const SECTIONS: usize = 2;

/// A second-order section in transposed direct form II.
#[derive(Clone, Copy)]
struct Biquad {
    b: [f32; 3],
    a: [f32; 2],
    state: [f32; 2],
}

impl Biquad {
    /// Returns the section with index `i` of a low-pass filter at `cutoff`, a fraction of the rate.
    fn low_pass(cutoff: f64, i: usize) -> Biquad {
        use std::f64::consts::{FRAC_PI_2, PI};
        // miniaudio has its cosines from sines
        let cos = |x: f64| (FRAC_PI_2 - x).sin();
        let angle = (1 + 2 * i) as f64 * (PI / (4 * SECTIONS) as f64);
        let q = 1.0 / (2.0 * cos(angle));
        let w = 2.0 * PI * cutoff;
        let (s, c) = (w.sin(), cos(w));
        let a = s / (2.0 * q);
        let a0 = 1.0 + a;
        let over = |x: f64| (x / a0) as f32;
        Biquad {
            b: [over((1.0 - c) / 2.0), over(1.0 - c), over((1.0 - c) / 2.0)],
            a: [over(-2.0 * c), over(1.0 - a)],
            state: [0.0; 2],
        }
    }

    fn filter(&mut self, x: f32) -> f32 {
        let Biquad { b, a, state } = self;
        let y = b[0] * x + state[0];
        *state = [b[1] * x - a[0] * y + state[1], b[2] * x - a[1] * y];
        y
    }
}

/// Returns samples at rate `to` of samples at rate `from`, both above 0.
pub(super) fn resample(samples: Vec<f32>, from: u32, to: u32) -> Vec<f32> {
    if from == to {
        return samples;
    }
    let n_output = output_len(samples.len() as u64, from, to) as usize;
    let common = gcd(from, to);
    let (from, to) = (u64::from(from / common), u64::from(to / common));
    let cutoff = (from.min(to) as f64 * 0.5) / from.max(to) as f64;
    let mut sections: [Biquad; SECTIONS] = std::array::from_fn(|i| Biquad::low_pass(cutoff, i));
    let mut filter = |x: f32| sections.iter_mut().fold(x, |x, s| s.filter(x));
    let falls = from > to;
    let mut output = Vec::with_capacity(n_output);
    let (mut before, mut after) = (0.0, 0.0);
    // whole samples to read before the next result, and how far it lies behind them, over `to`
    let (mut whole, mut rest) = (1, 0);
    let mut input = samples.into_iter();
    while output.len() < n_output {
        for _ in 0..whole {
            let Some(sample) = input.next() else {
                output.resize(n_output, 0.0);
                return output;
            };
            before = after;
            after = if falls { filter(sample) } else { sample };
        }
        let at = rest as f32 / to as f32;
        let between = before + (after - before) * at;
        output.push(if falls { between } else { filter(between) });
        rest += from % to;
        whole = from / to + rest / to;
        rest %= to;
    }
    output
}

/// Returns the number of samples that miniaudio promises, of rates as they are: one more than it
/// has where the quotient of the rates is whole, and libmtmd reads that as 0.
fn output_len(n_input: u64, from: u32, to: u32) -> u64 {
    let (from, to) = (u64::from(from), u64::from(to));
    let n = n_input * to / from;
    let needed = n * (from % to) + n * (from / to) / to;
    n + u64::from(n_input > 0 && needed <= n_input)
}

fn gcd(a: u32, b: u32) -> u32 {
    if b == 0 { a } else { gcd(b, a % b) }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_follow_the_ratio() {
        assert_eq!(resample(vec![0.5; 160], 16_000, 16_000), vec![0.5; 160]);
        let len = |n: usize, from: u32| resample(vec![0.5; n], from, 16_000).len();
        assert_eq!([len(4410, 44_100), len(800, 8000)], [1600, 1600]);
        assert_eq!([len(0, 8000), len(0, 48_000)], [0, 0]);
        let halves = resample(vec![0.5; 9600], 32_000, 16_000);
        assert_eq!((halves.len(), halves[4800]), (4801, 0.0));
    }

    #[test]
    fn a_constant_stays_and_high_tones_vanish() {
        let last = |samples: Vec<f32>| samples[15_999];
        let constant = last(resample(vec![0.5; 48_000], 48_000, 16_000));
        assert!((constant - 0.5).abs() < 1e-5, "{constant}");
        let tone = (0..48_000).map(|i| if i % 2 == 0 { 1.0 } else { -1.0 });
        let tone = last(resample(tone.collect(), 48_000, 16_000));
        assert!(tone.abs() < 1e-3, "{tone}");
    }
}
