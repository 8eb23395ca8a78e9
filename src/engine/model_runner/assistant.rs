//! Steps of assistants, which run on the pages of the model that they draft for.

use octavo_kernels::{Phase, Step, StepSequence};

use super::ModelRunner;
use crate::backend::TapSink;
use crate::error::Error;
use crate::kv::{BlockTable, NO_PAGE, SequenceKv};
use crate::sample::argmax;

/// A token after a text, as an assistant sees it.
pub(crate) struct AssistantInput<'a> {
    /// Pages of the text; the token comes after them.
    pub(crate) kv: &'a SequenceKv,
    /// Scaled embedding of the token and hidden state before it, `[2 n_embd]` of the target.
    pub(crate) rows: &'a [f32],
}

/// The most likely token after it, and the hidden state to draft on from, `[n_embd]` of the target.
pub(crate) struct AssistantOutput {
    /// `None` if a logit is not finite.
    pub(crate) token: Option<u32>,
    pub(crate) hidden: Vec<f32>,
}

impl ModelRunner {
    /// Returns whether this is a runner of an assistant that can run on the pages of `target`: both
    /// on the CPU, with pages of the same shapes.
    pub(crate) fn can_assist(&mut self, target: &mut ModelRunner) -> bool {
        let (own, pages) = (self.backend.kv_store(), target.backend.kv_store());
        own.zip(pages)
            .is_some_and(|(own, pages)| own.is_like(pages))
    }

    /// Computes one token of an assistant, this runner's model, on pages of `target`. Nothing is
    /// written there. With `tap`, only the hidden state is returned.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If the text is empty, or [`ModelRunner::can_assist`] does not hold.
    pub(crate) fn assist(
        &mut self,
        target: &mut ModelRunner,
        input: &AssistantInput<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<AssistantOutput, Error> {
        let position = input.kv.len();
        let pages = |table: &BlockTable| -> Vec<u32> {
            let passed = std::iter::repeat_n(NO_PAGE, table.passed());
            passed
                .chain(table.pages().iter().map(|page| page.0))
                .collect()
        };
        let tables: Vec<Vec<u32>> = input.kv.tables().iter().map(pages).collect();
        let tables: Vec<&[u32]> = tables.iter().map(Vec::as_slice).collect();
        let seqs = [StepSequence {
            // its embedding is in the input
            tokens: &[0],
            // it sees what is before it, as the token there does
            start: position - 1,
            tables: &tables,
            outputs: 0..1,
            rope_positions: &[[position as u32; 3]],
            ..StepSequence::default()
        }];
        let step = Step {
            phase: Phase::Decode,
            seqs: &seqs,
            input: input.rows,
        };
        target.backend.settle();
        self.swap_pages(target);
        let computed = self.computed(&step, tap);
        self.backend.settle();
        self.swap_pages(target);
        computed
    }

    fn computed(
        &mut self,
        step: &Step<'_>,
        tap: Option<&mut TapSink<'_>>,
    ) -> Result<AssistantOutput, Error> {
        let token = match tap {
            Some(tap) => argmax(self.backend.step(step, Some(tap))?),
            None => self.backend.argmax(step)?.into_iter().flatten().next(),
        };
        let hidden = self.backend.kept_rows()?;
        Ok(AssistantOutput { token, hidden })
    }

    fn swap_pages(&mut self, target: &mut ModelRunner) {
        let stores = self.backend.kv_store().zip(target.backend.kv_store());
        let (own, pages) = stores.expect("both are on the CPU");
        std::mem::swap(own, pages);
    }
}
