//! Bit allocation: a type for each tensor, so that a model of a given size loses as little as
//! possible.
//!
//! Loss is the mean KL divergence from the model itself over a text. It is measured with one tensor
//! at a time in one type ([`Sensitivities`]); how it changes from that type to the others follows
//! from the error of the weights (`losses`), and the loss of several tensors is taken to be the sum
//! of theirs. Then a knapsack is filled ([`Front`]), and the finished model is scored.

mod candidates;
mod front;
mod groups;
mod knapsack;
mod losses;
mod recipe;
mod sensitivities;

use std::path::Path;

use gguf_rs_lite::{Gguf, TensorType};
use regex::Regex;

use crate::eval::Divergence;
use crate::quant_report::{self, Base, Setup, Watch, score};
use crate::quantize::{self, Options, Plan};
use crate::shards::ShardIndex;
use candidates::{Choice, padded_bytes};

pub use candidates::{Candidate, Candidates};
pub use front::best_of_size;
pub use groups::By;
pub use knapsack::{Allocation, Front, Point};
pub use sensitivities::{Record, Sensitivities, read};

/// Reasons there is no allocation.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// Scoring failed.
    #[error(transparent)]
    Report(#[from] quant_report::Error),
    /// Quantizing failed.
    #[error(transparent)]
    Quantize(#[from] quantize::Error),
    /// A model cannot be loaded or computed.
    #[error(transparent)]
    Engine(#[from] octavo_engine::Error),
    /// A model that has no tensors to choose types for.
    #[error("{file}: no tensor can be quantized: expected F32, F16 or BF16 matrices")]
    NothingToChoose {
        /// Name of the model.
        file: String,
    },
    /// A size that no choice has.
    #[error(
        "{file}: expected a size of at least {smallest} bytes, which it has with the smallest \
             of the types, got {got}"
    )]
    TooSmall {
        /// Name of the model.
        file: String,
        /// Bytes of the smallest choice.
        smallest: u64,
        /// Bytes asked for.
        got: u64,
    },
    /// A tensor that was not measured.
    #[error("tensor {tensor}: expected its sensitivity in at least one type")]
    NotMeasured {
        /// Name of the tensor.
        tensor: String,
    },
    /// A file of sensitivities cannot be read or written.
    #[error("{path}: {source}")]
    Io {
        /// Path of the file.
        path: String,
        /// The system's error.
        source: std::io::Error,
    },
    /// A line that is none of a file of sensitivities.
    #[error("{file}: line {line}: expected {expected}, got {got:?}")]
    Record {
        /// Path of the file.
        file: String,
        /// Number of the line, from 1.
        line: usize,
        /// Description of the line expected.
        expected: &'static str,
        /// Start of the line.
        got: String,
    },
    /// A file of sensitivities of another model, text or computation.
    #[error("{file}: {name}: expected {expected}, got {got}")]
    OtherWork {
        /// Path of the file.
        file: String,
        /// Name of what differs.
        name: String,
        /// Value of this run.
        expected: String,
        /// Value in the file.
        got: String,
    },
}

/// Largest number of models to make in search of a divergence.
const ROUNDS: usize = 6;

/// Share of the divergence asked for that is near enough to it.
const NEAR: f64 = 0.97;

/// Types to choose from, and how tensors are measured.
#[derive(Clone, Debug)]
pub struct Types {
    /// Types that tensors may get; where rows do not fit, quantize's fallbacks.
    pub choice: Vec<TensorType>,
    /// Types in which tensors are measured.
    pub probes: Vec<TensorType>,
    /// Tensors quantized at a time to measure them.
    pub by: By,
    /// Types of tensors that are not to be chosen, by the first pattern that matches the name.
    pub fixed: Vec<(Regex, TensorType)>,
    /// Share of the measurements to make, if not all.
    pub shard: Option<ShardIndex>,
}

impl Default for Types {
    /// Returns the types that need no importance matrix, measured in a coarse one.
    fn default() -> Types {
        use TensorType as T;
        Types {
            choice: vec![
                T::Q2_K,
                T::Q3_K,
                T::Q4_K,
                T::Q5_K,
                T::Q6_K,
                T::Q8_0,
                T::IQ4_XS,
            ],
            probes: vec![T::Q3_K],
            by: By::default(),
            fixed: Vec::new(),
            shard: None,
        }
    }
}

/// The size or loss that a model is to have.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Goal {
    /// Largest size of the file in bytes.
    Bytes(u64),
    /// Largest number of bits per weight, over all tensors.
    BitsPerWeight(f64),
    /// Largest mean KL divergence in nats.
    MeanKl(f64),
}

