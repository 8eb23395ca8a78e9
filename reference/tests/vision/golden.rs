//! A recorded prompt with images: arrays in a safetensors file, and JSON beside it.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_reference::{ImageRows, Piece, Pixels};
use safetensors::SafeTensors;
use serde_json::Value;
use std::path::{Path, PathBuf};

/// One prompt with images and llama.cpp's results.
pub(crate) struct Case {
    folder: PathBuf,
    about: Value,
    bytes: Vec<u8>,
}

/// A named array.
pub(crate) struct Array {
    pub(crate) shape: Vec<usize>,
    pub(crate) values: Vec<f32>,
}

/// Normalised pixels of an image.
pub(crate) struct Image {
    width: usize,
    height: usize,
    values: Vec<f32>,
}

impl Image {
    pub(crate) fn pixels(&self) -> Pixels<'_> {
        Pixels {
            width: self.width,
            height: self.height,
            values: &self.values,
        }
    }

    /// Applies `change` to every value.
    pub(crate) fn map(mut self, change: impl Fn(f32) -> f32) -> Self {
        self.values.iter_mut().for_each(|x| *x = change(*x));
        self
    }

    /// Reverses the colours to blue, green, red.
    pub(crate) fn reverse_colours(mut self) -> Self {
        let planes: Vec<_> = self.values.chunks(self.width * self.height).collect();
        self.values = [planes[2], planes[1], planes[0]].concat();
        self
    }
}

impl Case {
    pub(crate) fn read(folder: &Path, name: &str) -> Self {
        let path = |extension| folder.join(format!("goldens/{name}.{extension}"));
        Self {
            folder: folder.into(),
            about: serde_json::from_slice(&std::fs::read(path("json")).unwrap()).unwrap(),
            bytes: std::fs::read(path("safetensors")).unwrap(),
        }
    }

    fn words(&self, name: &str) -> (Vec<usize>, Vec<[u8; 4]>) {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let view = file.tensor(name).unwrap_or_else(|_| panic!("{name}"));
        let words = view.data().as_chunks::<4>().0;
        (view.shape().to_vec(), words.to_vec())
    }

    pub(crate) fn floats(&self, name: &str) -> Array {
        let (shape, words) = self.words(name);
        let values = words.into_iter().map(f32::from_le_bytes).collect();
        Array { shape, values }
    }

    fn integers(&self, name: &str) -> Vec<i32> {
        let words = self.words(name).1.into_iter();
        words.map(i32::from_le_bytes).collect()
    }

    /// Returns the names of arrays that begin with `prefix`, without it.
    pub(crate) fn names(&self, prefix: &str) -> Vec<String> {
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let names = file.names().into_iter();
        let mut rest: Vec<_> = names.filter_map(|name| name.strip_prefix(prefix)).collect();
        rest.sort_unstable();
        rest.into_iter().map(str::to_owned).collect()
    }

    pub(crate) fn positions(&self) -> Vec<[usize; 4]> {
        let positions = self.integers("positions");
        let positions = positions.as_chunks::<4>().0.iter();
        positions.map(|at| at.map(|x| x as usize)).collect()
    }

    /// Returns the ids of the prompt's tokens, and 0 for image rows.
    pub(crate) fn tokens(&self) -> Vec<u32> {
        let tokens = self.integers("tokens").into_iter();
        tokens.map(|id| id.max(0) as u32).collect()
    }

    pub(crate) fn generated(&self) -> Vec<u32> {
        let tokens = self.integers("generated").into_iter();
        tokens.map(|id| id as u32).collect()
    }

    fn text(&self, key: &str) -> &str {
        self.about[key].as_str().unwrap()
    }

    /// Opens the text model and the vision encoder.
    pub(crate) fn models(&self) -> [Gguf; 2] {
        let model = match self.folder.ends_with("q25") {
            true => "vl-q25",
            false => "vl-a",
        };
        let open = |what: &str, kind: &str| {
            let path = self.folder.join(format!("{model}-{what}-{kind}.gguf"));
            Gguf::open(&path, &OpenOptions::default()).unwrap()
        };
        [
            open("text", self.text("text")),
            open("mmproj", self.text("mmproj")),
        ]
    }

    fn chunks(&self) -> &[Value] {
        self.about["chunks"].as_array().unwrap()
    }

    /// Returns the sides of each image, in pixels.
    fn sizes(&self) -> Vec<[usize; 2]> {
        let chunks = self.chunks().iter();
        let sizes = chunks.filter_map(|chunk| chunk["resized"].as_array());
        sizes
            .map(|size| [0, 1].map(|i| size[i].as_u64().unwrap() as usize))
            .collect()
    }

    pub(crate) fn n_images(&self) -> usize {
        self.sizes().len()
    }

    /// Reads an image; the golden may store the bytes before normalisation.
    pub(crate) fn image(&self, index: usize) -> Image {
        let [width, height] = self.sizes()[index];
        let name = format!("image{index}.pixels");
        let file = SafeTensors::deserialize(&self.bytes).unwrap();
        let values = match file.tensor(&format!("{name}_u8")) {
            Ok(view) => self.normalised(view.data()),
            Err(_) => self.floats(&name).values,
        };
        assert_eq!(values.len(), 3 * width * height);
        Image {
            width,
            height,
            values,
        }
    }

    fn normalised(&self, bytes: &[u8]) -> Vec<f32> {
        let [_, mmproj] = self.models();
        let key = |key: &str| {
            let array = mmproj
                .array(&format!("clip.vision.{key}"))
                .unwrap()
                .unwrap();
            array.f32s().unwrap().collect::<Vec<f32>>()
        };
        let (mean, std) = (key("image_mean"), key("image_std"));
        let planes = bytes.chunks(bytes.len() / 3).enumerate();
        let values = planes.flat_map(|(colour, plane)| {
            let (mean, std) = (mean[colour], std[colour]);
            plane
                .iter()
                .map(move |&byte| (f32::from(byte) / 255.0 - mean) / std)
        });
        values.collect()
    }

    /// Returns llama.cpp's rows of an image.
    pub(crate) fn rows(&self, index: usize) -> ImageRows {
        let [_, mmproj] = self.models();
        let patch = mmproj.u32("clip.vision.patch_size").unwrap().unwrap() as usize;
        let [nx, ny] = self.sizes()[index].map(|side| side / (2 * patch));
        let embd = self.floats(&format!("image{index}.embd"));
        assert_eq!(embd.shape[0], nx * ny);
        let rows = embd.values.into_iter().map(f64::from).collect();
        ImageRows::new(nx, ny, rows).unwrap()
    }

    pub(crate) fn all_rows(&self) -> Vec<ImageRows> {
        (0..self.n_images()).map(|index| self.rows(index)).collect()
    }

    /// Returns the prompt: `tokens` are this case's, possibly followed by more.
    pub(crate) fn pieces<'p>(&self, tokens: &'p [u32], images: &'p [ImageRows]) -> Vec<Piece<'p>> {
        let (mut rest, mut images) = (tokens, images.iter());
        let mut pieces = Vec::new();
        for chunk in self.chunks() {
            let n = |key: &str| chunk[key].as_u64().map(|n| n as usize);
            let (piece, behind) = match n("text") {
                Some(n) => {
                    let (tokens, behind) = rest.split_at(n);
                    (Piece::Tokens(tokens), behind)
                }
                None => {
                    let image = images.next().unwrap();
                    (Piece::Image(image), &rest[n("image").unwrap()..])
                }
            };
            pieces.push(piece);
            rest = behind;
        }
        pieces.push(Piece::Tokens(rest));
        pieces
    }
}
