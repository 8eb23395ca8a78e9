//! The models of a server, as the program that runs it gives them.

use std::sync::Arc;
use std::time::Duration;

use gguf_rs_lite::Gguf;
use octavo_engine::Engine;

use crate::ModelOptions;

/// A loaded model, and how to serve it.
pub struct LoadedModel {
    /// Its engine.
    pub engine: Engine,
    /// Its options.
    pub options: ModelOptions,
    /// Bytes of memory that it takes: weights and KV cache.
    pub bytes: u64,
}

/// Loads one model, as often as it is wanted. Methods are called on threads that may block.
pub trait ModelLoader: Send + Sync {
    /// Returns the bytes of memory that the model will take: weights and KV cache.
    ///
    /// # Errors
    /// The reason, in one line.
    fn plan(&self) -> Result<u64, String>;

    /// Loads the model.
    ///
    /// # Errors
    /// The reason, in one line.
    fn load(&self) -> Result<LoadedModel, String>;

    /// Opens the model's file to describe it, if it is on this machine.
    ///
    /// # Errors
    /// The reason, in one line.
    fn open(&self) -> Result<Gguf, String>;

    /// Returns a text that changes whenever the model's options do.
    fn options(&self) -> String;
}

/// Finds the models of a server again while it runs, and changes the hub's cache. Methods are
/// called on threads that may block; errors are the reason, in one line.
pub trait ModelSource: Send + Sync {
    /// Returns all models, none of them loaded and none with a name of another.
    ///
    /// # Errors
    /// If a folder, a file or an option is wrong.
    fn find(&self) -> Result<Vec<ModelEntry>, String>;

    /// Downloads a model of the hub into its cache, with its image encoder if there is one.
    /// `report` takes a file, its bytes so far, and all of its bytes if that is known.
    ///
    /// # Errors
    /// If the name is none of the hub's, or the download fails.
    fn download(
        &self,
        name: &str,
        report: &mut dyn FnMut(&str, u64, Option<u64>),
    ) -> Result<(), String>;

    /// Checks that a name is one of the hub's, without asking it.
    ///
    /// # Errors
    /// If it has another form, or none of the models come from the hub.
    fn check(&self, name: &str) -> Result<(), String>;

    /// Deletes a model from the hub's cache; returns whether it was there.
    ///
    /// # Errors
    /// If it cannot be deleted.
    fn delete(&self, name: &str) -> Result<bool, String>;
}

/// A model that is served.
pub struct ModelEntry {
    /// Names that requests may use; the first is the default in answers.
    pub names: Vec<String>,
    /// Loads it; a model without a loader stays loaded.
    pub loader: Option<Arc<dyn ModelLoader>>,
    /// The model, if it is loaded already.
    pub loaded: Option<LoadedModel>,
    /// Whether it is loaded at start, before a request names it.
    pub at_start: bool,
}

/// Limits of the models that are loaded at a time.
#[derive(Clone, Debug)]
pub struct ModelLimits {
    /// Bytes of memory of all of them.
    pub memory: Option<u64>,
    /// Number of models.
    pub models: Option<usize>,
    /// Time without requests after which a model is unloaded.
    pub idle: Option<Duration>,
    /// Whether a request loads the model that it names.
    pub autoload: bool,
}

impl Default for ModelLimits {
    fn default() -> Self {
        ModelLimits {
            memory: None,
            models: None,
            idle: None,
            autoload: true,
        }
    }
}

/// The models of a server.
pub struct Models {
    /// Models, none with a name of another.
    pub entries: Vec<ModelEntry>,
    /// Limits of those that are loaded at a time.
    pub limits: ModelLimits,
    /// Finds the models again, if they may change while the server runs.
    pub source: Option<Arc<dyn ModelSource>>,
}

impl Models {
    /// Returns one model, which stays loaded.
    pub fn one(names: Vec<String>, loaded: LoadedModel) -> Models {
        let entry = ModelEntry {
            names,
            loader: None,
            loaded: Some(loaded),
            at_start: true,
        };
        Models {
            entries: vec![entry],
            limits: ModelLimits::default(),
            source: None,
        }
    }
}
