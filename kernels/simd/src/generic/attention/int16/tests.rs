use super::*;
use crate::formats::floats::F32;
use crate::generic::attention::Query;
use crate::kv_layout::Base;
use crate::portable::Portable;

/// Values of a head: an odd number of vectors.
const D: usize = 48;

/// Pages of floats.
fn base(x: &[f32]) -> Base {
    Base {
        start: x.as_ptr().cast(),
        stride: 4 * PAGE * D,
        row_bytes: 4 * PAGE,
    }
}

/// Kernels that convert pages of floats to integers, for Winograd's products or not.
fn packing<S: Simd, const WINOGRAD: bool>() -> [PackSpan; 2] {
    /// See [`PackSpan`].
    unsafe fn pack<S: Simd, const KEYS: bool, const WINOGRAD: bool>(
        pages: &Pages<'_>,
        at: usize,
        visible: VisibleRange,
        scratch: *mut u8,
    ) {
        let (parts, _) = Parts::layout(scratch, D);
        // SAFETY: the pages and the scratch of `Heads::attend`.
        unsafe {
            if KEYS {
                parts.pack_span_keys::<S, F32, WINOGRAD>(pages, at, visible);
            } else {
                parts.pack_span_values::<S, F32, WINOGRAD>(pages, at, visible);
            }
        }
    }
    [pack::<S, true, WINOGRAD>, pack::<S, false, WINOGRAD>]
}

/// One head's queries, keys and values.
#[derive(Clone)]
struct Heads {
    q: Vec<[f32; D]>,
    /// Positions that each query sees.
    visible: Vec<VisibleRange>,
    k: Vec<[f32; D]>,
    v: Vec<[f32; D]>,
}

impl Heads {
    /// Random heads: queries of the last positions, which see the positions up to their own.
    fn random(queries: usize, positions: usize) -> Heads {
        let mut bits = 1u32;
        let mut row = || {
            std::array::from_fn(|_| {
                bits = bits.wrapping_mul(0x9e37_79b1).rotate_left(13) ^ 0x85eb_ca6b;
                f32::from(bits as i16) / 32_768.0
            })
        };
        let see = |i| VisibleRange {
            first: 0,
            end: positions - queries + i + 1,
        };
        Heads {
            q: (0..queries).map(|_| row()).collect(),
            visible: (0..queries).map(see).collect(),
            k: (0..positions).map(|_| row()).collect(),
            v: (0..positions).map(|_| row()).collect(),
        }
    }

    /// Attention by the kernel, in tiles of three rows.
    fn attend<S: Simd>(&self, winograd: bool) -> Vec<[f32; D]> {
        let pages = self.k.len().div_ceil(PAGE);
        let (mut k, mut v) = (vec![0.0; pages * PAGE * D], vec![0.0; pages * PAGE * D]);
        for (at, (key, value)) in self.k.iter().zip(&self.v).enumerate() {
            let page = at / PAGE * PAGE * D;
            for i in 0..D {
                k[page + i * PAGE + at % PAGE] = key[i];
                v[page + at % PAGE * D + i] = value[i];
            }
        }
        let table: Vec<u32> = (0..pages as u32).collect();
        let mut out = vec![[0.0; D]; self.q.len()];
        let query = |((q, out), visible): ((&[f32; D], &mut [f32; D]), &VisibleRange)| Query {
            q: q.as_ptr(),
            out: out.as_mut_ptr(),
            visible: *visible,
            sink: f32::NEG_INFINITY,
        };
        let rows: Vec<Query> = self
            .q
            .iter()
            .zip(&mut out)
            .zip(&self.visible)
            .map(query)
            .collect();
        let block = Block {
            rows: &rows,
            scale: 1.0,
            cap: None,
            pages: Pages {
                table: &table,
                k: base(&k),
                v: base(&v),
                head_dim: D,
            },
        };
        // leftovers of another head
        let mut scratch = vec![f32::NAN; scratch_bytes(D) / 4];
        // SAFETY: the caller asks only for what this CPU has; pages of all positions are there.
        unsafe {
            let scratch = scratch.as_mut_ptr().cast();
            if winograd {
                attend_by::<S, 3, true>(&block, packing::<S, true>(), scratch);
            } else {
                attend_by::<S, 3, false>(&block, packing::<S, false>(), scratch);
            }
        }
        out
    }

    /// The same attention in f64.
    fn exact(&self) -> Vec<[f64; D]> {
        let of_query = |(q, visible): (&[f32; D], &VisibleRange)| {
            let dot = |k: &[f32; D]| -> f64 {
                let products = q.iter().zip(k).map(|(q, k)| f64::from(*q) * f64::from(*k));
                products.sum()
            };
            let scores: Vec<f64> = self.k[visible.first..visible.end].iter().map(dot).collect();
            let max = scores.iter().copied().fold(f64::MIN, f64::max);
            let weights: Vec<f64> = scores.iter().map(|s| (s - max).exp()).collect();
            let total: f64 = weights.iter().sum();
            let mut mean = [0.0; D];
            for (weight, v) in weights.iter().zip(&self.v[visible.first..visible.end]) {
                mean.iter_mut()
                    .zip(v)
                    .for_each(|(mean, v)| *mean += weight / total * f64::from(*v));
            }
            mean
        };
        self.q.iter().zip(&self.visible).map(of_query).collect()
    }

