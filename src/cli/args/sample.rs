//! Sampling options.

use clap::Args;
use octavo_engine::sample::{
    ConfigError, Number, SamplerConfig, SamplerDefaults, Stage, random_seed,
};

use crate::failure::Failure;

const SAMPLING: &str = "Sampling (run is greedy unless --temp, --top-k, --seed or another option \
     that is not a penalty is given; chat and serve default to the model's recommended settings)";

/// Sampling options.
#[derive(Debug, Args)]
#[command(next_help_heading = SAMPLING)]
pub(crate) struct SampleArgs {
    /// Always take the most likely token (after bias and penalties)
    #[arg(long, conflicts_with_all = ["temp", "top_k", "top_p", "min_p", "seed", "samplers",
        "sampler_seq", "dynatemp_range", "mirostat"])]
    greedy: bool,
    /// Temperature; 0 is greedy [default: 0.8]
    #[arg(long, visible_alias = "temperature", value_name = "T", value_parser = of("temperature"))]
    temp: Option<f64>,
    /// Keep the K most likely tokens; 0 keeps all [default: 40]
    #[arg(long, value_name = "K", value_parser = of("top_k"))]
    top_k: Option<f64>,
    /// Keep the most likely tokens until their probabilities reach P; 1 keeps all [default: 0.95]
    #[arg(long, value_name = "P", value_parser = of("top_p"))]
    top_p: Option<f64>,
    /// Keep tokens of at least P times the highest probability; 0 keeps all [default: 0.05]
    #[arg(long, value_name = "P", value_parser = of("min_p"))]
    min_p: Option<f64>,
    /// Random seed; -1 picks one (--json reports it) [default: -1]
    #[arg(short, long, value_name = "N", value_parser = seed)]
    seed: Option<Seed>,
    /// Divide positive and multiply negative logits of recent tokens by R; 1 disables it [default:
    /// 1]
    #[arg(long, value_name = "R", value_parser = of("repeat_penalty"))]
    repeat_penalty: Option<f64>,
    /// Subtract R from the logits of recent tokens [default: 0]
    #[arg(long, value_name = "R", value_parser = of("presence_penalty"))]
    presence_penalty: Option<f64>,
    /// Subtract R from the logits of recent tokens for each occurrence [default: 0]
    #[arg(long, value_name = "R", value_parser = of("frequency_penalty"))]
    frequency_penalty: Option<f64>,
    /// Number of recent tokens to penalize, the prompt's included; 0 disables penalties, -1 is the
    /// whole context [default: 64]
    #[arg(long, value_name = "N", value_parser = of("repeat_last_n"))]
    repeat_last_n: Option<f64>,
    /// Add BIAS to a token's logit: ID+BIAS or ID-BIAS; ID-inf bans the token; may be given several
    /// times
    #[arg(short, long, value_name = "ID(+/-)BIAS", value_parser = logit_bias)]
    pub(super) logit_bias: Vec<(u32, f32)>,
    /// Order of the samplers, separated by ; or , (one that is not listed does not run)
    ///
    /// Default: penalties;dry;top_n_sigma;top_k;typ_p;top_p;min_p;xtc;temperature, after the logit
    /// bias, as in llama.cpp: all before temperature see the distribution before it. adaptive_p,
    /// wherever it is listed, draws the token.
    #[arg(long, value_name = "LIST", value_parser = samplers)]
    samplers: Option<Order>,
    /// The same by letters: edskypmxta are penalties, dry, top_n_sigma, top_k, typ_p, top_p, min_p,
    /// xtc, temperature, adaptive_p
    #[arg(long, visible_alias = "sampling-seq", value_name = "LETTERS", value_parser = letters,
        conflicts_with = "samplers", hide_short_help = true)]
    sampler_seq: Option<Order>,
    #[command(flatten)]
    more: MoreArgs,
}

