//! Contradictory vision encoders and prompts give a one-line error that names the fault.

use super::faults::written;
use super::golden::Case;
use crate::hostile::{REAL, WHOLE};
use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, Writer};
use octavo_fixtures as fixtures;
use octavo_reference::{Error, ImageRows, Oracle, Piece, Pixels, VisionOracle};
use std::path::Path;

/// Projector of the encoder, change made to it, and the part the message must contain.
type Contradiction = (&'static str, fn(&mut Model), &'static str);

const QWEN3: &str = "vision/vl-a-mmproj-F32.gguf";
const QWEN25: &str = "vision/q25/vl-q25-mmproj-F32.gguf";

fn unset(model: &mut Model, key: &str) {
    model.keys.retain(|(name, _)| name != key);
}

const CONTRADICTIONS: &[Contradiction] = &[
    (
        QWEN3,
        |m| m.set("general.architecture", "llama"),
        r#"general.architecture: expected one of clip; got "llama""#,
    ),
    (
        QWEN3,
        |m| m.set("clip.has_vision_encoder", false),
        r#"key "clip.has_vision_encoder": expected true, got false"#,
    ),
    (
        QWEN3,
        |m| m.set("clip.projector_type", "qwen2vl_merger"),
        "key \"clip.projector_type\": \
         expected qwen3vl_merger, qwen2.5vl_merger, qwen2.5o, gemma3, gemma4v, gemma4uv, pixtral, \
         idefics3, internvl, lfm2, mlp, kimivl, got qwen2vl_merger",
    ),
    (
        QWEN3,
        |m| unset(m, "clip.projector_type"),
        "key \"clip.vision.projector_type\": \
         expected qwen3vl_merger, qwen2.5vl_merger, qwen2.5o, gemma3, gemma4v, gemma4uv, pixtral, \
         idefics3, internvl, lfm2, mlp, kimivl, got nothing",
    ),
    (
        QWEN3,
        |m| m.set("clip.use_silu", true),
        r#"key "clip.use_silu": expected not true beside clip.use_gelu, got true"#,
    ),
    (
        QWEN3,
        |m| m.set("clip.vision.spatial_merge_size", 3u32),
        r#"key "clip.vision.spatial_merge_size": expected 2, got 3"#,
    ),
    (
        QWEN3,
        |m| m.set("clip.vision.attention.head_count", 32u32),
        r#"head_count": expected heads of a multiple of 4 values of 64, got 32"#,
    ),
    (
        QWEN3,
        |m| unset(m, "clip.vision.attention.layer_norm_epsilon"),
        r#"layer_norm_epsilon": expected a number, got nothing"#,
    ),
    (
        QWEN3,
        |m| {
            m.remove("v.position_embd.weight");
            m.add_bias("v.position_embd.weight", 64);
        },
        r#"tensor "v.position_embd.weight": expected dims [64, a square], got [64]"#,
    ),
    (
        QWEN3,
        |m| m.remove("v.position_embd.weight"),
        r#"tensor "v.position_embd.weight": expected dims [64, a square], got no such tensor"#,
    ),
    (
        QWEN3,
        |m| m.remove("v.patch_embd.weight.1"),
        r#"tensor "v.patch_embd.weight.1": expected dims [16, 16, 3, 64], got no such tensor"#,
    ),
    (
        QWEN3,
        |m| m.remove("v.deepstack.2.fc1.weight"),
        r#"tensor "v.deepstack.2.fc1.bias": expected only tensors that the qwen3vl_merger oracle"#,
    ),
    (
        QWEN3,
        |m| m.set("clip.vision.projection_dim", 128u32),
        r#"tensor "mm.2.weight": expected dims [256, 128], got [256, 256]"#,
    ),
    (
        QWEN25,
        |m| unset(m, "clip.vision.n_wa_pattern"),
        r#"key "clip.vision.n_wa_pattern": expected a number, got nothing"#,
    ),
    (
        QWEN25,
        |m| m.add_bias("v.patch_embd.bias", 32),
        r#"tensor "v.patch_embd.bias": expected only tensors that the qwen2.5vl_merger oracle"#,
    ),
    (
        QWEN25,
        |m| m.remove("v.blk.1.ffn_gate.bias"),
        r#"tensor "v.blk.1.ffn_gate.bias": expected dims [72], got no such tensor"#,
    ),
];