    /// Checks the kernel against f64, and both ways of multiplying against each other.
    fn hold<S: Simd>(&self, what: &str) {
        let [plain, winograd] = [false, true].map(|way| self.attend::<S>(way));
        assert!(
            bits(&plain) == bits(&winograd),
            "{what}: Winograd's products change a bit"
        );
        // integers of values have steps of a 16,383rd of their length, weights follow scores that
        // have similar steps
        let lengths = self
            .v
            .iter()
            .map(|v| v.iter().map(|v| v * v).sum::<f32>().sqrt());
        let bound = 1e-4 * f64::from(lengths.fold(0.0, f32::max));
        for (got, exact) in plain.iter().zip(self.exact()) {
            for (got, exact) in got.iter().zip(exact) {
                let error = (f64::from(*got) - exact).abs();
                assert!(error <= bound, "{what}: expected {exact}, got {got}");
            }
        }
    }
}

fn bits(x: &[[f32; D]]) -> Vec<u32> {
    x.as_flattened().iter().map(|v| v.to_bits()).collect()
}

/// Runs all tests below, for one instruction set.
pub fn integers_attend<S: Simd>(name: &str) {
    for (queries, positions) in [(1, 1), (7, 20), (5, 300)] {
        let heads = Heads::random(queries, positions);
        heads.hold::<S>(&format!("{name}: {queries} of {positions}"));
    }
    largest_sums::<S>(name);
    values_of_any_size::<S>(name);
    what_is_not_finite::<S>(name);
}

/// Checks that the largest possible sums fit 32 bits.
fn largest_sums<S: Simd>(name: &str) {
    // all keys point where the queries do, or the other way; integers of all values are alike
    let mut heads = Heads::random(4, 200);
    for row in heads.q.iter_mut().chain(&mut heads.k) {
        row.iter_mut().for_each(|v| *v = v.signum() * 0.25);
    }
    let q = heads.q[0];
    for (i, k) in heads.k.iter_mut().enumerate() {
        *k = q.map(|v| if i % 3 == 0 { -v } else { v });
    }
    heads.q.fill(q);
    // each value is one number, so that its integer is the largest
    for v in &mut heads.v {
        *v = [0.0; D];
        v[17] = 3.0;
    }
    heads.hold::<S>(&format!("{name}: parallel keys"));
    // one value of a query and of each key
    for row in heads.q.iter_mut().chain(&mut heads.k) {
        let first = row[0] * 16.0;
        *row = [0.0; D];
        row[5] = first;
    }
    heads.hold::<S>(&format!("{name}: keys of one value"));
}

/// Checks that neither large nor small values overflow, and that none makes others coarse.
fn values_of_any_size<S: Simd>(name: &str) {
    let mut heads = Heads::random(3, 150);
    for q in &mut heads.q {
        q.iter_mut().for_each(|v| *v *= 1e-25);
    }
    for k in &mut heads.k {
        k.iter_mut().for_each(|v| *v *= 1e25);
    }
    // the first position is of another size than the others
    heads.v[0].iter_mut().for_each(|v| *v *= 1e-3);
    heads.hold::<S>(&format!("{name}: large keys"));
    heads.k.fill([0.0; D]);
    heads.hold::<S>(&format!("{name}: keys of zeros"));
    heads.v.fill([0.0; D]);
    heads.hold::<S>(&format!("{name}: values of zeros"));
}

/// Checks that a non-finite value reaches only the rows that see it.
fn what_is_not_finite<S: Simd>(name: &str) {
    let heads = Heads::random(4, 140);
    let clean = heads.attend::<S>(true);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        // a position of which the last two rows see one each
        for (place, at) in [("k", 138), ("v", 138)] {
            let mut heads = heads.clone();
            let row = if place == "k" {
                &mut heads.k
            } else {
                &mut heads.v
            };
            row[at][7] = wrong;
            for way in [false, true] {
                let got = heads.attend::<S>(way);
                assert!(
                    bits(&got[..2]) == bits(&clean[..2]),
                    "{name}: {wrong} in {place}"
                );
                let wrongs = got[2..].as_flattened();
                assert!(
                    wrongs.iter().all(|v| v.is_nan()),
                    "{name}: {wrong} in {place}"
                );
            }
        }
        let mut heads = heads.clone();
        heads.q[1][3] = wrong;
        let got = heads.attend::<S>(false);
        assert!(got[1].iter().all(|v| v.is_nan()), "{name}: {wrong} in q");
        assert!(bits(&got[2..]) == bits(&clean[2..]), "{name}: {wrong} in q");
    }
}

#[test]
fn a_few_rows_of_the_portable_form() {
    Heads::random(5, 140).hold::<Portable>("portable");
}
