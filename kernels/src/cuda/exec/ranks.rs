//! All-gather of rows of which each rank has computed a part.

use super::launches::{LaunchContext, List, small};
use crate::cuda::params::JoinParts;
use crate::cuda::{Gather, launch};
use crate::program::Slot;
use crate::ranks::Cut;

impl LaunchContext<'_> {
    /// Gathers the ranks' parts of some rows, and arranges them as rows where they are not
    /// contiguous.
    pub(super) fn all_gather(&self, x: Slot, cut: Cut, out: Slot, list: &mut List) {
        let ranks = self
            .ranks
            .expect("`check`: a program that gathers has others");
        let rows = self.rows(out);
        let is_in_order = cut.is_in_order(rows);
        let all = match is_in_order {
            true => self.slot(out),
            false => self.at(self.plan.gathered),
        };
        list.gather = Some(Gather {
            mine: self.slot(x),
            all,
            lens: cut.lens(rows, ranks.ranks()),
            by: ranks.clone(),
        });
        if !is_in_order {
            list.launches.push(launch::join_parts(&JoinParts {
                parts: all,
                out: self.slot(out),
                n: self.elements(out) as u64,
                width: small(cut.width),
                grain: small(cut.grain),
                grains: small(cut.grains()),
                ranks: small(ranks.ranks()),
            }));
        }
    }
}
