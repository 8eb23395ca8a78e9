//! Texts with several continuations, computed together: many texts in a step, and what the
//! continuations of a text have in common once.

use octavo_kernels::{PAGE_POSITIONS, Phase};

use crate::engine::Engine;
use crate::error::Error;
use crate::kv::SequenceKv;
use crate::model_runner::{ModelRunner, Output, StepInput};
use crate::sample::OutputValue;

/// A text, and what may follow it.
#[derive(Clone, Copy, Debug)]
pub struct Choices<'a> {
    /// Tokens of the text, at least one.
    pub prefix: &'a [u32],
    /// Tokens of each continuation; may be empty.
    pub tails: &'a [&'a [u32]],
}

/// Logits after a token of a text or of one of its continuations.
#[derive(Clone, Copy, Debug)]
pub struct ChoiceRow<'a> {
    /// Index of the text.
    pub text: usize,
    /// Index of the continuation; `None` for the last token of the text itself.
    pub tail: Option<usize>,
    /// Index of the token in the continuation, or in the text.
    pub token: usize,
    /// `[n_vocab]`
    pub logits: &'a [f32],
}

/// A sequence and the tokens to compute for it.
struct Work<'a> {
    text: usize,
    tail: Option<usize>,
    kv: SequenceKv,
    /// Tokens before these.
    before: Vec<u32>,
    tokens: &'a [u32],
    /// Number of tokens that were computed.
    done: usize,
}

impl Work<'_> {
    fn left(&self) -> usize {
        self.tokens.len() - self.done
    }

    /// Returns the text, the continuation, and the position of its first token.
    fn place(&self) -> (usize, Option<usize>, usize) {
        (self.text, self.tail, self.before.len() - self.done)
    }

    /// Returns the first of the next `n` tokens, counted from the first of these, that has outputs:
    /// every token of a continuation, and the last one of a text.
    fn first_output(&self, n: usize) -> usize {
        match self.tail {
            Some(_) => 0,
            None => n - usize::from(self.done + n == self.tokens.len()),
        }
    }
}

