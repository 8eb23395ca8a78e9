//! Low-rank adapters (LoRA) of a loaded model, and which of them a sequence uses.

use std::ops::Range;
use std::path::PathBuf;
use std::sync::{Arc, Mutex, PoisonError};

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_kernels::UsedAdapter;
use octavo_model::{Adapter, Model};
use sha2::{Digest as _, Sha256};

use crate::engine::Engine;
use crate::error::Error;

/// An adapter file to load with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraFile {
    /// A GGUF file, or a PEFT folder.
    pub path: PathBuf,
    /// Factor of what it adds, for sequences that name none.
    pub scale: f32,
}

impl LoraFile {
    /// Opens the file, or the PEFT folder, for a model that was loaded from `gguf`.
    ///
    /// # Errors
    /// If it is no adapter for the model, with the file and the tensor.
    pub fn open(&self, gguf: &Gguf, model: &Model, mmap: bool) -> Result<Adapter, Error> {
        let options = OpenOptions {
            mmap,
            ..OpenOptions::default()
        };
        let own = match octavo_hf::is_adapter(&self.path) {
            true => octavo_hf::open_adapter(&self.path, gguf)?,
            false => Gguf::open(&self.path, &options)?,
        };
        Ok(Adapter::load(Arc::new(own), gguf, model)?)
    }
}

/// A control vector file to load with a model.
#[derive(Clone, Debug, PartialEq)]
pub struct ControlFile {
    /// A GGUF file.
    pub path: PathBuf,
    /// Factor of its directions.
    pub strength: f32,
}

/// An adapter of a request.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct LoraScale {
    /// Its number, in the order of [`EngineOptions::adapters`](crate::EngineOptions::adapters).
    pub id: usize,
    /// Factor of what it adds; 0 for nothing.
    pub scale: f32,
}

/// A loaded adapter, for display.
#[derive(Clone, Debug, PartialEq)]
pub struct LoraInfo {
    /// Its number.
    pub id: usize,
    /// Its file.
    pub path: PathBuf,
    /// Factor of what it adds, for sequences that name none.
    pub scale: f32,
    /// Its task, as the file says.
    pub task_name: String,
    /// Text to put before prompts, as the file says.
    pub prompt_prefix: String,
    /// Tokens from which on it is active; empty if it always is.
    pub invocation_tokens: Vec<u32>,
}

/// SHA-256 digest of the adapters that a page's tokens use; 0 for none.
pub(crate) type AdapterKey = [u8; 32];

/// The adapters that a sequence uses.
#[derive(Debug, Default, PartialEq)]
pub(crate) struct AdapterSet {
    used: Vec<UsedAdapter>,
    /// Digests of their files.
    digests: Vec<[u8; 32]>,
}

impl AdapterSet {
    /// The set without adapters.
    pub(crate) const NONE: &'static AdapterSet = &AdapterSet {
        used: Vec::new(),
        digests: Vec::new(),
    };

    /// Returns the adapters in ascending order.
    pub(crate) fn used(&self) -> &[UsedAdapter] {
        &self.used
    }

    /// Returns what decides the contents of a page of these positions, apart from tokens.
    pub(crate) fn key(&self, page: Range<usize>) -> AdapterKey {
        let both = self.used.iter().zip(&self.digests);
        let mut active = both.filter(|(used, _)| used.from < page.end).peekable();
        if active.peek().is_none() {
            return AdapterKey::default();
        }
        let mut hash = Sha256::new();
        for (used, digest) in active {
            hash.update(digest);
            hash.update(used.scale.to_le_bytes());
            hash.update((used.from.saturating_sub(page.start) as u64).to_le_bytes());
        }
        hash.finalize().into()
    }

    /// Returns the number of positions at which both sets do the same, from the first.
    pub(crate) fn common(&self, other: &AdapterSet) -> usize {
        let alone = |own: &AdapterSet, other: &AdapterSet| {
            let alone = own.used.iter().filter(|used| !other.used.contains(used));
            alone.map(|used| used.from).min().unwrap_or(usize::MAX)
        };
        alone(self, other).min(alone(other, self))
    }

    /// Returns the set after the tokens at these positions were dropped.
    pub(crate) fn without(&self, dropped: &Range<usize>) -> AdapterSet {
        let moved = |used: &UsedAdapter| UsedAdapter {
            from: match used.from {
                from if from >= dropped.end => from - dropped.len(),
                from => from.min(dropped.start),
            },
            ..*used
        };
        AdapterSet {
            used: self.used.iter().map(moved).collect(),
            digests: self.digests.clone(),
        }
    }
}

