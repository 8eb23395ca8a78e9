//! Images: compares the vision encoders and their text models with stock llama.cpp's recordings.

mod equals;
mod faults;
mod golden;
mod graph;
mod refused;

use golden::Case;
use half::f16;
use octavo_fixtures as fixtures;
use octavo_reference::{ImageRows, Oracle, VisionOracle, metrics};
use std::collections::BTreeMap;

/// Square of the relative error of f16 rounding. ggml rounds pixels and kernels of patches to f16,
/// and reads GELU from a table of f16: each time with an error of at most 2^-11 of a value. The
/// squares add up where the values are summed.
const F16_SQUARED: f64 = 1.0 / (1u64 << 22) as f64;

/// Tolerance of rows after five GELUs with that rounding: measured up to 6.6e-7, with f16 keys and
/// values up to 1.6e-6.
const EMBEDDINGS: f64 = 2e-6;

/// Tolerance of the text model, which llama.cpp computes in f32; NMSE measured up to 8e-13.
const F32_ROUNDING: f64 = 2e-12;

/// A recorded prompt.
struct Prompt {
    /// Folder of the models in the shared one: Qwen3-VL's or Qwen2.5-VL's.
    folder: &'static str,
    name: &'static str,
    /// For each image the prompt whose golden has its pixels, and its index there.
    images: &'static [(&'static str, usize)],
}

const fn prompt(name: &'static str, images: &'static [(&'static str, usize)]) -> Prompt {
    Prompt {
        folder: "vision",
        name,
        images,
    }
}

const PROMPTS: &[Prompt] = &[
    prompt("one", &[("one", 0)]),
    prompt("two", &[("two", 0), ("two", 1)]),
    prompt("first", &[("two", 1)]),
    prompt("two-f16", &[("two", 0), ("two", 1)]),
    prompt("two-q4", &[("two", 0), ("two", 1)]),
    prompt("two-default", &[("two", 0), ("two", 1)]),
    prompt("enlarged", &[("enlarged", 0)]),
    prompt("shrunk", &[("shrunk", 0)]),
    prompt("text", &[]),
    Prompt {
        folder: "vision/q25",
        ..prompt("two", &[("two", 0), ("two", 1)])
    },
];

/// Runs `check` for every case, with the oracle's rows of its images.
fn for_each_case(check: impl Fn(&str, &Case, &[ImageRows])) {
    for prompt in PROMPTS {
        let Some(folder) = fixtures::shared(prompt.folder) else {
            return;
        };
        let name = format!("{}/{}", prompt.folder, prompt.name);
        let case = Case::read(&folder, prompt.name);
        let [_, mmproj] = case.models();
        let oracle = VisionOracle::open(&mmproj).unwrap();
        assert_eq!(prompt.images.len(), case.n_images(), "{name}");
        let rows = prompt.images.iter().map(|(of, index)| {
            let image = Case::read(&folder, of).image(*index);
            oracle.encode(image.pixels()).unwrap()
        });
        let rows: Vec<ImageRows> = rows.collect();
        check(&name, &case, &rows);
    }
}

fn nmse(ours: &[f64], exact: &[f32]) -> f64 {
    metrics::nmse(ours, exact).unwrap()
}

/// Prints an error, and asserts that it is at most `bound`.
#[track_caller]
fn assert_within(bound: f64, error: f64, what: &str) {
    println!("{what}: NMSE {error:.1e}");
    assert!(error <= bound, "{what}: NMSE {error:e}, bound {bound:e}");
}

#[test]
fn embeddings_agree_with_llama_cpp() {
    for_each_case(|name, case, images| {
        for (index, image) in images.iter().enumerate() {
            let what = format!("image{index}.embd");
            let golden = case.floats(&what);
            assert_eq!(
                golden.shape,
                [image.nx() * image.ny(), image.width()],
                "{name}"
            );
            let error = nmse(image.rows(), &golden.values);
            assert_within(EMBEDDINGS, error, &format!("{name} {what}"));
        }
    });
}

/// From pixels to logits, with llama.cpp's rounding in the encoder included.
#[test]
fn logits_agree_with_llama_cpp() {
    for_each_case(|name, case, images| {
        if case.names("logits").is_empty() {
            return;
        }
        let logits = logits(case, images);
        let golden = case.floats(exact_name(case));
        assert_within(
            EMBEDDINGS,
            nmse(&logits, &golden.values),
            &format!("{name} logits"),
        );
    });
}

/// Returns the name of the logits of the exact dequantization, where the text model is not F32.
fn exact_name(case: &Case) -> &'static str {
    match case.names("exact").is_empty() {
        true => "logits",
        false => "exact",
    }
}

fn logits(case: &Case, images: &[ImageRows]) -> Vec<f64> {
    let [text, _] = case.models();
    let tokens = case.tokens();
    let pieces = case.pieces(&tokens, images);
    let oracle = Oracle::open(&text).unwrap();
    oracle
        .forward_pieces(&pieces, &mut |_, _, _, _| {})
        .unwrap()
}

/// The text model alone, with llama.cpp's own image rows as input.
#[test]
fn logits_of_the_same_rows_agree_to_rounding() {
    for_each_case(|name, case, _| {
        // the first of these has no logits, the second has f16 keys and values
        if ["vision/two-f16", "vision/two-default"].contains(&name) {
            return;
        }
        let logits = logits(case, &case.all_rows());
        let golden = case.floats(exact_name(case));
        let what = format!("{name} logits of recorded rows");
        assert_within(F32_ROUNDING, nmse(&logits, &golden.values), &what);
    });
}

#[test]
fn positions_are_llama_cpp_s() {
    for_each_case(|name, case, images| {
        let tokens = case.tokens();
        let positions = Oracle::positions(&case.pieces(&tokens, images));
        assert_eq!(positions, case.positions(), "{name}");
    });
}

/// Greedy decoding, with positions that continue the prompt's.
#[test]
fn generated_tokens_are_llama_cpp_s() {
    for_each_case(|name, case, images| {
        if case.names("generated").is_empty() {
            return;
        }
        let [text, _] = case.models();
        let oracle = Oracle::open(&text).unwrap();
        let (prompt, generated) = (case.tokens(), case.generated());
        let tokens = [prompt.clone(), generated.clone()].concat();
        let pieces = case.pieces(&tokens, images);
        let logits = oracle
            .forward_pieces(&pieces, &mut |_, _, _, _| {})
            .unwrap();
        let behind = &logits[(prompt.len() - 1) * oracle.n_vocab()..];
        let chosen = behind.chunks(oracle.n_vocab());
        let chosen: Vec<u32> = chosen.flat_map(|row| metrics::top_k(row, 1)).collect();
        assert_eq!(chosen[..generated.len()], generated, "{name}");
        let golden = case.floats("generated_logits");
        let error = nmse(&behind[oracle.n_vocab()..], &golden.values);
        assert_within(GENERATED, error, &format!("{name} generated"));
    });
}

/// For Qwen2.5-VL's text model the only recording is llama.cpp on the F16 file, with its f16
/// activations.
const GENERATED: f64 = EMBEDDINGS;

/// Returns all taps of a pass over the image of case `one`, by name and block; the first of those
/// that repeat.
fn taps_of(mmproj: &gguf_rs_lite::Gguf, image: &golden::Image) -> BTreeMap<String, Vec<f64>> {
    let oracle = VisionOracle::open(mmproj).unwrap();
    let mut taps = BTreeMap::new();
    oracle
        .encode_tapped(image.pixels(), &mut |name, block, _, x| {
            let name = block.map_or(name.into(), |block| format!("{name}-{block}"));
            taps.entry(name).or_insert_with(|| x.to_vec());
        })
        .unwrap();
    taps
}

/// The patches' products are rounded twice, and each block's GELU twice: input and output. Norms
/// preserve the relative error of a row, sums with the stream lower it. The square of a tap's error
/// is therefore at most the sum of those before it.
#[test]
fn taps_of_the_tower_agree_with_llama_cpp() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let case = Case::read(&folder, "one");
    let [_, mmproj] = case.models();
    let taps = taps_of(&mmproj, &case.image(0));
    let names = case.names("image0.");
    let taps_of_golden = names.iter().filter(|name| taps.contains_key(*name));
    assert_eq!(taps_of_golden.clone().count(), 10, "{names:?}");
    for name in taps_of_golden {
        let gelus = match name.strip_prefix("layer_out-") {
            Some(block) => block.parse::<u32>().unwrap() + 1,
            None => 0,
        };
        let bound = f64::from(2 * (gelus + 1)) * F16_SQUARED;
        let golden = case.floats(&format!("image0.{name}"));
        assert_within(bound, nmse(&taps[name], &golden.values), name);
    }
}

