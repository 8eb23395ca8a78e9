//! Image input of a text model: from the bytes of an image file to image tokens in its prompts.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use octavo_engine::{Engine, Picture, Shown};
use octavo_model::Hparams;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::encoder::Encoder;
use crate::pixels::{Limits, Prepared, TokenLimits, decode};

/// Maximum bytes of embeddings of recent images in the cache.
const KEPT_BYTES: usize = 256 << 20;

/// A vision encoder for a text model, which need not be loaded.
pub struct Viewer {
    encoder: Encoder,
    decoding: Limits,
    cells: TokenLimits,
}

impl Viewer {
    /// Creates it for the text model with these hyperparameters, in this file.
    ///
    /// # Errors
    /// If the model takes no images, or the encoder is for another model.
    pub fn new(
        file: &str,
        hparams: &Hparams,
        encoder: Encoder,
        decoding: Limits,
        cells: TokenLimits,
    ) -> Result<Viewer, Error> {
        let (expected, got) = (hparams.picture_width(), encoder.tower().width());
        if expected == 0 {
            return Err(Error::ReadsText {
                file: file.to_owned(),
                arch: hparams.arch.name(),
            });
        }
        if expected != got {
            return Err(Error::OtherModel {
                file: encoder.file().to_owned(),
                n_embd: hparams.n_embd(),
                deepstack: hparams.n_deepstack,
                expected,
                got,
            });
        }
        Ok(Viewer {
            encoder,
            decoding,
            cells,
        })
    }

    /// Decodes an image file and returns the embeddings of its tokens.
    ///
    /// # Errors
    /// If it cannot be decoded within the limits, or the encoder fails.
    pub fn look(&mut self, file: &[u8]) -> Result<Picture, Error> {
        self.compute(file, digest(file))
    }

    fn compute(&mut self, file: &[u8], digest: [u8; 32]) -> Result<Picture, Error> {
        let picture = decode(file, &self.decoding)?;
        let prepared = Prepared::new(&picture, &self.encoder.tower().hparams, self.cells)?;
        drop(picture);
        let cells = self.encoder.encode(prepared.pixels(), None)?;
        Ok(cells.picture(digest))
    }
}

/// Returns the SHA-256 of an image file, its cache key.
fn digest(file: &[u8]) -> [u8; 32] {
    Sha256::digest(file).into()
}

/// A vision encoder for a loaded text model, with a cache of recent images.
pub struct Sight {
    engine: Engine,
    viewer: Mutex<Viewer>,
    most_bytes: usize,
    cells: TokenLimits,
    /// Cached images, the most recently used last.
    seen: Mutex<VecDeque<Seen>>,
}

struct Seen {
    digest: [u8; 32],
    shown: Shown,
}

impl std::fmt::Debug for Sight {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let cells = &self.cells;
        f.debug_struct("Sight")
            .field("cells", cells)
            .finish_non_exhaustive()
    }
}

impl Sight {
    /// Creates it for a text model.
    ///
    /// # Errors
    /// If the encoder is for another model.
    pub fn new(
        engine: &Engine,
        encoder: Encoder,
        decoding: Limits,
        cells: TokenLimits,
    ) -> Result<Sight, Error> {
        let (file, hparams) = (engine.gguf().name(), engine.hparams());
        let viewer = Viewer::new(file, hparams, encoder, decoding, cells)?;
        Ok(Sight {
            engine: engine.clone(),
            viewer: Mutex::new(viewer),
            most_bytes: decoding.bytes,
            cells,
            seen: Mutex::default(),
        })
    }

    /// Returns the engine of the text model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the maximum bytes of an image file.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// Registers the image of a file with the engine, encoding it unless it is cached.
    ///
    /// # Errors
    /// If it cannot be decoded within the limits, or the encoder fails.
    pub fn see(&self, file: &[u8]) -> Result<Shown, Error> {
        let digest = digest(file);
        if let Some(shown) = self.seen_before(&digest) {
            return Ok(shown);
        }
        let mut viewer = self.viewer.lock().unwrap_or_else(PoisonError::into_inner);
        let picture = viewer.compute(file, digest)?;
        drop(viewer);
        let shown = self.engine.show(picture)?;
        self.keep(digest, &shown);
        Ok(shown)
    }

    fn seen_before(&self, digest: &[u8; 32]) -> Option<Shown> {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let at = seen.iter().position(|seen| seen.digest == *digest)?;
        let again = seen.remove(at)?;
        let shown = again.shown.clone();
        seen.push_back(again);
        Some(shown)
    }

    fn keep(&self, digest: [u8; 32], shown: &Shown) {
        let mut seen = self.seen.lock().unwrap_or_else(PoisonError::into_inner);
        let shown = shown.clone();
        seen.push_back(Seen { digest, shown });
        let bytes = |seen: &Seen| size_of_val(&seen.shown.picture().rows[..]);
        let mut all: usize = seen.iter().map(bytes).sum();
        while all > KEPT_BYTES
            && let Some(oldest) = seen.pop_front()
        {
            all -= bytes(&oldest);
        }
    }
}
