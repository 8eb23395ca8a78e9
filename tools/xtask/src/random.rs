//! Random numbers that are the same on every platform: integers until the last step, without a
//! library's logarithms or cosines.

/// splitmix64 generator.
pub(crate) struct Random(u64);

impl Random {
    /// Creates a separate stream for each name.
    pub(crate) fn new(seed: u64, name: &str) -> Random {
        // FNV-1a
        let mix = |h: u64, byte: u8| (h ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3);
        let mut random = Random(
            name.bytes().fold(0xcbf2_9ce4_8422_2325, mix)
                ^ seed.wrapping_mul(0xd134_2543_de82_ef95),
        );
        random.next();
        random
    }

    pub(crate) fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    /// Returns a number below `n`, nearly uniform for the small `n` used here.
    pub(crate) fn below(&mut self, n: usize) -> usize {
        (self.next() % n as u64) as usize
    }

    /// Returns a number from 0 up to 1.
    pub(crate) fn uniform(&mut self) -> f32 {
        (self.next() >> 40) as f32 / (1 << 24) as f32
    }

    /// Returns a nearly normal number of mean 0 and deviation 1, within 5: the sum of eight uniform
    /// 16-bit numbers.
    pub(crate) fn normal(&mut self) -> f32 {
        let sum_of_four = |x: u64| (0..4).map(|i| (x >> (16 * i)) as u16 as i32).sum::<i32>();
        let sum = sum_of_four(self.next()) + sum_of_four(self.next());
        // subtract eight times the mean, divide by the square root of 8 times the variance of one,
        // 2^32 / 12
        (sum - 8 * 32_767) as f32 / 53_509.9
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_bell_has_deviation_one_and_streams_differ() {
        let mut random = Random::new(7, "a");
        let x: Vec<f64> = (0..100_000).map(|_| f64::from(random.normal())).collect();
        let mean = x.iter().sum::<f64>() / 1e5;
        let deviation = (x.iter().map(|v| (v - mean).powi(2)).sum::<f64>() / 1e5).sqrt();
        assert!(
            mean.abs() < 0.01 && (deviation - 1.0).abs() < 0.01,
            "{mean} {deviation}"
        );
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.uniform()) && random.below(3) < 3));
        let first = |seed, name| Random::new(seed, name).next();
        assert!(first(7, "a") != first(7, "b") && first(7, "a") != first(8, "a"));
    }
}
