//! FP8 in the KV cache: every code is read correctly, and values are written as the nearest code.

use super::*;
use crate::cuda_shim::device_of;
use octavo_kernels::cuda::shim::Sources;

const DIM: usize = 256;

/// Returns the value of every code as read by attention: a head of 256 values at the only position,
/// with weight 1.
fn read_all(bench: &mut Bench) -> Vec<f32> {
    let scene = Scene::new(KvType::F8E4M3, DIM, (1, 1), &[1], 1);
    let p = scene.prepare(bench, 3, 1);
    let page = bench.read_integers(p.paging.tables, 1)[0] as usize;
    let page_bytes = KvType::F8E4M3.bytes(16 * DIM).expect("few");
    let codes: Vec<u8> = (0..=255).collect();
    let scales = [f16::ONE.to_bits().to_le_bytes(); DIM / 32].concat();
    for (at, bytes) in [(0, codes), (16 * DIM, scales)] {
        let to = Ptr(p.pages_v.0 + (page * page_bytes + at) as u64);
        bench.0.device().upload(to, &bytes).expect("its own memory");
    }
    for launch in launch::attend(KvType::F8E4M3, DIM, &p, p.splits) {
        bench.run(&launch);
    }
    let row = scene.rows.iter().position(Option::is_some).expect("one");
    bench.read(p.out, scene.q.len())[row * DIM..][..DIM].to_vec()
}

/// Returns the first code that is read incorrectly.
fn wrongly_read(bench: &mut Bench) -> Option<String> {
    let all = read_all(bench);
    bench.0.clear();
    // the NaN codes are never stored, and are 480 here as on CPUs
    let expected = |code: u8| e4m3::value(code).unwrap_or(if code < 128 { 480.0 } else { -480.0 });
    let wrong = (0..=255)
        .zip(all)
        .find(|(code, got)| *got != expected(*code));
    wrong.map(|(code, got)| format!("{code:#04x}: {got}, not {}", expected(code)))
}

/// Returns groups of 32: of every magnitude that a scale may have, and too large, with a scale that
/// is not finite; zeros; midpoints between two codes; non-finite values.
fn groups() -> Vec<f32> {
    let mut rng = Rng(61);
    let sizes = [1.0, 300.0, 1e-4, 1e-5, 4e-6, 1e-7, 1e7, 3e7, 0.0, -0.0];
    let mut all: Vec<f32> = sizes
        .into_iter()
        .flat_map(|size| rng.floats(32).into_iter().map(move |x| size * x))
        .collect();
    // the largest is 240, and each other value is midway between adjacent codes
    let middle = |i: usize| {
        let [a, b] = [0, 1].map(|next| e4m3::value((3 * i + i % 4 + next) as u8));
        (a.expect("a number") + b.expect("a number")) / 2.0
    };
    all.extend((0..31).map(|i| if i % 3 == 0 { -middle(i) } else { middle(i) }));
    all.push(240.0);
    for wrong in [f32::NAN, f32::INFINITY, f32::NEG_INFINITY] {
        all.extend((0..32).map(|i| if i == 9 { wrong } else { i as f32 }));
    }
    let more = all.len().next_multiple_of(64) - all.len();
    all.extend(rng.floats(more));
    all
}

/// Returns the first group, in heads of 64, that is written incorrectly.
fn wrongly_written(bench: &mut Bench) -> Option<String> {
    const DIM: usize = 64;
    let x = groups();
    let rows = x.len() / DIM;
    assert!(rows <= 16, "a page: {rows}");
    let positions: Vec<u32> = (0..rows as u32).collect();
    let page_bytes = KvType::F8E4M3.bytes(16 * DIM).expect("few");
    let [pages_k, pages_v] = [0; 2].map(|zero| bench.bytes(&vec![zero; page_bytes]));
    let k = bench.floats(&x);
    let paging = Paging {
        positions: bench.integers(&positions),
        sequences: bench.integers(&vec![0; rows]),
        tables: bench.integers(&[0]),
        missing: bench.integers(&[0]),
        max_pages: 1,
        rows: rows as u32,
        n_pages: 1,
        first_row: 0,
    };
    let write = KvWrite {
        k,
        v: k,
        pages_k,
        pages_v,
        paging,
        heads: 1,
        head_dim: DIM as u32,
    };
    bench.run(&launch::kv_write(KvType::F8E4M3, &write));
    let written = [pages_k, pages_v].map(|at| bench.words(at, page_bytes / 4).concat());
    bench.0.clear();
    for (page, (i, x)) in written.iter().flat_map(|page| {
        x.chunks_exact(32)
            .enumerate()
            .map(move |group| (page, group))
    }) {
        let (scale, codes) = e4m3::group(x);
        let got = u16::from_le_bytes([page[16 * DIM + 2 * i], page[16 * DIM + 2 * i + 1]]);
        let is_scale = got == scale || [got, scale].iter().all(|s| f16::from_bits(*s).is_nan());
        if !is_scale || page[32 * i..][..32] != codes {
            let got_codes = &page[32 * i..][..32];
            return Some(format!(
                "{x:?}: {got:#06x} {got_codes:?}, not {scale:#06x} {codes:?}"
            ));
        }
    }
    None
}

#[test]
fn floats_of_8_bits_are_read_and_written_as_they_are_defined() {
    let Some(mut bench) = device() else { return };
    for schedule in Schedule::ALL {
        bench.0.schedule(schedule);
        assert_eq!(wrongly_read(&mut bench), None);
        assert_eq!(wrongly_written(&mut bench), None);
    }
}

#[test]
fn floats_of_8_bits_that_are_wrong_are_seen() {
    type Wrong = fn(&mut Bench) -> Option<String>;
    let faults: [(Wrong, &str, &str); 6] = [
        (wrongly_read, "(127u + 120u) << 23", "(127u + 119u) << 23"),
        (wrongly_read, "0x87f00000u", "0x07f00000u"),
        (wrongly_read, "0x87f00000u", "0x87e00000u"),
        (wrongly_written, "127u - 6u)", "127u - 7u)"),
        (wrongly_written, "__float2int_rn(steps)", "steps + 0.5f"),
        (
            wrongly_written,
            "float_to_half(largest / 240.0f)",
            "float_to_half(largest / 224.0f)",
        ),
    ];
    for (wrong, from, to) in faults {
        let mut sources = Sources::default();
        sources.replace("paging.cuh", from, to);
        let Some(mut bench) = device_of(sources) else {
            return;
        };
        assert!(wrong(&mut bench).is_some(), "{from} as {to}");
    }
}
