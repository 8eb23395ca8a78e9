//! Speculative decoding. Draft tokens are computed along with the one that is certain, as decode
//! rows of one text, and accepted as far as they are what is chosen there: weights are read once
//! for several tokens. No bit of a text depends on it, only how long it takes.
//!
//! Draft tokens come from the text itself (`ngram`), from a smaller model (`draft_model`), from the
//! model's own MTP layer (`mtp`) or from an assistant that reads its KV cache (`assistant`), as
//! many as are worth their time (`cost_model`).

mod assistant;
mod cost_model;
mod draft_model;
mod mtp;
mod ngram;

use crate::decoder::GenerationParams;
use crate::engine::Engine;
use crate::error::Error;
use crate::image_registry::is_image_token;
use crate::kv::SequenceKv;
use assistant::AssistantSession;
use cost_model::{AcceptanceRate, DraftPlan, DraftRequest, MAX_SAMPLES};
use draft_model::{Cost, DraftSession, Drafted};
use mtp::MtpSession;
use ngram::NgramIndex;

pub(crate) use cost_model::{CostModel, MAX_DRAFT_TOKENS};
pub use ngram::Lookup;

/// Counts of draft and accepted tokens.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DraftStats {
    /// Draft tokens that were computed.
    pub drafted: usize,
    /// Draft tokens that were accepted.
    pub accepted: usize,
}

impl DraftStats {
    /// Adds other counts.
    pub fn add(&mut self, other: DraftStats) {
        self.drafted += other.drafted;
        self.accepted += other.accepted;
    }
}

/// The model that tokens are drafted for, and what it holds of a text.
#[derive(Clone, Copy)]
pub(crate) struct Target<'a> {
    pub(crate) engine: &'a Engine,
    pub(crate) kv: &'a SequenceKv,
}

/// A step that draft tokens may be added to.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DraftBudget {
    /// Tokens that it computes in any case: one for each text.
    pub texts: usize,
    /// Rows that it has already: those, and draft tokens of other texts.
    pub rows: usize,
    /// Maximum number of draft tokens.
    pub max: usize,
}

/// Drafts tokens for one text.
pub(crate) struct Proposer {
    lookup: Lookup,
    index: NgramIndex,
    lookup_rates: AcceptanceRate<7>,
    drafter: Option<Drafter>,
    drafter_rates: AcceptanceRate<4>,
    /// Number of tokens that the drafter proposes, whatever they cost.
    draft_max: Option<usize>,
    /// Number of draft tokens in the last step, and whether the draft model proposed them.
    last: usize,
    is_drafted: bool,
    stats: DraftStats,
}

/// A model that drafts tokens for one text.
enum Drafter {
    /// A smaller model.
    Model(DraftSession),
    /// The model's own MTP layer.
    Mtp(MtpSession),
    /// An assistant, which reads the model's KV cache.
    Assistant(AssistantSession),
}

impl Drafter {
    fn new(draft: &Engine) -> Drafter {
        match draft.model() {
            model if model.is_mtp() => Drafter::Mtp(MtpSession::new(draft)),
            model if model.is_assistant() => Drafter::Assistant(AssistantSession::new(draft)),
            _ => Drafter::Model(DraftSession::new(draft)),
        }
    }

    fn cost(&mut self) -> &mut Cost {
        match self {
            Drafter::Model(session) => session.cost(),
            Drafter::Mtp(session) => session.cost(),
            Drafter::Assistant(session) => session.cost(),
        }
    }

    fn propose(&mut self, text: &[u32], of: Target<'_>, n: usize) -> Result<Drafted, Error> {
        match self {
            Drafter::Model(session) => session.propose(text, n),
            Drafter::Mtp(session) => session.propose(text, n),
            Drafter::Assistant(session) => session.propose(text, of, n),
        }
    }

    /// Returns whether it can draft after a text with these tokens: a smaller model could not read
    /// the embeddings of images.
    fn reads(&self, text: &[u32]) -> bool {
        match self {
            Drafter::Model(_) => !text.iter().any(|id| is_image_token(*id)),
            Drafter::Mtp(_) | Drafter::Assistant(_) => true,
        }
    }
}

impl Proposer {
    /// Drafts from the text itself, and with a draft model if there is one.
    pub(crate) fn new(params: &GenerationParams, draft: Option<&Engine>) -> Proposer {
        Proposer {
            lookup: params.lookup,
            draft_max: params.draft_max,
            index: NgramIndex::default(),
            lookup_rates: AcceptanceRate::new([0.3, 0.45, 0.6, 0.7, 0.8, 0.9, 0.95], MAX_SAMPLES),
            drafter: draft.map(Drafter::new),
            drafter_rates: AcceptanceRate::new([0.8; 4], 3.0),
            last: 0,
            is_drafted: false,
            stats: DraftStats::default(),
        }
    }

