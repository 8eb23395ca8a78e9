//! Injected faults, each located at the right tensor.

use super::*;

/// The oracle of a text model with wrong positions or image embeddings.
struct OtherInput<'a> {
    asked: &'a Asked,
    target: Target,
    change: fn(&mut [Position], &mut [ImageRows]),
}

impl<'a> OtherInput<'a> {
    fn new(asked: &'a Asked, change: fn(&mut [Position], &mut [ImageRows])) -> OtherInput<'a> {
        let model = Model::load(&asked.gguf).expect("a model");
        OtherInput {
            asked,
            target: Target::Model(Arc::new(model)),
            change,
        }
    }
}

impl Execution for OtherInput<'_> {
    fn describe(&self) -> String {
        "given something else".to_owned()
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.asked.gguf
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn rounding(&self) -> Rounding {
        Rounding::NONE
    }

    fn run(&mut self, _: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let Input::Text(text) = self.asked.input() else {
            unreachable!("a text")
        };
        let images = Images::of(text)?;
        let pieces = images.pieces(text.tokens);
        let mut positions = Oracle::positions(&pieces);
        let of_image = |piece: &Piece<'_>| match piece {
            Piece::Image(rows) => Some((*rows).clone()),
            Piece::Tokens(_) => None,
        };
        let mut rows: Vec<ImageRows> = pieces.iter().filter_map(of_image).collect();
        (self.change)(&mut positions, &mut rows);
        let mut changed = rows.iter();
        let pieces: Vec<Piece<'_>> = pieces
            .iter()
            .map(|piece| match piece {
                Piece::Image(_) => Piece::Image(changed.next().expect("as many")),
                tokens => *tokens,
            })
            .collect();
        let mut taps = Numbering::default();
        let mut show = |name: &str, layer: Option<usize>, width: usize, data: &mut [f64]| {
            sink(TapOut {
                tap: taps.next(name.to_owned(), layer),
                width,
                data: data.iter().map(|x| *x as f32).collect(),
            });
        };
        let oracle = Oracle::open(&self.asked.gguf)?;
        oracle.forward_at(&pieces, &positions, &mut show)?;
        Ok(())
    }
}

/// The second tensor of that name is the rotated one.
const ROTATED: (&str, usize) = ("Qcur-0", 1);

#[test]
fn height_and_width_swapped_are_found_at_the_first_rotation() {
    let Some(asked) = Asked::usual() else { return };
    let mut other = OtherInput::new(&asked, |positions, _| {
        positions.iter_mut().for_each(|at| at.swap(1, 2));
    });
    let [begins, cells] = asked.first_image();
    let (name, occurrence, position) = asked.address(&mut other);
    assert_eq!((&*name, occurrence), ROTATED);
    assert!(position > begins, "{position} of {begins} and {cells}");
}

#[test]
fn positions_counted_in_tokens_are_found_behind_the_first_image() {
    let Some(asked) = Asked::usual() else { return };
    let mut other = OtherInput::new(&asked, |positions, _| {
        let after = positions.iter().position(|at| at[1] != at[0]);
        let begins = after.expect("an image") - 1;
        let mut rows = positions.iter_mut().enumerate();
        // the first image has the right positions; the text after it counts its rows
        let text_again = |(row, at): &(usize, &mut Position)| *row > begins && at[1] == at[0];
        while rows.next().is_some_and(|row| !text_again(&row)) {}
        rows.for_each(|(row, at)| *at = [row, row, row, 0]);
    });
    let [begins, cells] = asked.first_image();
    let (name, occurrence, position) = asked.address(&mut other);
    assert_eq!((&*name, occurrence), ROTATED);
    assert!(position > begins, "{position} of {begins} and {cells}");
}

#[test]
fn deepstack_a_layer_late_is_found_behind_the_first_layer() {
    let Some(asked) = Asked::usual() else { return };
    let mut other = OtherInput::new(&asked, |_, images| {
        for image in images {
            let (nx, ny, width) = (image.nx(), image.ny(), image.width());
            let mut rows = image.rows().to_vec();
            for row in rows.chunks_mut(width) {
                let part = width / 3;
                row.copy_within(part..2 * part, 2 * part);
                row[part..2 * part].fill(0.0);
            }
            *image = ImageRows::new(nx, ny, rows).expect("of the same shape");
        }
    });
    let (name, _, position) = asked.address(&mut other);
    assert_eq!(name, "deepstack_out-0");
    let [begins, cells] = asked.first_image();
    let of_first = begins..begins + cells;
    assert!(of_first.contains(&position) || octavo_engine::is_image_token(asked.tokens[position]));
}