/// A model's tensors with the losses of their candidates.
pub struct Allocator<'a> {
    gguf: &'a Gguf,
    setup: &'a Setup<'a>,
    candidates: Vec<Candidates>,
    sensitivities: Sensitivities,
    shard: Option<ShardIndex>,
    probes: Vec<TensorType>,
    by: By,
    /// Bytes of a file besides the tensors chosen for.
    others: u64,
}

/// A choice whose file was made and scored.
#[derive(Debug)]
pub struct Scored {
    /// The choice.
    pub allocation: Allocation,
    /// Its divergence from the model itself.
    pub divergence: Divergence,
}

impl<'a> Allocator<'a> {
    /// Finds the candidates of every tensor and their errors; `progress` receives the number of
    /// tensors done and of all.
    ///
    /// # Errors
    /// No tensor to choose a type for; values that cannot be quantized; as [`Plan::check`].
    pub fn new(
        gguf: &'a Gguf,
        setup: &'a Setup<'a>,
        types: &Types,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<Allocator<'a>, Error> {
        let choice = Choice {
            gguf,
            importance: setup.importance,
            types: &types.choice,
            fixed: &types.fixed,
            threads: setup.options().threads,
        };
        let candidates = choice.candidates(progress)?;
        let mut allocator = Allocator {
            gguf,
            setup,
            candidates,
            sensitivities: Sensitivities::default(),
            shard: types.shard,
            probes: types.probes.clone(),
            by: types.by,
            others: 0,
        };
        let first = vec![0; allocator.candidates.len()];
        let chosen: u64 = allocator.candidates.iter().map(|c| c.types[0].bytes).sum();
        let smallest = allocator.plan(&first)?;
        smallest.check()?;
        allocator.others = smallest.file_bytes()? - chosen;
        Ok(allocator)
    }

    /// Makes the measurements that are missing; `progress` receives their number so far and in
    /// all.
    ///
    /// # Errors
    /// Those of converting and scoring, and of writing the record.
    pub fn measure(
        &mut self,
        base: &Base,
        known: Sensitivities,
        record: Option<&mut Record>,
        progress: &mut dyn FnMut(usize, usize),
    ) -> Result<(), Error> {
        self.sensitivities = known;
        let work = sensitivities::Work {
            gguf: self.gguf,
            setup: self.setup,
            base,
            candidates: &self.candidates,
            by: self.by,
            probes: &self.probes,
            shard: self.shard,
        };
        work.measure(&mut self.sensitivities, record, progress)
    }

    /// Returns the tensors and their candidates.
    pub fn candidates(&self) -> &[Candidates] {
        &self.candidates
    }

    /// Returns the measurements.
    pub fn sensitivities(&self) -> &Sensitivities {
        &self.sensitivities
    }

    /// Returns the bytes of a file besides the tensors chosen for: keys, vectors, padding.
    pub fn other_bytes(&self) -> u64 {
        self.others
    }

    /// Returns the loss of each candidate of each tensor, in nats.
    ///
    /// # Errors
    /// A tensor that was not measured.
    pub fn losses(&self) -> Result<Vec<Vec<f64>>, Error> {
        let measured = groups::of_tensors(&self.candidates, &self.sensitivities);
        let of = |(candidates, measured): (&Candidates, Vec<(TensorType, f64)>)| {
            // a tensor without a choice costs the same in every mix
            if let [_] = candidates.types[..] {
                return Ok(vec![0.0]);
            }
            losses::losses(&candidates.types, &measured).ok_or_else(|| Error::NotMeasured {
                tensor: candidates.tensor.name.clone(),
            })
        };
        self.candidates.iter().zip(measured).map(of).collect()
    }

    /// Returns the best choices of all sizes.
    ///
    /// # Errors
    /// A tensor that was not measured.
    pub fn front(&self) -> Result<Front, Error> {
        let point = |(candidate, loss): (&Candidate, f64)| Point {
            bytes: candidate.bytes,
            loss,
        };
        let losses = self.losses()?;
        let items = self.candidates.iter().zip(losses);
        Ok(Front::new(
            items
                .map(|(of, losses)| of.types.iter().zip(losses).map(point).collect())
                .collect(),
        ))
    }

    /// Returns the error of a size that no choice has.
    fn too_small(&self, got: u64) -> Error {
        Error::TooSmall {
            file: self.gguf.name().to_owned(),
            smallest: self.smallest(),
            got,
        }
    }

    /// Returns the size of the smallest file.
    fn smallest(&self) -> u64 {
        let chosen: u64 = self.candidates.iter().map(|c| c.types[0].bytes).sum();
        chosen + self.others
    }

    /// Checks that there is a choice of this size, without measuring anything.
    ///
    /// # Errors
    /// [`Error::TooSmall`].
    pub fn check(&self, bytes: u64) -> Result<(), Error> {
        match bytes < self.smallest() {
            true => Err(self.too_small(bytes)),
            false => Ok(()),
        }
    }

