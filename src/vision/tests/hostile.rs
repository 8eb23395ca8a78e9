//! Vision encoder files that are damaged or ask for the impossible either load or give a one-line
//! error.

use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Writer};
use octavo_engine::EngineOptions;
use octavo_fixtures::breaking::{Rng, damage};
use octavo_fixtures::shared;
use octavo_fixtures::towers::PAIRS;
use octavo_vision::pixels::Pixels;
use octavo_vision::{Encoder, Tower};

/// Small vision encoders of the folder of large fixtures.
const TOWERS: [&str; 8] = [
    "vision/vl-a-mmproj-F16.gguf",
    "vision/q25/vl-q25-mmproj-F32.gguf",
    "vision2/gemma3/gemma3-a-mmproj-F16.gguf",
    "vision2/gemma4/gemma4-a-mmproj-F32.gguf",
    "vision2/gemma4u/gemma4u-a-mmproj-F32.gguf",
    "vision2/pixtral/pixtral-a-mmproj-F32.gguf",
    "vision2/idefics3/idefics3-a-mmproj-F32.gguf",
    "vision2/internvl/internvl-a-mmproj-F32.gguf",
];

/// Returns the files of small vision encoders of all kinds.
fn towers() -> Option<Vec<Vec<u8>>> {
    let mut all: Vec<Vec<u8>> = TOWERS.into_iter().map(bytes).collect::<Option<_>>()?;
    all.extend(PAIRS.iter().map(|pair| pair.tower(TensorType::F32)));
    Some(all)
}

fn bytes(path: &str) -> Option<Vec<u8>> {
    Some(std::fs::read(shared(path)?).expect("a file"))
}

fn open(bytes: &[u8]) -> Result<Gguf, String> {
    let gguf = Gguf::from_bytes(bytes.to_vec(), "tower", &OpenOptions::default());
    gguf.map_err(|error| error.to_string())
}

/// Returns the offset after a name in the file.
fn behind(bytes: &[u8], name: &str) -> usize {
    let mut named = (name.len() as u64).to_le_bytes().to_vec();
    named.extend(name.as_bytes());
    let at = bytes.windows(named.len()).position(|part| part == named);
    at.unwrap_or_else(|| panic!("{name} is in the file")) + named.len()
}

/// Changes the value of a four-byte key; its type precedes it.
fn set(bytes: &mut [u8], key: &str, value: [u8; 4]) {
    let at = behind(bytes, key) + 4;
    bytes[at..at + 4].copy_from_slice(&value);
}

fn rename(bytes: &mut [u8], name: &str) {
    let at = behind(bytes, name);
    bytes[at - 1] ^= 1;
}

fn refusal(bytes: &[u8]) -> String {
    let gguf = open(bytes).expect("the container is sound");
    let error = Tower::load(&gguf).expect_err("it is refused").to_string();
    assert!(!error.contains('\n'), "{error}");
    error
}

const EPSILON: &str = "clip.vision.attention.layer_norm_epsilon";

/// Required keys and tensors, and the error when they are renamed.
const NEEDED: [(&str, &str); 14] = [
    ("clip.projector_type", "missing key clip.projector_type"),
    (
        "clip.has_vision_encoder",
        "missing key clip.has_vision_encoder",
    ),
    (
        "clip.vision.image_mean",
        "missing key clip.vision.image_mean",
    ),
    ("clip.vision.image_std", "missing key clip.vision.image_std"),
    (EPSILON, "missing key"),
    ("v.patch_embd.weight", "missing tensor v.patch_embd.weight"),
    (
        "v.patch_embd.weight.1",
        "missing tensor v.patch_embd.weight.1",
    ),
    (
        "v.position_embd.weight",
        "missing tensor v.position_embd.weight",
    ),
    ("v.blk.3.ln2.bias", "missing tensor v.blk.3.ln2.bias"),
    (
        "v.blk.0.attn_qkv.bias",
        "missing tensor v.blk.0.attn_qkv.bias",
    ),
    (
        "v.deepstack.1.fc2.weight",
        "missing tensor v.deepstack.1.fc2.weight",
    ),
    // without the weight, its norm is unexpected
    ("v.deepstack.2.fc1.weight", "unexpected tensor"),
    ("mm.2.weight", "missing tensor mm.2.weight"),
    ("v.post_ln.weight", "missing tensor v.post_ln.weight"),
];