#[test]
fn a_mask_by_time_alone_is_found_at_the_first_attention() {
    const HEADS: usize = 4;
    const HEADS_KV: usize = 2;
    const D: usize = 64;
    let Some(asked) = Asked::usual() else { return };
    let Input::Text(text) = asked.input() else {
        unreachable!("a text")
    };
    let images = Images::of(text).expect("they are held");
    let positions = Oracle::positions(&images.pieces(text.tokens));
    let mut kept = std::collections::HashMap::<String, Vec<f64>>::new();
    let fault: Box<Fault> = Box::new(move |key: &OwnedTap, _: usize, x: &mut [f64]| {
        if key.layer != Some(0) {
            return;
        }
        if key.name != "kqv_out" {
            // the last tensor of a name is the rotated one
            kept.insert(key.name.clone(), x.to_vec());
            return;
        }
        let (q, k, v) = (&kept["Qcur"], &kept["Kcur"], &kept["Vcur"]);
        for (t, out) in x.chunks_exact_mut(HEADS * D).enumerate() {
            for (h, out) in out.chunks_exact_mut(D).enumerate() {
                let of_kv = |x: &'_ [f64], s: usize| -> Vec<f64> {
                    x[(s * HEADS_KV + h / (HEADS / HEADS_KV)) * D..][..D].to_vec()
                };
                let q = &q[(t * HEADS + h) * D..][..D];
                let dot = |s: usize| -> f64 {
                    let terms = of_kv(k, s).into_iter().zip(q);
                    terms.map(|(a, b)| a * b).sum::<f64>() / 8.0
                };
                // all tokens of an image have the same time position
                let seen = (0..positions.len()).filter(|s| positions[*s][0] <= positions[t][0]);
                let weights: Vec<(usize, f64)> = seen.map(|s| (s, dot(s).exp())).collect();
                let sum: f64 = weights.iter().map(|(_, w)| w).sum();
                out.fill(0.0);
                for (s, w) in weights {
                    let v = of_kv(v, s);
                    out.iter_mut()
                        .zip(v)
                        .for_each(|(out, v)| *out += w / sum * v);
                }
            }
        }
    });
    let mut other = OracleExecution::with_fault(asked.gguf.clone(), fault).expect("a model");
    let (name, _, position) = asked.address(&mut other);
    assert_eq!(name, "kqv_out-0");
    assert!(octavo_engine::is_image_token(asked.tokens[position]));
}

/// Returns the first difference between the engine and the oracle with a fault, on an image.
fn tower_address(fault: impl FnOnce(&Gguf, Layout) -> Box<Fault>) -> Option<(String, usize)> {
    let gguf = open(&shared("vision/vl-a-mmproj-F32.gguf")?);
    let image = image("photo")?;
    let of_file = Tower::load(&gguf).expect("a tower");
    let prepared = Prepared::new(&image, &of_file.hparams, TokenLimits::default());
    let size = prepared.expect("a usual image").tiles[0].image.size();
    let layout = of_file
        .layout(size.width, size.height)
        .expect("whole tokens");
    let fault = fault(&gguf, layout);
    let mut other = OracleExecution::with_fault(gguf.clone(), fault).expect("a tower");
    let mut engine = tower(&gguf, Isa::best());
    let (name, occurrence, _) = first(run(&mut engine, &mut other, seen(&image)));
    Some((name, occurrence))
}

#[test]
fn a_stretched_image_is_found_at_its_pixels() {
    let Some(image) = image("photo") else {
        return;
    };
    let address = tower_address(|_, layout| {
        let [across, down] = layout.patches();
        Box::new(move |key, width, x| {
            if key.name != PIXELS {
                return;
            }
            let height = x.len() / 3 / width;
            assert_eq!((width / across, height / down), (16, 16));
            for (i, x) in x.iter_mut().enumerate() {
                let (colour, row, column) = (i / width / height, i / width % height, i % width);
                let from = [row * image.height / height, column * image.width / width];
                let byte = image.rgb[3 * (from[0] * image.width + from[1]) + colour];
                *x = f64::from(byte) / 127.5 - 1.0;
            }
        })
    });
    let Some(address) = address else { return };
    assert_eq!(address, (PIXELS.to_owned(), 0));
}

