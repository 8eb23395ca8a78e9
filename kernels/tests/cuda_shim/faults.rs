//! Faults planted in kernels, and their detection by the shim.

use octavo_kernels::cuda::shim::{Schedule, Sources};
use octavo_quant::TensorType as T;

use super::{Bench, Product, device_of};
use crate::common::{Rng, random_blocks};

/// Runs a prefill product with modified sources: an error of the shim, or its results.
fn planted(
    file: &str,
    from: &str,
    to: &str,
    schedule: Schedule,
) -> Option<Result<Vec<f32>, String>> {
    planted_in((Bench::gemm, 60), file, from, to, schedule)
}

/// As [`planted`], for any product of some tokens.
fn planted_in(
    case: (Product, usize),
    file: &str,
    from: &str,
    to: &str,
    schedule: Schedule,
) -> Option<Result<Vec<f32>, String>> {
    planted_of(T::Q8_0, case, (file, from, to), schedule)
}

/// As [`planted_in`], for any type.
fn planted_of(
    ty: T,
    (product, tokens): (Product, usize),
    (file, from, to): (&str, &str, &str),
    schedule: Schedule,
) -> Option<Result<Vec<f32>, String>> {
    let mut sources = Sources {
        formats: vec![ty],
        ..Sources::default()
    };
    sources.replace(file, from, to);
    let mut bench = device_of(sources)?;
    bench.0.schedule(schedule);
    let (rows, cols) = (64, 512);
    let mut rng = Rng(12);
    let raw = random_blocks(&mut rng, ty, rows * cols);
    let x = rng.floats(tokens * cols);
    let product = std::panic::catch_unwind(std::panic::AssertUnwindSafe(|| {
        product(&mut bench, (ty, rows, cols), &raw, &x, None)
    }));
    Some(product.map_err(|panic| panic.downcast_ref::<String>().cloned().unwrap_or_default()))
}

const BEFORE_USE: &str = "        __syncthreads();\n        if (unit + 2";
const AFTER_USE: &str =
    "        __syncthreads();\n    }\n#pragma unroll\n    for (u32 i = 0; i < t_tiles; ++i) {\n";

#[test]
fn a_barrier_that_is_missing_is_seen_in_every_order() {
    let Some(right) = planted(
        "gemm.cuh",
        "constexpr u32 SLICE = 2 * UNIT;",
        "constexpr u32 SLICE = 2u * UNIT;",
        Schedule::Forward,
    ) else {
        return;
    };
    let right = right.expect("nothing was changed");
    for schedule in Schedule::ALL {
        let without = |text: &str| text.replacen("__syncthreads();", "", 1);
        let early =
            planted("gemm.cuh", BEFORE_USE, &without(BEFORE_USE), schedule).expect("a compiler");
        assert!(
            early.expect("no other fault").iter().any(|v| v.is_nan()),
            "{schedule:?}: read before it was written"
        );
        let late =
            planted("gemm.cuh", AFTER_USE, &without(AFTER_USE), schedule).expect("a compiler");
        assert!(
            late.expect("no other fault") != right,
            "{schedule:?}: overwritten before it was read"
        );
    }
}

#[test]
fn other_faults_are_seen() {
    let seen = |what: &str, from: &str, to: &str, message: &str| {
        let Some(result) = planted("gemm.cuh", from, to, Schedule::Forward) else {
            return;
        };
        let error = result.map(|y| y.len()).expect_err(what);
        assert!(error.contains(message), "{what}: {error}");
    };
    let barrier = |what: &str, instead: &str, message: &str| {
        seen(
            what,
            BEFORE_USE,
            &BEFORE_USE.replacen("__syncthreads();", instead, 1),
            message,
        );
    };
    let apart = "if (warp == 0) {\n__syncthreads();\n} else {\n__syncthreads();\n}";
    barrier("warps at two barriers", apart, "barrier: thread 0 waits at");
    barrier(
        "one warp alone",
        "if (warp == 0) __syncthreads();",
        "barrier: thread 0 waits at",
    );
    barrier(
        "one ends",
        "if (warp == 3) return;\n__syncthreads();",
        "thread 127 has ended",
    );
    let lanes = "if (lane == 5) {\n__syncthreads();\n} else {\nlanes_sum<32>(1.0f);\n}";
    barrier(
        "lanes apart",
        lanes,
        "deadlock: thread 229 waits for its block at",
    );

    let stored = "&tokens[at / (SLICE / 8)][at % (SLICE / 8) * 8], piece[i]";
    seen(
        "misaligned",
        stored,
        &stored.replace("* 8]", "* 8] + 1"),
        "misaligned access of 16 bytes",
    );
    seen(
        "behind an array",
        stored,
        &stored.replace("(SLICE / 8)][", "(SLICE / 8) + 1]["),
        "written outside of its arrays",
    );
    let stride = "constexpr u32 TILE_STRIDE = SLICE + 8;";
    seen(
        "too much",
        stride,
        "constexpr u32 TILE_STRIDE = SLICE + 200;",
        "bytes of shared memory: expected at most",
    );
    let guard = "token < p.tokens && row < p.w.rows";
    seen(
        "behind the result",
        guard,
        "token <= p.tokens",
        "written outside of an allocation",
    );
}

