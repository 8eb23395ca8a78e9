//! The model runner: owns a device and the pages of its KV cache, and runs steps over several
//! sequences.

mod assistant;
mod prompt_cache;

use std::ops::Range;
use std::sync::Arc;

pub(crate) use assistant::{AssistantInput, AssistantOutput};
use octavo_kernels::{EmbeddingRows, Phase, RowSet, StateUse, StateWrite, Step, StepSequence};
use octavo_model::{Graph, Tap};

use crate::adapters::AdapterSet;
use crate::backend::{Backend, Candidates, TapSink, TapView};
use crate::error::Error;
use crate::image_registry::{ImageRegistry, MultimodalInput};
use crate::kv::{
    BlockTable, Checkpoint, DiskCache, GroupCopy, KvCacheManager, NO_PAGE, SequenceKv,
};
use crate::sample::{OutputNeed, OutputValue, are_finite, argmax};

/// New tokens of a sequence.
pub(crate) struct StepInput<'a> {
    pub(crate) kv: &'a mut SequenceKv,
    /// All tokens that the sequence holds.
    pub(crate) before: &'a [u32],
    /// The new tokens, at least one.
    pub(crate) tokens: &'a [u32],
    /// Range of `tokens` that needs outputs.
    pub(crate) outputs: Range<usize>,
    /// Part of these outputs that is needed.
    pub(crate) need: OutputNeed,
    /// Rows that come with the tokens, `[tokens][n_embd]`: the hidden states that an MTP
    /// layer reads. None for other models.
    pub(crate) hidden: &'a [f32],
    /// Whether the rows that the model keeps are needed.
    pub(crate) wants_kept: bool,
    /// These rows: of all tokens, or of those with outputs, as [`octavo_model::Graph::kept`] has.
    pub(crate) kept: Vec<f32>,
    /// Adapters of the sequence.
    pub(crate) adapters: &'a AdapterSet,
    /// Error of this input alone. Its sequence is as it was.
    pub(crate) failed: Option<Error>,
}

impl<'a> StepInput<'a> {
    /// Creates an input without outputs.
    pub(crate) fn new(
        kv: &'a mut SequenceKv,
        before: &'a [u32],
        tokens: &'a [u32],
    ) -> StepInput<'a> {
        StepInput {
            kv,
            before,
            tokens,
            outputs: 0..0,
            need: OutputNeed::Logits,
            hidden: &[],
            wants_kept: false,
            kept: Vec::new(),
            adapters: AdapterSet::NONE,
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
    /// Index of its input.
    pub(crate) input: usize,
    /// Position of its token.
    pub(crate) position: usize,
    pub(crate) value: OutputValue<'a>,
}

/// A device, and the owners of its pages.
pub(crate) struct ModelRunner {
    backend: Box<dyn Backend>,
    pub(crate) kv_cache: KvCacheManager,
    /// The prefix cache on disk, if there is one.
    disk: Option<Arc<DiskCache>>,
    n_vocab: usize,
    /// Rows that the graph keeps, if it keeps any.
    keeps: RowSet,
    images: Arc<ImageRegistry>,
    /// Page numbers of a step's block tables, one after the other.
    pages: Vec<u32>,
}

impl ModelRunner {
    /// Takes a device for a model's graph, with this many pages for each group of layers, and each
    /// group's sliding window.
    pub(crate) fn new(
        backend: Box<dyn Backend>,
        n_pages: u32,
        windows: &[Option<usize>],
        graph: &Graph,
        images: Arc<ImageRegistry>,
    ) -> ModelRunner {
        let groups = backend.cache_groups();
        assert_eq!(
            groups,
            windows.len(),
            "the device has other groups of layers"
        );
        let slots = u32::try_from(backend.n_states()).expect("states are numbered in 32 bits");
        let kv_cache = KvCacheManager::new(windows, n_pages).with_states(slots);
        ModelRunner {
            backend,
            kv_cache,
            disk: None,
            n_vocab: graph.output_width(),
            keeps: graph
                .kept
                .map_or(RowSet::All, |kept| graph.values[kept.index()].rows),
            images,
            pages: Vec::new(),
        }
    }

