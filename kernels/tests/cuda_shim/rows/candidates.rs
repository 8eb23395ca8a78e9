//! The largest values of rows, in order.

use octavo_kernels::cuda::launch;
use octavo_kernels::cuda::params::Candidates;
use octavo_kernels::cuda::shim::{Schedule, Sources};

use crate::common::Rng;
use crate::cuda_shim::{Bench, device, device_of};

/// Returns the keys that the kernels find in rows of `n` values: ordered bits, and the place.
fn keys(bench: &mut Bench, x: &[f32], n: usize) -> Vec<u64> {
    let (rows, most) = (x.len() / n, launch::max_candidates(n));
    let p = Candidates {
        x: bench.floats(x),
        parts: bench.alloc(8 * rows * launch::candidate_parts(n) * most),
        out: bench.alloc(8 * rows * most),
        n: n as u32,
        most: most as u32,
    };
    for launch in launch::candidates(&p, rows as u32) {
        bench.run(&launch);
    }
    let words = bench.read_integers(p.out, 2 * rows * most);
    let pairs = words.as_chunks::<2>().0.iter();
    pairs
        .map(|[low, high]| u64::from(*high) << 32 | u64::from(*low))
        .collect()
}

/// Returns the same by a sort of all values.
fn expected(x: &[f32], n: usize) -> Vec<u64> {
    let of_row = |row: &[f32]| {
        let mut places: Vec<usize> = (0..n).collect();
        places.sort_by(|a, b| row[*b].total_cmp(&row[*a]).then(a.cmp(b)));
        places.truncate(launch::max_candidates(n));
        let key = |place: usize| {
            let bits = row[place].to_bits();
            let ordered = if bits >> 31 == 1 {
                !bits
            } else {
                bits | 1 << 31
            };
            u64::from(ordered) << 32 | u64::from(!(place as u32))
        };
        places.into_iter().map(key).collect::<Vec<u64>>()
    };
    x.chunks_exact(n).flat_map(of_row).collect()
}

/// Rows of `n` values, many of them equal, zeros of both signs among them.
fn rows_of(rng: &mut Rng, rows: usize, n: usize) -> Vec<f32> {
    let mut x = rng.floats(rows * n);
    for (i, x) in x.iter_mut().enumerate() {
        match rng.bits() % 5 {
            0 => *x = [0.0, -0.0][i % 2],
            1 => *x = (*x * 4.0).round(),
            _ => {}
        }
    }
    x
}

#[test]
fn the_largest_are_in_the_order_of_the_sampler() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(17);
    let sizes = [
        (1, 1),
        (3, 2),
        (2, 255),
        (1, 4095),
        (2, 4096),
        (2, 4097),
        (1, 20_011),
    ];
    for (i, (rows, n)) in sizes.into_iter().enumerate() {
        bench.0.schedule(Schedule::ALL[i % 3]);
        let x = rows_of(&mut rng, rows, n);
        assert!(
            keys(&mut bench, &x, n) == expected(&x, n),
            "{rows} rows of {n}"
        );
        bench.0.clear();
    }
}

/// The number of candidates follows from the length of a row, and is 256 at most.
#[test]
fn large_vocabularies_have_enough_of_them() {
    for (n, most) in [(0, 0), (7, 7), (32_000, 256), (151_936, 107), (262_144, 64)] {
        assert_eq!(launch::max_candidates(n), most, "{n}");
        assert!(launch::candidate_parts(n) * most <= 4096);
    }
}

#[test]
fn faults_in_their_order_are_seen() {
    let mut rng = Rng(18);
    let (rows, n) = (1, 8000);
    let x = rows_of(&mut rng, rows, n);
    for (from, to) in [
        ("<< 32 | ~place", "<< 32 | place"),
        ("bits >> 31 != 0 ? ~bits", "bits >> 31 != 0 ? bits"),
        (
            "const u32 n = parts * p.most;",
            "const u32 n = parts * p.most / 2;",
        ),
        ("(first & run) == 0", "(first & apart) == 0"),
    ] {
        let mut sources = Sources::default();
        sources.replace("candidates.cuh", from, to);
        let Some(mut bench) = device_of(sources) else {
            return;
        };
        assert!(
            keys(&mut bench, &x, n) != expected(&x, n),
            "{from:?} as {to:?}"
        );
    }
}
