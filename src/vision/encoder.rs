//! Runs a vision encoder on a device: from pixels to the embeddings of an image's tokens.

use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_engine::backend::{Backend, Phase, Step, StepSequence, TapSink, TapView};
use octavo_engine::{EncodedImage, EngineOptions, ImagePart, LoadingSink, Placement};
use octavo_kernels::{EmbeddingRows, KvType, PAGE_POSITIONS, PromptBits};

use crate::Error;
use crate::pixels::{Pixels, Prepared, TokenLimits};
use crate::tower::arch::Prompt;
use crate::tower::{Layout, Tower};

/// Embeddings of an image's tokens, or of a tile's.
#[derive(Clone, Debug, PartialEq)]
pub struct ImageEmbeddings {
    /// Image tokens per row.
    pub nx: usize,
    /// Rows of image tokens.
    pub ny: usize,
    /// `[ny][nx][width]`, with the vision encoder's output width, and whatever stands between the
    /// lines.
    pub rows: Vec<f32>,
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
            let placement = Placement::new(&options, &tower.limits(max_image_tokens))?;
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
        let max_image_tokens = Tower::load(&gguf)?.max_image_tokens(token_limits);
        Encoder::load(&Arc::new(gguf), options, max_image_tokens, sink)
    }

    /// As [`Encoder::load`], on the backend that `prepare` makes, which must support
    /// [`Tower::limits`].
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

    /// Computes an image for a text model; `digest` identifies it.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    pub fn image(&mut self, prepared: &Prepared, digest: [u8; 32]) -> Result<EncodedImage, Error> {
        let (mut rows, mut tokens, mut shape) = (Vec::new(), Vec::new(), [0, 0]);
        for tile in &prepared.tiles {
            let embeddings = self.encode(tile.pixels(), None)?;
            tokens.push(embeddings.rows.len() / self.tower.width());
            shape = [embeddings.nx, embeddings.ny];
            rows.extend(embeddings.rows);
        }
        let all = tokens.iter().sum();
        // rows that are no grid are a line
        let [nx, ny] = if shape[0] * shape[1] == all {
            shape
        } else {
            [all, 1]
        };
        let spec = self.tower.spec();
        let text = |text: &str| ImagePart::Text(text.to_owned());
        Ok(EncodedImage {
            nx,
            ny,
            rows,
            digest,
            bidirectional: (spec.bidirectional)(&self.tower.hparams),
            parts: match spec.prompt {
                Prompt::Between([before, after]) => {
                    vec![text(before), ImagePart::Tokens(all), text(after)]
                }
                Prompt::Tiles(parts) => parts(prepared.grid, &tokens),
            },
        })
    }

    /// Computes the embeddings of an image, or of a tile; `tap` gets every named value, with
    /// patches in the encoder's order.
    ///
    /// # Errors
    /// If the sides are not those of whole image tokens or of a tile, there are more tokens than
    /// `max_image_tokens`, or the device fails.
    ///
    /// # Panics
    /// If the planes do not match the sides.
    pub fn encode(
        &mut self,
        pixels: Pixels<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<ImageEmbeddings, Error> {
        let Pixels { width, height, .. } = pixels;
        let layout = self.tower.layout(width, height);
        let layout = layout.ok_or_else(|| match self.tower.hparams.image_size {
            0 => Error::Sides {
                width,
                height,
                unit: self.tower.hparams.unit(),
            },
            side => Error::Square {
                width,
                height,
                side,
            },
        })?;
        assert_eq!(
            pixels.planes.len(),
            3 * width * height,
            "pixels of an image"
        );
        let (nx, ny) = (layout.nx, layout.ny);
        if nx * ny > self.max_image_tokens {
            return Err(Error::TooManyImageTokens {
                got: nx * ny,
                most: self.max_image_tokens,
            });
        }
        let table = self.tower.positions.as_ref();
        let most = table.map_or(usize::MAX, |table| table.most_patches());
        if layout.patches().into_iter().any(|side| side > most) {
            let [width, height] = layout.patches();
            return Err(Error::Positions {
                width,
                height,
                most,
            });
        }
        let rows = self.rows(&layout, pixels, tap)?;
        Ok(ImageEmbeddings { nx, ny, rows })
    }

    /// As [`Encoder::encode`], but `tap` gets patches in the order that llama.cpp has them in.
    ///
    /// # Errors
    /// As [`Encoder::encode`].
    pub fn encode_in_raster_order(
        &mut self,
        pixels: Pixels<'_>,
        tap: &mut TapSink<'_>,
    ) -> Result<ImageEmbeddings, Error> {
        let layout = self.tower.layout(pixels.width, pixels.height);
        let Some(layout) = layout.filter(|_| self.tower.spec().raster) else {
            return self.encode(pixels, Some(tap));
        };
        let order = layout.raster_of_patches();
        let mut reordered = |view: &TapView<'_>| match view.rows == order.len() {
            true => view.reordered(&order, tap),
            false => tap(view),
        };
        self.encode(pixels, Some(&mut reordered))
    }

    fn rows(
        &mut self,
        layout: &Layout,
        pixels: Pixels<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<Vec<f32>, Error> {
        let Encoder { tower, backend, .. } = self;
        let rows = match tap {
            Some(tap) if layout.extra > 0 => {
                let mut shown = |view: &TapView<'_>| show_attended(layout, view, tap);
                step(tower, &mut **backend, layout, pixels, Some(&mut shown))?
            }
            tap => step(tower, &mut **backend, layout, pixels, tap)?,
        };
        let rows = tower.in_order(layout, rows);
        backend.release_scratch();
        Ok(rows)
    }
}

/// Shows a value without the rows that fill up the class row's image token, and after rows are
/// merged without that token.
fn show_attended(layout: &Layout, view: &TapView<'_>, tap: &mut TapSink<'_>) {
    let attended = match view.rows == layout.rows() {
        true => layout.attended_rows(),
        false => layout.nx * layout.ny,
    };
    view.reordered(&(0..attended).collect::<Vec<_>>(), tap);
}

/// Returns the encoder's rows in its own order. The step's inputs are dropped before the caller
/// copies the rows: for a large image they are 100 MB and more.
fn step<'b>(
    tower: &Tower,
    backend: &'b mut dyn Backend,
    layout: &Layout,
    pixels: Pixels<'_>,
    tap: Option<&mut TapSink<'_>>,
) -> Result<&'b [f32], Error> {
    let n = layout.rows();
    let positions = tower.positions.as_ref();
    let positions = positions.map(|table| table.rows(layout));
    let embedding_inputs = positions
        .as_deref()
        .map(|rows| EmbeddingRows { first: 0, rows });
    // patches have no token ids
    let tokens = vec![0; n];
    let pages: Vec<u32> = (0..n.div_ceil(PAGE_POSITIONS) as u32).collect();
    let tables = vec![&pages[..]; backend.cache_groups()];
    let seqs = [StepSequence {
        tokens: &tokens,
        tables: &tables,
        outputs: 0..n,
        rope_positions: &layout.rope_positions(),
        embedding_inputs: embedding_inputs.as_slice(),
        blocks: &layout.windows,
        ..StepSequence::default()
    }];
    let step = Step {
        phase: Phase::Prefill,
        seqs: &seqs,
        input: &tower.patches(layout, pixels),
    };
    Ok(backend.step(&step, tap)?)
}
