//! A loaded model: its engine, and all that requests to it share.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use octavo_engine::sample::SamplerDefaults;
use octavo_engine::{Batch, Engine, EngineHandle, Health};
use octavo_grammar::Compiler;
use octavo_text::chat::ChatTemplate;
use octavo_text::tokenizer::Tokenizer;

use crate::error::ApiError;
use crate::fetch::Fetcher;
use crate::metrics::Recorder;
use crate::{Error, ModelOptions, wire};

/// A loaded model. Dropping it ends its engine and frees its memory.
pub(crate) struct Model {
    pub(crate) engine: Engine,
    pub(crate) handle: EngineHandle,
    /// Names that requests may use; the first is the default in answers.
    pub(crate) names: Vec<String>,
    pub(crate) template: Option<ChatTemplate>,
    pub(crate) grammars: Compiler,
    /// Fetcher of remote images, if enabled.
    pub(crate) fetcher: Option<Fetcher>,
    pub(crate) options: ModelOptions,
    /// Sampling settings used where a request gives none.
    pub(crate) sampling: SamplerDefaults,
    pub(crate) metrics: Recorder,
    n_ctx: usize,
    /// Length of the longest token, in bytes.
    longest_token: usize,
    /// Number of requests that run or wait.
    admitted: Arc<AtomicUsize>,
}

impl Model {
    /// Starts the engine's thread.
    ///
    /// # Errors
    /// If the thread cannot be started.
    pub(crate) fn start(
        names: Vec<String>,
        engine: Engine,
        mut options: ModelOptions,
        (metrics, fetcher): (Recorder, Option<Fetcher>),
        warn: &mut dyn FnMut(&str),
    ) -> Result<Model, Error> {
        let template = match (options.template.take(), engine.chat_template()) {
            (Some(template), _) => Some(template),
            (None, Ok(template)) => template,
            (None, Err(error)) => {
                warn(&format!("no chats: {error}"));
                None
            }
        };
        let batch = Batch::new(&engine, options.batch.clone());
        let handle = EngineHandle::spawn(batch).map_err(Error::Thread)?;
        let parts = (template, metrics, fetcher);
        Ok(Model::new(names, (engine, handle), options, parts))
    }

    /// Takes an engine that runs on the thread of the handle.
    pub(crate) fn new(
        names: Vec<String>,
        (engine, handle): (Engine, EngineHandle),
        options: ModelOptions,
        (template, metrics, fetcher): (Option<ChatTemplate>, Recorder, Option<Fetcher>),
    ) -> Model {
        let pages = handle.snapshot().pages;
        let n_pages = pages.free + pages.cached + pages.used;
        let own = options.sampling.clone().or(engine.sampling());
        Model {
            sampling: own.or(&SamplerDefaults::llama_server()),
            n_ctx: engine.n_ctx().min(n_pages * octavo_engine::PAGE_POSITIONS),
            longest_token: longest_token(&engine),
            grammars: Compiler::new(&engine),
            names,
            template,
            fetcher,
            metrics,
            engine,
            handle,
            options,
            admitted: Arc::default(),
        }
    }

    pub(crate) fn tokenizer(&self) -> &Tokenizer {
        self.engine.tokenizer()
    }

    pub(crate) fn n_vocab(&self) -> usize {
        self.engine.hparams().n_vocab()
    }

    /// Returns the context length of a request.
    pub(crate) fn n_ctx(&self) -> usize {
        self.n_ctx
    }

    /// Returns the length in bytes from which a text certainly exceeds the context; `None` if one
    /// token may replace a word of any length.
    pub(crate) fn most_bytes(&self) -> Option<usize> {
        let is_exact = self.tokenizer().model_name() != "bert";
        is_exact.then(|| self.n_ctx.saturating_mul(self.longest_token))
    }

    /// Returns the default model name of answers.
    pub(crate) fn name(&self) -> &str {
        self.names.first().map_or("", String::as_str)
    }

    /// Returns why its engine can take no further step, if that is so.
    pub(crate) fn fault(&self) -> Option<String> {
        match self.handle.health() {
            Health::Broken(why) => Some(why),
            Health::Well | Health::Closing => None,
        }
    }

    /// Admits a request, which then runs or waits until the returned value is dropped. `queue`
    /// requests may wait.
    ///
    /// # Errors
    /// If the limit of admitted requests is reached.
    pub(crate) fn admit_within(&self, queue: usize) -> Result<Admission, ApiError> {
        let most = self.engine.sequences().saturating_add(queue);
        let admission = Admission(Arc::clone(&self.admitted));
        let before = self.admitted.fetch_add(1, Ordering::SeqCst);
        if before >= most {
            return Err(ApiError::busy(format!(
                "{before} requests run or wait already"
            )));
        }
        Ok(admission)
    }
}

fn longest_token(engine: &Engine) -> usize {
    let tokenizer = engine.tokenizer();
    let ids = 0..u32::try_from(engine.hparams().n_vocab()).unwrap_or(u32::MAX);
    let bytes = ids.map(|id| wire::bytes(tokenizer, id).len());
    bytes.max().unwrap_or(0)
}

/// Admission of a request; released when dropped.
pub(crate) struct Admission(Arc<AtomicUsize>);

impl Drop for Admission {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::SeqCst);
    }
}
