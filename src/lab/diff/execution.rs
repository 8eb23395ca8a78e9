//! Something that computes a forward pass and shows its tensors.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::cuda::Device;
use octavo_kernels::{KvType, PAGE_POSITIONS, StateUse, StateWrite};
use octavo_reference::Oracle;

use super::Error;
use octavo_engine::backend::{
    Executable, LoadingSink, Role, Sequence, Step, TapView, cpu, cuda, split,
};
use octavo_model::taps::Numbering;
use octavo_model::{Model, OwnedTap};

/// A tensor, handed out: `[rows][width]`.
#[derive(Clone, Debug)]
pub struct TapOut {
    /// Which.
    pub tap: OwnedTap,
    /// Values of a row.
    pub width: usize,
    /// The values, one row per position.
    pub data: Vec<f32>,
}

/// What an execution adds to f32 rounding on purpose, as relative errors of single values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// Of keys and values in the cache.
    pub kv: f64,
    /// Of what prompt kernels read.
    pub kernels: octavo_kernels::Rounding,
}

/// How a pass goes on after it has shown a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum After {
    /// With the tensor as it is.
    GoOn,
    /// With these values in its place, as many as it has.
    GoOnWith(Vec<f32>),
    /// Nobody looks at those that follow.
    Unseen,
}

/// Receives the tensors of a pass, each before the next is computed.
pub type TapOutSink<'a> = dyn FnMut(TapOut) -> After + Send + 'a;

/// A model ready to compute all positions of a text in one pass.
pub trait Execution: Send {
    /// For people: which file, on what.
    fn describe(&self) -> String;

    /// The file.
    fn gguf(&self) -> &Arc<Gguf>;

    /// Its graph, weights and hyperparameters.
    fn model(&self) -> &Model;

    /// What it rounds beyond f32.
    fn rounding(&self) -> Rounding;

