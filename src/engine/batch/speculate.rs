//! Draft tokens of a step (speculative decoding): which texts get some, and how many are accepted.

use std::time::Duration;

use super::{Batch, BatchError, Events, Hidden, RequestId};
use crate::model_runner::ModelRunner;
use crate::scheduler::StepPlan;
use crate::speculative::{DraftBudget, MAX_DRAFT_TOKENS, Target};

impl Batch {
    /// Adds draft tokens to the texts that generate, as far as the step has room for them.
    pub(super) fn add_drafts(&mut self, events: &mut Events) {
        let generating = self
            .scheduler
            .sequences()
            .iter()
            .filter(|sequence| sequence.generates());
        let due: Vec<(RequestId, usize)> = generating
            .map(|sequence| (sequence.id(), sequence.pending()))
            .collect();
        let texts: usize = due.iter().map(|(_, pending)| pending).sum();
        let limits = self.engine.limits();
        let (mut rows, max) = (texts, self.engine.batch().min(limits.outputs));
        let mut failed = Vec::new();
        for (id, pending) in due {
            let branch = self.branches.get_mut(&id);
            // a beam has no draft tokens
            let Some((branch, sequence)) = branch.zip(self.scheduler.sequence(id)) else {
                continue;
            };
            let budget = DraftBudget {
                texts,
                rows,
                max: match pending {
                    0..=MAX_DRAFT_TOKENS => max.saturating_sub(rows),
                    // its tokens are recomputed
                    _ => 0,
                },
            };
            let target = Target {
                engine: &self.engine,
                kv: sequence.kv(),
            };
            let text = (sequence.tokens(), target);
            match branch.propose(text, budget, &mut self.cost_model) {
                Ok(drafts) => {
                    rows += drafts.len();
                    self.scheduler.add_drafts(id, &drafts);
                }
                Err(error) => failed.push((id, error)),
            }
        }
        let engine = self.engine.clone();
        for (id, error) in failed {
            self.fail(id, BatchError::Draft(error), &mut engine.runner(), events);
        }
    }

    /// Passes the hidden states of a step's tokens to the texts that draft from them, without those
    /// of draft tokens that were not accepted.
    pub(super) fn observe(
        &mut self,
        plan: &StepPlan,
        hidden: Vec<Hidden>,
        runner: &mut ModelRunner,
        events: &mut Events,
    ) {
        let width = self.engine.hparams().n_embd();
        for (chunk, Hidden { start, rows }) in plan.chunks.iter().zip(hidden) {
            let branch = self.branches.get_mut(&chunk.group);
            let Some((branch, sequence)) = branch.zip(self.scheduler.sequence(chunk.id)) else {
                continue;
            };
            let tokens = sequence.tokens();
            let accepted = tokens.len().saturating_sub(start) * width;
            let rows = &rows[..rows.len().min(accepted)];
            let observed = branch
                .proposer()
                .map_or(Ok(()), |p| p.observe(tokens, start, rows));
            if let Err(error) = observed {
                self.fail(chunk.id, BatchError::Draft(error), runner, events);
            }
        }
    }

    /// Accepts the draft tokens that were right, and updates the cost model.
    pub(super) fn accept_drafts(
        &mut self,
        plan: &StepPlan,
        runner: &mut ModelRunner,
        took: Duration,
    ) {
        let (mut accepted_tokens, mut drafted) = (0, 0);
        for chunk in &plan.chunks {
            let branch = self.branches.get_mut(&chunk.group);
            let accepted = branch.map_or(0, |branch| branch.accept_drafts(chunk.drafts));
            self.scheduler
                .accept_drafts(&mut runner.kv_cache, chunk.id, accepted);
            accepted_tokens += accepted;
            drafted += chunk.drafts;
        }
        let rows: usize = plan.chunks.iter().map(|chunk| chunk.n).sum();
        self.cost_model
            .record_step(rows - drafted, drafted, accepted_tokens, took);
        self.totals.draft_tokens += drafted as u64;
        self.totals.accepted_tokens += accepted_tokens as u64;
    }
}
