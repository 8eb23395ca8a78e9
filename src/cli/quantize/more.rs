//! The rest of llama-quantize's options: changes of a model besides its types.

use std::path::PathBuf;

use clap::Args;
use gguf_rs_lite::{Gguf, TensorType};
use octavo_analysis::imatrix::Importance;
use octavo_analysis::quantize::Prune;
use regex::Regex;

use super::super::args::{KeyValue, key_value};
use super::super::failure::Failure;
use super::super::prompt;
use super::tensor_type;

/// Options of changes besides the types.
#[derive(Debug, Args)]
pub(super) struct MoreArgs {
    /// Read NAME=TYPE pairs, as of --tensor-type, from FILE, separated by white space
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) tensor_type_file: Option<PathBuf>,
    /// Use the importance matrix only for tensors whose name contains NAME; may be given several
    /// times
    #[arg(long, value_name = "NAME", conflicts_with = "exclude_weights")]
    include_weights: Vec<String>,
    /// Do not use the importance matrix for tensors whose name contains NAME; may be given several
    /// times
    #[arg(long, value_name = "NAME")]
    exclude_weights: Vec<String>,
    /// Remove these layers, counted from 0 and separated by commas
    #[arg(long, value_name = "LAYERS", value_delimiter = ',')]
    prune_layers: Vec<u32>,
    /// Write as many files as IN has parts: OUT-00001-of-00003.gguf and so on
    #[arg(long)]
    pub(super) keep_split: bool,
    /// Set the metadata KEY to VALUE; TYPE is int, float, bool or str; may be given several times
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = key_value)]
    override_kv: Vec<KeyValue>,
}

impl MoreArgs {
    /// Returns the options, and whether they are set.
    pub(super) fn options(&self) -> [(&'static str, bool); 6] {
        [
            ("--tensor-type-file", self.tensor_type_file.is_some()),
            ("--include-weights", !self.include_weights.is_empty()),
            ("--exclude-weights", !self.exclude_weights.is_empty()),
            ("--prune-layers", !self.prune_layers.is_empty()),
            ("--override-kv", !self.override_kv.is_empty()),
            ("--keep-split", self.keep_split),
        ]
    }

    /// Refuses options that would have no effect.
    pub(super) fn check(&self, has_importance: bool) -> Result<(), Failure> {
        let of_importance = ["--include-weights", "--exclude-weights"];
        let options = self.options();
        let useless = options
            .iter()
            .find(|(name, is_set)| *is_set && of_importance.contains(name));
        match useless {
            Some((name, _)) if !has_importance => Err(Failure::Usage(format!(
                "{name} has no effect: expected --imatrix with it"
            ))),
            _ => Ok(()),
        }
    }

    /// Reads the types in the file.
    pub(super) fn tensor_types(&self) -> Result<Vec<(Regex, TensorType)>, Failure> {
        let Some(path) = &self.tensor_type_file else {
            return Ok(Vec::new());
        };
        let bad = |what: &str| Failure::Input(format!("{}: {what}", path.display()));
        let text = String::from_utf8(prompt::read(path)?).map_err(|_| bad("expected UTF-8"))?;
        let types = text.split_whitespace();
        types
            .map(|one| tensor_type(one).map_err(|error| bad(&format!("{one:?}: {error}"))))
            .collect()
    }

    fn prune(&self) -> Prune {
        Prune::new(self.prune_layers.iter().copied())
    }

    /// Returns the model to quantize, with layers removed and metadata set.
    pub(super) fn change(&self, gguf: Gguf) -> Result<Gguf, Failure> {
        let gguf = match self.prune() {
            prune if prune.is_empty() => gguf,
            prune => prune.apply(gguf)?,
        };
        match self.override_kv.is_empty() {
            true => Ok(gguf),
            false => Ok(gguf.with_keys(self.override_kv.iter().cloned())?),
        }
    }

    /// Returns the importance to use, by the tensor names of the new model.
    pub(super) fn weights(&self, importance: Importance) -> Importance {
        let (include, exclude) = (&self.include_weights, &self.exclude_weights);
        let has = |names: &[String], tensor: &str| names.iter().any(|name| tensor.contains(name));
        let prune = self.prune();
        importance.with_names(|tensor| {
            let is_included = include.is_empty() || has(include, tensor);
            (is_included && !has(exclude, tensor)).then(|| prune.name(tensor))?
        })
    }
}
