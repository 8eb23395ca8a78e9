//! Mistakes that an implementation may make, each planted in the model, in what goes into it or in
//! an intermediate value: every one must show, else agreement proves nothing.

use super::golden::{Case, Image};
use super::nmse;
use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures as fixtures;
use octavo_reference::{ImageRows, Oracle, Tap, VisionOracle};
use std::path::Path;

/// Far above what llama.cpp's rounding makes of the rows of images, [`super::EMBEDDINGS`]. GELU by
/// the error function does not show: it differs by less than that.
const SHOWS: f64 = 5e-5;

/// Runs a change of a model in memory from a file of its own.
pub(super) fn written<T>(model: Model, run: impl FnOnce(&Gguf) -> T) -> T {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    model.write(&path);
    run(&Gguf::open(&path, &OpenOptions::default()).unwrap())
}

fn model(folder: &Path, name: &str) -> Model {
    Model::read(folder.join(name).to_str().unwrap())
}

/// The error of an image's rows with a fault in the tower or in the image.
fn tower_error(
    folder: &Path,
    file: &str,
    plant: impl FnOnce(&mut Model, Image) -> Image,
    tap: &mut Tap<'_>,
) -> f64 {
    let case = Case::read(folder, "two");
    let mut model = model(folder, file);
    let image = plant(&mut model, case.image(0));
    let rows = written(model, |gguf| {
        let oracle = VisionOracle::open(gguf).unwrap();
        oracle.encode_tapped(image.pixels(), tap).unwrap()
    });
    nmse(rows.rows(), &case.floats("image0.embd").values)
}

type Plant = fn(&mut Model);

fn values<'m>(model: &'m mut Model, tensor: &str) -> &'m mut Vec<f32> {
    &mut model.tensors.get_mut(tensor).unwrap().1
}

fn copy(model: &mut Model, from: &str, to: &str) {
    let tensor = model.tensors[from].clone();
    model.tensors.insert(to.into(), tensor);
}

/// Gives the deepstack layers of blocks to other blocks.
fn move_deepstack(model: &mut Model, from: [usize; 2], to: [usize; 2]) {
    let mut moved = Vec::new();
    for (from, to) in from.into_iter().zip(to) {
        let prefix = format!("v.deepstack.{from}.");
        let names: Vec<String> = model.tensors.keys().cloned().collect();
        for name in names {
            if let Some(rest) = name.strip_prefix(&prefix) {
                let tensor = model.tensors.remove(&name).unwrap();
                moved.push((format!("v.deepstack.{to}.{rest}"), tensor));
            }
        }
    }
    model.tensors.extend(moved);
}

/// A table of rows by columns as one of columns by rows.
fn transpose_positions(model: &mut Model) {
    let (dims, values) = model.tensors.get_mut("v.position_embd.weight").unwrap();
    let (width, side) = (dims[0] as usize, (dims[1] as usize).isqrt());
    let old = values.clone();
    for (entry, values) in values.chunks_mut(width).enumerate() {
        let (y, x) = (entry / side, entry % side);
        values.copy_from_slice(&old[(x * side + y) * width..][..width]);
    }
}

const TOWER_FAULTS: &[(&str, Plant)] = &[
    ("one kernel for both frames", |m| {
        copy(m, "v.patch_embd.weight", "v.patch_embd.weight.1");
    }),
    ("the patches' bias twice", |m| {
        let bias = values(m, "v.patch_embd.bias");
        bias.iter_mut().for_each(|x| *x *= 2.0);
    }),
    ("positions by columns", transpose_positions),
    ("quick GELU", |m| m.set("clip.use_gelu", false)),
    ("SiLU", |m| {
        m.set("clip.use_gelu", false);
        m.set("clip.use_silu", true);
    }),
    ("deepstack rows in the other order", |m| {
        move_deepstack(m, [1, 2], [2, 1]);
    }),
    ("deepstack rows of the blocks before", |m| {
        move_deepstack(m, [1, 2], [0, 1]);
    }),
    ("the norm of another block behind the last", |m| {
        copy(m, "v.blk.0.ln1.weight", "v.post_ln.weight");
    }),
];

