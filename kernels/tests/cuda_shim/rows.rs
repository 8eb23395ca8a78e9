//! Operations over rows of floats.

mod candidates;
mod elementwise;
mod ranks;

use octavo_kernels::cuda::Ptr;
use octavo_kernels::cuda::launch;
use octavo_kernels::cuda::params::{Argmax, MulVector, Norm, Pair, Rope, Rotation, Select, Slice};
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{Executor, Limits, Setup};
use octavo_kernels::{Activation, Function, KvShape, Op, Phase, Step, StepSequence};

use super::{Bench, Worst, device};
use crate::common::{KV, Rng, embed, program};

#[test]
fn norms_match() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(1);
    for schedule in bench.0.schedules() {
        bench.0.schedule(*schedule);
        for (groups, n) in [
            (1, 1),
            (3, 31),
            (6, 64),
            (5, 128),
            (2, 257),
            (3, 1000),
            (2, 3000),
        ] {
            let (x, weight, eps) = (rng.floats(groups * n), rng.floats(n), 1e-5f32);
            let (at_x, at_weight, out) = (
                bench.floats(&x),
                bench.floats(&weight),
                bench.alloc(4 * groups * n),
            );
            bench.run(&launch::rms_norm(
                &Norm {
                    x: at_x,
                    weight: at_weight,
                    out,
                    eps,
                    n: n as u32,
                },
                groups as u32,
            ));
            let got = bench.read(out, groups * n);
            let mut worst = Worst::default();
            for (g, x) in x.chunks_exact(n).enumerate() {
                let square: f64 = x.iter().map(|v| f64::from(*v) * f64::from(*v)).sum();
                let scale = 1.0 / (square / n as f64 + f64::from(eps)).sqrt();
                for (i, v) in x.iter().enumerate() {
                    let y = f64::from(*v) * scale * f64::from(weight[i]);
                    // half of the sum's relative error, and five more roundings
                    let bound =
                        y.abs() * f64::from(f32::EPSILON) * ((n as f64).sqrt() + 5.0) + 1e-37;
                    worst.see(|| format!("group {g}, value {i}"), y, got[g * n + i], bound);
                }
            }
            worst.check("rms_norm");
        }
    }
}

#[test]
fn rotations_are_f32s_own() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(2);
    // the first is negative for a padding row
    let rope_positions = [[8, 1, 0], [0, 7, 3], [-1i32, 0, 0], [5, 2, 8]];
    for (neox, axes) in [(false, false), (true, false), (true, true)] {
        for (rows, heads, head_dim, pairs) in
            [(1, 1, 2, 1), (3, 5, 64, 32), (4, 2, 80, 16), (2, 3, 6, 0)]
        {
            let n_positions = 9;
            let (cosines, sines) = (
                rng.floats(n_positions * pairs + 1),
                rng.floats(n_positions * pairs + 1),
            );
            let axis_of = |i: usize| if axes { [2, 0, 1, 1][i % 4] } else { 0 };
            let axes_of_pairs: Vec<u32> = (0..pairs).map(|i| axis_of(i) as u32).collect();
            let words: Vec<u32> = rope_positions[..rows]
                .as_flattened()
                .iter()
                .map(|p| *p as u32)
                .collect();
            let x = rng.floats(rows * heads * head_dim);
            let p = Rope {
                x: bench.floats(&x),
                out: bench.alloc(4 * x.len()),
                rotation: Rotation {
                    cosines: bench.floats(&cosines),
                    sines: bench.floats(&sines),
                    rope_positions: bench.integers(&words),
                    axes: match axes {
                        true => bench.integers(&axes_of_pairs),
                        false => Ptr::NULL,
                    },
                    pairs: pairs as u32,
                    neox: neox.into(),
                },
                rows: rows as u32,
                heads: heads as u32,
                head_dim: head_dim as u32,
                unused: 0,
            };
            bench.run(&launch::rope(&p));
            let mut expected = x.clone();
            for (at, y) in expected.chunks_exact_mut(head_dim).enumerate() {
                let rope_positions = rope_positions[at / heads];
                for i in (0..pairs).filter(|_| rope_positions[0] >= 0) {
                    let (a, b) = if neox {
                        (i, i + pairs)
                    } else {
                        (2 * i, 2 * i + 1)
                    };
                    let angle = rope_positions[axis_of(i)] as usize * pairs + i;
                    let (c, s) = (cosines[angle], sines[angle]);
                    (y[a], y[b]) = (y[a] * c - y[b] * s, y[a] * s + y[b] * c);
                }
            }
            assert_eq!(
                bench.read(p.out, x.len()),
                expected,
                "neox {neox}, axes {axes}, {head_dim} values, {pairs} pairs"
            );
        }
    }
}