#[test]
fn contradictions_of_a_tower_are_named() {
    for (base, change, expected) in CONTRADICTIONS {
        let Some(base) = fixtures::shared(base) else {
            return;
        };
        let mut model = Model::read(base.to_str().unwrap());
        change(&mut model);
        let message = written(model, |gguf| {
            VisionOracle::open(gguf).unwrap_err().to_string()
        });
        assert!(
            message.contains(expected),
            "expected {expected}\ngot {message}"
        );
        assert!(!message.contains('\n'), "{message}");
    }
}

/// A file with image and audio encoders names the projector of each, and its other tensors are not
/// read.
#[test]
fn an_audio_encoder_beside_the_tower_is_left_alone() {
    let Some(base) = fixtures::shared(QWEN25) else {
        return;
    };
    let mut model = Model::read(base.to_str().unwrap());
    unset(&mut model, "clip.projector_type");
    model.set("clip.vision.projector_type", "qwen2.5o");
    model.set("clip.audio.projector_type", "qwen2.5o");
    model.add_bias("a.blk.0.ln1.weight", 3);
    model.add_bias("mm.a.fc.bias", 3);
    written(model, |gguf| {
        let oracle = VisionOracle::open(gguf).unwrap();
        assert_eq!((oracle.text_width(), oracle.n_deepstack()), (256, 0));
        assert_eq!(oracle.side_unit(), 28);
    });
}

fn open(path: &Path) -> Gguf {
    Gguf::open(path, &OpenOptions::default()).unwrap()
}

#[test]
fn images_of_other_sizes_are_refused() {
    let Some(path) = fixtures::shared(QWEN3) else {
        return;
    };
    let gguf = open(&path);
    let oracle = VisionOracle::open(&gguf).unwrap();
    let values = vec![0.25; 3 * 64 * 32];
    let message = |width, height, n: usize| {
        let values = &values[..n];
        let pixels = Pixels {
            width,
            height,
            values,
        };
        oracle.encode(pixels).map_err(|error| error.to_string())
    };
    let rows = message(64, 32, 6144).unwrap();
    assert_eq!((rows.nx(), rows.ny(), rows.width()), (2, 1, 768));
    let unit =
        |got: &str| format!("image: expected sides that are multiples of 32 pixels, got {got}");
    assert_eq!(message(64, 16, 3072).unwrap_err(), unit("64x16"));
    assert_eq!(message(0, 32, 0).unwrap_err(), unit("0x32"));
    let short = message(64, 32, 6143).unwrap_err();
    assert_eq!(short, "pixels: expected 6144 values, got 6143");
    assert!(message(1 << 40, 1 << 40, 5).is_err());
}

#[test]
fn rows_that_a_text_model_cannot_take_are_refused() {
    let Some(folder) = fixtures::shared("vision") else {
        return;
    };
    let [text, _] = Case::read(&folder, "two").models();
    let oracle = Oracle::open(&text).unwrap();
    let logits = |oracle: &Oracle<'_>, rows: &ImageRows, positions: &[[usize; 4]]| {
        let pieces = [Piece::Image(rows)];
        oracle.forward_at(&pieces, positions, &mut |_, _, _, _| {})
    };
    let said = |result: Result<Vec<f64>, Error>| result.unwrap_err().to_string();
    let right = ImageRows::new(1, 1, vec![0.5; 768]).unwrap();
    assert_eq!(logits(&oracle, &right, &[[0; 4]]).unwrap().len(), 448);
    assert_eq!(
        said(logits(&oracle, &right, &[])),
        "positions: expected 1 values, got 0"
    );
    let narrow = ImageRows::new(1, 1, vec![0.5; 256]).unwrap();
    assert_eq!(
        said(logits(&oracle, &narrow, &[[0; 4]])),
        "image: expected rows of 768 values, got 256"
    );
    let demo = fixtures::workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
    let demo = open(&demo);
    assert_eq!(
        said(logits(&Oracle::open(&demo).unwrap(), &narrow, &[[0; 4]])),
        "image: expected none for qwen3, got one"
    );
    for (nx, ny, n) in [
        (0, 1, 256),
        (1, 0, 256),
        (2, 3, 7),
        (2, 3, 0),
        (1 << 40, 1 << 40, 1),
    ] {
        let message = ImageRows::new(nx, ny, vec![0.5; n])
            .unwrap_err()
            .to_string();
        assert!(message.contains("expected whole rows"), "{message}");
    }
}

