//! Ranks whose programs run on devices: how parts of rows get from the memory of one's device into
//! that of the others'.
//!
//! A gather stands in the list of what a device does, between launches. One that devices do by
//! themselves is captured with them, and the host waits for nothing; what goes through the host
//! works everywhere, and waits for everything before it.

#[cfg(feature = "nccl")]
mod nccl;

use std::fmt::Debug;
use std::sync::Arc;

#[cfg(feature = "nccl")]
pub use nccl::Nccl;

use super::{Device, Error, HostBuffer, Launch, Ptr};
use crate::ranks::Collective;

/// Parts of rows, of which each rank brings its own and takes all.
#[derive(Clone, Debug)]
pub struct Gather {
    /// This rank's part.
    pub mine: Ptr,
    /// Where all parts go, side by side in the order of ranks. It has nothing of `mine`.
    pub all: Ptr,
    /// Floats of each part.
    pub lens: Vec<usize>,
    /// Who does it.
    pub by: Arc<dyn DeviceCollective>,
}

/// Something that a device does, in the order in which it is asked for.
#[derive(Clone, Debug)]
pub enum Task {
    /// Runs a kernel.
    Launch(Launch),
    /// Brings the parts of all ranks together.
    Gather(Gather),
}

impl Task {
    /// Has a device do it.
    ///
    /// # Safety
    /// As [`Device::launch`], or [`DeviceCollective::all_gather`].
    ///
    /// # Errors
    /// If the device fails.
    pub unsafe fn start(&self, device: &mut dyn Device) -> Result<(), Error> {
        // SAFETY: the caller's promise.
        unsafe {
            match self {
                Task::Launch(launch) => device.launch(launch),
                Task::Gather(gather) => gather.by.all_gather(device, gather),
            }
        }
    }
}

/// How the ranks that compute a program together reach the memory of each other's devices. All of
/// them ask for the same gathers in the same order.
pub trait DeviceCollective: Debug + Send + Sync {
    /// How many ranks there are.
    fn ranks(&self) -> usize;

    /// Which of them this is.
    fn rank(&self) -> usize;

    /// Whether devices do it by themselves, in the order of what else they were asked for, so that
    /// it is captured like a launch.
    fn is_enqueued(&self) -> bool;

    /// Brings the parts of all ranks together. What the device does next finds them; it may not be
    /// done when this returns.
    ///
    /// # Safety
    /// Both ranges are in allocations of this device, and do not overlap; this rank's part was
    /// written.
    ///
    /// # Errors
    /// If the device fails, or the others cannot be reached.
    unsafe fn all_gather(&self, device: &mut dyn Device, gather: &Gather) -> Result<(), Error>;
}

/// Gathers in the host's memory: works with any devices, and any way to reach the others.
#[derive(Clone, Debug)]
pub struct ThroughHost(Arc<dyn Collective>);

impl ThroughHost {
    /// Among these ranks.
    pub fn new(ranks: Arc<dyn Collective>) -> ThroughHost {
        ThroughHost(ranks)
    }
}

impl DeviceCollective for ThroughHost {
    fn ranks(&self) -> usize {
        self.0.ranks()
    }

    fn rank(&self) -> usize {
        self.0.rank()
    }

    fn is_enqueued(&self) -> bool {
        false
    }

    unsafe fn all_gather(&self, device: &mut dyn Device, gather: &Gather) -> Result<(), Error> {
        let mut mine = HostBuffer::plain(gather.lens[self.rank()]);
        let n = mine.len();
        device.download(gather.mine, mine.bytes_mut(n))?;
        let mut all = vec![0.0; gather.lens.iter().sum()];
        self.0.all_gather(mine.floats(), &gather.lens, &mut all);
        device.upload_floats(gather.all, &all)
    }
}
