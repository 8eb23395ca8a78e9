//! Runs requests together (continuous batching): each step decodes a token for every request that
//! generates, then prefills more of the others' prompts. A request's output does not depend on its
//! neighbours.

mod add;
mod beams;
mod branch;
mod clock;
mod hand_out;
mod outputs;
mod pool;
mod prefix_warmup;
mod prompt_cache;
mod request;
mod slots;
mod speculate;

use std::collections::BTreeMap;
use std::time::Instant;

use octavo_kernels::Phase;
use octavo_model::Model;

use crate::engine::Engine;
use crate::error::Error;
use crate::kv::SequenceKv;
use crate::model_runner::{ModelRunner, Output, StepInput};
use crate::scheduler::{NextTokens, ScheduledChunk, Scheduler, Sequence, Settings, StepPlan};
use crate::speculative::CostModel;
use branch::Branch;
use outputs::{ByBranch, hand_out};
use prefix_warmup::PrefixWarmup;
use slots::Slot;

pub use request::{
    BatchError, BatchOptions, BeamOutput, BeamSearch, Delta, Embed, Event, Request, RequestId,
    RequestView, Snapshot, Task, Timing, Totals,
};

/// Maximum number of texts per request.
pub const MAX_CHOICES: usize = 128;

type Events = Vec<(RequestId, Event)>;

/// Requests that run together.
pub struct Batch {
    engine: Engine,
    options: BatchOptions,
    scheduler: Scheduler,
    /// Maximum number of texts that run at once.
    places: usize,
    /// By id in the scheduler; the first text of a request has the request's own id, and all its
    /// beams are one branch.
    branches: BTreeMap<RequestId, Branch>,
    next_id: RequestId,
    totals: Totals,
    warmup: PrefixWarmup,
    cost_model: CostModel,
    /// The request that began with pages of a caller, who takes them back when it has ended.
    lent: Option<(RequestId, HeldKv)>,
    /// One for each text that may run.
    slots: Vec<Slot>,
}

/// Results of a step, for each chunk of its plan.
struct Computed {
    /// Reasons why chunks failed alone.
    failures: Vec<Option<Error>>,
    /// Hidden states, of texts that an MTP layer drafts for.
    hidden: Vec<Hidden>,
}

/// Hidden states of a text's tokens.
#[derive(Clone, Default)]
struct Hidden {
    /// Position of the first.
    start: usize,
    /// `[rows][n_embd]`
    rows: Vec<f32>,
}

/// Tokens, and the pages that hold their keys and values.
type HeldKv = (Vec<u32>, SequenceKv);

impl Batch {
    /// Creates a batch without requests. As many as [`crate::EngineOptions::sessions`] run at once;
    /// others wait.
    pub fn new(engine: &Engine, options: BatchOptions) -> Batch {
        let limits = engine.limits();
        let settings = Settings {
            sequences: limits.sequences.min(limits.outputs).min(engine.batch()),
            rows: engine.batch(),
            most_rows: limits.rows,
            outputs: limits.outputs,
            prefill_budget: options.prefill_budget,
            balance: balance(engine.model()),
            prefixes: options.prefixes && engine.hparams().is_causal(),
            whole: !engine.hparams().is_causal(),
            reuse_generated: options.reuse_generated,
        };
        Batch {
            engine: engine.clone(),
            options,
            places: settings.sequences,
            slots: vec![Slot::default(); settings.sequences],
            scheduler: Scheduler::new(settings),
            branches: BTreeMap::new(),
            next_id: 0,
            totals: Totals::default(),
            warmup: PrefixWarmup::default(),
            cost_model: CostModel::default(),
            lent: None,
        }
    }

    /// Aborts a request and frees its pages; returns false if there is none of this id.
    pub fn abort(&mut self, id: RequestId) -> bool {
        let all = self.branches_of(id);
        let engine = self.engine.clone();
        let mut runner = engine.runner();
        for &at in &all {
            self.forget(at, &mut runner);
        }
        self.totals.aborted += u64::from(!all.is_empty());
        !all.is_empty()
    }

