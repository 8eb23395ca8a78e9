//! Fused operations are bit-identical to the separate kernels.

mod heads;
mod missing;

use octavo_kernels::cuda::launch::{self, Form};
use octavo_kernels::cuda::params::{
    Arrange, Attention, Gemv, GemvPart, HeadGroup, Heads, KvWrite, Norm, Paging, Pair, Rope,
    Rotation,
};
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{FORMATS, Ptr};
use octavo_kernels::{Activation, KvType};

use super::{Bench, device};
use crate::common::{Rng, random_blocks};

/// Returns rows in a form, byte for byte (for halves with their scales).
fn arrangement(bench: &mut Bench, form: Form, p: &Arrange) -> Vec<[u8; 4]> {
    let mut all = bench.words(
        p.out,
        launch::activation_bytes(form, p.rows as usize, p.cols as usize) / 4,
    );
    if matches!(form, Form::Halves | Form::WideHalves) {
        all.extend(bench.words(p.scales, p.rows as usize));
    }
    all
}

#[test]
fn norms_of_inputs_are_norms_and_inputs() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(21);
    for schedule in bench.0.schedules() {
        bench.0.schedule(*schedule);
        for (rows, cols) in [
            (3, 40),
            (2, 256),
            (1, 257),
            (2, 3008),
            (1, 2049),
            (1, 12290),
            (1, 14336),
        ] {
            let (mut x, weight) = (rng.floats(rows * cols), rng.floats(cols));
            x[cols - 1] *= 1e20;
            let (at_weight, eps) = (bench.floats(&weight), 1e-6);
            let forms = [Form::Integers, Form::Floats, Form::Halves, Form::WideHalves];
            for form in forms {
                let p = Arrange {
                    weight: at_weight,
                    eps,
                    ..bench.arrangement(form, &x, cols)
                };
                bench.run(&launch::normed_activations(form, &p));
                let got = arrangement(&mut bench, form, &p);

                let out = bench.alloc(4 * x.len());
                let norm = Norm {
                    x: p.x,
                    weight: at_weight,
                    out,
                    eps,
                    n: cols as u32,
                };
                bench.run(&launch::rms_norm(&norm, rows as u32));
                let normed = bench.read(out, x.len());
                let p = bench.arrangement(form, &normed, cols);
                bench.run(&launch::activations(form, &p));
                assert!(
                    arrangement(&mut bench, form, &p) == got,
                    "{form:?}, {rows} x {cols}, {schedule:?}"
                );
            }
            bench.0.clear();
        }
    }
}

#[test]
fn products_side_by_side_are_products() {
    let Some(mut bench) = device() else { return };
    for &ty in FORMATS.iter() {
        let mut rng = Rng(u64::from(ty.id()) + 31);
        let cols = if ty.block_len() == 1 { 100 } else { 1280 };
        for columns in [1, 3, 8] {
            let x = rng.floats(columns * cols);
            let rows = [37, 8, 70];
            let raws = rows.map(|rows| random_blocks(&mut rng, ty, rows * cols));
            let add = rng.floats(columns * rows[1]);
            let adds = [None, Some(&add[..]), None];
            let mut expected = Vec::new();
            let mut parts = [GemvPart::default(); 3];
            for (i, part) in parts.iter_mut().enumerate() {
                expected.push(bench.gemv((ty, rows[i], cols), &raws[i], &x, adds[i]));
                let add = adds[i].map_or(Ptr::NULL, |add| bench.floats(add));
                *part = GemvPart {
                    w: bench.matrix((ty, rows[i], cols), &raws[i]),
                    add,
                    out: bench.alloc(4 * columns * rows[i]),
                };
            }
            let x = bench.arranged(Form::of_gemv(ty), &x, cols);
            let p = Gemv {
                parts,
                x,
                columns: columns as u32,
                ..Gemv::default()
            };
            bench.run(&launch::gemv(ty, &p, 2));
            for (part, expected) in parts.iter().zip(&expected) {
                assert!(
                    bench.read(part.out, expected.len()) == *expected,
                    "{ty}, {columns} columns"
                );
            }
            bench.0.clear();
        }
    }
}

