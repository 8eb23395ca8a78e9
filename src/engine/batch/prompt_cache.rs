//! The prefix cache on disk, as requests use it.

use octavo_kernels::Phase;

use super::Batch;
use crate::kv::PAGE;
use crate::model_runner::ModelRunner;
use crate::scheduler::StepPlan;

impl Batch {
    /// Reads what the disk has of requests that may begin now into the prefix cache.
    pub(super) fn look_up(&mut self, runner: &mut ModelRunner) {
        if !self.options.prefixes || runner.disk().is_none() {
            return;
        }
        for id in self.scheduler.take_lookups() {
            let sequence = self.scheduler.sequence(id);
            let sequence = sequence.expect("a sequence of the scheduler");
            let prefix = sequence.prefix_key(self.options.reuse_generated);
            runner.restore(&prefix, sequence.adoptable());
        }
    }

    /// Hands pages that a step filled to the disk: those of prompts, and of generated tokens where
    /// prompts begin with them.
    pub(super) fn save_prompts(&self, phase: Phase, plan: &StepPlan, runner: &mut ModelRunner) {
        let reuse_generated = self.options.reuse_generated;
        let is_kept = phase == Phase::Prefill || reuse_generated;
        if !self.options.prefixes || !is_kept || runner.disk().is_none() {
            return;
        }
        for chunk in &plan.chunks {
            let Some(sequence) = self.scheduler.sequence(chunk.id) else {
                continue;
            };
            let len = sequence.kv().len();
            // only now and then is there a page more
            if phase == Phase::Decode && len / PAGE == (len - chunk.n.min(len)) / PAGE {
                continue;
            }
            let is_whole = phase == Phase::Prefill && len >= sequence.n_prompt();
            runner.save(
                sequence.kv(),
                &sequence.prefix_key(reuse_generated),
                is_whole,
            );
        }
    }
}
