//! Finds the architecture that a file is nearest to: loads it as each of them, and notes each key
//! and tensor that has to be left out or made up until it loads.

use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::{Gguf, OwnedValue, RowSource, TensorType, View};
use octavo_model::outline::of_any_layer;
use octavo_model::{Arch, Error, Model};

/// Most loads of a file as one architecture.
const MOST_TRIES: usize = 400;

/// Architectures that come first among equally near ones.
const PLAIN: [&str; 3] = ["llama", "qwen2", "qwen3"];

/// Number of differences that an error counts as, if the file cannot be loaded in spite of it.
const STOPPED: usize = 10;

/// Differences of a file from what an architecture expects. Tensors of layers have N in place of
/// the number.
#[derive(Debug, Default)]
pub(crate) struct Differences {
    /// Keys that this architecture refuses, by their names after the architecture's.
    pub(crate) refused_keys: BTreeSet<String>,
    /// Keys that it does not read, by the same names.
    pub(crate) unread_keys: BTreeSet<String>,
    /// Tensors that it does not read.
    pub(crate) unread: BTreeSet<String>,
    /// Tensors that it needs and the file does not have.
    pub(crate) missing: BTreeSet<String>,
    /// Tensors of another shape or type.
    pub(crate) changed: BTreeSet<String>,
    /// Error of a file that does not load even so.
    pub(crate) stopped: Option<String>,
}

impl Differences {
    /// Returns how many there are.
    pub(crate) fn count(&self) -> usize {
        let sets = [
            &self.refused_keys,
            &self.unread_keys,
            &self.unread,
            &self.missing,
            &self.changed,
        ];
        let named: usize = sets.iter().map(|set| set.len()).sum();
        named + self.stopped.as_ref().map_or(0, |_| STOPPED)
    }

    /// Returns them as lines of text.
    pub(crate) fn lines(&self) -> Vec<String> {
        let named = |what: &str, set: &BTreeSet<String>| {
            let all: Vec<&str> = set.iter().map(String::as_str).collect();
            (!all.is_empty()).then(|| format!("{what}: {}", all.join(", ")))
        };
        [
            named("keys that it refuses", &self.refused_keys),
            named("keys that it does not read", &self.unread_keys),
            named("tensors that it does not read", &self.unread),
            named("tensors that it misses", &self.missing),
            named("tensors of another shape or type", &self.changed),
            self.stopped
                .as_ref()
                .map(|error| format!("does not load even so: {error}")),
        ]
        .into_iter()
        .flatten()
        .collect()
    }
}

/// Returns each architecture with its differences from a file, the nearest first.
pub(crate) fn nearest(gguf: &Arc<Gguf>, own: &str) -> Vec<(&'static str, Differences)> {
    let others = Arch::all().iter().map(|arch| arch.name());
    let mut all: Vec<(&str, Differences)> = others
        .filter(|name| *name != own)
        .map(|name| (name, differences(gguf, own, name)))
        .collect();
    all.sort_by_key(|(name, differences)| (differences.count(), !PLAIN.contains(name)));
    all
}

/// Shape and type of a tensor.
type Form = (Vec<u64>, TensorType);

/// A file as it is tried: its keys and tensors under another architecture's name.
struct Trial<'a> {
    gguf: &'a Arc<Gguf>,
    own: &'a str,
    other: &'static str,
    differences: Differences,
    /// Forms of tensors that are made up.
    made: BTreeMap<String, Form>,
}

fn differences(gguf: &Arc<Gguf>, own: &str, other: &'static str) -> Differences {
    let mut trial = Trial {
        gguf,
        own,
        other,
        differences: Differences::default(),
        made: BTreeMap::new(),
    };
    for _ in 0..MOST_TRIES {
        let result = trial.open().map_err(|error| error.to_string());
        let error = match result.map(|file| Model::load(&file)) {
            Ok(Ok(model)) => {
                trial.note_unread_keys(&model);
                return trial.differences;
            }
            Ok(Err(error)) => error,
            Err(message) => {
                trial.differences.stopped = Some(message);
                return trial.differences;
            }
        };
        let message = error.to_string();
        if !trial.evade(error) {
            trial.differences.stopped = Some(message);
            return trial.differences;
        }
    }
    trial.differences.stopped = Some(format!("{MOST_TRIES} tries were not enough"));
    trial.differences
}

