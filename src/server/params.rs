//! Fields shared by all text generation requests.

use std::ops::RangeInclusive;

use octavo_engine::sample::{MAX_BREAKERS, NUMBERS, Number, SamplerConfig, SamplerDefaults, Stage};
use octavo_engine::{BeamSearch, ContextShift, GenerationParams, MAX_CHOICES, Task};
use octavo_text::tokenizer::EncodeOptions;
use serde_json::{Value, json};

use crate::app::App;
use crate::error::ApiError;
use crate::fields::{Fields, token_id, whole};
use crate::logging::shown;

/// Most texts for one prompt.
pub(crate) const MAX_N: usize = 16;
const _: () = assert!(MAX_N <= MAX_CHOICES, "a batch takes as many");

/// Most stop strings, and most bytes of each.
const MAX_STOPS: usize = 256;
const MAX_STOP_BYTES: usize = 4096;

/// Most tokens with a bias.
const MAX_BIASES: usize = 4096;

/// Most alternatives per token (`top_logprobs`).
pub(crate) const MAX_TOP: usize = 20;

/// llama-server's fields that change a text there and not here, with the number that means nothing
/// there either (-1 does not as well).
const WITHOUT_EFFECT: [(&str, f64); 10] = [
    ("n_indent", 0.0),
    ("n_keep", 0.0),
    ("n_discard", 0.0),
    ("n_cmpl", 1.0),
    ("t_max_predict_ms", 0.0),
    ("tfs_z", 1.0),
    ("lora", 0.0),
    ("grammar_lazy", 0.0),
    ("grammar_triggers", 0.0),
    ("reasoning_budget_start_tag", 0.0),
];

/// Those that have an effect where texts go on when the context is full.
const SHIFTS: [&str; 2] = ["n_keep", "n_discard"];

/// Fields of [`options`] beside the samplers' numbers and `stop`, of which each interface has a
/// name of its own.
const OTHERS: [&str; 8] = [
    "dry_sequence_breakers",
    "ignore_eos",
    "logit_bias",
    "min_tokens",
    "repetition_penalty",
    "samplers",
    "seed",
    "stop_token_ids",
];

/// Returns the names of the fields that [`options`] reads and [`warnings`] knows, but for `stop`.
pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    let numbers = NUMBERS.iter().map(|number| number.name);
    let ignored = WITHOUT_EFFECT.iter().map(|(name, _)| *name);
    numbers.chain(OTHERS).chain(ignored)
}

/// API dialect, which decides the accepted ranges.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Dialect {
    /// OpenAI's: temperatures up to 2.
    OpenAi,
    /// llama-server's: any temperature.
    Native,
}

/// Reads the sampling and stop settings.
pub(crate) fn options(
    app: &App,
    fields: &Fields<'_>,
    dialect: Dialect,
) -> Result<GenerationParams, ApiError> {
    let n_vocab = app.n_vocab();
    let mut stop = fields.strings("stop", MAX_STOPS)?.unwrap_or_default();
    // some clients send an empty string for none
    stop.retain(|text| !text.is_empty());
    if stop.iter().any(|text| text.len() > MAX_STOP_BYTES) {
        let expected = format!("strings of at most {MAX_STOP_BYTES} bytes");
        return Err(fields.wrong("stop", &expected));
    }
    Ok(GenerationParams {
        sampler: sampler(app, fields, dialect)?,
        stop,
        stop_ids: fields
            .ids("stop_token_ids", 256, n_vocab)?
            .unwrap_or_default(),
        ignore_eos: fields.bool("ignore_eos")?.unwrap_or(false),
        min_tokens: fields.count("min_tokens", 0, 1 << 20)?.unwrap_or(0),
        lookup: app.options.lookup,
        draft_max: app.options.draft_max,
        context_shift: context_shift(app, fields)?,
        ..GenerationParams::default()
    })
}

/// Reads how the text goes on when the context is full, if the server lets it go on.
fn context_shift(app: &App, fields: &Fields<'_>) -> Result<Option<ContextShift>, ApiError> {
    let Some(mut shift) = app.options.context_shift else {
        return Ok(None);
    };
    if let Some(keep) = fields.limit("n_keep", 0)? {
        shift.keep = keep;
    }
    let discard = fields.count("n_discard", 0, 1 << 30)?;
    shift.discard = discard.filter(|n| *n > 0);
    Ok(Some(shift))
}

