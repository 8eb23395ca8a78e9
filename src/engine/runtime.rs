//! Owns a device and the pages of its KV cache, and runs steps over several sequences.

use std::ops::Range;
use std::sync::Arc;

use octavo_kernels::{GivenRows, Role, Sequence, StateUse, StateWrite, Step};
use octavo_model::Tap;

use crate::Error;
use crate::backend::{Executable, TapSink, TapView};
use crate::kv::{BlockTable, Checkpoint, GroupCopy, KvCacheManager, NO_PAGE, SequenceKv};
use crate::pictures::{Pictures, Scene};
use crate::sample::{are_finite, argmax};

/// New tokens of a sequence.
pub(crate) struct Entry<'a> {
    pub(crate) kv: &'a mut SequenceKv,
    /// All tokens that the sequence holds.
    pub(crate) before: &'a [u32],
    /// The new tokens, at least one.
    pub(crate) tokens: &'a [u32],
    /// Range of `tokens` that needs outputs.
    pub(crate) wanted: Range<usize>,
    /// Whether only the argmax of these outputs is needed.
    pub(crate) only_argmax: bool,
    /// Error of this entry alone. Its sequence is as it was.
    pub(crate) failed: Option<Error>,
}

impl<'a> Entry<'a> {
    /// Creates an entry without outputs.
    pub(crate) fn new(kv: &'a mut SequenceKv, before: &'a [u32], tokens: &'a [u32]) -> Entry<'a> {
        Entry {
            kv,
            before,
            tokens,
            wanted: 0..0,
            only_argmax: false,
            failed: None,
        }
    }

    /// Returns the positions of the sequence after the step.
    fn end(&self) -> usize {
        self.kv.len() + self.tokens.len()
    }
}

/// One output of a step.
pub(crate) struct Output<'a> {
    /// Index of its entry.
    pub(crate) entry: usize,
    /// Position of its token.
    pub(crate) position: usize,
    pub(crate) value: Value<'a>,
}

pub(crate) enum Value<'a> {
    /// `[n_vocab]`, all finite; or the token's vector, where that was asked for.
    Logits(&'a [f32]),
    /// Id of the largest logit, the lowest id of equals.
    Argmax(u32),
}

/// A device, and the owners of its pages.
pub(crate) struct Runtime {
    executable: Box<dyn Executable>,
    pub(crate) kv_cache: KvCacheManager,
    n_vocab: usize,
    pictures: Arc<Pictures>,
    /// Page numbers of a step's block tables, one after the other.
    pages: Vec<u32>,
}

impl Runtime {
    /// Takes a device with this many pages for each group of layers, and each group's sliding
    /// window.
    pub(crate) fn new(
        executable: Box<dyn Executable>,
        n_pages: u32,
        windows: &[Option<usize>],
        n_vocab: usize,
        pictures: Arc<Pictures>,
    ) -> Runtime {
        let groups = executable.cache_groups();
        assert_eq!(
            groups,
            windows.len(),
            "the device has other groups of layers"
        );
        let slots = u32::try_from(executable.n_states()).expect("states are numbered in 32 bits");
        let kv_cache = KvCacheManager::new(windows, n_pages).with_states(slots);
        Runtime {
            executable,
            kv_cache,
            n_vocab,
            pictures,
            pages: Vec::new(),
        }
    }

