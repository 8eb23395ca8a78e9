//! One sequence, driven by a caller that waits for each step: for benches, measurements and tests,
//! which want the outputs of tokens that they name, and for chats, which continue their own pages.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use octavo_kernels::Phase;

use crate::adapters::AdapterSet;
use crate::backend::TapSink;
use crate::engine::Engine;
use crate::error::Error;
use crate::image_registry::{
    ImageHandle, holds, image_tokens_before, is_image_token, with_whole_images,
};
use crate::kv::SequenceKv;
use crate::model_runner::{Output, StepInput};
use crate::sample::{OutputNeed, OutputValue};
use crate::speculative::Target;

/// Selects the new tokens to return logits for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LogitsFor {
    /// None: only the KV cache is filled.
    None,
    /// The last token.
    Last,
    /// The last tokens, this many.
    Tail(usize),
    /// All tokens.
    All,
}

/// How to compute new tokens.
#[derive(Clone, Copy)]
struct Eval<'a> {
    phase: Phase,
    logits_for: LogitsFor,
    need: OutputNeed,
    /// Rows that come with the tokens, `[tokens][n_embd]`, for MTP layers.
    hidden: &'a [f32],
}

impl Eval<'_> {
    fn new(phase: Phase, logits_for: LogitsFor) -> Eval<'static> {
        Eval {
            phase,
            logits_for,
            need: OutputNeed::Logits,
            hidden: &[],
        }
    }
}

/// Logits, never clipped, always finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// Values per row.
    pub n_vocab: usize,
    /// `[rows][n_vocab]`
    pub data: Vec<f32>,
}

impl Logits {
    /// Returns the number of rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.n_vocab
    }

    /// Returns one row, `[n_vocab]`.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.n_vocab..(r + 1) * self.n_vocab]
    }

    /// Returns the last row, if there is one.
    pub fn last(&self) -> Option<&[f32]> {
        self.data.rchunks_exact(self.n_vocab).next()
    }
}

/// One sequence of a loaded model: takes tokens, and waits for their outputs. Dropping it frees its
/// KV cache pages.
pub struct Session {
    engine: Engine,
    /// Tokens whose keys and values are cached.
    tokens: Vec<u32>,
    kv: SequenceKv,
    /// Images whose tokens may be in the sequence.
    images: Vec<ImageHandle>,
    /// Adapters of its tokens: the engine's defaults when they began.
    adapters: Arc<AdapterSet>,
    /// Set by another thread to end a computation between two steps.
    stop: Option<Arc<AtomicBool>>,
}

impl Engine {
    /// Starts a session.
    pub fn session(&self) -> Session {
        Session {
            engine: self.clone(),
            tokens: Vec::new(),
            kv: SequenceKv::default(),
            images: Vec::new(),
            adapters: Arc::default(),
            stop: None,
        }
    }

    /// Runs a text through the model and passes every named value of every position to `tap`. Works
    /// for any model, including those without logits.
    ///
    /// # Errors
    /// As [`Session::eval`], and [`Error::Whole`].
    pub fn run_with_taps(&self, tokens: &[u32], tap: &mut TapSink<'_>) -> Result<(), Error> {
        self.session().run_with_taps(tokens, tap)
    }
}

impl Session {
    /// Returns the model.
    pub fn engine(&self) -> &Engine {
        &self.engine
    }

    /// Returns the tokens whose keys and values are cached.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Returns the images that it holds.
    pub(crate) fn images(&self) -> &[ImageHandle] {
        &self.images
    }

    /// Drops the tokens that a text does not begin with, and the last one if that is all of the
    /// text: it is always computed, because its outputs choose the next one. Returns how many are
    /// left.
    pub fn truncate_to_prefix(&mut self, text: &[u32]) -> usize {
        let both = self.tokens.iter().zip(text);
        let alike = both.take_while(|(a, b)| a == b).count();
        self.truncate(alike.min(text.len().saturating_sub(1)))
    }

    /// Hands over the pages of the tokens that a prompt begins with, and drops the others.
    ///
    /// # Errors
    /// If several adapters are activated by the prompt's tokens.
    pub(crate) fn lend(&mut self, prompt: &[u32]) -> Result<SequenceKv, Error> {
        let adapters = self.engine.adapter_set(None, prompt)?;
        self.truncate_to_prefix(prompt);
        self.truncate(self.adapters.common(&adapters));
        self.adapters = adapters;
        self.tokens.clear();
        Ok(std::mem::take(&mut self.kv))
    }

    /// Takes pages back, and the tokens that they hold.
    pub(crate) fn take_back(&mut self, (tokens, kv): (Vec<u32>, SequenceKv)) {
        (self.tokens, self.kv) = (tokens, kv);
    }

    /// Returns the context length in tokens.
    pub fn n_ctx(&self) -> usize {
        self.engine.n_ctx()
    }