/// The same of Qwen2.5-VL.
const WINDOW_FAULTS: &[(&str, Plant)] = &[
    ("attention to the whole image everywhere", |m| {
        m.set("clip.vision.n_wa_pattern", 1u32);
    }),
    ("attention to the whole image nowhere", |m| {
        m.set("clip.vision.n_wa_pattern", 4u32);
    }),
    ("attention to the whole image a block early", |m| {
        m.set("clip.vision.n_wa_pattern", 2u32);
    }),
    ("GELU", |m| {
        m.set("clip.use_silu", false);
        m.set("clip.use_gelu", true);
    }),
    ("one kernel for both frames", |m| {
        copy(m, "v.patch_embd.weight", "v.patch_embd.weight.1");
    }),
];

#[test]
fn faults_in_a_tower_show() {
    for (folder, file, faults) in [
        ("vision", "vl-a-mmproj-F32.gguf", TOWER_FAULTS),
        ("vision/q25", "vl-q25-mmproj-F32.gguf", WINDOW_FAULTS),
    ] {
        let Some(folder) = fixtures::shared(folder) else {
            return;
        };
        let error = |plant: Plant| {
            let plant = |model: &mut Model, image| {
                plant(model);
                image
            };
            tower_error(&folder, file, plant, &mut |_, _, _, _| {})
        };
        assert!(error(|_| {}) < super::EMBEDDINGS);
        for (what, plant) in faults {
            let error = error(*plant);
            println!("{what}: NMSE {error:.1e}");
            assert!(error > SHOWS, "{what}: NMSE {error:e}");
        }
    }
}

#[test]
fn colours_in_another_order_show() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let reversed = |_: &mut Model, image: Image| image.reverse_colours();
    let file = "vl-a-mmproj-F32.gguf";
    let error = tower_error(&folder, file, reversed, &mut |_, _, _, _| {});
    assert!(error > SHOWS, "NMSE {error:e}");
}

/// Patches across and down of the image that faults are planted in.
const PATCHES: [usize; 2] = [12, 8];

/// Puts row `from(i)` where row `i` is, of rows of `width` values.
fn permute(x: &mut [f64], width: usize, from: impl Fn(usize) -> usize) {
    let old = x.to_vec();
    for (i, row) in x.chunks_mut(width).enumerate() {
        row.copy_from_slice(&old[from(i) * width..][..width]);
    }
}

/// Where the tower has the patch that is number `i` from the left, then from the top.
fn in_tower(i: usize) -> usize {
    let (y, x) = (i / PATCHES[0], i % PATCHES[0]);
    let square = y / 2 * (PATCHES[0] / 2) + x / 2;
    4 * square + y % 2 * 2 + x % 2
}

/// Row and column of the patch that is number `i` in the tower.
fn place(i: usize) -> [usize; 2] {
    let (square, within) = (i / 4, i % 4);
    let (y, x) = (square / (PATCHES[0] / 2), square % (PATCHES[0] / 2));
    [2 * y + within / 2, 2 * x + within % 2]
}

/// Rotates every head of every row by the angle of row and pair.
fn rotate(x: &mut [f64], [width, head_dim]: [usize; 2], angle: impl Fn(usize, usize) -> f64) {
    let half = head_dim / 2;
    for (row, values) in x.chunks_mut(width).enumerate() {
        for head in values.chunks_mut(head_dim) {
            for pair in 0..half {
                let (sin, cos) = angle(row, pair).sin_cos();
                let (a, b) = (head[pair], head[pair + half]);
                head[pair] = a * cos - b * sin;
                head[pair + half] = a * sin + b * cos;
            }
        }
    }
}

