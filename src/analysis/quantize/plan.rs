//! Plan of a quantization: the type of each tensor, decided before anything is written.

use std::collections::BTreeSet;

use gguf_rs_lite::{Gguf, OwnedValue, TensorInfo, Value, Writer};
use octavo_quant::{TensorType, can_dequantize, can_quantize};

use super::mix::{self, Choices, Facts, Mix};
use super::{Change, Error, Options, Target, Totals};
use crate::imatrix::Importance;
use octavo_model::Arch;
use octavo_vision::Tower;

/// Version of the quantization formats (`general.quantization_version`).
const QUANTIZATION_VERSION: u32 = 2;

/// Longest text that llama.cpp adds to the metadata: its buffer has 128 bytes, with a final NUL.
const MAX_NOTE: usize = 127;

/// Planned conversion of a model.
pub struct Plan<'a> {
    pub(super) gguf: &'a Gguf,
    pub(super) importance: Option<&'a Importance>,
    pub(super) options: Options,
    pub(super) changes: Vec<Change>,
    /// `general.file_type` of the new file.
    pub(super) file_type: Option<u32>,
    /// Whether the source is a folder; no keys about the quantization are then written.
    pub(super) from_folder: bool,
}

impl<'a> Plan<'a> {
    /// Decides the type of every tensor.
    ///
    /// # Errors
    /// A model without architecture or layers, a pattern that matches no tensor, a type that cannot
    /// be read or written, rows that do not fit it.
    pub fn new(
        gguf: &'a Gguf,
        importance: Option<&'a Importance>,
        options: &Options,
    ) -> Result<Plan<'a>, Error> {
        let facts = match options.target {
            Target::COPY => Facts::default(),
            _ => facts(gguf)?,
        };
        let mut options = options.clone();
        options.choices.has_importance = importance.is_some();
        let mut tensors: Vec<&TensorInfo> = gguf.tensors().iter().collect();
        tensors.sort_by(|a, b| mix::order(&a.name, &b.name));
        if options.keep_split {
            tensors.sort_by_key(|t| (t.part, t.offset));
        }
        all_found(gguf, &options.choices, &facts, &tensors)?;
        let mut mix = Mix::new(
            &facts,
            options.target,
            &options.choices,
            tensors.iter().map(|t| t.name.as_str()),
        );
        let changes = tensors
            .iter()
            .map(|t| change(t, &mut mix, options.target))
            .collect::<Result<_, _>>()?;
        let own = || {
            gguf.get("general.file_type")
                .and_then(|v| v.as_int())
                .and_then(|v| u32::try_from(v).ok())
        };
        let file_type = match options.target {
            Target::COPY => own().unwrap_or(0),
            target => target.file_type(),
        };
        Ok(Plan {
            gguf,
            importance,
            options,
            changes,
            file_type: Some(file_type),
            from_folder: false,
        })
    }

    /// Returns the conversion of every tensor, in the order of the new file.
    pub fn changes(&self) -> &[Change] {
        &self.changes
    }

    /// Returns the sizes of the tensors before and after.
    pub fn totals(&self) -> Totals {
        let sum = |of: fn(&Change) -> u64| self.changes.iter().map(of).sum();
        Totals {
            before: sum(|c| c.tensor.bytes),
            after: sum(|c| c.bytes),
            elements: sum(|c| c.tensor.n_elements()),
            fallbacks: self
                .changes
                .iter()
                .filter(|c| c.instead_of.is_some())
                .count(),
        }
    }

    /// Returns the first tensor that cannot be converted because the importance matrix is missing.
    pub fn lacks_importance(&self) -> Option<&Change> {
        self.changes
            .iter()
            .find(|c| self.needs_weights(c) && self.weights(c).is_ok_and(|w| w.is_none()))
    }

    fn needs_weights(&self, change: &Change) -> bool {
        change.converts()
            && (change.requires_importance || octavo_quant::needs_importance(change.to))
    }

    /// Checks that the importance matrix, if any, was made for this model. As in llama-quantize,
    /// entries for the output, the embeddings or experts that saw no text may be missing.
    ///
    /// # Errors
    /// An entry for a layer's tensor that the model lacks, or for rows of another length; a layer
    /// without entries, in supported architectures whose layers all see the text, except the last
    /// layers that only predict further tokens (MTP).
    pub fn check_importance(&self) -> Result<(), Error> {
        let Some(importance) = self.importance else {
            return Ok(());
        };
        let (file, model) = (
            || importance.file().to_owned(),
            || self.gguf.name().to_owned(),
        );
        let foreign = |name: &&str| name.starts_with("blk.") && self.gguf.tensor(name).is_none();
        if let Some(entry) = importance.names().find(foreign) {
            return Err(Error::ImportanceName {
                file: file(),
                entry: entry.to_owned(),
                model: model(),
            });
        }
        for change in &self.changes {
            self.weights(change)?;
        }
        let Ok(arch) = Arch::of_file(self.gguf) else {
            return Ok(());
        };
        let known: BTreeSet<i64> = importance.names().filter_map(mix::layer_of).collect();
        let run = layers_run(self.gguf, arch)?;
        let without = self.changes.iter().map(|c| &c.tensor).find(|t| {
            mix::layer_of(&t.name).is_some_and(|l| l < run && !known.contains(&l))
                && mix::is_quantizable(arch.name(), &t.name, &t.dims)
        });
        match without.and_then(|t| Some((t, mix::layer_of(&t.name)?))) {
            Some((t, layer)) => Err(Error::ImportanceLayer {
                file: file(),
                model: model(),
                layer,
                tensor: t.name.clone(),
            }),
            None => Ok(()),
        }
    }

    /// Reports any error of [`Plan::write`] that can be found without reading weights.
    ///
    /// # Errors
    /// As [`Plan::check_importance`], and the first tensor that may not be quantized again, or that
    /// needs importance weights but has none.
    pub fn check(&self) -> Result<(), Error> {
        self.check_importance()?;
        for c in self.changes.iter().filter(|c| c.converts()) {
            let (tensor, ty) = (c.tensor.name.clone(), c.tensor.ty);
            if mix::is_block_type(ty) && !self.options.allow_requantize {
                return Err(Error::Requantize { tensor, ty });
            }
            if self.weights(c)?.is_none() && self.needs_weights(c) {
                return Err(Error::NeedsImportance { tensor, ty: c.to });
            }
        }
        Ok(())
    }

    /// Returns the importance weights of a tensor: one for each value of a row, for each matrix of
    /// a stack.
    pub(super) fn weights(&self, change: &Change) -> Result<Option<&'a [f32]>, Error> {
        let t = &change.tensor;
        let Some(weights) = self.importance.and_then(|i| i.weights(&t.name)) else {
            return Ok(None);
        };
        let at = |i: usize| t.dims.get(i).copied().unwrap_or(1);
        let expected = at(0) * at(2);
        if weights.len() as u64 == expected {
            return Ok(Some(weights));
        }
        // llama-imatrix collects tied embeddings as an output, with other dimensions
        if mix::Role::of(&t.name) == mix::Role::Embedding {
            return Ok(None);
        }
        let file = self
            .importance
            .map_or_else(String::new, |i| i.file().to_owned());
        Err(Error::ImportanceSize {
            file,
            tensor: t.name.clone(),
            expected,
            got: weights.len(),
        })
    }

    /// Sets the keys of the source, and those about the quantization, in llama-quantize's order.
    pub(super) fn set_keys(&self, writer: &mut Writer<'a>) {
        for (key, value) in self.gguf.keys() {
            writer.set(key, value);
        }
        let mut put = |key: &str, value: OwnedValue| {
            writer.remove(key);
            writer.set(key, value);
        };
        let mut made = [
            ("general.quantization_version", Some(QUANTIZATION_VERSION)),
            ("general.file_type", self.file_type),
        ];
        if self.from_folder {
            // llama.cpp's converter writes them in another order than llama-quantize
            made.reverse();
        }
        for (key, number) in made {
            if let Some(number) = number {
                put(key, number.into());
            }
        }
        if let Some(importance) = self.importance {
            put("quantize.imatrix.file", note(importance.file().as_bytes()));
            if let Some(dataset) = importance.datasets().first() {
                put("quantize.imatrix.dataset", note(dataset));
            }
            put(
                "quantize.imatrix.entries_count",
                u32::try_from(importance.len()).unwrap_or(u32::MAX).into(),
            );
            if importance.chunks() > 0 {
                put("quantize.imatrix.chunks_count", importance.chunks().into());
            }
        }
        for key in ["split.no", "split.count", "split.tensors.count"] {
            writer.remove(key);
        }
    }
}

