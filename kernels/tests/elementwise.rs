//! Functions of single values against f64, on every instruction set, in any division among threads.

use crate::common::{KV, Rng, embed, program, run};
use octavo_kernels::{Executor, Function, Isa, Op, Pool, Role};

/// The results for rows of `x`, by `threads` threads of `isa`.
fn applied(isa: Isa, f: Function, x: &[f32], width: usize, threads: usize, role: Role) -> Vec<f32> {
    let m = x.len() / width;
    let ops = vec![embed(m, width, x, 0), Op::Unary { x: 0, f }.to(1)];
    let pool = Pool::new(threads).expect("threads");
    let mut executor = Executor::new(isa, program(ops, &[width; 2], KV), Vec::new(), pool);
    run(&mut executor, KV, role, m)
}

/// How far `cap * tanh(x / cap)` may be off, relatively, in units of f32's epsilon. The quotient is
/// rounded by half of one. `e^2z - 1` is off by 3.4 of itself at most, where its parts partly
/// cancel (2z about -ln 2 / 2: two for the polynomial, which is 1.4 of the value, and half for the
/// sum); `t / (t + 2)` makes at most twice of that, and half of one for each of sum, quotient and
/// product. Where it makes twice, t is below zero and off by 1.9 at most: 0.5 + max(3.4, 2 * 1.9) + 1.5.
const ROUNDINGS: f64 = 5.8;

#[test]
fn soft_caps_match_f64() {
    let mut rng = Rng(17);
    for cap in [0.5f32, 30.0, 50.0] {
        for (m, width) in [(1, 1), (3, 31), (2, 64), (5, 257), (16, 1000)] {
            // from far below the cap, where it changes next to nothing, to far above it
            let x: Vec<f32> = (0..m * width)
                .map(|_| cap * rng.unit() * 2f32.powi((rng.bits() % 28) as i32 - 20))
                .collect();
            for isa in Isa::available() {
                let got = applied(isa, Function::SoftCap(cap), &x, width, 1, Role::Prompt);
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
                for (threads, role) in [(2, Role::Prompt), (3, Role::Generated)] {
                    let again = applied(isa, Function::SoftCap(cap), &x, width, threads, role);
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
        let got = applied(isa, Function::SoftCap(30.0), &x, x.len(), 1, Role::Prompt);
        assert_eq!(got[..5], [30.0, -30.0, 30.0, -30.0, 0.0], "{isa}");
        assert!(
            got[5].is_nan(),
            "{isa}: what is not a number must stay to be seen"
        );
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