#[test]
fn every_key_is_needed_and_bounded() {
    let Some(whole) = bytes("vision/vl-a-mmproj-F32.gguf") else {
        return;
    };
    let numbers = [
        "embedding_length",
        "feed_forward_length",
        "block_count",
        "projection_dim",
        "patch_size",
        "attention.head_count",
    ];
    for name in numbers {
        let key = format!("clip.vision.{name}");
        for value in [0, 3, 7, 1 << 20, u32::MAX] {
            let mut bytes = whole.clone();
            set(&mut bytes, &key, value.to_le_bytes());
            refusal(&bytes);
        }
        let mut bytes = whole.clone();
        rename(&mut bytes, &key);
        let error = refusal(&bytes);
        assert!(error.contains(&format!("missing key {key}")), "{error}");
    }
    for merge in [0, 1, 3, 4] {
        let mut bytes = whole.clone();
        set(
            &mut bytes,
            "clip.vision.spatial_merge_size",
            u32::to_le_bytes(merge),
        );
        let error = refusal(&bytes);
        assert!(error.contains("spatial_merge_size"), "{error}");
    }
    for epsilon in [0.0, -1.0, 1.0, f32::NAN, f32::INFINITY] {
        let mut bytes = whole.clone();
        set(&mut bytes, EPSILON, epsilon.to_le_bytes());
        let error = refusal(&bytes);
        assert!(error.contains("layer_norm_epsilon"), "{error}");
    }
    for (name, says) in NEEDED {
        let mut bytes = whole.clone();
        rename(&mut bytes, name);
        let error = refusal(&bytes);
        assert!(error.contains(says), "{name}: {error}");
    }
    // another projector name of the same length
    let mut bytes = whole.clone();
    let at = behind(&bytes, "clip.projector_type") + 12;
    bytes[at..at + 4].copy_from_slice(b"gem3");
    let error = refusal(&bytes);
    assert!(
        error.contains("qwen3vl_merger, qwen2.5vl_merger, qwen2.5o, gemma3"),
        "{error}"
    );
}

#[test]
fn windows_are_whole() {
    let Some(whole) = bytes("vision/q25/vl-q25-mmproj-F32.gguf") else {
        return;
    };
    for (key, value) in [("n_wa_pattern", 0), ("patch_size", 57), ("patch_size", 200)] {
        let mut bytes = whole.clone();
        set(
            &mut bytes,
            &format!("clip.vision.{key}"),
            u32::to_le_bytes(value),
        );
        refusal(&bytes);
    }
}

/// No tensor may have another name, and no number may make an encoder do what it cannot.
#[test]
fn every_tensor_is_needed_and_numbers_are_bounded() {
    let Some(towers) = towers() else { return };
    for whole in towers {
        let gguf = open(&whole).expect("it is sound");
        for tensor in gguf.tensors() {
            let mut bytes = whole.clone();
            rename(&mut bytes, &tensor.name);
            refusal(&bytes);
        }
        let numbers = gguf.keys().filter(|(key, value)| {
            key.starts_with("clip.vision.") && matches!(value, gguf_rs_lite::Value::U32(_))
        });
        for (key, _) in numbers {
            for value in [0, 1, 3, 97, 1 << 20, u32::MAX] {
                let mut bytes = whole.clone();
                set(&mut bytes, key, value.to_le_bytes());
                if let Err(error) = run(&bytes) {
                    assert!(!error.contains('\n') && error.len() < 2000, "{error}");
                }
            }
        }
    }
}

