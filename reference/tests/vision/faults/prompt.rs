//! Faults in the text model's input, detected in logits.

use super::super::golden::Case;
use super::super::{F32_ROUNDING, nmse};
use super::{SHOWS, permute, rotate};
use gguf_rs_lite::Gguf;
use octavo_fixtures as fixtures;
use octavo_reference::{ImageRows, Oracle, Tap};

/// Input of the text model.
struct Input {
    images: Vec<ImageRows>,
    positions: Vec<[usize; 4]>,
}

impl Input {
    /// Changes the rows of each image; `change` gets the values and the width of a row.
    fn change_rows(&mut self, change: impl Fn(&mut [f64], usize)) {
        for image in &mut self.images {
            let (nx, ny, width) = (image.nx(), image.ny(), image.width());
            let mut rows = image.rows().to_vec();
            change(&mut rows, width);
            *image = ImageRows::new(nx, ny, rows).unwrap();
        }
    }

    /// Changes each row's embedding and the two deepstack parts after it.
    fn change_parts(&mut self, change: fn(&mut [&mut [f64]])) {
        self.change_rows(|rows, width| {
            for row in rows.chunks_mut(width) {
                change(&mut row.chunks_mut(width / 3).collect::<Vec<_>>());
            }
        });
    }
}

type InputPlant = fn(&mut Input);

const INPUT_FAULTS: &[(&str, InputPlant)] = &[
    ("height and width swapped", |input| {
        input.positions.iter_mut().for_each(|at| at.swap(1, 2));
    }),
    ("positions that count rows", |input| {
        let mut positions = input.positions.iter_mut().enumerate();
        positions.by_ref().take(35).for_each(drop);
        positions.for_each(|(row, at)| *at = [row, row, row, 0]);
    }),
    ("an image at one position", |input| {
        input
            .positions
            .iter_mut()
            .for_each(|at| *at = [at[0], at[0], at[0], 0]);
    }),
    ("images' positions that begin at 0", |input| {
        for at in &mut input.positions {
            (at[1], at[2]) = (at[1] - at[0], at[2] - at[0]);
        }
    }),
    ("time in the fourth place", |input| {
        input.positions.iter_mut().for_each(|at| at[3] = at[0]);
    }),
    ("no deepstack", |input| {
        input.change_parts(|parts| parts[1..].iter_mut().for_each(|part| part.fill(0.0)));
    }),
    ("deepstack a layer late", |input| {
        input.change_parts(|parts| {
            let first = parts[1].to_vec();
            parts[2].copy_from_slice(&first);
            parts[1].fill(0.0);
        });
    }),
    ("deepstack rows in the other order", |input| {
        input.change_parts(|parts| {
            let (a, b) = parts.split_at_mut(2);
            a[1].swap_with_slice(b[0]);
        });
    }),
    ("an image's rows by columns", |input| {
        input.change_rows(|rows, width| {
            let n = rows.len() / width;
            let ny = if n == 24 { 4 } else { 1 };
            permute(rows, width, |i| i % (n / ny) * ny + i / (n / ny));
        });
    }),
];

/// Returns the NMSE of the logits of `two` with llama.cpp's rows, changed.
fn logits_error(case: &Case, text: &Gguf, plant: InputPlant, tap: &mut Tap<'_>) -> f64 {
    let tokens = case.tokens();
    let mut input = Input {
        images: case.all_rows(),
        positions: case.positions(),
    };
    plant(&mut input);
    let pieces = case.pieces(&tokens, &input.images);
    let oracle = Oracle::open(text).unwrap();
    let logits = oracle.forward_at(&pieces, &input.positions, tap).unwrap();
    nmse(&logits, &case.floats("logits").values)
}

#[test]
fn faults_in_the_prompt_show() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let case = Case::read(&folder, "two");
    let [text, _] = case.models();
    let error = |plant| logits_error(&case, &text, plant, &mut |_, _, _, _| {});
    assert!(error(|_| {}) < F32_ROUNDING);
    for (what, plant) in INPUT_FAULTS {
        let error = error(*plant);
        println!("{what}: NMSE {error:.1e}");
        // a single pair uses the fourth position, at a low frequency
        let least = if what.contains("fourth") { 1e-8 } else { SHOWS };
        assert!(error > least, "{what}: NMSE {error:e}");
    }
}

/// Recomputes the text model's RoPE, correctly and wrongly.
#[test]
fn other_sections_show() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let case = Case::read(&folder, "two");
    let [text, _] = case.models();
    let positions = case.positions();
    let error = |axis: fn(usize) -> usize| {
        let mut normed = None;
        let mut tap = |name: &str, _: Option<usize>, width: usize, x: &mut [f64]| match name {
            "Qcur_normed" | "Kcur_normed" => normed = Some(x.to_vec()),
            "Qcur" | "Kcur" => {
                // the first value of that name is not rotated yet
                if let Some(before) = normed.take() {
                    x.copy_from_slice(&before);
                    let angle = |row: usize, pair: usize| {
                        let frequency = 10_000f64.powf(-2.0 * pair as f64 / 64.0);
                        positions[row][axis(pair)] as f64 * frequency
                    };
                    rotate(x, [width, 64], angle);
                }
            }
            _ => {}
        };
        logits_error(&case, &text, |_| {}, &mut tap)
    };
    let same = error(|pair| if pair == 31 { 3 } else { pair % 3 });
    assert!(same < F32_ROUNDING, "NMSE {same:e}");
    for (what, least, error) in [
        ("sections one after another", SHOWS, {
            error(|pair| {
                [(12, 0), (22, 1), (32, 2)]
                    .iter()
                    .find(|end| pair < end.0)
                    .unwrap()
                    .1
            })
        }),
        ("pairs of no section turned by time", 1e-8, {
            error(|pair| if pair == 31 { 0 } else { pair % 3 })
        }),
        ("time only", SHOWS, error(|_| 0)),
    ] {
        println!("{what}: NMSE {error:.1e}");
        assert!(error > least, "{what}: NMSE {error:e}");
    }
}
