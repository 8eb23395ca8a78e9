//! Operations that one kernel does together: bit for bit what the kernels do one after the other.

use octavo_kernels::cuda::launch::{self, Form};
use octavo_kernels::cuda::params::{
    Arrange, Attention, Gemv, GemvPart, HeadGroup, Heads, KvWrite, Norm, Paging, Pair, Rope, Turn,
};
use octavo_kernels::cuda::shim::Schedule;
use octavo_kernels::cuda::{FORMATS, Ptr};
use octavo_kernels::{Activation, KvType};

use super::{Bench, device};
use crate::common::{Rng, random_blocks};

/// Rows in a form, byte for byte (for halves their scales too).
fn arrangement(bench: &mut Bench, form: Form, p: &Arrange) -> Vec<[u8; 4]> {
    let mut all = bench.words(
        p.out,
        launch::activation_bytes(form, p.rows as usize, p.cols as usize) / 4,
    );
    if form == Form::Halves {
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
        for (rows, cols) in [(3, 40), (2, 256), (1, 257), (2, 3008)] {
            let (mut x, weight) = (rng.floats(rows * cols), rng.floats(cols));
            x[cols - 1] *= 1e20;
            let (at_weight, eps) = (bench.floats(&weight), 1e-6);
            for form in [Form::Integers, Form::Floats, Form::Halves] {
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
            let strips = parts.iter().map(|part| part.w.strips).sum();
            let p = Gemv {
                parts,
                x,
                strips,
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
        let cols = if ty.block_len() == 1 { 33 } else { 256 };
        for (rows, columns) in [(64, 1), (45, 2), (70, 4), (133, 7)] {
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
            let (strips, columns) = (parts[0].w.strips, columns as u32);
            let mut p = Gemv {
                parts,
                x,
                strips,
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

/// Positions of the sequences of the rows of [`paging`].
const ENDS: [u32; 4] = [19, 0, 4, 19];

/// Rows of two sequences, one row of padding among them.
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

/// Where the rows of [`paging`] stand along three axes, the first of padding being below zero.
fn turns(bench: &mut Bench) -> Ptr {
    let turns = [[17, 2, 9], [-1i32, 0, 0], [3, 30, 4], [18, 1, 0]];
    let words = turns.as_flattened().iter().map(|p| *p as u32);
    bench.integers(&words.collect::<Vec<_>>())
}

/// What [`launch::heads`] does to a group before the cache, by a launch for each operation.
fn bias_norm_rotation(
    bench: &mut Bench,
    group: &HeadGroup,
    paging: &Paging,
    turn: Option<&Turn>,
    head_dim: u32,
) -> Ptr {
    let rows = paging.rows as usize;
    let n = rows * group.n as usize * head_dim as usize;
    let mut at = group.x;
    if group.bias != Ptr::NULL {
        let out = bench.alloc(4 * n);
        let period = u64::from(group.n) * u64::from(head_dim);
        bench.run(&launch::add(&Pair {
            a: at,
            b: group.bias,
            out,
            n: n as u64,
            period,
        }));
        at = out;
    }
    if group.norm != Ptr::NULL {
        let out = bench.alloc(4 * n);
        let p = Norm {
            x: at,
            weight: group.norm,
            out,
            eps: group.eps,
            n: head_dim,
        };
        bench.run(&launch::rms_norm(&p, rows as u32 * group.n));
        at = out;
    }
    if let Some(turn) = turn {
        let out = bench.alloc(4 * n);
        let (rows, heads) = (rows as u32, group.n);
        bench.run(&launch::rope(&Rope {
            x: at,
            out,
            turn: *turn,
            rows,
            heads,
            head_dim,
            unused: 0,
        }));
        at = out;
    }
    at
}

#[test]
fn heads_are_bias_norm_rotation_and_cache() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(51);
    let (rows, n_pages) = (4, 5);
    for (dim, heads, heads_kv, pairs, neox) in [
        (64, 4, 2, 32, true),
        (32, 3, 3, 8, false),
        (256, 2, 1, 128, true),
    ] {
        for (i, kv) in KvType::ALL.into_iter().enumerate() {
            bench.0.schedule(Schedule::ALL[i % 3]);
            for (biased, normed) in [(false, true), (true, false), (true, true), (false, false)] {
                let paging = paging(&mut bench, &[2, 9, 4, 1], n_pages);
                let angles = [0; 2].map(|_| rng.floats(32 * pairs));
                let [cosines, sines] = angles.map(|a| bench.floats(&a));
                let turn = Turn {
                    cosines,
                    sines,
                    turns: turns(&mut bench),
                    axes: bench.integers(&(0..pairs as u32).map(|i| i % 3).collect::<Vec<_>>()),
                    pairs: pairs as u32,
                    neox: u32::from(neox),
                };
                let mut given = |bench: &mut Bench, is: bool, n: usize| match is {
                    true => bench.floats(&rng.floats(n)),
                    false => Ptr::NULL,
                };
                let mut group = |n: usize, normed: bool| HeadGroup {
                    x: given(&mut bench, true, rows * n * dim),
                    bias: given(&mut bench, biased, n * dim),
                    norm: given(&mut bench, normed, dim),
                    n: n as u32,
                    eps: 1e-6,
                };
                let (q, k, v) = (
                    group(heads, normed),
                    group(heads_kv, normed),
                    group(heads_kv, false),
                );
                let page_bytes = n_pages as usize * kv.bytes(16 * heads_kv * dim).expect("few");
                let zeros = vec![0u8; page_bytes];
                let mut pages = || [bench.bytes(&zeros), bench.bytes(&zeros)];
                let ([pages_k, pages_v], [expected_k, expected_v]) = (pages(), pages());
                let out = bench.alloc(4 * rows * heads * dim);
                let head_dim = dim as u32;
                bench.run(&launch::heads(
                    kv,
                    &Heads {
                        q,
                        k,
                        v,
                        out,
                        pages_k,
                        pages_v,
                        turn,
                        paging,
                        head_dim,
                        unused: 0,
                    },
                ));

                let mut one_by_one = |group: &HeadGroup, turned: bool| {
                    let turn = turned.then_some(&turn);
                    bias_norm_rotation(&mut bench, group, &paging, turn, head_dim)
                };
                let (at_q, k, v) = (
                    one_by_one(&q, true),
                    one_by_one(&k, true),
                    one_by_one(&v, false),
                );
                let heads_n = heads_kv as u32;
                let write = KvWrite {
                    k,
                    v,
                    pages_k: expected_k,
                    pages_v: expected_v,
                    paging,
                    heads: heads_n,
                    head_dim,
                };
                bench.run(&launch::kv_write(kv, &write));
                let what = format!("{kv}, {heads} heads of {dim}, bias {biased}, norm {normed}");
                let n = rows * heads * dim;
                assert!(bench.read(out, n) == bench.read(at_q, n), "{what}: queries");
                for (got, expected) in [(pages_k, expected_k), (pages_v, expected_v)] {
                    let words = page_bytes / 4;
                    assert!(
                        bench.words(got, words) == bench.words(expected, words),
                        "{what}: cache"
                    );
                }
                assert_eq!(bench.read_integers(paging.missing, 1), [0], "{what}");
                bench.0.clear();
            }
        }
    }
}

/// Attention over pages, as floats or as integers; the first is what the second is made of.
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
        unused: 0,
    };
    launch::attend(KvType::F32, dim, &p)
        .iter()
        .for_each(|launch| bench.run(launch));
    let floats = bench.read(p.out, n);
    let bytes = launch::activation_bytes(Form::Integers, rows, heads * dim);
    p.integers = bench.alloc(bytes);
    launch::attend(KvType::F32, dim, &p)
        .iter()
        .for_each(|launch| bench.run(launch));
    let arranged = bench.arranged(Form::Integers, &floats, heads * dim);
    assert!(bench.words(p.integers, bytes / 4) == bench.words(arranged, bytes / 4));
}

/// A table that lacks a page: whoever needs it says so, and reads and writes nothing else instead.
#[test]
fn a_missing_page_is_told() {
    let Some(mut bench) = device() else { return };
    let dim = 32;
    let zeros = vec![0u8; 5 * 16 * dim * 2];
    for (tables, missing) in [
        ([2, u32::MAX, 4, 1], 0),
        ([2, 3, 4, 5], 1),
        ([5, 3, 4, 1], 3),
    ] {
        let n = 4 * dim;
        let x = bench.floats(&vec![1.0; n]);
        let (pages_k, pages_v) = (bench.bytes(&zeros), bench.bytes(&zeros));
        let group = HeadGroup {
            x,
            bias: Ptr::NULL,
            norm: Ptr::NULL,
            n: 1,
            eps: 0.0,
        };
        let turn = Turn {
            cosines: x,
            sines: x,
            turns: turns(&mut bench),
            axes: Ptr::NULL,
            pairs: 0,
            neox: 0,
        };
        let paging = paging(&mut bench, &tables, 5);
        let head_dim = dim as u32;
        let out = bench.alloc(4 * n);
        let p = Heads {
            q: group,
            k: group,
            v: group,
            out,
            pages_k,
            pages_v,
            turn,
            paging,
            head_dim,
            unused: 0,
        };
        bench.run(&launch::heads(KvType::F16, &p));
        let expected = if missing == 1 {
            [1, 4].as_slice()
        } else {
            &[missing]
        };
        assert!(
            expected.contains(&missing_page(&mut bench, &paging)),
            "heads, {tables:?}"
        );

        let paging = self::paging(&mut bench, &tables, 5);
        let p = KvWrite {
            k: x,
            v: x,
            pages_k,
            pages_v,
            paging,
            heads: 1,
            head_dim,
        };
        bench.run(&launch::kv_write(KvType::F16, &p));
        assert!(
            expected.contains(&missing_page(&mut bench, &paging)),
            "kv_write, {tables:?}"
        );

        let prompt = attention_without_a_page(&mut bench, x, [pages_k, pages_v], &tables, expected);
        assert!(expected.contains(&prompt), "attend_prompt, {tables:?}");
        bench.0.clear();
    }
}

/// The row whose page is missing, as the kernels said.
fn missing_page(bench: &mut Bench, paging: &Paging) -> u32 {
    bench.read_integers(paging.missing, 1)[0]
}

/// Attention of both kinds over tables that lack a page of one of the `expected` rows: checks what
/// the first says, and returns what the second does.
fn attention_without_a_page(
    bench: &mut Bench,
    x: Ptr,
    [pages_k, pages_v]: [Ptr; 2],
    tables: &[u32; 4],
    expected: &[u32],
) -> u32 {
    let dim = 32;
    let n = 4 * dim;
    let out = bench.alloc(4 * n);
    let paging = paging(bench, tables, 5);
    let tiles = bench.integers(&[0, 1, 2, 1, 3, 1]);
    let (sums, states) = (bench.alloc(4 * 2 * n), bench.alloc(8 * 2 * 4));
    let integers = Ptr::NULL;
    let (heads, heads_kv, splits, scale) = (1, 1, 2, 1.0);
    let p = Attention {
        q: x,
        pages_k,
        pages_v,
        sums,
        states,
        out,
        integers,
        tiles,
        ends: bench.integers(&ENDS),
        paging,
        heads,
        heads_kv,
        splits,
        scale,
        ..Attention::default()
    };
    let mut behind = p;
    behind.paging.first_row = 100;
    launch::attend(KvType::F16, dim, &behind)
        .iter()
        .for_each(|launch| bench.run(launch));
    let expected_behind: Vec<u32> = expected
        .iter()
        .map(|row| if *row == 0 { 0 } else { row + 100 })
        .collect();
    assert!(
        expected_behind.contains(&missing_page(bench, &paging)),
        "attend, {tables:?}"
    );
    bench
        .0
        .device()
        .upload(paging.missing, &[0; 4])
        .expect("its own memory");
    bench.run(&launch::attend_prompt(dim, &p, 3));
    missing_page(bench, &paging)
}
