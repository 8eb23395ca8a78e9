//! Groups of arguments that several commands share, and the validated settings made from them.

mod adapters;
mod cache;
mod constraint;
mod context_shift;
mod device;
mod fit;
mod keys;
mod sample;
mod speculative;
mod system;
mod template;

use std::path::{Path, PathBuf};
use std::sync::OnceLock;

pub(super) use adapters::{AdapterArgs, LoraArgs};
pub(super) use cache::CacheArgs;
use clap::Args;
pub(super) use constraint::{ConstraintArgs, Constraints, RuleArg};
pub(super) use context_shift::ContextShiftArgs;
pub(super) use device::{Device, DeviceArgs};
pub(super) use fit::FitArgs;
pub(super) use keys::{KeyArgs, KeyValue, key_value};
use octavo_engine::GenerationParams;
use octavo_engine::sample::SamplerConfig;
use octavo_engine::{Engine, EngineOptions};
use octavo_kernels::{IsaChoice, KvTypes, PromptBits};
pub(super) use sample::SampleArgs;
pub(super) use speculative::SpeculativeArgs;
pub(super) use system::SystemArgs;
pub(super) use template::TemplateArgs;

use super::failure::Failure;
use super::hub;
use super::prompt::unescape;
use super::threads::ThreadsArgs;
use super::values;

/// Options that name the model.
#[derive(Debug, Args)]
pub(super) struct ModelArgs {
    /// GGUF file (of a split model, its first part), Hugging Face folder, model of the hub
    /// (hf:USER/REPO:QUANT) or address; the built-in demo model if not given
    #[arg(value_name = "MODEL", value_hint = clap::ValueHint::FilePath)]
    positional: Option<PathBuf>,
    /// The same as MODEL
    #[arg(
        short = 'm',
        long = "model",
        value_name = "MODEL",
        conflicts_with = "positional"
    )]
    #[arg(value_hint = clap::ValueHint::FilePath)]
    flag: Option<PathBuf>,
    /// The same as MODEL hf:USER/REPO:QUANT (llama.cpp's -hf)
    #[arg(long, value_name = "USER/REPO[:QUANT]", conflicts_with_all = ["positional", "flag"])]
    hf_repo: Option<String>,
    /// Path of the file in --hf-repo
    #[arg(long, value_name = "PATH", requires = "hf_repo")]
    hf_file: Option<String>,
    /// Path of the model, once it is known.
    #[arg(skip)]
    local: OnceLock<PathBuf>,
    #[command(flatten)]
    pub(super) keys: KeyArgs,
}

impl ModelArgs {
    /// Returns the model's path or name, if the options have one.
    pub(super) fn name(&self) -> Option<PathBuf> {
        let path = self.positional.as_ref().or(self.flag.as_ref()).cloned();
        let of_hub = || {
            let repo = self.hf_repo.as_ref()?;
            Some(PathBuf::from(match &self.hf_file {
                Some(file) => {
                    let repo = repo.split_once(':').map_or(&**repo, |(repo, _)| repo);
                    format!("hf:{repo}/{file}")
                }
                None => format!("hf:{repo}"),
            }))
        };
        path.or_else(of_hub)
    }

    /// Returns the path of the model, if one is given; a model of the hub is downloaded first,
    /// unless it is cached.
    pub(super) fn path(&self) -> Result<Option<&Path>, Failure> {
        if let Some(path) = self.local.get() {
            return Ok(Some(path));
        }
        let Some(name) = self.name() else {
            return Ok(None);
        };
        let path = hub::model(&name)?;
        Ok(Some(self.local.get_or_init(|| path)))
    }
}

