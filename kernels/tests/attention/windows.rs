//! Ranges of attention: windows, blocks, and later positions; with caps and sinks.

use super::exact::{Rounds, SCALE, exact, hold};
use super::{Case, data, identity, rounds, run, run_together, show};
use crate::common::{all_or_one, all_or_turn, is_taken};
use octavo_fixtures::some_of;
use octavo_kernels::{Alibi, Isa, KvType, KvTypes, Scores};

/// Lists windows (one position, about a page, within a span, across the ends of spans, more than
/// all), caps, sinks, and all combined.
fn scores_and_sinks() -> Vec<(Scores, bool)> {
    let of = |window, cap| Scores {
        scale: SCALE,
        cap,
        window,
        chunked: false,
        causal: true,
        blocks: false,
        images: false,
        alibi: None,
    };
    let in_chunks = |chunk| Scores {
        chunked: true,
        ..of(Some(chunk), None)
    };
    // steep enough to matter beside scores, and of no power of two of heads
    let falling = |scores| Scores {
        alibi: Some(Alibi {
            max_bias: 8.0,
            heads: 6,
            first: 1,
        }),
        ..scores
    };
    vec![
        (falling(of(None, None)), false),
        (falling(of(Some(100), Some(5.0))), true),
        (in_chunks(17), false),
        (in_chunks(128), true),
        (in_chunks(1000), false),
        (of(Some(1), None), false),
        (of(Some(16), None), false),
        (of(Some(17), None), false),
        (of(Some(100), None), false),
        (of(Some(1000), None), false),
        (of(None, Some(5.0)), false),
        (of(None, None), true),
        (of(Some(100), Some(5.0)), true),
        (of(Some(17), Some(30.0)), true),
        (of(Some(1), Some(5.0)), true),
        (of(Some(150), None), true),
    ]
}

/// Lists many head sizes, with and without shared keys, and all types that are read differently.
fn shapes() -> Vec<(usize, usize, usize, KvTypes)> {
    let heads = [(4, 2, 32), (6, 2, 64), (3, 1, 80), (2, 2, 128), (2, 1, 256)];
    let types = [
        KvType::F16.both(),
        KvType::F32.both(),
        KvType::Q8_0.both(),
        KvType::F8E4M3.both(),
        KvType::Q4_0.both(),
        KvTypes {
            k: KvType::Q8_0,
            v: KvType::Q4_0,
        },
        KvTypes {
            k: KvType::Bf16,
            v: KvType::Q8_0,
        },
        KvTypes {
            k: KvType::F8E4M3,
            v: KvType::F32,
        },
    ];
    let all = heads
        .into_iter()
        .flat_map(|(heads, heads_kv, dim)| types.map(|types| (heads, heads_kv, dim, types)));
    all.filter(|(_, _, dim, types)| types.takes(*dim)).collect()
}

#[test]
fn windows_caps_and_sinks_match_f64() {
    let n = 300;
    // around the ends of pages, spans and windows
    let positions = [
        0, 1, 15, 16, 17, 39, 40, 99, 100, 101, 127, 128, 143, 144, 145, 227, 228, 255, 256, 299,
    ];
    let mut worst = [0.0f64; 3];
    for (i, isa) in Isa::available().into_iter().enumerate() {
        for (j, (heads, heads_kv, head_dim, types)) in shapes().into_iter().enumerate() {
            for (k, (scores, sinks)) in scores_and_sinks().into_iter().enumerate() {
                // a third of all cases, a different third for each shape
                if !(i + j + k).is_multiple_of(3) || !is_taken((i + j + k) / 3 + j) {
                    continue;
                }
                let c = Case {
                    isa,
                    heads,
                    heads_kv,
                    head_dim,
                    types,
                    threads: 2,
                    scores,
                    sinks,
                    before: None,
                };
                let data = data(c, n);
                for &prompt in all_or_turn(&[40, n], k) {
                    let y = run(c, &data, n, prompt, 512, &identity(n));
                    for (t, h) in positions
                        .into_iter()
                        .flat_map(|t| (0..heads).map(move |h| (t, h)))
                    {
                        let rounds = rounds(c, t < prompt);
                        let exact = exact(c, &data, t, h, rounds);
                        let got = &y[(t * heads + h) * head_dim..][..head_dim];
                        let what =
                            format!("{scores:?} sinks {sinks} {types} d {head_dim} t {t} h {h}");
                        let part = hold(c, &exact, got, &what);
                        worst[rounds as usize] = worst[rounds as usize].max(part);
                    }
                }
            }
        }
    }
    // measured: 0.33 for floats, 0.54 for bf16
    show(worst);
}