/// All adapters of an engine.
#[derive(Debug, Default)]
pub(crate) struct Adapters {
    list: Vec<Loaded>,
    /// Factors for sequences that name none.
    scales: Mutex<Vec<f32>>,
}

#[derive(Debug)]
struct Loaded {
    path: PathBuf,
    adapter: Arc<Adapter>,
    digest: [u8; 32],
}

impl Adapters {
    /// Takes loaded adapters with their files.
    pub(crate) fn new(list: Vec<(LoraFile, Arc<Adapter>)>) -> Adapters {
        let scales = list.iter().map(|(file, _)| file.scale).collect();
        let loaded = |(file, adapter): (LoraFile, Arc<Adapter>)| Loaded {
            path: file.path,
            digest: digest(&adapter),
            adapter,
        };
        Adapters {
            list: list.into_iter().map(loaded).collect(),
            scales: Mutex::new(scales),
        }
    }

    /// Returns the adapters for a backend, by number.
    pub(crate) fn for_backend(&self) -> Vec<Arc<Adapter>> {
        self.list.iter().map(|one| one.adapter.clone()).collect()
    }

    fn scales(&self) -> Vec<f32> {
        let scales = self.scales.lock();
        scales.unwrap_or_else(PoisonError::into_inner).clone()
    }

    /// Returns the factor of each adapter, where adapters that are not named have none.
    fn scales_of(&self, named: &[LoraScale]) -> Vec<f32> {
        let mut scales = vec![0.0; self.list.len()];
        for LoraScale { id, scale } in named {
            // as llama-server does with numbers that it does not know
            if let Some(own) = scales.get_mut(*id) {
                *own = *scale;
            }
        }
        scales
    }

    /// Returns what a sequence with this prompt uses.
    fn set(&self, named: Option<&[LoraScale]>, prompt: &[u32]) -> Result<AdapterSet, Error> {
        let scales = match named {
            Some(named) if !named.is_empty() => self.scales_of(named),
            _ => self.scales(),
        };
        let mut set = AdapterSet::default();
        let mut invoked = 0;
        for (adapter, (loaded, scale)) in self.list.iter().zip(scales).enumerate() {
            let invocation = &loaded.adapter.invocation_tokens;
            if scale == 0.0 {
                continue;
            }
            invoked += usize::from(!invocation.is_empty());
            if invoked > 1 {
                return Err(Error::SeveralInvoked);
            }
            let Some(from) = first_position(invocation, prompt) else {
                continue;
            };
            set.used.push(UsedAdapter {
                adapter,
                scale,
                from,
            });
            set.digests.push(loaded.digest);
        }
        Ok(set)
    }
}

/// Returns the first position with an adapter that these tokens activate: one before their last
/// occurrence in the prompt, as in llama.cpp. `None` if they do not occur.
fn first_position(invocation: &[u32], prompt: &[u32]) -> Option<usize> {
    if invocation.is_empty() {
        return Some(0);
    }
    let at = prompt.windows(invocation.len());
    let last = at.enumerate().rfind(|(_, tokens)| *tokens == invocation);
    last.map(|(at, _)| at.saturating_sub(1))
}

