//! Messages from rank 0 to the other ranks, as 32-bit words.

use std::ops::Range;

use octavo_kernels::{
    EmbeddingRows, Phase, RopePosition, StateUse, StateWrite, Step, StepSequence,
};

/// A command to the other ranks.
pub(super) enum Message<'a> {
    /// Compute a step.
    Step(OwnedStep, Asked),
    /// Copy a page of a group of the cache's layers.
    Copy { group: usize, from: u32, to: u32 },
    /// Free step scratch buffers.
    ReleaseScratch,
    /// Prepare the model of this description.
    Load(&'a [u32]),
    /// Drop the model.
    Unload,
    /// End.
    Stop,
}

/// Result asked of a step: device state kept for later steps must be the same on all ranks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Asked {
    /// Logits.
    Outputs,
    /// Argmax of the logits.
    Argmax,
    /// Logits, and every named value.
    Shown,
}

/// A step that owns its data.
pub(super) struct OwnedStep {
    phase: Phase,
    sequences: Vec<OwnedSequence>,
}

struct OwnedSequence {
    tokens: Vec<u32>,
    start: usize,
    tables: Vec<Vec<u32>>,
    outputs: [usize; 2],
    from: Option<u32>,
    to: Vec<StateWrite>,
    rope_positions: Vec<RopePosition>,
    embedding_inputs: Vec<(usize, Vec<f32>)>,
    blocks: Vec<usize>,
    images: Vec<Range<usize>>,
}

const STEP: u32 = 0;
const ARGMAX_OF_STEP: u32 = 1;
const SHOWN_STEP: u32 = 2;
const COPY: u32 = 3;
const REST: u32 = 4;
const LOAD: u32 = 5;
const UNLOAD: u32 = 6;
const STOP: u32 = 7;

/// Encodes a step as words.
pub(super) fn step(step: &Step<'_>, asked: Asked, words: &mut Vec<u32>) {
    words.clear();
    words.push(match asked {
        Asked::Outputs => STEP,
        Asked::Argmax => ARGMAX_OF_STEP,
        Asked::Shown => SHOWN_STEP,
    });
    words.push(u32::from(step.phase == Phase::Decode));
    let mut list = Writer(words);
    list.number(step.seqs.len());
    for s in step.seqs {
        list.list(s.tokens.iter().copied());
        list.number(s.start);
        list.number(s.tables.len());
        for table in s.tables {
            list.list(table.iter().copied());
        }
        list.number(s.outputs.start);
        list.number(s.outputs.end);
        list.list(s.states.from.iter().copied());
        list.number(s.states.to.len());
        for write in s.states.to {
            list.number(write.after);
            list.0.push(write.slot);
        }
        list.list(s.rope_positions.iter().flatten().copied());
        list.number(s.embedding_inputs.len());
        for inputs in s.embedding_inputs {
            list.number(inputs.first);
            list.list(inputs.rows.iter().map(|x| x.to_bits()));
        }
        list.list(s.blocks.iter().map(|end| word(*end)));
        let images = s.images.iter().flat_map(|image| [image.start, image.end]);
        list.list(images.map(word));
    }
}

/// Encodes any message but a step as words.
pub(super) fn other(message: &Message<'_>) -> Vec<u32> {
    match *message {
        Message::Step(..) => unreachable!("steps have words of their own"),
        Message::Copy { group, from, to } => vec![COPY, word(group), from, to],
        Message::ReleaseScratch => vec![REST],
        Message::Load(described) => [&[LOAD], described].concat(),
        Message::Unload => vec![UNLOAD],
        Message::Stop => vec![STOP],
    }
}

/// Decodes words; `None` if they are no message.
pub(super) fn read(words: &[u32]) -> Option<Message<'_>> {
    let (kind, rest) = words.split_first()?;
    Some(match (*kind, rest) {
        (STEP | ARGMAX_OF_STEP | SHOWN_STEP, _) => {
            let mut reader = Reader(rest);
            let phase = match reader.word()? {
                0 => Phase::Prefill,
                _ => Phase::Decode,
            };
            let sequences = reader.several(sequence)?;
            let asked = match *kind {
                STEP => Asked::Outputs,
                ARGMAX_OF_STEP => Asked::Argmax,
                _ => Asked::Shown,
            };
            Message::Step(OwnedStep { phase, sequences }, asked)
        }
        (COPY, [group, from, to]) => Message::Copy {
            group: *group as usize,
            from: *from,
            to: *to,
        },
        (REST, _) => Message::ReleaseScratch,
        (LOAD, described) => Message::Load(described),
        (UNLOAD, _) => Message::Unload,
        (STOP, _) => Message::Stop,
        _ => return None,
    })
}

