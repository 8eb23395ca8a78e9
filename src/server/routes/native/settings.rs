//! Generation settings under llama-server's names.

use octavo_engine::GenerationParams;
use serde_json::{Value, json};

use crate::app::App;
use crate::params;

/// Returns the settings of a request.
pub(crate) fn of(app: &App, options: &GenerationParams, stream: bool) -> Value {
    let sampler = &options.sampler;
    let most = options.max_tokens.map_or(json!(-1), |n| json!(n));
    let ends = app.tokenizer().eog_ids().iter();
    let ends = ends.filter(|_| options.ignore_eos);
    let banned = ends.map(|&token| (token, f32::NEG_INFINITY));
    let bias = sampler.logit_bias.iter().copied().chain(banned);
    // JSON has no infinity: null means a banned token, as in llama-server
    let bias = bias.map(|(token, bias)| json!({ "token": token, "bias": bias }));
    let mut settings = json!({
        "n_ctx": app.n_ctx(),
        "seed": sampler.seed,
        "stop": options.stop,
        "max_tokens": most,
        "n_predict": most,
        "min_tokens": options.min_tokens,
        "ignore_eos": options.ignore_eos,
        "stream": stream,
        "logit_bias": bias.collect::<Vec<_>>(),
        "n_probs": options.logprobs.unwrap_or(0),
        "post_sampling_probs": options.logprobs_after_sampling,
        "n_keep": n_keep(options),
    });
    if let (Value::Object(all), Value::Object(numbers)) = (&mut settings, params::numbers(sampler))
    {
        all.extend(numbers);
    }
    settings
}

/// Returns the number of tokens that context shifts keep, -1 for the prompt; 0 where a full context
/// ends the text.
fn n_keep(options: &GenerationParams) -> i64 {
    match options.context_shift {
        None => 0,
        Some(shift) => shift
            .keep
            .map_or(-1, |n| i64::try_from(n).unwrap_or(i64::MAX)),
    }
}
