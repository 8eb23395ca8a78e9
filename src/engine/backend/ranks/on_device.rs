//! A device of a rank, with its link to the other ranks.

use std::sync::Arc;

use octavo_kernels::cuda::{Device, DeviceCollective};

/// A device, and its link to those of the other ranks.
pub struct OnDevice {
    /// The device.
    pub device: Box<dyn Device>,
    /// Link to the devices of the other ranks.
    pub ranks: Arc<dyn DeviceCollective>,
}
