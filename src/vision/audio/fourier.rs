//! The discrete Fourier transform of libmtmd, with its operations in its order and precision, so
//! that spectra are equal to the bit: halves of even and odd places down to an odd length, which
//! is summed as defined.

/// Sines and cosines of a whole turn in `n` steps.
pub(super) struct Fourier {
    n: usize,
    sin: Vec<f32>,
    cos: Vec<f32>,
}

impl Fourier {
    /// Prepares transforms of `n` real values.
    pub(super) fn new(n: usize) -> Fourier {
        let angles = (0..n).map(|i| (2.0 * std::f64::consts::PI * i as f64 / n as f64) as f32);
        Fourier {
            n,
            sin: angles.clone().map(f32::sin).collect(),
            cos: angles.map(f32::cos).collect(),
        }
    }

    /// Returns the `n` values of the spectrum, as real and imaginary parts.
    ///
    /// # Panics
    /// If there are not `n` values.
    pub(super) fn transform(&self, values: &[f32]) -> Vec<[f32; 2]> {
        assert_eq!(values.len(), self.n, "values of a transform");
        self.part(values.to_vec())
    }

    fn part(&self, values: Vec<f32>) -> Vec<[f32; 2]> {
        let n = values.len();
        if n == 1 {
            return vec![[values[0], 0.0]];
        }
        if n % 2 == 1 {
            return self.odd(&values);
        }
        let every_second = |from: usize| values[from..].iter().step_by(2).copied().collect();
        let [even, odd] = [0, 1].map(|from| self.part(every_second(from)));
        let step = self.n / n;
        let mut all = vec![[0.0; 2]; n];
        for k in 0..n / 2 {
            let (re, im) = (self.cos[k * step], -self.sin[k * step]);
            let ([e_re, e_im], [o_re, o_im]) = (even[k], odd[k]);
            all[k] = [e_re + re * o_re - im * o_im, e_im + re * o_im + im * o_re];
            all[k + n / 2] = [e_re - re * o_re + im * o_im, e_im - re * o_im - im * o_re];
        }
        all
    }

    fn odd(&self, values: &[f32]) -> Vec<[f32; 2]> {
        let step = self.n / values.len();
        let value = |k: usize| {
            let (mut re, mut im) = (0.0, 0.0);
            for (i, x) in values.iter().enumerate() {
                let at = k * i * step % self.n;
                re += x * self.cos[at];
                im += -x * self.sin[at];
            }
            [re, im]
        };
        (0..values.len()).map(value).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_spectrum_is_that_of_its_definition() {
        let n = 400;
        let values: Vec<f32> = (0..n).map(|i| ((i * i) % 71) as f32 / 71.0 - 0.5).collect();
        let spectrum = Fourier::new(n).transform(&values);
        // a sum of n terms below 1/2, over log2(16) + 25 roundings of each
        let bound = 0.5 * n as f64 * 29.0 * f64::from(f32::EPSILON);
        for (k, [re, im]) in spectrum.iter().enumerate() {
            let terms = values.iter().enumerate().map(|(i, x)| {
                let angle = 2.0 * std::f64::consts::PI * (k * i % n) as f64 / n as f64;
                [f64::from(*x) * angle.cos(), -f64::from(*x) * angle.sin()]
            });
            let sum = terms.fold([0.0; 2], |sum, [re, im]| [sum[0] + re, sum[1] + im]);
            let error = (sum[0] - f64::from(*re)).hypot(sum[1] - f64::from(*im));
            assert!(error < bound, "value {k}: {error}");
        }
    }
}