fn sequence(reader: &mut Reader<'_>) -> Option<OwnedSequence> {
    Some(OwnedSequence {
        tokens: reader.list()?.to_vec(),
        start: reader.number()?,
        tables: reader.several(|reader| Some(reader.list()?.to_vec()))?,
        outputs: [reader.number()?, reader.number()?],
        from: reader.list()?.first().copied(),
        to: reader.several(|reader| {
            Some(StateWrite {
                after: reader.number()?,
                slot: reader.word()?,
            })
        })?,
        rope_positions: reader.list()?.as_chunks::<3>().0.to_vec(),
        embedding_inputs: reader.several(|reader| {
            let first = reader.number()?;
            let rows = reader.list()?.iter().map(|x| f32::from_bits(*x));
            Some((first, rows.collect()))
        })?,
        blocks: reader.list()?.iter().map(|end| *end as usize).collect(),
        images: {
            let ends = reader.list()?.as_chunks::<2>().0.iter();
            let image = |&[start, end]: &[u32; 2]| start as usize..end as usize;
            ends.map(image).collect()
        },
    })
}

impl OwnedStep {
    /// Passes the step to `of`.
    pub(super) fn with<T>(&self, of: impl FnOnce(&Step<'_>) -> T) -> T {
        let all = &self.sequences;
        let tables = all.iter().map(|s| s.tables.iter().map(Vec::as_slice));
        let tables: Vec<Vec<&[u32]>> = tables.map(Iterator::collect).collect();
        let inputs = all.iter().map(|s| {
            let rows = s.embedding_inputs.iter();
            rows.map(|(first, rows)| EmbeddingRows {
                first: *first,
                rows,
            })
        });
        let inputs: Vec<Vec<EmbeddingRows<'_>>> = inputs.map(Iterator::collect).collect();
        let sequences = all.iter().zip(&tables).zip(&inputs);
        let sequences: Vec<StepSequence<'_>> = sequences
            .map(|((s, tables), inputs)| StepSequence {
                // an engine of several ranks refuses them when it is loaded
                adapters: &[],
                tokens: &s.tokens,
                start: s.start,
                tables,
                outputs: s.outputs[0]..s.outputs[1],
                states: StateUse {
                    from: s.from,
                    to: &s.to,
                },
                rope_positions: &s.rope_positions,
                embedding_inputs: inputs,
                blocks: &s.blocks,
                images: &s.images,
            })
            .collect();
        of(&Step {
            phase: self.phase,
            seqs: &sequences,
            input: &[],
        })
    }
}

fn word(number: usize) -> u32 {
    u32::try_from(number).expect("positions and pages are numbered in 32 bits")
}

struct Writer<'a>(&'a mut Vec<u32>);

impl Writer<'_> {
    fn number(&mut self, number: usize) {
        self.0.push(word(number));
    }

    fn list(&mut self, words: impl Iterator<Item = u32>) {
        let at = self.0.len();
        self.0.push(0);
        self.0.extend(words);
        self.0[at] = word(self.0.len() - at - 1);
    }
}

struct Reader<'a>(&'a [u32]);

impl<'a> Reader<'a> {
    fn word(&mut self) -> Option<u32> {
        let (first, rest) = self.0.split_first()?;
        self.0 = rest;
        Some(*first)
    }

    fn number(&mut self) -> Option<usize> {
        self.word().map(|word| word as usize)
    }

    fn list(&mut self) -> Option<&'a [u32]> {
        let len = self.number()?;
        let (list, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(list)
    }

    fn several<T>(&mut self, mut one: impl FnMut(&mut Self) -> Option<T>) -> Option<Vec<T>> {
        (0..self.number()?).map(|_| one(self)).collect()
    }
}
