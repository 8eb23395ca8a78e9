//! Chat templates of a folder: one in `chat_template.jinja` and others by name in
//! `additional_chat_templates`, or all of them in `tokenizer_config.json`.

use std::io::ErrorKind;
use std::path::Path;

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;

/// Key of the default template; named ones have keys that begin with it.
const KEY: &str = "tokenizer.chat_template";

/// Maximum number of named templates.
const MAX_NAMED: usize = 64;

/// Sets the keys of all templates.
pub(super) fn declare(dir: &Path, settings: &Value, view: &mut View) -> Result<(), Error> {
    match &settings["chat_template"] {
        Value::String(text) => {
            view.set(KEY, text.as_str());
        }
        Value::Array(list) => {
            for one in list.iter().take(MAX_NAMED) {
                if let (Some(name), Some(text)) = (one["name"].as_str(), one["template"].as_str()) {
                    set(view, name, text);
                }
            }
        }
        _ => {}
    }
    // separate files override the settings
    if let Some(text) = read(&dir.join("chat_template.jinja"))? {
        set(view, "default", &text);
    }
    let folder = dir.join("additional_chat_templates");
    let files = match std::fs::read_dir(&folder) {
        Ok(files) => files,
        Err(error) if matches!(error.kind(), ErrorKind::NotFound | ErrorKind::NotADirectory) => {
            return Ok(());
        }
        Err(source) => return Err(failed(&folder, source)),
    };
    for file in files.take(MAX_NAMED) {
        let path = file.map_err(|source| failed(&folder, source))?.path();
        let is_template = path
            .extension()
            .is_some_and(|extension| extension == "jinja");
        let name = path.file_stem().and_then(|stem| stem.to_str());
        if let (true, Some(name), Some(text)) = (is_template, name, read(&path)?) {
            set(view, name, &text);
        }
    }
    Ok(())
}

fn set(view: &mut View, name: &str, text: &str) {
    match name {
        "default" => view.set(KEY, text),
        name => view.set(&format!("{KEY}.{name}"), text),
    };
}

/// Returns the text of a file; `None` if it does not exist.
fn read(path: &Path) -> Result<Option<String>, Error> {
    match std::fs::read_to_string(path) {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(source) => Err(failed(path, source)),
    }
}

fn failed(path: &Path, source: std::io::Error) -> Error {
    Error::Io {
        file: path.display().to_string(),
        source,
    }
}
