//! Executions: forward passes that report their tensors.

use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::cuda::Device;
use octavo_kernels::{Isa, KvType, KvTypes, PAGE_POSITIONS, StateUse, StateWrite};
use octavo_reference::{Oracle, Rgb, VisionOracle};

use super::Error;
use super::oracle_images::Images;
use super::target::{ImageInput, Input, Target, Text};
use octavo_engine::backend::{
    Backend, LoadingSink, Phase, Step, StepSequence, TapView, cpu, cuda, split,
};
use octavo_engine::{DeviceChoice, EngineOptions, is_image_token};
use octavo_model::taps::Numbering;
use octavo_model::{Model, OwnedTap};
use octavo_vision::pixels::Prepared;
use octavo_vision::{Encoder, Tower};

/// A tensor that a pass reports: `[rows][width]`.
#[derive(Clone, Debug)]
pub struct TapOut {
    /// Tap that names the tensor.
    pub tap: OwnedTap,
    /// Values per row.
    pub width: usize,
    /// The values, one row per position.
    pub data: Vec<f32>,
}

/// Deliberate rounding of an execution beyond f32, as relative errors of single values.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// Rounding of keys in the KV cache.
    pub keys: f64,
    /// Rounding of values in the KV cache.
    pub values: f64,
    /// Rounding of the prompt kernels' inputs.
    pub kernels: octavo_kernels::Rounding,
}

impl Rounding {
    /// No rounding beyond f32.
    pub const NONE: Rounding = Rounding {
        keys: 0.0,
        values: 0.0,
        kernels: octavo_kernels::Rounding::NONE,
    };
}

/// How a pass continues after it has reported a tensor.
#[derive(Clone, Debug, PartialEq)]
pub enum TapAction {
    /// Continue with the tensor as it is.
    Continue,
    /// Continue with these values instead, equally many.
    Replace(Vec<f32>),
    /// Continue without reporting the remaining tensors.
    Stop,
}

/// Tap name of the normalised pixels, `[3 * height][width]`: the input of a vision graph, not one
/// of its tensors.
pub const PIXELS: &str = "pixels";

/// Tap name of the embeddings of an image's tokens in the order in which a text has them, with the
/// rows between its lines: the result of a vision graph, whose last tensor has no name.
pub const IMAGE_EMBEDDINGS: &str = "image_embd";

/// Receives the tensors of a pass, each before the next is computed.
pub type TapOutSink<'a> = dyn FnMut(TapOut) -> TapAction + Send + 'a;

/// A model ready to compute all positions of a text in one pass, or a vision tower for an image.
pub trait Execution: Send {
    /// Describes the file and the device, for people.
    fn describe(&self) -> String;

    /// Returns the model file.
    fn gguf(&self) -> &Arc<Gguf>;

    /// Returns the model or tower it computes.
    fn target(&self) -> &Target;

    /// Returns its rounding beyond f32.
    fn rounding(&self) -> Rounding;

    /// Computes all rows; reports every named tensor in graph order, for a tower [`PIXELS`] first
    /// and [`IMAGE_EMBEDDINGS`] last. The return value of `sink` says how to continue.
    ///
    /// # Errors
    /// If the pass fails, or the input is of the other kind.
    fn run(&mut self, input: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error>;
}

/// A model on one of the engine's backends.
pub struct BackendExecution {
    gguf: Arc<Gguf>,
    target: Target,
    n_vocab: usize,
    backend: Box<dyn Backend>,
    kv_type: KvTypes,
    kernels: octavo_kernels::Rounding,
}

impl BackendExecution {
    /// Prepares `model` (of `gguf`) on the CPU for texts of up to `n_tokens` tokens.
    ///
    /// # Errors
    /// As [`cpu::Cpu::prepare`].
    pub fn cpu(
        gguf: Arc<Gguf>,
        model: Model,
        options: &cpu::Options,
        progress: &mut dyn FnMut(u64, u64),
    ) -> Result<BackendExecution, octavo_engine::Error> {
        let backend = Box::new(cpu::Cpu::prepare(&gguf, &model, options, progress)?);
        Ok(BackendExecution {
            gguf,
            n_vocab: model.hparams.n_vocab(),
            target: Target::Model(Arc::new(model)),
            backend,
            kv_type: options.kv_type,
            kernels: options
                .isa
                .prompt_rounding_in(options.prompt_bits, options.kv_type),
        })
    }

    /// Prepares `model` (of `gguf`) on a GPU, wholly or only its last layers.
    ///
    /// # Errors
    /// As [`split::prepare`].
    pub fn cuda<D: Device + 'static>(
        device: D,
        gguf: Arc<Gguf>,
        model: Model,
        options: &split::Options,
        sink: &mut LoadingSink<'_>,
    ) -> Result<BackendExecution, octavo_engine::Error> {
        let backend = split::prepare(device, &gguf, &model, options, sink)?;
        let of_cpu = &options.cpu;
        let cpu = of_cpu
            .isa
            .prompt_rounding_in(of_cpu.prompt_bits, of_cpu.kv_type);
        let gpu = cuda::prompt_rounding();
        // bounds do not know which device computed a tensor: allow the larger rounding of the two
        let kernels = if options.gpu_layers < model.hparams.n_layer() {
            cpu.with(gpu, f64::max)
        } else {
            gpu
        };
        Ok(BackendExecution {
            gguf,
            n_vocab: model.hparams.n_vocab(),
            target: Target::Model(Arc::new(model)),
            backend,
            kv_type: options.cuda.kv_type,
            kernels,
        })
    }
}

