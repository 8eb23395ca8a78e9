//! Elementwise functions against f64, on every instruction set, with any division among threads.

use crate::common::{KV, Rng, embed, program, run};
use octavo_kernels::{Activation, Executor, Function, Instruction, Isa, Op, Phase, Pool, Xielu};

/// Returns the results for rows of `x`, by `threads` threads of `isa`.
fn applied(
    isa: Isa,
    f: Function,
    x: &[f32],
    width: usize,
    threads: usize,
    phase: Phase,
) -> Vec<f32> {
    let m = x.len() / width;
    let ops = vec![embed(m, width, x, 0), Op::Unary { x: 0, f }.to(1)];
    let pool = Pool::new(threads).expect("threads");
    let mut executor = Executor::new(isa, program(ops, &[width; 2], KV), Vec::new(), pool);
    run(&mut executor, KV, phase, m)
}

/// Relative error bound of `cap * tanh(x / cap)`, in units of f32's epsilon. The quotient is
/// rounded by half of one. `e^2z - 1` has a relative error of at most 3.4, where its parts partly
/// cancel (2z about -ln 2 / 2: two for the polynomial, which is 1.4 times the value, and half for
/// the sum); `t / (t + 2)` at most doubles that, and adds half for each of sum, quotient and
/// product. Where it doubles it, t is negative and its error at most 1.9: 0.5 + max(3.4, 2 * 1.9) +
/// 1.5.
const ROUNDINGS: f64 = 5.8;

#[test]
fn soft_caps_match_f64() {
    let mut rng = Rng(17);
    for cap in [0.5f32, 30.0, 50.0] {
        for (m, width) in [(1, 1), (3, 31), (2, 64), (5, 257), (16, 1000)] {
            // from far below the cap, where it changes almost nothing, to far above it
            let x: Vec<f32> = (0..m * width)
                .map(|_| cap * rng.unit() * 2f32.powi((rng.bits() % 28) as i32 - 20))
                .collect();
            for isa in Isa::available() {
                let got = applied(isa, Function::SoftCap(cap), &x, width, 1, Phase::Prefill);
                for (x, got) in x.iter().zip(&got) {
                    let (cap, x) = (f64::from(cap), f64::from(*x));
                    let exact = cap * (x / cap).tanh();
                    let error = (f64::from(*got) - exact).abs();
                    let allowed = ROUNDINGS * f64::from(f32::EPSILON) * exact.abs();
                    assert!(
                        error <= allowed,
                        "{isa} cap {cap}, {x}: expected {exact}, got {got}, {error:e} > {allowed:e}"
                    );
                }
                for (threads, phase) in [(2, Phase::Prefill), (3, Phase::Decode)] {
                    let again = applied(isa, Function::SoftCap(cap), &x, width, threads, phase);
                    assert!(again == got, "{isa} {threads} threads, {m} x {width}");
                }
            }
        }
    }
}

#[test]
fn soft_caps_hold_at_the_ends() {
    let x = [
        f32::INFINITY,
        f32::NEG_INFINITY,
        f32::MAX,
        -1e30,
        0.0,
        f32::NAN,
    ];
    for isa in Isa::available() {
        let got = applied(isa, Function::SoftCap(30.0), &x, x.len(), 1, Phase::Prefill);
        assert_eq!(got[..5], [30.0, -30.0, 30.0, -30.0, 0.0], "{isa}");
        assert!(
            got[5].is_nan(),
            "{isa}: what is not a number must stay to be seen"
        );
    }
}

/// Relative error of one rounding: half a unit in the last place of 1.
const U: f64 = f32::EPSILON as f64 / 2.0;

/// Returns values of all magnitudes and both signs.
fn of_all_sizes(rng: &mut Rng, n: usize) -> Vec<f32> {
    let size = |rng: &mut Rng| 2f32.powi((rng.bits() % 20) as i32 - 12);
    (0..n).map(|_| rng.unit() * size(rng)).collect()
}

/// Returns the relative error of a quotient by `1 + e^z`, given the relative error `error` of `z`,
/// with two units in the last place of `exp` and the two roundings after it.
fn over_one_and_exp(z: f64, error: f64) -> f64 {
    let part = 1.0 / (1.0 + (-z).exp());
    part * (z.abs() * error + 4.0 * U) + 2.5 * U
}

