//! Embeddings, and products of decode and prefill.

use octavo_fixtures::some_of;
use octavo_kernels::cuda::launch::{self, Form};
use octavo_kernels::cuda::pack::{has_codes, is_packed};
use octavo_kernels::cuda::params::Embed;
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::has_minimum;
use octavo_quant::TensorType as T;

use super::{Bench, Product, Worst, device};
use crate::common::{Form as Factors, Rng, exact, random_blocks, weight_types};

/// Lists every type that kernels support, including those that share a kernel.
fn types() -> impl Iterator<Item = T> {
    weight_types().filter(|ty| is_packed(*ty))
}

/// Returns column counts at the edges of blocks, units, 32-lane loads, and parts of rows.
fn widths(ty: T) -> Vec<usize> {
    let block = ty.block_len();
    match block {
        1 => vec![1, 31, 33, 100, 1056, 8161],
        _ => [block, 3 * block, 1024 + block, 8192 + block]
            .map(|n| n.next_multiple_of(block))
            .to_vec(),
    }
}

/// No type of weights that files have becomes floats on a GPU; only types of activations would.
#[test]
fn every_weight_type_has_kernels() {
    let others: Vec<T> = weight_types().filter(|ty| !is_packed(*ty)).collect();
    let activations = [T::Q8_1, T::Q8_K, T::F64];
    assert!(
        others.iter().all(|ty| activations.contains(ty)),
        "{others:?}"
    );
}

#[test]
fn embeddings_are_the_oracles_bit_for_bit() {
    let Some(mut bench) = device() else { return };
    for ty in types() {
        let mut rng = Rng(ty.id().into());
        for cols in widths(ty) {
            let rows = 7;
            let raw = random_blocks(&mut rng, ty, rows * cols);
            let mut values = vec![0.0; rows * cols];
            octavo_quant::dequantize(ty, &raw, &mut values).expect("whole rows");
            let tokens = [6, 0, 3, 3, 5, 1];
            let table = bench.matrix((ty, rows, cols), &raw);
            let (numbers, out) = (
                bench.integers(&tokens),
                bench.alloc(4 * tokens.len() * cols),
            );
            let p = Embed {
                table,
                tokens: numbers,
                out,
                columns: tokens.len() as u32,
                placeholder: u32::MAX,
            };
            bench.run(&launch::embed(ty, &p));
            let got = bench.read(out, tokens.len() * cols);
            for (token, got) in tokens.iter().zip(got.chunks_exact(cols)) {
                let expected = &values[*token as usize * cols..][..cols];
                let same = expected
                    .iter()
                    .zip(got)
                    .all(|(a, b)| a.to_bits() == b.to_bits());
                assert!(
                    same,
                    "{ty}, {cols} columns, row {token}: expected {expected:?}, got {got:?}"
                );
            }
            bench.0.clear();
        }
    }
}

/// Checks a product against f64 sums with the oracle's weights.
fn check_product(
    bench: &mut Bench,
    product: Product,
    form: Factors,
    (ty, rows, cols): (T, usize, usize),
    tokens: usize,
) {
    let mut rng = Rng((rows * 7 + cols * 3 + tokens) as u64);
    let raw = random_blocks(&mut rng, ty, rows * cols);
    let (x, add) = (rng.floats(tokens * cols), rng.floats(tokens * rows));
    let mut w = vec![0.0; rows * cols];
    octavo_quant::dequantize(ty, &raw, &mut w).expect("whole rows");
    let mut worst = Worst::default();
    for add in [None, Some(&add)] {
        let y = product(bench, (ty, rows, cols), &raw, &x, add.map(Vec::as_slice));
        for t in 0..tokens {
            for r in 0..rows {
                let (w, x) = (&w[r * cols..(r + 1) * cols], &x[t * cols..(t + 1) * cols]);
                let (value, bound) = exact(w, x, has_minimum(ty), form);
                let add = add.map_or(0.0, |add| f64::from(add[t * rows + r]));
                let bound = bound + f64::from(f32::EPSILON) * (value + add).abs();
                worst.see(
                    || format!("row {r}, token {t}"),
                    value + add,
                    y[t * rows + r],
                    bound,
                );
            }
        }
        bench.0.clear();
    }
    worst.check(&format!("{ty}, {rows} x {cols}, {tokens} tokens"));
}