    /// Computes logits of all positions; shows every named tensor, in graph order. `sink` says how
    /// to go on.
    ///
    /// # Errors
    /// If the pass fails.
    fn run(&mut self, tokens: &[u32], sink: &mut TapOutSink<'_>) -> Result<(), Error>;
}

/// A model on one of the engine's backends.
pub struct Backend {
    gguf: Arc<Gguf>,
    model: Model,
    executable: Box<dyn Executable>,
    kv_type: KvType,
    kernels: octavo_kernels::Rounding,
}

impl Backend {
    /// Prepares `model` (of `gguf`) on the CPU for texts of up to `n_tokens` tokens.
    ///
    /// # Errors
    /// As [`cpu::Cpu::prepare`].
    pub fn cpu(
        gguf: Arc<Gguf>,
        model: Model,
        options: &cpu::Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<Backend, octavo_engine::Error> {
        let executable = Box::new(cpu::Cpu::prepare(&gguf, &model, options, progress)?);
        Ok(Backend {
            gguf,
            model,
            executable,
            kv_type: options.kv_type,
            kernels: options.isa.prompt_rounding(),
        })
    }

    /// Prepares `model` (of `gguf`) on a GPU, all of it or its last layers.
    ///
    /// # Errors
    /// As [`split::prepare`].
    pub fn cuda<D: Device + 'static>(
        device: D,
        gguf: Arc<Gguf>,
        model: Model,
        options: &split::Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<Backend, octavo_engine::Error> {
        let executable = split::prepare(device, &gguf, &model, options, sink)?;
        let (cpu, gpu) = (options.cpu.isa.prompt_rounding(), cuda::prompt_rounding());
        // a part's rounding is allowed to both: bounds follow a tensor's inputs, and know no parts
        let kernels = if options.gpu_layers < model.hparams.n_layer() {
            cpu.with(gpu, f64::max)
        } else {
            gpu
        };
        Ok(Backend {
            gguf,
            model,
            executable,
            kv_type: options.cuda.kv_type,
            kernels,
        })
    }
}

impl Execution for Backend {
    fn describe(&self) -> String {
        format!("{} on {}", self.gguf.name(), self.executable.describe())
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn rounding(&self) -> Rounding {
        Rounding {
            kv: self.kv_type.rounding(),
            kernels: self.kernels,
        }
    }

    fn run(&mut self, tokens: &[u32], sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let n_vocab = self.model.hparams.n_vocab();
        if let Some(&id) = tokens.iter().find(|id| **id as usize >= n_vocab) {
            return Err(octavo_engine::Error::Token { id, n_vocab }.into());
        }
        let n_pages = tokens.len().div_ceil(PAGE_POSITIONS);
        if n_pages > self.executable.n_pages() {
            let n_ctx = self.executable.n_pages() * PAGE_POSITIONS;
            return Err(octavo_engine::Error::Context {
                have: 0,
                new: tokens.len(),
                n_ctx,
            }
            .into());
        }
        let table: Vec<u32> = (0..).take(n_pages).collect();
        let tables = vec![&table[..]; self.executable.cache_groups()];
        let seqs = [Sequence {
            tokens,
            start: 0,
            tables: &tables,
            wanted: 0..tokens.len(),
            states: StateUse {
                from: None,
                to: &[StateWrite {
                    after: tokens.len(),
                    slot: 0,
                }],
            },
            ..Sequence::default()
        }];
        let step = Step {
            role: Role::Prompt,
            seqs: &seqs,
            input: &[],
        };
        let mut more = true;
        let mut look = |view: &TapView<'_>| {
            if more {
                let shown = TapOut {
                    tap: view.tap.owned(),
                    width: view.width,
                    data: view.data.to_vec(),
                };
                match sink(shown) {
                    After::GoOn => {}
                    After::GoOnWith(values) => view.go_on_with(values),
                    After::Unseen => more = false,
                }
            }
        };
        self.executable.step(&step, Some(&mut look))?;
        Ok(())
    }
}

/// Changes a tensor of the oracle's pass: which, width of a row, values.
pub type Fault = dyn FnMut(&OwnedTap, usize, &mut [f64]) + Send;

/// A model under the plain f64 forward pass; slow.
pub struct OracleExecution {
    gguf: Arc<Gguf>,
    model: Model,
    fault: Option<Box<Fault>>,
}

impl OracleExecution {
    /// Takes an open model.
    ///
    /// # Errors
    /// If it is not one that the oracle computes.
    pub fn new(gguf: Arc<Gguf>) -> Result<OracleExecution, Error> {
        let model = Model::load(&gguf).map_err(octavo_engine::Error::from)?;
        Oracle::open(&gguf)?;
        Ok(OracleExecution {
            gguf,
            model,
            fault: None,
        })
    }

    /// As [`OracleExecution::new`], with a fault planted: `fault` may change any tensor before the
    /// pass goes on. This is how the comparison itself is tested.
    ///
    /// # Errors
    /// As [`OracleExecution::new`].
    pub fn with_fault(gguf: Arc<Gguf>, fault: Box<Fault>) -> Result<OracleExecution, Error> {
        Ok(OracleExecution {
            fault: Some(fault),
            ..OracleExecution::new(gguf)?
        })
    }
}

impl Execution for OracleExecution {
    fn describe(&self) -> String {
        format!("{} on the f64 oracle", self.gguf.name())
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn model(&self) -> &Model {
        &self.model
    }

    fn rounding(&self) -> Rounding {
        Rounding {
            kv: 0.0,
            kernels: octavo_kernels::Rounding::NONE,
        }
    }

    fn run(&mut self, tokens: &[u32], sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let oracle = Oracle::open(&self.gguf)?;
        let mut taps = Numbering::default();
        let mut more = true;
        oracle.forward_tapped(tokens, &mut |name, layer, width, data| {
            let tap = taps.next(name.to_owned(), layer);
            if let Some(fault) = &mut self.fault {
                fault(&tap, width, data);
            }
            if more {
                let shown = TapOut {
                    tap,
                    width,
                    data: data.iter().map(|x| *x as f32).collect(),
                };
                match sink(shown) {
                    After::GoOn => {}
                    After::GoOnWith(values) => {
                        assert_eq!(values.len(), data.len(), "values in place of others");
                        for (x, value) in data.iter_mut().zip(values) {
                            *x = f64::from(value);
                        }
                    }
                    After::Unseen => more = false,
                }
            }
        })?;
        Ok(())
    }
}
