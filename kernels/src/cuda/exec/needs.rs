//! Memory that a model takes on a device.

use std::fmt;

/// Device memory that a model takes, in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Needs {
    /// Weights in the kernels' layout.
    pub weights: u64,
    /// Keys and values.
    pub kv: u64,
    /// Recurrent states of sequences.
    pub states: u64,
    /// Step buffers.
    pub buffers: u64,
}

impl Needs {
    /// Returns the sum of all.
    pub fn total(&self) -> u64 {
        self.weights
            .saturating_add(self.kv)
            .saturating_add(self.states)
            .saturating_add(self.buffers)
    }
}

impl fmt::Display for Needs {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mib = |bytes: u64| bytes.div_ceil(1 << 20);
        let Needs {
            weights,
            kv,
            states,
            buffers,
        } = *self;
        let (total, weights, kv) = (mib(self.total()), mib(weights), mib(kv));
        write!(f, "{total} MiB (weights {weights}, KV cache {kv}, ")?;
        if states > 0 {
            write!(f, "states {}, ", mib(states))?;
        }
        write!(f, "buffers {})", mib(buffers))
    }
}
