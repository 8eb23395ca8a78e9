//! Windows, caps, sinks, and later positions.

use super::*;
use octavo_fixtures::some_of;

/// Windows, caps and sinks: alone and together.
const SCORES: [(Option<usize>, Option<f32>, bool); 9] = [
    (Some(1), None, false),
    (Some(16), None, false),
    (Some(17), None, false),
    (Some(100), None, false),
    (Some(1000), None, false),
    (None, Some(2.0), false),
    (None, None, true),
    (Some(100), Some(2.0), true),
    (Some(17), Some(30.0), true),
];

impl Scene {
    /// Applies one of [`SCORES`]; sinks lie below, among and above the scores.
    fn with(self, (window, cap, sinks): (Option<usize>, Option<f32>, bool)) -> Scene {
        let sink = |h: usize| [0.5, 4.0, -1.0, 9.0][h % 4];
        let heads = if sinks { self.heads } else { 0 };
        Scene {
            window,
            cap,
            sinks: (0..heads).map(sink).collect(),
            ..self
        }
    }
}

#[test]
fn windows_caps_and_sinks_match_f64() {
    let Some(mut bench) = device() else { return };
    for (i, dim) in HEAD_DIMS.into_iter().enumerate() {
        let types = launch::KV_TYPES.into_iter().enumerate();
        for (j, kv) in types.filter(|(_, kv)| kv.takes(dim)) {
            // a different part for each size and type
            for (n, scores) in some_of(SCORES.into_iter().enumerate(), i + j, 9) {
                bench.0.schedule(Schedule::ALL[(i + n) % 3]);
                let heads = [(2, 2), (4, 1), (10, 2), (3, 1)][(j + n) % 4];
                let lengths = [[1, 17, 100], [16, 15, 300], [33, 130, 64]][(i + n / 3) % 3];
                let splits = [1, 3, 32][(j + n / 3) % 3];
                let one = Scene::new(kv, dim, heads, &lengths, 1).with(scores);
                one.check(&one.attend(&mut bench, 5, splits), false);
                bench.0.clear();
                let some = Scene::new(kv, dim, heads, &[70, 5, 230], 23).with(scores);
                some.check(&some.attend(&mut bench, 9, splits), false);
                if launch::takes_prompt(kv, dim, heads.0 / heads.1) {
                    some.check(&some.attend_prompt(&mut bench, 9), true);
                }
                bench.0.clear();
            }
        }
    }
}

/// Later positions: some, all, and more than there are.
#[test]
fn what_lies_behind_matches_f64() {
    let Some(mut bench) = device() else { return };
    let everything = i32::MAX as usize;
    for (n, (window, after)) in [
        (None, everything),
        (Some(13), 12),
        (Some(1), 0),
        (Some(2), 1),
        (Some(101), 100),
        (Some(1000), 999),
    ]
    .into_iter()
    .enumerate()
    {
        let dims = [8, 32, 64, 80, 128, 256].into_iter().enumerate();
        for (i, dim) in some_of(dims, n, 2) {
            bench.0.schedule(Schedule::ALL[(i + n) % 3]);
            let kv = launch::KV_TYPES[(i + n) % launch::KV_TYPES.len()];
            let kv = if kv.takes(dim) { kv } else { KvType::F16 };
            for kv in [kv, KvType::F16] {
                let heads = [(2, 2), (4, 1), (10, 2), (3, 1)][(i + n) % 4];
                let scene = Scene {
                    window,
                    after,
                    ..Scene::new(kv, dim, heads, &[70, 5, 130], usize::MAX)
                };
                scene.check(&scene.attend(&mut bench, 5, [1, 3, 16][n % 3]), false);
                if launch::takes_prompt(kv, dim, heads.0 / heads.1) {
                    scene.check(&scene.attend_prompt(&mut bench, 9), true);
                }
                bench.0.clear();
            }
        }
    }
}

/// A row gives the same result alone and with others, whose windows begin elsewhere.
#[test]
fn windows_depend_on_no_neighbour() {
    let Some(mut bench) = device() else { return };
    for scores in SCORES {
        let (heads, dim, length) = (4, 64, 210);
        let all = Scene::new(KvType::F16, dim, (heads, 2), &[length], 100).with(scores);
        let (out, prompt) = (
            all.attend(&mut bench, 1, 8),
            all.attend_prompt(&mut bench, 1),
        );
        for rows in [0..1, 37..38, 60..75, 99..100] {
            let values = rows.start * heads * dim..rows.end * heads * dim;
            let some = Scene {
                q: all.q[values.clone()].to_vec(),
                rows: all.rows[rows.clone()].to_vec(),
                ..all.clone()
            };
            assert_eq!(
                some.attend(&mut bench, 7, 8),
                out[values.clone()],
                "{scores:?}, {rows:?}"
            );
            assert_eq!(
                some.attend_prompt(&mut bench, 7),
                prompt[values],
                "{scores:?}, {rows:?}, prompt"
            );
        }
        bench.0.clear();
    }
}
