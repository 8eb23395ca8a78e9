//! Faults in the vision encoders, detected in the rows of an image.

use super::super::golden::{Case, Image};
use super::super::{EMBEDDINGS, nmse};
use super::{SHOWS, permute, rotate, written};
use crate::model::Model;
use octavo_fixtures as fixtures;
use octavo_reference::{Tap, VisionOracle};
use std::path::Path;

fn model(folder: &Path, name: &str) -> Model {
    Model::read(folder.join(name).to_str().unwrap())
}

/// Returns the error of an image's rows with a fault in the encoder or in the image.
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

/// Moves the deepstack layers of some blocks to other blocks.
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

/// Transposes a table of position embeddings.
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

/// The same for Qwen2.5-VL.
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
        assert!(error(|_| {}) < EMBEDDINGS);
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

/// Patches per row and per column of the image used for faults.
const PATCHES: [usize; 2] = [12, 8];

/// Returns the index in the encoder's order of the patch with raster index `i`.
fn in_tower(i: usize) -> usize {
    let (y, x) = (i / PATCHES[0], i % PATCHES[0]);
    let square = y / 2 * (PATCHES[0] / 2) + x / 2;
    4 * square + y % 2 * 2 + x % 2
}

/// Returns row and column of the patch with index `i` in the encoder's order.
fn place(i: usize) -> [usize; 2] {
    let (square, within) = (i / 4, i % 4);
    let (y, x) = (square / (PATCHES[0] / 2), square % (PATCHES[0] / 2));
    [2 * y + within / 2, 2 * x + within % 2]
}

/// Returns RoPE angles of the encoder's heads: rows come first, and frequencies fall with `4 * i`.
fn tower_angle(row: usize, pair: usize, first: usize, fall: f64) -> f64 {
    const HEAD: f64 = 32.0;
    let (half, i) = (pair / 8, pair % 8);
    let along = place(row)[(half + first) % 2];
    along as f64 * 10_000f64.powf(-fall * i as f64 / HEAD)
}

/// Change of a tapped value, given its name and width.
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

/// Recomputes the encoder's RoPE, correctly and wrongly.
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
    assert!(error(0, 4.0) < EMBEDDINGS, "the same again");
    for (what, error) in [
        ("columns first", error(1, 4.0)),
        ("frequencies of the whole head", error(0, 2.0)),
    ] {
        println!("{what}: NMSE {error:.1e}");
        assert!(error > SHOWS, "{what}: NMSE {error:e}");
    }
}

/// Interpolates the table between patch centres instead of corners.
#[test]
fn positions_between_middles_show() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let file = "vl-a-mmproj-F32.gguf";
    let mut table = model(&folder, file);
    let table = values(&mut table, "v.position_embd.weight").clone();
    let error = |source: fn(usize, usize) -> f64| {
        let mut before = Vec::new();
        let mut tap = |name: &str, _: Option<usize>, width: usize, x: &mut [f64]| match name {
            "patch_bias" => before = x.to_vec(),
            "inp_pos_emb" => {
                x.copy_from_slice(&before);
                for (row, x) in x.chunks_mut(width).enumerate() {
                    add_position(x, &table, place(row), source);
                }
            }
            _ => {}
        };
        tower_error(&folder, file, |_, image| image, &mut tap)
    };
    let corners = error(|i, n| i as f64 * 7.0 / (n - 1) as f64);
    assert!(corners < EMBEDDINGS, "the same again: NMSE {corners:e}");
    let middles = error(|i, n| ((i as f64 + 0.5) * 8.0 / n as f64 - 0.5).clamp(0.0, 7.0));
    println!("positions between middles: NMSE {middles:.1e}");
    assert!(middles > SHOWS, "NMSE {middles:e}");
}

/// Adds the position embedding from a table of eight by eight.
fn add_position(
    x: &mut [f64],
    table: &[f32],
    [row, column]: [usize; 2],
    source: fn(usize, usize) -> f64,
) {
    let (y, across) = (source(row, PATCHES[1]), source(column, PATCHES[0]));
    for ty in 0..8 {
        for tx in 0..8 {
            let near = |at: f64, entry: usize| (1.0 - (at - entry as f64).abs()).max(0.0);
            let share = near(y, ty) * near(across, tx);
            let entry = &table[(ty * 8 + tx) * x.len()..][..x.len()];
            let sums = x.iter_mut().zip(entry);
            sums.for_each(|(x, &entry)| *x += share * f64::from(entry));
        }
    }
}

/// Applies a deepstack layer's norm to each patch separately, as the merger's does.
#[test]
fn a_norm_before_the_merge_shows() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let file = "vl-a-mmproj-F32.gguf";
    let mut model = model(&folder, file);
    let mut error = |each: usize| {
        let mut layers = Vec::new();
        let mut tap = |name: &str, block: Option<usize>, width: usize, x: &mut [f64]| {
            let Some(block @ (1 | 2)) = block else {
                return;
            };
            match name {
                "layer_out" => layers.push(x.to_vec()),
                "norm_b" => {
                    x.copy_from_slice(&layers[block - 1]);
                    let mut part = |part: &str| {
                        values(&mut model, &format!("v.deepstack.{block}.norm.{part}")).clone()
                    };
                    let (weight, bias) = (part("weight"), part("bias"));
                    norm(x, each);
                    for row in x.chunks_mut(width) {
                        for ((x, &weight), &bias) in row.iter_mut().zip(&weight).zip(&bias) {
                            *x = *x * f64::from(weight) + f64::from(bias);
                        }
                    }
                }
                _ => {}
            }
        };
        tower_error(&folder, file, |_, image| image, &mut tap)
    };
    let together = error(256);
    assert!(together < EMBEDDINGS, "the same again: NMSE {together:e}");
    let alone = error(64);
    println!("deepstack normed before it is merged: NMSE {alone:.1e}");
    assert!(alone > SHOWS, "NMSE {alone:e}");
}

/// Subtracts the mean and divides by the standard deviation, for every `width` values.
fn norm(x: &mut [f64], width: usize) {
    for row in x.chunks_mut(width) {
        let n = width as f64;
        let mean = row.iter().sum::<f64>() / n;
        let variance = row.iter().map(|x| (x - mean).powi(2)).sum::<f64>() / n;
        let scale = 1.0 / (variance + 1e-6).sqrt();
        row.iter_mut().for_each(|x| *x = (*x - mean) * scale);
    }
}
