//! Missing pages in block tables: kernels report them and access no other memory.

use super::*;

/// A kernel that needs a missing page reports it, and reads and writes nothing else instead.
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
        let rotation = Rotation {
            cosines: x,
            sines: x,
            rope_positions: rope_positions(&mut bench),
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
            rotation,
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

/// Returns the row whose page the kernels reported missing, counted from 1.
fn missing_page(bench: &mut Bench, paging: &Paging) -> u32 {
    bench.read_integers(paging.missing, 1)[0]
}

/// Runs both kinds of attention over tables that lack a page of one of the `expected` rows: checks
/// the report of the first, and returns that of the second.
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
    launch::attend(KvType::F16, dim, &behind, behind.splits)
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
    bench.run(&launch::attend_prompt(KvType::F16, dim, &p, 3));
    missing_page(bench, &paging)
}
