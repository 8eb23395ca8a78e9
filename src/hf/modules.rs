//! `modules.json`, in which sentence-transformers says what follows a model: pooling, products with
//! matrices, normalization.

use std::path::Path;

use gguf_rs_lite::{OpenOptions, View};

use super::Error;
use super::config::Config;
use super::files::{self, Place, Source, bad, show};
use super::settings::Settings;

const FILE: &str = "modules.json";

/// Names of the tensors of products, in order.
const PRODUCTS: [&str; 2] = ["dense_2", "dense_3"];

/// Kinds of pooling: the flag of older files, the name of newer ones, and GGUF's number.
const POOLINGS: [(&str, &str, u32); 3] = [
    ("pooling_mode_mean_tokens", "mean", 1),
    ("pooling_mode_cls_token", "cls", 2),
    ("pooling_mode_lasttoken", "lasttoken", 3),
];

/// A step after the model.
struct Module {
    /// Name of its class.
    class: String,
    /// Folder of its files, inside that of the model.
    folder: String,
}

/// Reads the steps of a model that maps texts to vectors; other models have none.
fn read(dir: &Path, config: &Config) -> Result<Vec<Module>, Error> {
    let settings = match config.row.embeds {
        true => Settings::beside(dir, FILE)?,
        false => None,
    };
    let Some(settings) = settings else {
        return Ok(Vec::new());
    };
    let modules = settings.root.as_array();
    let modules = settings.must(FILE, "a list of modules", modules)?;
    let module = |value: &serde_json::Value| {
        let class = value["type"].as_str().unwrap_or_default();
        let folder = value["path"].as_str().unwrap_or_default();
        let is_plain = !folder.contains(['/', '\\', ':', '\0']) && !folder.starts_with('.');
        if !is_plain {
            return Err(settings.bad("path", "a folder inside of the model's", folder));
        }
        Ok(Module {
            class: class.rsplit('.').next().unwrap_or_default().to_owned(),
            folder: folder.to_owned(),
        })
    };
    let modules: Vec<Module> = modules.iter().map(module).collect::<Result<_, Error>>()?;
    let known = ["Transformer", "Pooling", "Dense", "Normalize"];
    match modules.iter().find(|m| !known.contains(&m.class.as_str())) {
        Some(other) => Err(settings.bad("type", known.join(", "), &other.class)),
        None => Ok(modules),
    }
}

/// Sets the keys of pooling and of products.
pub(super) fn declare(dir: &Path, config: &Config, view: &mut View) -> Result<(), Error> {
    let modules = read(dir, config)?;
    for module in modules.iter().filter(|m| m.class == "Pooling") {
        let pooling = pooling(&of_module(dir, module)?)?;
        view.set(&config.key("pooling_type"), pooling);
    }
    for (module, name) in products(&modules, config, dir)?.into_iter().zip(PRODUCTS) {
        let settings = of_module(dir, module)?;
        const ACTIVATION: &str = "activation_function";
        let activation = settings.string(ACTIVATION)?.unwrap_or_default();
        if !activation.ends_with("Identity") {
            return Err(settings.bad(ACTIVATION, "Identity", activation));
        }
        for (key, from) in [("in", "in_features"), ("out", "out_features")] {
            let n = u32::try_from(settings.count(from)?).unwrap_or(u32::MAX);
            view.set(&config.key(&format!("{name}_feat_{key}")), n);
        }
    }
    Ok(())
}

/// Returns the tensors of products, by their names beside those of the model.
pub(super) fn tensors(
    dir: &Path,
    config: &Config,
    options: &OpenOptions,
) -> Result<Vec<(String, Source)>, Error> {
    let modules = read(dir, config)?;
    let mut all = Vec::new();
    for (module, name) in products(&modules, config, dir)?.into_iter().zip(PRODUCTS) {
        for (tensor, mut source) in files::read(&dir.join(&module.folder), options)? {
            source.place = Place::Extra(all.len());
            if tensor != "linear.weight" {
                let expected = "linear.weight alone";
                return Err(bad(&tensor, &source, expected, show(&source)));
            }
            all.push((format!("{name}.weight"), source));
        }
    }
    Ok(all)
}

/// Returns the products, of which an architecture has two or none.
fn products<'a>(
    modules: &'a [Module],
    config: &Config,
    dir: &Path,
) -> Result<Vec<&'a Module>, Error> {
    let all: Vec<&Module> = modules.iter().filter(|m| m.class == "Dense").collect();
    let has_names = config.row.ends.iter().any(|n| n.1 == PRODUCTS[0]);
    let most = if has_names { PRODUCTS.len() } else { 0 };
    if all.len() == most || all.is_empty() {
        return Ok(all);
    }
    Err(Error::Value {
        file: dir.join(FILE).display().to_string(),
        key: "type".to_owned(),
        expected: match most {
            0 => format!("no Dense module in a model of type {}", config.row.name),
            most => format!("{most} Dense modules, or none"),
        },
        got: all.len().to_string(),
    })
}

/// Reads the settings of a module.
fn of_module(dir: &Path, module: &Module) -> Result<Settings, Error> {
    const SETTINGS: &str = "config.json";
    let dir = dir.join(&module.folder);
    Settings::beside(&dir, SETTINGS)?.ok_or_else(|| Error::Missing {
        file: dir.join(SETTINGS).display().to_string(),
        expected: "the settings of a module that modules.json names",
    })
}

/// Returns GGUF's number of the only kind of pooling that is set.
fn pooling(settings: &Settings) -> Result<u32, Error> {
    const NAME: &str = "pooling_mode";
    const EXPECTED: &str = "mean, cls or lasttoken";
    if let Some(name) = settings.string(NAME)? {
        let found = POOLINGS.iter().find(|p| p.1 == name);
        return found
            .map(|p| p.2)
            .ok_or_else(|| settings.bad(NAME, EXPECTED, name));
    }
    let flags = settings.root.as_object();
    let set: Vec<&str> = flags
        .into_iter()
        .flatten()
        .filter(|(key, flag)| key.starts_with(NAME) && **flag == true)
        .map(|(key, _)| key.as_str())
        .collect();
    let found = match set[..] {
        [flag] => POOLINGS.iter().find(|p| p.0 == flag),
        _ => None,
    };
    let got = if set.is_empty() {
        "none".to_owned()
    } else {
        set.join(", ")
    };
    found
        .map(|p| p.2)
        .ok_or_else(|| settings.bad(NAME, EXPECTED, got))
}
