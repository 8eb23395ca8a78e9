//! Launches of recurrent operations, which keep a state of each sequence between steps.

use super::launches::{LaunchContext, small};
use crate::cuda::params::{CausalConv, LinearAttention, SelectiveScan, States, Wkv7};
use crate::cuda::{Launch, launch};
use crate::op::KeyHeads;
use crate::program::{self, Recurrent, Scan, Slot};

impl LaunchContext<'_> {
    /// Returns a causal convolution with `weights` weights, operation `at`.
    pub(super) fn causal_conv(
        &self,
        at: usize,
        x: Slot,
        weights: usize,
        state: usize,
        out: Slot,
    ) -> Launch {
        launch::causal_conv(&CausalConv {
            x: self.slot(x),
            weight: self.at(self.plan.vectors[&at]),
            out: self.slot(out),
            sequences: self.record.sequences(),
            states: self.states(state),
            rows: small(self.shape.rows),
            width: small(self.width(x)),
            kernel: small(weights / self.width(x)),
            unused: 0,
        })
    }

    pub(super) fn linear_attention(&self, op: &Recurrent) -> Launch {
        let heads = self.width(op.rate);
        let p = LinearAttention {
            q: self.slot(op.q),
            k: self.slot(op.k),
            v: self.slot(op.v),
            decay: self.slot(op.decay),
            rate: self.slot(op.rate),
            out: self.slot(op.out),
            states: self.states(op.state),
            heads: small(heads),
            keys: small(self.width(op.q) / op.how.key_dim),
            key_dim: small(op.how.key_dim),
            value_dim: small(self.width(op.v) / heads),
            tiled: (op.how.heads == KeyHeads::Tiled).into(),
            delta: op.how.delta.into(),
            scale: op.how.scale,
            decay_by_key: op.how.decay_by_key.into(),
        };
        launch::linear_attention(&p, small(self.shape.sequences))
    }

    /// Returns the selective scan of operation `at`.
    pub(super) fn selective_scan(&self, at: usize, op: &Scan) -> Launch {
        let p = SelectiveScan {
            x: self.slot(op.x),
            steps: self.slot(op.steps),
            b: self.slot(op.b),
            c: self.slot(op.c),
            a: self.at(self.plan.vectors[&at]),
            out: self.slot(op.out),
            states: self.states(op.state),
            width: small(self.width(op.x)),
            size: small(self.width(op.b)),
        };
        launch::selective_scan(&p, small(self.shape.sequences))
    }

    pub(super) fn wkv7(&self, op: &program::Wkv7) -> Launch {
        let heads = self.width(op.r) / op.key_dim;
        let p = Wkv7 {
            r: self.slot(op.r),
            decay: self.slot(op.decay),
            k: self.slot(op.k),
            v: self.slot(op.v),
            removed: self.slot(op.removed),
            replaced: self.slot(op.replaced),
            out: self.slot(op.out),
            states: self.states(op.state),
            heads: small(heads),
            key_dim: small(op.key_dim),
            value_dim: small(self.width(op.v) / heads),
            unused: 0,
        };
        launch::wkv7(&p, small(self.shape.sequences))
    }

    /// Returns one part of the sequences' states.
    fn states(&self, part: usize) -> States {
        States {
            slots: self.at(self.plan.state_parts[part]),
            spans: self.record.spans,
            stride: self
                .program
                .states
                .iter()
                .map(|floats| *floats as u64)
                .sum(),
        }
    }
}