    /// Lets a request that was just added continue on pages which hold the first tokens of its
    /// prompt, in whatever phase they were computed; [`Batch::take_back`] returns them, with those
    /// of the text, once the request has ended. Only for the only request of a batch, which is
    /// never preempted.
    pub(crate) fn lend(&mut self, id: RequestId, kv: SequenceKv) {
        self.scheduler.begin_with(id, kv);
        self.lent = Some((id, HeldKv::default()));
    }

    /// Returns the pages of the request that began on lent ones, and the tokens that they hold.
    pub(crate) fn take_back(&mut self) -> HeldKv {
        self.lent.take().map(|(_, held)| held).unwrap_or_default()
    }

    /// Returns the number of requests. Each text that has begun counts as one, all beams of a
    /// request as one.
    pub fn len(&self) -> usize {
        self.branches.len()
    }

    /// Returns whether there are no requests.
    pub fn is_empty(&self) -> bool {
        self.branches.is_empty()
    }

    /// Returns the state of the batch.
    pub fn snapshot(&self) -> Snapshot {
        let runner = self.engine.runner();
        let view = |sequence: &Sequence| {
            let branch = &self.branches[&sequence.group()];
            let beam = (sequence.id() - sequence.group()) as usize;
            RequestView {
                id: branch.request,
                choice: branch.choice + beam,
                state: sequence.state_name(),
                pages: sequence.kv().n_pages(),
                tokens: sequence.kv().len(),
                prompt_tokens: sequence.n_prompt(),
                cached: sequence.reused().cached,
                generated: branch.generated(),
            }
        };
        Snapshot {
            pages: runner.kv_cache.counts(),
            requests: self.scheduler.sequences().iter().map(view).collect(),
            totals: Totals {
                preemptions: self.scheduler.preemptions(),
                evictions: runner.kv_cache.evicted(),
                ..self.totals
            },
            disk: runner.disk().map(|disk| disk.stats()),
        }
    }

    /// Drops everything from the prefix cache that is not in use.
    pub fn clear_cache(&mut self) {
        self.engine.runner().kv_cache.clear();
    }

    /// Returns whether finished texts wait for [`Batch::warm_prefixes`].
    pub fn has_finished_texts(&self) -> bool {
        !self.warmup.is_empty()
    }

    /// Computes a chunk of a finished text as a prompt, so that the next turn of its conversation
    /// finds it in the prefix cache. This takes a step of its own, so call it only when there is no
    /// request.
    ///
    /// # Errors
    /// If the device fails.
    pub fn warm_prefixes(&mut self) -> Result<(), Error> {
        let rows = self.engine.batch();
        self.warmup.read(&mut self.engine.runner(), rows)
    }

    /// Frees step scratch buffers while there is nothing to do.
    pub fn release_scratch(&mut self) {
        self.engine.runner().release_scratch();
        octavo_kernels::trim();
    }

    /// Advances every request: a decode step for those that generate, then a prefill step for a
    /// chunk of the prompts, so that a long prompt holds up no other request's next token. `sink`
    /// receives the events. Weights are read twice where there are both: a token's phase decides
    /// its kernels, which is what makes its numbers independent of its neighbours.
    ///
    /// # Errors
    /// If the device fails. Requests stay as they were before the step that failed.
    pub fn step(&mut self, sink: &mut dyn FnMut(RequestId, Event)) -> Result<(), Error> {
        let mut events = Vec::new();
        self.add_drafts(&mut events);
        let result = self.both_phases(&mut events);
        // the device is free again: the sink may use the engine
        for (id, event) in events {
            sink(id, event);
        }
        result
    }

    /// Fails every request for the same reason: after a failed step nothing can go on.
    pub fn fail_all(&mut self, why: &str, sink: &mut dyn FnMut(RequestId, Event)) {
        let engine = self.engine.clone();
        let mut runner = engine.runner();
        let all: Vec<RequestId> = self.branches.keys().copied().collect();
        let mut failed = Vec::new();
        for at in all {
            let branch = self.forget(at, &mut runner);
            failed.extend(branch.map(|branch| branch.request));
        }
        drop(runner);
        failed.dedup();
        for id in failed {
            self.totals.failed += 1;
            sink(id, Event::Failed(BatchError::Step(why.to_owned())));
        }
    }

