//! Safetensors, in one file or several with an index.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::path::Path;

use gguf_rs_lite::{OpenOptions, SharedFile};
use safetensors::{Dtype, SafeTensors};
use serde_json::Value;

use super::awq::FileRange;
use super::{Error, MAX_SETTINGS, read_json};

const INDEX: &str = "model.safetensors.index.json";

/// A tensor of the folder.
pub(super) struct Source {
    pub(super) dtype: Dtype,
    pub(super) shape: Vec<usize>,
    pub(super) part: FileRange,
    pub(super) place: Place,
}

/// Place of a tensor in the GGUF file that llama.cpp's converter writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Place {
    /// Before those that lie in the model's files: this is the n-th such tensor.
    Extra(usize),
    /// In the order of the model's files, and of names inside each: this is the n-th.
    Source(usize),
}

/// All tensors of the files, by Hugging Face's names.
pub(super) type Sources = BTreeMap<String, Source>;

/// Makes an error about a tensor.
pub(super) fn bad(
    name: &str,
    source: &Source,
    expected: impl Into<String>,
    got: impl Into<String>,
) -> Error {
    let file = source.part.file.name().to_owned();
    Error::Tensor {
        file,
        tensor: name.to_owned(),
        expected: expected.into(),
        got: got.into(),
    }
}

pub(super) fn show(source: &Source) -> String {
    format!("{:?} {:?}", source.dtype, source.shape)
}

/// Reads the headers of the folder's safetensors files.
pub(super) fn read(dir: &Path, options: &OpenOptions) -> Result<Sources, Error> {
    let (names, index) = match read_json(dir, INDEX, MAX_SETTINGS)? {
        Some(index) => {
            let map = index_map(dir, &index)?;
            (map.values().cloned().collect::<BTreeSet<_>>(), Some(map))
        }
        None => (BTreeSet::from([only_file(dir)?]), None),
    };
    let mut all = Sources::new();
    for name in names {
        let file = SharedFile::open(&dir.join(&name), options)?;
        let sound = |source| Error::Safetensors {
            file: file.name().to_owned(),
            source,
        };
        let (header, metadata) = SafeTensors::read_metadata(file.bytes()).map_err(sound)?;
        let by_name: BTreeMap<_, _> = metadata.tensors().into_iter().collect();
        for (tensor, info) in by_name {
            let at = |offset: usize| header + 8 + offset;
            let range: Range<usize> = at(info.data_offsets.0)..at(info.data_offsets.1);
            let source = Source {
                dtype: info.dtype,
                shape: info.shape.clone(),
                part: FileRange {
                    file: file.clone(),
                    range,
                },
                place: Place::Source(all.len()),
            };
            let expected = match &index {
                Some(map) if map.get(&tensor) != Some(&name) => {
                    Some(format!("no tensor that {INDEX} does not put there"))
                }
                _ => None,
            };
            if let Some(expected) = expected {
                return Err(bad(&tensor, &source, expected, show(&source)));
            }
            all.insert(tensor, source);
        }
    }
    if let Some((tensor, name)) = index
        .iter()
        .flatten()
        .find(|(tensor, _)| !all.contains_key(*tensor))
    {
        let file = dir.join(name).display().to_string();
        let expected = format!("what {INDEX} says");
        return Err(Error::Tensor {
            file,
            tensor: tensor.clone(),
            expected,
            got: "nothing".to_owned(),
        });
    }
    Ok(all)
}

/// Returns the file of each tensor, by the index. All files must be in the same folder.
fn index_map(dir: &Path, index: &Value) -> Result<BTreeMap<String, String>, Error> {
    let bad = |expected: &str, got: String| Error::Value {
        file: dir.join(INDEX).display().to_string(),
        key: "weight_map".to_owned(),
        expected: expected.to_owned(),
        got: got.chars().take(80).collect(),
    };
    let map = index.get("weight_map").and_then(Value::as_object);
    let Some(map) = map else {
        return Err(bad("tensors and their files", "nothing".to_owned()));
    };
    let mut files = BTreeMap::new();
    for (tensor, name) in map {
        let plain = |name: &&str| {
            name.ends_with(".safetensors")
                && !name.contains(['/', '\\', ':', '\0'])
                && !name.starts_with('.')
        };
        let Some(name) = name.as_str().filter(plain) else {
            return Err(bad(
                "names of safetensors files in the same folder",
                name.to_string(),
            ));
        };
        files.insert(tensor.clone(), name.to_owned());
    }
    Ok(files)
}

/// Returns the safetensors file of a folder without an index.
fn only_file(dir: &Path) -> Result<String, Error> {
    const USUAL: &str = "model.safetensors";
    if dir.join(USUAL).exists() {
        return Ok(USUAL.to_owned());
    }
    let io = |source| Error::Io {
        file: dir.display().to_string(),
        source,
    };
    let mut names = Vec::new();
    for entry in std::fs::read_dir(dir).map_err(io)? {
        let name = entry
            .map_err(io)?
            .file_name()
            .to_string_lossy()
            .into_owned();
        if name.ends_with(".safetensors") {
            names.push(name);
        }
    }
    match <[String; 1]>::try_from(names) {
        Ok([name]) => Ok(name),
        Err(_) => Err(Error::Missing {
            file: dir.join(USUAL).display().to_string(),
            expected: "it, one other safetensors file, or several with \
                       model.safetensors.index.json",
        }),
    }
}
