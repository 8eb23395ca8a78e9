//! Loads models by path or name.

use std::path::{Path, PathBuf};
use std::sync::{Arc, OnceLock};

use octavo_grammar::{Compiler, Demand, Rule};
use octavo_hub::{Hub, RemoteModel};
use octavo_llm::IsaChoice;
use octavo_llm::engine::{
    Batch, BatchOptions, Context, CpuExperts, DeviceChoice, Engine, EngineHandle, EngineOptions,
    ModelSource,
};
use octavo_llm::model::Hparams;
use octavo_server::LocalChats;
use octavo_vision::pixels::{Limits, TokenLimits};
use octavo_vision::{Encoder, EncoderCache};

use crate::error::{BadArgument, Failure};

/// A loaded model with what runs on it.
pub(crate) struct Loaded {
    pub(crate) engine: Engine,
    /// The thread on which texts are generated together.
    pub(crate) handle: EngineHandle,
    /// Options that it was loaded with.
    pub(crate) options: EngineOptions,
    encoder_cache: Option<Arc<EncoderCache>>,
    chats: OnceLock<LocalChats>,
    compiler: OnceLock<Compiler>,
}

/// Arguments of a model.
pub(crate) struct Arguments {
    pub(crate) source: Option<PathBuf>,
    pub(crate) device: String,
    pub(crate) ctx: Option<usize>,
    pub(crate) kv_type: String,
    pub(crate) threads: Option<usize>,
    pub(crate) isa: String,
    pub(crate) parallel: usize,
    pub(crate) gpu_layers: Option<usize>,
    pub(crate) n_cpu_moe: usize,
    pub(crate) mmproj: Option<PathBuf>,
    pub(crate) offline: bool,
}

/// Returns the source of a model: the built-in one, a path, or a name of the hub, which is
/// downloaded unless it is cached.
pub(crate) fn source(name: Option<&Path>, offline: bool) -> Result<ModelSource, Failure> {
    Ok(match name {
        None => ModelSource::Demo,
        Some(name) => ModelSource::Path(fetched(name, offline, |hub, model| {
            hub.model(model, &mut |_| {})
        })?),
    })
}

/// Returns the path of a file, or of a model of the hub once `fetch` has brought it.
fn fetched(
    name: &Path,
    offline: bool,
    fetch: impl FnOnce(&Hub, &RemoteModel) -> Result<PathBuf, octavo_hub::Error>,
) -> Result<PathBuf, Failure> {
    Ok(match RemoteModel::of(name)? {
        None => name.to_owned(),
        Some(model) => fetch(&Hub::from_env()?.offline(offline), &model)?,
    })
}

impl Arguments {
    /// Returns the engine's options, without the context.
    fn options(&self) -> Result<EngineOptions, Failure> {
        let isa = self.isa.parse::<IsaChoice>();
        let isa = isa.map_err(octavo_llm::Error::from)?;
        let bad = |name, expected: &str, got: &str| BadArgument {
            name,
            expected: expected.to_owned(),
            got: got.to_owned(),
        };
        let kv_type = self.kv_type.parse();
        if self.threads == Some(0) {
            return Err(bad("threads", "at least 1", "0").into());
        }
        if self.parallel == 0 {
            return Err(bad("parallel", "at least 1", "0").into());
        }
        Ok(EngineOptions {
            device: self.device(isa)?,
            gpu_layers: self.gpu_layers,
            cpu_experts: CpuExperts {
                first: self.n_cpu_moe,
                ..CpuExperts::default()
            },
            threads: self.threads,
            isa,
            kv_type: kv_type.map_err(|expected: String| {
                let (_, expected) = expected.split_once("expected ").unwrap_or_default();
                bad("kv_type", expected, &self.kv_type)
            })?,
            ctx: self.ctx,
            sessions: self.parallel,
            ..EngineOptions::default()
        })
    }

