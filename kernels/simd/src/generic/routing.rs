//! Expert routing: the experts and weights of a token, and the combination of their results.

use crate::simd::{Simd, exp};

/// Groups of values from which to choose the largest: a row is cut into `count` groups of equally
/// many values, the sum of a group's two best values is its score, and those of the `used` best
/// groups count, of equal ones those of the lower group.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct TopGroups {
    /// Groups of a row.
    pub count: usize,
    /// Groups whose values count.
    pub used: usize,
}

/// `y = e^x / sum(e^x)`, over `n` values.
///
/// # Safety
/// `x` and `y` are `n` floats; `y` may be `x`.
#[inline(always)]
pub unsafe fn softmax<S: Simd>(x: *const f32, n: usize, y: *mut f32) {
    // SAFETY: all indices are below n; the tail goes through a whole local vector.
    unsafe {
        let whole = n - n % S::R;
        let mut largest = f32::NEG_INFINITY;
        for i in 0..n {
            largest = largest.max(x.add(i).read());
        }
        // less the largest, so that nothing overflows; a NaN is not the largest, but the sum has it
        let less = S::set1(largest);
        let mut sums = S::zero();
        for i in (0..whole).step_by(S::R) {
            let e = exp::<S>(S::sub(S::load(x.add(i)), less));
            S::store(y.add(i), e);
            sums = S::add(sums, e);
        }
        let mut sum = S::sum(sums);
        let mut tail = [0f32; 16];
        if whole < n {
            std::ptr::copy_nonoverlapping(x.add(whole), tail.as_mut_ptr(), n - whole);
            let e = exp::<S>(S::sub(S::load(tail.as_ptr()), less));
            S::store(tail.as_mut_ptr(), e);
            sum += tail[..n - whole].iter().sum::<f32>();
        }
        let all = S::set1(sum);
        for i in (0..whole).step_by(S::R) {
            S::store(y.add(i), S::div(S::load(y.add(i)), all));
        }
        for i in whole..n {
            y.add(i).write(tail[i - whole] / sum);
        }
    }
}

/// Parts of a row to be summed.
pub struct Parts {
    /// Address of the first, and stride between parts in floats.
    pub x: (*const f32, usize),
    /// One weight for each part.
    pub weights: *const f32,
    /// How many parts.
    pub count: usize,
    /// Values of a part, and of the sum.
    pub n: usize,
    pub y: *mut f32,
}

/// `y = x0 w0 + x1 w1 + ...`, in order.
///
/// # Safety
/// As the fields of [`Parts`] say, with at least one part; `y` overlaps nothing.
#[inline(always)]
pub unsafe fn weighted_sum<S: Simd>(p: &Parts) {
    // SAFETY: all indices are below n of a part; the tail goes through a whole local vector.
    unsafe {
        let whole = p.n - p.n % S::R;
        for i in (0..whole).step_by(S::R) {
            let x = p.x.0.add(i);
            let mut sum = S::mul(S::load(x), S::set1(p.weights.read()));
            for part in 1..p.count {
                let w = S::set1(p.weights.add(part).read());
                sum = S::fma(S::load(x.add(part * p.x.1)), w, sum);
            }
            S::store(p.y.add(i), sum);
        }
        if whole < p.n {
            let mut tail = [0f32; 16];
            let mut sum = S::zero();
            for part in 0..p.count {
                let from = p.x.0.add(part * p.x.1 + whole);
                std::ptr::copy_nonoverlapping(from, tail.as_mut_ptr(), p.n - whole);
                let (x, w) = (S::load(tail.as_ptr()), S::set1(p.weights.add(part).read()));
                sum = if part == 0 {
                    S::mul(x, w)
                } else {
                    S::fma(x, w, sum)
                };
            }
            S::store(tail.as_mut_ptr(), sum);
            std::ptr::copy_nonoverlapping(tail.as_ptr(), p.y.add(whole), p.n - whole);
        }
    }
}

/// Divides values by their sum, or by `least` if that is more.
pub fn normalize(x: &[f32], least: f32, y: &mut [f32]) {
    let sum = x.iter().sum::<f32>();
    // a NaN sum stays NaN
    let by = if least > sum { least } else { sum };
    for (y, x) in y.iter_mut().zip(x) {
        *y = x / by;
    }
}

/// An index, such as the number of an expert, clamped to `n`: whatever value it has, nothing is
/// read past the end.
pub fn place(id: f32, n: usize) -> usize {
    // negative values and NaN become 0
    (id as usize).min(n - 1)
}

/// An integer key that orders values: equal for both zeros, the largest for NaN.
fn key(x: f32) -> u32 {
    if x.is_nan() {
        return u32::MAX;
    }
    let bits = (x + 0.0).to_bits();
    if bits >> 31 == 1 {
        !bits
    } else {
        bits | 1 << 31
    }
}

/// The indices of the largest values of `x`, as many as `places` has room for, as
/// `Op::TopK` says. `scores` is scratch for the groups, where there are any.
pub fn top_k(x: &[f32], groups: Option<TopGroups>, scores: &mut Vec<f32>, places: &mut [f32]) {
    scores.clear();
    let count = groups.map_or(1, |groups| groups.count);
    let of_group = x.len() / count;
    if groups.is_some() {
        scores.extend(x.chunks_exact(of_group).map(two_best));
    }
    let mut found = 0;
    for (group, values) in x.chunks_exact(of_group).enumerate() {
        if groups.is_some_and(|groups| rank(scores, group) >= groups.used) {
            continue;
        }
        for (i, value) in values.iter().enumerate() {
            let at = group * of_group + i;
            // indices come in order, so that of equal values the lower index is there already
            let larger = |place: &f32| key(x[*place as usize]) >= key(*value);
            let to = places[..found].partition_point(larger);
            if to == places.len() {
                continue;
            }
            found = places.len().min(found + 1);
            places[to..found].rotate_right(1);
            places[to] = at as f32;
        }
    }
}

/// The sum of the two largest values of a group.
fn two_best(group: &[f32]) -> f32 {
    let (mut best, mut second) = (f32::NEG_INFINITY, f32::NEG_INFINITY);
    for &value in group {
        if key(value) > key(best) {
            (best, second) = (value, best);
        } else if key(value) > key(second) {
            second = value;
        }
    }
    best + second
}

/// The number of groups that are better than `group`.
fn rank(scores: &[f32], group: usize) -> usize {
    let mine = key(scores[group]);
    let better = |(other, score): (usize, &f32)| {
        let score = key(*score);
        score > mine || score == mine && other < group
    };
    scores
        .iter()
        .enumerate()
        .filter(|other| better(*other))
        .count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_in_the_order_of_values() {
        let order = [
            f32::NEG_INFINITY,
            f32::MIN,
            -1.0,
            -1e-40,
            0.0,
            1e-40,
            1.0,
            f32::MAX,
            f32::INFINITY,
            f32::NAN,
        ];
        assert!(order.windows(2).all(|pair| key(pair[0]) < key(pair[1])));
        assert_eq!(key(0.0), key(-0.0));
        assert_eq!(key(f32::NAN), key(-f32::NAN));
    }

    #[test]
    fn no_place_is_behind_the_end() {
        for id in [f32::NAN, -1.0, f32::INFINITY, f32::NEG_INFINITY, 1e30, 7.0] {
            assert!(place(id, 7) < 7, "{id}");
        }
        assert_eq!([0.0, 3.0, 6.0].map(|id| place(id, 7)), [0, 3, 6]);
    }
}
