//! Sources of models.

use std::path::PathBuf;

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue};

use crate::demo::demo_model;
use crate::error::Error;

/// Source of a model.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A GGUF file, of a split model its first shard; or a Hugging Face folder.
    Path(PathBuf),
    /// The demo model that is built into the program.
    Demo,
    /// The MTP layer of another source, as a model of its own.
    MtpLayer(Box<ModelSource>),
    /// An assistant, which drafts tokens for a model by reading its KV cache.
    Assistant {
        /// Source of the assistant.
        assistant: Box<ModelSource>,
        /// Source of the model.
        target: Box<ModelSource>,
    },
    /// Another source with some keys overridden, for files with wrong values. A key that begins
    /// with a dot belongs to the architecture: `.rope.freq_base` is `llama.rope.freq_base`.
    Changed {
        /// Source to override.
        source: Box<ModelSource>,
        /// Keys and their new values.
        keys: Vec<(String, OwnedValue)>,
    },
}

impl ModelSource {
    /// Opens the model file.
    ///
    /// # Errors
    /// If it is not a valid GGUF file or Hugging Face folder.
    pub fn open(&self, mmap: bool) -> Result<Gguf, Error> {
        let options = OpenOptions {
            mmap,
            ..OpenOptions::default()
        };
        Ok(match self {
            ModelSource::Path(path) if path.is_dir() => octavo_hf::open(path, &options)?,
            ModelSource::Path(path) => Gguf::open(path, &options)?,
            ModelSource::Demo => Gguf::from_bytes(demo_model(), "built-in demo model", &options)?,
            ModelSource::Assistant { assistant, .. } => assistant.open(mmap)?,
            ModelSource::MtpLayer(of) => octavo_model::mtp_layer(&of.open(mmap)?)?,
            ModelSource::Changed { source, keys } => {
                let gguf = source.open(mmap)?;
                let architecture = gguf.str("general.architecture")?.unwrap_or_default();
                let full = |(key, value): &(String, OwnedValue)| match key.starts_with('.') {
                    true => (format!("{architecture}{key}"), value.clone()),
                    false => (key.clone(), value.clone()),
                };
                let keys: Vec<_> = keys.iter().map(full).collect();
                gguf.with_keys(keys)?
            }
        })
    }
}