    /// Returns the number of KV cache pages it has in each group of layers.
    pub fn pages(&self) -> Vec<usize> {
        let tables = self.kv.tables().iter();
        tables.map(|table| table.pages().len()).collect()
    }

    /// Holds an image, so that its tokens can be appended.
    pub fn hold(&mut self, image: &ImageHandle) {
        if !holds(&self.images, image.tokens().start) {
            self.images.push(image.clone());
        }
    }

    /// Ends computations with [`Error::Stopped`] between two steps once `stop` is set.
    pub fn stop_when(&mut self, stop: Arc<AtomicBool>) {
        self.stop = Some(stop);
    }

    /// As [`Engine::run_with_taps`], for tokens that follow those of the session.
    ///
    /// # Errors
    /// As [`Engine::run_with_taps`].
    pub fn run_with_taps(&mut self, tokens: &[u32], tap: &mut TapSink<'_>) -> Result<(), Error> {
        self.engine.check_whole(tokens.len())?;
        let how = Eval::new(Phase::Prefill, LogitsFor::All);
        self.run(tokens, how, Some(tap), &mut |_| {})
    }

    /// As [`Session::run_with_taps`], for an MTP layer: `hidden` has the hidden state
    /// before each token, `[tokens][n_embd]`.
    ///
    /// # Errors
    /// As [`Session::run_with_taps`].
    ///
    /// # Panics
    /// If it has others, or the model is no MTP layer.
    pub fn mtp_with_taps(
        &mut self,
        tokens: &[u32],
        hidden: &[f32],
        phase: Phase,
        tap: &mut TapSink<'_>,
    ) -> Result<(), Error> {
        let how = Eval {
            hidden,
            ..Eval::new(phase, LogitsFor::All)
        };
        self.run(tokens, how, Some(tap), &mut |_| {})
    }

    /// Passes every named value of an assistant to `tap`, for a token after this session's;
    /// `hidden` is the hidden state before the token, `[n_embd]`. Returns the one to draft on from.
    ///
    /// # Errors
    /// If the device fails.
    ///
    /// # Panics
    /// If this session has no tokens, or the other engine is no assistant of this one
    /// ([`Engine::set_draft_model`]).
    pub fn assistant_with_taps(
        &mut self,
        assistant: &Engine,
        (token, hidden): (u32, &[f32]),
        tap: &mut TapSink<'_>,
    ) -> Result<Vec<f32>, Error> {
        let (engine, kv) = (&self.engine, &self.kv);
        let drafted = Target { engine, kv }.assisted(assistant, (token, hidden), Some(tap))?;
        Ok(drafted.hidden)
    }

    /// Truncates the sequence to the first `n` tokens; returns how many are left. That may be
    /// fewer: an image is dropped whole, and recurrent layers go back only to a checkpoint of their
    /// state. With sliding windows nothing may be left if `n` is far back, because pages behind a
    /// window are freed.
    pub fn truncate(&mut self, n: usize) -> usize {
        let mut left = n.min(self.tokens.len());
        loop {
            left -= image_tokens_before(&self.tokens, left);
            let engine = self.engine.clone();
            left = engine.runner().kv_cache.truncate(&mut self.kv, left);
            if image_tokens_before(&self.tokens, left) == 0 {
                self.tokens.truncate(left);
                return left;
            }
        }
    }

    /// Appends tokens and returns the requested logits. A long prompt is cut into batches; that
    /// changes no result.
    ///
    /// # Errors
    /// [`Error::Context`] if they do not fit, [`Error::Token`] for an id outside the vocabulary,
    /// [`Error::NotFinite`] if a logit is NaN or infinite, [`Error::NoLogits`] for a model that has
    /// none. The session keeps its earlier tokens, or as many of them as [`Session::truncate`]
    /// leaves.
    pub fn eval(
        &mut self,
        tokens: &[u32],
        phase: Phase,
        logits_for: LogitsFor,
    ) -> Result<Logits, Error> {
        let mut data = Vec::new();
        self.eval_with(tokens, phase, logits_for, None, &mut |_, row| {
            data.extend_from_slice(row)
        })?;
        Ok(Logits {
            n_vocab: self.engine.hparams().n_vocab(),
            data,
        })
    }

    /// As [`Session::eval`], but passes each requested row with its position to `sink`, so that
    /// memory does not grow with the text; `tap` receives every named value of every batch.
    ///
    /// # Errors
    /// As [`Session::eval`].
    pub fn eval_with(
        &mut self,
        tokens: &[u32],
        phase: Phase,
        logits_for: LogitsFor,
        tap: Option<&mut TapSink<'_>>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.engine.check_logits()?;
        self.run(tokens, Eval::new(phase, logits_for), tap, &mut |output| {
            if let OutputValue::Logits(row) = output.value {
                sink(output.position, row);
            }
        })
    }

