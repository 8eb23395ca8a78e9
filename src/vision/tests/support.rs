//! The shared folder's models, images and goldens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::shared;
use octavo_fixtures::towers::{PAIRS, Pair};
use octavo_reference::metrics::{self, Logit};
use octavo_vision::pixels::{DecodedImage, Limits, Prepared, Tile, TokenLimits, decode};
use octavo_vision::tower::Hparams;
use safetensors::{Dtype, SafeTensors};

/// A recorded case: its arrays and metadata.
pub(crate) struct Golden {
    pub(crate) name: String,
    bytes: Vec<u8>,
    pub(crate) facts: serde_json::Value,
    /// Folder of its images.
    images: PathBuf,
}

impl Golden {
    fn open(folder: &Path, name: &str, images: &Path) -> Golden {
        let read = |end: &str| {
            let path = folder.join(format!("{name}.{end}"));
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        Golden {
            name: name.to_owned(),
            bytes: read("safetensors"),
            facts: serde_json::from_slice(&read("json")).expect("JSON"),
            images: images.to_owned(),
        }
    }

    fn file(&self) -> SafeTensors<'_> {
        SafeTensors::deserialize(&self.bytes).expect("safetensors")
    }

    /// Returns the names of all arrays.
    pub(crate) fn names(&self) -> Vec<String> {
        let mut names: Vec<_> = self.file().names().into_iter().map(str::to_owned).collect();
        names.sort();
        names
    }

    /// Returns whether an array has a name that begins so.
    pub(crate) fn has(&self, start: &str) -> bool {
        self.names().iter().any(|name| name.starts_with(start))
    }

    /// Returns the values of an array of floats.
    pub(crate) fn floats(&self, name: &str) -> Option<Vec<f32>> {
        let file = self.file();
        let array = file.tensor(name).ok()?;
        assert_eq!(array.dtype(), Dtype::F32, "{name}");
        let values = array.data().chunks_exact(4);
        let value = |b: &[u8]| f32::from_le_bytes(b.try_into().expect("four bytes"));
        Some(values.map(value).collect())
    }

    /// Returns the values of an array of integers; none if there is no such array.
    pub(crate) fn integers(&self, name: &str) -> Vec<i32> {
        let file = self.file();
        let Ok(array) = file.tensor(name) else {
            return Vec::new();
        };
        assert_eq!(array.dtype(), Dtype::I32, "{name}");
        let values = array.data().chunks_exact(4);
        let value = |b: &[u8]| i32::from_le_bytes(b.try_into().expect("four bytes"));
        values.map(value).collect()
    }

    /// Returns the values of an array of bytes.
    pub(crate) fn bytes(&self, name: &str) -> Option<Vec<u8>> {
        let file = self.file();
        let array = file.tensor(name).ok()?;
        assert_eq!(array.dtype(), Dtype::U8, "{name}");
        Some(array.data().to_vec())
    }

    /// Returns what a vision encoder computes for this case: images, or their tiles, in order.
    pub(crate) fn tiles(&self, h: &Hparams) -> Vec<Tile> {
        let images = self.images(h).into_iter();
        images.flat_map(|prepared| prepared.tiles).collect()
    }

    /// Returns the images of this case, resized for a vision encoder.
    pub(crate) fn images(&self, h: &Hparams) -> Vec<Prepared> {
        let limit = |key: &str| {
            let n = self.facts[key].as_u64().filter(|n| *n > 0);
            n.map(|n| n as usize)
        };
        let limits = TokenLimits {
            min: limit("min_tokens"),
            max: limit("max_tokens"),
        };
        let images = self.facts["images"].as_array().expect("a list");
        let names = images.iter().map(|name| name.as_str().expect("a name"));
        let prepare = |name| {
            let image = image(&self.images.join(format!("{name}.png")));
            Prepared::new(&image, h, limits).expect("a usual image")
        };
        names.map(prepare).collect()
    }
}

/// Reads an image file.
pub(crate) fn image(path: &Path) -> DecodedImage {
    let bytes = std::fs::read(path).expect("a file");
    decode(&bytes, &Limits::default()).expect("an image")
}

/// Opens a file of the shared folder.
pub(crate) fn open(path: &Path) -> Arc<Gguf> {
    let gguf = Gguf::open(path, &OpenOptions::default());
    Arc::new(gguf.unwrap_or_else(|e| panic!("{e}")))
}

/// All cases of one of the shared folder's pairs of vision encoder and text model.
pub(crate) struct Family {
    pub(crate) folder: PathBuf,
    pub(crate) goldens: Vec<Golden>,
    /// Folder of the goldens.
    recorded: PathBuf,
    /// Folder of the images.
    pub(crate) images: PathBuf,
    /// Prefix of the file names, before `-mmproj-` and `-text-`.
    pub(crate) model: &'static str,
    pub(crate) bounds: Bounds,
}

/// Largest NMSE from llama.cpp's values: its own rounding, to f16 in convolutions and in GELU's
/// table, differs from model to model.
#[derive(Clone, Copy)]
pub(crate) struct Bounds {
    /// Embeddings of images, and values inside of vision encoders.
    pub(crate) rows: f64,
    /// Logits of prompts with images.
    pub(crate) logits: f64,
    /// Logits of texts alone.
    pub(crate) text: f64,
}

/// Bounds of most models. llama.cpp's own error on a text without images is 3e-13.
const USUAL: Bounds = Bounds {
    rows: 2e-6,
    logits: 2e-6,
    text: 1e-11,
};

