//! A rank that follows rank 0.

use std::fmt::Display;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::{Collective, IsaChoice};
use octavo_model::Model;

use super::message::{self, Asked, Message};
use super::rank_device::{Open, RankDevice, open_gpu};
use super::{Described, DescribedGpus, agree, digest, give_up};
use crate::backend::cuda::Limits;
use crate::backend::{Backend, TapView, cpu, cuda};
use crate::source::ModelSource;
use crate::threads::default_threads;

/// Serves rank 0 until it says stop: prepares shards of models and computes its part of steps.
pub fn serve(link: &Arc<dyn Collective>) {
    serve_on(link, open_gpu);
}

/// As [`serve`], with other devices in place of GPUs.
pub fn serve_on(link: &Arc<dyn Collective>, open: Open) {
    let (mut words, mut model) = (Vec::new(), None);
    loop {
        link.broadcast(&mut words);
        match message::read(&words) {
            Some(Message::Load(described)) => {
                // one at a time: there may be no room for two
                drop(model.take());
                model = prepare(link, open, described);
            }
            Some(Message::Unload) => model = None,
            Some(Message::Stop) => return,
            Some(Message::Step(step, asked)) => {
                let model = loaded(&mut model);
                let done = step.with(|step| {
                    let mut nobody = |_: &TapView<'_>| {};
                    match asked {
                        Asked::Outputs => model.step(step, None).map(drop),
                        Asked::Argmax => model.argmax(step).map(drop),
                        Asked::Shown => model.step(step, Some(&mut nobody)).map(drop),
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
            Some(Message::ReleaseScratch) => loaded(&mut model).release_scratch(),
            None => unreachable!("rank 0 is of the same version"),
        }
    }
}

fn loaded(model: &mut Option<Box<dyn Backend>>) -> &mut dyn Backend {
    let model = model.as_mut().expect("rank 0 has a model: all have");
    &mut **model
}

/// Prepares this rank's shard of the described model; `None` unless all ranks succeed.
fn prepare(link: &Arc<dyn Collective>, open: Open, described: &[u32]) -> Option<Box<dyn Backend>> {
    let Ready {
        gguf,
        model,
        device,
    } = agreed(link, ready(link, open, described))?;
    let mine = device.prepare(link, &gguf, &model, &mut |_| {});
    agreed(link, mine.map_err(line))
}

/// Returns this rank's result if all ranks succeeded.
fn agreed<T>(link: &Arc<dyn Collective>, mine: Result<T, String>) -> Option<T> {
    let failed = agree(&**link, mine.as_ref().err().cloned());
    mine.ok().filter(|_| failed.is_none())
}

/// An opened model, and the device for this rank's shard of it.
struct Ready {
    gguf: Arc<Gguf>,
    model: Model,
    device: RankDevice,
}

/// Opens the described model and a device, or says why it cannot.
fn ready(link: &Arc<dyn Collective>, open: Open, described: &[u32]) -> Result<Ready, String> {
    let text: Vec<u8> = described.iter().map(|byte| *byte as u8).collect();
    let described: Described = serde_json::from_slice(&text).map_err(line)?;
    let own = env!("CARGO_PKG_VERSION");
    if described.version != own {
        let theirs = described.version;
        return Err(format!(
            "version {own}: expected {theirs}, as rank 0 has it"
        ));
    }
    let source = match &described.path {
        Some(path) => ModelSource::Path(path.clone()),
        None => ModelSource::Demo,
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
    let device = match described.gpus {
        None => RankDevice::Cpu(described.on_cpu()?),
        Some(gpus) => {
            let opened = open(&**link, gpus.first).map_err(line)?;
            RankDevice::Device(opened, described.on_gpu(&gpus)?)
        }
    };
    Ok(Ready {
        gguf,
        model,
        device,
    })
}

impl Described {
    fn threads(&self) -> usize {
        self.threads.unwrap_or_else(default_threads).max(1)
    }

    fn on_cpu(&self) -> Result<cpu::Options, String> {
        let isa = self.isa.parse::<IsaChoice>().map_err(line)?;
        Ok(cpu::Options {
            isa: isa.resolve().map_err(line)?,
            threads: self.threads(),
            pool: None,
            kv_type: self.kv_type.parse()?,
            n_pages: self.n_pages,
            n_states: self.n_states,
            prompt_bits: self.prompt_bits.parse()?,
            repack: self.repack,
            lock: self.lock,
            weights: None,
            adapters: Vec::new(),
        })
    }

    fn on_gpu(&self, gpus: &DescribedGpus) -> Result<cuda::Options, String> {
        Ok(cuda::Options {
            kv_type: self.kv_type.parse()?,
            limits: Limits {
                rows: gpus.rows,
                outputs: gpus.outputs,
                sequences: gpus.sequences,
                positions: self.positions,
                n_pages: self.n_pages,
                states: self.n_states,
            },
            graphs: gpus.graphs,
            check_pages: gpus.check_pages,
            threads: self.threads(),
        })
    }
}

fn line(error: impl Display) -> String {
    error.to_string()
}