/// xIELU with coefficients as in trained models.
const XIELU: Function = Function::Xielu(Xielu {
    positive: 0.8,
    negative: 1.3,
    linear: 0.5,
    least: -1e-6,
});

/// Returns the exact value of a function, and the error bound of the kernels.
fn expected(f: Function, x: f64) -> (f64, f64) {
    match f {
        Function::SoftCap(_) => unreachable!("`soft_caps_match_f64`"),
        Function::Scale(factor) => (f64::from(factor) * x, U * (f64::from(factor) * x).abs()),
        Function::Clamp(low, high) => (x.clamp(low.into(), high.into()), 0.0),
        Function::SquaredRelu => (x.max(0.0).powi(2), U * x * x),
        Function::Sigmoid => {
            let y = 1.0 / (1.0 + (-x).exp());
            (y, y * over_one_and_exp(-x, 0.0))
        }
        Function::Silu => {
            let y = x / (1.0 + (-x).exp());
            (y, y.abs() * over_one_and_exp(-x, 0.0))
        }
        // the exponential and the logarithm lose some units of what they add, and the sum one
        Function::Softplus => {
            let y = x.max(0.0) + (-x.abs()).exp().ln_1p();
            (y, 4.0 * U * y + 4.0 * U * (-x.abs()).exp().ln_1p())
        }
        Function::Exp => {
            let y = x.clamp(f64::from(-87.3f32), f64::from(88.3f32)).exp();
            (y, 4.0 * U * y)
        }
        // below 0, the exponential loses some units of what it is, and nearly cancels
        Function::Xielu(by) => {
            let [positive, negative, linear, least] =
                [by.positive, by.negative, by.linear, by.least].map(f64::from);
            let exp = x.min(least).exp_m1();
            let (curve, size) = match x > 0.0 {
                true => (positive * x * x, positive * x * x),
                false => (negative * (exp - x), negative * (exp.abs() + x.abs())),
            };
            (curve + linear * x, 8.0 * U * (size + (linear * x).abs()))
        }
        Function::Gelu => {
            let z = -2.0 * (2.0 / std::f64::consts::PI).sqrt() * (x + 0.044715 * x.powi(3));
            let y = x / (1.0 + z.exp());
            // z: two constants, a square, a sum and two products
            (y, y.abs() * over_one_and_exp(z, 6.0 * U))
        }
    }
}

#[test]
fn functions_match_f64() {
    let mut rng = Rng(18);
    for f in [
        Function::Scale(0.3),
        Function::Clamp(-0.7, 1.5),
        Function::Clamp(f32::NEG_INFINITY, 2.0),
        Function::SquaredRelu,
        Function::Sigmoid,
        Function::Silu,
        Function::Softplus,
        Function::Exp,
        Function::Gelu,
        XIELU,
    ] {
        for (m, width) in [(1, 1), (3, 31), (2, 64), (5, 257), (16, 1000)] {
            let x = of_all_sizes(&mut rng, m * width);
            for isa in Isa::available() {
                let got = applied(isa, f, &x, width, 1, Phase::Prefill);
                for (x, got) in x.iter().zip(&got) {
                    let (exact, allowed) = expected(f, f64::from(*x));
                    let error = (f64::from(*got) - exact).abs();
                    // below e^-87 the kernels have no smaller results
                    let allowed = allowed + 1e-35;
                    assert!(
                        error <= allowed,
                        "{isa} {f:?} of {x}: expected {exact}, got {got}, {error:e} > {allowed:e}"
                    );
                }
                for (threads, phase) in [(2, Phase::Prefill), (3, Phase::Decode)] {
                    let again = applied(isa, f, &x, width, threads, phase);
                    assert!(again == got, "{isa} {f:?} {threads} threads, {m} x {width}");
                }
            }
        }
    }
}

