//! Rows sharded across several ranks.

use octavo_kernels::Cut;
use octavo_kernels::cuda::params::JoinParts;

use super::*;

/// Returns one rank's part of each piece.
fn part(whole: &[f32], cut: Cut, rank: usize, ranks: usize) -> Vec<f32> {
    let pieces = whole.chunks_exact(cut.width);
    let mine = cut.of(rank, ranks);
    pieces
        .flat_map(|piece| &piece[mine.clone()])
        .copied()
        .collect()
}

/// Parts of equal and different lengths, including a shorter last grain.
#[test]
fn parts_are_joined_to_rows() {
    let Some(mut bench) = device() else { return };
    let mut rng = Rng(17);
    for (pieces, width, grain) in [
        (1, 64, 16),
        (1, 50, 16),
        (3, 100, 16),
        (2, 7, 1),
        (1, 96, 24),
    ] {
        for (rows, ranks) in [(1, 2), (5, 2), (3, 3), (4, 4), (2, 1)] {
            let cut = Cut {
                pieces,
                width,
                grain,
            };
            let whole = rng.floats(rows * pieces * width);
            let parts: Vec<f32> = (0..ranks)
                .flat_map(|rank| part(&whole, cut, rank, ranks))
                .collect();
            let p = JoinParts {
                parts: bench.floats(&parts),
                out: bench.alloc(4 * whole.len()),
                n: whole.len() as u64,
                width: width as u32,
                grain: grain as u32,
                grains: cut.grains() as u32,
                ranks: ranks as u32,
            };
            bench.run(&launch::join_parts(&p));
            let what = format!("{rows} rows of {cut:?} on {ranks} ranks");
            assert_eq!(bench.read(p.out, whole.len()), whole, "{what}");
        }
    }
}
