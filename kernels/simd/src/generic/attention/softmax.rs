//! The softmax of a row, span by span: the largest score and the sum of weights so far.

use super::{SPAN_POSITIONS, VisibleRange};
use crate::generic::elementwise::soft_cap;
use crate::simd::{Simd, exp};

/// Fall of a row's scores with the distance of keys, see `Scores::alibi`.
#[derive(Clone, Copy)]
pub struct Slope {
    /// By each position.
    pub slope: f32,
    /// The row's own position.
    pub position: usize,
}

/// Turns the scores of a row into weights in place, in whole vectors up to position `end`: zero
/// where nothing is seen. Returns the factor of the row's earlier sums.
///
/// # Safety
/// Some of `p` is seen, and it is whole vectors up to `end`.
#[inline(always)]
pub(super) unsafe fn weights<S: Simd>(
    p: &mut [f32],
    cap: Option<f32>,
    visible: VisibleRange,
    end: usize,
    state: &mut (f32, f32),
) -> f32 {
    // SAFETY: passed on.
    unsafe {
        let top = largest_score::<S, false>(p, cap, visible, state.0);
        weights_below::<S, false>(p, top, visible, end, state)
    }
}

/// The chosen positions, in ascending order, that are in the span that begins at a position.
pub(super) fn in_span(chosen: &[f32], at: usize) -> &[f32] {
    let [first, end] = [at, at + SPAN_POSITIONS].map(|p| chosen.partition_point(|c| *c < p as f32));
    &chosen[first..end]
}

/// As [`weights`], where some positions of the span at `at` are chosen: their scores are moved side
/// by side, and their weights back, so that the others neither count nor are looked at.
///
/// # Safety
/// `p` has room for a whole span, and the scores of all chosen positions are there.
#[inline(always)]
pub(super) unsafe fn weights_of<S: Simd>(
    p: &mut [f32],
    cap: Option<f32>,
    (chosen, at): (&[f32], usize),
    span: VisibleRange,
    state: &mut (f32, f32),
) -> f32 {
    let chosen = in_span(chosen, at);
    if chosen.is_empty() {
        p[span.first..span.end].fill(0.0);
        return 1.0;
    }
    // places rise by at least one, so that none is overwritten before it is read
    for (i, position) in chosen.iter().enumerate() {
        p[i] = p[*position as usize - at];
    }
    let n = chosen.len();
    let all = VisibleRange { first: 0, end: n };
    // SAFETY: some are chosen, and vectors up to the last one are within the span.
    let correction = unsafe { weights::<S>(p, cap, all, n, state) };
    let mut next = p.len();
    for (i, position) in chosen.iter().enumerate().rev() {
        let place = *position as usize - at;
        let weight = p[i];
        p[place + 1..next].fill(0.0);
        p[place] = weight;
        next = place;
    }
    p[..next].fill(0.0);
    correction
}

/// Caps the scores of a row, of positions from `at` on, and lowers them with distance, if they
/// fall; returns the cap that is left to apply.
///
/// # Safety
/// `p` is whole vectors up to the last position that is seen.
#[inline(always)]
pub(super) unsafe fn fall<S: Simd>(
    p: &mut [f32],
    cap: Option<f32>,
    visible: VisibleRange,
    slope: Option<&Slope>,
    at: usize,
) -> Option<f32> {
    const LANES: [f32; 16] = [
        0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0, 8.0, 9.0, 10.0, 11.0, 12.0, 13.0, 14.0, 15.0,
    ];
    let Some(slope) = slope else {
        return cap;
    };
    let p = p.as_mut_ptr();
    // SAFETY: the caller's promise; the constant is as long as any vector.
    unsafe {
        let lanes = S::load(LANES.as_ptr());
        for i in (visible.first / S::R * S::R..visible.end).step_by(S::R) {
            let first = (at + i) as f32 - slope.position as f32;
            let after = S::add(lanes, S::set1(first));
            let distance = S::max(S::sub(S::zero(), after), after);
            let score = S::load(p.add(i));
            let score = cap.map_or(score, |cap| soft_cap::<S>(cap, score));
            S::store(p.add(i), S::fma(S::set1(-slope.slope), distance, score));
        }
    }
    None
}

/// The maximum of `max` and the row's scores, which are capped first.
///
/// # Safety
/// Some of `p` is seen, all if it is `WHOLE`, and it is whole vectors.
#[inline(always)]
pub(super) unsafe fn largest_score<S: Simd, const WHOLE: bool>(
    p: &mut [f32],
    cap: Option<f32>,
    visible: VisibleRange,
    max: f32,
) -> f32 {
    // whole vectors; positions before them are not seen
    let positions = (visible.first / S::R * S::R..visible.end).step_by(S::R);
    let p = p.as_mut_ptr();
    // SAFETY: the caller's promise.
    unsafe {
        if let Some(cap) = cap {
            for i in positions.clone() {
                S::store(p.add(i), soft_cap::<S>(cap, S::load(p.add(i))));
            }
        }
        let mut top = S::set1(max);
        for i in positions {
            let v = S::load(p.add(i));
            let v = visible.choose::<S, WHOLE>(i, v, S::set1(f32::NEG_INFINITY));
            top = S::max(top, v);
        }
        S::largest(top)
    }
}

/// The second half of [`weights`], whose largest score is `top`.
///
/// # Safety
/// As [`weights`], and all is seen if it is `WHOLE`.
#[inline(always)]
pub(super) unsafe fn weights_below<S: Simd, const WHOLE: bool>(
    p: &mut [f32],
    top: f32,
    visible: VisibleRange,
    end: usize,
    state: &mut (f32, f32),
) -> f32 {
    let from = visible.first / S::R * S::R;
    p[..from].fill(0.0);
    let p = p.as_mut_ptr();
    // SAFETY: the caller's promise; the other pointer is to a local array.
    unsafe {
        let (max, sum) = *state;
        let mut total = S::zero();
        for i in (from..end).step_by(S::R) {
            let v = exp::<S>(S::sub(S::load(p.add(i)), S::set1(top)));
            let v = visible.choose::<S, WHOLE>(i, v, S::zero());
            S::store(p.add(i), v);
            total = S::add(total, v);
        }
        let mut correction = 1.0;
        if top > max {
            let mut e = [0f32; 16];
            S::store(e.as_mut_ptr(), exp::<S>(S::set1(max - top)));
            correction = if max == f32::NEG_INFINITY { 0.0 } else { e[0] };
        }
        *state = (top, sum * correction + S::sum(total));
        correction
    }
}

/// Factor and then divisor of a row's weighted sums at the end, from the softmax's maximum and sum,
/// and the sink of the row's head: minus infinity where there is none, which changes no bit.
pub fn last_factors((max, sum): (f32, f32), sink: f32) -> (f32, f32) {
    let top = max.max(sink);
    let weight = (max - top).exp();
    (weight, sum * weight + (sink - top).exp())
}