/// Truncates text for a key to the length that llama.cpp writes.
fn note(text: &[u8]) -> OwnedValue {
    OwnedValue::Str(text.iter().copied().take(MAX_NOTE).collect())
}

/// Reads the properties that the rules depend on from a model's keys.
fn facts(gguf: &Gguf) -> Result<Facts, Error> {
    let missing = |key: &str| Error::MissingKey {
        file: gguf.name().to_owned(),
        key: key.to_owned(),
    };
    let architecture = gguf
        .str("general.architecture")?
        .ok_or_else(|| missing("general.architecture"))?
        .to_owned();
    // llama-quantize reads no hyperparameters of a vision tower, so its rules take all blocks for
    // the last ones, which get more bits
    if Tower::is_in(gguf) {
        return Ok(Facts {
            architecture,
            ..Facts::default()
        });
    }
    // one number for all layers, or an array with one for each: then the first
    let number = |name: &str| {
        let first = match gguf.get(&format!("{architecture}.{name}")) {
            Some(Value::Array(a)) => a.iter().next().and_then(|v| v.as_int()),
            other => other.and_then(|v| v.as_int()),
        };
        first.and_then(|n| u32::try_from(n).ok())
    };
    let n_layer =
        number("block_count").ok_or_else(|| missing(&format!("{architecture}.block_count")))?;
    let n_head = number("attention.head_count").unwrap_or(0);
    let n_head_kv = number("attention.head_count_kv").unwrap_or(n_head);
    let n_expert = number("expert_count").unwrap_or(0);
    Ok(Facts {
        architecture,
        n_layer,
        n_head,
        n_head_kv,
        n_expert,
    })
}

