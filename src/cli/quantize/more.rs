//! The rest of llama-quantize's options: what is changed of a model beside its types.

use std::path::PathBuf;

use clap::Args;
use gguf_rs_lite::TensorType;
use octavo_lab::imatrix::Importance;
use regex::Regex;

use super::super::failure::Failure;
use super::super::prompt;
use super::tensor_type;

/// What is changed beside the types.
#[derive(Debug, Args)]
pub(super) struct MoreArgs {
    /// Read such NAME=TYPE from FILE, separated by white space
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    pub(super) tensor_type_file: Option<PathBuf>,
    /// Use the importance matrix for tensors with NAME in theirs alone; may be given several times
    #[arg(long, value_name = "NAME", conflicts_with = "exclude_weights")]
    include_weights: Vec<String>,
    /// Do not use the importance matrix for tensors with NAME in theirs; may be given several times
    #[arg(long, value_name = "NAME")]
    exclude_weights: Vec<String>,
}

impl MoreArgs {
    /// The options, and whether they were given.
    pub(super) fn given(&self) -> [(&'static str, bool); 3] {
        [
            ("--tensor-type-file", self.tensor_type_file.is_some()),
            ("--include-weights", !self.include_weights.is_empty()),
            ("--exclude-weights", !self.exclude_weights.is_empty()),
        ]
    }

    /// Refuses what would have no effect.
    pub(super) fn check(&self, has_importance: bool) -> Result<(), Failure> {
        let of_importance = ["--include-weights", "--exclude-weights"];
        let given = self.given();
        let useless = given
            .iter()
            .find(|(name, given)| *given && of_importance.contains(name));
        match useless {
            Some((name, _)) if !has_importance => Err(Failure::Usage(format!(
                "{name} has no effect: expected --imatrix with it"
            ))),
            _ => Ok(()),
        }
    }

    /// The types in the file.
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

    /// The importance that is looked at, as far as these options go.
    pub(super) fn weights(&self, importance: Importance) -> Importance {
        let (include, exclude) = (&self.include_weights, &self.exclude_weights);
        let has = |names: &[String], tensor: &str| names.iter().any(|name| tensor.contains(name));
        importance.with_names(|tensor| {
            let wanted = include.is_empty() || has(include, tensor);
            (wanted && !has(exclude, tensor)).then(|| tensor.to_owned())
        })
    }
}
