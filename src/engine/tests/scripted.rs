//! A device that computes nothing: it keeps tokens in the pages that it is given, and answers with
//! a function of the text that it finds there.

use std::collections::HashMap;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use octavo_engine::backend::{Backend, Phase, Step, TapSink};
use octavo_engine::{Engine, EngineOptions, Error, ModelSource, PAGE_POSITIONS};

/// Number of tokens of each step so far, and their phase.
pub(crate) type Calls = Arc<Mutex<Vec<(usize, Phase)>>>;

struct Scripted<F> {
    /// Returns the logits after a text, `[n_vocab]`.
    logits_after: F,
    n_pages: usize,
    pages: HashMap<u32, [u32; PAGE_POSITIONS]>,
    calls: Calls,
    behaviour: Behaviour,
    logits: Vec<f32>,
}

/// Behaviour of a device, apart from its answers.
#[derive(Clone, Copy, Default)]
pub(crate) struct Behaviour {
    /// Index of the step that fails.
    pub(crate) fail_at: Option<usize>,
    /// Time of a step, however many tokens it computes.
    pub(crate) step_time: Duration,
}

/// Loads the built-in model's vocabulary with a device that answers with `logits_after` a text.
pub(crate) fn engine(
    options: &EngineOptions,
    behaviour: Behaviour,
    logits_after: impl Fn(&[u32]) -> Vec<f32> + Send + 'static,
) -> (Engine, Calls) {
    let calls = Calls::default();
    let engine = load(options, behaviour, logits_after, &calls);
    (engine.expect("it loads"), calls)
}

/// As [`engine`], where that may fail.
pub(crate) fn load(
    options: &EngineOptions,
    behaviour: Behaviour,
    logits_after: impl Fn(&[u32]) -> Vec<f32> + Send + 'static,
    calls: &Calls,
) -> Result<Engine, Error> {
    Engine::load_on(&ModelSource::Demo, options, |_, _, limits| {
        Ok(Box::new(Scripted {
            logits_after,
            n_pages: limits.n_pages,
            pages: HashMap::new(),
            calls: calls.clone(),
            behaviour,
            logits: Vec::new(),
        }))
    })
}

impl<F: Fn(&[u32]) -> Vec<f32> + Send> Backend for Scripted<F> {
    fn step(&mut self, step: &Step<'_>, _: Option<&mut TapSink<'_>>) -> Result<&[f32], Error> {
        let mut calls = self.calls.lock().expect("no panic");
        if self.behaviour.fail_at == Some(calls.len()) {
            return Err(Error::TooLong(0));
        }
        calls.push((step.rows(), step.phase));
        std::thread::sleep(self.behaviour.step_time);
        self.logits.clear();
        for seq in step.seqs {
            let place = |at: usize| (seq.tables[0][at / PAGE_POSITIONS], at % PAGE_POSITIONS);
            for (at, &token) in (seq.start..).zip(seq.tokens) {
                let (page, place) = place(at);
                self.pages.entry(page).or_insert([0; PAGE_POSITIONS])[place] = token;
            }
            for row in seq.outputs.clone() {
                let positions = (0..=seq.start + row).map(place);
                let text: Vec<u32> = positions
                    .map(|(page, place)| self.pages[&page][place])
                    .collect();
                self.logits.extend((self.logits_after)(&text));
            }
        }
        Ok(&self.logits)
    }

    fn kept_rows(&mut self) -> Result<Vec<f32>, Error> {
        Ok(Vec::new())
    }

    fn copy_page(&mut self, _: usize, from: u32, to: u32) -> Result<(), Error> {
        let page = self.pages[&from];
        self.pages.insert(to, page);
        Ok(())
    }

    fn cache_groups(&self) -> usize {
        1
    }

    fn n_pages(&self) -> usize {
        self.n_pages
    }

    fn n_states(&self) -> usize {
        0
    }

    fn weight_bytes(&self) -> u64 {
        0
    }

    fn describe(&self) -> String {
        "scripted".to_owned()
    }
}
