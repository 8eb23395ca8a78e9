//! Operations over rows of floats.

use octavo_kernels::cuda::Ptr;
use octavo_kernels::cuda::launch;
use octavo_kernels::cuda::params::{Argmax, MulVector, Norm, Pair, Rope, Select, Slice, Turn};
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{Executor, Limits, Setup};
use octavo_kernels::{Activation, Function, KvShape, Op, Role, Sequence, Step};

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
                    // half of the sum's relative error, five more roundings
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
    // the first is below zero where a row is padding
    let turns = [[8, 1, 0], [0, 7, 3], [-1i32, 0, 0], [5, 2, 8]];
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
            let words: Vec<u32> = turns[..rows]
                .as_flattened()
                .iter()
                .map(|p| *p as u32)
                .collect();
            let x = rng.floats(rows * heads * head_dim);
            let p = Rope {
                x: bench.floats(&x),
                out: bench.alloc(4 * x.len()),
                turn: Turn {
                    cosines: bench.floats(&cosines),
                    sines: bench.floats(&sines),
                    turns: bench.integers(&words),
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
                let turns = turns[at / heads];
                for i in (0..pairs).filter(|_| turns[0] >= 0) {
                    let (a, b) = if neox {
                        (i, i + pairs)
                    } else {
                        (2 * i, 2 * i + 1)
                    };
                    let angle = turns[axis_of(i)] as usize * pairs + i;
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
fn element_by_element_operations_match() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(3);
    for (rows, width) in [(1, 1), (2, 255), (3, 257)] {
        let n = rows * width;
        let (a, b) = (rng.floats(n), rng.floats(n));
        let (at_a, at_b, out) = (bench.floats(&a), bench.floats(&b), bench.alloc(4 * n));
        let pair = |period: usize| Pair {
            a: at_a,
            b: at_b,
            out,
            n: n as u64,
            period: period as u64,
        };
        bench.run(&launch::add(&pair(n)));
        assert_eq!(
            bench.read(out, n),
            a.iter().zip(&b).map(|(a, b)| a + b).collect::<Vec<_>>()
        );
        bench.run(&launch::add(&pair(width)));
        let bias = b[..width].iter().cycle();
        assert_eq!(
            bench.read(out, n),
            a.iter().zip(bias).map(|(a, b)| a + b).collect::<Vec<_>>()
        );

        bench.run(&launch::mul(&pair(n)));
        assert_eq!(
            bench.read(out, n),
            a.iter().zip(&b).map(|(a, b)| a * b).collect::<Vec<_>>()
        );

        let gate: Vec<f32> = a.iter().map(|v| v * 120.0).collect();
        let at_gate = bench.floats(&gate);
        bench.run(&launch::gate(
            Activation::Silu,
            &Pair {
                a: at_gate,
                ..pair(n)
            },
        ));
        let mut worst = Worst::default();
        for (i, got) in bench.read(out, n).into_iter().enumerate() {
            let (g, u) = (f64::from(gate[i]), f64::from(b[i]));
            let y = g / (1.0 + (-g).exp()) * u;
            // two units in the last place of `expf`, three roundings; e^88 is where floats end
            worst.see(
                || format!("gate {g}"),
                y,
                got,
                y.abs() * 4.0 * f64::from(f32::EPSILON) + 1e-36,
            );
        }
        worst.check("swiglu");

        let wanted: Vec<u32> = (0..rows as u32).rev().collect();
        let p = Select {
            x: at_a,
            wanted: bench.integers(&wanted),
            out,
            rows: rows as u32,
            width: width as u32,
        };
        bench.run(&launch::select_rows(&p));
        let expected: Vec<f32> = wanted
            .iter()
            .flat_map(|r| &a[*r as usize * width..][..width])
            .copied()
            .collect();
        assert_eq!(bench.read(out, n), expected);
    }
}

#[test]
fn factors_are_for_neighbours() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(10);
    for (rows, period, neighbours) in [(1, 1, 1), (3, 130, 1), (2, 5, 51), (4, 1, 70)] {
        let width = period * neighbours;
        let (x, by) = (rng.floats(rows * width), rng.floats(period));
        let p = MulVector {
            a: bench.floats(&x),
            b: bench.floats(&by),
            out: bench.alloc(4 * x.len()),
            n: x.len() as u64,
            neighbours: neighbours as u32,
            period: period as u32,
        };
        bench.run(&launch::mul_vector(&p));
        let factors = (0..x.len()).map(|i| by[i % width / neighbours]);
        let expected: Vec<f32> = x.iter().zip(factors).map(|(x, by)| x * by).collect();
        assert_eq!(bench.read(p.out, x.len()), expected);
    }
}

#[test]
fn parts_of_every_piece_are_kept() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(11);
    // values of a row, of a piece, and which of those
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
fn soft_caps_match() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(4);
    for (n, cap) in [(1, 1.0), (257, 30.0), (1000, 50.0)] {
        // from far below the cap to far above it
        let x: Vec<f32> = (0..n)
            .map(|_| cap * rng.unit() * 2f32.powi((rng.bits() % 28) as i32 - 20))
            .collect();
        let (at, out) = (bench.floats(&x), bench.alloc(4 * n));
        bench.run(&launch::unary(Function::SoftCap(cap), at, out, n as u64));
        let mut worst = Worst::default();
        for (x, got) in x.iter().zip(bench.read(out, n)) {
            let (x, cap) = (f64::from(*x), f64::from(cap));
            let y = cap * (x / cap).tanh();
            // two units in the last place of `tanhf`, two roundings of a half
            let bound = y.abs() * 3.0 * f64::from(f32::EPSILON) + 1e-36;
            worst.see(|| format!("{x} below {cap}"), y, got, bound);
        }
        worst.check("soft_cap");
    }
}

