//! Keys that ask for something that is not implemented.

use gguf_rs_lite::Value;

use crate::Error;
use crate::arch::Spec;
use crate::keys::{Keys, float, show};

use super::DEEPSTACK;
use super::rope::SECTIONS;

/// Keys that ask for something that graphs do not do unless their architecture says so
/// ([`Spec::reads`]), with the values that ask for nothing.
const REFUSED: &[(&str, &[f64])] = &[
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("use_parallel_residual", &[0.0]),
    ("attention.causal", &[1.0]),
    ("attention.scale", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.rope_pattern", &[1.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("swiglu_clamp_exp", &[0.0]),
    ("swiglu_clamp_shexp", &[0.0]),
    (DEEPSTACK, &[0.0]),
    (SECTIONS, &[0.0]),
    ("rope.scaling.alpha", &[0.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
];

/// Refuses what the file asks for and nobody would do.
pub(super) fn refuse_unsupported(
    k: &mut Keys<'_>,
    spec: &Spec,
    context: usize,
) -> Result<(), Error> {
    for (suffix, neutral) in REFUSED
        .iter()
        .filter(|(suffix, _)| !spec.reads.contains(suffix))
        .filter(|(suffix, _)| spec.sections.is_none() || *suffix != SECTIONS)
    {
        if let Some(v) = k.get(suffix).filter(|v| !is_one_of(v, neutral)) {
            return Err(k.unsupported(suffix, "not implemented", show(&v)));
        }
    }
    if let Some(act) = k
        .text("hidden_activation")?
        .filter(|a| !["silu", "swiglu", "swish"].contains(a))
    {
        return Err(k.unsupported("hidden_activation", "only silu", act));
    }
    // llama.cpp attends to everything in these architectures whatever the key says, and so do we;
    // the user is told
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

/// Whether a value (or every element of an array) is one of a few numbers; a bool counts as 0 or 1.
pub(super) fn is_one_of(v: &Value<'_>, numbers: &[f64]) -> bool {
    match v {
        Value::Array(a) => a.iter().all(|v| is_one_of(&v, numbers)),
        Value::Bool(b) => numbers.contains(&f64::from(u8::from(*b))),
        v => v
            .as_int()
            .map(|i| i as f64)
            .or(float(v))
            .is_some_and(|x| numbers.contains(&x)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neutral_values() {
        assert!(is_one_of(&Value::U32(0), &[0.0]));
        assert!(!is_one_of(&Value::U32(8), &[0.0]));
        assert!(is_one_of(&Value::Bool(true), &[1.0]));
        assert!(!is_one_of(&Value::F32(f32::NAN), &[0.0]));
        assert!(!is_one_of(&Value::Str(b"0"), &[0.0]));
    }
}