/// Changes bytes of the header at random; an encoder that still loads must also run.
#[test]
fn damaged_towers_are_refused_or_run() {
    let (mut refused, mut ran) = (0, 0);
    let Some(towers) = towers() else { return };
    for whole in towers {
        // keys and the list of tensors
        let gguf = open(&whole).expect("it is sound");
        let data = gguf.tensors().iter().filter_map(|t| gguf.file_offset(t));
        let header = data.min().expect("tensors") as usize;
        let mut rng = Rng(7);
        for round in 0..120 {
            let mut bytes = whole.clone();
            match round % 3 {
                0 => bytes.truncate(rng.below(whole.len())),
                1 => {
                    let at = rng.below(header);
                    damage(&mut rng, &mut bytes, at);
                }
                _ => {
                    let at = rng.below(header);
                    bytes[at] ^= 1 << rng.below(8);
                }
            }
            match run(&bytes) {
                Ok(()) => ran += 1,
                Err(error) => {
                    assert!(!error.contains('\n') && error.len() < 2000, "{error}");
                    refused += 1;
                }
            }
        }
    }
    assert!(refused > 100 && ran > 0, "{refused} refused, {ran} ran");
}

fn run(bytes: &[u8]) -> Result<(), String> {
    let gguf = Arc::new(open(bytes)?);
    let options = EngineOptions {
        threads: Some(1),
        ..EngineOptions::default()
    };
    let encoder = Encoder::load(&gguf, &options, 16, &mut |_| {});
    let mut encoder = encoder.map_err(|error| error.to_string())?;
    let h = &encoder.tower().hparams;
    let side = if h.image_size > 0 {
        h.image_size
    } else {
        2 * h.unit()
    };
    let planes = vec![0.25; 3 * side * side];
    let pixels = Pixels {
        width: side,
        height: side,
        planes: &planes,
    };
    let cells = encoder.encode(pixels, None);
    cells.map(|_| ()).map_err(|error| error.to_string())
}

/// Returns the file of a pair with keys changed, or removed where the value is `None`.
fn changed(name: &str, edits: &[(&str, Option<OwnedValue>)]) -> Vec<u8> {
    let pair = PAIRS.iter().find(|pair| pair.name == name);
    let whole = open(&pair.expect("a pair").tower(TensorType::F32)).expect("sound");
    let mut writer = Writer::new();
    for (key, value) in whole.keys() {
        writer.set(key, OwnedValue::from(value));
    }
    for (key, value) in edits {
        match value {
            Some(value) => writer.set(key, value.clone()),
            None => writer.remove(key),
        };
    }
    for info in whole.tensors() {
        writer.tensor(&info.name, &info.dims, info.ty, whole.data(info).to_vec());
    }
    let mut bytes = Vec::new();
    writer.write_to(&mut bytes).expect("a sound file");
    bytes
}

#[test]
fn tiles_and_squares_are_whole() {
    const PATCH: &str = "clip.vision.patch_size";
    const SCALE: &str = "clip.vision.projector.scale_factor";
    const SIZES: &str = "clip.vision.image_grid_pinpoints";
    let refused = |name: &str, key: &str, value: Option<OwnedValue>, says: &str| {
        let error = refusal(&changed(name, &[(key, value)]));
        assert!(error.contains(says), "{name} {key}: {error}");
    };
    refused("lfm2", PATCH, Some(30u32.into()), "tiles of 512 pixels");
    refused("lfm2", SCALE, None, "missing key");
    refused("kimivl", SCALE, None, "missing key");
    refused("kimivl", SCALE, Some(1u32.into()), SCALE);
    let blocks = "clip.vision.block_count";
    refused(
        "llava",
        blocks,
        Some(1u32.into()),
        "the last of which is not run",
    );
    let layers = vec![1i32, 2].into();
    let says = "rows of the last block alone";
    refused("llava", "clip.vision.feature_layer", Some(layers), says);
    refused("llava", SCALE, Some(5u32.into()), SCALE);
    for sizes in [
        vec![60i32, 61],
        vec![60, 0],
        vec![60, -60],
        vec![60],
        vec![60 * 257, 60],
        vec![60 << 20, 60 << 20],
    ] {
        refused("llava16", SIZES, Some(sizes.into()), "multiples of 60");
    }
    refused("llava16", SIZES, Some("60".into()), "pairs of sides");
}