impl Execution for BackendExecution {
    fn describe(&self) -> String {
        format!("{} on {}", self.gguf.name(), self.backend.describe())
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn rounding(&self) -> Rounding {
        Rounding {
            keys: self.kv_type.k.rounding(),
            values: self.kv_type.v.rounding(),
            kernels: self.kernels,
        }
    }

    fn run(&mut self, input: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let Text { tokens, images } = input.text(self.gguf.name())?;
        let n_vocab = self.n_vocab;
        let is_known = |id: u32| is_image_token(id) || (id as usize) < n_vocab;
        if let Some(&id) = tokens.iter().find(|id| !is_known(**id)) {
            return Err(octavo_engine::Error::Token { id, n_vocab }.into());
        }
        let scene = images.input(&[], tokens)?;
        let n_pages = tokens.len().div_ceil(PAGE_POSITIONS);
        if n_pages > self.backend.n_pages() {
            let n_ctx = self.backend.n_pages() * PAGE_POSITIONS;
            return Err(octavo_engine::Error::Context {
                have: 0,
                new: tokens.len(),
                n_ctx,
            }
            .into());
        }
        let table: Vec<u32> = (0..).take(n_pages).collect();
        let tables = vec![&table[..]; self.backend.cache_groups()];
        let seqs = [StepSequence {
            tokens,
            start: 0,
            tables: &tables,
            outputs: 0..tokens.len(),
            states: StateUse {
                from: None,
                to: &[StateWrite {
                    after: tokens.len(),
                    slot: 0,
                }],
            },
            rope_positions: &scene.rope_positions,
            embedding_inputs: &scene.embedding_inputs(),
            images: &scene.images,
            ..StepSequence::default()
        }];
        let step = Step {
            phase: Phase::Prefill,
            seqs: &seqs,
            input: &[],
        };
        let mut look = look_for(sink);
        self.backend.step(&step, Some(&mut look))?;
        Ok(())
    }
}

/// Reports a backend's named tensors to a sink, until it wants no more.
pub(super) fn look_for<'a>(sink: &'a mut TapOutSink<'_>) -> impl FnMut(&TapView<'_>) + Send + 'a {
    let mut report = Report::to(sink);
    move |view| report.look(view)
}

/// A sink, until it wants no more.
struct Report<'a, 's> {
    sink: &'a mut TapOutSink<'s>,
    more: bool,
}

impl<'a, 's> Report<'a, 's> {
    fn to(sink: &'a mut TapOutSink<'s>) -> Report<'a, 's> {
        Report { sink, more: true }
    }

    /// Reports a tensor; returns the values to continue with instead, if there are any.
    fn show(&mut self, tensor: TapOut) -> Option<Vec<f32>> {
        if !self.more {
            return None;
        }
        match (self.sink)(tensor) {
            TapAction::Continue => None,
            TapAction::Replace(values) => Some(values),
            TapAction::Stop => {
                self.more = false;
                None
            }
        }
    }

    /// Reports a backend's tensor, if it is named.
    fn look(&mut self, view: &TapView<'_>) {
        if !self.more || !view.tap.is_named() {
            return;
        }
        let shown = TapOut {
            tap: view.tap.owned(),
            width: view.width,
            data: view.data.to_vec(),
        };
        if let Some(values) = self.show(shown) {
            view.go_on_with(values);
        }
    }
}

/// Fault injection for the oracle's pass; receives tap, width of a row and values.
pub type Fault = dyn FnMut(&OwnedTap, usize, &mut [f64]) + Send;

/// A model or a tower under the plain f64 forward pass; slow.
pub struct OracleExecution {
    gguf: Arc<Gguf>,
    target: Target,
    fault: Option<Box<Fault>>,
}

impl OracleExecution {
    /// Opens a model or a tower.
    ///
    /// # Errors
    /// If the oracle does not support it.
    pub fn new(gguf: Arc<Gguf>) -> Result<OracleExecution, Error> {
        let target = if Tower::is_in(&gguf) {
            VisionOracle::open(&gguf)?;
            let tower = Tower::load(&gguf).map_err(octavo_vision::Error::from)?;
            Target::Tower(Arc::new(tower))
        } else {
            Oracle::open(&gguf)?;
            let model = Model::load(&gguf).map_err(octavo_engine::Error::from)?;
            Target::Model(Arc::new(model))
        };
        Ok(OracleExecution {
            gguf,
            target,
            fault: None,
        })
    }

    /// As [`OracleExecution::new`], with fault injection: `fault` may change any tensor before the
    /// pass continues. The comparison itself is tested this way.
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

    fn target(&self) -> &Target {
        &self.target
    }

