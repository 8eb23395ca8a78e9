//! A rank that does as rank 0 says.

use std::fmt::Display;
use std::sync::Arc;

use octavo_kernels::{Collective, IsaChoice};
use octavo_model::Model;

use super::message::{self, Message};
use super::{Described, Share, agree, digest, give_up};
use crate::ModelSource;
use crate::backend::Executable;
use crate::backend::cpu::{self, Cpu};
use crate::backend::rotate::Stored;
use crate::device::default_threads;

/// Serves rank 0 until that says stop: prepares shares of models, computes its part of steps.
pub fn serve(link: &Arc<dyn Collective>) {
    let (mut words, mut model) = (Vec::new(), None);
    loop {
        link.broadcast(&mut words);
        match message::read(&words) {
            Some(Message::Load(described)) => {
                // one at a time: there may be no room for two
                drop(model.take());
                let prepared = prepare(link, described);
                let failed = agree(&**link, prepared.as_ref().err().cloned());
                model = prepared.ok().filter(|_| failed.is_none());
            }
            Some(Message::Unload) => model = None,
            Some(Message::Stop) => return,
            Some(Message::Step(step, is_shown)) => {
                let done = step.with(|step| {
                    let mut nobody = |_: &crate::backend::TapView<'_>| {};
                    let cpu = loaded(&mut model);
                    match is_shown {
                        true => cpu.step(step, Some(&mut nobody)).map(|_| ()),
                        false => cpu.step(step, None).map(|_| ()),
                    }
                });
                if let Err(error) = done {
                    give_up(&**link, &error);
                }
            }
            Some(Message::Copy { group, from, to }) => {
                if let Err(error) = loaded(&mut model).copy_page(group, from, to) {
                    give_up(&**link, &error);
                }
            }
            Some(Message::Rest) => loaded(&mut model).rest(),
            None => unreachable!("rank 0 is of the same version"),
        }
    }
}

fn loaded(model: &mut Option<Cpu>) -> &mut Cpu {
    model.as_mut().expect("rank 0 has a model: all have")
}

/// This rank's share of what is described so; otherwise why it cannot be had.
fn prepare(link: &Arc<dyn Collective>, described: &[u32]) -> Result<Cpu, String> {
    let text: Vec<u8> = described.iter().map(|byte| *byte as u8).collect();
    let described: Described = serde_json::from_slice(&text).map_err(line)?;
    let own = env!("CARGO_PKG_VERSION");
    if described.version != own {
        let theirs = described.version;
        return Err(format!(
            "version {own}: expected {theirs}, as rank 0 has it"
        ));
    }
    let source = match described.path {
        Some(path) => ModelSource::Path(path),
        None => ModelSource::Demo,
    };
    let isa = described.isa.parse::<IsaChoice>().map_err(line)?;
    let options = cpu::Options {
        isa: isa.resolve().map_err(line)?,
        threads: described.threads.unwrap_or_else(default_threads).max(1),
        pool: None,
        kv_type: described.kv_type.parse()?,
        n_pages: described.n_pages,
        n_states: described.n_states,
        prompt_bits: described.prompt_bits.parse()?,
        repack: described.repack,
        lock: described.lock,
    };
    let gguf = Arc::new(source.open(described.mmap).map_err(line)?);
    if digest(&gguf) != described.digest {
        let name = gguf.name();
        return Err(format!(
            "{name}: another model: expected the keys and tensors that rank 0 has"
        ));
    }
    let mut model = Model::load(&gguf).map_err(line)?;
    model.fit_to_context(described.positions);
    let stored = Stored::of(&model, options.kv_type);
    let share = Share::of(&stored, link.rank(), link.ranks());
    Cpu::prepare_share(&gguf, share, link.clone(), &options, &mut |_, _| {}).map_err(line)
}

fn line(error: impl Display) -> String {
    error.to_string()
}
