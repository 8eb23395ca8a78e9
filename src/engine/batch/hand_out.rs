//! Turns the outputs of a step into events, and schedules what is next for each text.

use octavo_kernels::Phase;

use super::branch::{Branch, Turn};
use super::{Batch, Delta, Event, Events, RequestId, Timing};
use crate::image_registry::is_image_token;
use crate::model_runner::ModelRunner;
use crate::scheduler::{Asked, ScheduledChunk, Sequence};

impl Batch {
    /// Hands out the outputs of a request's tokens in a step.
    pub(super) fn advance(
        &mut self,
        phase: Phase,
        chunk: &ScheduledChunk,
        runner: &mut ModelRunner,
        events: &mut Events,
    ) {
        let Some(branch) = self.branches.get_mut(&chunk.group) else {
            // another text of the request has failed, or its last beam has just been computed
            return;
        };
        let Some(sequence) = self.scheduler.sequence(chunk.id) else {
            // a beam that was not continued
            return;
        };
        // after a context shift it is the text that is computed, not the prompt
        if phase == Phase::Prefill && branch.discarded() == 0 {
            let done = sequence.kv().len();
            events.push((branch.request, Event::Read { done }));
        }
        let read = (phase == Phase::Prefill).then(|| sequence.kv().len());
        if let Some(vector) = read.and_then(|n| branch.take_vector(n)) {
            let timing = branch.timing();
            events.push((branch.request, Event::Embedded { vector, timing }));
            self.forget(chunk.id, runner);
            return;
        }
        if let Some(all) = branch.take_prompt() {
            events.push((branch.request, Event::Prompt(all)));
        }
        if branch.searches() {
            return self.search(chunk.group, runner, events);
        }
        let siblings = branch.siblings(self.engine.tokenizer(), self.engine.draft_model());
        for sibling in siblings {
            let id = self.next_id;
            self.next_id += 1;
            self.scheduler.fork(&mut runner.kv_cache, chunk.id, id);
            self.branches.insert(id, sibling);
            self.hand_out(id, runner, events);
        }
        self.hand_out(chunk.id, runner, events);
    }

    /// Advances the beam search of a request by a token once all beams are computed, or ends it.
    fn search(&mut self, at: RequestId, runner: &mut ModelRunner, events: &mut Events) {
        if !self.scheduler.is_level(at) {
            return;
        }
        let branch = self.branches.get_mut(&at).expect("a branch of the batch");
        match branch.advance(self.engine.tokenizer()) {
            Err(error) => self.fail(at, error.into(), runner, events),
            Ok(Turn::On(next)) => {
                self.totals.generated_tokens += next.len() as u64;
                self.scheduler.regroup(&mut runner.kv_cache, at, &next);
            }
            Ok(Turn::Over(texts)) => {
                let timing = self.timing(at);
                self.forget(at, runner);
                texts
                    .iter()
                    .for_each(|found| self.totals.count(found.text.finish));
                events.push((at, Event::Beams { texts, timing }));
            }
        }
    }

    /// Returns the times of a branch so far, with its cached and recomputed tokens.
    pub(super) fn timing(&self, at: RequestId) -> Timing {
        let reused = self
            .scheduler
            .sequence(at)
            .map(Sequence::reused)
            .unwrap_or_default();
        Timing {
            cached: reused.cached,
            recomputed: reused.recomputed,
            ..self.branches[&at].timing()
        }
    }

    /// Ends the text of a request with what there is; `sink` receives its last events.
    pub(crate) fn cancel(&mut self, id: RequestId, sink: &mut dyn FnMut(RequestId, Event)) {
        let Some(branch) = self.branches.get_mut(&id) else {
            return;
        };
        branch.cancel();
        let (engine, mut events) = (self.engine.clone(), Vec::new());
        self.hand_out(id, &mut engine.runner(), &mut events);
        events.into_iter().for_each(|(id, event)| sink(id, event));
    }

    /// Emits what a text was fed, and goes on with its next token or ends it.
    fn hand_out(&mut self, at: RequestId, runner: &mut ModelRunner, events: &mut Events) {
        let branch = self.branches.get_mut(&at).expect("a branch of the batch");
        let (request, choice) = (branch.request, branch.choice);
        match branch.take_fed() {
            None => return,
            Some(Err(error)) => return self.fail(at, error.into(), runner, events),
            Some(Ok(delta)) => {
                self.totals.generated_tokens += delta.tokens.len() as u64;
                if delta != Delta::default() {
                    let timing = self.timing(at);
                    events.push((
                        request,
                        Event::Delta {
                            choice,
                            delta,
                            timing,
                        },
                    ));
                }
            }
        }
        let branch = self.branches.get_mut(&at).expect("a branch of the batch");
        if let Some(token) = branch.next_token() {
            self.scheduler.push(at, token);
            if let Some(dropped) = branch.take_dropped() {
                self.totals.discarded_tokens += dropped.len() as u64;
                self.scheduler.shift(&mut runner.kv_cache, at, dropped);
            }
            return;
        }
        let timing = self.timing(at);
        let prompt = self.scheduler.sequence(at).map(Sequence::asked);
        let prompt = prompt.filter(|_| timing.discarded == 0);
        let text = self.forget(at, runner).and_then(Branch::into_text);
        if let Some(text) = text {
            self.totals.count(text.finish);
            self.note_finished(prompt, &text.tokens);
            let finished = Event::Finished {
                choice,
                text,
                timing,
            };
            events.push((request, finished));
        }
    }

    /// Queues a finished text for prefix warm-up, where prompts may begin with it.
    fn note_finished(&mut self, asked: Option<Asked>, answer: &[u32]) {
        // a chat with an image registers it again, and until then it may have no handle
        let is_text = |asked: &Asked| !asked.tokens.iter().any(|id| is_image_token(*id));
        if let Some(mut text) = asked.filter(is_text)
            && self.options.prefixes
            && !self.options.reuse_generated
        {
            text.tokens.extend(answer);
            self.warmup.add(text);
        }
    }
}