    /// Returns the best choice for a file of at most `bytes`.
    ///
    /// # Errors
    /// A tensor that was not measured; a size that no choice has.
    pub fn within(&self, bytes: u64) -> Result<Allocation, Error> {
        let front = self.front()?;
        let budget = bytes.checked_sub(self.others);
        let best = budget.and_then(|budget| front.within(budget));
        best.ok_or_else(|| self.too_small(bytes))
    }

    /// Returns the size of a file whose tensors have at most so many bits per weight.
    pub fn bytes_at(&self, bits_per_weight: f64) -> u64 {
        let tensors = self.gguf.tensors();
        let weights: u64 = tensors.iter().map(|t| t.n_elements()).sum();
        let chosen = |name: &str| self.candidates.iter().any(|c| c.tensor.name == name);
        let kept = tensors.iter().filter(|t| !chosen(&t.name));
        let kept: u64 = kept.map(|t| padded_bytes(self.gguf, t, t.ty)).sum();
        let head = self.others.saturating_sub(kept);
        (bits_per_weight * weights as f64 / 8.0) as u64 + head
    }

    /// Returns the plan of a model with these choices.
    ///
    /// # Errors
    /// As [`Plan::new`].
    pub fn plan(&self, choices: &[usize]) -> Result<Plan<'a>, Error> {
        let options = self.options(choices);
        Ok(Plan::new(self.gguf, self.setup.importance, &options)?)
    }

    /// Returns the options that quantize the model with these choices.
    fn options(&self, choices: &[usize]) -> Options {
        let types: Vec<(&str, TensorType)> = self.chosen(choices).collect();
        let target = recipe::target(&self.of_each(choices));
        let mut options: Options = self.setup.quantizing(target);
        options.choices.overrides = recipe::overrides(&types);
        options
    }

    /// Returns the tensors and the types that they get.
    pub fn chosen<'s>(
        &'s self,
        choices: &'s [usize],
    ) -> impl Iterator<Item = (&'s str, TensorType)> + 's {
        let each = self.candidates.iter().zip(choices);
        each.map(|(of, &choice)| (of.tensor.name.as_str(), of.types[choice].ty))
    }

    /// Returns the types and the number of weights that have them.
    fn of_each(&self, choices: &[usize]) -> Vec<(TensorType, u64)> {
        let each = self.candidates.iter().zip(choices);
        each.map(|(of, &choice)| (of.types[choice].ty, of.tensor.n_elements()))
            .collect()
    }

    /// Returns a file for `--tensor-type-file` of llama-quantize, and the type to name beside it.
    pub fn recipe(&self, choices: &[usize]) -> (String, quantize::Target) {
        let types: Vec<(&str, TensorType)> = self.chosen(choices).collect();
        (recipe::text(&types), recipe::target(&self.of_each(choices)))
    }

    /// Finds the smallest choice whose file has at most this mean KL divergence, by making and
    /// scoring some: the losses of tensors do not quite add up.
    ///
    /// # Errors
    /// Those of quantizing and scoring.
    pub fn at_most(
        &self,
        base: &Base,
        mean_kl: f64,
        path: &Path,
        watch: &mut dyn Watch,
    ) -> Result<Scored, Error> {
        let front = self.front()?;
        let mut best: Option<Scored> = None;
        // measured loss for a predicted one of 1
        let mut scale = 1.0;
        for _ in 0..ROUNDS {
            let allocation = front.at_most(mean_kl / scale);
            if best
                .as_ref()
                .is_some_and(|b| b.allocation.bytes <= allocation.bytes)
            {
                break;
            }
            let scored = self.score(base, allocation, path, watch)?;
            let measured = scored.divergence.kld().value;
            let predicted = scored.allocation.loss;
            let near = measured <= mean_kl && measured >= NEAR * mean_kl;
            if measured <= mean_kl {
                best = Some(scored);
            }
            if near || predicted <= 0.0 {
                break;
            }
            let next = (measured / predicted).max(f64::MIN_POSITIVE);
            // where the same scale would find the same choice again, ask for a little less
            scale = if measured > mean_kl {
                next.max(scale * 1.03)
            } else {
                next
            };
        }
        match best {
            Some(best) => Ok(best),
            // the source's own types lose nothing
            None => self.score(base, front.at_most(0.0), path, watch),
        }
    }

    /// Writes a model with these choices and scores it.
    ///
    /// # Errors
    /// Those of quantizing and scoring.
    pub fn score(
        &self,
        base: &Base,
        allocation: Allocation,
        path: &Path,
        watch: &mut dyn Watch,
    ) -> Result<Scored, Error> {
        self.plan(&allocation.choices)?.write(path, &mut |_| {})?;
        watch.begin("the mix");
        let engine = self.setup.load(path)?;
        let divergence = score(self.setup, base, &engine, watch)?;
        Ok(Scored {
            allocation,
            divergence,
        })
    }
}