#[test]
fn the_mean_of_another_tower_is_found_at_the_pixels() {
    let (Some(path), Some(image)) = (shared("vision/vl-a-mmproj-F32.gguf"), image("wide")) else {
        return;
    };
    let gguf = open(&path);
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        match key {
            "clip.vision.image_mean" => {
                writer.set(key, vec![0.481_454_66f32, 0.457_827_5, 0.408_210_73]);
            }
            _ => {
                writer.set(key, value);
            }
        }
    }
    for t in gguf.tensors() {
        writer.tensor(&t.name, &t.dims, t.ty, gguf.data(t).to_vec());
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    let changed = Gguf::from_bytes(bytes, "changed.gguf", &OpenOptions::default());
    let changed = Arc::new(changed.expect("it opens"));
    let (mut a, mut b) = (tower(&gguf, Isa::best()), tower(&changed, Isa::best()));
    let (name, ..) = first(run(&mut a, &mut b, seen(&image)));
    assert_eq!(name, PIXELS);
}

#[test]
fn positions_between_half_pixels_are_found_where_they_are_added() {
    let address = tower_address(|gguf, layout| {
        let h = Tower::load(gguf).expect("a tower");
        let right = h.positions.expect("a table").rows(&layout);
        let info = gguf.tensor("v.position_embd.weight").expect("a table");
        let (width, side) = (info.dims[0] as usize, (info.dims[1] as usize).isqrt());
        let bytes = gguf.data(info).as_chunks::<4>().0.iter();
        let table: Vec<f32> = bytes.map(|b| f32::from_le_bytes(*b)).collect();
        let [across, down] = layout.patches();
        let between = move |i: usize, n: usize| {
            let at =
                ((i as f64 + 0.5) * side as f64 / n as f64 - 0.5).clamp(0.0, (side - 1) as f64);
            let low = at as usize;
            (low, (low + 1).min(side - 1), at - low as f64)
        };
        Box::new(move |key, _, x| {
            if key.name != "inp_pos_emb" {
                return;
            }
            for (r, row) in x.chunks_mut(width).enumerate() {
                let [y, x] = layout.places[r];
                let (y, x) = (between(y, down), between(x, across));
                for (i, out) in row.iter_mut().enumerate() {
                    let at = |y: usize, x: usize| f64::from(table[(y * side + x) * width + i]);
                    let upper = at(y.0, x.0) * (1.0 - x.2) + at(y.0, x.1) * x.2;
                    let lower = at(y.1, x.0) * (1.0 - x.2) + at(y.1, x.1) * x.2;
                    let wrong = upper * (1.0 - y.2) + lower * y.2;
                    *out += wrong - f64::from(right[r * width + i]);
                }
            }
        })
    });
    let Some(address) = address else { return };
    assert_eq!(address, ("inp_pos_emb".to_owned(), 0));
}

#[test]
fn rows_and_columns_swapped_are_found_where_patches_turn() {
    const D: usize = 32;
    let address = tower_address(|_, layout| {
        let mut before: Vec<f64> = Vec::new();
        Box::new(move |key, width, x| match &*key.name {
            "Qcur" => before = x.to_vec(),
            "Qcur_rope" => {
                for (r, (row, from)) in x.chunks_mut(width).zip(before.chunks(width)).enumerate() {
                    let [y, x] = layout.places[r];
                    for (head, from) in row.chunks_mut(D).zip(from.chunks(D)) {
                        for pair in 0..D / 2 {
                            let (at, i) = if pair < D / 4 {
                                (x, pair)
                            } else {
                                (y, pair - D / 4)
                            };
                            let angle = at as f64 * 1e4f64.powf(-4.0 * i as f64 / D as f64) % TAU;
                            let (sin, cos) = angle.sin_cos();
                            let (a, b) = (from[pair], from[pair + D / 2]);
                            head[pair] = a * cos - b * sin;
                            head[pair + D / 2] = a * sin + b * cos;
                        }
                    }
                }
            }
            _ => {}
        })
    });
    let Some(address) = address else { return };
    assert_eq!(address, ("Qcur_rope-0".to_owned(), 0));
}