    /// Returns the device. An instruction set asks for the CPU, unless layers go to a GPU.
    fn device(&self, isa: IsaChoice) -> Result<DeviceChoice, Failure> {
        let (name, gpu) = match self.device.split_once(':') {
            Some((name, gpu)) => (name, gpu.parse().ok()),
            None => (&*self.device, Some(0)),
        };
        let has_parts_there = self.gpu_layers.is_some() || self.n_cpu_moe > 0;
        let is_on_cpu = isa != IsaChoice::Auto && !has_parts_there;
        match (name, gpu) {
            ("cpu", Some(0)) => Ok(DeviceChoice::Cpu),
            ("auto", Some(0)) if is_on_cpu => Ok(DeviceChoice::Cpu),
            ("auto", Some(gpu)) => Ok(DeviceChoice::Auto { gpu, asked: false }),
            ("cuda", Some(gpu)) => Ok(DeviceChoice::Cuda(gpu)),
            _ => Err(Failure::from(BadArgument {
                name: "device",
                expected: "auto, cpu, cuda or cuda:N".to_owned(),
                got: self.device.clone(),
            })),
        }
    }

    /// Loads the model.
    pub(crate) fn load(&self) -> Result<Loaded, Failure> {
        let result = self.load_unnamed();
        match &self.source {
            Some(source) => result.map_err(|failure| Failure::of_file(failure, source)),
            None => result,
        }
    }

    fn load_unnamed(&self) -> Result<Loaded, Failure> {
        let mut options = self.options()?;
        let source = source(self.source.as_deref(), self.offline)?;
        choose_sizes(&source, &mut options)?;
        if let (Some(fit), Some(path)) = (&mut options.fit, &self.mmproj) {
            fit.leave_room_for(path);
        }
        let engine = Engine::load(&source, &options, &mut |_| {})?;
        let encoder_cache = self.mmproj.as_deref();
        let encoder_cache = encoder_cache.map(|path| self.encoder_cache(path, &engine, &options));
        let batch = BatchOptions {
            // a call that waits is no client to be refused
            queue: usize::MAX,
            ..BatchOptions::default()
        };
        let handle = EngineHandle::spawn(Batch::new(&engine, batch))?;
        Ok(Loaded {
            engine,
            handle,
            options,
            encoder_cache: encoder_cache.transpose()?.map(Arc::new),
            chats: OnceLock::new(),
            compiler: OnceLock::new(),
        })
    }

    /// Loads the image encoder.
    fn encoder_cache(
        &self,
        path: &Path,
        engine: &Engine,
        options: &EngineOptions,
    ) -> Result<EncoderCache, Failure> {
        let options = EngineOptions {
            pool: engine.pool(),
            ..options.clone()
        };
        let path = fetched(path, self.offline, |hub, model| {
            hub.image_encoder(model, &mut |_| {})
        })?;
        let token_limits = TokenLimits::default();
        let encoder = Encoder::open(&path, &options, token_limits, &mut |_| {})?;
        let limits = Limits::default();
        Ok(EncoderCache::new(engine, encoder, limits, token_limits)?)
    }
}

/// Sets the context, the positions of the KV cache and the size of a step as the command line does.
fn choose_sizes(source: &ModelSource, options: &mut EngineOptions) -> Result<(), Failure> {
    let gguf = source.open(options.mmap)?;
    let context = Context::of(&gguf, options)?;
    context.apply(options);
    options.kv_positions = Some(context.of_all(options.sessions));
    if !Hparams::from_gguf(&gguf)?.is_causal() {
        // a model without causal attention reads a text in one step
        options.batch = Some(options.batch().max(context.positions));
    }
    Ok(())
}

impl Loaded {
    /// Returns the model's chats; an error if its template is invalid.
    pub(crate) fn chats(&self) -> Result<&LocalChats, Failure> {
        if let Some(chats) = self.chats.get() {
            return Ok(chats);
        }
        let images = self.encoder_cache.clone();
        let chats = LocalChats::new(&self.engine, self.handle.clone(), images)?;
        Ok(self.chats.get_or_init(|| chats))
    }

    /// Compiles the constraint of a text.
    pub(crate) fn constraint(
        &self,
        rule: Rule,
    ) -> Result<Option<Box<dyn octavo_llm::engine::sample::Constraint>>, Failure> {
        let compiler = self.compiler.get_or_init(|| Compiler::new(&self.engine));
        Ok(compiler.compile(&Demand::from(rule))?.constraint)
    }
}
