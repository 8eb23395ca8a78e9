//! Where models come from.

use std::path::PathBuf;

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue};

use crate::Error;
use crate::demo::demo_model;
use crate::hf;

/// Where a model comes from.
#[derive(Clone, Debug)]
pub enum ModelSource {
    /// A GGUF file, of a split model its first part; or a Hugging Face folder.
    Path(PathBuf),
    /// The model inside the program.
    Demo,
    /// Another source whose keys have other values, for files that say something wrong. A key that
    /// begins with a dot belongs to the architecture: `.rope.freq_base` is `llama.rope.freq_base`.
    Changed {
        /// What is changed.
        source: Box<ModelSource>,
        /// The keys, and their new values.
        keys: Vec<(String, OwnedValue)>,
    },
}

impl ModelSource {
    /// Opens the container.
    ///
    /// # Errors
    /// If it is not a sound GGUF file or folder.
    pub fn open(&self, mmap: bool) -> Result<Gguf, Error> {
        let options = OpenOptions {
            mmap,
            ..OpenOptions::default()
        };
        Ok(match self {
            ModelSource::Path(path) if path.is_dir() => hf::open(path, &options)?,
            ModelSource::Path(path) => Gguf::open(path, &options)?,
            ModelSource::Demo => Gguf::from_bytes(demo_model(), "built-in demo model", &options)?,
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