/// Returns the warnings of a request: those that come `first`, and one for each field that would
/// change the text in llama-server, and does not here.
pub(crate) fn warnings(
    app: &App,
    fields: &Fields<'_>,
    first: impl IntoIterator<Item = String>,
) -> Vec<String> {
    let is_set = |(name, off): &&(&str, f64)| match fields.get(name) {
        None => false,
        Some(Value::Bool(is_set)) => *is_set,
        Some(Value::Array(list)) => !list.is_empty(),
        Some(Value::String(text)) => !text.is_empty(),
        Some(value) => value
            .as_f64()
            .is_none_or(|value| value != *off && value != -1.0),
    };
    let has_effect = |name: &str| match name {
        "lora" => !app.engine.adapters().is_empty(),
        name => SHIFTS.contains(&name) && app.options.context_shift.is_some(),
    };
    let is_ignored = |field: &&(&str, f64)| is_set(field) && !has_effect(field.0);
    let set = WITHOUT_EFFECT.iter().filter(is_ignored);
    let named = set.map(|(name, _)| format!("{name} is ignored"));
    first.into_iter().chain(named).collect()
}

/// Reads the token limit from the first of these fields that is given; `Some(None)` for -1: limited
/// by the context only.
pub(crate) fn max_tokens(
    fields: &Fields<'_>,
    names: &[&str],
    least: i64,
) -> Result<Option<Option<usize>>, ApiError> {
    for name in names {
        if let Some(limit) = fields.limit(name, least)? {
            return Ok(Some(limit));
        }
    }
    Ok(None)
}

fn sampler(app: &App, fields: &Fields<'_>, dialect: Dialect) -> Result<SamplerConfig, ApiError> {
    let mut settings = SamplerDefaults {
        dry_sequence_breakers: fields.strings("dry_sequence_breakers", MAX_BREAKERS)?,
        logit_bias: bias(app, fields)?,
        order: samplers(app, fields)?,
        seed: seed(app, fields)?,
        ..SamplerDefaults::default()
    };
    for number in &NUMBERS {
        let name = match number.name {
            // vLLM's name
            "repeat_penalty" if fields.get("repeat_penalty").is_none() => "repetition_penalty",
            name => name,
        };
        let range = range(number, dialect);
        let value = match number.is_whole {
            true => {
                let range = *range.start() as i64..=*range.end() as i64;
                fields.int(name, range)?.map(|value| value as f64)
            }
            false => fields.f64(name, range)?,
        };
        if let Some(value) = value {
            // 0 leaves only the most likely token, as does the smallest number above it
            let value = value.max(*number.range().start());
            let set = number.set(&mut settings, value);
            set.map_err(|error| fields.wrong(name, &error.expected))?;
        }
    }
    Ok(settings.or(&app.sampling).config(|| app.new_seed()))
}

/// Returns the least and the greatest value of a setting in a request.
fn range(number: &Number, dialect: Dialect) -> RangeInclusive<f64> {
    let (least, most) = number.range().into_inner();
    match number.name {
        "temperature" if dialect == Dialect::OpenAi => 0.0..=2.0,
        "presence_penalty" | "frequency_penalty" => -2.0..=2.0,
        "repeat_penalty" => 0.01..=10.0,
        "top_p" | "typical_p" => 0.0..=1.0,
        "repeat_last_n" | "dry_penalty_last_n" => -1.0..=f64::from(1 << 20),
        // llama.cpp takes any number below 0 for one that is not given
        _ if number.is_whole => least.max(-1.0)..=most,
        _ => least.max(-1e9)..=most.min(1e9),
    }
}

/// Returns sampling settings under llama-server's names.
pub(crate) fn defaults(sampling: SamplerDefaults) -> Value {
    let seed = sampling.seed;
    let config = sampling.config(|| 0);
    let mut all = numbers(&config);
    all["seed"] = seed.map_or(json!(-1), |seed| json!(seed));
    all
}

/// Returns the sampling settings that are numbers or lists, under llama-server's names.
pub(crate) fn numbers(config: &SamplerConfig) -> Value {
    let order: Vec<&str> = config.order.iter().map(|stage| stage.name()).collect();
    let mut all = json!({
        "dry_sequence_breakers": config.dry_sequence_breakers,
        "samplers": order,
    });
    let settings = SamplerDefaults::from(config.clone());
    for number in &NUMBERS {
        let value = number.get(&settings);
        all[number.name] = match number.is_whole {
            true => json!(value.map(|value| value as i64)),
            false => json!(value),
        };
    }
    all
}

/// Reads the sampler chain in llama-server's format; unknown names are ignored with a warning.
fn samplers(app: &App, fields: &Fields<'_>) -> Result<Option<Vec<Stage>>, ApiError> {
    const NAME: &str = "samplers";
    let wrong = || fields.wrong(NAME, "a list of samplers' names, or a string of them");
    let (order, unknown) = match fields.get(NAME) {
        None => return Ok(None),
        Some(Value::String(text)) => Stage::known_in(text),
        Some(Value::Array(list)) => {
            let names: Option<Vec<&str>> = list.iter().map(Value::as_str).collect();
            Stage::known_of(names.ok_or_else(wrong)?)
        }
        Some(_) => return Err(wrong()),
    };
    if let Some(name) = unknown.first() {
        app.warn(&format!("samplers: there is no sampler {}", shown(name)));
    }
    Ok(Some(order))
}