/// Asynchronous copies of tokens that are used too early, or that overwrite others still being
/// multiplied.
#[test]
fn copies_that_come_late_or_early_are_seen() {
    let wide = |from: &str, to: &str, schedule| {
        planted_in((Bench::wide_gemm, 60), "wide_gemm.cuh", from, to, schedule)
    };
    let stages = "constexpr u32 WIDE_STAGES = 3;";
    let Some(right) = wide(stages, "constexpr u32 WIDE_STAGES = 3u;", Schedule::Forward) else {
        return;
    };
    let right = right.expect("it runs");
    let wait = "        copied<1>();\n";
    let faults = [
        (stages, "constexpr u32 WIDE_STAGES = 2;"),
        (wait, "        copied<2>();\n"),
        (wait, ""),
    ];
    for (from, to) in faults {
        for schedule in Schedule::ALL {
            let got = wide(from, to, schedule).expect("the compiler is there");
            let seen = got.as_ref().map_or(true, |numbers| *numbers != right);
            assert!(seen, "{from:?} as {to:?}, {schedule:?}");
        }
    }
}

/// Steps of a batch's products that are used too early, that overwrite others still being
/// multiplied, and sums that are added in another order.
#[test]
fn faults_in_products_of_batches_are_seen() {
    let imma = |from: &str, to: &str, schedule| {
        planted_in((Bench::imma, 11), "imma.cuh", from, to, schedule)
    };
    let most = "constexpr u32 IMMA_MAX_STAGES = 4;";
    let Some(right) = imma(
        most,
        "constexpr u32 IMMA_MAX_STAGES = 3;",
        Schedule::Forward,
    ) else {
        return;
    };
    let right = right.expect("it runs with fewer stages");
    let barrier = "                __syncthreads();\n                // to where the step";
    let faults = [
        ("copied<T::STAGES - 2>();", "copied<T::STAGES - 1>();"),
        ("copied<T::STAGES - 2>();", ""),
        (barrier, "                // to where the step"),
        (
            "    __syncwarp();\n    const u8* unit",
            "    const u8* unit",
        ),
        (
            "(z[0] + z[4]) + (z[2] + z[6])",
            "(z[0] + z[2]) + (z[4] + z[6])",
        ),
        ("? T::STAGES - 1 : stage - 1", "? 0 : stage - 1"),
    ];
    for (from, to) in faults {
        for schedule in Schedule::ALL {
            let got = imma(from, to, schedule).expect("the compiler is there");
            let seen = got.as_ref().map_or(true, |numbers| {
                let mut pairs = numbers.iter().zip(&right);
                pairs.any(|(a, b)| a.to_bits() != b.to_bits())
            });
            assert!(seen, "{from:?} as {to:?}, {schedule:?}");
        }
    }
}

/// Wrong bits of indices, signs, shifts and scales of the formats of grids.
#[test]
fn faults_in_grids_are_seen() {
    let file = "grid_formats.cuh";
    let product = (Bench::gemv as Product, 1);
    let forward = Schedule::Forward;
    let signs = ("return 25 + 2 * l;", "return 24 + 2 * l;");
    let order = ("l % 2 * 16 + l / 2 * 8", "l * 8");
    let faults = [
        (T::IQ2_XXS, signs),
        (T::IQ2_XXS, order),
        (T::IQ2_XS, signs),
        (T::IQ2_XS, ("l) & 1u) << 8", "l) & 0u) << 8")),
        (T::IQ2_S, ("(2 * l) & 3u", "(2 * l) & 1u")),
        (
            T::IQ2_S,
            ("d, w.scale_word() >> 8);", "d, w.scale_word());"),
        ),
        (T::IQ3_XXS, ("0.25f", "0.125f")),
        (
            T::IQ3_XXS,
            (
                "w.low_word(i / 4) >> (i % 4 * 8) & 255u];",
                "w.low_word(0) & 255u];",
            ),
        ),
        (
            T::IQ3_S,
            ("w.scale_word() >> i & 1u", "w.scale_word() & 1u"),
        ),
        (
            T::IQ1_S,
            ("(high >> (3 * l) & 7u)", "(high >> (3 * l) & 3u)"),
        ),
        (T::IQ1_S, ("high >> 15 & 1u", "0u * high")),
        (T::IQ1_M, ("high >> 3 & 1u", "high & 1u")),
        (T::IQ1_M, ("both >> 8 & 7", "both & 7")),
    ];
    for (ty, (from, to)) in faults {
        let Some(right) = planted_of(ty, product, (file, from, from), forward) else {
            return;
        };
        let right = right.expect("nothing was changed");
        let got = planted_of(ty, product, (file, from, to), forward).expect("a compiler");
        assert!(got.expect("it runs") != right, "{ty}: {from:?} as {to:?}");
    }
    for (ty, from, to) in [
        (T::Q1_0, "~(codes * 0xfeu)", "~(codes * 0xffu)"),
        (T::TQ2_0, "Codes<2, 0, 32, 1>", "Codes<2, 0, 32, 2>"),
    ] {
        let in_formats = |to: &str| {
            let planted = planted_of(ty, product, ("formats.cuh", from, to), forward);
            planted.expect("a compiler").expect("it runs")
        };
        assert!(in_formats(to) != in_formats(from), "{ty}: {from:?}");
    }
}
