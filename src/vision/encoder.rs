//! Runs a vision encoder on a device: from pixels to the embeddings of an image's tokens.

use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::backend::cuda::Limits;
use octavo_engine::backend::{Backend, Phase, Step, StepSequence, TapSink};
use octavo_engine::{EncodedImage, EngineOptions, LoadingSink, Placement};
use octavo_kernels::{EmbeddingRows, KvType, MERGED_ROWS, PAGE_POSITIONS, PromptBits};

use crate::Error;
use crate::pixels::{Pixels, TokenLimits};
use crate::tower::{Layout, Tower};

/// Embeddings of an image's tokens.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageEmbeddings {
    /// Image tokens per row.
    pub nx: usize,
    /// Rows of image tokens.
    pub ny: usize,
    /// `[ny][nx][width]`, with the vision encoder's output width.
    pub rows: Vec<f32>,
}

impl ImageEmbeddings {
    /// Converts them to the engine's input; `digest` identifies the image.
    pub fn image(self, digest: [u8; 32]) -> EncodedImage {
        EncodedImage {
            nx: self.nx,
            ny: self.ny,
            rows: self.rows,
            digest,
        }
    }
}

/// Returns the limits a backend must support: one step, with an image of at most `max_image_tokens`
/// tokens.
pub fn limits(max_image_tokens: usize) -> Limits {
    let patches = max_image_tokens * MERGED_ROWS;
    Limits {
        rows: patches,
        outputs: patches,
        sequences: 1,
        positions: patches,
        n_pages: patches.div_ceil(PAGE_POSITIONS),
        states: 0,
    }
}

/// A vision encoder, prepared on a device.
pub struct Encoder {
    tower: Tower,
    file: String,
    backend: Box<dyn Backend>,
    max_image_tokens: usize,
}

impl Encoder {
    /// Prepares a vision encoder for images of up to `max_image_tokens` tokens, on the device of
    /// the options.
    ///
    /// # Errors
    /// If the file is not a supported vision encoder, or its device or memory is not available.
    pub fn load(
        gguf: &Arc<Gguf>,
        options: &EngineOptions,
        max_image_tokens: usize,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Encoder, Error> {
        let options = EngineOptions {
            kv_type: KvType::F32.both(),
            prompt_bits: PromptBits::Sixteen,
            ..options.clone()
        };
        Encoder::load_on(gguf, max_image_tokens, |tower| {
            let placement = Placement::new(&options, &limits(max_image_tokens))?;
            placement.prepare(gguf, tower, sink)
        })
    }

    /// Opens and prepares the vision encoder of a GGUF file or a Hugging Face folder, for images
    /// within these limits.
    ///
    /// # Errors
    /// As [`Encoder::load`], and those of opening.
    pub fn open(
        path: &Path,
        options: &EngineOptions,
        token_limits: TokenLimits,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Encoder, Error> {
        let mapped = OpenOptions {
            mmap: options.mmap,
            ..OpenOptions::default()
        };
        let gguf = match path.is_dir() {
            true => octavo_hf::open_tower(path, &mapped).map_err(octavo_engine::Error::from)?,
            false => Gguf::open(path, &mapped)?,
        };
        Encoder::load(
            &Arc::new(gguf),
            options,
            token_limits.max_image_tokens(),
            sink,
        )
    }

    /// As [`Encoder::load`], on the backend that `prepare` makes, which must support [`limits`].
    ///
    /// # Errors
    /// If the file is not a supported vision encoder, and those of `prepare`.
    pub fn load_on(
        gguf: &Gguf,
        max_image_tokens: usize,
        prepare: impl FnOnce(&Tower) -> Result<Box<dyn Backend>, octavo_engine::Error>,
    ) -> Result<Encoder, Error> {
        let tower = Tower::load(gguf)?;
        let backend = prepare(&tower)?;
        Ok(Encoder {
            tower,
            file: gguf.name().to_owned(),
            backend,
            max_image_tokens,
        })
    }

    /// Returns the name of the encoder's file.
    pub fn file(&self) -> &str {
        &self.file
    }

    /// Describes the backend, for people.
    pub fn describe(&self) -> String {
        self.backend.describe()
    }

    /// Returns the loaded vision encoder.
    pub fn tower(&self) -> &Tower {
        &self.tower
    }

    /// Computes the embeddings of an image; `tap` gets every named value, with patches in the
    /// encoder's order.
    ///
    /// # Errors
    /// If the sides are not whole image tokens, there are more tokens than
    /// `max_image_tokens`, or the device fails.
    ///
    /// # Panics
    /// If the planes do not match the sides.
    pub fn encode(
        &mut self,
        pixels: Pixels<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<ImageEmbeddings, Error> {
        let Pixels {
            width,
            height,
            planes,
        } = pixels;
        let h = &self.tower.hparams;
        let unit = h.unit();
        let is_whole = |side: usize| side > 0 && side.is_multiple_of(unit);
        if !is_whole(width) || !is_whole(height) {
            return Err(Error::Sides {
                width,
                height,
                unit,
            });
        }
        assert_eq!(planes.len(), 3 * width * height, "pixels of an image");
        let (nx, ny) = (width / unit, height / unit);
        if nx * ny > self.max_image_tokens {
            return Err(Error::TooManyImageTokens {
                got: nx * ny,
                most: self.max_image_tokens,
            });
        }
        let layout = self.tower.layout(nx, ny);
        let rows = self.run(&layout, planes, tap)?;
        Ok(ImageEmbeddings { nx, ny, rows })
    }

    fn run(
        &mut self,
        layout: &Layout,
        planes: &[f32],
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<Vec<f32>, Error> {
        let width = self.tower.width();
        let rows = self.rows(layout, planes, tap)?;
        let rows = layout.in_raster_order(rows, width);
        self.backend.release_scratch();
        Ok(rows)
    }

    /// Returns the encoder's rows in its own order. The step's inputs are dropped before the caller
    /// copies the rows: for a large image they are 100 MB and more.
    fn rows(
        &mut self,
        layout: &Layout,
        planes: &[f32],
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<&[f32], Error> {
        let n = layout.places.len();
        let positions = self.tower.positions.as_ref();
        let positions = positions.map(|table| table.rows(layout));
        let embedding_inputs = positions
            .as_deref()
            .map(|rows| EmbeddingRows { first: 0, rows });
        // patches have no token ids
        let tokens = vec![0; n];
        let pages: Vec<u32> = (0..n.div_ceil(PAGE_POSITIONS) as u32).collect();
        let seqs = [StepSequence {
            tokens: &tokens,
            tables: &[&pages],
            outputs: 0..n,
            rope_positions: &layout.rope_positions(),
            embedding_inputs: embedding_inputs.as_slice(),
            blocks: &layout.windows,
            ..StepSequence::default()
        }];
        let step = Step {
            phase: Phase::Prefill,
            seqs: &seqs,
            input: &layout.pixels(planes, self.tower.hparams.patch),
        };
        Ok(self.backend.step(&step, tap)?)
    }
}
