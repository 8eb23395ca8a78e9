//! Executions without a backend of their own: a model that is loaded already, and arrays that
//! another program computed.

use std::collections::HashMap;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_engine::backend::cuda;
use octavo_engine::{DeviceChoice, Engine, EngineOptions, is_image_token};
use octavo_model::Model;
use octavo_model::taps::numbered;

use super::Error;
use super::execution::{Execution, Rounding, TapAction, TapOut, TapOutSink, look_for};
use super::target::{Input, Target};

/// A loaded model.
pub struct EngineExecution {
    engine: Engine,
    gguf: Arc<Gguf>,
    target: Target,
    rounding: Rounding,
}

impl EngineExecution {
    /// Wraps a model that was loaded with these options.
    ///
    /// # Errors
    /// If the CPU lacks the options' instruction set.
    pub fn new(engine: &Engine, options: &EngineOptions) -> Result<EngineExecution, Error> {
        let EngineOptions {
            prompt_bits,
            kv_type,
            ..
        } = *options;
        let isa = options.isa.resolve().map_err(octavo_engine::Error::from)?;
        let on_cpu = isa.prompt_rounding_in(prompt_bits, kv_type);
        let kernels = match options.device {
            DeviceChoice::Cpu => on_cpu,
            // which device computed a tensor is not known: the larger rounding is allowed
            DeviceChoice::Auto { .. } | DeviceChoice::Cuda(_) => {
                on_cpu.with(cuda::prompt_rounding(), f64::max)
            }
        };
        Ok(EngineExecution {
            engine: engine.clone(),
            gguf: engine.shared_gguf(),
            target: Target::Model(Arc::new(engine.model().clone())),
            rounding: Rounding {
                keys: kv_type.k.rounding(),
                values: kv_type.v.rounding(),
                kernels,
            },
        })
    }
}

impl Execution for EngineExecution {
    fn describe(&self) -> String {
        format!("{} on {}", self.gguf.name(), self.engine.describe())
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn rounding(&self) -> Rounding {
        self.rounding
    }

    fn run(&mut self, input: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let tokens = input.text(self.gguf.name())?.tokens;
        if let Some(&id) = tokens.iter().find(|id| is_image_token(**id)) {
            return Err(octavo_engine::Error::ImageNotHeld { id }.into());
        }
        // all rows of a tensor are compared at once
        if tokens.len() <= self.engine.output_rows() {
            return Ok(self.engine.run_with_taps(tokens, &mut look_for(sink))?);
        }
        let mut whole: Vec<TapOut> = Vec::new();
        let mut places = HashMap::new();
        self.engine.run_with_taps(
            tokens,
            &mut look_for(&mut |part: TapOut| {
                let at = *places.entry(part.tap.clone()).or_insert(whole.len());
                match whole.get_mut(at) {
                    Some(before) => before.data.extend(part.data),
                    None => whole.push(part),
                }
                TapAction::Continue
            }),
        )?;
        for tensor in whole {
            if sink(tensor) == TapAction::Stop {
                break;
            }
        }
        Ok(())
    }
}

/// A named array: `[rows][width]`.
#[derive(Clone, Debug, PartialEq)]
pub struct RecordedTensor {
    /// Name of the tap, as [`numbered`] writes it: `Qcur-0`, or `Qcur-0 #2` for the second value of
    /// that name.
    pub name: String,
    /// Values per row.
    pub width: usize,
    /// The values.
    pub data: Vec<f32>,
}

/// Arrays of another computation of a model, some of its tensors or all of them.
pub struct RecordedExecution {
    name: String,
    gguf: Arc<Gguf>,
    target: Target,
    /// In the order of the graph.
    tensors: Vec<TapOut>,
}

impl RecordedExecution {
    /// Wraps the arrays, of which `name` is the origin, as tensors of a loaded model.
    ///
    /// # Errors
    /// [`Error::NoTensors`], or [`Error::NoTap`] for a name that no tensor of the model has.
    pub fn new(
        name: &str,
        engine: &Engine,
        arrays: Vec<RecordedTensor>,
    ) -> Result<RecordedExecution, Error> {
        let model: &Model = engine.model();
        let taps = model.graph.taps().map(|(tap, _)| tap);
        let taps: Vec<_> = taps.filter(|tap| tap.is_named()).collect();
        let mut tensors = Vec::new();
        for array in arrays {
            let at = taps
                .iter()
                .position(|tap| numbered(tap, tap.nth) == array.name);
            let Some(at) = at else {
                return Err(Error::NoTap {
                    file: name.to_owned(),
                    name: array.name,
                });
            };
            let out = TapOut {
                tap: taps[at].owned(),
                width: array.width,
                data: array.data,
            };
            tensors.push((at, out));
        }
        if tensors.is_empty() {
            return Err(Error::NoTensors {
                file: name.to_owned(),
            });
        }
        tensors.sort_by_key(|(at, _)| *at);
        Ok(RecordedExecution {
            name: name.to_owned(),
            gguf: engine.shared_gguf(),
            target: Target::Model(Arc::new(model.clone())),
            tensors: tensors.into_iter().map(|(_, out)| out).collect(),
        })
    }
}

impl Execution for RecordedExecution {
    fn describe(&self) -> String {
        self.name.clone()
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn rounding(&self) -> Rounding {
        Rounding::NONE
    }

    fn run(&mut self, _: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        for tensor in &self.tensors {
            if sink(tensor.clone()) == TapAction::Stop {
                break;
            }
        }
        Ok(())
    }
}