const fn bounds(rows: f64, logits: f64, text: f64) -> Bounds {
    Bounds { rows, logits, text }
}

/// Folder, prefix of the file names, and bounds of each family. llama.cpp's GELU makes texts of
/// Gemma differ.
const FAMILIES: [(&str, &str, Bounds); 9] = [
    ("vision", "vl-a", USUAL),
    ("vision/q25", "vl-q25", USUAL),
    ("vision2/qwen35", "qwen35-a", bounds(2e-6, 5e-6, 1e-11)),
    ("vision2/gemma3", "gemma3-a", bounds(2e-6, 4e-6, 1e-6)),
    ("vision2/gemma4", "gemma4-a", bounds(5e-6, 2e-5, 1e-6)),
    ("vision2/gemma4u", "gemma4u-a", bounds(2e-7, 2e-6, 1e-6)),
    ("vision2/pixtral", "pixtral-a", bounds(6e-6, 6e-6, 1e-11)),
    ("vision2/idefics3", "idefics3-a", bounds(2e-6, 2e-6, 1e-11)),
    ("vision2/internvl", "internvl-a", bounds(2e-6, 2e-6, 1e-11)),
];

/// Returns the bounds of a pair that the repository makes.
fn bounds_of(pair: &Pair) -> Bounds {
    match pair.name {
        "lfm2" | "llava" | "llava16" | "kimivl" => USUAL,
        name => panic!("{name} has no bounds"),
    }
}

impl Family {
    /// Returns all families; `None` where the shared folder is absent.
    pub(crate) fn all() -> Option<Vec<Family>> {
        let family = |(folder, model, bounds)| Family::new(folder, model, bounds);
        let made = PAIRS.iter().map(Family::made);
        FAMILIES.into_iter().map(family).chain(made).collect()
    }

    /// Returns the family with this prefix of file names.
    pub(crate) fn named(model: &str) -> Option<Family> {
        let mut all = Family::all()?.into_iter();
        Some(all.find(|f| f.model == model).expect("it is listed"))
    }

    fn new(folder: &str, model: &'static str, bounds: Bounds) -> Option<Family> {
        let images = folder.split('/').next().expect("a folder");
        let (folder, images) = (shared(folder)?, shared(&format!("{images}/images"))?);
        let recorded = folder.join("goldens");
        Some(Family::recorded([folder, recorded, images], model, bounds))
    }

    /// Returns a pair that the repository makes; its goldens are in the repository.
    pub(crate) fn made(pair: &Pair) -> Option<Family> {
        let images = shared("vision2/images")?;
        let places = [pair.folder()?, pair.goldens(), images];
        Some(Family::recorded(places, pair.name, bounds_of(pair)))
    }

    fn recorded(
        [folder, goldens, images]: [PathBuf; 3],
        model: &'static str,
        bounds: Bounds,
    ) -> Family {
        let entries = std::fs::read_dir(&goldens).expect("a folder");
        let path = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").path();
        let mut names: Vec<String> = entries
            .map(path)
            .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into())
            .collect();
        names.sort();
        assert!(!names.is_empty(), "no goldens in {}", goldens.display());
        let golden = |name: &String| Golden::open(&goldens, name, &images);
        Family {
            goldens: names.iter().map(golden).collect(),
            recorded: goldens,
            folder,
            images,
            model,
            bounds,
        }
    }

    /// Returns the case of this name.
    pub(crate) fn golden(&self, name: &str) -> &Golden {
        let golden = self.goldens.iter().find(|golden| golden.name == name);
        golden.unwrap_or_else(|| panic!("{} has a case {name}", self.model))
    }

    /// Returns an image.
    pub(crate) fn image(&self, name: &str) -> DecodedImage {
        image(&self.images.join(format!("{name}.png")))
    }

    /// Opens the vision encoder of a case.
    pub(crate) fn tower(&self, golden: &Golden) -> Arc<Gguf> {
        let ty = golden.facts["mmproj"].as_str().expect("a type");
        open(&self.folder.join(format!("{}-mmproj-{ty}.gguf", self.model)))
    }

    /// Returns the lists of sizes that the folder has, if they are whole sizes of tiles.
    pub(crate) fn sizes(&self) -> Vec<serde_json::Value> {
        let list = |name| {
            let text = std::fs::read(self.recorded.join(format!("sizes-{name}.json"))).ok()?;
            let list: serde_json::Value = serde_json::from_slice(&text).expect("JSON");
            list["sizes"][0]["pixels"].is_array().then_some(list)
        };
        ["own", "limits"].into_iter().filter_map(list).collect()
    }

    /// Returns the path of the text model of a case.
    pub(crate) fn text(&self, golden: &Golden) -> PathBuf {
        let ty = golden.facts["text"].as_str().expect("a type");
        let model = golden.facts["model"].as_str().unwrap_or(self.model);
        self.folder.join(format!("{model}-text-{ty}.gguf"))
    }
}

/// Returns the hash FNV-1a of 64 bits.
pub(crate) fn fnv(bytes: &[u8]) -> u64 {
    let mix = |h: u64, byte: &u8| (h ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
    bytes.iter().fold(0xcbf2_9ce4_8422_2325, mix)
}

/// Returns the normalised mean squared error of the values.
pub(crate) fn nmse<T: Logit>(got: &[f32], expected: &[T]) -> f64 {
    metrics::nmse(got, expected).expect("as many values")
}
