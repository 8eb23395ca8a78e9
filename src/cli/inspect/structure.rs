//! Structure of a model, for people: its hyperparameters, and its tensors if they bind.

use std::fmt::{Result, Write};

use octavo_analysis::facts::Facts;
use octavo_model::{
    ExpertStructure, Hparams, LatentHparams, LayerHparams, RecurrentStructure, Structure,
};

use super::super::wording::size;

/// Writes the section.
pub(super) fn write(out: &mut String, report: &Facts<'_>, h: &Hparams) -> Result {
    let bound = report.model.as_ref().map(octavo_model::Model::structure);
    writeln!(out, "\nStructure")?;
    line(out, "model", &model(h, bound.as_ref()))?;
    let attends = h.layers.iter().any(LayerHparams::attends);
    if attends {
        line(out, "attention", &attention(h, bound.as_ref()))?;
    }
    if let Some(recurrent) = bound.as_ref().and_then(|s| s.recurrent.as_ref()) {
        line(out, "recurrence", &recurrence(recurrent, h.n_layer()))?;
    }
    if let Some(text) = bound.as_ref().and_then(|s| windows(h, s)) {
        line(out, "windows", &text)?;
    }
    if attends {
        line(out, "rope", &rope(report, h, bound.as_ref()))?;
    }
    let layers = h.n_layer();
    if let Some(experts) = bound.as_ref().and_then(|s| s.experts.as_ref()) {
        let activation = bound.as_ref().map_or("", |s| s.activation);
        line(out, "experts", &mixture(experts, activation, layers))?;
    }
    line(out, "norm", &norm(h, bound.as_ref()))?;
    let tied = report.gguf.tensor("output.weight").is_none();
    let output = match h.is_causal() {
        true => output(tied, bound.as_ref()),
        false => rows(h, bound.as_ref()),
    };
    line(out, "output", &output)?;
    let Some(s) = &bound else {
        return Ok(());
    };
    let factors = factors(s);
    if !factors.is_empty() {
        line(out, "factors", &factors)?;
    }
    line(out, "weights", &weights(s))
}

fn line(out: &mut String, name: &str, text: &str) -> Result {
    writeln!(out, "  {name:<10} {text}")
}

/// Formats a number of every layer: one number if all are equal, else the minimum and the maximum.
fn range(h: &Hparams, of: fn(&LayerHparams) -> usize) -> String {
    range_of(h.layers.iter().map(of))
}

/// Formats a number of every layer with attention, like [`range`].
fn attending(h: &Hparams, of: fn(&LayerHparams) -> usize) -> String {
    range_of(h.layers.iter().filter(|layer| layer.attends()).map(of))
}

fn range_of(numbers: impl Iterator<Item = usize> + Clone) -> String {
    let all = || numbers.clone();
    match (all().min().unwrap_or(0), all().max().unwrap_or(0)) {
        (least, greatest) if least == greatest => least.to_string(),
        (least, greatest) => format!("{least} to {greatest}"),
    }
}

/// Describes some of `n` layers briefly: by their period, or as ranges.
pub(super) fn layers(some: &[usize], n: usize) -> String {
    let every = |period: usize| (period - 1..n).step_by(period);
    let ordinal = |period: usize| match period {
        2 => "other".to_owned(),
        3 => "3rd".to_owned(),
        n => format!("{n}th"),
    };
    let is = |l: &usize| some.binary_search(l).is_ok();
    if some.len() == n {
        return format!("all {n} layers");
    }
    for period in 2..n {
        if every(period).eq(some.iter().copied()) {
            return format!("every {} layer from {}", ordinal(period), period - 1);
        }
        if (0..n).filter(|l| !is(l)).eq(every(period)) {
            return match period {
                2 => "every other layer from 0".to_owned(),
                _ => format!(
                    "all layers but every {} from {}",
                    ordinal(period),
                    period - 1
                ),
            };
        }
    }
    let mut ranges: Vec<(usize, usize)> = Vec::new();
    for &l in some {
        match ranges.last_mut() {
            Some((_, last)) if *last + 1 == l => *last = l,
            _ => ranges.push((l, l)),
        }
    }
    let shown = ranges.iter().map(|&(first, last)| match first == last {
        true => first.to_string(),
        false => format!("{first} to {last}"),
    });
    let plural = if some.len() == 1 { "layer" } else { "layers" };
    format!("{plural} {}", shown.collect::<Vec<_>>().join(", "))
}