    /// Copies pages, as a reservation asks for.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn copy(&mut self, copies: &[GroupCopy]) -> Result<(), Error> {
        for GroupCopy { group, copy } in copies {
            self.executable.copy_page(*group, copy.from.0, copy.to.0)?;
        }
        Ok(())
    }

    /// Frees step scratch buffers while idle.
    pub(crate) fn release_scratch(&mut self) {
        self.executable.release_scratch();
    }

    /// Computes new tokens of several sequences, all of one role. `sink` gets all outputs at once,
    /// entry by entry and in order; `tap` receives every named value. Entries that fail alone
    /// record their error and hand out nothing; the others are not touched by that.
    ///
    /// # Errors
    /// If the device fails: no sequence has grown then.
    pub(crate) fn step(
        &mut self,
        role: Role,
        entries: &mut [Entry<'_>],
        tap: Option<&mut TapSink<'_>>,
        sink: &mut dyn FnMut(Vec<Output<'_>>),
    ) -> Result<(), Error> {
        let asked = tap.map_or(Asked::Outputs, Asked::Shown);
        self.step_for(role, entries, asked, sink)
    }

    /// As [`Runtime::step`], but the outputs are the named value `tap` of the requested rows, and a
    /// device need not compute what comes after it.
    ///
    /// # Errors
    /// As [`Runtime::step`].
    pub(crate) fn step_to_rows(
        &mut self,
        role: Role,
        entries: &mut [Entry<'_>],
        tap: Tap,
        sink: &mut dyn FnMut(Vec<Output<'_>>),
    ) -> Result<(), Error> {
        self.step_for(role, entries, Asked::Rows(tap), sink)
    }

    fn step_for(
        &mut self,
        role: Role,
        entries: &mut [Entry<'_>],
        asked: Asked<'_, '_>,
        sink: &mut dyn FnMut(Vec<Output<'_>>),
    ) -> Result<(), Error> {
        let ranges = self.reserve(entries)?;
        let table = |range: &Range<usize>| &self.pages[range.clone()];
        let tables: Vec<Vec<&[u32]>> = ranges
            .iter()
            .map(|ranges| ranges.iter().map(table).collect())
            .collect();
        let scenes = self.scenes(entries);
        let given: Vec<Vec<GivenRows<'_>>> = scenes.iter().map(Scene::given).collect();
        let live: Vec<usize> = (0..entries.len())
            .filter(|i| entries[*i].failed.is_none())
            .collect();
        let states: Vec<States> = entries.iter().map(|e| States::of(e.kv)).collect();
        let seqs: Vec<Sequence<'_>> = live
            .iter()
            .map(|&i| Sequence {
                tokens: entries[i].tokens,
                start: entries[i].kv.len(),
                tables: &tables[i],
                wanted: entries[i].wanted.clone(),
                states: StateUse {
                    from: states[i].from,
                    to: &states[i].to,
                },
                turns: &scenes[i].turns,
                given: &given[i],
                ..Sequence::default()
            })
            .collect();
        if seqs.is_empty() {
            return Ok(());
        }
        let step = Step {
            role,
            seqs: &seqs,
            input: &[],
        };
        let needs_logits = |i: &usize| !entries[*i].only_argmax && !entries[*i].wanted.is_empty();
        let vectors;
        let rows = match asked {
            Asked::Rows(tap) => {
                vectors = self.executable.rows_of(&step, tap)?;
                let wanted = step.wanted_rows().max(1);
                Rows::Logits(&vectors, vectors.len() / wanted)
            }
            Asked::Shown(tap) => {
                Rows::Logits(self.executable.step(&step, Some(tap))?, self.n_vocab)
            }
            Asked::Outputs if live.iter().any(needs_logits) => {
                Rows::Logits(self.executable.step(&step, None)?, self.n_vocab)
            }
            Asked::Outputs => Rows::Argmax(self.executable.best(&step)?),
        };
        let (outputs, wrong) = outputs(&rows, &live, entries);
        sink(outputs);
        for Wrong { at, position } in wrong {
            let alone = Step {
                seqs: &seqs[at..=at],
                ..step.clone()
            };
            let error = first_not_finite(&mut *self.executable, &alone, position)?;
            entries[live[at]].failed = Some(error);
        }
        for entry in entries.iter_mut().filter(|entry| entry.failed.is_none()) {
            entry.kv.advance(entry.end());
        }
        Ok(())
    }

    /// Returns the image inputs of each entry's tokens. An entry fails if one of its images has no
    /// handle any more.
    fn scenes(&self, entries: &mut [Entry<'_>]) -> Vec<Scene> {
        let scene = |entry: &mut Entry<'_>| {
            let scene = self.pictures.scene(entry.before, entry.tokens);
            scene.unwrap_or_else(|id| {
                entry.failed.get_or_insert(Error::NotShown { id });
                Scene::default()
            })
        };
        entries.iter_mut().map(scene).collect()
    }

    /// Reserves pages for the new tokens; returns the ranges of each entry's page numbers, one for
    /// each group of layers. An entry that finds no pages has failed.
    fn reserve(&mut self, entries: &mut [Entry<'_>]) -> Result<Vec<Vec<Range<usize>>>, Error> {
        self.pages.clear();
        let mut all = Vec::with_capacity(entries.len());
        for entry in entries {
            match self.kv_cache.reserve(entry.kv, entry.end()) {
                Ok(copies) => self.copy(&copies)?,
                Err(error) => entry.failed = Some(error.into()),
            }
            let ranges = entry.kv.tables().iter().map(|table: &BlockTable| {
                let start = self.pages.len();
                self.pages.resize(start + table.passed(), NO_PAGE);
                self.pages.extend(table.pages().iter().map(|page| page.0));
                start..self.pages.len()
            });
            all.push(ranges.collect());
        }
        Ok(all)
    }
}

/// Values to return from a step.
enum Asked<'a, 'b> {
    /// Logits, or their argmax.
    Outputs,
    /// Logits, and every named value to a sink.
    Shown(&'a mut TapSink<'b>),
    /// A named value of the requested rows.
    Rows(Tap),
}

/// Slots of an entry's recurrent states.
struct States {
    from: Option<u32>,
    to: Vec<StateWrite>,
}

impl States {
    fn of(kv: &SequenceKv) -> States {
        let (from, to) = kv.states();
        let write = |state: &Checkpoint| StateWrite {
            after: state.len - kv.len(),
            slot: state.slot.0,
        };
        States {
            from: from.map(|slot| slot.0),
            to: to.iter().map(write).collect(),
        }
    }
}

/// Outputs of a device for the requested rows of a step.
enum Rows<'a> {
    /// `[rows][n_vocab]`, and `n_vocab`.
    Logits(&'a [f32], usize),
    /// `None` for a row with a logit that is not finite.
    Argmax(Vec<Option<u32>>),
}

impl Rows<'_> {
    fn is_finite(&self, row: usize) -> bool {
        match self {
            Rows::Argmax(all) => all[row].is_some(),
            Rows::Logits(all, n_vocab) => are_finite(&all[row * n_vocab..(row + 1) * n_vocab]),
        }
    }

    /// Returns the value of a row whose logits are finite.
    fn value(&self, row: usize, only_argmax: bool) -> Value<'_> {
        const FINITE: &str = "the row's logits are finite, and there is at least one";
        match self {
            Rows::Argmax(all) => Value::Argmax(all[row].expect(FINITE)),
            Rows::Logits(all, n_vocab) => {
                let logits = &all[row * n_vocab..(row + 1) * n_vocab];
                if only_argmax {
                    Value::Argmax(argmax(logits).expect(FINITE))
                } else {
                    Value::Logits(logits)
                }
            }
        }
    }
}

/// An output that is not finite.
struct Wrong {
    /// Index among the entries that were computed.
    at: usize,
    position: usize,
}

/// Returns the outputs of all entries that were computed, and which of `live` have one that is not
/// finite: these get none.
fn outputs<'a>(
    rows: &'a Rows<'_>,
    live: &[usize],
    entries: &[Entry<'_>],
) -> (Vec<Output<'a>>, Vec<Wrong>) {
    let (mut outputs, mut wrong) = (Vec::new(), Vec::new());
    let mut first = 0;
    for (at, &i) in live.iter().enumerate() {
        let entry = &entries[i];
        let n = entry.wanted.len();
        let position = |row: usize| entry.kv.len() + entry.wanted.start + row;
        let is_wrong = |row: &usize| !rows.is_finite(first + row);
        if let Some(row) = (0..n).find(is_wrong) {
            let position = position(row);
            wrong.push(Wrong { at, position });
        } else {
            outputs.extend((0..n).map(|row| Output {
                entry: i,
                position: position(row),
                value: rows.value(first + row, entry.only_argmax),
            }));
        }
        first += n;
    }
    (outputs, wrong)
}

/// Runs the step again with taps on, to name the op that produced the first value that is not
/// finite. The cache is written with the same values once more.
fn first_not_finite(
    executable: &mut dyn Executable,
    step: &Step<'_>,
    position: usize,
) -> Result<Error, Error> {
    let mut first = None;
    let mut look = |view: &TapView<'_>| {
        if first.is_none() && view.tap.is_named() && view.data.iter().any(|x| !x.is_finite()) {
            first = Some(view.tap.to_string());
        }
    };
    executable.step(step, Some(&mut look))?;
    Ok(Error::NotFinite {
        position,
        tap: first.unwrap_or_else(|| "an unnamed value".to_owned()),
    })
}
