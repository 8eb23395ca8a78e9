//! Assistants: draft models whose layers have no keys and values of their own and read those that
//! another model, their target, has cached: windowed layers those of the target's last layer but
//! one, the others those of its last layer. An assistant's input is made of the target's embedding
//! of a token and its hidden state before it; its graph stands on the target's cache groups.
//!
//! A token at position `p` sees the positions before it and not itself, for there are no keys of it
//! yet. So it is computed as if it stood at `p - 1`, rotated by `p`, with windows shorter by one.

use gguf_rs_lite::Gguf;

use crate::Model;
use crate::arch::Arch;
use crate::error::Error;
use crate::graph::HiddenRows;
use crate::hparams::{Hparams, LayerHparams};

/// Returns whether a file is an assistant, which is of use only beside its target.
pub fn is_assistant(gguf: &Gguf) -> bool {
    Arch::of_file(gguf).is_ok_and(|arch| arch.spec().assists.is_some())
}

impl Model {
    /// Loads an assistant for a target with these hyperparameters.
    ///
    /// # Errors
    /// As [`Model::load`]; [`Error::NoAssistant`] if the file is no assistant for targets of this
    /// architecture; [`Error::OtherTarget`] if it cannot read this target's cache.
    pub fn load_assistant(gguf: &Gguf, target: &Hparams) -> Result<Model, Error> {
        let mut h = Hparams::from_gguf(gguf)?;
        let expected = target.arch.name();
        if h.arch.spec().assists != Some(expected) {
            return Err(Error::NoAssistant {
                file: gguf.name().to_owned(),
                arch: h.arch.name(),
                expected,
            });
        }
        read_cache_of(&mut h, target, gguf.name())?;
        Model::build(gguf, h, HiddenRows::Outputs)
    }

    /// Returns whether it reads the cache of another model.
    pub fn is_assistant(&self) -> bool {
        self.weights.assistant.is_some()
    }
}

/// Lets the layers of an assistant read those of its target's cache.
fn read_cache_of(h: &mut Hparams, target: &Hparams, file: &str) -> Result<(), Error> {
    let other = |what: String, expected: usize, got: usize| match got == expected {
        true => Ok(()),
        false => Err(Error::OtherTarget {
            file: file.to_owned(),
            what,
            expected,
            got,
        }),
    };
    let width = |what: &str, expected, got| other(what.to_owned(), expected, got);
    width("embedding_length_out", target.n_embd(), h.n_embd_target)?;
    width("a vocabulary of", target.n_vocab(), h.n_vocab())?;
    let last = target.n_layer() - 1;
    for (l, layer) in h.layers.iter_mut().enumerate() {
        let from = match layer.scores.window {
            Some(_) => last.saturating_sub(1),
            None => last,
        };
        let read = &target.layers[from];
        let sizes = |layer: &LayerHparams| {
            let window = layer.scores.window.unwrap_or(0);
            [window, layer.n_head_kv, layer.head_dim]
        };
        let names = ["a window of", "key heads:", "a head width of"];
        for (name, (expected, got)) in names
            .into_iter()
            .zip(sizes(read).into_iter().zip(sizes(layer)))
        {
            other(format!("layer {l}, {name}"), expected, got)?;
        }
        (layer.cache, layer.scores.images) = (read.cache, false);
        layer.scores.window = layer.scores.window.map(|window| window - 1);
        if layer.scores.window == Some(0) {
            return Err(Error::OtherTarget {
                file: file.to_owned(),
                what: format!("layer {l}, a window of"),
                expected: 2,
                got: 1,
            });
        }
    }
    h.caches.clone_from(&target.caches);
    Ok(())
}