/// A tensor of each tower, and the first value that is computed from it.
const CHANGED: [[(&str, &str); 5]; 8] = [
    [
        ("v.patch_embd.weight", "patch_bias"),
        ("v.position_embd.weight", "inp_pos_emb"),
        ("v.blk.1.attn_qkv.bias", "Qcur-1"),
        ("v.blk.2.ffn_down.weight", "ffn_down-2"),
        ("v.deepstack.1.fc1.weight", "ffn_up-1"),
    ],
    [
        ("v.patch_embd.weight.1", "ln1-0"),
        ("v.blk.0.ln2.weight", "ffn_inp_normed-0"),
        ("v.blk.1.attn_k.weight", "Kcur-1"),
        ("v.blk.2.ffn_gate.bias", "ffn_gate_b-2"),
        ("mm.0.weight", "ffn_up"),
    ],
    [
        ("v.patch_embd.bias", "patch_bias"),
        ("v.position_embd.weight", "pos_embed"),
        ("v.blk.0.attn_v.weight", "Vcur-0"),
        ("mm.soft_emb_norm.weight", "norm_w"),
        ("mm.input_projection.weight", IMAGE_EMBEDDINGS),
    ],
    [
        ("v.position_embd.weight", "pos_embd"),
        ("v.blk.0.attn_q_norm.weight", "Qcur_pos-0"),
        ("v.blk.1.attn_post_norm.weight", "attn_post_normed-1"),
        ("v.blk.1.out_scale.weight", "layer_out_scaled-1"),
        ("v.std_scale", "std_scaled"),
    ],
    [
        ("v.patch_embd.weight", "norm_w"),
        ("v.position_embd.weight", "pos_embd"),
        ("v.patch_norm.1.bias", "norm_b"),
        ("v.patch_norm.3.weight", "norm_w"),
        ("mm.input_projection.weight", IMAGE_EMBEDDINGS),
    ],
    [
        ("v.pre_ln.weight", "pre_ln"),
        ("v.blk.0.attn_k.weight", "Kcur-0"),
        ("v.blk.1.ffn_gate.weight", "ffn_gate-1"),
        ("mm.input_norm.weight", "norm_w"),
        ("v.token_embd.img_break", IMAGE_EMBEDDINGS),
    ],
    [
        ("v.position_embd.weight", "pos_embed"),
        ("v.blk.0.ln1.weight", "norm_w-0"),
        ("v.blk.1.attn_out.weight", "attn_out-1"),
        ("v.post_ln.bias", "norm_b"),
        ("mm.model.fc.weight", IMAGE_EMBEDDINGS),
    ],
    [
        ("v.class_embd", "pos_embed"),
        ("v.blk.0.ls1.weight", "attn_out_scaled-0"),
        ("v.blk.1.ls2.weight", "ffn_out_scaled-1"),
        ("mm.model.mlp.0.weight", "norm_w"),
        ("mm.model.mlp.3.bias", IMAGE_EMBEDDINGS),
    ],
];

/// Returns the file with the values of a tensor half as large again.
fn with_larger(gguf: &Gguf, name: &str) -> Arc<Gguf> {
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    let mut changed = 0;
    for t in gguf.tensors() {
        let mut bytes = gguf.data(t).to_vec();
        if t.name == name {
            let values = bytes.as_chunks_mut::<4>().0.iter_mut();
            values.for_each(|x| *x = (1.5 * f32::from_le_bytes(*x)).to_le_bytes());
            changed += 1;
        }
        writer.tensor(&t.name, &t.dims, t.ty, bytes);
    }
    assert_eq!(changed, 1, "{name}");
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("it is written");
    let changed = Gguf::from_bytes(bytes, "changed.gguf", &OpenOptions::default());
    Arc::new(changed.expect("it opens"))
}

#[test]
fn changed_tensors_are_found_at_the_first_values_computed_from_them() {
    for (file, faults) in TOWERS.into_iter().zip(CHANGED) {
        let (Some(path), Some(image)) = (shared(&format!("{file}.gguf")), image("photo")) else {
            return;
        };
        let gguf = open(&path);
        for (tensor, expected) in faults {
            let changed = with_larger(&gguf, tensor);
            let mut oracle = OracleExecution::new(changed).expect("a tower");
            let c = run(&mut tower(&gguf, Isa::best()), &mut oracle, seen(&image));
            let (name, ..) = first(c);
            assert_eq!(name, expected, "{file}, {tensor}");
        }
    }
}
