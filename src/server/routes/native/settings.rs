//! Generation settings under llama-server's names.

use octavo_engine::GenerationParams;
use octavo_engine::sample::Stage;
use serde_json::{Value, json};

use crate::app::App;

/// Returns the settings of a request.
pub(super) fn of(app: &App, options: &GenerationParams, stream: bool) -> Value {
    let sampler = &options.sampler;
    let most = options.max_tokens.map_or(json!(-1), |n| json!(n));
    let samplers: Vec<&str> = sampler
        .order
        .iter()
        .map(|stage| Stage::name(*stage))
        .collect();
    let bias = sampler.logit_bias.iter().map(|(token, bias)| {
        // JSON has no infinity: -100 means a banned token
        json!({ "token": token, "bias": bias.max(-100.0) })
    });
    json!({
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
        "samplers": samplers,
    })
}