/// Returns a digest of what an adapter does.
fn digest(adapter: &Adapter) -> [u8; 32] {
    let mut hash = Sha256::new();
    let (gguf, mut bytes) = (adapter.gguf(), Vec::new());
    for pair in &adapter.pairs {
        hash.update(format!("{} {}\n", pair.name, pair.scale.to_bits()));
        for half in pair.halves {
            let tensor = &gguf.tensors()[half];
            hash.update(format!("{} {:?}\n", tensor.ty, tensor.dims));
            bytes.resize(tensor.bytes as usize, 0);
            gguf.read(tensor, 0, &mut bytes);
            hash.update(&bytes);
        }
    }
    hash.finalize().into()
}

impl Engine {
    /// Returns the loaded adapters.
    pub fn adapters(&self) -> Vec<LoraInfo> {
        let adapters = self.loaded_adapters();
        let both = adapters.list.iter().zip(adapters.scales()).enumerate();
        let info = |(id, (loaded, scale)): (usize, (&Loaded, f32))| LoraInfo {
            id,
            path: loaded.path.clone(),
            scale,
            task_name: loaded.adapter.task_name.clone(),
            prompt_prefix: loaded.adapter.prompt_prefix.clone(),
            invocation_tokens: loaded.adapter.invocation_tokens.clone(),
        };
        both.map(info).collect()
    }

    /// Sets the factors for sequences that name none; adapters that are not named get 0.
    pub fn set_adapter_scales(&self, named: &[LoraScale]) {
        let adapters = self.loaded_adapters();
        let scales = adapters.scales_of(named);
        let mut own = adapters.scales.lock();
        **own.as_mut().unwrap_or_else(|error| error.get_mut()) = scales;
    }

    /// Returns the adapters of a sequence that begins with this prompt: those named, or those of
    /// the defaults.
    ///
    /// # Errors
    /// If more than one of them is activated by tokens.
    pub(crate) fn adapter_set(
        &self,
        named: Option<&[LoraScale]>,
        prompt: &[u32],
    ) -> Result<Arc<AdapterSet>, Error> {
        self.loaded_adapters().set(named, prompt).map(Arc::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_adapter_begins_one_before_the_last_occurrence() {
        assert_eq!(first_position(&[], &[1, 2]), Some(0));
        assert_eq!(first_position(&[3, 4], &[1, 2]), None);
        assert_eq!(first_position(&[3, 4], &[3, 4, 1]), Some(0));
        assert_eq!(first_position(&[3, 4], &[3, 4, 3, 4, 5]), Some(1));
        assert_eq!(first_position(&[3, 4], &[0, 0, 3, 4]), Some(1));
        assert_eq!(first_position(&[1, 2, 3], &[1, 2]), None);
    }

    #[test]
    fn pages_differ_by_adapter_scale_and_where_it_begins() {
        let set = |digest: u8, scale, from| AdapterSet {
            used: vec![UsedAdapter {
                adapter: 0,
                scale,
                from,
            }],
            digests: vec![[digest; 32]],
        };
        let one = set(1, 1.0, 20);
        assert_eq!(one.key(0..16), AdapterSet::NONE.key(0..16));
        let mut all = vec![
            AdapterSet::NONE.key(16..32),
            one.key(16..32),
            set(1, 0.5, 20).key(16..32),
            set(1, 1.0, 21).key(16..32),
            set(2, 1.0, 20).key(16..32),
            one.key(32..48),
        ];
        assert_eq!(set(1, 1.0, 21).key(32..48), one.key(32..48));
        assert_eq!(one.without(&(4..12)).used()[0].from, 12);
        assert_eq!(one.without(&(16..32)).used()[0].from, 16);
        assert_eq!(one.without(&(24..32)).used()[0].from, 20);
        let n = all.len();
        all.sort_unstable();
        all.dedup();
        assert_eq!(all.len(), n);
    }
}