#[test]
fn parts_of_every_piece_are_kept() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(11);
    // rows, width, piece size, and range kept of each piece
    for (rows, width, each, kept) in [
        (1, 1, 1, 0..1),
        (3, 300, 300, 256..300),
        (2, 96, 8, 3..5),
        (5, 130, 65, 0..64),
    ] {
        let x = rng.floats(rows * width);
        let expected: Vec<f32> = x
            .chunks(width)
            .flat_map(|row| row.chunks(each))
            .flat_map(|piece| &piece[kept.clone()])
            .copied()
            .collect();
        let p = Slice {
            x: bench.floats(&x),
            out: bench.alloc(4 * expected.len()),
            n: expected.len() as u64,
            each: each as u32,
            from: kept.start as u32,
            part: kept.len() as u32,
            unused: 0,
        };
        bench.run(&launch::slice(&p));
        assert_eq!(bench.read(p.out, expected.len()), expected);
    }
}

#[test]
fn layer_norms_match() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(8);
    for (groups, n) in [(1, 1), (3, 64), (2, 257), (2, 3000)] {
        let x: Vec<f32> = rng.floats(groups * n).iter().map(|x| 3.0 + x).collect();
        let weight = rng.floats(n);
        let p = Norm {
            x: bench.floats(&x),
            weight: bench.floats(&weight),
            out: bench.alloc(4 * x.len()),
            eps: 1e-5,
            n: n as u32,
        };
        bench.run(&launch::layer_norm(&p, groups as u32));
        let mut worst = Worst::default();
        for (x, got) in x.chunks(n).zip(bench.read(p.out, x.len()).chunks(n)) {
            let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
            let mean = x.iter().sum::<f64>() / n as f64;
            let squares = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n as f64;
            let scale = 1.0 / (squares + f64::from(p.eps)).sqrt();
            // f32 roundings of a thread's partial sum and of the sum over threads
            let roundings = (n as f64 / 32.0 + 48.0) * f64::from(f32::EPSILON);
            for ((x, w), got) in x.iter().zip(&weight).zip(got) {
                let y = (x - mean) * scale * f64::from(*w);
                let off = 4.0 * roundings * scale;
                let bound = f64::from(w.abs()) * off + y.abs() * (roundings + off);
                worst.see(|| format!("{groups} x {n}"), y, *got, bound);
            }
        }
        worst.check("layer_norm");
    }
}

#[test]
fn the_first_of_the_largest_is_found() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(6);
    for (seed, schedule) in Schedule::ALL.into_iter().enumerate() {
        bench.0.schedule(schedule);
        for (rows, n) in [(1, 1), (2, 255), (3, 20_000)] {
            let mut x = rng.floats(rows * n);
            x[n / 2] = 2.0;
            x[n - 1] = 2.0;
            if rows == 3 {
                x[n + 5] = [f32::NAN, f32::NEG_INFINITY, f32::INFINITY][seed];
                x[n..n + 3].fill(3.0);
            }
            let parts_n = launch::ARGMAX_PARTS;
            let p = Argmax {
                x: bench.floats(&x),
                parts: bench.alloc(rows * parts_n as usize * launch::ARGMAX_PART_BYTES),
                out: bench.alloc(4 * rows),
                n: n as u32,
                parts_n,
            };
            launch::argmax(&p, rows as u32)
                .iter()
                .for_each(|launch| bench.run(launch));
            let first_of_largest = |x: &[f32]| {
                let best = x.iter().fold(f32::NEG_INFINITY, |a, b| a.max(*b));
                x.iter().position(|v| *v == best).expect("there is one") as u32
            };
            let odd = |x: &[f32]| x.iter().any(|v| !v.is_finite());
            let place = |x: &[f32]| {
                if odd(x) {
                    launch::NOT_FINITE
                } else {
                    first_of_largest(x)
                }
            };
            let expected: Vec<u32> = x.chunks_exact(n).map(place).collect();
            assert_eq!(bench.read_integers(p.out, rows), expected);
        }
    }
}
