//! Vision encoders with their projectors: from normalised pixels to rows of the text model.
//!
//! The formulas are those of llama.cpp's libmtmd without ggml's rounding: it computes the patches'
//! products from f16 pixels and kernels, and GELU by a table of f16. Its results are therefore
//! within an NMSE of 2e-6 of these.

mod blocks;
mod hparams;
mod layout;
mod patches;
mod prepare;
mod projector;
mod tiles;

use super::weights::Weights;
use super::{ImageRows, Tap};
use crate::Error;
use gguf_rs_lite::{Gguf, TensorInfo};
use hparams::{Hparams, Kind};
use layout::Layout;
pub use prepare::{Prepared, Rgb};

/// A file of a vision encoder (llama.cpp's `mmproj`), opened for the plain f64 forward pass.
#[derive(Debug)]
pub struct VisionOracle<'a> {
    gguf: &'a Gguf,
    hparams: Hparams,
}

/// An encoder's input: an image resized and normalised.
#[derive(Debug, Clone, Copy)]
pub struct Pixels<'p> {
    /// Pixels per row.
    pub width: usize,
    /// Number of rows.
    pub height: usize,
    /// `(3, height, width)`: planes of red, green and blue.
    pub values: &'p [f32],
}

/// State of a pass over one image.
struct Tower<'w, 't> {
    hp: &'w Hparams,
    weights: &'w Weights<'w>,
    layout: &'w Layout,
    tap: &'w mut Tap<'t>,
}

impl Tower<'_, '_> {
    fn tap(&mut self, name: &str, block: Option<usize>, width: usize, x: &mut [f64]) {
        (self.tap)(name, block, width, x);
    }

    /// Computes `W · x + b`.
    fn linear(
        &self,
        tensor: &str,
        n_in: usize,
        n_out: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let mut y = self.product(tensor, n_in, n_out, x)?;
        if self.has_bias(tensor) {
            self.add_bias(tensor, n_out, &mut y)?;
        }
        Ok(y)
    }

    /// Returns whether a product has a bias: those of some blocks always do, others may.
    fn has_bias(&self, tensor: &str) -> bool {
        let of_block = tensor.starts_with("v.");
        match of_block || self.hp.kind.is_qwen() {
            true => self.hp.kind.has_biases() || tensor == "v.patch_embd",
            false => self.weights.has(&format!("{tensor}.bias")),
        }
    }

    fn product(
        &self,
        tensor: &str,
        n_in: usize,
        n_out: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let name = format!("{tensor}.weight");
        let matrix = self.weights.matrix(&name, n_in, n_out)?;
        let input = self.clamped(tensor, "input", x)?;
        self.clamped(tensor, "output", &matrix.times(&input))
    }

    /// Clamps inputs or outputs of a product to the bounds that Gemma 4's files may have for them.
    fn clamped(&self, tensor: &str, what: &str, x: &[f64]) -> Result<Vec<f64>, Error> {
        if !matches!(self.hp.kind, Kind::Gemma4 | Kind::Gemma4Unified) {
            return Ok(x.to_vec());
        }
        let bound = |end: &str, without: f64| {
            let bound = self.weights.vector(&format!("{tensor}.{what}_{end}"), 1)?;
            let bound = bound.as_ref().and_then(|bound| bound.first());
            Ok::<_, Error>(bound.copied().unwrap_or(without))
        };
        let low = bound("min", f64::NEG_INFINITY)?;
        let high = bound("max", f64::INFINITY)?;
        Ok(x.iter().map(|x| x.max(low).min(high)).collect())
    }

    fn add_bias(&self, tensor: &str, width: usize, x: &mut [f64]) -> Result<(), Error> {
        let bias = self
            .weights
            .required_vector(&format!("{tensor}.bias"), width)?;
        super::math::add_bias(x, &bias);
        Ok(())
    }
}

impl<'a> VisionOracle<'a> {
    /// Reads the hyperparameters and checks that the forward pass uses every tensor of the encoder,
    /// with the dims that they imply. Tensors of an audio encoder in the same file are ignored.
    ///
    /// # Errors
    /// Names the key or tensor that is missing, misshapen or unknown.
    pub fn open(gguf: &'a Gguf) -> Result<Self, Error> {
        let hparams = Hparams::read(gguf)?;
        let oracle = Self { gguf, hparams };
        oracle.check_tensors()?;
        Ok(oracle)
    }

    /// Returns the embedding width of the text model that the projector is for.
    pub fn text_width(&self) -> usize {
        self.hparams.n_projected
    }

    /// Returns the number of blocks with an additional projection for the text model's first
    /// layers.
    pub fn n_deepstack(&self) -> usize {
        self.hparams.deepstack.len()
    }

