//! Generation settings under llama-server's names.

use octavo_engine::GenerationParams;
use octavo_engine::sample::Stage;
use serde_json::{Value, json};

use crate::app::App;

/// Returns the settings of a request.
pub(crate) fn of(app: &App, options: &GenerationParams, stream: bool) -> Value {
    let sampler = &options.sampler;
    let most = options.max_tokens.map_or(json!(-1), |n| json!(n));
    let samplers: Vec<&str> = sampler
        .order
        .iter()
        .map(|stage| Stage::name(*stage))
        .collect();
    let ends = app.tokenizer().eog_ids().iter();
    let ends = ends.filter(|_| options.ignore_eos);
    let banned = ends.map(|&token| (token, f32::NEG_INFINITY));
    let bias = sampler.logit_bias.iter().copied().chain(banned);
    // JSON has no infinity: null means a banned token, as in llama-server
    let bias = bias.map(|(token, bias)| json!({ "token": token, "bias": bias }));
    let mut settings = json!({
        "n_ctx": app.n_ctx(),
        "seed": sampler.seed,
        "temperature": sampler.temperature,
        "top_k": sampler.top_k,
        "top_p": sampler.top_p,
        "min_p": sampler.min_p,
        "repeat_last_n": sampler.penalty_window,
        "repeat_penalty": sampler.repeat_penalty,
        "presence_penalty": sampler.presence_penalty,
        "frequency_penalty": sampler.frequency_penalty,
        "stop": options.stop,
        "max_tokens": most,
        "n_predict": most,
        "min_tokens": options.min_tokens,
        "ignore_eos": options.ignore_eos,
        "stream": stream,
        "logit_bias": bias.collect::<Vec<_>>(),
        "n_probs": options.logprobs.unwrap_or(0),
        "post_sampling_probs": options.logprobs_after_sampling,
        "samplers": samplers,
    });
    if let (Value::Object(all), Value::Object(absent)) = (&mut settings, absent()) {
        all.extend(absent);
    }
    settings
}

/// Returns llama-server's settings of samplers that there are none of here, with the values that
/// turn them off.
fn absent() -> Value {
    json!({
        "dynatemp_range": 0.0,
        "dynatemp_exponent": 1.0,
        "top_n_sigma": -1.0,
        "xtc_probability": 0.0,
        "xtc_threshold": 0.1,
        "typical_p": 1.0,
        "dry_multiplier": 0.0,
        "dry_base": 1.75,
        "dry_allowed_length": 2,
        "dry_penalty_last_n": 64,
        "mirostat": 0,
        "mirostat_tau": 5.0,
        "mirostat_eta": 0.1,
        "adaptive_target": -1.0,
        "adaptive_decay": 0.9,
        "n_keep": 0,
        "min_keep": 0,
    })
}