/// Returns the number of layers a text passes: all but the last ones for multi-token prediction.
fn layers_run(gguf: &Gguf, arch: Arch) -> Result<i64, Error> {
    let number = |name: &str| gguf.u32(&format!("{}.{name}", arch.name()));
    let predict = number("nextn_predict_layers")?.unwrap_or(0);
    let all = number("block_count")?.unwrap_or(u32::MAX);
    Ok(i64::from(all.saturating_sub(predict)))
}

/// Refuses a pattern that matches no tensor: it is probably a typo.
fn all_found(
    gguf: &Gguf,
    choices: &Choices,
    facts: &Facts,
    tensors: &[&TensorInfo],
) -> Result<(), Error> {
    let can_change = |t: &&&TensorInfo| mix::is_quantizable(&facts.architecture, &t.name, &t.dims);
    let names: Vec<&str> = tensors
        .iter()
        .filter(can_change)
        .map(|t| t.name.as_str())
        .collect();
    match choices
        .overrides
        .iter()
        .find(|(pattern, _)| !names.iter().any(|name| pattern.is_match(name)))
    {
        Some((pattern, _)) => Err(Error::NoMatch {
            file: gguf.name().to_owned(),
            pattern: pattern.as_str().to_owned(),
            example: names
                .last()
                .map_or_else(String::new, |name| (*name).to_owned()),
        }),
        None => Ok(()),
    }
}

fn change(t: &TensorInfo, mix: &mut Mix<'_>, target: Target) -> Result<Change, Error> {
    let requested = mix.next_type(&t.name, &t.dims)?.unwrap_or(t.ty);
    change_to(t, requested, |to| {
        mix::requires_importance(target, &t.name, to)
    })
}

pub(crate) fn change_to(
    t: &TensorInfo,
    requested: TensorType,
    requires: impl Fn(TensorType) -> bool,
) -> Result<Change, Error> {
    let tensor = || t.name.clone();
    let row = t.dims.first().copied().unwrap_or(1);
    let to = match requested {
        ty if ty == t.ty => ty,
        ty => mix::fallback(ty, row).ok_or_else(|| Error::Row {
            tensor: tensor(),
            row,
            ty,
        })?,
    };
    if to != t.ty && !can_dequantize(t.ty) {
        return Err(Error::CannotRead {
            tensor: tensor(),
            ty: t.ty,
            to,
        });
    }
    if to != t.ty && !can_quantize(to) {
        return Err(Error::CannotWrite {
            tensor: tensor(),
            ty: to,
        });
    }
    let rows = t.n_elements().checked_div(row).unwrap_or(0);
    let bytes = to.row_bytes(row).and_then(|bytes| bytes.checked_mul(rows));
    let bytes = bytes.ok_or_else(|| Error::Row {
        tensor: tensor(),
        row,
        ty: to,
    })?;
    let instead_of = (requested != to).then_some(requested);
    Ok(Change {
        tensor: t.clone(),
        to,
        bytes,
        instead_of,
        requires_importance: requires(to),
    })
}