    fn both_phases(&mut self, events: &mut Events) -> Result<(), Error> {
        let engine = self.engine.clone();
        let mut runner = engine.runner();
        for phase in [Phase::Decode, Phase::Prefill] {
            if phase == Phase::Prefill {
                // draft tokens that found no room in the step are gone
                self.scheduler.drop_drafts();
                self.look_up(&mut runner);
            }
            let kv_cache = &mut runner.kv_cache;
            let mut plan = match phase {
                Phase::Decode => self.scheduler.decodes(kv_cache),
                Phase::Prefill => self.scheduler.prefills(kv_cache),
            };
            for (at, error) in std::mem::take(&mut plan.failed) {
                let error = Error::from(error).into();
                self.fail(at, error, &mut runner, events);
            }
            // other texts of the failed requests have ended with them
            let is_there = |chunk: &ScheduledChunk| self.branches.contains_key(&chunk.group);
            plan.chunks.retain(is_there);
            if !plan.chunks.is_empty() {
                self.compute(phase, &plan, &mut runner, events)?;
            }
        }
        Ok(())
    }

    /// Runs a step and hands its outputs to the requests.
    fn compute(
        &mut self,
        phase: Phase,
        plan: &StepPlan,
        runner: &mut ModelRunner,
        events: &mut Events,
    ) -> Result<(), Error> {
        let start = Instant::now();
        self.begin(plan, start, events);
        runner.copy(&plan.copies)?;
        let Computed { failures, hidden } = self.run(phase, plan, runner)?;
        let took = start.elapsed();
        self.totals.steps += 1;
        self.totals.busy += took;
        if phase == Phase::Decode {
            self.accept_drafts(plan, runner, took);
        }
        self.scheduler.took(&mut runner.kv_cache, phase, plan, took);
        self.save_prompts(phase, plan, runner);
        self.observe(plan, hidden, runner, events);
        for (chunk, failure) in plan.chunks.iter().zip(failures) {
            match failure {
                // a draft token may be one that the model cannot compute
                Some(_) if chunk.drafts > 0 => {
                    let branch = self.branches.get_mut(&chunk.group);
                    if let Some(proposer) = branch.and_then(Branch::proposer) {
                        proposer.stop();
                    }
                }
                Some(error) => self.fail(chunk.id, error.into(), runner, events),
                None => self.advance(phase, chunk, runner, events),
            }
        }
        Ok(())
    }