#[test]
fn functions_hold_at_the_ends() {
    let x = [-1e30, -200.0, 0.0, 200.0, f32::NAN];
    for isa in Isa::available() {
        let of = |f| applied(isa, f, &x, x.len(), 1, Phase::Prefill);
        for (f, expected) in [
            (Function::Sigmoid, [0.0, 0.0, 0.5, 1.0]),
            (Function::Silu, [0.0, 0.0, 0.0, 200.0]),
            (Function::Softplus, [0.0, 0.0, 2f32.ln(), 200.0]),
            (Function::Gelu, [0.0, 0.0, 0.0, 200.0]),
            (XIELU, [8e29, 158.7, -1.3e-6, 32_100.0]),
            (Function::SquaredRelu, [0.0, 0.0, 0.0, 40_000.0]),
            (
                Function::Clamp(-3.0, f32::INFINITY),
                [-3.0, -3.0, 0.0, 200.0],
            ),
        ] {
            let got = of(f);
            let near = |(a, b): (&f32, &f32)| (a - b).abs() <= 1e-7_f32.max(4e-7 * b.abs());
            assert!(
                got[..4].iter().zip(&expected).all(near),
                "{isa} {f:?}: {got:?}"
            );
            assert!(
                got[4].is_nan(),
                "{isa} {f:?}: what is not a number must stay to be seen"
            );
        }
    }
}

/// Returns the exact value of a gate, and the error bound of the kernels.
fn expected_of_gate(act: Activation, gate: f64, up: f64) -> (f64, f64) {
    let (glu, factor, relative) = match act {
        Activation::Silu => (
            gate / (1.0 + (-gate).exp()),
            up,
            over_one_and_exp(-gate, 0.0),
        ),
        Activation::Gelu => {
            let (y, error) = expected(Function::Gelu, gate);
            (y, up, error / y.abs().max(f64::MIN_POSITIVE))
        }
        Activation::SwigluOai => {
            let (g, u) = (gate.min(7.0), up.clamp(-7.0, 7.0));
            let z = -1.702 * g;
            // z: the constant and the product; the sum after it: one rounding
            let relative = over_one_and_exp(z, 2.0 * U) + U;
            (g / (1.0 + z.exp()), u + 1.0, relative)
        }
    };
    let y = glu * factor;
    (y, y.abs() * (relative + U))
}

#[test]
fn gates_match_f64() {
    let mut rng = Rng(19);
    for act in [Activation::Silu, Activation::Gelu, Activation::SwigluOai] {
        for (m, width) in [(1, 1), (3, 31), (5, 257), (16, 640)] {
            let [gate, up] = [0, 1].map(|_| of_all_sizes(&mut rng, m * width));
            let on = |isa, threads, phase| {
                let ops = vec![
                    embed(m, width, &gate, 0),
                    embed(m, width, &up, 1),
                    Op::Gate {
                        gate: 0,
                        up: 1,
                        act,
                    }
                    .to(2),
                ];
                let pool = Pool::new(threads).expect("threads");
                let program = program(ops, &[width; 3], KV);
                let mut executor = Executor::new(isa, program, Vec::new(), pool);
                run(&mut executor, KV, phase, m)
            };
            for isa in Isa::available() {
                let got = on(isa, 1, Phase::Prefill);
                for ((gate, up), got) in gate.iter().zip(&up).zip(&got) {
                    let (exact, allowed) = expected_of_gate(act, (*gate).into(), (*up).into());
                    let error = (f64::from(*got) - exact).abs();
                    let allowed = allowed + 1e-33;
                    assert!(
                        error <= allowed,
                        "{isa} {act:?} of {gate} and {up}: expected {exact}, got {got}, \
                         {error:e} > {allowed:e}"
                    );
                }
                assert!(on(isa, 2, Phase::Decode) == got, "{isa} {act:?}");
            }
        }
    }
}

