//! Draft tokens of a step (speculative decoding): which texts get some, and how many are accepted.

use std::time::Duration;

use super::{Batch, BatchError, Events, RequestId};
use crate::runtime::Runtime;
use crate::schedule::Plan;
use crate::speculate::{MOST_GUESSES, Room};

impl Batch {
    /// Adds draft tokens to the texts that generate, as far as the step has room for them.
    pub(super) fn guess(&mut self, events: &mut Events) {
        let generating = self.scheduler.jobs().iter().filter(|job| job.generates());
        let due: Vec<(RequestId, usize)> =
            generating.map(|job| (job.id(), job.pending())).collect();
        let texts: usize = due.iter().map(|(_, pending)| pending).sum();
        let limits = self.engine.limits();
        let (mut rows, most) = (texts, limits.rows.min(limits.wanted));
        let mut failed = Vec::new();
        for (id, pending) in due {
            let Some(branch) = self.branches.get_mut(&id) else {
                // a beam has no draft tokens
                continue;
            };
            let room = Room {
                texts,
                rows,
                most: match pending {
                    0..=MOST_GUESSES => most.saturating_sub(rows),
                    // its tokens are recomputed
                    _ => 0,
                },
            };
            match branch.guess(room, &mut self.pace) {
                Ok(guesses) => {
                    rows += guesses.len();
                    self.scheduler.guess(id, &guesses);
                }
                Err(error) => failed.push((id, error)),
            }
        }
        let engine = self.engine.clone();
        for (id, error) in failed {
            self.fail(id, BatchError::Draft(error), &mut engine.runtime(), events);
        }
    }

    /// Accepts the draft tokens that were right, and updates the cost model.
    pub(super) fn settle(&mut self, plan: &Plan, runtime: &mut Runtime, took: Duration) {
        let (mut right, mut guessed) = (0, 0);
        for share in &plan.shares {
            let branch = self.branches.get_mut(&share.group);
            let accepted = branch.map_or(0, |branch| branch.settle(share.guessed));
            self.scheduler
                .settle(&mut runtime.ledger, share.id, accepted);
            right += accepted;
            guessed += share.guessed;
        }
        let rows: usize = plan.shares.iter().map(|share| share.n).sum();
        self.pace.took(rows - guessed, guessed, right, took);
        self.totals.guessed_tokens += guessed as u64;
        self.totals.accepted_tokens += right as u64;
    }
}