/// As [`identity`], without the pages that a cache has given back before a step from `start` on:
/// those outside a moving window.
fn without_passed(c: Case, n: usize, start: usize) -> Vec<u32> {
    let mut table = identity(n);
    let window = c.scores.window;
    let first = window.map_or(0, |window| (start + 1).saturating_sub(window));
    table[..first / 16].fill(u32::MAX);
    table
}

#[test]
fn windows_depend_on_no_neighbour_and_pages_before_them_are_not_read() {
    for isa in Isa::available() {
        for (i, (heads, heads_kv, head_dim, types)) in shapes().into_iter().enumerate() {
            let all = scores_and_sinks();
            for k in some_of([i % all.len(), 1, 3, 12, 15], i, 2) {
                let (scores, sinks) = all[k];
                let c = Case {
                    isa,
                    heads,
                    heads_kv,
                    head_dim,
                    types,
                    threads: 1,
                    scores,
                    sinks,
                    before: None,
                };
                let what = format!("{isa} {scores:?} sinks {sinks} {types} d {head_dim}");
                let (n, prompt) = (400, 340);
                let data = data(c, n);
                let expected = run(c, &data, n, prompt, 512, &identity(n));
                for (batch, together, threads) in [(1, 1, 2), (7, 9, 1), (50, 3, 3), (129, 40, 2)] {
                    let c = Case { threads, ..c };
                    let passed = |start| without_passed(c, n, start);
                    let got = run_together(c, &data, n, (prompt, batch), together, passed);
                    assert!(
                        got == expected,
                        "{what}: batches of {batch} and {together}, {threads} threads"
                    );
                }
            }
        }
    }
}

/// A context of several pieces, some of them outside the window, after another attention that skips
/// other pieces.
#[test]
fn windows_leave_pieces_out() {
    for (i, isa) in Isa::available().into_iter().enumerate() {
        let windows = [
            (Some(100), None, true),
            (Some(600), Some(5.0), false),
            (Some(13), None, false),
            (None, None, true),
        ];
        for &(window, cap, sinks) in all_or_turn(&windows, i) {
            let scores = Scores {
                scale: SCALE,
                cap,
                window,
                chunked: false,
                causal: true,
                blocks: false,
                images: false,
                alibi: None,
            };
            let c = Case {
                isa,
                heads: 2,
                heads_kv: 1,
                head_dim: 16,
                types: KvType::F32.both(),
                threads: 2,
                scores,
                sinks,
                before: None,
            };
            let n = 1140;
            let data = data(c, n);
            let y = run(c, &data, n, 1020, 512, &identity(n));
            for t in [
                511, 512, 611, 612, 1019, 1020, 1023, 1024, 1036, 1037, 1123, 1124, 1139,
            ] {
                for h in 0..2 {
                    let exact = exact(c, &data, t, h, rounds(c, t < 1020));
                    let got = &y[(t * 2 + h) * 16..][..16];
                    hold(
                        c,
                        &exact,
                        got,
                        &format!("{scores:?} sinks {sinks} t {t} h {h}"),
                    );
                }
            }
            for &before in all_or_one(&[Some(100), Some(600), None]) {
                let before = Some(Scores {
                    window: before,
                    ..Scores::plain(SCALE)
                });
                for &(threads, together) in all_or_one(&[(3, 50), (2, 7), (1, 1)]) {
                    let c = Case {
                        threads,
                        before,
                        ..c
                    };
                    let table = |_| identity(n);
                    let got = run_together(c, &data, n, (1020, 512), together, table);
                    assert!(
                        got == y,
                        "{isa} {scores:?} behind {before:?}: {threads} threads, {together} together"
                    );
                }
            }
        }
    }
}

