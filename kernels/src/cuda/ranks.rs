//! Tensor parallel ranks on devices: all-gather of parts of rows between the memories of their
//! devices.
//!
//! A gather is a task between a device's launches. One that devices run by themselves is captured
//! with the launches, without waiting on the host; one through the host works everywhere, but waits
//! for all earlier work.

mod nccl;

use std::fmt::Debug;
use std::sync::Arc;

pub use nccl::Nccl;

use super::{Device, Error, HostBuffer, Launch, Ptr};
use crate::ranks::Collective;

/// An all-gather: each rank contributes its part of rows and receives all parts.
#[derive(Clone, Debug)]
pub struct Gather {
    /// This rank's part.
    pub mine: Ptr,
    /// Destination of all parts, concatenated in rank order. It does not overlap `mine`.
    pub all: Ptr,
    /// Length of each part in floats.
    pub lens: Vec<usize>,
    /// Implementation that runs it.
    pub by: Arc<dyn DeviceCollective>,
}

/// A unit of work enqueued on a device, in call order.
#[derive(Clone, Debug)]
pub enum Task {
    /// Runs a kernel.
    Launch(Launch),
    /// Gathers the parts of all ranks.
    Gather(Gather),
}

impl Task {
    /// Starts the task on a device.
    ///
    /// # Safety
    /// As [`Device::launch`], or [`DeviceCollective::all_gather`].
    ///
    /// # Errors
    /// If the device fails.
    pub unsafe fn start(&self, device: &mut dyn Device) -> Result<(), Error> {
        // SAFETY: guaranteed by the caller.
        unsafe {
            match self {
                Task::Launch(launch) => device.launch(launch),
                Task::Gather(gather) => gather.by.all_gather(device, gather),
            }
        }
    }
}

/// Communication between the devices of tensor parallel ranks. All ranks must request the same
/// gathers in the same order.
pub trait DeviceCollective: Debug + Send + Sync {
    /// Returns the number of ranks.
    fn ranks(&self) -> usize;

    /// Returns this rank's index.
    fn rank(&self) -> usize;

    /// Whether gathers are enqueued on the device, in order with its other work, so that they can
    /// be captured like launches.
    fn is_enqueued(&self) -> bool;

    /// Gathers the parts of all ranks. Later work on the device sees the result; it may not be
    /// complete when this returns.
    ///
    /// # Safety
    /// Both ranges are in allocations of this device and do not overlap; this rank's part was
    /// written.
    ///
    /// # Errors
    /// If the device fails, or the other ranks cannot be reached.
    unsafe fn all_gather(&self, device: &mut dyn Device, gather: &Gather) -> Result<(), Error>;
}

/// Gathers through host memory: works with any devices and any connection between ranks.
#[derive(Clone, Debug)]
pub struct ThroughHost(Arc<dyn Collective>);

impl ThroughHost {
    /// Creates it for these ranks.
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
