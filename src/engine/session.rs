//! One timeline: tokens, and the pages that hold their keys and values.

use octavo_kernels::{Sequence, Step};

use super::{Engine, Runtime};
use crate::backend::{Role, TapSink, TapView};
use crate::error::Error;
use crate::kv::BlockTable;
use crate::sample::are_finite;

/// Of which of the given tokens logits are wanted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wanted {
    /// None: only the cache is filled.
    None,
    /// The last.
    Last,
    /// Every one.
    All,
}

/// Logits, never clipped, always finite.
#[derive(Clone, Debug, PartialEq)]
pub struct Logits {
    /// Values of a row.
    pub n_vocab: usize,
    /// `[rows][n_vocab]`
    pub data: Vec<f32>,
}

impl Logits {
    /// Rows.
    pub fn rows(&self) -> usize {
        self.data.len() / self.n_vocab
    }

    /// One row.
    pub fn row(&self, r: usize) -> &[f32] {
        &self.data[r * self.n_vocab..(r + 1) * self.n_vocab]
    }

    /// The last row, if there is one.
    pub fn last(&self) -> Option<&[f32]> {
        self.data.rchunks_exact(self.n_vocab).next()
    }
}

/// One timeline of a loaded model. Dropping it frees its pages.
pub struct Session<'e> {
    engine: &'e Engine,
    tokens: Vec<u32>,
    table: BlockTable,
    /// The table's page numbers, as a step takes them.
    pages: Vec<u32>,
}

impl<'e> Session<'e> {
    pub(super) fn new(engine: &'e Engine) -> Session<'e> {
        Session {
            engine,
            tokens: Vec::new(),
            table: BlockTable::new(),
            pages: Vec::new(),
        }
    }

    /// The model.
    pub fn engine(&self) -> &'e Engine {
        self.engine
    }

    /// Tokens whose keys and values are cached.
    pub fn tokens(&self) -> &[u32] {
        &self.tokens
    }

    /// Positions there are.
    pub fn n_ctx(&self) -> usize {
        self.engine.n_ctx
    }

    /// Forgets all but the first `n` tokens.
    pub fn truncate(&mut self, n: usize) {
        let mut runtime = lock(self.engine);
        self.tokens.truncate(n);
        self.table.truncate(&mut runtime.pool, self.tokens.len());
    }

    /// Appends tokens and returns the logits wanted. A prompt is cut into batches; that changes no
    /// result.
    ///
    /// # Errors
    /// [`Error::Context`] if they do not fit, [`Error::Token`] for an id outside the vocabulary,
    /// [`Error::NotFinite`] if a logit is NaN or infinite. The session keeps its earlier tokens.
    pub fn eval(&mut self, tokens: &[u32], role: Role, wanted: Wanted) -> Result<Logits, Error> {
        let mut data = Vec::new();
        self.eval_with(tokens, role, wanted, None, &mut |_, row| {
            data.extend_from_slice(row)
        })?;
        Ok(Logits {
            n_vocab: self.engine.hparams().n_vocab(),
            data,
        })
    }

    /// As [`Session::eval`], handing each wanted row with its position to `sink`, so that memory
    /// does not grow with the text; `tap` sees every named value of every batch.
    ///
    /// # Errors
    /// As [`Session::eval`].
    pub fn eval_with(
        &mut self,
        tokens: &[u32],
        role: Role,
        wanted: Wanted,
        tap: Option<&mut TapSink<'_>>,
        sink: &mut dyn FnMut(usize, &[f32]),
    ) -> Result<(), Error> {
        self.run(tokens, role, wanted, tap, &mut Outputs::Rows(sink))
    }

    /// Appends tokens and returns the most likely next one, the lowest id of equals. A device that
    /// finds it by itself does not hand its logits over.
    ///
    /// # Errors
    /// As [`Session::eval`].
    ///
    /// # Panics
    /// If there are no tokens.
    pub fn eval_best(&mut self, tokens: &[u32], role: Role) -> Result<u32, Error> {
        let mut best = None;
        self.run(
            tokens,
            role,
            Wanted::Last,
            None,
            &mut Outputs::Best(&mut best),
        )?;
        Ok(best.expect("expected at least one token"))
    }