    fn rounding(&self) -> Rounding {
        Rounding::NONE
    }

    fn run(&mut self, input: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let mut shown = Shown {
            fault: self.fault.as_deref_mut(),
            report: Report::to(sink),
            taps: Numbering::default(),
        };
        let mut tap = |name: &str, layer, width, data: &mut [f64]| {
            shown.show(name, layer, width, data);
        };
        match input {
            Input::Text(text) => {
                let images = Images::of(text)?;
                let oracle = Oracle::open(&self.gguf)?;
                oracle.forward_pieces(&images.pieces(text.tokens), &mut tap)?;
            }
            Input::Image(seen) => {
                let oracle = VisionOracle::open(&self.gguf)?;
                let limits = match &self.target {
                    Target::Tower(tower) => tower.token_limits(seen.token_limits),
                    Target::Model(_) => unreachable!("a model takes no image alone"),
                };
                let image = oracle.prepare(
                    Rgb {
                        width: seen.image.width,
                        height: seen.image.height,
                        bytes: &seen.image.rgb,
                    },
                    limits,
                )?;
                let mut pixels = image
                    .values
                    .iter()
                    .map(|x| f64::from(*x))
                    .collect::<Vec<_>>();
                tap(PIXELS, None, image.width, &mut pixels);
                let embeddings = oracle.encode_tapped(image.pixels(), &mut tap)?;
                let (mut rows, width) = (embeddings.rows().to_vec(), embeddings.width());
                tap(IMAGE_EMBEDDINGS, None, width, &mut rows);
            }
        }
        Ok(())
    }
}

/// Reports the oracle's tensors to a sink, until it wants no more.
struct Shown<'a, 's> {
    fault: Option<&'a mut Fault>,
    report: Report<'a, 's>,
    taps: Numbering<String>,
}

impl Shown<'_, '_> {
    fn show(&mut self, name: &str, layer: Option<usize>, width: usize, data: &mut [f64]) {
        let tap = self.taps.next(name.to_owned(), layer);
        if let Some(fault) = &mut self.fault {
            fault(&tap, width, data);
        }
        if !self.report.more {
            return;
        }
        let shown = TapOut {
            tap,
            width,
            data: data.iter().map(|x| *x as f32).collect(),
        };
        if let Some(values) = self.report.show(shown) {
            assert_eq!(values.len(), data.len(), "values in place of others");
            for (x, value) in data.iter_mut().zip(values) {
                *x = f64::from(value);
            }
        }
    }
}

/// A vision tower on one of the engine's backends.
pub struct TowerBackend {
    gguf: Arc<Gguf>,
    target: Target,
    encoder: Encoder,
    kernels: octavo_kernels::Rounding,
}

impl TowerBackend {
    /// Prepares the tower of `gguf` for images of up to `max_image_tokens` image tokens, on the
    /// device in the options.
    ///
    /// # Errors
    /// As [`Encoder::load`].
    pub fn load(
        gguf: Arc<Gguf>,
        options: &EngineOptions,
        max_image_tokens: usize,
        sink: &mut LoadingSink<'_>,
    ) -> Result<TowerBackend, Error> {
        let encoder = Encoder::load(&gguf, options, max_image_tokens, sink)?;
        let kernels = match options.device {
            DeviceChoice::Cpu => options.isa.resolve().map(Isa::prompt_rounding),
            DeviceChoice::Auto { .. } | DeviceChoice::Cuda(_) => Ok(cuda::prompt_rounding()),
        };
        Ok(TowerBackend {
            target: Target::Tower(Arc::new(encoder.tower().clone())),
            encoder,
            gguf,
            kernels: kernels.map_err(octavo_engine::Error::from)?,
        })
    }
}

impl Execution for TowerBackend {
    fn describe(&self) -> String {
        format!("{} on {}", self.gguf.name(), self.encoder.describe())
    }

    fn gguf(&self) -> &Arc<Gguf> {
        &self.gguf
    }

    fn target(&self) -> &Target {
        &self.target
    }

    fn rounding(&self) -> Rounding {
        Rounding {
            keys: KvType::F32.rounding(),
            values: KvType::F32.rounding(),
            kernels: self.kernels,
        }
    }

    fn run(&mut self, input: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let ImageInput {
            image,
            token_limits,
        } = input.image(self.gguf.name())?;
        let prepared = Prepared::new(image, &self.encoder.tower().hparams, token_limits)?;
        // all tiles of an image take the same way
        let pixels = prepared.tiles[0].pixels();
        let shown = |name: &str, width, data| TapOut {
            tap: Numbering::default().next(name.to_owned(), None),
            width,
            data,
        };
        let mut report = Report::to(sink);
        report.show(shown(PIXELS, pixels.width, pixels.planes.to_vec()));
        if report.more {
            let mut look = |view: &TapView<'_>| report.look(view);
            let embeddings = self.encoder.encode(pixels, Some(&mut look))?;
            let width = self.encoder.tower().width();
            report.show(shown(IMAGE_EMBEDDINGS, width, embeddings.rows));
        }
        Ok(())
    }
}