#[test]
fn layer_norms_match_f64() {
    let mut rng = Rng(20);
    for (m, width, group) in [
        (1, 1, 1),
        (3, 62, 31),
        (2, 64, 64),
        (5, 257, 257),
        (4, 2000, 500),
    ] {
        // a mean that is large compared with the deviations from it
        let x: Vec<f32> = rng.floats(m * width).iter().map(|x| 3.0 + x).collect();
        let weight: Vec<f32> = rng.floats(group);
        let eps = 1e-5f32;
        let on = |isa, threads, phase| {
            let norm = Op::LayerNorm {
                x: 0,
                weight: weight.clone().into(),
                eps,
            };
            let ops = vec![embed(m, width, &x, 0), norm.to(1)];
            let pool = Pool::new(threads).expect("threads");
            let program = program(ops, &[width; 2], KV);
            let mut executor = Executor::new(isa, program, Vec::new(), pool);
            run(&mut executor, KV, phase, m)
        };
        for isa in Isa::available() {
            let got = on(isa, 1, Phase::Prefill);
            for (x, got) in x.chunks(group).zip(got.chunks(group)) {
                let x: Vec<f64> = x.iter().map(|x| f64::from(*x)).collect();
                let n = group as f64;
                let mean = x.iter().sum::<f64>() / n;
                let squares = x.iter().map(|x| (x - mean).powi(2)).sum::<f64>();
                let scale = 1.0 / (squares / n + f64::from(eps)).sqrt();
                let largest = x.iter().fold(0.0, |m: f64, x| m.max(x.abs()));
                // a sum of n values of one sign is off by at most a rounding of each partial sum,
                // the mean by one more; likewise the sum of squares, and its root by half of that
                let of_mean = (n / 2.0 + 8.0) * U * largest;
                let relative = (n / 2.0 + 8.0) * U + of_mean * scale;
                for ((x, w), got) in x.iter().zip(&weight).zip(got) {
                    let y = (x - mean) * scale * f64::from(*w);
                    let direct = (of_mean + 4.0 * U * (x - mean).abs()) * scale;
                    let allowed = direct * f64::from(w.abs()) + relative * y.abs();
                    let error = (f64::from(*got) - y).abs();
                    assert!(
                        error <= allowed,
                        "{isa} {m} x {width} by {group}: expected {y}, got {got}, \
                         {error:e} > {allowed:e}"
                    );
                }
            }
            assert!(on(isa, 2, Phase::Decode) == got, "{isa} {m} x {width}");
        }
    }
}

#[test]
#[should_panic(expected = "operation 1: result: expected 4, got 5")]
fn results_are_as_wide_as_their_input() {
    let f = Function::SoftCap(1.0);
    let ops = vec![embed(1, 4, &[0.0; 4], 0), Op::Unary { x: 0, f }.to(1)];
    let pool = Pool::new(1).expect("threads");
    Executor::new(Isa::Scalar, program(ops, &[4, 5], KV), Vec::new(), pool);
}

#[test]
fn slices_are_values_of_rows() {
    let (m, width) = (7, 50);
    let x = Rng(22).floats(m * width);
    for (each, from, part) in [
        (50, 0, 50),
        (50, 0, 1),
        (50, 49, 1),
        (50, 13, 20),
        (10, 7, 3),
        (25, 0, 24),
    ] {
        for isa in Isa::available() {
            for threads in [1, 3] {
                let op = Op::Slice {
                    x: 0,
                    each,
                    from,
                    width: part,
                };
                let ops = vec![embed(m, width, &x, 0), op.to(1)];
                let pool = Pool::new(threads).expect("threads");
                let program = program(ops, &[width, width / each * part], KV);
                let mut executor = Executor::new(isa, program, Vec::new(), pool);
                let got = run(&mut executor, KV, Phase::Prefill, m);
                let pieces = x.chunks(each);
                let expected: Vec<f32> = pieces
                    .flat_map(|piece| &piece[from..from + part])
                    .copied()
                    .collect();
                assert_eq!(got, expected, "{isa}: {part} values from {from} on");
            }
        }
    }
}

#[test]
#[should_panic(expected = "values of a row: expected 4, got 5")]
fn a_slice_ends_in_its_row() {
    let slice = Op::Slice {
        x: 0,
        each: 4,
        from: 2,
        width: 3,
    };
    let ops = vec![embed(1, 4, &[0.0; 4], 0), slice.to(1)];
    let pool = Pool::new(1).expect("threads");
    Executor::new(Isa::Scalar, program(ops, &[4, 3], KV), Vec::new(), pool);
}

