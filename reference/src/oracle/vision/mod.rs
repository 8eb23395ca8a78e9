//! The vision towers of Qwen3-VL and Qwen2.5-VL, with the projector behind them: from normalised
//! pixels to the rows that the text model is given.
//!
//! The formulas are those of llama.cpp's libmtmd without what ggml rounds: it computes the patches'
//! products from f16 pixels and kernels, and GELU by a table of f16. So its results are within an
//! NMSE of 2e-6 of these.

mod blocks;
mod hparams;
mod layout;
mod patches;
mod prepare;
mod projector;

use super::weights::Weights;
use super::{ImageRows, Tap};
use crate::Error;
use gguf_rs_lite::{Gguf, TensorInfo};
use hparams::Hparams;
use layout::Layout;
pub use prepare::{Prepared, Rgb};

/// A file of a vision tower (llama.cpp's `mmproj`), opened for the plain f64 forward pass.
#[derive(Debug)]
pub struct VisionOracle<'a> {
    gguf: &'a Gguf,
    hparams: Hparams,
}

/// An image as the tower takes it: scaled to its size, and normalised.
#[derive(Debug, Clone, Copy)]
pub struct Pixels<'p> {
    /// Of a row.
    pub width: usize,
    /// Rows.
    pub height: usize,
    /// `(3, height, width)`: planes of red, green and blue.
    pub values: &'p [f32],
}

/// One image on its way through the tower.
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

    /// `W · x + b`.
    fn linear(
        &self,
        tensor: &str,
        n_in: usize,
        n_out: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let mut y = self.product(tensor, n_in, n_out, x)?;
        self.add_bias(tensor, n_out, &mut y)?;
        Ok(y)
    }

    fn product(
        &self,
        tensor: &str,
        n_in: usize,
        n_out: usize,
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let name = format!("{tensor}.weight");
        Ok(self.weights.matrix(&name, n_in, n_out)?.times(x))
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
    /// Reads the hyperparameters and checks that every tensor of the tower is one that the forward
    /// pass applies, with the dims that they imply. Tensors of an audio encoder in the same file
    /// are left alone.
    ///
    /// # Errors
    /// Names the key or tensor that is missing, misshapen or unknown.
    pub fn open(gguf: &'a Gguf) -> Result<Self, Error> {
        let hparams = Hparams::read(gguf)?;
        let oracle = Self { gguf, hparams };
        oracle.check_tensors()?;
        Ok(oracle)
    }

    /// Width of the text model that the projector is for.
    pub fn text_width(&self) -> usize {
        self.hparams.n_projected
    }

    /// How many blocks have rows of their own for the text model's first layers.
    pub fn n_deepstack(&self) -> usize {
        self.hparams.deepstack.len()
    }

    /// An image's sides are multiples of so many pixels.
    pub fn side_unit(&self) -> usize {
        2 * self.hparams.patch
    }

    /// The rows of an image: one for every two by two patches, `text_width *
    /// (1 + n_deepstack)` wide.
    ///
    /// # Errors
    /// The image's sides are no multiples of [`VisionOracle::side_unit`], there are not as many
    /// pixels as they say, or a tensor cannot be dequantized.
    pub fn encode(&self, pixels: Pixels<'_>) -> Result<ImageRows, Error> {
        self.encode_tapped(pixels, &mut |_, _, _, _| {})
    }

    /// [`VisionOracle::encode`], showing every intermediate to `tap` by llama.cpp's name and the
    /// number of its block, in the order in which llama.cpp computes them. What the tap writes
    /// there is what the pass goes on with. Rows are patches in the tower's order: two by two, and
    /// where it has windows, these one after another. Behind the projector they are merged.
    ///
    /// # Errors
    /// As [`VisionOracle::encode`].
    pub fn encode_tapped(&self, pixels: Pixels<'_>, tap: &mut Tap<'_>) -> Result<ImageRows, Error> {
        let layout = self.layout(pixels)?;
        let weights = Weights::new(self.gguf, false);
        let rows = self.pass(&weights, &layout, pixels, tap)?;
        ImageRows::new(layout.nx, layout.ny, rows)
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
        let side = self.hparams.windows.map(|windows| windows.side);
        Ok(Layout::new(width / unit, height / unit, side))
    }

    /// The pass, from pixels to rows of the text model,
    /// `(ny * nx, text_width * (1 + n_deepstack))`.
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

    /// As the text model's oracle does it: a pass over no patches, with weights that are checked
    /// but not read.
    fn check_tensors(&self) -> Result<(), Error> {
        let weights = Weights::new(self.gguf, true);
        let nothing = Pixels {
            width: 0,
            height: 0,
            values: &[],
        };
        let layout = Layout::new(0, 0, None);
        self.pass(&weights, &layout, nothing, &mut |_, _, _, _| {})?;
        let used = weights.used.into_inner();
        let audio = |name: &str| name.starts_with("a.") || name.starts_with("mm.a.");
        let unused = |info: &&TensorInfo| !used.contains(&info.name) && !audio(&info.name);
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