impl Engine {
    /// Computes texts and their continuations from an empty cache, as prompts, and passes on the
    /// logits after the last token of each text and after every token of its continuations, a step
    /// at a time. `cancelled` is asked before each step.
    ///
    /// # Errors
    /// [`Error::Context`] and [`Error::Token`] for a continuation that does not fit,
    /// [`Error::NoLogits`], [`Error::NotFinite`], [`Error::Stopped`], and failures of the device.
    ///
    /// # Panics
    /// If a text is empty, or has more continuations than the engine has sessions.
    pub fn eval_choices(
        &self,
        all: &[Choices<'_>],
        cancelled: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(Vec<ChoiceRow<'_>>),
    ) -> Result<(), Error> {
        self.check_logits()?;
        all.iter().try_for_each(|one| self.check_choices(one))?;
        let mut next = 0;
        while next < all.len() {
            let wave = next..next + self.wave(&all[next..]);
            let works = wave.clone().map(|text| Work {
                text,
                tail: None,
                kv: SequenceKv::default(),
                before: Vec::new(),
                tokens: all[text].prefix,
                done: 0,
            });
            let mut works: Vec<Work<'_>> = works.collect();
            let mut result = self.compute(&mut works, cancelled, sink);
            if result.is_ok() {
                works = self.fork(works, all);
                result = self.compute(&mut works, cancelled, sink);
            }
            let mut runner = self.runner();
            for work in &mut works {
                runner.kv_cache.truncate(&mut work.kv, 0);
            }
            result?;
            next = wave.end;
        }
        Ok(())
    }

    fn check_choices(&self, one: &Choices<'_>) -> Result<(), Error> {
        let most = self.limits().sequences;
        assert!(!one.prefix.is_empty(), "a text without tokens");
        assert!(one.tails.len() <= most, "more continuations than {most}");
        let (n_vocab, n_ctx) = (self.hparams().n_vocab(), self.n_ctx());
        let longest = one.tails.iter().map(|tail| tail.len()).max().unwrap_or(0);
        let (have, new) = (one.prefix.len(), longest);
        if have + new > n_ctx {
            return Err(Error::Context { have, new, n_ctx });
        }
        let tokens = one.tails.iter().copied().flatten().chain(one.prefix);
        match tokens.copied().find(|id| *id as usize >= n_vocab) {
            Some(id) => Err(Error::Token { id, n_vocab }),
            None => Ok(()),
        }
    }

    /// Returns the number of texts whose sequences and pages there is room for at once: one at
    /// least, whose error it is then if there is none.
    fn wave(&self, all: &[Choices<'_>]) -> usize {
        let limits = self.limits();
        let (mut sequences, mut pages) = (0, 0);
        let fits = all.iter().take_while(|one| {
            // a continuation copies the page in which it begins
            let of_tail = |tail: &&[u32]| tail.len().div_ceil(PAGE_POSITIONS) + 1;
            sequences += one.tails.len().max(1);
            pages += one.prefix.len().div_ceil(PAGE_POSITIONS);
            pages += one.tails.iter().map(of_tail).sum::<usize>();
            sequences <= limits.sequences && pages <= limits.n_pages
        });
        fits.count().max(1)
    }

    /// Makes a sequence of each continuation of the texts that were computed; those without tokens
    /// need none.
    fn fork<'a>(&self, texts: Vec<Work<'a>>, all: &[Choices<'a>]) -> Vec<Work<'a>> {
        let mut runner = self.runner();
        let mut works = Vec::new();
        for mut text in texts {
            let tails = all[text.text].tails.iter().enumerate();
            for (tail, tokens) in tails.filter(|(_, tokens)| !tokens.is_empty()) {
                works.push(Work {
                    text: text.text,
                    tail: Some(tail),
                    kv: runner.kv_cache.fork(&text.kv),
                    before: text.tokens.to_vec(),
                    tokens,
                    done: 0,
                });
            }
            runner.kv_cache.truncate(&mut text.kv, 0);
        }
        works
    }

    /// Computes all tokens of these sequences, as many in a step as the engine takes.
    fn compute(
        &self,
        works: &mut [Work<'_>],
        cancelled: &dyn Fn() -> bool,
        sink: &mut dyn FnMut(Vec<ChoiceRow<'_>>),
    ) -> Result<(), Error> {
        while works.iter().any(|work| work.left() > 0) {
            if cancelled() {
                return Err(Error::Stopped);
            }
            self.step_of(works, &mut self.runner(), sink)?;
        }
        Ok(())
    }

    fn step_of(
        &self,
        works: &mut [Work<'_>],
        runner: &mut ModelRunner,
        sink: &mut dyn FnMut(Vec<ChoiceRow<'_>>),
    ) -> Result<(), Error> {
        let (limits, adapters) = (self.limits(), self.adapter_set(None, &[])?);
        let (mut rows, mut outputs) = (limits.rows, limits.outputs);
        // index, number of tokens and first output of each sequence in the step
        let mut taken: Vec<(usize, usize, usize)> = Vec::new();
        for (i, work) in works.iter().enumerate().filter(|(_, work)| work.left() > 0) {
            let mut n = work.left().min(rows);
            if work.tail.is_some() {
                n = n.min(outputs);
            }
            if n == 0 || outputs == 0 || taken.len() == limits.sequences {
                break;
            }
            let first = work.first_output(n);
            (rows, outputs) = (rows - n, outputs - (n - first));
            taken.push((i, n, first));
        }
        let place = |(i, ..): &(usize, usize, usize)| works[*i].place();
        let places: Vec<_> = taken.iter().map(place).collect();
        let mut next = taken.iter().copied().peekable();
        let mut inputs = Vec::with_capacity(taken.len());
        for (i, work) in works.iter_mut().enumerate() {
            if let Some((_, n, first)) = next.next_if(|(at, ..)| *at == i) {
                let tokens = &work.tokens[work.done..work.done + n];
                inputs.push(StepInput {
                    outputs: first..n,
                    adapters: &adapters,
                    ..StepInput::new(&mut work.kv, &work.before, tokens)
                });
            }
        }
        let mut hand_on = |outputs: Vec<Output<'_>>| {
            let rows = outputs.into_iter().filter_map(|output| {
                let (text, tail, start) = places[output.input];
                let OutputValue::Logits(logits) = output.value else {
                    return None;
                };
                let token = output.position - start;
                Some(ChoiceRow {
                    text,
                    tail,
                    token,
                    logits,
                })
            });
            sink(rows.collect());
        };
        let step = runner.step(Phase::Prefill, &mut inputs, None, &mut hand_on);
        let failed = inputs.iter_mut().find_map(|input| input.failed.take());
        step.and(failed.map_or(Ok(()), Err))?;
        for (i, n, _) in taken {
            let work = &mut works[i];
            let tokens = &work.tokens[work.done..work.done + n];
            work.before.extend_from_slice(tokens);
            work.done += n;
            runner.kv_cache.pass(&mut work.kv);
        }
        Ok(())
    }
}