/// Options of how to run a model, the same for every command that runs one.
#[derive(Debug, Args)]
#[command(next_help_heading = "Computing")]
pub(super) struct ComputeArgs {
    #[command(flatten)]
    pub(super) device: DeviceArgs,
    #[command(flatten)]
    pub(super) threads: ThreadsArgs,
    #[arg(help = values::isa_help())]
    #[arg(long, value_name = "ISA", default_value = "auto")]
    #[arg(value_parser = values::isa(), hide_possible_values = true)]
    pub(super) isa: IsaChoice,
    #[command(flatten)]
    cache: CacheArgs,
    #[arg(help = values::prompt_bits_help())]
    #[arg(long, value_name = "BITS")]
    #[arg(value_parser = values::prompt_bits(), hide_possible_values = true)]
    prompt_bits: Option<PromptBits>,
    /// Context size in tokens; 0 is the model's trained context [default: the trained context,
    /// reduced until its KV cache fits into a quarter of the free memory, but not below 4096]
    #[arg(
        short,
        long,
        value_name = "N",
        value_parser = clap::value_parser!(u32).range(0..=1 << 30),
    )]
    ctx_size: Option<u32>,
    /// Prompt tokens per prefill step [default: 512; 2048 on a GPU]
    #[arg(short, long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=65536))]
    batch_size: Option<u32>,
    /// Read the file into memory instead of mapping it
    #[arg(long)]
    no_mmap: bool,
    /// Keep weights in the file's own layout, and repack them each time they are read: takes less
    /// memory, and more time
    #[arg(long)]
    no_repack: bool,
    /// Lock the CPU's copies of weights in memory, so that none is swapped out
    #[arg(long, conflicts_with = "no_repack")]
    mlock: bool,
}

impl ComputeArgs {
    /// Returns the KV cache types for comparisons: as [`CacheArgs::types`], but f32 if no type is
    /// given.
    pub(super) fn kv_type_or_f32(&self) -> KvTypes {
        self.cache.types_or_f32()
    }

    /// Returns whether a prefill batch size is given.
    pub(super) fn has_batch(&self) -> bool {
        self.batch_size.is_some()
    }

    /// Returns whether to map the file into memory.
    pub(super) fn mmap(&self) -> bool {
        !self.no_mmap
    }

    /// Returns the given context size; 0 stands for the model's trained context.
    pub(super) fn context(&self) -> Option<usize> {
        self.ctx_size.map(|n| n as usize)
    }

    /// Returns the engine's options; the caller resolves a context of 0.
    pub(super) fn options(&self) -> Result<EngineOptions, Failure> {
        let device = self.device.choice(self.isa)?;
        Ok(EngineOptions {
            device,
            gpu_layers: self.device.gpu_layers(),
            layer_split: self.device.layer_split(),
            cpu_experts: self.device.cpu_experts(),
            fit: self.device.fit.fit(),
            threads: Some(self.threads.count()),
            isa: self.isa,
            kv_type: self.cache.types(),
            prompt_bits: self.prompt_bits.unwrap_or_default(),
            ctx: self.ctx_size.map(|n| n as usize),
            batch: self.batch_size.map(|n| n as usize),
            mmap: !self.no_mmap,
            repack: !self.no_repack,
            lock: self.mlock,
            graphs: self.device.graphs(),
            check_pages: self.device.check_pages(),
            ..EngineOptions::default()
        })
    }
}

/// Options of generation: sampling, limits and stop conditions.
#[derive(Debug, Args)]
#[command(next_help_heading = "Generation")]
pub(super) struct GenerateArgs {
    /// Maximum number of tokens to generate; -1, or not given: up to the end of the text or of the
    /// context
    #[arg(short = 'n', long, visible_alias = "predict", value_name = "N")]
    #[arg(value_parser = clap::value_parser!(i64).range(-1..=1 << 31))]
    n_predict: Option<i64>,
    /// Stop before this string, taken literally (see -e); may be given several times
    #[arg(long, value_name = "STRING", allow_hyphen_values = true)]
    stop: Vec<String>,
    /// Stop at this token; may be given several times
    #[arg(long, value_name = "ID")]
    stop_id: Vec<u32>,
    /// Never choose a token that ends the text
    #[arg(long)]
    ignore_eos: bool,
    /// Print control tokens as text
    #[arg(long)]
    special: bool,
    #[command(flatten)]
    pub(super) context_shift: ContextShiftArgs,
    #[command(flatten)]
    sample: SampleArgs,
    #[command(flatten)]
    pub(super) speculative: SpeculativeArgs,
}

