//! Launches of the operations around mixtures of experts. The choice of experts stays on the
//! device: no launch depends on it.

use super::launches::{LaunchContext, List, small};
use crate::cuda::launch::Form;
use crate::cuda::params::{
    ExpertBias, ExpertGemv, ExpertImma, Gather, Normalize, Softmax, SortExperts, TopK, WeightedSum,
};
use crate::cuda::{Launch, launch};
use crate::program::Slot;
use octavo_simd::generic::routing::TopGroups;

impl LaunchContext<'_> {
    pub(super) fn softmax(&self, x: Slot, out: Slot) -> Launch {
        let p = Softmax {
            x: self.slot(x),
            out: self.slot(out),
            n: small(self.width(x)),
            unused: 0,
        };
        launch::softmax(&p, small(self.rows(x)))
    }

    pub(super) fn top_k(&self, x: Slot, groups: Option<TopGroups>, out: Slot) -> Launch {
        let width = self.width(x);
        // without groups, each value is a group of its own, and all are used
        let (count, used) = groups.map_or((width, width), |groups| (groups.count, groups.used));
        let p = TopK {
            x: self.slot(x),
            out: self.slot(out),
            width: small(width),
            n: small(self.width(out)),
            groups: small(count),
            used: small(used),
        };
        launch::top_k(&p, small(self.rows(x)))
    }

    pub(super) fn gather(&self, x: Slot, ids: Slot, out: Slot) -> Launch {
        launch::gather(&Gather {
            x: self.slot(x),
            ids: self.slot(ids),
            out: self.slot(out),
            total: self.elements(out) as u64,
            width: small(self.width(x)),
            n: small(self.width(out)),
        })
    }

    pub(super) fn normalize(&self, x: Slot, least: f32, out: Slot) -> Launch {
        launch::normalize(&Normalize {
            x: self.slot(x),
            out: self.slot(out),
            rows: small(self.rows(x)),
            n: small(self.width(x)),
            least,
            unused: 0,
        })
    }

    /// Sums the parts of each row of `x`, each times its weight.
    pub(super) fn weighted_sum(&self, x: Slot, weights: Slot, out: Slot) -> Launch {
        launch::weighted_sum(&WeightedSum {
            x: self.slot(x),
            weights: self.slot(weights),
            out: self.slot(out),
            total: self.elements(out) as u64,
            n: small(self.width(out)),
            count: small(self.width(weights)),
        })
    }

    /// Multiplies neighbours of a row with their factor: sums of one part each.
    pub(super) fn scale_rows(&self, x: Slot, by: Slot, out: Slot) -> Launch {
        launch::weighted_sum(&WeightedSum {
            x: self.slot(x),
            weights: self.slot(by),
            out: self.slot(out),
            total: self.elements(out) as u64,
            n: small(self.width(out) / self.width(by)),
            count: 1,
        })
    }

    /// Adds expert biases, operation `at`, with `values` bias values in total.
    pub(super) fn expert_bias(
        &self,
        at: usize,
        x: Slot,
        values: usize,
        ids: Slot,
        out: Slot,
    ) -> Launch {
        let n = self.width(x) / self.width(ids);
        launch::expert_bias(&ExpertBias {
            x: self.slot(x),
            bias: self.at(self.plan.vectors[&at]),
            ids: self.slot(ids),
            out: self.slot(out),
            total: self.elements(out) as u64,
            n: small(n),
            experts: small(values / n),
        })
    }

    /// Multiplies by expert matrices. Prefill uses this as well: a row's results are the same in
    /// both phases, and for any number of rows.
    pub(super) fn expert_product(&self, x: Slot, w: usize, ids: Slot, out: Slot, list: &mut List) {
        let (ty, matrix) = self.matrix(self.plan.weights[w]);
        let experts = self.plan.placed[self.plan.weights[w]].experts;
        let (form, cols) = (Form::of_gemv(ty), matrix.cols as usize);
        let used = self.width(ids);
        let (input, sharing) = if self.width(x) == cols {
            (self.input(x, form, list), used)
        } else {
            // each expert of a row has its own input, a form that no other product reads
            self.arrange_as((self.rows(x) * used, cols), x, form, None, list);
            list.ready = None;
            (self.at(self.plan.activations), 1)
        };
        let (rows, n) = (self.rows(ids), matrix.rows / small(experts));
        if self.imma && form == Form::Integers && rows >= launch::IMMA_FROM {
            let p = ExpertImma {
                w: matrix,
                x: input,
                order: self.at(self.plan.order),
                tiles: self.at(self.plan.tiles),
                out: self.slot(out),
                n,
                sharing: small(sharing),
            };
            let tiles = self.sorted(ids, experts, list);
            list.launches.push(launch::expert_imma(ty, &p, tiles));
            return;
        }
        let p = ExpertGemv {
            w: matrix,
            x: input,
            ids: self.slot(ids),
            out: self.slot(out),
            n,
            experts: small(experts),
            sharing: small(sharing),
            unused: 0,
        };
        let choices = small(rows * used);
        list.launches.push(launch::expert_gemv(ty, &p, choices));
    }

    /// Sorts the choices of experts, unless they are sorted already; returns the width and the
    /// number of their tiles.
    fn sorted(&self, ids: Slot, experts: usize, list: &mut List) -> [usize; 2] {
        let choices = self.elements(ids);
        let tiles @ [width, _] = launch::expert_tiles(choices, experts);
        if list.sorted != Some(ids) {
            list.launches.push(launch::sort_experts(&SortExperts {
                ids: self.slot(ids),
                order: self.at(self.plan.order),
                tiles: self.at(self.plan.tiles),
                choices: small(choices),
                experts: small(experts),
                width: small(width),
                unused: 0,
            }));
            list.sorted = Some(ids);
        }
        tiles
    }
}