#[test]
fn generation_products_match_the_oracle() {
    let Some(mut bench) = device() else { return };
    for ty in types() {
        let form = if has_codes(ty) {
            Factors::Integers(32)
        } else {
            Factors::Floats
        };
        for (i, cols) in widths(ty).into_iter().enumerate() {
            for (j, rows) in [1, 4, 19, 37].into_iter().enumerate() {
                bench.0.schedule(Schedule::ALL[(i + j) % 3]);
                let more = if has_codes(ty) { 5 } else { 13 };
                let tokens = [1, 2, 3, 8, more][(i + 2 * j) % 5];
                check_product(&mut bench, Bench::gemv, form, (ty, rows, cols), tokens);
            }
        }
    }
}

#[test]
fn prompt_products_match_the_oracle() {
    let Some(mut bench) = device() else { return };
    for ty in types() {
        for (i, cols) in widths(ty).into_iter().enumerate() {
            for (j, (rows, tokens)) in [(1, 1), (64, 3), (67, 65), (20, 17)]
                .into_iter()
                .enumerate()
            {
                bench.0.schedule(Schedule::ALL[(i + j) % 3]);
                check_product(
                    &mut bench,
                    Bench::gemm,
                    Factors::Halves,
                    (ty, rows, cols),
                    tokens,
                );
            }
        }
    }
}

#[test]
fn wide_products_match_the_oracle() {
    let Some(mut bench) = device().filter(|bench| bench.0.has_wide_kernels()) else {
        return;
    };
    for (k, ty) in types().enumerate() {
        for (i, cols) in widths(ty).into_iter().enumerate() {
            let shapes = [(1, 1), (64, 3), (67, 131), (132, 17)];
            for (j, (rows, tokens)) in shapes.into_iter().enumerate() {
                // tiles are slow on a CPU, so every type meets each width and shape once
                if (i + j + k) % shapes.len() > 0 {
                    continue;
                }
                bench.0.schedule(Schedule::ALL[(i + j) % 3]);
                let shape = (ty, rows, cols);
                check_product(&mut bench, Bench::wide_gemm, Factors::Halves, shape, tokens);
            }
        }
    }
}

#[test]
fn large_tiles_are_small_ones() {
    let Some(mut bench) = device() else { return };
    for (i, ty) in types().enumerate() {
        bench.0.schedule(Schedule::ALL[i % 3]);
        let mut rng = Rng(u64::from(ty.id()) + 5);
        let cols = if ty.block_len() == 1 { 100 } else { 256 };
        for (rows, tokens) in [(150, 130), (128, 20)] {
            let raw = random_blocks(&mut rng, ty, rows * cols);
            let (x, add) = (rng.floats(tokens * cols), rng.floats(tokens * rows));
            let [small, large] = [Bench::gemm as Product, Bench::gemm_large]
                .map(|product| product(&mut bench, (ty, rows, cols), &raw, &x, Some(&add)));
            assert!(small == large, "{ty}, {rows} x {cols}, {tokens} tokens");
            bench.0.clear();
        }
    }
}