impl GenerateArgs {
    /// Returns whether stop strings are given, in which `-e` processes escapes.
    pub(super) fn has_stops(&self) -> bool {
        !self.stop.is_empty()
    }

    /// Returns whether control tokens are printed as text.
    pub(super) fn shows_special(&self) -> bool {
        self.special
    }

    /// Returns the stop strings; `escape` processes their backslash escapes.
    fn stops(&self, escape: bool) -> Result<Vec<String>, Failure> {
        let read = |(i, text): (usize, &String)| {
            let bad = |expected| Failure::Usage(format!("--stop {}: expected {expected}", i + 1));
            let bytes = if escape {
                unescape(text.as_bytes())
            } else {
                text.clone().into_bytes()
            };
            match String::from_utf8(bytes) {
                Ok(text) if text.is_empty() => Err(bad("at least one character")),
                Ok(text) => Ok(text),
                Err(_) => Err(bad("UTF-8 once its escapes are read")),
            }
        };
        self.stop.iter().enumerate().map(read).collect()
    }

    /// Returns the sampler of a command that samples by default, with the model's recommended
    /// settings.
    pub(super) fn sampler_for(&self, engine: &Engine) -> Result<SamplerConfig, Failure> {
        self.sample.config_with(engine.sampling())
    }

    /// Returns the validated options of a generation; `escape` processes escapes in stop strings.
    pub(super) fn options(&self, escape: bool) -> Result<GenerationParams, Failure> {
        Ok(GenerationParams {
            max_tokens: self.n_predict.and_then(|n| usize::try_from(n).ok()),
            sampler: self.sample.config()?,
            stop: self.stops(escape)?,
            stop_ids: self.stop_id.clone(),
            ignore_eos: self.ignore_eos,
            show_special: self.special,
            context_shift: self.context_shift.shift(),
            lookup: self.speculative.lookup(),
            draft_max: self.speculative.draft_max(),
            ..GenerationParams::default()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::{CommandFactory, FromArgMatches, Parser};

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        compute: ComputeArgs,
        #[command(flatten)]
        generate: GenerateArgs,
    }

    fn parse(line: &str) -> Result<Line, clap::Error> {
        let command = super::super::numbers_below_0(Line::command());
        let words = std::iter::once("octavo").chain(line.split_whitespace());
        command
            .try_get_matches_from(words)
            .and_then(|matches| Line::from_arg_matches(&matches))
    }

    fn sampler(line: &str) -> SamplerConfig {
        let line = parse(line).unwrap_or_else(|e| panic!("{e}"));
        line.generate.options(false).expect("valid options").sampler
    }

    #[test]
    fn greedy_unless_a_sampling_flag_is_given() {
        assert_eq!(sampler(""), SamplerConfig::default());
        assert!(sampler("--greedy --repeat-penalty 1.1").is_greedy());
        assert!(sampler("--logit-bias 3-inf").is_greedy());
        assert!(sampler("--dry-multiplier 0.8 --dry-penalty-last-n -1").is_greedy());
        assert!(sampler("--temp 0 --top-k 5").is_greedy());
        for line in [
            "--temp 0.5",
            "--top-k 3",
            "--top-p 0.5",
            "--min-p 0",
            "--seed 1",
            "--samplers top_k",
            "--sampler-seq kt",
            "--typical 0.5",
            "--mirostat 2",
            "--xtc-probability 0.5",
            "--dynatemp-range 0.5",
        ] {
            assert!(!sampler(line).is_greedy(), "{line}");
        }
        let config = sampler("--seed 7 --top-k 0");
        assert_eq!(
            (config.seed, config.top_k, config.temperature, config.top_p),
            (7, 0, 0.8, 0.95)
        );
        assert_ne!(sampler("--seed -1").seed, sampler("--seed -1").seed);
    }

    #[test]
    fn numbers_out_of_range_are_refused() {
        for line in [
            "--temp -1",
            "--temp nan",
            "--temp inf",
            "--top-p 0",
            "--top-p 1.5",
            "--min-p -0.1",
            "--min-p 2",
            "--top-k -2",
            "--typical 0",
            "--mirostat 3",
            "--xtc-probability 2",
            "--dry-base -1",
            "--dry-penalty-last-n -2",
            "--adaptive-decay 1",
            "--adaptive-target 2",
            "--sampler-seq kz",
            "--sampler-seq k --samplers top_k",
            "--repeat-penalty 0",
            "--repeat-penalty -1",
            "--presence-penalty nan",
            "--seed -2",
            "--logit-bias 5",
            "--logit-bias 5+inf",
            "--logit-bias x+1",
            "--samplers nonsense",
            "-n -2",
            "-t 0",
            "--stop-id -1",
            "-b 0",
            "-c -1",
            "--repeat-last-n -2",
            "--cache-type-k q5_2",
            "--kv-type q5_2",
            "--isa sse",
            "--device gpu",
            "--gpu -1",
            "--gpu-layers -1",
            "--gpu-layers all",
            "--greedy --temp 1",
            "--kv-type f16 --cache-type-k f16",
        ] {
            assert!(parse(line).is_err(), "{line} should be refused");
        }
        assert_eq!(
            parse("-l 5-2.5 -l 6+1")
                .expect("valid")
                .generate
                .sample
                .logit_bias,
            [(5, -2.5), (6, 1.0)]
        );
    }

    #[test]
    fn a_number_below_0_is_a_value_with_a_range() {
        assert_eq!(sampler("--repeat-last-n -1").penalty_window, usize::MAX);
        assert_eq!(sampler("--repeat-last-n 0").penalty_window, 0);
        for line in [
            "-t -1",
            "-c -1",
            "-b -1",
            "-n -2",
            "--top-k -2",
            "--top-p -1",
            "--temp -0.5",
            "--seed -2",
            "--stop-id -1",
            "--repeat-last-n -2",
            "--gpu -1",
            "--gpu-layers -1",
            "-l -5",
        ] {
            let error = parse(line)
                .err()
                .unwrap_or_else(|| panic!("{line} should be refused"))
                .to_string();
            let ranged = error.contains(" is not in ") || error.contains("expected ");
            assert!(ranged && !error.contains("unexpected"), "{line}: {error}");
        }
    }

    #[test]
    fn escapes_in_stop_strings_are_read_if_that_is_asked_for() {
        let line = |text: &str| {
            Line::try_parse_from(["octavo", "--stop", text])
                .expect("parses")
                .generate
        };
        assert_eq!(line(r"\n\n").options(false).expect("valid").stop, [r"\n\n"]);
        assert_eq!(line(r"\n\n").options(true).expect("valid").stop, ["\n\n"]);
        assert_eq!(line(r"\xc3\xa9").options(true).expect("valid").stop, ["é"]);
        let refused = line(r"\xff").options(true);
        assert!(matches!(
            refused,
            Err(Failure::Usage(text)) if text.starts_with("--stop 1: expected UTF-8")
        ));
    }

    #[test]
    fn settings_without_effect_are_refused() {
        for line in [
            "--top-k 5 --samplers temperature",
            "--temp 1 --samplers top_k",
            "--repeat-penalty 2 --samplers temp",
        ] {
            let refused = parse(line).expect("parses").generate.options(false);
            assert!(matches!(refused, Err(Failure::Usage(_))), "{line}");
        }
    }

    #[test]
    fn no_limit_is_spelled_two_ways() {
        let most = |line: &str| {
            parse(line)
                .expect("parses")
                .generate
                .options(false)
                .expect("valid")
                .max_tokens
        };
        assert_eq!(
            [most(""), most("-n -1"), most("-n 0"), most("--n-predict 5")],
            [None, None, Some(0), Some(5)]
        );
    }
}