/// Angles of the tower's heads: rows come first, and frequencies fall with `4 * i`.
fn tower_angle(row: usize, pair: usize, first: usize, fall: f64) -> f64 {
    const HEAD: f64 = 32.0;
    let (half, i) = (pair / 8, pair % 8);
    let along = place(row)[(half + first) % 2];
    along as f64 * 10_000f64.powf(-fall * i as f64 / HEAD)
}

/// What a tap does to a value of a name and a width.
type Change = fn(&str, usize, &mut [f64]);

const ORDER_FAULTS: &[(&str, Change)] = &[
    ("rows of patches from the left", |name, width, x| {
        if name == "patch_bias" {
            permute(x, width, in_tower);
        }
    }),
    ("rows of the merger from the left", |name, width, x| {
        if name == "norm_b" && width == 64 {
            permute(x, width, in_tower);
        }
    }),
    ("squares by columns", |name, width, x| {
        if name == "norm_b" && width == 64 {
            permute(x, width, |i| i / 4 * 4 + [0, 2, 1, 3][i % 4]);
        }
    }),
];

#[test]
fn patches_in_another_order_show() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    for (what, change) in ORDER_FAULTS {
        let error = tower_error(
            &folder,
            "vl-a-mmproj-F32.gguf",
            |_, image| image,
            &mut |name, _, width, x| change(name, width, x),
        );
        println!("{what}: NMSE {error:.1e}");
        assert!(error > SHOWS, "{what}: NMSE {error:e}");
    }
}

/// The tower's rotation done again, right and wrong.
#[test]
fn other_angles_in_a_tower_show() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let error = |first: usize, fall: f64| {
        let mut before = Vec::new();
        let mut tap = |name: &str, _: Option<usize>, width: usize, x: &mut [f64]| match name {
            "Qcur" | "Kcur" => before = x.to_vec(),
            "Qcur_rope" | "Kcur_rope" => {
                x.copy_from_slice(&before);
                let angle = |row, pair| tower_angle(row, pair, first, fall);
                rotate(x, [width, 32], angle);
            }
            _ => {}
        };
        let file = "vl-a-mmproj-F32.gguf";
        tower_error(&folder, file, |_, image| image, &mut tap)
    };
    assert!(error(0, 4.0) < super::EMBEDDINGS, "the same again");
    for (what, error) in [
        ("columns first", error(1, 4.0)),
        ("frequencies of the whole head", error(0, 2.0)),
    ] {
        println!("{what}: NMSE {error:.1e}");
        assert!(error > SHOWS, "{what}: NMSE {error:e}");
    }
}

/// What goes into the text model.
struct Input {
    images: Vec<ImageRows>,
    positions: Vec<[usize; 4]>,
}

impl Input {
    /// Changes the rows of each image: numbers of rows across and down, the values, and their width.
    fn change_rows(&mut self, change: impl Fn(&mut [f64], usize)) {
        for image in &mut self.images {
            let (nx, ny, width) = (image.nx(), image.ny(), image.width());
            let mut rows = image.rows().to_vec();
            change(&mut rows, width);
            *image = ImageRows::new(nx, ny, rows).unwrap();
        }
    }

    /// Changes each row's embedding and its two parts behind it.
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

/// NMSE of the logits of `two` with llama.cpp's rows, changed.
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
    assert!(error(|_| {}) < super::F32_ROUNDING);
    for (what, plant) in INPUT_FAULTS {
        let error = error(*plant);
        println!("{what}: NMSE {error:.1e}");
        // one pair has the fourth position, and turns slowly
        let least = if what.contains("fourth") { 1e-8 } else { SHOWS };
        assert!(error > least, "{what}: NMSE {error:e}");
    }
}

/// The text model's rotation done again, right and wrong.
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
                // the first of that name is not rotated yet
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
    assert!(same < super::F32_ROUNDING, "NMSE {same:e}");
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
