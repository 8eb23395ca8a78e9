//! Hugging Face folders: `config.json`, safetensors, `tokenizer.json` or `tokenizer.model`,
//! presented as the GGUF file that they would be converted to.
//!
//! There is one container for everything behind it: hyperparameters, weights, tokenizer, diff and
//! reports read a folder as they read a file, under the names and in the order of llama.cpp's
//! converter (which also permutes the rows of LLaMA's queries and keys, because its RoPE pairs them
//! differently). Plain weights stay where they are, mapped. AWQ weights become rows of 4-bit blocks
//! ([`gguf_rs_lite::TensorType::AWQ_G128`] and its siblings) a few at a time, when a kernel packs
//! them.

mod adapter;
mod awq;
mod config;
mod error;
mod files;
mod generation;
mod json;
mod layout;
mod modules;
mod names;
mod order;
mod quantization;
mod rope;
mod rows;
mod settings;
mod tensors;
mod tokenizer;
mod tower;
mod types;
mod windows;
mod write;

use std::path::Path;

use gguf_rs_lite::{Gguf, OpenOptions, View};
use serde_json::Value;

use octavo_model::Model;
use octavo_text::tokenizer::Tokenizer;

pub use adapter::{is_adapter, open_adapter};
pub use error::Error;
pub use tower::{has_fixed_type, has_tower, is_patches, open_tower};
pub use write::{check_writable, write};

/// Maximum size of `config.json` and other settings files, in bytes.
const MAX_SETTINGS: u64 = 16 << 20;
/// Maximum size of `tokenizer.json` in bytes: the largest vocabularies take 30 MB.
const MAX_TOKENIZER: u64 = 512 << 20;

/// Opens a folder as a GGUF file.
///
/// # Errors
/// [`enum@Error`] for anything missing, unsupported or invalid, with the file and what was expected
/// of it.
pub fn open(dir: &Path, options: &OpenOptions) -> Result<Gguf, Error> {
    let config = config::Config::read(dir)?;
    let mut view = View::new(dir);
    if let Some(name) = name(dir) {
        view.set("general.name", name.as_str());
    }
    config.declare(&mut view)?;
    modules::declare(dir, &config, &mut view)?;
    generation::declare(dir, &mut view)?;
    tokenizer::declare(dir, &config, &mut view)?;
    tensors::declare(dir, &config, options, &mut view)?;
    Ok(view.open()?)
}

/// Returns the name of the folder itself.
fn name(dir: &Path) -> Option<String> {
    let dir = dir.canonicalize().ok()?;
    Some(dir.file_name()?.to_string_lossy().into_owned())
}

/// Checks an opened folder against the requirements of loading a model: every setting, tensor and
/// token.
///
/// # Errors
/// The first setting, tensor or token that is missing, superfluous or invalid.
pub fn check(gguf: &Gguf) -> Result<(), Error> {
    Model::load(gguf).map_err(|error| Error::Model {
        error: with_module(gguf, &error),
    })?;
    Tokenizer::from_gguf(gguf).map_err(|error| Error::Model {
        error: error.to_string(),
    })?;
    Ok(())
}

/// Formats an error along with the folder's name of the tensor that it is about.
fn with_module(gguf: &Gguf, error: &octavo_model::Error) -> String {
    use octavo_model::Error as E;
    let arch = gguf.str("general.architecture").ok().flatten();
    let arch = arch.unwrap_or_default();
    let module = match error {
        E::MissingTensor { tensor, .. }
        | E::TensorShape { tensor, .. }
        | E::TensorType { tensor, .. }
        | E::TensorValue { tensor, .. }
        | E::UnexpectedTensor { tensor, .. } => names::module(arch, tensor),
        _ => None,
    };
    module.map_or_else(
        || error.to_string(),
        |module| format!("{error}; in the folder it is of {module}"),
    )
}

/// Reads a file of the folder, `None` if it does not exist.
fn read_bytes(dir: &Path, name: &str, most: u64) -> Result<Option<Vec<u8>>, Error> {
    let path = dir.join(name);
    let file = path.display().to_string();
    let bytes = match std::fs::metadata(&path) {
        Ok(meta) if meta.len() > most => {
            return Err(Error::TooLarge {
                file,
                most,
                got: meta.len(),
            });
        }
        Ok(_) => std::fs::read(&path),
        Err(error) => Err(error),
    };
    match bytes {
        Ok(bytes) => Ok(Some(bytes)),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(None),
        Err(source) => Err(Error::Io { file, source }),
    }
}

/// Reads a file of the folder as JSON, `None` if it does not exist.
fn read_json(dir: &Path, name: &str, most: u64) -> Result<Option<Value>, Error> {
    let Some(text) = read_bytes(dir, name, most)? else {
        return Ok(None);
    };
    let file = || dir.join(name).display().to_string();
    json::from_slice(&text)
        .map(Some)
        .map_err(|source| Error::Json {
            file: file(),
            source,
        })
}

/// Formats JSON for a file.
fn pretty(value: &Value) -> Vec<u8> {
    serde_json::to_vec_pretty(value).expect("no map has keys that are no strings")
}
