//! The models of a folder, or of the hub's cache.

use std::collections::{BTreeMap, HashSet};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_model::{is_assistant, is_mtp_only};

use super::models::ServedModel;
use super::preset::{self, Given};
use super::served::Shared;
use crate::failure::Failure;

/// A GGUF file that may be a model.
struct Found {
    name: String,
    path: PathBuf,
}

/// Returns the models of a folder, and of the folders in it, by the stems of their files. A split
/// model is one; an image encoder belongs to the model that its name begins with, or to the only
/// one of its folder.
pub(super) fn of_folder(
    folder: &Path,
    given: &Given,
    shared: &Arc<Shared>,
) -> Result<Vec<ServedModel>, Failure> {
    let (mut files, folders) = list(folder)?;
    let mut models = served(&mut files, given, shared)?;
    for folder in folders {
        let (mut files, _) = list(&folder)?;
        models.extend(served(&mut files, given, shared)?);
    }
    models.sort_by(|a, b| a.names.cmp(&b.names));
    Ok(models)
}

/// Returns the models in the hub's cache, as llama.cpp names them: `USER/REPO:QUANT`.
pub(super) fn of_cache(given: &Given, shared: &Arc<Shared>) -> Result<Vec<ServedModel>, Failure> {
    let mut repositories: BTreeMap<String, Vec<Found>> = BTreeMap::new();
    let mut seen = HashSet::new();
    for model in octavo_hub::Cache::from_env()?.models() {
        let short = model.quantization.as_ref();
        let short = short.map(|quantization| format!("{}:{quantization}", model.repo));
        // of several files of one type, the others have their own names
        let name = short
            .filter(|name| seen.insert(name.clone()))
            .unwrap_or_else(|| format!("{}/{}", model.repo, model.file));
        let path = model.path;
        repositories
            .entry(model.repo)
            .or_default()
            .push(Found { name, path });
    }
    let mut models = Vec::new();
    for files in repositories.values_mut() {
        models.extend(served(files, given, shared)?);
    }
    Ok(models)
}

/// Lists the GGUF files of a folder, and its folders, in order.
fn list(folder: &Path) -> Result<(Vec<Found>, Vec<PathBuf>), Failure> {
    let failed = |error| Failure::Input(format!("{}: {error}", folder.display()));
    let (mut files, mut folders) = (Vec::new(), Vec::new());
    for entry in std::fs::read_dir(folder).map_err(failed)? {
        let path = entry.map_err(failed)?.path();
        let name = path
            .file_name()
            .unwrap_or_default()
            .to_string_lossy()
            .into_owned();
        if name.starts_with('.') {
            continue;
        }
        if path.is_dir() {
            folders.push(path);
        } else if path
            .extension()
            .is_some_and(|extension| extension == "gguf")
        {
            let stem = path
                .file_stem()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            files.push(Found { name: stem, path });
        }
    }
    files.sort_by(|a, b| a.path.cmp(&b.path));
    folders.sort();
    Ok((files, folders))
}

/// Returns the models among the files of one folder, with their image encoders.
fn served(
    files: &mut Vec<Found>,
    given: &Given,
    shared: &Arc<Shared>,
) -> Result<Vec<ServedModel>, Failure> {
    files.retain_mut(|file| match part(&stem(&file.path)) {
        Some((_, n)) if n != 1 => false,
        Some((whole, _)) => {
            if file.name == stem(&file.path) {
                file.name = whole;
            }
            true
        }
        None => true,
    });
    let is_tower = |file: &Found| stem(&file.path).to_lowercase().contains("mmproj");
    let (towers, others): (Vec<&Found>, Vec<&Found>) = files.iter().partition(|f| is_tower(f));
    let models: Vec<&Found> = others
        .into_iter()
        .filter(|file| is_model(&file.path))
        .collect();
    let is_only = models.len() == 1 && towers.len() == 1;
    let serve = |file: &&Found| {
        let mut own: BTreeMap<String, Vec<OsString>> = BTreeMap::new();
        own.insert("flag".to_owned(), vec![file.path.clone().into()]);
        let mut fitting = towers
            .iter()
            .filter(|tower| is_only || belongs(&tower.path, &file.path));
        if let (Some(tower), None) = (fitting.next(), fitting.next()) {
            own.insert("mmproj".to_owned(), vec![tower.path.clone().into()]);
        }
        let args = preset::parse(&own, given).map_err(Failure::Usage)?;
        Ok(ServedModel {
            names: vec![file.name.clone()],
            args,
            at_start: false,
            shared: Arc::clone(shared),
        })
    };
    models.iter().map(serve).collect()
}

