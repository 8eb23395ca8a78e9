//! Opens a model in one line, or with options and a progress report.

use std::path::Path;

use octavo_kernels::KvTypes;

use crate::backend::Loading;
use crate::engine::Engine;
use crate::error::Error;
use crate::options::{DeviceChoice, EngineOptions};
use crate::source::ModelSource;

impl Engine {
    /// Opens a model with default options: a GGUF file, the first shard of a split one, or a
    /// Hugging Face folder.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn open(path: impl AsRef<Path>) -> Result<Engine, Error> {
        Engine::builder().open(path)
    }

    /// Starts to open a model with options.
    pub fn builder() -> EngineBuilder<'static> {
        EngineBuilder {
            options: EngineOptions::default(),
            progress: Box::new(|_| {}),
        }
    }
}

/// Options with which a model is opened, and the receiver of its progress.
pub struct EngineBuilder<'a> {
    options: EngineOptions,
    progress: Box<dyn FnMut(Loading<'_>) + 'a>,
}

impl<'a> EngineBuilder<'a> {
    /// Sets all options at once, those without a method here included.
    #[must_use]
    pub fn options(self, options: EngineOptions) -> Self {
        EngineBuilder { options, ..self }
    }

    /// Sets the device to run on; a GPU if there is one, by default.
    #[must_use]
    pub fn device(mut self, device: DeviceChoice) -> Self {
        self.options.device = device;
        self
    }

    /// Sets the number of threads; [`crate::default_threads`] by default.
    #[must_use]
    pub fn threads(mut self, threads: usize) -> Self {
        self.options.threads = Some(threads);
        self
    }

    /// Sets the context length of a sequence in tokens; the smaller of the file's own and
    /// [`crate::DEFAULT_CONTEXT`] by default.
    #[must_use]
    pub fn context(mut self, tokens: usize) -> Self {
        self.options.ctx = Some(tokens);
        self
    }

    /// Sets the maximum number of sequences that run at once; 1 by default.
    #[must_use]
    pub fn sessions(mut self, sessions: usize) -> Self {
        self.options.sessions = sessions;
        self
    }

    /// Sets the element types of the KV cache; f16 by default.
    #[must_use]
    pub fn kv_type(mut self, types: impl Into<KvTypes>) -> Self {
        self.options.kv_type = types.into();
        self
    }

    /// Reports progress to `progress` while the model is opened.
    #[must_use]
    pub fn progress<'b>(self, progress: impl FnMut(Loading<'_>) + 'b) -> EngineBuilder<'b> {
        EngineBuilder {
            options: self.options,
            progress: Box::new(progress),
        }
    }

    /// Opens a GGUF file, the first shard of a split one, or a Hugging Face folder.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn open(self, path: impl AsRef<Path>) -> Result<Engine, Error> {
        self.open_source(&ModelSource::Path(path.as_ref().to_owned()))
    }

    /// Opens a model of any source.
    ///
    /// # Errors
    /// As [`Engine::load`].
    pub fn open_source(mut self, source: &ModelSource) -> Result<Engine, Error> {
        Engine::load(source, &self.options, &mut *self.progress)
    }
}