    /// Runs the tokens of a plan. Texts to embed take a step of their own, which ends before the
    /// logits.
    fn run(
        &mut self,
        phase: Phase,
        plan: &StepPlan,
        runner: &mut ModelRunner,
    ) -> Result<Computed, Error> {
        let Batch {
            engine,
            scheduler,
            branches,
            ..
        } = self;
        let graph = &engine.model().graph;
        let mut failures: Vec<Option<Error>> = plan.chunks.iter().map(|_| None).collect();
        let mut hidden = vec![Hidden::default(); plan.chunks.len()];
        // the chunks of each kind by index, and their inputs
        let (mut texts, mut vectors) = ((Vec::new(), Vec::new()), (Vec::new(), Vec::new()));
        let planned = scheduler.planned(plan).into_iter();
        for (i, (sequence, chunk)) in planned.zip(&plan.chunks).enumerate() {
            let branch = &branches[&chunk.group];
            let NextTokens {
                before,
                tokens,
                adapters,
                kv,
            } = sequence.next_tokens(chunk.n);
            // a model without logits ends with hidden states anyway
            let of_its_kind = match branch.embeds() && graph.has_logits() {
                true => &mut vectors,
                false => &mut texts,
            };
            of_its_kind.0.push(i);
            of_its_kind.1.push(StepInput {
                outputs: chunk.n - chunk.outputs..chunk.n,
                need: branch.need(),
                wants_kept: branch.wants_hidden(),
                adapters,
                ..StepInput::new(kv, before, tokens)
            });
        }
        let mut give = |at: &[usize], outputs: Vec<Output<'_>>| {
            let mut all = ByBranch::new();
            for output in outputs {
                let ScheduledChunk { id, group, .. } = plan.chunks[at[output.input]];
                let beam = (id - group) as usize;
                let own = all.entry(group).or_default();
                own.push((beam, output));
            }
            hand_out(all, branches, engine.tokenizer(), engine.threads());
        };
        let (at, mut inputs) = texts;
        if !inputs.is_empty() {
            runner.step(phase, &mut inputs, None, &mut |outputs| give(&at, outputs))?;
        }
        let of_texts = at.into_iter().zip(inputs);
        let (at, mut inputs) = vectors;
        if !inputs.is_empty() {
            let tap = graph.hidden_tap();
            runner.step_to_rows(phase, &mut inputs, tap, &mut |outputs| give(&at, outputs))?;
        }
        for (i, input) in of_texts.chain(at.into_iter().zip(inputs)) {
            failures[i] = input.failed;
            hidden[i] = Hidden {
                start: input.before.len(),
                rows: input.kept,
            };
        }
        Ok(Computed { failures, hidden })
    }

    /// Records which branches begin with this step.
    fn begin(&mut self, plan: &StepPlan, now: Instant, events: &mut Events) {
        for chunk in &plan.chunks {
            let branch = self
                .branches
                .get_mut(&chunk.group)
                .expect("a branch of the plan");
            if !branch.begins(now) {
                continue;
            }
            let sequence = self
                .scheduler
                .sequence(chunk.id)
                .expect("a sequence of the plan");
            let (prompt, cached) = (sequence.n_prompt(), sequence.reused().cached);
            if branch.choice == 0 {
                self.totals.prompt_tokens += prompt as u64;
                self.totals.cached_tokens += cached as u64;
                events.push((branch.request, Event::Started { prompt, cached }));
            }
        }
    }

    /// Fails a request, with all its texts.
    fn fail(
        &mut self,
        at: RequestId,
        error: BatchError,
        runner: &mut ModelRunner,
        events: &mut Events,
    ) {
        let Some(request) = self.branches.get(&at).map(|branch| branch.request) else {
            return;
        };
        self.totals.failed += 1;
        for id in self.branches_of(request) {
            self.forget(id, runner);
        }
        events.push((request, Event::Failed(error)));
    }

    fn branches_of(&self, request: RequestId) -> Vec<RequestId> {
        let branches = self.branches.iter();
        let own = branches.filter(|(_, branch)| branch.request == request);
        own.map(|(&id, _)| id).collect()
    }

    fn forget(&mut self, at: RequestId, runner: &mut ModelRunner) -> Option<Branch> {
        if let Some((_, held)) = self.lent.as_mut().filter(|(id, _)| *id == at) {
            *held = self.scheduler.take_kv(at).unwrap_or_default();
        }
        let sequence = self.scheduler.remove(&mut runner.kv_cache, at);
        if let Some(sequence) = &sequence {
            self.release_slot(at, sequence.tokens());
        }
        let recomputed = sequence.map_or(0, |sequence| sequence.reused().recomputed);
        self.totals.recomputed_tokens += recomputed as u64;
        self.branches.remove(&at)
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let engine = self.engine.clone();
        let mut runner = engine.runner();
        let all: Vec<RequestId> = self.branches.keys().copied().collect();
        for at in all {
            self.forget(at, &mut runner);
        }
    }
}

/// Returns after how many positions a token's attention takes as long as its products with weights.
/// Infinite where no layer attends to all positions.
fn balance(model: &Model) -> f64 {
    /// Time of a multiplication in attention, relative to one with weights, during prefill: 2.4 for
    /// two models on a Zen 4 with AVX-512, 1.5 for one on a Sapphire Rapids with AMX.
    const ATTENTION: f64 = 2.0;
    let layers = model.hparams.layers.iter();
    let attending = layers.filter(|layer| layer.attends() && layer.scores.window.is_none());
    let products: usize = attending.map(|layer| 2 * layer.q_width()).sum();
    model.active().parameters as f64 / (ATTENTION * products as f64)
}