/// Invalid sections, and more deepstack layers than there are layers.
#[test]
fn contradictions_of_a_text_model_are_named() {
    let Some(path) = fixtures::shared("vision/vl-a-text-F32.gguf") else {
        return;
    };
    for (key, value, expected) in [
        (
            "qwen3vl.n_deepstack_layers",
            OwnedValue::U32(3),
            "expected fewer than the 3 layers, got 3",
        ),
        (
            "qwen3vl.rope.dimension_sections",
            vec![0i32; 4].into(),
            "expected four counts of 1 to 1048576 pairs together",
        ),
        (
            "qwen3vl.rope.dimension_sections",
            vec![12i32, 10, -10, 0].into(),
            "expected four counts of 1 to 1048576 pairs together",
        ),
        (
            "qwen3vl.rope.dimension_sections",
            OwnedValue::U32(12),
            "expected an array of counts, got no array",
        ),
        (
            "qwen3vl.rope.dimension_count",
            OwnedValue::U32(32),
            "expected an even count within the head width 64, got 32",
        ),
    ] {
        let mut model = Model::read(path.to_str().unwrap());
        model.set(key, value);
        let message = written(model, |gguf| Oracle::open(gguf).unwrap_err().to_string());
        assert!(message.contains(key), "{message}");
        assert!(message.contains(expected), "{message}");
    }
}

/// Any replaced number gives an error or rows, but no panic.
#[test]
fn no_single_number_of_a_tower_is_fatal() {
    let (mut refused, mut computed) = (0, 0);
    for base in [QWEN3, QWEN25] {
        let Some(path) = fixtures::shared(base) else {
            return;
        };
        let gguf = open(&path);
        let keys: Vec<(String, OwnedValue)> = gguf
            .keys()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        for (key, right) in &keys {
            let wrong: Vec<OwnedValue> = match right {
                OwnedValue::U32(_) => WHOLE.iter().map(|&v| v.into()).collect(),
                OwnedValue::F32(_) => REAL.iter().map(|&v| v.into()).collect(),
                _ => continue,
            };
            for value in wrong {
                let mut writer = Writer::new();
                for (key, right) in &keys {
                    writer.set(key, right.clone());
                }
                writer.set(key, value);
                for info in gguf.tensors() {
                    writer.tensor(&info.name, &info.dims, info.ty, gguf.data(info));
                }
                let mut bytes = Vec::new();
                writer.write_to(&mut bytes).unwrap();
                let changed = Gguf::from_bytes(bytes, "changed", &OpenOptions::default());
                match VisionOracle::open(&changed.unwrap()) {
                    Ok(oracle) => {
                        let side = 2 * oracle.side_unit();
                        let pixels = Pixels {
                            width: side,
                            height: side,
                            values: &vec![0.25; 3 * side * side],
                        };
                        oracle.encode(pixels).unwrap();
                        computed += 1;
                    }
                    Err(_) => refused += 1,
                }
            }
        }
    }
    println!("{refused} refused, {computed} computed");
    assert!(
        refused > 60 && computed > 20,
        "{refused} refused, {computed} computed"
    );
}
