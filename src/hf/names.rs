//! Names of tensors in folders and in GGUF.

use super::Error;
use super::config::Config;
use super::files::{Sources, bad, show};
use super::types::{self, ModelType};

/// Renames the tensors of the language model to the names they would have in a folder of their own.
///
/// # Errors
/// If two tensors would have the same name.
pub(super) fn named(config: &Config, n_layer: usize, sources: Sources) -> Result<Sources, Error> {
    let row = config.row;
    let around = config.wrapper.map_or(&[][..], |wrapper| wrapper.skipped);
    let bare = |name: &str| {
        let bare = name.strip_prefix(row.prefix);
        bare.unwrap_or(name).to_owned()
    };
    let name = |name: String| {
        let name = name.replacen("language_model.", "", 1);
        let name = bare(&name.replacen("text_model.", "", 1));
        let name = ahead(row, n_layer, &name).unwrap_or(name);
        let mut renamed = row.renamed.iter();
        let stem = renamed.find_map(|(from, to)| Some((name.strip_suffix(from)?, to)));
        stem.map_or_else(|| name.clone(), |(stem, to)| format!("{stem}{to}"))
    };
    let is_ahead = |name: &str| in_layer(row, name).is_some_and(|(l, _)| l as usize >= n_layer);
    let skipped = |name: &str| {
        let name = &bare(name);
        let mut starts = row.skipped.iter().chain(around);
        let is_skipped = starts.any(|start| name.starts_with(start));
        is_skipped || row.drops_ahead && is_ahead(name)
    };
    let mut all = Sources::new();
    for (from, source) in sources.into_iter().filter(|(name, _)| !skipped(name)) {
        let to = name(from.clone());
        if all.contains_key(&to) {
            let expected = format!("one tensor only that is {to} of the language model");
            return Err(bad(&from, &source, expected, show(&source)));
        }
        all.insert(to, source);
    }
    Ok(all)
}

/// Returns the name of a tensor for multi-token prediction, in the layers after the last one.
fn ahead(row: &ModelType, n_layer: usize, name: &str) -> Option<String> {
    let rest = name.strip_prefix("model.").unwrap_or(name);
    let rest = rest
        .strip_prefix("mtp.")
        .filter(|_| !row.ahead.is_empty())?;
    if let Some((layer, rest)) = rest.strip_prefix("layers.").and_then(|r| r.split_once('.')) {
        let layer = n_layer.checked_add(canonical(layer)? as usize)?;
        return Some(format!("{}{layer}.{rest}", row.layers));
    }
    let (module, suffix) = rest.rsplit_once('.')?;
    let (_, to) = row.ahead.iter().find(|n| n.0 == module)?;
    Some(format!("{}{n_layer}.{to}.{suffix}", row.layers))
}

/// Returns GGUF's name of a module, if it has one.
pub(super) fn gguf_name(row: &ModelType, module: &str) -> Option<String> {
    if let Some((_, name)) = row.ends.iter().find(|n| n.0 == module) {
        return Some((*name).to_owned());
    }
    let (layer, rest) = in_layer(row, module)?;
    let (_, name) = row.modules.iter().find(|n| n.0 == rest)?;
    Some(format!("blk.{layer}.{name}"))
}

/// Splits a module's name into its layer and its name there.
pub(super) fn in_layer<'a>(row: &ModelType, module: &'a str) -> Option<(u32, &'a str)> {
    let (layer, rest) = module.strip_prefix(row.layers)?.split_once('.')?;
    Some((canonical(layer)?, rest))
}

/// Parses a number, if it is written as in names.
fn canonical(digits: &str) -> Option<u32> {
    let number: u32 = digits.parse().ok()?;
    (number.to_string() == digits).then_some(number)
}

/// Parses the name of an expert's matrix: its layer, which of the row's experts entries it is, and
/// the expert's number.
pub(super) fn which_expert(row: &ModelType, tensor: &str) -> Option<(u32, usize, u32)> {
    let (layer, rest) = in_layer(row, tensor.strip_suffix(".weight")?)?;
    row.experts.iter().enumerate().find_map(|(which, expert)| {
        let (number, part) = rest.strip_prefix(expert.before)?.split_once('.')?;
        (part == expert.part).then_some((layer, which, canonical(number)?))
    })
}

/// Returns the folder's module that a tensor of a GGUF file of this architecture belongs to.
pub(super) fn module(arch: &str, tensor: &str) -> Option<String> {
    let row = types::of_arch(arch)?;
    let find = |names: &[(&'static str, &'static str)], name: &str| {
        names.iter().find(|n| n.1 == name).map(|n| n.0)
    };
    let stem = tensor.rsplit_once('.')?.0;
    if let Some(module) = find(row.ends, stem) {
        return Some(module.to_owned());
    }
    let (layer, rest) = stem.strip_prefix("blk.")?.split_once('.')?;
    Some(format!(
        "{}{layer}.{}",
        row.layers,
        find(row.modules, rest)?
    ))
}