impl Trial<'_> {
    /// Presents the file as one of the other architecture.
    fn open(&self) -> Result<Gguf, gguf_rs_lite::Error> {
        let mut view = View::new(Path::new(self.gguf.name()));
        for (key, value) in self.gguf.keys() {
            match key
                .strip_prefix(self.own)
                .and_then(|key| key.strip_prefix('.'))
            {
                Some(key) if self.differences.refused_keys.contains(key) => {}
                Some(key) => {
                    view.set(&format!("{}.{key}", self.other), OwnedValue::from(value));
                }
                None => {
                    view.set(key, OwnedValue::from(value));
                }
            }
        }
        view.set("general.architecture", self.other);
        for (index, tensor) in self.gguf.tensors().iter().enumerate() {
            let is_unread = self.differences.unread.contains(&pattern(&tensor.name));
            if is_unread || self.made.contains_key(&tensor.name) {
                continue;
            }
            let rows = Arc::new(OfFile {
                gguf: Arc::clone(self.gguf),
                index,
            });
            view.made(
                &tensor.name,
                &tensor.dims,
                tensor.ty,
                self.gguf.name(),
                rows,
            )?;
        }
        for (name, (dims, ty)) in &self.made {
            view.made(name, dims, *ty, self.gguf.name(), Arc::new(Ones))?;
        }
        view.open()
    }

    /// Notes the keys of the file that a model did not read.
    fn note_unread_keys(&mut self, model: &Model) {
        let read: BTreeSet<String> = model.hparams.report().into_iter().map(|e| e.key).collect();
        let own = self.gguf.keys().filter_map(|(key, _)| {
            let key = key.strip_prefix(self.own)?.strip_prefix('.')?;
            let is_read = read.contains(&format!("{}.{key}", self.other));
            let is_refused = self.differences.refused_keys.contains(key);
            (!is_read && !is_refused).then(|| key.to_owned())
        });
        self.differences.unread_keys = own.collect();
    }

    /// Notes the reason that the file did not load, and removes it; returns false if that is not
    /// possible.
    fn evade(&mut self, error: Error) -> bool {
        let differences = &mut self.differences;
        match error {
            Error::UnexpectedTensor { tensor, .. } => differences.unread.insert(pattern(&tensor)),
            Error::Unsupported { key, .. } => {
                let prefix = format!("{}.", self.other);
                let key = key.strip_prefix(&prefix);
                key.is_some_and(|key| differences.refused_keys.insert(key.to_owned()))
            }
            Error::MissingTensor {
                tensor, expected, ..
            } => {
                differences.missing.insert(pattern(&tensor));
                self.make(&tensor, &expected)
            }
            Error::TensorShape {
                tensor, expected, ..
            } => {
                differences.changed.insert(pattern(&tensor));
                self.make(&tensor, &expected)
            }
            _ => false,
        }
    }

    /// Makes up a tensor of a shape that an error has named; returns false if it was made up with
    /// another before, or if the shape is not one.
    fn make(&mut self, tensor: &str, shape: &str) -> bool {
        let numbers = shape.trim_matches(['[', ']']).split(", ");
        let dims: Result<Vec<u64>, _> = numbers.map(str::parse).collect();
        let Ok(dims) = dims else { return false };
        let form = (dims, TensorType::F32);
        self.made.insert(tensor.to_owned(), form).is_none()
    }
}

/// Returns a tensor's name with N in place of the layer's number.
fn pattern(name: &str) -> String {
    let number = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next());
    match number.and_then(|number| number.parse().ok()) {
        Some(layer) => of_any_layer(name, layer),
        None => name.to_owned(),
    }
}

/// Rows of a tensor of a file.
struct OfFile {
    gguf: Arc<Gguf>,
    index: usize,
}

impl RowSource for OfFile {
    fn fill(&self, first: u64, out: &mut [u8]) {
        let tensor = &self.gguf.tensors()[self.index];
        let rows: u64 = tensor.dims.iter().skip(1).product();
        let row = tensor.bytes / rows.max(1);
        let at = usize::try_from(first * row).expect("a file fits in memory");
        self.gguf.read(tensor, at, out);
    }
}

/// Rows of ones.
struct Ones;

impl RowSource for Ones {
    fn fill(&self, _: u64, out: &mut [u8]) {
        let one = 1.0f32.to_le_bytes();
        out.iter_mut()
            .zip(one.iter().cycle())
            .for_each(|(out, byte)| *out = *byte);
    }
}

#[cfg(test)]
mod tests {
    use gguf_rs_lite::OpenOptions;
    use octavo_fixtures::shared;

    use super::*;

    fn nearest_to(name: &str) -> Option<Vec<(&'static str, Differences)>> {
        let path = shared(&format!("{name}.gguf"))?;
        let gguf = Arc::new(Gguf::open(&path, &OpenOptions::default()).expect("a model"));
        let own = gguf
            .str("general.architecture")
            .expect("a text")
            .expect("there")
            .to_owned();
        Some(nearest(&gguf, &own))
    }

    #[test]
    fn relatives_are_found_and_differences_are_named() {
        // SmolLM 3 is LLaMA with layers that are not rotated
        let Some(all) = nearest_to("arch/models/smollm3-F32") else {
            return;
        };
        let same: Vec<&str> = all
            .iter()
            .take_while(|(_, d)| d.count() == 0)
            .map(|a| a.0)
            .collect();
        assert!(same.contains(&"llama"), "{same:?}");
        assert_eq!(all.len(), Arch::all().len() - 1);
        // Qwen 3 has norms of queries and keys, which Qwen 2 does not have
        let all = nearest_to("models/tiny-qwen3-Q8_0").expect("a model of the same folder");
        let of = |name: &str| {
            &all.iter()
                .find(|(other, _)| *other == name)
                .expect("there")
                .1
        };
        let unread: Vec<&str> = of("llama").unread.iter().map(String::as_str).collect();
        assert_eq!(
            unread,
            ["blk.N.attn_k_norm.weight", "blk.N.attn_q_norm.weight"]
        );
        let missing: Vec<&str> = of("gemma3").missing.iter().map(String::as_str).collect();
        assert_eq!(
            missing,
            [
                "blk.N.post_attention_norm.weight",
                "blk.N.post_ffw_norm.weight"
            ]
        );
        assert!(of("mamba2").count() > of("gemma3").count());
    }
}