    /// Returns the required divisor of an image's sides, in pixels; where all images have one size,
    /// their side.
    pub fn side_unit(&self) -> usize {
        let hp = &self.hparams;
        hp.image_size.unwrap_or(hp.merge * hp.patch)
    }

    /// Returns the rows of an image or a tile: one for every square of patches, `text_width * (1 +
    /// n_deepstack)` wide, and one after every line of them but the last in Pixtral's.
    ///
    /// # Errors
    /// The image's sides are not multiples of [`VisionOracle::side_unit`], they contradict the
    /// number of pixels, or a tensor cannot be dequantized.
    pub fn encode(&self, pixels: Pixels<'_>) -> Result<ImageRows, Error> {
        self.encode_tapped(pixels, &mut |_, _, _, _| {})
    }

    /// Does the same as [`VisionOracle::encode`], and passes every intermediate to `tap` with
    /// llama.cpp's name and its block number, in llama.cpp's order. The pass continues with any
    /// values the tap writes. Rows are patches in the encoder's order: 2 x 2, and with windows,
    /// window by window. After the projector they are merged.
    ///
    /// # Errors
    /// As [`VisionOracle::encode`].
    pub fn encode_tapped(&self, pixels: Pixels<'_>, tap: &mut Tap<'_>) -> Result<ImageRows, Error> {
        let layout = self.layout(pixels)?;
        let weights = Weights::new(self.gguf, false);
        let rows = self.pass(&weights, &layout, pixels, tap)?;
        match self.hparams.kind {
            Kind::Pixtral => ImageRows::new(rows.len() / self.text_width(), 1, rows),
            _ => ImageRows::new(layout.nx, layout.ny, rows),
        }
    }

    fn layout(&self, pixels: Pixels<'_>) -> Result<Layout, Error> {
        let unit = self.side_unit();
        let (width, height) = (pixels.width, pixels.height);
        let whole = |side: usize| side > 0 && side.is_multiple_of(unit);
        if !whole(width) || !whole(height) {
            return Err(Error::Image {
                expected: format!("sides that are multiples of {unit} pixels"),
                got: format!("{width}x{height}"),
            });
        }
        let expected = width.saturating_mul(height).saturating_mul(3);
        if pixels.values.len() != expected {
            return Err(Error::Length {
                what: "pixels",
                expected,
                got: pixels.values.len(),
            });
        }
        let (hp, side) = (
            &self.hparams,
            self.hparams.windows.map(|windows| windows.side),
        );
        let sides = match hp.image_size {
            Some(size) if [width, height] != [size; 2] => {
                return Err(Error::Image {
                    expected: format!("{size}x{size}"),
                    got: format!("{width}x{height}"),
                });
            }
            Some(size) => [size / hp.patch / hp.merge; 2],
            None => [width / unit, height / unit],
        };
        Ok(Layout::new(sides, hp.merge, side))
    }

    /// Runs the pass, from pixels to rows of the text model, `(ny * nx, text_width * (1 +
    /// n_deepstack))`.
    fn pass(
        &self,
        weights: &Weights<'_>,
        layout: &Layout,
        pixels: Pixels<'_>,
        tap: &mut Tap<'_>,
    ) -> Result<Vec<f64>, Error> {
        let mut tower = Tower {
            hp: &self.hparams,
            weights,
            layout,
            tap,
        };
        let mut x = tower.embed(pixels)?;
        let mut kept = Vec::new();
        for block in 0..self.hparams.n_block {
            tower.block(block, &mut x)?;
            if self.hparams.deepstack.contains(&block) {
                kept.push((block, x.clone()));
            }
        }
        tower.project(&x, &kept)
    }

    /// Checks the tensors like the text model's oracle: a pass over no patches, with weights that
    /// are checked but not read.
    fn check_tensors(&self) -> Result<(), Error> {
        let weights = Weights::new(self.gguf, true);
        let nothing = Pixels {
            width: 0,
            height: 0,
            values: &[],
        };
        let layout = Layout::new([0, 0], self.hparams.merge, None);
        self.pass(&weights, &layout, nothing, &mut |_, _, _, _| {})?;
        let used = weights.used.into_inner();
        let audio = |name: &str| name.starts_with("a.") || name.starts_with("mm.a.");
        let not_run = format!("v.blk.{}.", self.hparams.n_block);
        let left_out = |name: &str| {
            let of_llava = name.starts_with(&not_run) || name == "v.image_newline";
            audio(name) || self.hparams.kind == Kind::Llava && of_llava
        };
        let unused = |info: &&TensorInfo| !used.contains(&info.name) && !left_out(&info.name);
        match self.gguf.tensors().iter().find(unused) {
            None => Ok(()),
            Some(info) => Err(Error::UnusedTensor {
                file: self.gguf.name().into(),
                tensor: info.name.clone(),
                architecture: self.hparams.kind.name(),
            }),
        }
    }
}
