//! Tensor parallelism: a model on several ranks, each with some rows of every matrix. Rank 0 has
//! the engine and decides what is computed, the others follow. They communicate through a
//! [`Collective`].
//!
//! Only words and parts of rows go from rank to rank, and only rank 0 decides anything, so that no
//! two ranks can disagree about what is next.

pub(super) mod gathered;
mod heads;
mod message;
pub(super) mod on_device;
mod rank_device;
pub(super) mod share;
mod worker;

use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use gguf_rs_lite::Gguf;
use octavo_kernels::{Collective, SharedPool, Step};
use octavo_model::Model;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::{Backend, LoadingSink, TapSink, cpu, cuda};
use crate::error::Error;
use crate::source::ModelSource;
use message::{Asked, Message};
pub use on_device::OnDevice;
use rank_device::RankDevice;
pub use rank_device::{Open, Opened, open_gpu, open_gpu_by_nccl};
pub use worker::{serve, serve_on};

/// A tensor parallel group, as rank 0 sees it. Clones are the same group.
#[derive(Clone, Debug)]
pub struct TensorParallelGroup(Arc<Inner>);

#[derive(Debug)]
struct Inner {
    link: Arc<dyn Collective>,
    /// Opens the device of this rank, if it is not to compute on a CPU.
    open: Open,
    /// Whether the group has a model already.
    is_taken: AtomicBool,
}

impl TensorParallelGroup {
    /// Creates the group of the ranks that this one, which is rank 0, reaches over the link. All
    /// others [`serve`] it.
    ///
    /// # Panics
    /// If this is another rank.
    pub fn new(link: Arc<dyn Collective>) -> TensorParallelGroup {
        TensorParallelGroup::on(link, open_gpu)
    }

    /// As [`TensorParallelGroup::new`], with other devices in place of GPUs.
    ///
    /// # Panics
    /// As [`TensorParallelGroup::new`].
    pub fn on(link: Arc<dyn Collective>, open: Open) -> TensorParallelGroup {
        assert_eq!(link.rank(), 0, "the rank that says what is done");
        TensorParallelGroup(Arc::new(Inner {
            link,
            open,
            is_taken: AtomicBool::new(false),
        }))
    }

    /// Returns the number of ranks.
    pub fn ranks(&self) -> usize {
        self.0.link.ranks()
    }

    /// Ends the other ranks; nothing can be computed with them after that.
    pub fn stop(&self) {
        self.say(&Message::Stop);
    }

    fn say(&self, message: &Message<'_>) {
        self.0.link.broadcast(&mut message::other(message));
    }
}

/// Description of the model and options that the other ranks are to prepare.
#[derive(Clone, Debug, Serialize, Deserialize)]
struct Described {
    version: String,
    /// `None` is the model inside the program.
    path: Option<PathBuf>,
    /// Digest of keys, tensors and some of their data.
    digest: String,
    mmap: bool,
    positions: usize,
    isa: String,
    threads: Option<usize>,
    kv_type: String,
    prompt_bits: String,
    n_pages: usize,
    n_states: usize,
    repack: bool,
    lock: bool,
    gpus: Option<DescribedGpus>,
}

/// Options of GPUs, if they compute.
#[derive(Clone, Copy, Debug, Serialize, Deserialize)]
struct DescribedGpus {
    /// Number of rank 0's GPU.
    first: usize,
    rows: usize,
    outputs: usize,
    sequences: usize,
    graphs: bool,
    check_pages: bool,
}

impl DescribedGpus {
    fn new(first: usize, options: &cuda::Options) -> DescribedGpus {
        let cuda::Options {
            limits,
            graphs,
            check_pages,
            ..
        } = *options;
        DescribedGpus {
            first,
            rows: limits.rows,
            outputs: limits.outputs,
            sequences: limits.sequences,
            graphs,
            check_pages,
        }
    }
}

/// Options of a model on several ranks, beside its file.
pub(crate) struct RankOptions<'a> {
    pub(crate) source: &'a ModelSource,
    pub(crate) mmap: bool,
    /// Context length of a sequence.
    pub(crate) positions: usize,
    /// Threads asked for; each rank has as many.
    pub(crate) threads: Option<usize>,
    pub(crate) cpu: &'a cpu::Options,
    /// If GPUs compute: the number of rank 0's, and the options.
    pub(crate) gpus: Option<(usize, &'a cuda::Options)>,
}