/// Reads the seed; a random one if the client asks for that.
fn seed(app: &App, fields: &Fields<'_>) -> Result<Option<u64>, ApiError> {
    match fields.get("seed") {
        None => Ok(None),
        // llama-server's value for a random seed
        Some(value) if whole(value) == Some(-1) => Ok(Some(app.new_seed())),
        Some(value) => {
            let seed = value
                .as_u64()
                .or_else(|| whole(value).map(i64::cast_unsigned));
            let seed = seed.ok_or_else(|| fields.wrong("seed", "a whole number of 64 bits"));
            seed.map(Some)
        }
    }
}

/// Reads `{"id": bias}`, or llama-server's `[[id, bias], …]`; -100 bans a token, as does `false`
/// there. A text in place of an id stands for each of its tokens.
fn bias(app: &App, fields: &Fields<'_>) -> Result<Option<Vec<(u32, f32)>>, ApiError> {
    const NAME: &str = "logit_bias";
    let wrong = || fields.wrong(NAME, "an object from token ids to numbers from -100 to 100");
    let pairs: Vec<(Value, &Value)> = match fields.get(NAME) {
        None => return Ok(None),
        Some(Value::Object(object)) => object
            .iter()
            .map(|(id, bias)| match id.parse::<i64>() {
                Ok(id) => (Value::from(id), bias),
                Err(_) => (Value::from(id.as_str()), bias),
            })
            .collect(),
        Some(Value::Array(list)) => {
            let pair = |pair: &'_ Value| match pair.as_array().map(Vec::as_slice) {
                Some([id, _]) => Some(id.clone()),
                _ => None,
            };
            let ids: Option<Vec<Value>> = list.iter().map(pair).collect();
            let biases = list.iter().map(|pair| &pair[1]);
            ids.ok_or_else(wrong)?.into_iter().zip(biases).collect()
        }
        Some(_) => return Err(wrong()),
    };
    if pairs.len() > MAX_BIASES {
        return Err(fields.wrong(NAME, &format!("at most {MAX_BIASES} tokens")));
    }
    let mut all = Vec::with_capacity(pairs.len());
    for (token, bias) in pairs {
        let ids = match &token {
            Value::String(text) if text.len() <= MAX_STOP_BYTES => app
                .tokenizer()
                .encode(text.as_bytes(), EncodeOptions::PIECE)?,
            id => vec![token_id(id, app.n_vocab()).ok_or_else(wrong)?],
        };
        let bias = match bias {
            Value::Bool(false) => -100.0,
            other => {
                let bias = other.as_f64().filter(|bias| bias.abs() <= 100.0);
                bias.ok_or_else(wrong)?
            }
        };
        let bias = if bias == -100.0 {
            f32::NEG_INFINITY
        } else {
            bias as f32
        };
        all.extend(ids.into_iter().map(|id| (id, bias)));
    }
    match all.len() <= MAX_BIASES {
        true => Ok(Some(all)),
        false => Err(fields.wrong(NAME, &format!("at most {MAX_BIASES} tokens"))),
    }
}

/// Reads whether `n` texts are sampled, or are the best of a beam search with `n` or `best_of`
/// beams.
pub(crate) fn task(fields: &Fields<'_>, n: usize) -> Result<Task, ApiError> {
    let length_penalty = fields.f64("length_penalty", -10.0..=10.0)?;
    if !fields.bool("use_beam_search")?.unwrap_or(false) {
        return Ok(Task::Text);
    }
    if fields.bool("stream")?.unwrap_or(false) {
        let message = "expected false beside use_beam_search: \
                       which texts are the best is known at the end of the search";
        return Err(ApiError::bad_field("stream", message));
    }
    Ok(Task::Beams(BeamSearch {
        width: fields.count("best_of", n, MAX_N)?.unwrap_or(n),
        length_penalty: length_penalty.unwrap_or(1.0),
    }))
}

/// Returns whether a stream ends with the token counts.
pub(crate) fn includes_usage(fields: &Fields<'_>) -> Result<bool, ApiError> {
    match fields.get("stream_options") {
        Some(value) => {
            let options = Fields::at(value, "stream_options.")?;
            Ok(options.bool("include_usage")?.unwrap_or(false))
        }
        None => Ok(false),
    }
}
