//! Sampling options.

use clap::Args;
use octavo_engine::sample::{SamplerConfig, SamplerDefaults, Stage, random_seed};

use crate::failure::Failure;

const SAMPLING: &str = "Sampling (run is greedy unless one of --temp, --top-k, --top-p, --min-p, \
     --seed, --samplers is given; chat and serve default to the model's recommended settings)";

/// Sampling options.
#[derive(Debug, Args)]
#[command(next_help_heading = SAMPLING)]
pub(crate) struct SampleArgs {
    /// Always take the most likely token (after bias and penalties)
    #[arg(long, conflicts_with_all = ["temp", "top_k", "top_p", "min_p", "seed", "samplers"])]
    greedy: bool,
    /// Temperature; 0 is greedy [default: 0.8]
    #[arg(long, visible_alias = "temperature", value_name = "T", value_parser = temperature)]
    temp: Option<f32>,
    /// Keep the K most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K")]
    top_k: Option<u32>,
    /// Keep the most likely tokens until their probabilities reach P; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P", value_parser = top_p)]
    top_p: Option<f32>,
    /// Keep tokens of at least P times the highest probability; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P", value_parser = min_p)]
    min_p: Option<f32>,
    /// Random seed; -1 picks one (--json reports it) [default: -1]
    #[arg(short, long, value_name = "N", value_parser = seed)]
    seed: Option<Seed>,
    /// Divide positive and multiply negative logits of recent tokens by R; 1 disables it [default:
    /// 1]
    #[arg(long, value_name = "R", value_parser = repeat_penalty)]
    repeat_penalty: Option<f32>,
    /// Subtract R from the logits of recent tokens [default: 0]
    #[arg(long, value_name = "R", value_parser = finite)]
    presence_penalty: Option<f32>,
    /// Subtract R from the logits of recent tokens for each occurrence [default: 0]
    #[arg(long, value_name = "R", value_parser = finite)]
    frequency_penalty: Option<f32>,
    /// Number of recent tokens to penalize, the prompt's included; 0 disables penalties, -1 is the
    /// whole context [default: 64]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(i64).range(-1..=1 << 31))]
    repeat_last_n: Option<i64>,
    /// Add BIAS to a token's logit: ID+BIAS or ID-BIAS; ID-inf bans the token; may be given several
    /// times
    #[arg(short, long, value_name = "ID(+/-)BIAS", value_parser = logit_bias)]
    pub(super) logit_bias: Vec<(u32, f32)>,
    /// Order of the samplers, separated by ; or , (one that is not listed does not run)
    ///
    /// Default: penalties;top_k;top_p;min_p;temperature, after the logit bias, as in llama.cpp:
    /// top_k, top_p and min_p see the distribution before the temperature.
    #[arg(long, value_name = "LIST", value_parser = samplers)]
    samplers: Option<Order>,
}

/// A newtype, so that clap takes the list as one value.
#[derive(Clone, Debug)]
struct Order(Vec<Stage>);

#[derive(Clone, Copy, Debug)]
enum Seed {
    Fixed(u64),
    Any,
}

impl SampleArgs {
    /// Returns the sampler of a command that is greedy unless a sampling option is given.
    pub(super) fn config(&self) -> Result<SamplerConfig, Failure> {
        let mut settings = self.settings()?;
        if let Some(Seed::Any) = self.seed {
            settings.seed = Some(random_seed());
        }
        Ok(settings.greedy_unless_drawn(random_seed))
    }

    /// Returns the sampler of a command that samples by default: settings that are not given are
    /// the model's recommended ones, or llama-server's defaults.
    pub(super) fn config_with(&self, model: &SamplerDefaults) -> Result<SamplerConfig, Failure> {
        let defaults = self
            .settings()?
            .or(model)
            .or(&SamplerDefaults::llama_server());
        Ok(defaults.config(random_seed))
    }