fn model(h: &Hparams, s: Option<&Structure>) -> String {
    let mut text = format!(
        "{}, {} layers, width {}",
        h.arch.name(),
        h.n_layer(),
        h.n_embd()
    );
    let width = range(h, |layer| layer.n_ff);
    match s {
        None => text += &format!(", feed-forward {width}"),
        // in this case no layer has the feed-forward width of the file
        Some(s) if s.dense_layers.is_empty() => {
            if s.experts.is_none() {
                text += ", no feed-forward blocks";
            }
        }
        Some(s) => {
            let gate = if s.gated { "gated by " } else { "" };
            let fused = if s.fused_gate { ", fused" } else { "" };
            text += &format!(", feed-forward {width} ({gate}{}{fused})", s.activation);
            if s.experts.is_some() {
                text += &format!(" in {}", layers(&s.dense_layers, s.layers));
            }
            if s.parallel {
                text += " beside attention";
            }
        }
    }
    if h.n_embd_per_layer > 0 {
        text += &format!(", {} of each token for every layer", h.n_embd_per_layer);
    }
    let (vocabulary, context) = (h.n_vocab(), h.n_ctx_train());
    text + &format!(", vocabulary {vocabulary}, trained context {context}")
}

fn attention(h: &Hparams, s: Option<&Structure>) -> String {
    let heads = attending(h, |layer| layer.n_head);
    let heads_kv = attending(h, |layer| layer.n_head_kv);
    let head_dim = attending(h, |layer| layer.head_dim);
    let sharing = match attending(h, |layer| layer.n_head / layer.n_head_kv).as_str() {
        "1" => "MHA".to_owned(),
        n if heads_kv == "1" => format!("MQA: all {n} query heads share one KV head"),
        n => format!("GQA: {n} query heads per KV head"),
    };
    let mut text = match h.latent {
        None => format!("heads {heads}/{heads_kv} ({sharing}), head_dim {head_dim}"),
        Some(latent) => self::latent(&heads, &latent),
    };
    if let Some(s) = s.filter(|s| !s.layers_without_keys.is_empty()) {
        let some = layers(&s.layers_without_keys, s.layers);
        text += &format!(", {some} read earlier keys and values");
    }
    let Some(s) = s else {
        return text;
    };
    let some: Vec<usize> = (0..s.layers).filter(|l| h.layers[*l].attends()).collect();
    if some.len() < s.layers {
        text += &format!(", in {}", layers(&some, s.layers));
    }
    if s.gated_attention {
        text += ", behind a gate";
    }
    if !s.causal {
        text += ", not causal: tokens see all of their text";
    }
    text += match (s.qk_norm_of, s.qk_norm_after_rope) {
        (None, _) => ", q/k norm absent",
        (Some("row"), _) => ", q/k norm present (of whole rows)",
        (Some(_), false) => ", q/k norm present (of each head)",
        (Some(_), true) => ", q/k norm present (of each head, after turning)",
    };
    text += if s.qkv_bias {
        ", biases present"
    } else {
        ", biases absent"
    };
    if s.fused_qkv {
        text += ", Q, K and V fused";
    }
    let first = h.layers.iter().find(|layer| layer.attends());
    let usual = first.map_or(1.0, |layer| 1.0 / (layer.head_dim as f32).sqrt());
    if s.score_scale != usual {
        text += &format!(", scores x {}", s.score_scale);
    }
    if let Some(cap) = s.score_cap {
        text += &format!(", soft cap {cap} on scores");
    }
    if h.temperature.is_some() {
        text += ", queries scaled by position";
    }
    if s.sinks {
        text += ", a sink for each head";
    }
    text
}