#[test]
fn wide_tiles_of_every_size_give_the_same() {
    let Some(mut bench) = device().filter(|bench| bench.0.has_wide_kernels()) else {
        return;
    };
    for (i, ty) in [T::Q4_K, T::Q6_K, T::F16].into_iter().enumerate() {
        bench.0.schedule(Schedule::ALL[i]);
        let mut rng = Rng(u64::from(ty.id()) + 6);
        let (rows, cols, tokens) = (150, 512, 130);
        let raw = random_blocks(&mut rng, ty, rows * cols);
        let (x, add) = (rng.floats(tokens * cols), rng.floats(tokens * rows));
        let p = bench.gemm_params(Form::WideHalves, (ty, rows, cols), &raw, &x, Some(&add));
        let products = launch::wide_gemm_in_all_tiles(ty, &p)
            .into_iter()
            .map(|launch| {
                bench.run(&launch);
                bench.read(p.out, tokens * rows)
            });
        let products: Vec<_> = products.collect();
        assert!(products.windows(2).all(|two| two[0] == two[1]), "{ty}");
        bench.0.clear();
    }
}

#[test]
fn a_tokens_product_depends_on_nothing_beside_it() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(4);
    let types = [T::Q4_K, T::Q6_K, T::Q3_K, T::Q5_1, T::F16];
    let parts = [0, 3, 7]
        .into_iter()
        .flat_map(|first| [1, 2, 4].map(|n| (first, n)));
    let mut turn = 0;
    // rows of one part and of four
    for (ty, cols) in types
        .map(|ty| (ty, 1280))
        .into_iter()
        .chain([(T::Q4_K, 8448)])
    {
        let (rows, tokens) = (21, if has_codes(ty) { 8 } else { 16 });
        let raw = random_blocks(&mut rng, ty, rows * cols);
        let x = rng.floats(tokens * cols);
        let wide = bench
            .0
            .has_wide_kernels()
            .then_some(Bench::wide_gemm as Product);
        let products = [Bench::gemv as Product, Bench::gemm, Bench::gemm_large];
        for product in products.into_iter().chain(wide) {
            let all = product(&mut bench, (ty, rows, cols), &raw, &x, None);
            for schedule in bench.0.schedules() {
                bench.0.schedule(*schedule);
                let fits = |(first, n): &(usize, usize)| first + n <= tokens;
                turn += 1;
                for (first, n) in some_of(parts.clone().filter(fits), turn, 3) {
                    let part = &x[first * cols..(first + n) * cols];
                    let some = product(&mut bench, (ty, rows, cols), &raw, part, None);
                    assert!(
                        some == all[first * rows..(first + n) * rows],
                        "{ty}: {n} tokens from {first}"
                    );
                    bench.0.clear();
                }
            }
        }
    }
}

/// Activations of any magnitude survive conversion to halves and integers, and non-finite values
/// propagate.
#[test]
fn activations_keep_their_size_and_their_faults() {
    let Some(mut bench) = device() else { return };
    let (ty, rows, cols) = (T::Q8_0, 3, 96);
    let mut rng = Rng(8);
    let raw = random_blocks(&mut rng, ty, rows * cols);
    let x = rng.floats(cols);
    let wide = bench
        .0
        .has_wide_kernels()
        .then_some(Bench::wide_gemm as Product);
    for product in [Bench::gemv as Product, Bench::gemm]
        .into_iter()
        .chain(wide)
    {
        let plain = product(&mut bench, (ty, rows, cols), &raw, &x, None);
        for exponent in [-90, -40, 0, 17, 60, 100] {
            let factor = 2f32.powi(exponent);
            let scaled: Vec<f32> = x.iter().map(|v| v * factor).collect();
            let y = product(&mut bench, (ty, rows, cols), &raw, &scaled, None);
            let expected: Vec<f32> = plain.iter().map(|v| v * factor).collect();
            assert_eq!(y, expected, "activations times 2^{exponent}");
        }
        assert_eq!(
            product(&mut bench, (ty, rows, cols), &raw, &vec![0.0; cols], None),
            vec![0.0; rows]
        );
        for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
            let mut x = x.clone();
            x[40] = wrong;
            let y = product(&mut bench, (ty, rows, cols), &raw, &x, None);
            assert!(y.iter().all(|v| v.is_nan()), "{wrong}: {y:?}");
        }
    }
}
