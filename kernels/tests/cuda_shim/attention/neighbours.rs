//! The same bits whatever the order of pages, and alone.

use octavo_kernels::KvType;
use octavo_kernels::cuda::shim::Schedule;

use super::Scene;
use crate::cuda_shim::{Bench, device};

#[test]
fn attention_depends_on_no_page_order_and_no_neighbour() {
    let Some(mut bench) = device() else { return };
    for (kv, dim) in [(KvType::F16, 64), (KvType::Q8_0, 256)] {
        check_neighbours(&mut bench, kv, dim);
    }
}

fn check_neighbours(bench: &mut Bench, kv: KvType, dim: usize) {
    let all = Scene::new(kv, dim, (4, 2), &[100, 49, 7], 3);
    let (out, prompt) = (all.attend(bench, 1, 8), all.attend_prompt(bench, 1));
    for (seed, schedule) in [
        (2, Schedule::Forward),
        (3, Schedule::Backward),
        (4, Schedule::Random(9)),
    ] {
        bench.0.schedule(schedule);
        assert_eq!(
            all.attend(bench, seed, 8),
            out,
            "pages in another order, {schedule:?}"
        );
        assert_eq!(
            all.attend_prompt(bench, seed),
            prompt,
            "pages in another order, {schedule:?}"
        );
    }
    for s in 0..3 {
        let (width, first) = (4 * dim, 3 * s);
        let alone = Scene {
            lengths: vec![all.lengths[s]],
            k: vec![all.k[s].clone()],
            v: vec![all.v[s].clone()],
            q: all.q[first * width..(first + 3) * width].to_vec(),
            rows: all.rows[first..first + 3]
                .iter()
                .map(|r| r.map(|(_, p)| (0, p)))
                .collect(),
            ..Scene::new(kv, dim, (4, 2), &[1], 1)
        };
        assert_eq!(
            alone.attend(bench, 7, 8),
            out[first * width..(first + 3) * width],
            "sequence {s} alone"
        );
        assert_eq!(
            alone.attend_prompt(bench, 7),
            prompt[first * width..(first + 3) * width],
            "sequence {s} alone"
        );
    }
}
