//! Sequences of one model that advance together: each tick gives a token to every sequence that
//! generates, and reads more of the prompts of the others. What a sequence says does not depend on
//! its neighbours.

use octavo_kernels::Role;

use crate::runtime::{Entry, Output, Runtime, Timeline, Value};
use crate::sequence::{Bounds, Computed, Options, Sequence, SequenceError, Text, Want, Work};
use crate::{Engine, Error};

/// Which sequence of a batch: the first added is 0.
pub type SequenceId = usize;

/// What becomes of a sequence.
#[derive(Debug)]
pub enum Event {
    /// More text, never half a character, never part of a stop string.
    Text(String),
    /// It has ended; this is all of it.
    Finished(Text),
    /// It cannot go on.
    Failed(BatchError),
}

/// Why a sequence cannot begin, or go on.
#[derive(Debug, thiserror::Error)]
pub enum BatchError {
    /// The prompt or an option does not fit, or no token can be chosen.
    #[error(transparent)]
    Sequence(#[from] SequenceError),
    /// Its tokens cannot be computed.
    #[error(transparent)]
    Engine(#[from] Error),
    /// As many sequences run as the engine was loaded for.
    #[error("{sequences} sequences run already: expected no more at a time")]
    Full {
        /// Sequences at a time.
        sequences: usize,
    },
}

type Events = Vec<(SequenceId, Event)>;

struct Running {
    id: SequenceId,
    sequence: Sequence,
    timeline: Timeline,
}

/// Sequences that advance together.
pub struct Batch {
    engine: Engine,
    next_id: SequenceId,
    running: Vec<Running>,
}

/// What came of one entry of a step.
enum Outcome {
    Argmax(u32),
    Logits(Vec<f32>),
}

/// So many tokens of a running sequence, in one step.
struct Share {
    at: usize,
    n: usize,
}

impl Batch {
    /// A batch without sequences. As many as [`crate::EngineOptions::sessions`] says run at a time.
    pub fn new(engine: &Engine) -> Batch {
        Batch {
            engine: engine.clone(),
            next_id: 0,
            running: Vec::new(),
        }
    }

    /// Adds a sequence that continues a prompt.
    ///
    /// # Errors
    /// If the prompt or an option does not fit, or as many sequences run as can.
    pub fn add(&mut self, prompt: &[u32], options: &Options) -> Result<SequenceId, BatchError> {
        let sequences = self.engine.limits().sequences;
        if self.running.len() == sequences {
            return Err(BatchError::Full { sequences });
        }
        let bounds = Bounds {
            n_ctx: self.engine.n_ctx(),
            n_vocab: self.engine.hparams().n_vocab(),
        };
        let sequence = Sequence::new(prompt, options, bounds, self.engine.tokenizer())?;
        let id = self.next_id;
        self.next_id += 1;
        self.running.push(Running {
            id,
            sequence,
            timeline: Timeline::default(),
        });
        Ok(id)
    }

    /// Ends a sequence with what there is; `None` if it does not run.
    pub fn cancel(&mut self, id: SequenceId) -> Option<Text> {
        let at = self.running.iter().position(|running| running.id == id)?;
        let mut running = self.running.remove(at);
        self.engine.runtime().truncate(&mut running.timeline, 0);
        running.sequence.cancel();
        Some(running.sequence.into_text())
    }

    /// Sequences that run.
    pub fn len(&self) -> usize {
        self.running.len()
    }

    /// Whether none runs.
    pub fn is_empty(&self) -> bool {
        self.running.is_empty()
    }

    /// Takes every sequence a step further: first those that generate, then some of the prompts, so
    /// that nobody's next token waits for a long one. `sink` learns what comes of it. Weights are
    /// read twice where there are both: a token's role decides its kernels, which is what makes its
    /// numbers independent of its neighbours.
    ///
    /// # Errors
    /// If the device fails; sequences stay as they were before the step that failed.
    pub fn tick(&mut self, sink: &mut dyn FnMut(SequenceId, Event)) -> Result<(), Error> {
        let mut events = Vec::new();
        let result = self.step_all(&mut events);
        // the device is free again: who is told may use the engine
        for (id, event) in events {
            sink(id, event);
        }
        result
    }

    fn step_all(&mut self, events: &mut Events) -> Result<(), Error> {
        let engine = self.engine.clone();
        let mut runtime = engine.runtime();
        for role in [Role::Generated, Role::Prompt] {
            let shares = self.shares(role);
            if !shares.is_empty() {
                self.step(role, &shares, &mut runtime, events)?;
            }
        }
        Ok(())
    }

    /// Which tokens of this role go into the next step, in the order in which sequences came.
    fn shares(&self, role: Role) -> Vec<Share> {
        let mut room = self.engine.limits().rows;
        let mut shares = Vec::new();
        for (at, running) in self.running.iter().enumerate() {
            let Some(work) = running.sequence.work().filter(|work| work.role == role) else {
                continue;
            };
            let n = work.tokens.len().min(room);
            if n > 0 {
                shares.push(Share { at, n });
                room -= n;
            }
        }
        shares
    }

    fn step(
        &mut self,
        role: Role,
        shares: &[Share],
        runtime: &mut Runtime,
        events: &mut Events,
    ) -> Result<(), Error> {
        let mut outcomes: Vec<Option<Outcome>> = shares.iter().map(|_| None).collect();
        let mut left = shares.iter().peekable();
        let mut entries: Vec<Entry<'_>> = Vec::with_capacity(shares.len());
        for (at, running) in self.running.iter_mut().enumerate() {
            let Some(share) = left.next_if(|share| share.at == at) else {
                continue;
            };
            let Running {
                sequence, timeline, ..
            } = running;
            let work = sequence.work().expect("only sequences with work share");
            entries.push(entry(timeline, work, share.n));
        }
        runtime.step(role, &mut entries, None, &mut |output: Output<'_>| {
            outcomes[output.entry] = Some(match output.value {
                Value::Argmax(id) => Outcome::Argmax(id),
                Value::Logits(row) => Outcome::Logits(row.to_vec()),
            });
        })?;
        let failures: Vec<Option<Error>> = entries.into_iter().map(|e| e.failed).collect();
        let results = shares.iter().zip(outcomes).zip(failures);
        let mut ended = Vec::new();
        for ((share, outcome), failure) in results {
            let result = match failure {
                Some(error) => Err(error.into()),
                None => self.feed(share, outcome.as_ref()),
            };
            let running = &self.running[share.at];
            match result {
                Ok(text) if text.is_empty() => {}
                Ok(text) => events.push((running.id, Event::Text(text))),
                Err(error) => {
                    ended.push((share.at, Some(error)));
                    continue;
                }
            }
            if running.sequence.finish().is_some() {
                ended.push((share.at, None));
            }
        }
        self.remove(ended, runtime, events);
        Ok(())
    }

    /// Removes sequences, named in ascending order of their places, and says why.
    fn remove(
        &mut self,
        ended: Vec<(usize, Option<BatchError>)>,
        runtime: &mut Runtime,
        events: &mut Events,
    ) {
        for (removed, (at, error)) in ended.into_iter().enumerate() {
            let mut running = self.running.remove(at - removed);
            runtime.truncate(&mut running.timeline, 0);
            let event = match error {
                Some(error) => Event::Failed(error),
                None => Event::Finished(running.sequence.into_text()),
            };
            events.push((running.id, event));
        }
    }

    fn feed(&mut self, share: &Share, outcome: Option<&Outcome>) -> Result<String, BatchError> {
        let computed = match outcome {
            None => Computed::Cached(share.n),
            Some(Outcome::Argmax(id)) => Computed::Argmax(*id),
            Some(Outcome::Logits(row)) => Computed::Logits(row),
        };
        let sequence = &mut self.running[share.at].sequence;
        Ok(sequence.feed(computed, self.engine.tokenizer())?)
    }
}

/// The first `n` tokens of some work, with what is wanted if these are all.
fn entry<'a>(timeline: &'a mut Timeline, work: Work<'a>, n: usize) -> Entry<'a> {
    let is_all = n == work.tokens.len();
    Entry {
        wanted: if is_all { n - 1..n } else { 0..0 },
        only_argmax: work.want == Want::Argmax,
        ..Entry::new(timeline, &work.tokens[..n])
    }
}

impl Drop for Batch {
    fn drop(&mut self) {
        let mut runtime = self.engine.runtime();
        for running in &mut self.running {
            runtime.truncate(&mut running.timeline, 0);
        }
    }
}