    /// Copies pages, as a reservation asks for.
    ///
    /// # Errors
    /// If the device fails.
    pub(crate) fn copy(&mut self, copies: &[GroupCopy]) -> Result<(), Error> {
        for GroupCopy { group, copy } in copies {
            self.backend.copy_page(*group, copy.from.0, copy.to.0)?;
        }
        Ok(())
    }

    /// Frees step scratch buffers while idle.
    pub(crate) fn release_scratch(&mut self) {
        self.backend.release_scratch();
    }

    /// Computes new tokens of several sequences, all of one phase. `sink` gets all outputs at once,
    /// input by input and in order; `tap` receives every named value. Inputs that fail alone
    /// record their error and hand out nothing; the others are not touched by that.
    ///
    /// # Errors
    /// If the device fails: no sequence has grown then.
    pub(crate) fn step(
        &mut self,
        phase: Phase,
        inputs: &mut [StepInput<'_>],
        tap: Option<&mut TapSink<'_>>,
        sink: &mut dyn FnMut(Vec<Output<'_>>),
    ) -> Result<(), Error> {
        let asked = tap.map_or(Asked::Outputs, Asked::Taps);
        self.step_for(phase, inputs, asked, sink)
    }

    /// As [`ModelRunner::step`], but the outputs are the named value `tap` of the requested rows,
    /// and a device need not compute what comes after it.
    ///
    /// # Errors
    /// As [`ModelRunner::step`].
    pub(crate) fn step_to_rows(
        &mut self,
        phase: Phase,
        inputs: &mut [StepInput<'_>],
        tap: Tap,
        sink: &mut dyn FnMut(Vec<Output<'_>>),
    ) -> Result<(), Error> {
        self.step_for(phase, inputs, Asked::Rows(tap), sink)
    }

    fn step_for(
        &mut self,
        phase: Phase,
        inputs: &mut [StepInput<'_>],
        asked: Asked<'_, '_>,
        sink: &mut dyn FnMut(Vec<Output<'_>>),
    ) -> Result<(), Error> {
        let ranges = self.reserve(inputs)?;
        let table = |range: &Range<usize>| &self.pages[range.clone()];
        let tables: Vec<Vec<&[u32]>> = ranges
            .iter()
            .map(|ranges| ranges.iter().map(table).collect())
            .collect();
        let multimodal = self.multimodal(inputs);
        let embedding_inputs: Vec<Vec<EmbeddingRows<'_>>> = multimodal
            .iter()
            .map(MultimodalInput::embedding_inputs)
            .collect();
        let live: Vec<usize> = (0..inputs.len())
            .filter(|i| inputs[*i].failed.is_none())
            .collect();
        let states: Vec<States> = inputs.iter().map(|e| States::of(e.kv)).collect();
        let seqs: Vec<StepSequence<'_>> = live
            .iter()
            .map(|&i| StepSequence {
                tokens: inputs[i].tokens,
                start: inputs[i].kv.len(),
                tables: &tables[i],
                outputs: inputs[i].outputs.clone(),
                states: StateUse {
                    from: states[i].from,
                    to: &states[i].to,
                },
                rope_positions: &multimodal[i].rope_positions,
                embedding_inputs: &embedding_inputs[i],
                images: &multimodal[i].images,
                adapters: inputs[i].adapters.used(),
                ..StepSequence::default()
            })
            .collect();
        if seqs.is_empty() {
            return Ok(());
        }
        let hidden = live.iter().map(|&i| inputs[i].hidden);
        let hidden = hidden.collect::<Vec<_>>().concat();
        let step = Step {
            phase,
            seqs: &seqs,
            input: &hidden,
        };
        let vectors;
        let rows = match asked {
            Asked::Rows(tap) => {
                vectors = self.backend.rows_of(&step, tap)?;
                let n_outputs = step.n_outputs().max(1);
                Rows::Logits(&vectors, vectors.len() / n_outputs)
            }
            Asked::Taps(tap) => Rows::Logits(self.backend.step(&step, Some(tap))?, self.n_vocab),
            Asked::Outputs => {
                let needs = live.iter().map(|&i| &inputs[i]);
                let needs = needs.map(|input| (input.need, input.outputs.len()));
                outputs_of(&mut *self.backend, &step, needs, self.n_vocab)?
            }
        };
        let (outputs, wrong) = outputs(&rows, &live, inputs);
        sink(outputs);
        hand_out_kept(&mut *self.backend, self.keeps, &live, inputs)?;
        for Wrong { at, position } in wrong {
            let (seqs, input) = (&seqs[at..=at], inputs[live[at]].hidden);
            let alone = Step { phase, seqs, input };
            let error = first_not_finite(&mut *self.backend, &alone, position)?;
            inputs[live[at]].failed = Some(error);
        }
        for input in inputs.iter_mut().filter(|input| input.failed.is_none()) {
            input.kv.advance(input.end());
        }
        Ok(())
    }

    /// Returns the image inputs of each input's tokens. An input fails if one of its images has no
    /// handle any more, or is cut.
    fn multimodal(&self, inputs: &mut [StepInput<'_>]) -> Vec<MultimodalInput> {
        let multimodal = |input: &mut StepInput<'_>| {
            let multimodal = self.images.input(input.before, input.tokens);
            multimodal.unwrap_or_else(|error| {
                input.failed.get_or_insert(error);
                MultimodalInput::default()
            })
        };
        inputs.iter_mut().map(multimodal).collect()
    }

    /// Reserves pages for the new tokens; returns the ranges of each input's page numbers, one for
    /// each group of layers. An input that finds no pages has failed.
    fn reserve(&mut self, inputs: &mut [StepInput<'_>]) -> Result<Vec<Vec<Range<usize>>>, Error> {
        self.pages.clear();
        let mut all = Vec::with_capacity(inputs.len());
        for input in inputs {
            match self.kv_cache.reserve(input.kv, input.end()) {
                Ok(copies) => self.copy(&copies)?,
                Err(error) => input.failed = Some(error.into()),
            }
            let ranges = input.kv.tables().iter().map(|table: &BlockTable| {
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
    Taps(&'a mut TapSink<'b>),
    /// A named value of the requested rows.
    Rows(Tap),
}

/// Slots of an input's recurrent states.
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
    /// The largest logits of all rows, all logits of some, `[rows][n_vocab]`, and for each row its
    /// number among those; and `n_vocab`.
    Candidates(Candidates, Vec<Option<usize>>, usize),
}

/// Runs a step for the parts of outputs that are needed, each of a number of rows.
fn outputs_of<'a>(
    backend: &'a mut dyn Backend,
    step: &Step<'_>,
    needs: impl Iterator<Item = (OutputNeed, usize)>,
    n_vocab: usize,
) -> Result<Rows<'a>, Error> {
    let most = backend.max_candidates(step.n_outputs());
    let needs: Vec<OutputNeed> = needs
        .flat_map(|(need, rows)| std::iter::repeat_n(need, rows))
        .collect();
    let is_whole = |need: &OutputNeed| match need {
        OutputNeed::Argmax => false,
        OutputNeed::Candidates(n) => *n > most,
        OutputNeed::Logits => true,
    };
    if needs.iter().all(|need| *need == OutputNeed::Argmax) {
        return Ok(Rows::Argmax(backend.argmax(step)?));
    }
    if most == 0 || needs.iter().all(is_whole) {
        return Ok(Rows::Logits(backend.step(step, None)?, n_vocab));
    }
    // rows that need no logits wait for none
    let mut whole = Vec::new();
    let places = needs.iter().enumerate().map(|(row, need)| {
        is_whole(need).then(|| {
            whole.push(row);
            whole.len() - 1
        })
    });
    let places = places.collect();
    Ok(Rows::Candidates(
        backend.candidates(step, &whole)?,
        places,
        n_vocab,
    ))
}

impl Rows<'_> {
    fn is_finite(&self, row: usize) -> bool {
        match self {
            Rows::Argmax(all) => all[row].is_some(),
            Rows::Candidates(all, ..) => all.best[row].is_some(),
            Rows::Logits(all, n_vocab) => are_finite(&all[row * n_vocab..(row + 1) * n_vocab]),
        }
    }

    /// Returns the value of a row whose logits are finite.
    fn value(&self, row: usize, need: OutputNeed) -> OutputValue<'_> {
        const FINITE: &str = "the row's logits are finite, and there is at least one";
        match self {
            Rows::Argmax(all) => OutputValue::Argmax(all[row].expect(FINITE)),
            Rows::Candidates(all, places, n_vocab) => match (places[row], need) {
                (Some(at), _) => {
                    OutputValue::Logits(&all.outputs[at * n_vocab..(at + 1) * n_vocab])
                }
                (None, OutputNeed::Argmax) => OutputValue::Argmax(all.best[row].expect(FINITE)),
                (None, _) => OutputValue::Candidates(&all.largest[row * all.n..(row + 1) * all.n]),
            },
            Rows::Logits(all, n_vocab) => {
                let logits = &all[row * n_vocab..(row + 1) * n_vocab];
                if need == OutputNeed::Argmax {
                    OutputValue::Argmax(argmax(logits).expect(FINITE))
                } else {
                    OutputValue::Logits(logits)
                }
            }
        }
    }
}

/// An output that is not finite.
struct Wrong {
    /// Index among the inputs that were computed.
    at: usize,
    position: usize,
}

/// Returns the outputs of all inputs that were computed, and which of `live` have one that is not
/// finite: these get none.
fn outputs<'a>(
    rows: &'a Rows<'_>,
    live: &[usize],
    inputs: &[StepInput<'_>],
) -> (Vec<Output<'a>>, Vec<Wrong>) {
    let (mut outputs, mut wrong) = (Vec::new(), Vec::new());
    let mut first = 0;
    for (at, &i) in live.iter().enumerate() {
        let input = &inputs[i];
        let n = input.outputs.len();
        let position = |row: usize| input.kv.len() + input.outputs.start + row;
        let is_wrong = |row: &usize| !rows.is_finite(first + row);
        if let Some(row) = (0..n).find(is_wrong) {
            let position = position(row);
            wrong.push(Wrong { at, position });
        } else {
            outputs.extend((0..n).map(|row| Output {
                input: i,
                position: position(row),
                value: rows.value(first + row, input.need),
            }));
        }
        first += n;
    }
    (outputs, wrong)
}

/// Gives each of the inputs that were computed its part of the kept rows, if it wants it.
fn hand_out_kept(
    backend: &mut dyn Backend,
    keeps: RowSet,
    live: &[usize],
    inputs: &mut [StepInput<'_>],
) -> Result<(), Error> {
    if !live.iter().any(|i| inputs[*i].wants_kept) {
        return Ok(());
    }
    let kept = backend.kept_rows()?;
    let rows = |input: &StepInput<'_>| keeps.count(input.tokens.len(), input.outputs.len());
    let all: usize = live.iter().map(|i| rows(&inputs[*i])).sum();
    let width = kept.len() / all.max(1);
    let mut start = 0;
    for &i in live {
        let end = start + rows(&inputs[i]) * width;
        if inputs[i].wants_kept {
            inputs[i].kept = kept[start..end].to_vec();
        }
        start = end;
    }
    Ok(())
}

/// Runs the step again with taps on, to name the op that produced the first value that is not
/// finite. The cache is written with the same values once more.
fn first_not_finite(
    backend: &mut dyn Backend,
    step: &Step<'_>,
    position: usize,
) -> Result<Error, Error> {
    let mut first = None;
    let mut look = |view: &TapView<'_>| {
        if first.is_none() && view.tap.is_named() && view.data.iter().any(|x| !x.is_finite()) {
            first = Some(view.tap.to_string());
        }
    };
    backend.step(step, Some(&mut look))?;
    Ok(Error::NotFinite {
        position,
        tap: first.unwrap_or_else(|| "an unnamed value".to_owned()),
    })
}