    /// Returns the settings of the options.
    pub(crate) fn settings(&self) -> Result<SamplerDefaults, Failure> {
        let order = self.samplers.clone().map(|order| order.0);
        self.refuse_without_effect(order.as_deref().unwrap_or(&Stage::DEFAULT_ORDER))?;
        let seed = match self.seed {
            Some(Seed::Fixed(seed)) => Some(seed),
            Some(Seed::Any) | None => None,
        };
        // a window without an end is the whole context
        let window = |n: i64| usize::try_from(n).unwrap_or(usize::MAX);
        Ok(SamplerDefaults {
            temperature: self.temp.or(self.greedy.then_some(0.0)),
            top_k: self.top_k.map(|k| k as usize),
            top_p: self.top_p,
            min_p: self.min_p,
            repeat_penalty: self.repeat_penalty,
            presence_penalty: self.presence_penalty,
            frequency_penalty: self.frequency_penalty,
            penalty_window: self.repeat_last_n.map(window),
            logit_bias: (!self.logit_bias.is_empty()).then(|| self.logit_bias.clone()),
            seed,
            order,
        })
    }

    /// Refuses settings whose sampler is not in the order: they would silently do nothing.
    fn refuse_without_effect(&self, order: &[Stage]) -> Result<(), Failure> {
        let penalties = self.repeat_penalty.is_some_and(|r| r != 1.0)
            || self.presence_penalty.is_some_and(|r| r != 0.0)
            || self.frequency_penalty.is_some_and(|r| r != 0.0);
        let options = [
            // a temperature of 0 is greedy, whatever samplers run
            (
                "--temp",
                Stage::Temperature,
                self.temp.is_some_and(|t| t != 0.0),
            ),
            ("--min-p", Stage::MinP, self.min_p.is_some()),
            ("--top-k", Stage::TopK, self.top_k.is_some()),
            ("--top-p", Stage::TopP, self.top_p.is_some()),
            ("penalties", Stage::Penalties, penalties),
        ];
        match options
            .iter()
            .find(|(_, stage, set)| *set && !order.contains(stage))
        {
            Some((flag, stage, _)) => Err(Failure::Usage(format!(
                "{flag} has no effect: expected {stage} in --samplers"
            ))),
            None => Ok(()),
        }
    }
}

fn number(text: &str, expected: &str, ok: impl Fn(f32) -> bool) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if ok(x) => Ok(x),
        _ => Err(format!("expected {expected}")),
    }
}

fn temperature(text: &str) -> Result<f32, String> {
    number(text, "a finite number of at least 0", |x| {
        x.is_finite() && x >= 0.0
    })
}

fn top_p(text: &str) -> Result<f32, String> {
    number(text, "a number above 0 and up to 1", |x| {
        x > 0.0 && x <= 1.0
    })
}

fn min_p(text: &str) -> Result<f32, String> {
    number(text, "a number from 0 to 1", |x| (0.0..=1.0).contains(&x))
}

fn repeat_penalty(text: &str) -> Result<f32, String> {
    number(text, "a finite number above 0", |x| {
        x.is_finite() && x > 0.0
    })
}

fn finite(text: &str) -> Result<f32, String> {
    number(text, "a finite number", f32::is_finite)
}

fn seed(text: &str) -> Result<Seed, String> {
    match text.parse() {
        Ok(seed) => Ok(Seed::Fixed(seed)),
        Err(_) if text == "-1" => Ok(Seed::Any),
        Err(_) => Err(format!(
            "expected an integer from 0 to {}, or -1 for any",
            u64::MAX
        )),
    }
}

fn samplers(text: &str) -> Result<Order, String> {
    Stage::parse_order(text)
        .map(Order)
        .map_err(|e| format!("expected {}, got {}", e.expected, e.got))
}

/// Parses `15043+1.5`, `15043-1.5` or `15043-inf`.
fn logit_bias(text: &str) -> Result<(u32, f32), String> {
    let parsed = text.find(['+', '-']).and_then(|at| {
        let id = text[..at].parse().ok()?;
        let bias: f32 = text[at..].parse().ok()?;
        (bias < f32::INFINITY).then_some((id, bias))
    });
    parsed.ok_or_else(|| "expected a token id, + or -, and a finite number (or -inf)".to_owned())
}