#[test]
fn gated_products_are_two_products_and_a_gate() {
    let Some(mut bench) = device() else { return };
    for (i, &ty) in FORMATS.iter().enumerate() {
        bench.0.schedule(Schedule::ALL[i % 3]);
        let mut rng = Rng(u64::from(ty.id()) + 41);
        // rows of one part and of four
        for (rows, columns, cols) in [(64, 1, 256), (45, 2, 8192), (70, 4, 512), (133, 1, 8448)] {
            let cols = if ty.block_len() == 1 { cols + 1 } else { cols };
            let x = rng.floats(columns * cols);
            let raws = [0; 2].map(|_| random_blocks(&mut rng, ty, rows * cols));
            let n = columns * rows;
            let [gate, up] = [0, 1].map(|i| {
                let y = bench.gemv((ty, rows, cols), &raws[i], &x, None);
                bench.floats(&y)
            });
            let out = bench.alloc(4 * n);
            bench.run(&launch::gate(
                Activation::Silu,
                &Pair {
                    a: gate,
                    b: up,
                    out,
                    n: n as u64,
                    period: n as u64,
                },
            ));
            let expected = bench.read(out, n);
            let p = bench.arrangement(Form::Integers, &expected, rows);
            bench.run(&launch::activations(Form::Integers, &p));
            let expected_integers = arrangement(&mut bench, Form::Integers, &p);

            let mut parts = [GemvPart::default(); 3];
            let out = bench.alloc(4 * n);
            for (part, raw) in parts.iter_mut().zip(&raws) {
                *part = GemvPart {
                    w: bench.matrix((ty, rows, cols), raw),
                    add: Ptr::NULL,
                    out,
                };
            }
            let x = bench.arranged(Form::of_gemv(ty), &x, cols);
            let columns = columns as u32;
            let mut p = Gemv {
                parts,
                x,
                columns,
                gated: 1,
                ..Gemv::default()
            };
            bench.run(&launch::gemv(ty, &p, 2));
            assert!(bench.read(out, n) == expected, "{ty}, {columns} columns");
            let bytes = launch::activation_bytes(Form::Integers, columns as usize, rows);
            p.integers = bench.alloc(bytes);
            bench.run(&launch::gemv(ty, &p, 2));
            assert!(
                bench.words(p.integers, bytes / 4) == expected_integers,
                "{ty}, {columns} columns, integers"
            );
            bench.0.clear();
        }
    }
}

/// Lengths of the sequences of the rows of [`paging`].
const ENDS: [u32; 4] = [19, 0, 4, 19];

/// Returns rows of two sequences, with one row of padding.
fn paging(bench: &mut Bench, tables: &[u32], n_pages: u32) -> Paging {
    let positions = [17, -1i32, 3, 18].map(|p| p as u32);
    Paging {
        positions: bench.integers(&positions),
        sequences: bench.integers(&[1, 0, 0, 1]),
        tables: bench.integers(tables),
        missing: bench.integers(&[0]),
        max_pages: 2,
        rows: 4,
        n_pages,
        first_row: 0,
    }
}

/// Uploads the RoPE positions of the rows of [`paging`] along three axes; the first of padding is
/// negative.
fn rope_positions(bench: &mut Bench) -> Ptr {
    let rope_positions = [[17, 2, 9], [-1i32, 0, 0], [3, 30, 4], [18, 1, 0]];
    let words = rope_positions.as_flattened().iter().map(|p| *p as u32);
    bench.integers(&words.collect::<Vec<_>>())
}

/// Attention over pages, as floats and as integers; the integers are converted from the floats.
#[test]
fn attention_leaves_integers() {
    let Some(mut bench) = device() else { return };
    let (heads, dim, rows, splits) = (3, 96, 4, 5);
    let mut rng = Rng(61);
    let paging = paging(&mut bench, &[2, 0, 4, 1], 5);
    let mut pages = || {
        let bytes: Vec<u8> = rng
            .floats(5 * 16 * dim)
            .iter()
            .flat_map(|x| x.to_le_bytes())
            .collect();
        bench.bytes(&bytes)
    };
    let (pages_k, pages_v) = (pages(), pages());
    let states = rows * heads * splits;
    let n = rows * heads * dim;
    let mut p = Attention {
        q: bench.floats(&rng.floats(n)),
        pages_k,
        pages_v,
        sums: bench.alloc(4 * states * dim),
        states: bench.alloc(8 * states),
        out: bench.alloc(4 * n),
        integers: Ptr::NULL,
        tiles: Ptr::NULL,
        sinks: bench.floats(&[0.25, -1.0, 2.0]),
        slopes: Ptr::NULL,
        firsts: Ptr::NULL,
        ends: bench.integers(&ENDS),
        paging,
        heads: heads as u32,
        heads_kv: 1,
        splits: splits as u32,
        scale: 0.125,
        cap: 1.5,
        window: 12,
        after: 0,
        chunked: 0,
    };
    launch::attend(KvType::F32, dim, &p, p.splits)
        .iter()
        .for_each(|launch| bench.run(launch));
    let floats = bench.read(p.out, n);
    let bytes = launch::activation_bytes(Form::Integers, rows, heads * dim);
    p.integers = bench.alloc(bytes);
    launch::attend(KvType::F32, dim, &p, p.splits)
        .iter()
        .for_each(|launch| bench.run(launch));
    let arranged = bench.arranged(Form::Integers, &floats, heads * dim);
    assert!(bench.words(p.integers, bytes / 4) == bench.words(arranged, bytes / 4));
}
