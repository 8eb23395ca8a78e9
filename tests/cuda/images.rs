//! Images on the CUDA backend: the vision encoder's embeddings and the text model's logits against
//! llama.cpp's goldens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::backend::Phase;
use octavo_engine::backend::cuda::{Cuda, Limits, Options};
use octavo_engine::{Engine, EngineOptions, ImageHandle, LogitsFor, ModelSource};
use octavo_fixtures::{shared, towers};
use octavo_kernels::KvType;
use octavo_reference::metrics::nmse;
use octavo_vision::pixels::{Limits as Decoding, Prepared, TokenLimits, decode};
use octavo_vision::{Encoder, Tower};
use safetensors::SafeTensors;

use super::device;

/// Maximum number of tokens of an image.
const CELLS: usize = 128;

fn options(limits: Limits) -> Options {
    Options {
        kv_type: KvType::F32.both(),
        limits,
        graphs: true,
        check_pages: true,
        threads: 2,
    }
}

fn encoder(folder: &Path, model: &str) -> Option<Encoder> {
    let device = device()?;
    let path = folder.join(format!("{model}-mmproj-F32.gguf"));
    let gguf = Arc::new(Gguf::open(&path, &OpenOptions::default()).expect("a tower"));
    let encoder = Encoder::load_on(&gguf, CELLS, |tower: &Tower| {
        let options = options(tower.limits(CELLS));
        let cuda = Cuda::prepare(device, &gguf, tower, &options, &mut |_| {})?;
        Ok(Box::new(cuda))
    });
    Some(encoder.expect("it is prepared"))
}

fn engine(path: &Path) -> Option<Engine> {
    let device = device()?;
    let settings = EngineOptions {
        kv_type: KvType::F32.both(),
        ctx: Some(128),
        batch: Some(24),
        ..EngineOptions::default()
    };
    let source = ModelSource::Path(path.to_owned());
    let engine = Engine::load_on(&source, &settings, |gguf, model, limits| {
        let cuda = Cuda::prepare(device, gguf, model, &options(*limits), &mut |_| {})?;
        Ok(Box::new(cuda))
    });
    Some(engine.expect("it is prepared"))
}

fn floats(file: &SafeTensors<'_>, name: &str) -> Vec<f32> {
    let array = file.tensor(name).expect("the golden has it");
    let values = array.data().chunks_exact(4);
    let value = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four bytes"));
    values.map(value).collect()
}

/// A pair of vision encoder and text model, and the limits and bounds of its golden.
struct Pair {
    /// Folder of the large fixtures; none for a pair that the repository makes.
    folder: Option<&'static str>,
    model: &'static str,
    text: &'static str,
    limits: TokenLimits,
    /// Largest NMSE of rows and of logits.
    bounds: [f64; 2],
}

const fn pair(folder: &'static str, model: &'static str, bounds: [f64; 2]) -> Pair {
    Pair {
        folder: Some(folder),
        model,
        text: "F32",
        limits: TokenLimits {
            min: None,
            max: None,
        },
        bounds,
    }
}

const fn made(model: &'static str, bounds: [f64; 2]) -> Pair {
    Pair {
        folder: None,
        ..pair("", model, bounds)
    }
}

impl Pair {
    /// Returns the folders of the models, of the goldens, and of the images.
    fn folders(&self) -> Option<[PathBuf; 3]> {
        match self.folder {
            Some(folder) => {
                let root = folder.split('/').next().expect("a folder");
                let own = shared(folder)?;
                Some([
                    own.clone(),
                    own.join("goldens"),
                    shared(root)?.join("images"),
                ])
            }
            None => {
                let made = towers::PAIRS.iter().find(|made| made.name == self.model);
                let made = made.expect("it is made");
                Some([made.folder()?, made.goldens(), shared("vision2/images")?])
            }
        }
    }
}

const fn limited(pair: Pair, min: Option<usize>, max: usize) -> Pair {
    let limits = TokenLimits {
        min,
        max: Some(max),
    };
    Pair { limits, ..pair }
}

