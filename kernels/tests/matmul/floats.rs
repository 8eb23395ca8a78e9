//! Float weights, which rows of any length may have.

use super::*;

#[test]
fn float_weights_take_any_width() {
    let mut rng = Rng(5);
    for ty in [T::F32, T::F16, T::BF16] {
        // with few weights a row, the bound is some units in the last place
        for cols in [1, 2, 3, 5, 31, 33, 255, 257, 300] {
            let (rows, tokens) = (19, 5);
            let mut raw = Vec::new();
            octavo_quant::quantize(ty, &rng.floats(rows * cols), cols, None, &mut raw)
                .expect("rows of floats");
            let x = rng.floats(tokens * cols);
            let mut exact = Exact::new(ty, cols, &raw, &x);
            for isa in instruction_sets() {
                for phase in [Phase::Prefill, Phase::Decode] {
                    check(
                        &Cell {
                            isa,
                            ty,
                            rows,
                            cols,
                            tokens,
                            phase,
                            bits: PromptBits::Sixteen,
                        },
                        &raw,
                        &mut exact,
                    );
                }
            }
        }
    }
}
