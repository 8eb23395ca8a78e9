//! Devices of ranks: CPU threads, or a device that gathers with those of the other ranks.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::Collective;
use octavo_kernels::cuda::{Gpu, Nccl, ThroughHost, gpus};
use octavo_model::Model;

use super::on_device::OnDevice;
use super::share::Share;
use crate::backend::cpu::{self, Cpu};
use crate::backend::cuda::{self, Cuda};
use crate::backend::rotate::Stored;
use crate::backend::{Backend, Loading, LoadingSink};
use crate::error::Error;

/// A device that is open and still has to connect to those of the other ranks, which all do at the
/// same time.
pub type Opened = Box<dyn FnOnce(Arc<dyn Collective>) -> Result<OnDevice, cuda::Error> + Send>;

/// Opens the device of one of several ranks, given the number of rank 0's. A rank that cannot
/// reports it here, so that no other rank waits for it later.
pub type Open = fn(&dyn Collective, usize) -> Result<Opened, cuda::Error>;

/// Opens a rank's GPU, which gathers through the hosts' memory: each rank has the next GPU of its
/// machine, starting over after the last.
///
/// # Errors
/// One line that says what is missing.
pub fn open_gpu(link: &dyn Collective, first: usize) -> Result<Opened, cuda::Error> {
    let gpu = next_gpu(link, first)?;
    Ok(Box::new(move |link| {
        Ok(OnDevice {
            device: Box::new(gpu),
            ranks: Arc::new(ThroughHost::new(link)),
        })
    }))
}

/// Opens a rank's GPU as [`open_gpu`], which gathers by NCCL: each rank needs a GPU of its own.
///
/// # Errors
/// As [`open_gpu`], and if NCCL is not there.
pub fn open_gpu_by_nccl(link: &dyn Collective, first: usize) -> Result<Opened, cuda::Error> {
    let gpu = next_gpu(link, first)?;
    Nccl::find()?;
    Ok(Box::new(move |link| {
        let ranks = Arc::new(Nccl::join(&gpu, &*link)?);
        Ok(OnDevice {
            device: Box::new(gpu),
            ranks,
        })
    }))
}

/// Opens the GPU of a rank.
fn next_gpu(link: &dyn Collective, first: usize) -> Result<Gpu, cuda::Error> {
    let n = gpus()?.len().max(1);
    cuda::open((first + link.rank()) % n)
}

/// The device for a rank's shard, with its options.
pub(super) enum RankDevice {
    Cpu(cpu::Options),
    Device(Opened, cuda::Options),
}

impl RankDevice {
    /// Prepares this rank's shard there, while the other ranks prepare theirs.
    pub(super) fn prepare(
        self,
        link: &Arc<dyn Collective>,
        gguf: &Arc<Gguf>,
        model: &Model,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Box<dyn Backend>, Error> {
        let kv_type = match &self {
            RankDevice::Cpu(options) => options.kv_type,
            RankDevice::Device(_, options) => options.kv_type,
        };
        let stored = Stored::of(model, kv_type);
        let share = Share::of(&stored, link.rank(), link.ranks());
        match self {
            RankDevice::Cpu(options) => {
                let mut progress = |done: u64, total: u64| sink(Loading::Weights { done, total });
                let link = link.clone();
                let cpu = Cpu::prepare_share(gguf, share, link, &options, &mut progress)?;
                Ok(Box::new(cpu))
            }
            RankDevice::Device(opened, options) => {
                let on = opened(link.clone())?;
                let link = link.clone();
                let cuda = Cuda::prepare_share(on, link, gguf, &share, &options, sink)?;
                Ok(Box::new(cuda))
            }
        }
    }
}