#[test]
fn functions_and_gates_match() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(7);
    let n = 515;
    let x: Vec<f32> = rng.floats(n).iter().map(|x| 12.0 * x).collect();
    let up: Vec<f32> = rng.floats(n).iter().map(|x| 9.0 * x).collect();
    let (at, at_up, out) = (bench.floats(&x), bench.floats(&up), bench.alloc(4 * n));
    let gelu = |x: f64| {
        let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
        x / (1.0 + (-2.0 * z).exp())
    };
    // two units of `expf`, a few roundings of its argument, which is below 200, and of the rest
    let bound = |y: f64, z: f64| y.abs() * (z.abs() * 4.0 + 6.0) * f64::from(f32::EPSILON) + 1e-33;
    for f in [
        Function::Scale(0.7),
        Function::SquaredRelu,
        Function::Sigmoid,
        Function::Silu,
        Function::Softplus,
        Function::Exp,
        Function::Gelu,
    ] {
        bench.run(&launch::unary(f, at, out, n as u64));
        let mut worst = Worst::default();
        for (x, got) in x.iter().zip(bench.read(out, n)) {
            let x = f64::from(*x);
            let y = match f {
                Function::SoftCap(_) => unreachable!("see above"),
                Function::Scale(factor) => f64::from(factor) * x,
                Function::SquaredRelu => x.max(0.0).powi(2),
                Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
                Function::Silu => x / (1.0 + (-x).exp()),
                Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
                Function::Exp => x.exp(),
                Function::Gelu => gelu(x),
            };
            worst.see(
                || format!("{f:?} of {x}"),
                y,
                got,
                bound(y, 1.6 * x + 0.08 * x.powi(3)),
            );
        }
        worst.check("functions");
    }
    for act in [Activation::Silu, Activation::Gelu, Activation::SwigluOai] {
        let pair = Pair {
            a: at,
            b: at_up,
            out,
            n: n as u64,
            period: n as u64,
        };
        bench.run(&launch::gate(act, &pair));
        let mut worst = Worst::default();
        for (i, got) in bench.read(out, n).into_iter().enumerate() {
            let (g, u) = (f64::from(x[i]), f64::from(up[i]));
            let y = match act {
                Activation::Silu => g / (1.0 + (-g).exp()) * u,
                Activation::Gelu => gelu(g) * u,
                Activation::SwigluOai => {
                    let g = g.min(7.0);
                    g / (1.0 + (-1.702 * g).exp()) * (u.clamp(-7.0, 7.0) + 1.0)
                }
            };
            worst.see(
                || format!("{act:?} of {g}, {u}"),
                y,
                got,
                bound(y, 1.7 * g + 0.08 * g.powi(3)),
            );
        }
        worst.check("gates");
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
            // a thread's part of the sum, and those of all of them, in f32
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

/// The executor's own way to the factors of positions, rows of several sequences included.
#[test]
fn scales_follow_positions() {
    let Some(Bench(machine)) = device() else {
        return;
    };
    let (m, width, rate, step) = (20, 24, 0.5f32, 8);
    let x = Rng(9).floats(m * width);
    let kv = KvShape { head_dim: 8, ..KV };
    let op = Op::ScaleByPosition { x: 0, rate, step };
    let program = program(vec![embed(m, width, &x, 0), op.to(1)], &[width; 2], kv);
    let setup = Setup {
        limits: Limits {
            rows: m,
            wanted: m,
            sequences: 1,
            positions: 32,
            n_pages: 2,
            states: 0,
        },
        capture: false,
        check_pages: true,
        threads: 1,
    };
    let mut executor = Executor::new(machine.boxed(), program, &[], setup, &mut |_, _, _| {})
        .expect("a program that fits");
    let tokens: Vec<u32> = (0..m as u32).collect();
    let seqs = [Sequence {
        tokens: &tokens,
        start: 0,
        tables: &[&[1, 0]],
        wanted: 0..m,
        ..Sequence::default()
    }];
    let all = Step {
        role: Role::Prompt,
        seqs: &seqs,
        input: &[],
    };
    let got = executor.step(&all, None).expect("it runs");
    for (position, (x, got)) in x.chunks(width).zip(got.chunks(width)).enumerate() {
        let factor = 1.0 + rate * ((1 + position / step) as f32).ln();
        for (x, got) in x.iter().zip(got) {
            assert!(
                (got - factor * x).abs() <= 4e-7 * factor,
                "{position}: {x}, {got}"
            );
        }
    }
}

/// No model has one yet: the executor's own way to the kernel.
#[test]
fn programs_take_soft_caps() {
    let Some(Bench(machine)) = device() else {
        return;
    };
    let (m, width, cap) = (3, 40, 30.0f32);
    let x: Vec<f32> = Rng(5).floats(m * width).iter().map(|v| v * 90.0).collect();
    let soft_cap = Op::Unary {
        x: 0,
        f: Function::SoftCap(cap),
    };
    let kv = KvShape { head_dim: 8, ..KV };
    let program = program(
        vec![embed(m, width, &x, 0), soft_cap.to(1)],
        &[width; 2],
        kv,
    );
    let setup = Setup {
        limits: Limits {
            rows: m,
            wanted: m,
            sequences: 1,
            positions: 16,
            n_pages: 1,
            states: 0,
        },
        capture: false,
        check_pages: true,
        threads: 1,
    };
    let mut executor = Executor::new(machine.boxed(), program, &[], setup, &mut |_, _, _| {})
        .expect("a program that fits");
    let seqs = [Sequence {
        tokens: &[0, 1, 2],
        start: 0,
        tables: &[&[0]],
        wanted: 0..m,
        ..Sequence::default()
    }];
    let step = Step {
        role: Role::Prompt,
        seqs: &seqs,
        input: &[],
    };
    let got = executor.step(&step, None).expect("it runs");
    for (x, got) in x.iter().zip(got) {
        let exact = cap * (x / cap).tanh();
        assert!((got - exact).abs() <= 1e-5 * cap, "{x}: {got}, {exact}");
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
