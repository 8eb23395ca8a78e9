//! Heads: biases, norms, RoPE and cache writes in one kernel.

use super::*;

/// Rows of [`paging`].
const ROWS: usize = 4;
const N_PAGES: usize = 5;

/// Applies bias, norm and RoPE to a group by one launch each, as [`launch::heads`] does before the
/// cache write.
fn bias_norm_rotation(
    bench: &mut Bench,
    group: &HeadGroup,
    paging: &Paging,
    rotation: Option<&Rotation>,
    head_dim: u32,
) -> Ptr {
    let rows = paging.rows as usize;
    let n = rows * group.n as usize * head_dim as usize;
    let mut at = group.x;
    if group.bias != Ptr::NULL {
        let out = bench.alloc(4 * n);
        let period = u64::from(group.n) * u64::from(head_dim);
        bench.run(&launch::add(&Pair {
            a: at,
            b: group.bias,
            out,
            n: n as u64,
            period,
        }));
        at = out;
    }
    if group.norm != Ptr::NULL {
        let out = bench.alloc(4 * n);
        let p = Norm {
            x: at,
            weight: group.norm,
            out,
            eps: group.eps,
            n: head_dim,
        };
        bench.run(&launch::rms_norm(&p, rows as u32 * group.n));
        at = out;
    }
    if let Some(rotation) = rotation {
        let out = bench.alloc(4 * n);
        let (rows, heads) = (rows as u32, group.n);
        bench.run(&launch::rope(&Rope {
            x: at,
            out,
            rotation: *rotation,
            rows,
            heads,
            head_dim,
            unused: 0,
        }));
        at = out;
    }
    at
}

/// Heads of some size, and the operations on them.
#[derive(Clone, Copy, Debug)]
struct Case {
    kv: KvType,
    dim: usize,
    heads: usize,
    heads_kv: usize,
    pairs: usize,
    neox: bool,
    biased: bool,
    normed: bool,
}

impl Case {
    fn rotation(&self, bench: &mut Bench, rng: &mut Rng) -> Rotation {
        let angles = [0; 2].map(|_| rng.floats(32 * self.pairs));
        let [cosines, sines] = angles.map(|a| bench.floats(&a));
        let axes: Vec<u32> = (0..self.pairs as u32).map(|i| i % 3).collect();
        Rotation {
            cosines,
            sines,
            rope_positions: rope_positions(bench),
            axes: bench.integers(&axes),
            pairs: self.pairs as u32,
            neox: u32::from(self.neox),
        }
    }

    /// Creates a group of `n` heads per row.
    fn group(&self, bench: &mut Bench, rng: &mut Rng, n: usize, normed: bool) -> HeadGroup {
        let mut some = |is: bool, n: usize| match is {
            true => bench.floats(&rng.floats(n)),
            false => Ptr::NULL,
        };
        HeadGroup {
            x: some(true, ROWS * n * self.dim),
            bias: some(self.biased, n * self.dim),
            norm: some(normed, self.dim),
            n: n as u32,
            eps: 1e-6,
        }
    }

    /// Checks the fused launch against separate ones.
    fn hold(&self, bench: &mut Bench, rng: &mut Rng) {
        let &Case { kv, dim, heads, .. } = self;
        let paging = paging(bench, &[2, 9, 4, 1], N_PAGES as u32);
        let rotation = self.rotation(bench, rng);
        let q = self.group(bench, rng, heads, self.normed);
        let k = self.group(bench, rng, self.heads_kv, self.normed);
        let v = self.group(bench, rng, self.heads_kv, false);
        let page_bytes = N_PAGES * kv.bytes(16 * self.heads_kv * dim).expect("few");
        let zeros = vec![0u8; page_bytes];
        let mut pages = || [bench.bytes(&zeros), bench.bytes(&zeros)];
        let ([pages_k, pages_v], [expected_k, expected_v]) = (pages(), pages());
        let out = bench.alloc(4 * ROWS * heads * dim);
        let head_dim = dim as u32;
        let together = Heads {
            q,
            k,
            v,
            out,
            pages_k,
            pages_v,
            rotation,
            paging,
            head_dim,
            unused: 0,
        };
        bench.run(&launch::heads(kv, &together));

        let mut one_by_one = |group: &HeadGroup, turned: bool| {
            let rotation = turned.then_some(&rotation);
            bias_norm_rotation(bench, group, &paging, rotation, head_dim)
        };
        let (at_q, k, v) = (
            one_by_one(&q, true),
            one_by_one(&k, true),
            one_by_one(&v, false),
        );
        let write = KvWrite {
            k,
            v,
            pages_k: expected_k,
            pages_v: expected_v,
            paging,
            heads: self.heads_kv as u32,
            head_dim,
        };
        bench.run(&launch::kv_write(kv, &write));
        let n = ROWS * heads * dim;
        assert!(
            bench.read(out, n) == bench.read(at_q, n),
            "{self:?}: queries"
        );
        for (got, expected) in [(pages_k, expected_k), (pages_v, expected_v)] {
            let words = page_bytes / 4;
            assert!(
                bench.words(got, words) == bench.words(expected, words),
                "{self:?}: cache"
            );
        }
        assert_eq!(bench.read_integers(paging.missing, 1), [0], "{self:?}");
    }
}

#[test]
fn heads_are_bias_norm_rotation_and_cache() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(51);
    for (dim, heads, heads_kv, pairs, neox) in [
        (64, 4, 2, 32, true),
        (32, 3, 3, 8, false),
        (256, 2, 1, 128, true),
    ] {
        for (i, kv) in launch::KV_TYPES.into_iter().enumerate() {
            bench.0.schedule(Schedule::ALL[i % 3]);
            for (biased, normed) in [(false, true), (true, false), (true, true), (false, false)] {
                let case = Case {
                    kv,
                    dim,
                    heads,
                    heads_kv,
                    pairs,
                    neox,
                    biased,
                    normed,
                };
                case.hold(&mut bench, &mut rng);
                bench.0.clear();
            }
        }
    }
}