/// Tokens of an image see each other and what is before the image, within their window; however the
/// text around images is cut, and whatever the kernels' blocks of rows are, the bits are the same.
#[test]
fn images_see_all_of_themselves() {
    const N: usize = 230;
    for isa in Isa::available() {
        for window in [None, Some(24), Some(1)] {
            for &(heads, heads_kv, head_dim) in all_or_one(&[(4, 2, 16), (2, 2, 72), (3, 1, 64)]) {
                let scores = Scores {
                    window,
                    images: true,
                    ..Scores::plain(SCALE)
                };
                let c = Case {
                    isa,
                    heads,
                    heads_kv,
                    head_dim,
                    types: KvType::F32.both(),
                    threads: 2,
                    scores,
                    sinks: false,
                    before: None,
                };
                let data = data(c, N);
                let y = run(c, &data, N, N - 5, N, &identity(N));
                for t in [0, 4, 5, 12, 19, 20, 33, 34, 59, 60, 61, 127, 209, 210, 229] {
                    for h in 0..heads {
                        let exact = exact(c, &data, t, h, rounds(c, t < N - 5));
                        let got = &y[(t * heads + h) * head_dim..][..head_dim];
                        hold(c, &exact, got, &format!("{scores:?} t {t} h {h}"));
                    }
                }
                for (threads, batch) in [(1, 7), (3, 16), (2, 100)] {
                    let c = Case { threads, ..c };
                    let got = run(c, &data, N, N - 5, batch, &identity(N));
                    assert!(
                        got == y,
                        "{isa} {scores:?}: {threads} threads, {batch} at a time"
                    );
                }
            }
        }
    }
}

/// Non-causal attention over several spans, with windows that reach equally far in both directions,
/// and in blocks; with unrelated sequences in the step.
#[test]
fn every_position_is_seen() {
    const N: usize = 300;
    for isa in Isa::available() {
        for (window, cap, blocks) in [
            (None, None, false),
            (Some(24), None, false),
            (Some(301), Some(5.0), false),
            (Some(1), None, false),
            (None, None, true),
        ] {
            for &(heads, heads_kv, head_dim) in all_or_one(&[(2, 2, 72), (4, 2, 16), (3, 3, 64)]) {
                let scores = Scores {
                    scale: SCALE,
                    cap,
                    window,
                    chunked: false,
                    causal: false,
                    blocks,
                    images: false,
                    alibi: None,
                };
                let c = Case {
                    isa,
                    heads,
                    heads_kv,
                    head_dim,
                    types: KvType::F32.both(),
                    threads: 2,
                    scores,
                    sinks: false,
                    before: None,
                };
                let data = data(c, N);
                let y = run(c, &data, N, N, N, &identity(N));
                for t in [
                    0, 1, 11, 12, 13, 19, 20, 21, 127, 128, 150, 287, 288, 298, 299,
                ] {
                    for h in 0..heads {
                        let exact = exact(c, &data, t, h, Rounds::of(c));
                        let got = &y[(t * heads + h) * head_dim..][..head_dim];
                        hold(c, &exact, got, &format!("{scores:?} t {t} h {h}"));
                    }
                }
                let c = Case { threads: 1, ..c };
                assert!(
                    run(c, &data, N, N, N, &identity(N)) == y,
                    "{isa} one thread"
                );
            }
        }
    }
}
