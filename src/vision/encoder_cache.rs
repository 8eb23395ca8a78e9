//! Image input of a text model: from the bytes of an image file to image tokens in its prompts.

use std::collections::VecDeque;
use std::sync::{Mutex, PoisonError};

use octavo_engine::{EncodedImage, Engine, ImageHandle};
use octavo_model::Hparams;
use sha2::{Digest, Sha256};

use crate::Error;
use crate::encoder::Encoder;
use crate::pixels::{Limits, Prepared, TokenLimits, decode};

/// Maximum bytes of embeddings of recent images in the cache.
const MAX_CACHED_BYTES: usize = 256 << 20;

/// A vision encoder for a text model, which need not be loaded.
pub struct ImageEncoder {
    encoder: Encoder,
    decoding: Limits,
    token_limits: TokenLimits,
}

impl ImageEncoder {
    /// Creates it for the text model with these hyperparameters, in this file.
    ///
    /// # Errors
    /// If the model takes no images, or the encoder is for another model.
    pub fn new(
        file: &str,
        hparams: &Hparams,
        encoder: Encoder,
        decoding: Limits,
        token_limits: TokenLimits,
    ) -> Result<ImageEncoder, Error> {
        let (expected, got) = (hparams.image_embedding_width(), encoder.tower().width());
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
        Ok(ImageEncoder {
            encoder,
            decoding,
            token_limits,
        })
    }

    /// Decodes an image file and returns the embeddings of its tokens.
    ///
    /// # Errors
    /// If it cannot be decoded within the limits, or the encoder fails.
    pub fn encode(&mut self, file: &[u8]) -> Result<EncodedImage, Error> {
        self.compute(file, digest(file))
    }

    fn compute(&mut self, file: &[u8], digest: [u8; 32]) -> Result<EncodedImage, Error> {
        let image = decode(file, &self.decoding)?;
        let prepared = Prepared::new(&image, &self.encoder.tower().hparams, self.token_limits)?;
        drop(image);
        self.encoder.image(&prepared, digest)
    }
}

/// Returns the SHA-256 of an image file, its cache key.
fn digest(file: &[u8]) -> [u8; 32] {
    Sha256::digest(file).into()
}

/// A vision encoder for a loaded text model, with a cache of recent images.
pub struct EncoderCache {
    engine: Engine,
    encoder: Mutex<ImageEncoder>,
    most_bytes: usize,
    token_limits: TokenLimits,
    /// Cached images, the most recently used last.
    cached: Mutex<VecDeque<CachedImage>>,
}

struct CachedImage {
    digest: [u8; 32],
    handle: ImageHandle,
}

impl std::fmt::Debug for EncoderCache {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let token_limits = &self.token_limits;
        f.debug_struct("EncoderCache")
            .field("token_limits", token_limits)
            .finish_non_exhaustive()
    }
}

impl EncoderCache {
    /// Creates it for a text model.
    ///
    /// # Errors
    /// If the encoder is for another model.
    pub fn new(
        engine: &Engine,
        encoder: Encoder,
        decoding: Limits,
        token_limits: TokenLimits,
    ) -> Result<EncoderCache, Error> {
        let (file, hparams) = (engine.gguf().name(), engine.hparams());
        let image_encoder = ImageEncoder::new(file, hparams, encoder, decoding, token_limits)?;
        Ok(EncoderCache {
            engine: engine.clone(),
            encoder: Mutex::new(image_encoder),
            most_bytes: decoding.bytes,
            token_limits,
            cached: Mutex::default(),
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
    pub fn register(&self, file: &[u8]) -> Result<ImageHandle, Error> {
        let digest = digest(file);
        if let Some(handle) = self.find(&digest) {
            return Ok(handle);
        }
        let mut image_encoder = self.encoder.lock().unwrap_or_else(PoisonError::into_inner);
        let image = image_encoder.compute(file, digest)?;
        drop(image_encoder);
        let handle = self.engine.register(image)?;
        self.keep(digest, &handle);
        Ok(handle)
    }

    fn find(&self, digest: &[u8; 32]) -> Option<ImageHandle> {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let at = cached.iter().position(|cached| cached.digest == *digest)?;
        let again = cached.remove(at)?;
        let handle = again.handle.clone();
        cached.push_back(again);
        Some(handle)
    }

    fn keep(&self, digest: [u8; 32], handle: &ImageHandle) {
        let mut cached = self.cached.lock().unwrap_or_else(PoisonError::into_inner);
        let handle = handle.clone();
        cached.push_back(CachedImage { digest, handle });
        let bytes = |cached: &CachedImage| size_of_val(&cached.handle.image().rows[..]);
        let mut all: usize = cached.iter().map(bytes).sum();
        while all > MAX_CACHED_BYTES
            && let Some(oldest) = cached.pop_front()
        {
            all -= bytes(&oldest);
        }
    }
}
