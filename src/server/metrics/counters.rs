//! Counters of every model, which go on where it is unloaded and loaded again.

use octavo_engine::Totals;
use prometheus_client::registry::Registry;

use super::{Labels, add_counter, add_seconds};

type Total = fn(&Totals) -> u64;

/// Adds counters that have the same names in vLLM.
pub(super) fn add(registry: &mut Registry, prefix: &str, models: &[(Labels, Totals)]) {
    let all: [(&str, &str, Total); 6] = [
        ("prompt_tokens", "Tokens of prompts", |totals| {
            totals.prompt_tokens
        }),
        ("generation_tokens", "Tokens generated", |totals| {
            totals.generated_tokens
        }),
        (
            "num_preemptions",
            "Requests that gave their pages back",
            |totals| totals.preemptions,
        ),
        (
            "prefix_cache_queries",
            "Tokens looked up in the cache",
            |totals| totals.prompt_tokens,
        ),
        ("prefix_cache_hits", "Tokens found in the cache", |totals| {
            totals.cached_tokens
        }),
        ("requests_aborted", "Requests that were aborted", |totals| {
            totals.aborted
        }),
    ];
    for (name, help, value) in all {
        let name = format!("{prefix}{name}");
        add_counter(registry, &name, help, models, value);
    }
}

/// Adds counters with our names alone.
pub(super) fn add_ours(registry: &mut Registry, models: &[(Labels, Totals)]) {
    let own: [(&str, &str, Total); 8] = [
        (
            "octavo_recomputed_tokens",
            "Tokens computed more than once",
            |totals| totals.recomputed_tokens,
        ),
        (
            "octavo_discarded_tokens",
            "Tokens dropped by context shifts",
            |totals| totals.discarded_tokens,
        ),
        (
            "octavo_draft_tokens",
            "Draft tokens of speculative decoding",
            |totals| totals.draft_tokens,
        ),
        (
            "octavo_guessed_tokens",
            "The former name of octavo_draft_tokens, for one version",
            |totals| totals.draft_tokens,
        ),
        (
            "octavo_accepted_tokens",
            "Draft tokens that were accepted",
            |totals| totals.accepted_tokens,
        ),
        ("octavo_evicted_pages", "Cached pages given up", |totals| {
            totals.evictions
        }),
        ("octavo_steps", "Steps taken", |totals| totals.steps),
        ("octavo_requests_failed", "Requests that failed", |totals| {
            totals.failed
        }),
    ];
    for (name, help, value) in own {
        add_counter(registry, name, help, models, value);
    }
    let texts = ("octavo_step_seconds", "Time spent in steps");
    add_seconds(registry, texts, models, |totals| totals.busy);
}

/// Adds counters that only routers read: older names of vLLM's.
pub(super) fn add_vllm_alone(registry: &mut Registry, models: &[(Labels, Totals)]) {
    let values: [(&str, &str, Total); 2] = [
        ("queries", "Tokens looked up in the cache", |totals| {
            totals.prompt_tokens
        }),
        ("hits", "Tokens found in the cache", |totals| {
            totals.cached_tokens
        }),
    ];
    for (name, help, value) in values {
        let name = format!("vllm:gpu_prefix_cache_{name}");
        add_counter(registry, &name, help, models, value);
    }
}