fn latent(heads: &str, latent: &LatentHparams) -> String {
    let LatentHparams {
        rank,
        rotated,
        value,
        ..
    } = *latent;
    let form = match latent.absorbed {
        true => "read by all heads as they are",
        false => "from which each head's are made",
    };
    let query = latent.query();
    let mut text = format!(
        "heads {heads}, queries {query}, values {value}; keys and values a latent row of {rank}, \
         {form}, and {rotated} rotated"
    );
    if let Some(rank) = latent.query_rank {
        text += &format!("; queries from a row of {rank}");
    }
    text
}

fn windows(h: &Hparams, s: &Structure) -> Option<String> {
    let windows = s.windows.as_ref()?;
    let size = match s.causal {
        true => format!("the latest {} positions", windows.size),
        false => format!("{} positions on either side", windows.size / 2),
    };
    let mut text = format!("{size} in {}", layers(&windows.layers, s.layers));
    // the line of the rotary embedding has the other values
    let of = |rope: usize| (h.ropes[rope].freq_base.value, h.ropes[rope].scaling.value);
    if let Some(rope) = windows.rope.filter(|rope| of(*rope) != of(0)) {
        let rope = &h.ropes[rope];
        let scaling = rope.scaling.value.name();
        text += &format!(", freq_base {}, scaling {scaling}", rope.freq_base.value);
    }
    Some(text)
}

fn rope(report: &Facts<'_>, h: &Hparams, s: Option<&Structure>) -> String {
    if s.is_some_and(|s| s.embedded_positions) {
        return "none: positions are embedded".to_owned();
    }
    if s.is_some_and(|s| s.unturned_layers.len() == s.layers) {
        return "none: queries and keys are not rotated".to_owned();
    }
    let rope = &h.ropes[0];
    let mut text = format!(
        "freq_base {}, dimensions {} of {}, pairing {}, scaling {}",
        rope.freq_base.value,
        rope.n_rot.value,
        attending(h, |layer| layer.head_dim),
        rope.pairing.name(),
        rope.scaling.value.name()
    );
    if rope.factor.value != 1.0 {
        let (factor, original) = (rope.factor.value, rope.original_context.value);
        text += &format!(" x {factor} from {original}");
    }
    let has = |name: &str| report.gguf.tensor(name).is_some();
    text += match (has("rope_freqs.weight"), has("rope_factors_long.weight")) {
        (true, _) => ", frequency factors present",
        (false, true) => ", frequency factors by the context's length",
        (false, false) => ", frequency factors absent",
    };
    match s.filter(|s| !s.unturned_layers.is_empty()) {
        Some(s) => text + &format!(", not in {}", layers(&s.unturned_layers, s.layers)),
        None => text,
    }
}

fn recurrence(r: &RecurrentStructure, n_layer: usize) -> String {
    let mut text = r.kind.to_owned();
    if r.heads > 1 {
        text += &format!(
            ", {} heads of {} values, {} of keys of {}",
            r.heads, r.value_dim, r.key_heads, r.key_dim
        );
    }
    let (kernel, state) = (r.kernel, size(r.state_bytes));
    text += &format!(", convolution of {kernel} tokens, state {state} a sequence");
    text + &format!(", in {}", layers(&r.layers, n_layer))
}

