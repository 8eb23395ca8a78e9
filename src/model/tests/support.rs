//! Builds small files, and opens the shared models.

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_model::{Error, Model};

pub(crate) use octavo_fixtures::shared;
pub(crate) use octavo_fixtures::tiny::{File, Val};

/// Loads a file that exists only in memory.
pub(crate) trait Load {
    fn load(&self) -> Result<Model, Error>;

    /// Returns the error of a file that must not load, as text.
    fn error(&self) -> String {
        match self.load() {
            Ok(_) => panic!("the file loads"),
            Err(e) => e.to_string(),
        }
    }
}

impl Load for File {
    fn load(&self) -> Result<Model, Error> {
        Model::load(&self.gguf())
    }
}

pub(crate) fn open_shared(model: &str) -> Option<Gguf> {
    let path = shared(&format!("models/{model}.gguf"))?;
    Some(Gguf::open(&path, &OpenOptions::default()).expect("a shared model"))
}