    fn run(
        &mut self,
        tokens: &[u32],
        role: Role,
        wanted: Wanted,
        mut tap: Option<&mut TapSink<'_>>,
        outputs: &mut Outputs<'_>,
    ) -> Result<(), Error> {
        let (have, n_ctx, n_vocab) = (
            self.tokens.len(),
            self.n_ctx(),
            self.engine.hparams().n_vocab(),
        );
        if have + tokens.len() > n_ctx {
            return Err(Error::Context {
                have,
                new: tokens.len(),
                n_ctx,
            });
        }
        if let Some(&id) = tokens.iter().find(|t| **t as usize >= n_vocab) {
            return Err(Error::Token { id, n_vocab });
        }
        let batch = if wanted == Wanted::All {
            self.engine.limits.wanted
        } else {
            self.engine.limits.rows
        };
        let mut left = tokens.len();
        for part in tokens.chunks(batch) {
            left -= part.len();
            let rows = match wanted {
                Wanted::All => 0..part.len(),
                Wanted::Last if left == 0 => part.len() - 1..part.len(),
                _ => 0..0,
            };
            let result = self.step(part, role, rows, &mut tap, outputs);
            if let Err(error) = result {
                self.truncate(have);
                return Err(error);
            }
        }
        Ok(())
    }

    fn step(
        &mut self,
        part: &[u32],
        role: Role,
        wanted: std::ops::Range<usize>,
        tap: &mut Option<&mut TapSink<'_>>,
        outputs: &mut Outputs<'_>,
    ) -> Result<(), Error> {
        let start = self.tokens.len();
        let mut runtime = lock(self.engine);
        let Runtime { executable, pool } = &mut *runtime;
        for copy in self.table.reserve(pool, start + part.len())? {
            executable.copy_page(copy.from.0, copy.to.0)?;
        }
        self.pages.clear();
        self.pages
            .extend(self.table.pages().iter().map(|page| page.0));
        let seqs = [Sequence {
            tokens: part,
            start,
            table: &self.pages,
            wanted: wanted.clone(),
        }];
        let step = Step {
            role,
            seqs: &seqs,
            input: &[],
        };
        let first = start + wanted.start;
        let bad = match outputs {
            Outputs::Rows(sink) => {
                let logits =
                    executable.step(&step, tap.as_mut().map(|t| &mut **t as &mut TapSink<'_>))?;
                let n_vocab = self.engine.hparams().n_vocab();
                let bad = logits
                    .chunks_exact(n_vocab)
                    .position(|row| !are_finite(row));
                for (i, row) in logits
                    .chunks_exact(n_vocab)
                    .enumerate()
                    .filter(|_| bad.is_none())
                {
                    sink(first + i, row);
                }
                bad
            }
            Outputs::Best(best) => {
                let all = executable.best(&step)?;
                **best = all.last().copied().flatten().or(**best);
                all.iter().position(Option::is_none)
            }
        };
        if let Some(row) = bad {
            return Err(first_not_finite(&mut **executable, &step, first + row)?);
        }
        self.tokens.extend_from_slice(part);
        self.table.advance(self.tokens.len());
        Ok(())
    }
}

/// What becomes of the wanted rows' logits.
enum Outputs<'a> {
    /// Each goes there, with its position.
    Rows(&'a mut dyn FnMut(usize, &[f32])),
    /// Only the place of the last row's largest.
    Best(&'a mut Option<u32>),
}

/// Runs the step again with taps on, to name the op that produced the first value that is not
/// finite. The cache is written with the same values once more.
fn first_not_finite(
    executable: &mut dyn crate::backend::Executable,
    step: &Step<'_>,
    position: usize,
) -> Result<Error, Error> {
    let mut first = None;
    let mut look = |view: &TapView<'_>| {
        if first.is_none() && view.data.iter().any(|x| !x.is_finite()) {
            first = Some(view.tap.to_string());
        }
    };
    executable.step(step, Some(&mut look))?;
    Ok(Error::NotFinite {
        position,
        tap: first.unwrap_or_else(|| "an unnamed value".to_owned()),
    })
}

fn lock(engine: &Engine) -> std::sync::MutexGuard<'_, Runtime> {
    // a panic inside a step leaves pages and pool in order: they are changed only between steps
    engine
        .runtime
        .lock()
        .unwrap_or_else(std::sync::PoisonError::into_inner)
}

impl Drop for Session<'_> {
    fn drop(&mut self) {
        let mut runtime = lock(self.engine);
        self.table.truncate(&mut runtime.pool, 0);
    }
}