/// Options of samplers that are off by default.
#[derive(Debug, Args)]
#[command(next_help_heading = "Samplers that are off by default")]
struct MoreArgs {
    /// Lower or raise the temperature by up to T, with the entropy [default: 0]
    #[arg(long, value_name = "T", value_parser = of("dynatemp_range"), hide_short_help = true)]
    dynatemp_range: Option<f64>,
    /// Exponent of the entropy in that [default: 1]
    #[arg(long, value_name = "X", value_parser = of("dynatemp_exponent"), hide_short_help = true)]
    dynatemp_exp: Option<f64>,
    /// Keep the tokens whose information content is closest to the entropy until their
    /// probabilities exceed P; 1 keeps all [default: 1]
    #[arg(long, visible_alias = "typical-p", value_name = "P", value_parser = of("typical_p"),
        hide_short_help = true)]
    typical: Option<f64>,
    /// Keep tokens whose logits are at most N standard deviations below the largest; 0 and less
    /// keeps all [default: -1]
    #[arg(long, visible_alias = "top-nsigma", value_name = "N", value_parser = of("top_n_sigma"),
        hide_short_help = true)]
    top_n_sigma: Option<f64>,
    /// Probability of removing the most likely tokens but one (XTC) [default: 0]
    #[arg(long, value_name = "P", value_parser = of("xtc_probability"), hide_short_help = true)]
    xtc_probability: Option<f64>,
    /// Probability from which tokens count as most likely in that; above 0.5 disables it [default:
    /// 0.1]
    #[arg(long, value_name = "P", value_parser = of("xtc_threshold"), hide_short_help = true)]
    xtc_threshold: Option<f64>,
    /// Subtract M from the logit of a token that makes a repetition longer (DRY); 0 disables it
    /// [default: 0]
    #[arg(long, value_name = "M", value_parser = of("dry_multiplier"), hide_short_help = true)]
    dry_multiplier: Option<f64>,
    /// Factor of that for each further token of the repetition [default: 1.75]
    #[arg(long, value_name = "B", value_parser = of("dry_base"), hide_short_help = true)]
    dry_base: Option<f64>,
    /// Longest repetition, in tokens, that DRY lets pass [default: 2]
    #[arg(long, value_name = "N", value_parser = of("dry_allowed_length"),
        hide_short_help = true)]
    dry_allowed_length: Option<f64>,
    /// Number of recent tokens that DRY sees; 0 disables it, -1 is the whole context [default: 64]
    #[arg(long, value_name = "N", value_parser = of("dry_penalty_last_n"),
        hide_short_help = true)]
    dry_penalty_last_n: Option<f64>,
    /// Text that ends a repetition, in place of the newline, colon, quotation mark and asterisk;
    /// "none" for no such text; may be given several times
    #[arg(long, value_name = "TEXT", hide_short_help = true)]
    dry_sequence_breaker: Vec<String>,
    /// Use Mirostat 1 or 2 in place of all samplers but bias and temperature; 0 is off [default: 0]
    #[arg(long, value_name = "N", value_parser = of("mirostat"), hide_short_help = true)]
    mirostat: Option<f64>,
    /// Learning rate of Mirostat [default: 0.1]
    #[arg(long, value_name = "X", value_parser = of("mirostat_eta"), hide_short_help = true)]
    mirostat_lr: Option<f64>,
    /// Surprise that Mirostat aims at, in bits per token [default: 5]
    #[arg(long, value_name = "BITS", value_parser = of("mirostat_tau"), hide_short_help = true)]
    mirostat_ent: Option<f64>,
    /// Probability that adaptive_p aims at; below 0 it draws as usual [default: -1]
    #[arg(long, value_name = "P", value_parser = of("adaptive_target"), hide_short_help = true)]
    adaptive_target: Option<f64>,
    /// Weight that earlier tokens keep in the average of adaptive_p [default: 0.9]
    #[arg(long, value_name = "X", value_parser = of("adaptive_decay"), hide_short_help = true)]
    adaptive_decay: Option<f64>,
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
        let order = self.samplers.as_ref().or(self.sampler_seq.as_ref());
        let order = order.map(|order| order.0.clone());
        let seed = match self.seed {
            Some(Seed::Fixed(seed)) => Some(seed),
            Some(Seed::Any) | None => None,
        };
        let breakers = &self.more.dry_sequence_breaker;
        let mut settings = SamplerDefaults {
            temperature: self.greedy.then_some(0.0),
            logit_bias: (!self.logit_bias.is_empty()).then(|| self.logit_bias.clone()),
            dry_sequence_breakers: (!breakers.is_empty()).then(|| {
                breakers
                    .iter()
                    .filter(|text| *text != "none")
                    .cloned()
                    .collect()
            }),
            seed,
            order,
            ..SamplerDefaults::default()
        };
        for (_, name, value) in self.numbers() {
            if let (Some(number), Some(value)) = (Number::named(name), value) {
                number.set(&mut settings, value)?;
            }
        }
        self.refuse_without_effect(&settings)?;
        Ok(settings)
    }

    /// Returns the options that are numbers, with the names of their settings.
    fn numbers(&self) -> [(&'static str, &'static str, Option<f64>); 23] {
        let more = &self.more;
        [
            ("--temp", "temperature", self.temp),
            ("--dynatemp-range", "dynatemp_range", more.dynatemp_range),
            ("--dynatemp-exp", "dynatemp_exponent", more.dynatemp_exp),
            ("--top-k", "top_k", self.top_k),
            ("--top-p", "top_p", self.top_p),
            ("--min-p", "min_p", self.min_p),
            ("--typical", "typical_p", more.typical),
            ("--top-n-sigma", "top_n_sigma", more.top_n_sigma),
            ("--xtc-probability", "xtc_probability", more.xtc_probability),
            ("--xtc-threshold", "xtc_threshold", more.xtc_threshold),
            ("--repeat-penalty", "repeat_penalty", self.repeat_penalty),
            (
                "--presence-penalty",
                "presence_penalty",
                self.presence_penalty,
            ),
            (
                "--frequency-penalty",
                "frequency_penalty",
                self.frequency_penalty,
            ),
            ("--repeat-last-n", "repeat_last_n", self.repeat_last_n),
            ("--dry-multiplier", "dry_multiplier", more.dry_multiplier),
            ("--dry-base", "dry_base", more.dry_base),
            (
                "--dry-allowed-length",
                "dry_allowed_length",
                more.dry_allowed_length,
            ),
            (
                "--dry-penalty-last-n",
                "dry_penalty_last_n",
                more.dry_penalty_last_n,
            ),
            ("--mirostat", "mirostat", more.mirostat),
            ("--mirostat-lr", "mirostat_eta", more.mirostat_lr),
            ("--mirostat-ent", "mirostat_tau", more.mirostat_ent),
            ("--adaptive-target", "adaptive_target", more.adaptive_target),
            ("--adaptive-decay", "adaptive_decay", more.adaptive_decay),
        ]
    }

    /// Refuses settings whose sampler is not in the order: they would silently do nothing.
    fn refuse_without_effect(&self, settings: &SamplerDefaults) -> Result<(), Failure> {
        let order = settings.order.as_deref().unwrap_or(&Stage::DEFAULT_ORDER);
        for (flag, name, value) in self.numbers() {
            let number = Number::named(name);
            // what only shapes a sampler has an effect where that is switched on
            let switch = number.and_then(|number| Some((number.stage?, number.off?)));
            if let (Some((stage, off)), Some(value)) = (switch, value)
                && value != off
                && !order.contains(&stage)
            {
                return Err(Failure::Usage(format!(
                    "{flag} has no effect: expected {stage} in --samplers"
                )));
            }
        }
        Ok(())
    }
}

/// Returns the parser of a setting that is a number.
fn of(name: &'static str) -> impl Fn(&str) -> Result<f64, String> + Clone + Send + Sync + 'static {
    move |text| {
        let number = Number::named(name).ok_or_else(|| format!("there is no setting {name}"))?;
        let value = text
            .parse::<f64>()
            .ok()
            .filter(|value| number.takes(*value));
        value.ok_or_else(|| format!("expected {}", number.expected()))
    }
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
    order(Stage::parse_order(text))
}

fn letters(text: &str) -> Result<Order, String> {
    order(Stage::parse_letters(text))
}

fn order(parsed: Result<Vec<Stage>, ConfigError>) -> Result<Order, String> {
    let parsed = parsed.map(Order);
    parsed.map_err(|e| format!("expected {}, got {}", e.expected, e.got))
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
