//! Keys that ask for unimplemented features, and those that llama.cpp ignores.

use crate::arch::Spec;
use crate::error::Error;
use crate::keys::{Keys, is_one_of, show};

use super::rope::SECTIONS;
use super::{DEEPSTACK, EXPERT_KEYS};

/// Keys for features that no graph has unless its architecture declares it ([`Spec::reads`]), with
/// the values that switch the feature off.
const REFUSED: &[(&str, &[f64])] = &[
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("use_parallel_residual", &[0.0]),
    ("attention.causal", &[1.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.rope_pattern", &[1.0]),
    ("final_logit_softcapping", &[0.0]),
    (DEEPSTACK, &[0.0]),
    ("rope.scaling.alpha", &[0.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
];

/// Keys that llama.cpp ignores in architectures that do not declare them ([`Spec::reads`]), with
/// the values that have no effect anyway. They are ignored here too, with a warning: files with
/// them run alike in both.
const IGNORED: &[(&str, &[f64])] = &[
    ("attention.scale", &[0.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("swiglu_clamp_exp", &[0.0]),
    ("swiglu_clamp_shexp", &[0.0]),
    (SECTIONS, &[0.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
];

/// Warns of keys that are ignored.
fn warn_of_ignored(k: &mut Keys<'_>, spec: &Spec) -> Result<(), Error> {
    let is_ignored = |suffix: &str| {
        !spec.reads.contains(&suffix) && (spec.sections.is_none() || suffix != SECTIONS)
    };
    for (suffix, neutral) in IGNORED.iter().filter(|(suffix, _)| is_ignored(suffix)) {
        let shown = k.get(suffix).filter(|v| !is_one_of(v, neutral));
        if let Some(shown) = shown.map(|v| show(&v)) {
            let key = k.full(suffix);
            k.warn(format!("{key} = {shown} is not applied, as in llama.cpp"));
        }
    }
    const ACTIVATION: &str = "hidden_activation";
    if spec.reads.contains(&ACTIVATION) {
        return Ok(());
    }
    let activation = k.text(ACTIVATION)?;
    if let Some(other) = activation.filter(|a| !["silu", "swiglu", "swish"].contains(a)) {
        let (key, other) = (k.full(ACTIVATION), other.to_owned());
        k.warn(format!("{key} = {other} is not applied, as in llama.cpp"));
    }
    Ok(())
}

/// Refuses keys whose effect is not implemented.
pub(super) fn refuse_unsupported(
    k: &mut Keys<'_>,
    spec: &Spec,
    context: usize,
) -> Result<(), Error> {
    for (suffix, neutral) in REFUSED
        .iter()
        .filter(|(suffix, _)| !spec.reads.contains(suffix))
    {
        // a single expert used by every token is the dense feed-forward block
        let counts_one = spec.counts_one_expert && EXPERT_KEYS.contains(suffix);
        let neutral: &[f64] = if counts_one { &[0.0, 1.0] } else { neutral };
        if let Some(v) = k.get(suffix).filter(|v| !is_one_of(v, neutral)) {
            return Err(k.unsupported(suffix, "not implemented", show(&v)));
        }
    }
    warn_of_ignored(k, spec)?;
    // llama.cpp ignores the window in these architectures, and so do we, with a warning
    const WINDOW: &str = "attention.sliding_window";
    if spec.reads.contains(&WINDOW) {
        return Ok(());
    }
    if let Some(window) = k
        .get(WINDOW)
        .and_then(|v| v.as_int())
        .filter(|&w| w > 0 && w < context as i128)
    {
        let key = k.full(WINDOW);
        k.warn(format!(
            "{key} = {window} is not applied: attention sees the whole context, as in llama.cpp"
        ));
    }
    Ok(())
}
