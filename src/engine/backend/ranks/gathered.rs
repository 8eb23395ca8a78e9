//! Values that ranks show together.

use std::sync::Arc;

use octavo_kernels::{Collective, Cut, gather_rows};

use super::Share;
use crate::backend::TapSink;
use crate::backend::lower::Taps;

/// Which results of a share are parts of rows, and who has the others.
pub(in crate::backend) struct Gathered {
    ranks: Arc<dyn Collective>,
    /// By operation: how its result is divided, if it is.
    cuts: Vec<Option<Cut>>,
}

impl Gathered {
    /// Of a share.
    pub(in crate::backend) fn new(ranks: Arc<dyn Collective>, share: &Share<'_>) -> Gathered {
        let cuts = share.cuts.clone();
        Gathered { ranks, cuts }
    }

    /// As [`Taps::show`], of whole rows.
    ///
    /// # Panics
    /// If other values are to stand in the place of those that are divided.
    pub(in crate::backend) fn show(
        &self,
        taps: &Taps,
        sink: &mut TapSink<'_>,
        op: usize,
        (rows, width): (usize, usize),
        data: &[f32],
    ) -> Option<Vec<f32>> {
        let Some(cut) = self.cuts[op].filter(|_| taps.is_named(op)) else {
            return taps.show(sink, op, rows, width, data);
        };
        let all = gather_rows(&*self.ranks, cut, rows, data);
        let instead = taps.show(sink, op, rows, cut.pieces * cut.width, &all);
        assert!(instead.is_none(), "other values for a part of a row");
        None
    }
}
