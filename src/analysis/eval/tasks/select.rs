//! The random choice of tasks that llama-perplexity makes: the 32-bit Mersenne Twister (Matsumoto,
//! Nishimura 1998) with seed 1, and two ways to draw a place.

const N: usize = 624;
const M: usize = 397;

/// The generator that C++ calls `mt19937`.
struct Twister {
    state: [u32; N],
    next: usize,
}

impl Twister {
    fn new(seed: u32) -> Twister {
        let mut state = [seed; N];
        for i in 1..N {
            let last = state[i - 1];
            state[i] = 1_812_433_253u32
                .wrapping_mul(last ^ (last >> 30))
                .wrapping_add(i as u32);
        }
        Twister { state, next: N }
    }

    fn twist(&mut self) {
        for i in 0..N {
            let (this, next) = (self.state[i], self.state[(i + 1) % N]);
            let both = (this & 0x8000_0000) | (next & 0x7fff_ffff);
            let odd = match both & 1 {
                1 => 0x9908_b0df,
                _ => 0,
            };
            self.state[i] = self.state[(i + M) % N] ^ (both >> 1) ^ odd;
        }
        self.next = 0;
    }

    fn draw(&mut self) -> u32 {
        if self.next == N {
            self.twist();
        }
        let mut y = self.state[self.next];
        self.next += 1;
        y ^= y >> 11;
        y ^= (y << 7) & 0x9d2c_5680;
        y ^= (y << 15) & 0xefc6_0000;
        y ^ (y >> 18)
    }

    /// Draws a number below `n` as libstdc++'s `uniform_int_distribution` does since GCC 11, by
    /// Lemire's method (2019).
    fn below(&mut self, n: u32) -> u32 {
        let mut product = u64::from(self.draw()) * u64::from(n);
        if (product as u32) < n {
            let threshold = n.wrapping_neg() % n;
            while (product as u32) < threshold {
                product = u64::from(self.draw()) * u64::from(n);
            }
        }
        (product >> 32) as u32
    }
}

/// Returns which of `all` tasks HellaSwag takes, `n` of them: drawn in an order that is random even
/// if all are taken, those left keep their order.
pub(super) fn in_random_order(all: usize, n: usize) -> Vec<usize> {
    let mut random = Twister::new(1);
    let mut left: Vec<usize> = (0..all).collect();
    let draw = |_| {
        // a file of text has fewer tasks than 2^32
        let at = random.below(left.len() as u32);
        left.remove(at as usize)
    };
    (0..n.min(all)).map(draw).collect()
}

/// Returns which of `all` tasks the other two take, `n` of them: by a product of floats, and the
/// last one that is left takes the place of the one that is drawn. All of them stay in order.
pub(super) fn sample(all: usize, n: usize) -> Vec<usize> {
    if n == 0 || n >= all {
        return (0..all).collect();
    }
    let mut random = Twister::new(1);
    let mut left: Vec<usize> = (0..all).collect();
    let scale = 1.0 / (1.0 + u32::MAX as f32);
    let draw = |_| {
        let at = (scale * random.draw() as f32 * left.len() as f32) as usize;
        // the product can be rounded up to the number itself
        left.swap_remove(at.min(left.len() - 1))
    };
    (0..n).map(draw).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Compares with a C++ program of libstdc++.
    #[test]
    fn numbers_and_choices_are_those_of_cpp() {
        let mut random = Twister::new(1);
        let first = [random.draw(), random.draw(), random.draw()];
        assert_eq!(first, [1_791_095_845, 4_282_876_139, 3_093_770_124]);
        for _ in 3..2000 {
            random.draw();
        }
        assert_eq!(random.draw(), 1_399_343_165);
        assert_eq!(in_random_order(10, 10), [4, 9, 6, 8, 0, 1, 3, 7, 2, 5]);
        assert_eq!(in_random_order(10, 3), [4, 9, 6]);
        assert_eq!(sample(10, 6), [4, 8, 5, 6, 0, 7]);
        assert_eq!(sample(4, 0), [0, 1, 2, 3]);
        let mut random = Twister::new(1);
        let sum = (99_001..=100_000u32).rev().fold(0u64, |sum, n| {
            sum.wrapping_mul(31).wrapping_add(random.below(n).into())
        });
        assert_eq!(sum, 12_064_887_806_873_992_324);
    }
}