/// The F16 file has the same kernels, rounded as ggml rounds those of the F32 file. With pixels
/// rounded as well, no other rounding occurs until the first GELU.
#[test]
fn taps_before_a_gelu_agree_to_rounding_where_pixels_and_kernels_are_rounded_too() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let case = Case::read(&folder, "one");
    let [_, mmproj] = Case::read(&folder, "two-f16").models();
    let image = case.image(0).map(|x| f16::from_f32(x).to_f32());
    let taps = taps_of(&mmproj, &image);
    for name in ["patch_bias", "inp_pos_emb", "ln1-0"] {
        let golden = case.floats(&format!("image0.{name}"));
        let what = format!("{name} of rounded pixels");
        assert_within(F32_ROUNDING, nmse(&taps[name], &golden.values), &what);
    }
}

#[test]
fn taps_of_the_text_model_agree_with_llama_cpp() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let case = Case::read(&folder, "one");
    let [text, mmproj] = case.models();
    let oracle = Oracle::open(&text).unwrap();
    let own = VisionOracle::open(&mmproj).unwrap();
    let own = own.encode(case.image(0).pixels()).unwrap();
    let names = case.names("text.");
    assert_eq!(names.len(), 6, "{names:?}");
    for (rows, bound) in [(vec![own], EMBEDDINGS), (case.all_rows(), F32_ROUNDING)] {
        let tokens = case.tokens();
        let mut taps = BTreeMap::new();
        oracle
            .forward_pieces(&case.pieces(&tokens, &rows), &mut |name, layer, _, x| {
                let name = layer.map_or(name.into(), |layer| format!("{name}-{layer}"));
                taps.insert(name, x.to_vec());
            })
            .unwrap();
        for name in &names {
            let golden = case.floats(&format!("text.{name}"));
            assert_within(bound, nmse(&taps[name], &golden.values), name);
        }
    }
}
