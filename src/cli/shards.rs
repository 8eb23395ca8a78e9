//! Shards of a long measurement on the command line: which one to compute, the file
//! to write, and the key that identifies the measurement.

use std::path::{Path, PathBuf};

use clap::Args;
use octavo_analysis::shards::{About, Content, Key, Shard, ShardIndex};
use octavo_engine::backend::cuda;
use octavo_engine::{DeviceChoice, Engine, EngineOptions, demo_model};
use octavo_kernels::{Isa, KvTypes, PromptBits};

use super::args::ModelArgs;
use super::failure::{Exit, Failure};
use super::output::{Inputs, Kind, Output, files_of};
use super::terminal;

/// Options of batch work: the shard of the work and its output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Batch work")]
pub(super) struct ShardArgs {
    /// Do only shard I of N (the first is 1) and write it to --out; octavo merge joins all shards.
    /// Exit code 2 if the input is at fault, 75 if another try may help
    #[arg(long, alias = "part", value_name = "I/N", requires = "out")]
    shard: Option<ShardIndex>,
    /// Output of --shard; if it exists already, complete and of the same work, there is nothing
    /// left to do
    #[arg(long, value_name = "SHARD", requires = "shard", value_hint = clap::ValueHint::FilePath)]
    out: Option<PathBuf>,
}

impl ShardArgs {
    /// Returns the shard to do, if one is given.
    pub(super) fn index(&self) -> Option<ShardIndex> {
        self.shard
    }

    /// Returns the result of a command, with the exit codes of batch work if --shard is given.
    pub(super) fn ended(&self, result: Result<Exit, Failure>) -> Result<Exit, Failure> {
        match self.shard {
            Some(_) => result.map_err(codes),
            None => result,
        }
    }

    /// Returns the shard to do and its output, in a run that reads these inputs.
    pub(super) fn job<'a>(&'a self, force: bool, inputs: &'a Inputs) -> Option<Job<'a>> {
        let (shard, path) = (self.shard?, self.out.as_deref()?);
        let output = Output {
            path,
            kind: Kind::Shard,
            force,
            inputs,
        };
        Some(Job { shard, output })
    }
}

/// One shard of the work.
#[derive(Clone, Copy, Debug)]
pub(super) struct Job<'a> {
    pub(super) shard: ShardIndex,
    output: Output<'a>,
}

/// Result of a shard.
pub(super) struct Measured {
    /// Number of units of all shards together.
    pub(super) units: usize,
    pub(super) about: About,
    pub(super) content: Content,
}

impl Job<'_> {
    /// Refuses an output that would destroy something, before any work is done.
    pub(super) fn check(&self) -> Result<(), Failure> {
        self.output.check()
    }

    /// Returns whether the output is complete already, for the same work and shard.
    fn is_done(&self, key: &Key) -> bool {
        let there = self.output.path.metadata().is_ok_and(|m| m.is_file());
        let done = there
            && Shard::open(self.output.path)
                .is_ok_and(|shard| shard.key == *key && shard.index == self.shard);
        if done {
            terminal::note(&format!(
                "octavo: {}: shard {} is complete already",
                self.output.path.display(),
                self.shard
            ));
        }
        done
    }

    /// Measures and writes the shard, unless it is complete already. `measure` returns `None` if
    /// Ctrl-C ended it.
    pub(super) fn run(
        &self,
        key: Key,
        measure: impl FnOnce(ShardIndex) -> Result<Option<Measured>, Failure>,
    ) -> Result<Exit, Failure> {
        if self.is_done(&key) {
            return Ok(Exit::Done);
        }
        let Some(measured) = measure(self.shard)? else {
            return Ok(Exit::Interrupted);
        };
        let Measured {
            units,
            about,
            content,
        } = measured;
        let shard = Shard {
            key,
            index: self.shard,
            units,
            about,
            content,
        };
        let bytes = shard.to_bytes(&self.output.path.display().to_string())?;
        if let Err(failure) = self.output.write(&bytes) {
            // another run of the same shard may have finished first
            return if self.is_done(&shard.key) {
                Ok(Exit::Done)
            } else {
                Err(failure)
            };
        }
        let range = shard.range();
        terminal::note(&format!(
            "octavo: wrote {} ({} bytes): shard {}, {} of {units}",
            self.output.path.display(),
            bytes.len(),
            self.shard,
            match range.len() {
                0 => "none".to_owned(),
                _ => format!("{} to {}", range.start + 1, range.end),
            }
        ));
        Ok(Exit::Done)
    }
}

