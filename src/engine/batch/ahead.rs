//! Guesses of a step: who has room for some, and what came of them.

use std::time::Duration;

use super::{Batch, BatchError, Events, RequestId};
use crate::runtime::Runtime;
use crate::schedule::Plan;
use crate::speculate::{MOST_GUESSES, Room};

impl Batch {
    /// Lets texts guess how they go on, as far as the step has room for it.
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
                // a beam
                continue;
            };
            let room = Room {
                texts,
                rows,
                most: match pending {
                    0..=MOST_GUESSES => most.saturating_sub(rows),
                    // it is computed again
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

    /// Keeps what was computed of guesses that were right, and learns what guesses bring.
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