    /// Drafts tokens that may follow a text, all of which is given; none if none are worth their
    /// time.
    ///
    /// # Errors
    /// If the draft model's device fails.
    pub(crate) fn propose(
        &mut self,
        text: (&[u32], Target<'_>),
        budget: DraftBudget,
        cost_model: &mut CostModel,
    ) -> Result<Vec<u32>, Error> {
        self.last = 0;
        self.is_drafted = false;
        let drafts = self.best_proposal(text, budget, cost_model)?;
        self.last = drafts.len();
        Ok(drafts)
    }

    fn best_proposal(
        &mut self,
        (text, target): (&[u32], Target<'_>),
        DraftBudget { texts, rows, max }: DraftBudget,
        cost_model: &mut CostModel,
    ) -> Result<Vec<u32>, Error> {
        let request = DraftRequest {
            texts,
            rows,
            max: max.min(MAX_DRAFT_TOKENS),
            each: 0.0,
            is_forced: false,
        };
        let found = match self.lookup {
            Lookup::Off => None,
            Lookup::Auto | Lookup::On => self.look_up(text),
        };
        let by_lookup = found.map(|found| {
            let request = DraftRequest {
                is_forced: self.lookup == Lookup::On,
                ..request
            };
            let chance = |n: usize| self.lookup_rates.rate(kind(found.length + n));
            (found, cost_model.plan(request, chance))
        });
        let drafter = self.drafter.as_mut().filter(|drafter| drafter.reads(text));
        if let Some(drafter) = drafter {
            let request = DraftRequest {
                each: drafter.cost().each(),
                ..request
            };
            let plan = match self.draft_max {
                Some(n) => DraftPlan {
                    n: n.min(request.max),
                    gain: f64::INFINITY,
                },
                None => cost_model.plan(request, |n| self.drafter_rates.rate(depth(n))),
            };
            let other = by_lookup.map_or(DraftPlan::default(), |(_, plan)| plan);
            if plan.n > 0 && (other.n == 0 || plan.gain > other.gain) {
                let drafts = drafter.propose(text, target, plan.n).map(|drafted| {
                    cost_model.record_drafting(drafted.seconds);
                    drafted.tokens
                });
                match drafts {
                    // other texts have the draft model's pages: this one goes on without drafts
                    Err(Error::KvPages(_)) => self.drafter = None,
                    drafts => {
                        self.is_drafted = true;
                        return drafts;
                    }
                }
            } else if plan.n == 0 {
                drafter.cost().decline();
            }
        }
        Ok(by_lookup.map_or(Vec::new(), |(found, plan)| self.index.copy(found, plan.n)))
    }

    /// Adds the new tokens of the text to the index, counting how often lookup was right; returns
    /// the occurrence to draft from. Repetition inside a prompt says little about what an answer
    /// will repeat of it, so that nothing is learned from the tokens that are there at first.
    fn look_up(&mut self, text: &[u32]) -> Option<ngram::NgramMatch> {
        let is_first = self.index.len() == 0;
        for &token in text.get(self.index.len()..).unwrap_or_default() {
            if let Some(found) = self.index.find().filter(|_| !is_first) {
                let was_right = self.index.next(found) == token;
                self.lookup_rates.record(kind(found.length), was_right);
            }
            self.index.push(token);
        }
        self.index.find()
    }

    /// Begins anew: the text has lost tokens, but what was learned of its drafts stays.
    pub(crate) fn restart(&mut self) {
        self.index = NgramIndex::default();
        match &mut self.drafter {
            Some(Drafter::Mtp(session)) => session.begin_anew(),
            Some(Drafter::Assistant(session)) => session.begin_anew(),
            Some(Drafter::Model(_)) | None => {}
        }
    }

    /// Stops drafting.
    pub(crate) fn stop(&mut self) {
        self.lookup = Lookup::Off;
        self.drafter = None;
    }

    /// Returns whether the model's hidden states are needed.
    pub(crate) fn wants_hidden(&self) -> bool {
        matches!(self.drafter, Some(Drafter::Mtp(_) | Drafter::Assistant(_)))
    }

    /// Takes the model's hidden states from position `start` of the text on, `[rows][n_embd]`.
    ///
    /// # Errors
    /// If the draft model's device fails.
    pub(crate) fn observe(
        &mut self,
        text: &[u32],
        start: usize,
        hidden: &[f32],
    ) -> Result<(), Error> {
        let session = match &mut self.drafter {
            Some(Drafter::Mtp(session)) => session,
            Some(Drafter::Assistant(session)) => {
                session.observe(start, hidden);
                return Ok(());
            }
            Some(Drafter::Model(_)) | None => return Ok(()),
        };
        match session.observe(text, start, hidden) {
            // other texts have the draft model's pages: this one goes on without drafts
            Err(Error::KvPages(_)) => self.drafter = None,
            observed => return observed,
        }
        Ok(())
    }

    /// Learns how many of the last draft tokens were accepted.
    pub(crate) fn learn(&mut self, accepted: usize) {
        let drafted = self.last;
        self.stats.add(DraftStats { drafted, accepted });
        if self.is_drafted {
            let looked_at = drafted.min(accepted + 1);
            (0..looked_at).for_each(|n| self.drafter_rates.record(depth(n), n < accepted));
        }
    }

    /// Returns the counts of draft and accepted tokens so far.
    pub(crate) fn stats(&self) -> DraftStats {
        self.stats
    }
}

/// Returns the class of the draft token of this index of a drafter; each class has its own
/// acceptance rate.
fn depth(n: usize) -> usize {
    n.min(3)
}

/// Returns the class of a match of this many tokens; each class has its own acceptance rate.
fn kind(length: usize) -> usize {
    match length {
        0..=2 => 0,
        3 => 1,
        4 => 2,
        5..=6 => 3,
        7..=9 => 4,
        10..=15 => 5,
        _ => 6,
    }
}