    /// Appends tokens and returns the most likely next one, the lowest id of equals. A device that
    /// computes the argmax itself does not transfer its logits.
    ///
    /// # Errors
    /// As [`Session::eval`].
    ///
    /// # Panics
    /// If there are no tokens.
    pub fn eval_argmax(&mut self, tokens: &[u32], phase: Phase) -> Result<u32, Error> {
        let best = self.eval_argmax_of(tokens, phase, LogitsFor::Last)?;
        Ok(*best.first().expect("expected at least one token"))
    }

    /// As [`Session::eval_argmax`], for every requested token.
    ///
    /// # Errors
    /// As [`Session::eval`].
    pub fn eval_argmax_of(
        &mut self,
        tokens: &[u32],
        phase: Phase,
        logits_for: LogitsFor,
    ) -> Result<Vec<u32>, Error> {
        let mut best = Vec::new();
        self.engine.check_logits()?;
        let how = Eval {
            need: OutputNeed::Argmax,
            ..Eval::new(phase, logits_for)
        };
        self.run(tokens, how, None, &mut |output| {
            if let OutputValue::Argmax(id) = output.value {
                best.push(id);
            }
        })?;
        Ok(best)
    }

    fn run(
        &mut self,
        tokens: &[u32],
        how: Eval<'_>,
        mut tap: Option<&mut TapSink<'_>>,
        sink: &mut dyn FnMut(Output<'_>),
    ) -> Result<(), Error> {
        let have = self.tokens.len();
        self.check(tokens)?;
        if have == 0 {
            self.adapters = self.engine.adapter_set(None, tokens)?;
        }
        let adapters = self.adapters.clone();
        let (chunk, most_outputs) = (self.engine.batch(), self.engine.limits().outputs);
        let outputs = match how.logits_for {
            LogitsFor::None => 0,
            LogitsFor::Last => 1,
            LogitsFor::Tail(n) => n.min(tokens.len()),
            LogitsFor::All => tokens.len(),
        };
        let batch = match outputs {
            0 | 1 => chunk,
            _ => chunk.min(most_outputs),
        };
        let width = how.hidden.len() / tokens.len().max(1);
        let mut left = tokens.len();
        while left > 0 {
            let start = tokens.len() - left;
            let n = with_whole_images(tokens, start, batch.min(left));
            let part = &tokens[start..start + n];
            if self.is_stopped() {
                self.truncate(have);
                return Err(Error::Stopped);
            }
            let mut next = left.saturating_sub(outputs).min(part.len());
            left -= part.len();
            loop {
                let end = part.len().min(next + most_outputs);
                let is_last = end == part.len();
                let tap = tap.as_mut().filter(|_| is_last);
                let mut input = StepInput {
                    outputs: next..end,
                    need: how.need,
                    hidden: &how.hidden[start * width..][..part.len() * width],
                    adapters: &adapters,
                    ..StepInput::new(&mut self.kv, &self.tokens, part)
                };
                let tap = tap.map(|tap| &mut **tap as &mut TapSink<'_>);
                if let Err(error) = step(&self.engine, how.phase, &mut input, tap, sink) {
                    self.truncate(have);
                    return Err(error);
                }
                if is_last {
                    break;
                }
                // a whole image has more outputs than a step: it is computed again for the next
                let engine = self.engine.clone();
                let mut runner = engine.runner();
                runner.kv_cache.truncate(&mut self.kv, self.tokens.len());
                next = end;
            }
            self.tokens.extend_from_slice(part);
            self.engine.runner().kv_cache.pass(&mut self.kv);
        }
        Ok(())
    }

    fn is_stopped(&self) -> bool {
        let stop = self.stop.as_ref();
        stop.is_some_and(|stop| stop.load(Ordering::Relaxed))
    }

    /// Checks that these tokens can be appended.
    fn check(&self, tokens: &[u32]) -> Result<(), Error> {
        let (have, new, n_ctx) = (self.tokens.len(), tokens.len(), self.n_ctx());
        if have + new > n_ctx {
            return Err(Error::Context { have, new, n_ctx });
        }
        let n_vocab = self.engine.hparams().n_vocab();
        let is_known = |id: u32| (id as usize) < n_vocab || holds(&self.images, id);
        match tokens.iter().find(|id| !is_known(**id)) {
            Some(&id) if is_image_token(id) => Err(Error::ImageNotHeld { id }),
            Some(&id) => Err(Error::Token { id, n_vocab }),
            None => Ok(()),
        }
    }
}

/// Runs a step over one input.
fn step(
    engine: &Engine,
    phase: Phase,
    input: &mut StepInput<'_>,
    tap: Option<&mut TapSink<'_>>,
    sink: &mut dyn FnMut(Output<'_>),
) -> Result<(), Error> {
    let mut each = |outputs: Vec<Output<'_>>| outputs.into_iter().for_each(&mut *sink);
    let mut runner = engine.runner();
    runner.step(phase, std::slice::from_mut(input), tap, &mut each)?;
    input.failed.take().map_or(Ok(()), Err)
}

impl Drop for Session {
    fn drop(&mut self) {
        self.truncate(0);
    }
}