#[test]
fn products_of_values_are_rounded_once() {
    let mut rng = Rng(23);
    for (m, width) in [(1, 3), (5, 64), (3, 257)] {
        let (x, by) = (rng.floats(m * width), rng.floats(width));
        let one = |y: f32, i: usize| y * by[i % width];
        let expected: Vec<f32> = x.iter().enumerate().map(|(i, y)| one(*y, i)).collect();
        let squares: Vec<f32> = x.iter().map(|x| x * x).collect();
        for isa in Isa::available() {
            for threads in [1, 3] {
                let of = |op: Instruction| {
                    let ops = vec![embed(m, width, &x, 0), op];
                    let pool = Pool::new(threads).expect("threads");
                    let program = program(ops, &[width, width], KV);
                    let mut executor = Executor::new(isa, program, Vec::new(), pool);
                    run(&mut executor, KV, Phase::Prefill, m)
                };
                let by = by.clone().into();
                let got = of(Op::MulVector { x: 0, by }.to(1));
                assert!(got == expected, "{isa}: {m} rows of {width}");
                assert!(of(Op::Mul { a: 0, b: 0 }.to(1)) == squares, "{isa}");
            }
        }
    }
}

#[test]
fn a_factor_is_for_its_neighbours() {
    let x = Rng(24).floats(2 * 12);
    let by = vec![2.0, -0.5, 0.25];
    let expected: Vec<f32> = (0..24).map(|i| x[i] * by[i % 12 / 4]).collect();
    for isa in Isa::available() {
        let by = by.clone().into();
        let ops = vec![embed(2, 12, &x, 0), Op::MulVector { x: 0, by }.to(1)];
        let program = program(ops, &[12, 12], KV);
        let pool = Pool::new(2).expect("threads");
        let mut executor = Executor::new(isa, program, Vec::new(), pool);
        assert_eq!(run(&mut executor, KV, Phase::Prefill, 2), expected, "{isa}");
    }
}

#[test]
fn pieces_follow_each_other_in_turn() {
    let (m, mut rng) = (3, Rng(25));
    for (each, pieces, shared) in [([4, 2], 5, false), ([4, 2], 5, true), ([1, 7], 3, false)] {
        let (first, second) = (each[0] * pieces, each[1] * if shared { 1 } else { pieces });
        let (a, b) = (rng.floats(m * first), rng.floats(m * second));
        let row = |r: usize| {
            let of_b = b[r * second..(r + 1) * second].chunks(each[1]).cycle();
            let of_a = a[r * first..(r + 1) * first].chunks(each[0]);
            of_a.zip(of_b).flat_map(|(a, b)| [a, b].concat())
        };
        let expected: Vec<f32> = (0..m).flat_map(row).collect();
        for isa in Isa::available() {
            for threads in [1, 2] {
                let ops = vec![
                    embed(m, first, &a, 0),
                    embed(m, second, &b, 1),
                    Op::Concat { a: 0, b: 1, each }.to(2),
                ];
                let widths = [first, second, pieces * (each[0] + each[1])];
                let program = program(ops, &widths, KV);
                let pool = Pool::new(threads).expect("threads");
                let mut executor = Executor::new(isa, program, Vec::new(), pool);
                assert_eq!(run(&mut executor, KV, Phase::Prefill, m), expected, "{isa}");
            }
        }
    }
}

#[test]
#[should_panic(expected = "pieces of the second row: expected 6, got 4")]
fn as_many_pieces_follow() {
    let ops = vec![
        embed(1, 6, &[0.0; 6], 0),
        embed(1, 4, &[0.0; 4], 1),
        Op::Concat {
            a: 0,
            b: 1,
            each: [2, 2],
        }
        .to(2),
    ];
    let pool = Pool::new(1).expect("threads");
    Executor::new(Isa::Scalar, program(ops, &[6, 4, 12], KV), Vec::new(), pool);
}

#[test]
fn a_constant_is_every_row() {
    let values = vec![0.0, 1.0, 2.5];
    for isa in Isa::available() {
        let constant = Op::Constant {
            values: values.clone().into(),
        };
        let ops = vec![embed(4, 1, &[0.0; 4], 0), constant.to(1)];
        let pool = Pool::new(2).expect("threads");
        let mut executor = Executor::new(isa, program(ops, &[1, 3], KV), Vec::new(), pool);
        let expected = [&values[..]; 4].concat();
        assert_eq!(run(&mut executor, KV, Phase::Prefill, 4), expected, "{isa}");
    }
}
