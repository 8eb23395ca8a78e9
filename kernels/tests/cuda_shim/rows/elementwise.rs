//! Elementwise operations.

use octavo_kernels::cuda::params::Hadamard;
use octavo_kernels::{Isa, Xielu};

use super::*;
use crate::hadamard::{SIZES, transformed};

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
            // two units in the last place of `expf`, three roundings; f32 overflows beyond e^88
            worst.see(
                || format!("gate {g}"),
                y,
                got,
                y.abs() * 4.0 * f64::from(f32::EPSILON) + 1e-36,
            );
        }
        worst.check("swiglu");

        let indices: Vec<u32> = (0..rows as u32).rev().collect();
        let p = Select {
            x: at_a,
            indices: bench.integers(&indices),
            out,
            rows: rows as u32,
            width: width as u32,
        };
        bench.run(&launch::select_rows(&p));
        let expected: Vec<f32> = indices
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

/// The approximation of GELU by tanh.
fn gelu(x: f64) -> f64 {
    let z = (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
    x / (1.0 + (-2.0 * z).exp())
}

fn of_function(f: Function, x: f64) -> f64 {
    match f {
        Function::SoftCap(_) => unreachable!("see above"),
        Function::Scale(factor) => f64::from(factor) * x,
        Function::Clamp(low, high) => x.clamp(low.into(), high.into()),
        Function::SquaredRelu => x.max(0.0).powi(2),
        Function::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        Function::Silu => x / (1.0 + (-x).exp()),
        Function::Softplus => x.max(0.0) + (-x.abs()).exp().ln_1p(),
        Function::Exp => x.exp(),
        Function::Gelu => gelu(x),
        Function::Xielu(by) if x > 0.0 => f64::from(by.positive) * x * x + f64::from(by.linear) * x,
        Function::Xielu(by) => {
            let curve = x.min(by.least.into()).exp_m1() - x;
            f64::from(by.negative) * curve + f64::from(by.linear) * x
        }
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
    // two units in the last place of `expf`, a few roundings of its argument, which is below 200,
    // and of the rest
    let bound = |y: f64, z: f64| y.abs() * (z.abs() * 4.0 + 6.0) * f64::from(f32::EPSILON) + 1e-33;
    for f in [
        Function::Scale(0.7),
        Function::Clamp(-0.7, 1.5),
        Function::SquaredRelu,
        Function::Sigmoid,
        Function::Silu,
        Function::Softplus,
        Function::Exp,
        Function::Gelu,
        Function::Xielu(Xielu {
            positive: 0.8,
            negative: 1.3,
            linear: 0.5,
            least: -1e-6,
        }),
    ] {
        bench.run(&launch::unary(f, at, out, n as u64));
        let mut worst = Worst::default();
        for (x, got) in x.iter().zip(bench.read(out, n)) {
            let x = f64::from(*x);
            let y = of_function(f, x);
            // below 0 its terms nearly cancel
            let size = match f {
                Function::Xielu(_) => y.abs() + 2.0 * x.abs(),
                _ => y,
            };
            worst.see(
                || format!("{f:?} of {x}"),
                y,
                got,
                bound(size, 1.6 * x + 0.08 * x.powi(3)),
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

/// The executor's use of factors by position, including rows of several sequences.
#[test]
fn scales_follow_positions() {
    let Some(Bench(machine)) = device() else {
        return;
    };
    let (m, width, rate, step, offset) = (20, 24, 0.5f32, 8, 1);
    let x = Rng(9).floats(m * width);
    let kv = KvShape { head_dim: 8, ..KV };
    let op = Op::ScaleByPosition {
        x: 0,
        rate,
        step,
        offset,
    };
    let program = program(vec![embed(m, width, &x, 0), op.to(1)], &[width; 2], kv);
    let setup = Setup {
        limits: Limits {
            rows: m,
            outputs: m,
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
    let seqs = [StepSequence {
        tokens: &tokens,
        start: 0,
        tables: &[&[1, 0]],
        outputs: 0..m,
        ..StepSequence::default()
    }];
    let all = Step {
        phase: Phase::Prefill,
        seqs: &seqs,
        input: &[],
    };
    let got = executor.step(&all, None).expect("it runs");
    for (position, (x, got)) in x.chunks(width).zip(got.chunks(width)).enumerate() {
        let factor = 1.0 + rate * ((1 + (position + offset) / step) as f32).ln();
        for (x, got) in x.iter().zip(got) {
            assert!(
                (got - factor * x).abs() <= 4e-7 * factor,
                "{position}: {x}, {got}"
            );
        }
    }
}

#[test]
fn hadamard_transforms_add_in_the_order_of_cpus() {
    let Some(mut bench) = device() else { return };
    for [m, width, order] in SIZES {
        let x = Rng(32).floats(m * width);
        let out = bench.alloc(4 * x.len());
        let p = Hadamard {
            x: bench.floats(&x),
            out,
            n: x.len() as u64,
            order: order as u32,
            factor: 1.0 / (order as f32).sqrt(),
        };
        bench.run(&launch::hadamard(&p));
        let expected = transformed(Isa::Scalar, &x, width, order, 1);
        assert_eq!(bench.read(out, x.len()), expected, "{width} by {order}");
    }
}

/// The executor's use of the kernel, which no model uses yet.
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
            outputs: m,
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
    let seqs = [StepSequence {
        tokens: &[0, 1, 2],
        start: 0,
        tables: &[&[0]],
        outputs: 0..m,
        ..StepSequence::default()
    }];
    let step = Step {
        phase: Phase::Prefill,
        seqs: &seqs,
        input: &[],
    };
    let got = executor.step(&step, None).expect("it runs");
    for (x, got) in x.iter().zip(got) {
        let exact = cap * (x / cap).tanh();
        assert!((got - exact).abs() <= 1e-5 * cap, "{x}: {got}, {exact}");
    }
}
