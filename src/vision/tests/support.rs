//! The shared folder's models, images and goldens.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::shared;
use octavo_reference::metrics::{self, Logit};
use octavo_vision::pixels::{DecodedImage, Limits, Prepared, TokenLimits, decode};
use octavo_vision::tower::Hparams;
use safetensors::{Dtype, SafeTensors};

/// A recorded case: its arrays and metadata.
pub(crate) struct Golden {
    pub(crate) name: String,
    bytes: Vec<u8>,
    pub(crate) facts: serde_json::Value,
}

impl Golden {
    fn open(folder: &Path, name: &str) -> Golden {
        let read = |end: &str| {
            let path = folder.join(format!("{name}.{end}"));
            std::fs::read(&path).unwrap_or_else(|e| panic!("{}: {e}", path.display()))
        };
        Golden {
            name: name.to_owned(),
            bytes: read("safetensors"),
            facts: serde_json::from_slice(&read("json")).expect("JSON"),
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

    /// Returns the images of this case, resized for a vision encoder.
    pub(crate) fn images(&self, h: &Hparams) -> Vec<Prepared> {
        let limit = |key: &str, usual: usize| {
            let n = self.facts[key].as_i64().filter(|n| *n > 0);
            n.map_or(usual, |n| n as usize)
        };
        let usual = TokenLimits::default();
        let limits = TokenLimits {
            min: limit("min_tokens", usual.min),
            max: limit("max_tokens", usual.max),
        };
        let images = self.facts["images"].as_array().expect("a list");
        let names = images.iter().map(|name| name.as_str().expect("a name"));
        let prepare = |name| Prepared::new(&image(name), h, limits).expect("a usual image");
        names.map(prepare).collect()
    }
}

/// Reads an image of the shared folder.
pub(crate) fn image(name: &str) -> DecodedImage {
    let path = shared(&format!("vision/images/{name}.png")).expect("its goldens are there");
    let bytes = std::fs::read(path).expect("a file");
    decode(&bytes, &Limits::default()).expect("an image")
}

/// Opens a file of the shared folder.
pub(crate) fn open(path: &Path) -> Arc<Gguf> {
    let gguf = Gguf::open(path, &OpenOptions::default());
    Arc::new(gguf.unwrap_or_else(|e| panic!("{e}")))
}

/// All cases of one of the shared folder's models.
pub(crate) struct Family {
    pub(crate) folder: PathBuf,
    pub(crate) goldens: Vec<Golden>,
    /// Prefix of the file names, before `-mmproj-` and `-text-`.
    pub(crate) model: &'static str,
}

impl Family {
    /// Returns both families; `None` where the shared folder is absent.
    pub(crate) fn all() -> Option<[Family; 2]> {
        Some([
            Family::new(shared("vision")?, "vl-a"),
            Family::new(shared("vision/q25")?, "vl-q25"),
        ])
    }

    fn new(folder: PathBuf, model: &'static str) -> Family {
        let goldens = folder.join("goldens");
        let entries = std::fs::read_dir(&goldens).expect("a folder");
        let path = |entry: std::io::Result<std::fs::DirEntry>| entry.expect("an entry").path();
        let mut names: Vec<String> = entries
            .map(path)
            .filter(|path| path.extension().is_some_and(|end| end == "safetensors"))
            .map(|path| path.file_stem().expect("a name").to_string_lossy().into())
            .collect();
        names.sort();
        assert!(!names.is_empty(), "no goldens in {}", goldens.display());
        Family {
            goldens: names.iter().map(|n| Golden::open(&goldens, n)).collect(),
            folder,
            model,
        }
    }

    /// Opens the vision encoder of a case.
    pub(crate) fn tower(&self, golden: &Golden) -> Arc<Gguf> {
        let ty = golden.facts["mmproj"].as_str().expect("a type");
        open(&self.folder.join(format!("{}-mmproj-{ty}.gguf", self.model)))
    }
}

/// Returns the normalised mean squared error of the values.
pub(crate) fn nmse<T: Logit>(got: &[f32], expected: &[T]) -> f64 {
    metrics::nmse(got, expected).expect("as many values")
}