fn stem(path: &Path) -> String {
    path.file_stem()
        .unwrap_or_default()
        .to_string_lossy()
        .into_owned()
}

/// Splits the stem of a split model's file into the model's and the number of the part.
fn part(stem: &str) -> Option<(String, u32)> {
    let (rest, count) = stem.rsplit_once("-of-")?;
    let (whole, n) = rest.rsplit_once('-')?;
    let is_number = |text: &str| text.len() == 5 && text.bytes().all(|b| b.is_ascii_digit());
    (is_number(count) && is_number(n)).then(|| (whole.to_owned(), n.parse().unwrap_or(0)))
}

/// Returns whether an image encoder's name, without what it has beside a model's, begins a model's:
/// `mmproj-gemma-3-4b-it-f16` and `gemma-3-4b-it-Q4_K_M`.
fn belongs(tower: &Path, model: &Path) -> bool {
    let (tower, model) = (stem(tower).to_lowercase(), stem(model).to_lowercase());
    let name = tower.replace("mmproj", "").replace("--", "-");
    let name = name.trim_matches(['-', '_', '.']);
    let types = ["f16", "bf16", "f32", "q8_0"];
    let name = types
        .iter()
        .find_map(|ty| name.strip_suffix(ty))
        .unwrap_or(name);
    let name = name.trim_matches(['-', '_', '.']);
    !name.is_empty() && model.starts_with(name)
}

/// Returns whether a file is a model of its own: neither an adapter, an image encoder, an
/// importance matrix, an MTP layer nor an assistant. One that cannot be read is listed, and refused
/// when it is loaded.
fn is_model(path: &Path) -> bool {
    let Ok(gguf) = Gguf::open(path, &OpenOptions::default()) else {
        return true;
    };
    let text = |key: &str| gguf.str(key).ok().flatten().unwrap_or_default().to_owned();
    matches!(text("general.type").as_str(), "" | "model")
        && text("general.architecture") != "clip"
        && !is_mtp_only(&gguf)
        && !is_assistant(&gguf)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_and_image_encoders_are_known_by_their_names() {
        assert_eq!(part("a-00001-of-00003"), Some(("a".to_owned(), 1)));
        assert_eq!(part("a-00003-of-00003"), Some(("a".to_owned(), 3)));
        for stem in ["a", "a-1-of-3", "a-00001-of-x", "-of-", "a-b-of-00001"] {
            assert_eq!(part(stem), None, "{stem}");
        }
        let belongs = |tower: &str, model: &str| belongs(Path::new(tower), Path::new(model));
        assert!(belongs(
            "mmproj-gemma-3-4b-it-f16.gguf",
            "gemma-3-4b-it-Q4_K_M.gguf"
        ));
        assert!(belongs(
            "gemma-3-4b-it-mmproj-F16.gguf",
            "gemma-3-4b-it-Q4_K_M.gguf"
        ));
        assert!(!belongs("mmproj-F16.gguf", "gemma-3-4b-it-Q4_K_M.gguf"));
        assert!(!belongs("mmproj-qwen.gguf", "gemma-3-4b-it-Q4_K_M.gguf"));
    }
}