/// Converts a failure to the exit codes of batch work: 2 for errors of the input, 75 for errors of
/// the machine, where another try may help.
pub(super) fn codes(failure: Failure) -> Failure {
    match failure {
        Failure::Input(message) => Failure::Usage(message),
        Failure::Machine(message) => Failure::Again(message),
        other => other,
    }
}

/// Adds a model's files, or the built-in model, to the key.
pub(super) fn add_model(key: &mut Key, name: &str, path: Option<&Path>) -> Result<(), Failure> {
    match path {
        Some(path) => key.files(name, &files_of(path))?,
        None => key.bytes(name, demo_model()),
    };
    Ok(())
}

/// Adds the overrides of the model's metadata to the key.
pub(super) fn add_keys(key: &mut Key, model: &ModelArgs) {
    let changes = model.keys.changes();
    if !changes.is_empty() {
        key.set("changed keys", format!("{changes:?}"));
    }
}

/// Adds the settings that the numbers depend on besides the model: the device, how it rounds, the
/// KV cache type, the layout of the weights.
pub(super) fn add_computation(key: &mut Key, options: &EngineOptions) -> Result<(), Failure> {
    let device = match options.device {
        DeviceChoice::Cpu => "cpu",
        DeviceChoice::Cuda(_) => "cuda",
        DeviceChoice::Auto { .. } => {
            let works = |gpus: Vec<(_, Option<_>)>| gpus.iter().any(|(_, wrong)| wrong.is_none());
            if cuda::devices().is_ok_and(works) {
                return Err(Failure::Usage(
                    "--shard with a GPU at hand: expected --device cpu or --device cuda, which \
                     says what computes every shard"
                        .to_owned(),
                ));
            }
            "cpu"
        }
    };
    key.set("device", device)
        .set("KV cache", options.kv_type)
        .set(
            "rounding",
            rounding(options.isa.resolve()?, options.prompt_bits, options.kv_type),
        )
        .set(
            "weights",
            if options.repack {
                "packed"
            } else {
                "as in the file"
            },
        );
    let experts = &options.cpu_experts;
    if !experts.is_empty() {
        key.set("experts on the CPU", experts.to_string());
    }
    if let Some(layers) = options.gpu_layers {
        key.set("layers on the GPU", layers);
    }
    Ok(())
}

/// Returns the rounding class of an instruction set: the names of all that round activations in
/// prefill alike.
pub(super) fn rounding(isa: Isa, bits: PromptBits, kv_type: KvTypes) -> String {
    let class = isa.prompt_rounding_in(bits, kv_type);
    let alike = Isa::ALL
        .into_iter()
        .filter(|other| other.prompt_rounding_in(bits, kv_type) == class);
    let names: Vec<&str> = alike.map(Isa::name).collect();
    format!("{bits} bits, as {}", names.join(" "))
}

/// Describes a computation for the report.
pub(super) fn about(
    engine: &Engine,
    options: &EngineOptions,
    source: String,
    n_ctx: usize,
) -> Result<About, Failure> {
    Ok(About {
        model: engine.gguf().name().to_owned(),
        backend: engine.describe().to_owned(),
        isa: options.isa.resolve()?.name().to_owned(),
        source,
        n_ctx,
    })
}