fn mixture(e: &ExpertStructure, activation: &str, n_layer: usize) -> String {
    let mut text = format!(
        "{} of width {} (gated by {activation}), {} for a token",
        e.count, e.width, e.used
    );
    if let Some(groups) = e.groups {
        text += &format!(" from {} of {} groups", groups.used, groups.count);
    }
    if e.shared_width > 0 {
        let gate = if e.shared_gate { " behind a gate" } else { "" };
        text += &format!(", shared width {}{gate}", e.shared_width);
    }
    text += &format!(", gating {}", e.gating.name());
    if e.selection_bias {
        text += " with a selection bias";
    }
    if e.normalized {
        text += ", weights normalized";
    }
    if e.scale != 1.0 {
        text += &format!(", weights x {}", e.scale);
    }
    text + &format!(", in {}", layers(&e.layers, n_layer))
}

fn norm(h: &Hparams, s: Option<&Structure>) -> String {
    let text = format!("{}, eps {:e}", h.norm_name(), h.norm_eps());
    let place = s.map_or("", |s| match (s.norm_before, s.norm_after) {
        (_, true) if s.normed_sums => ", of the sums after blocks",
        (true, false) => ", before blocks",
        (false, true) => ", after blocks",
        (true, true) => ", before and after blocks",
        (false, false) => "",
    });
    text + place
}

fn output(tied: bool, s: Option<&Structure>) -> String {
    let mut text = match tied {
        true => "tied to the embedding",
        false => "own matrix",
    }
    .to_owned();
    let Some(s) = s else {
        return text;
    };
    if s.output_bias {
        text += ", bias";
    }
    match s.logit_cap {
        Some(cap) => text + &format!(", soft cap {cap} on logits"),
        None => text,
    }
}

/// Describes the output of a model without logits.
fn rows(h: &Hparams, s: Option<&Structure>) -> String {
    let mut text = format!("no logits: a row of {} for each token", h.n_embd());
    if let Some(width) = s.and_then(|s| s.dense_width) {
        text += &format!(", after products through {width}");
    }
    match h.pooling {
        Some(pooling) => text + &format!(", pooling {}", pooling.name()),
        None => text,
    }
}

/// Lists the factors of activations that are not 1.
fn factors(s: &Structure) -> String {
    let all = [
        ("embeddings", s.embedding_factor),
        ("what blocks add", s.residual_factor),
        ("what attention adds", s.attention_factor),
        ("logits", s.logit_factor),
    ];
    let used = all.iter().filter(|(_, factor)| *factor != 1.0);
    let shown = used.map(|(what, factor)| format!("{what} x {factor}"));
    shown.collect::<Vec<_>>().join(", ")
}

fn weights(s: &Structure) -> String {
    format!(
        "{} parameters, of which a token uses {} ({} to read)",
        count(s.parameters),
        count(s.active_parameters),
        size(s.active_bytes)
    )
}

/// Formats a large number with three digits: `30.5 B`.
fn count(n: u64) -> String {
    let units = [(1e9, "B"), (1e6, "M"), (1e3, "k")];
    let unit = units.iter().find(|(size, _)| n as f64 >= *size);
    match unit {
        Some((size, name)) => format!("{:.1} {name}", n as f64 / size),
        None => n.to_string(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn layers_are_told_by_their_period_or_as_ranges() {
        let every = |period: usize| (period - 1..12).step_by(period).collect::<Vec<_>>();
        let others = |some: &[usize]| (0..12).filter(|l| !some.contains(l)).collect::<Vec<_>>();
        assert_eq!(layers(&every(1), 12), "all 12 layers");
        assert_eq!(layers(&every(4), 12), "every 4th layer from 3");
        assert_eq!(
            layers(&others(&every(6)), 12),
            "all layers but every 6th from 5"
        );
        assert_eq!(layers(&others(&every(2)), 12), "every other layer from 0");
        assert_eq!(layers(&[0, 1, 2, 7], 12), "layers 0 to 2, 7");
        assert_eq!(layers(&[4], 12), "layer 4");
    }

    #[test]
    fn large_numbers_have_few_digits() {
        assert_eq!(count(999), "999");
        assert_eq!(count(30_532_122_624), "30.5 B");
        assert_eq!(count(596_049_920), "596.0 M");
    }
}
