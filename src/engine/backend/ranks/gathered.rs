//! Shows tap values that are divided among tensor parallel ranks as whole rows.

use std::sync::Arc;

use octavo_kernels::{Collective, Cut, gather_rows};

use super::share::Share;
use crate::backend::TapSink;
use crate::backend::lower::Taps;

/// Results of a rank's shard that are parts of rows, and the link to the ranks with the other
/// parts.
pub(in crate::backend) struct Gathered {
    ranks: Arc<dyn Collective>,
    /// By operation: how its result is divided, if it is.
    cuts: Vec<Option<Cut>>,
}

impl Gathered {
    /// Creates it for a shard.
    pub(in crate::backend) fn new(ranks: Arc<dyn Collective>, share: &Share<'_>) -> Gathered {
        let cuts = share.cuts.clone();
        Gathered { ranks, cuts }
    }

    /// As [`Taps::show`], with whole rows.
    ///
    /// # Panics
    /// If values that are divided are to be replaced.
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