/// Bounds are those of CPUs, although inputs of a device's products are halves: each has an error
/// of 2.8e-4 on average, which squared is less than llama.cpp's own error. Gemma's, whose values
/// are larger, are a few times that, and logits of LFM2 and DeepSeek have three times the error of
/// rows, on CPUs too; what a wrong mask or position costs is a hundred times more.
/// No device takes the heads of 12 numbers that the small pair of Qwen 3.5 has.
const PAIRS: [Pair; 11] = [
    pair("vision", "vl-a", [2e-6; 2]),
    Pair {
        text: "F16",
        ..pair("vision/q25", "vl-q25", [2e-6; 2])
    },
    pair("vision2/gemma3", "gemma3-a", [4e-6, 8e-6]),
    limited(
        pair("vision2/gemma4", "gemma4-a", [1e-5, 2e-5]),
        Some(4),
        12,
    ),
    limited(
        pair("vision2/gemma4u", "gemma4u-a", [2e-6, 1e-5]),
        Some(4),
        16,
    ),
    limited(pair("vision2/pixtral", "pixtral-a", [6e-6; 2]), None, 20),
    pair("vision2/idefics3", "idefics3-a", [2e-6; 2]),
    pair("vision2/internvl", "internvl-a", [2e-6; 2]),
    limited(made("lfm2", [2e-6, 4e-6]), Some(4), 20),
    made("llava", [2e-6; 2]),
    limited(made("kimivl", [2e-6, 8e-6]), None, 24),
];

#[test]
fn images_are_llama_cpps_on_a_device() {
    for pair in PAIRS {
        let model = pair.model;
        let Some([own, goldens, images]) = pair.folders() else {
            return;
        };
        let Some(mut encoder) = encoder(&own, model) else {
            return;
        };
        let Some(engine) = engine(&own.join(format!("{model}-text-{}.gguf", pair.text))) else {
            return;
        };
        let bytes = std::fs::read(goldens.join("two.safetensors")).expect("a golden");
        let golden = SafeTensors::deserialize(&bytes).expect("safetensors");
        let mut session = engine.session();
        let (mut cells, mut tiles) = (Vec::new(), 0);
        for (i, name) in ["photo", "tall"].into_iter().enumerate() {
            let path = images.join(format!("{name}.png"));
            let bytes = std::fs::read(path).expect("an image");
            let image = decode(&bytes, &Decoding::default()).expect("an image");
            let h = &encoder.tower().hparams;
            let prepared = Prepared::new(&image, h, pair.limits).expect("usual");
            let got = encoder.image(&prepared, [i as u8; 32]).expect("it runs");
            let of_image = tiles..tiles + prepared.tiles.len();
            tiles = of_image.end;
            let tile = |i| floats(&golden, &format!("image{i}.embd"));
            let expected: Vec<f32> = of_image.flat_map(tile).collect();
            let off = nmse(&got.rows, &expected).expect("as many rows");
            println!("{model} {name}: rows {off:e}");
            assert!(off <= pair.bounds[0], "{model} {name}: rows {off:e}");
            let shown = engine.register(got);
            let shown: ImageHandle = shown.expect("made for the model");
            session.hold(&shown);
            cells.extend(shown.tokens());
        }
        let mut cells = cells.into_iter();
        let ids = golden.tensor("tokens").expect("tokens").data().to_vec();
        let id = |b: &[u8]| i32::from_le_bytes(b.try_into().expect("four bytes"));
        let ids: Vec<u32> = ids
            .chunks_exact(4)
            .map(id)
            .map(|id| u32::try_from(id).unwrap_or_else(|_| cells.next().expect("as many")))
            .collect();
        let got = session.eval(&ids, Phase::Prefill, LogitsFor::All);
        let got = got.expect("it runs").data;
        let expected = floats(&golden, "logits");
        // some goldens have the last rows alone
        let last = &got[got.len() - expected.len()..];
        let off = nmse(last, &expected).expect("as many logits");
        println!("{model}: logits {off:e}");
        assert!(off <= pair.bounds[1], "{model}: logits {off:e}");
        // generated tokens have RoPE positions other than their indices: replayed launches read
        // both
        let expected = golden
            .tensor("generated")
            .expect("it goes on")
            .data()
            .to_vec();
        let n_vocab = engine.hparams().n_vocab();
        let largest = |row: &[f32]| {
            let at = (0..row.len()).max_by(|a, b| row[*a].total_cmp(&row[*b]));
            at.expect("a vocabulary") as u32
        };
        let mut next = largest(&got[got.len() - n_vocab..]);
        for expected in expected.chunks_exact(4).map(id) {
            assert_eq!(next as i32, expected, "{model}: generated");
            next = session.eval_argmax(&[next], Phase::Decode).expect("room");
        }
    }
}
