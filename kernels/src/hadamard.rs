//! Hadamard transforms: rotations that spread a value much larger than its neighbours over all of
//! them, which suits a format with one scale for all of them.

/// The largest order.
pub const HADAMARD_ORDER: usize = 256;

/// Factor that makes a transform of this order orthonormal: `1 / sqrt(order)`.
pub(crate) fn factor(order: usize) -> f32 {
    1.0 / (order as f32).sqrt()
}

/// Transforms a power of two of values, in place: `log2(n)` rounds of sums and differences.
pub(crate) fn transform(values: &mut [f32]) {
    let mut half = 1;
    while half < values.len() {
        for both in values.chunks_exact_mut(2 * half) {
            let (first, second) = both.split_at_mut(half);
            for (a, b) in first.iter_mut().zip(second) {
                (*a, *b) = (*a + *b, *a - *b);
            }
        }
        half *= 2;
    }
    let factor = factor(values.len());
    values.iter_mut().for_each(|value| *value *= factor);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_transform_is_the_product_with_the_matrix() {
        for n in [2usize, 4, 64, 256] {
            let x: Vec<f32> = (0..n)
                .map(|i| ((i * 37 + 11) % 101) as f32 - 50.0)
                .collect();
            let mut y = x.clone();
            transform(&mut y);
            for (row, got) in y.iter().enumerate() {
                // the sign is the parity of the ones that both numbers have
                let signed = |(col, x): (usize, &f32)| match (row & col).count_ones() % 2 {
                    0 => f64::from(*x),
                    _ => -f64::from(*x),
                };
                let sum: f64 = x.iter().enumerate().map(signed).sum();
                let expected = sum / (n as f64).sqrt();
                assert!(
                    (f64::from(*got) - expected).abs() < 1e-4,
                    "{n}: {expected}, {got}"
                );
            }
            transform(&mut y);
            let back = x
                .iter()
                .zip(&y)
                .map(|(x, y)| (x - y).abs())
                .fold(0.0, f32::max);
            assert!(back < 1e-4, "{n}: {back}");
        }
    }
}