impl Described {
    fn new(options: &RankOptions<'_>, gguf: &Gguf) -> Described {
        let cpu::Options {
            isa,
            kv_type,
            n_pages,
            n_states,
            prompt_bits,
            repack,
            lock,
            ..
        } = *options.cpu;
        Described {
            version: env!("CARGO_PKG_VERSION").to_owned(),
            path: match options.source {
                ModelSource::Path(path) => Some(path.clone()),
                // the digest shows the other ranks that theirs has other keys
                ModelSource::Demo
                | ModelSource::Assistant { .. }
                | ModelSource::Changed { .. }
                | ModelSource::MtpLayer(_) => None,
            },
            digest: digest(gguf),
            mmap: options.mmap,
            positions: options.positions,
            isa: isa.to_string(),
            threads: options.threads,
            kv_type: kv_type.to_string(),
            prompt_bits: prompt_bits.to_string(),
            n_pages,
            n_states,
            repack,
            lock,
            gpus: options
                .gpus
                .map(|(first, options)| DescribedGpus::new(first, options)),
        }
    }
}

/// Returns the SHA-256 of a file's keys and tensors, and of the first row of each tensor, which
/// distinguishes models that were fine-tuned from the same one.
fn digest(gguf: &Gguf) -> String {
    let mut hash = Sha256::new();
    for (key, value) in gguf.keys() {
        hash.update(format!("{key} {value:?}\n"));
    }
    for tensor in gguf.tensors() {
        let (name, ty, dims) = (&tensor.name, tensor.ty, &tensor.dims);
        let offset = gguf.file_offset(tensor);
        hash.update(format!("{name} {ty} {dims:?} {offset:?}\n"));
        let row = dims.first().and_then(|n| ty.row_bytes(*n));
        // a file may claim such a row, but cannot have it
        let row = row.filter(|n| *n <= gguf.file_bytes());
        let mut row = vec![0; row.unwrap_or(0) as usize];
        gguf.read(tensor, 0, &mut row);
        hash.update(&row);
    }
    let bytes = hash.finalize();
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

/// Prepares a model on all ranks.
///
/// # Errors
/// If it cannot be divided among this many ranks, or a rank cannot prepare its shard.
pub(crate) fn prepare(
    tp_group: &TensorParallelGroup,
    gguf: &Arc<Gguf>,
    model: &Model,
    options: &RankOptions<'_>,
    sink: &mut LoadingSink<'_>,
) -> Result<Box<dyn Backend>, Error> {
    let (link, ranks) = (&tp_group.0.link, tp_group.ranks());
    if !heads::is_possible(model, ranks) {
        return Err(Error::Ranks {
            file: gguf.name().to_owned(),
            ranks,
            possible: heads::possible(model),
        });
    }
    if tp_group.0.is_taken.swap(true, Ordering::SeqCst) {
        return Err(Error::RanksTaken);
    }
    let described = Described::new(options, gguf);
    let text = serde_json::to_string(&described).expect("text and numbers");
    let words: Vec<u32> = text.bytes().map(u32::from).collect();
    tp_group.say(&Message::Load(&words));
    let device = match options.gpus {
        None => Ok(RankDevice::Cpu(options.cpu.clone())),
        Some((first, options)) => {
            let opened = (tp_group.0.open)(&**link, first);
            opened.map(|opened| RankDevice::Device(opened, *options))
        }
    };
    let prepared = agreed(tp_group, device.map_err(Error::from))
        .and_then(|device| agreed(tp_group, device.prepare(link, gguf, model, sink)));
    match prepared {
        Ok(mine) => Ok(Box::new(Ranks {
            mine,
            on_gpus: options.gpus.is_some(),
            tp_group: tp_group.clone(),
            words: Vec::new(),
        })),
        Err(error) => {
            tp_group.0.is_taken.store(false, Ordering::SeqCst);
            Err(error)
        }
    }
}

/// Returns rank 0's result if all ranks succeeded.
fn agreed<T>(tp_group: &TensorParallelGroup, mine: Result<T, Error>) -> Result<T, Error> {
    let failed = agree(
        &*tp_group.0.link,
        mine.as_ref().err().map(ToString::to_string),
    );
    match (mine, failed) {
        (Ok(mine), None) => Ok(mine),
        (Err(error), _) => Err(error),
        (Ok(_), Some((rank, why))) => Err(Error::Rank {
            rank,
            ranks: tp_group.ranks(),
            why,
        }),
    }
}

/// Exchanges errors among all ranks, which call it together: returns the first rank that failed,
/// and why, in a line.
pub fn agree(link: &dyn Collective, why: Option<String>) -> Option<(usize, String)> {
    let mine: Vec<f32> = why
        .iter()
        .flat_map(|why| why.bytes())
        .map(f32::from)
        .collect();
    let mut lens = vec![0.0; link.ranks()];
    link.all_gather(&[mine.len() as f32], &vec![1; link.ranks()], &mut lens);
    let lens: Vec<usize> = lens.iter().map(|len| *len as usize).collect();
    if lens.iter().all(|len| *len == 0) {
        return None;
    }
    let mut all = vec![0.0; lens.iter().sum()];
    link.all_gather(&mine, &lens, &mut all);
    let rank = lens.iter().position(|len| *len > 0)?;
    let why: Vec<u8> = all[..lens[rank]].iter().map(|byte| *byte as u8).collect();
    Some((rank, String::from_utf8_lossy(&why).into_owned()))
}

/// A model on several ranks, as rank 0 has it.
struct Ranks {
    /// Shard of rank 0.
    mine: Box<dyn Backend>,
    on_gpus: bool,
    tp_group: TensorParallelGroup,
    /// Buffer for the words of a step.
    words: Vec<u32>,
}

impl Ranks {
    fn tell(&mut self, step: &Step<'_>, asked: Asked) {
        message::step(step, asked, &mut self.words);
        self.tp_group.0.link.broadcast(&mut self.words);
    }
}

/// Ends a rank that cannot go on in the middle of an operation of all ranks.
fn give_up(link: &dyn Collective, error: &impl ToString) -> ! {
    link.give_up(&error.to_string())
}

impl Backend for Ranks {
    fn batch(&self) -> usize {
        self.mine.batch()
    }

    fn step(&mut self, step: &Step<'_>, tap: Option<&mut TapSink<'_>>) -> Result<&[f32], Error> {
        self.tell(
            step,
            match tap {
                Some(_) => Asked::Shown,
                None => Asked::Outputs,
            },
        );
        let Ranks { mine, tp_group, .. } = self;
        let logits = mine.step(step, tap);
        logits.map_err(|error| give_up(&*tp_group.0.link, &error))
    }

    fn argmax(&mut self, step: &Step<'_>) -> Result<Vec<Option<u32>>, Error> {
        // a GPU computes the argmax itself, inside its captured graph, so all ranks must; on CPUs
        // it is not needed of the others
        self.tell(
            step,
            match self.on_gpus {
                true => Asked::Argmax,
                false => Asked::Outputs,
            },
        );
        let best = self.mine.argmax(step);
        best.map_err(|error| give_up(&*self.tp_group.0.link, &error))
    }

    fn kept_rows(&mut self) -> Result<Vec<f32>, Error> {
        self.mine.kept_rows()
    }

    fn copy_page(&mut self, group: usize, from: u32, to: u32) -> Result<(), Error> {
        self.tp_group.say(&Message::Copy { group, from, to });
        self.mine.copy_page(group, from, to)
    }

    fn release_scratch(&mut self) {
        self.tp_group.say(&Message::ReleaseScratch);
        self.mine.release_scratch();
    }

    fn cache_groups(&self) -> usize {
        self.mine.cache_groups()
    }

    fn n_pages(&self) -> usize {
        self.mine.n_pages()
    }

    fn n_states(&self) -> usize {
        self.mine.n_states()
    }

    fn weight_bytes(&self) -> u64 {
        self.mine.weight_bytes()
    }

    fn pool(&self) -> Option<SharedPool> {
        self.mine.pool()
    }

    fn describe(&self) -> String {
        let ranks = self.tp_group.ranks();
        format!("{ranks} ranks, each: {}", self.mine.describe())
    }
}

impl Drop for Ranks {
    fn drop(&mut self) {
        // a rank that panics ends, and the others learn of it
        if !std::thread::panicking() {
            self.tp_group.say(&Message::Unload);
            self.tp_group.0.is_taken.store(false, Ordering::SeqCst);
        }
    }
}
