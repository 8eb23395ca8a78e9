//! What a text model sees with: from the bytes of an image file to cells of its prompts.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use octavo_engine::{Engine, Picture, Shown};
use octavo_model::Hparams;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::encoder::Encoder;
use crate::pixels::{Limits, Prepared, TokenLimits, decode};

/// Pictures seen lately are kept as long as their rows take no more bytes than this.
const KEPT_BYTES: usize = 256 << 20;

/// A tower for a text model, which need not be loaded.
pub struct Viewer {
    encoder: Encoder,
    decoding: Limits,
    cells: TokenLimits,
}

impl Viewer {
    /// Of the text model with these hyperparameters, in this file, with a tower made for it.
    ///
    /// # Errors
    /// If the model sees nothing, or the tower is for another.
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

    /// What stands for the cells of an image file's picture.
    ///
    /// # Errors
    /// If it cannot be decoded within the bounds, or not be computed.
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

/// What tells an image file from others.
fn digest(file: &[u8]) -> [u8; 32] {
    Sha256::digest(file).into()
}

/// A tower for a text model, and the pictures that it has seen lately.
pub struct Sight {
    engine: Engine,
    viewer: Mutex<Viewer>,
    most_bytes: usize,
    cells: TokenLimits,
    /// The last one seen is the last.
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
    /// Of a text model, with a tower made for it.
    ///
    /// # Errors
    /// If the tower is for another model.
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

    /// The model whose prompts take what is seen.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Bytes that an image file may have.
    pub fn most_bytes(&self) -> usize {
        self.most_bytes
    }

    /// Shows the model an image file's picture.
    ///
    /// # Errors
    /// If it cannot be decoded within the bounds, or not be computed.
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
