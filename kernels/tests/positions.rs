//! Scales that follow positions, against f64.

use crate::common::{KV, Rng, embed, program, run};
use octavo_kernels::{Executor, Isa, Op, Phase, Pool};

/// Relative error of one rounding: half a unit in the last place.
const U: f64 = f32::EPSILON as f64 / 2.0;

#[test]
fn scales_follow_positions() {
    let (m, width, rate, step, offset) = (40, 33, 0.1f32, 16, 1);
    let x = Rng(21).floats(m * width);
    let on = |isa, threads, phase| {
        let op = Op::ScaleByPosition {
            x: 0,
            rate,
            step,
            offset,
        };
        let ops = vec![embed(m, width, &x, 0), op.to(1)];
        let pool = Pool::new(threads).expect("threads");
        let mut executor = Executor::new(isa, program(ops, &[width; 2], KV), Vec::new(), pool);
        run(&mut executor, KV, phase, m)
    };
    for isa in Isa::available() {
        let got = on(isa, 1, Phase::Prefill);
        for (position, (x, got)) in x.chunks(width).zip(got.chunks(width)).enumerate() {
            let factor = 1.0 + f64::from(rate) * ((1 + (position + offset) / step) as f64).ln();
            for (x, got) in x.iter().zip(got) {
                let y = factor * f64::from(*x);
                let error = (f64::from(*got) - y).abs();
                assert!(error <= 2.0 * U * y.abs(), "{isa} {position}: {y}, {got}");
            }
        }
        assert!(on(isa, 2, Phase::Prefill) == got, "{isa}");
    }
}
