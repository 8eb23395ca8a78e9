//! The `expert_*` keys.

use octavo_kernels::TopGroups;

use crate::Error;
use crate::keys::Keys;

use super::{Hparams, MAX_WIDTH};

/// Most experts of a layer (llama.cpp's limit is of the same size).
const MAX_EXPERTS: usize = 1024;

/// Every layer's experts, and how tokens are sent to them.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// How many there are.
    pub count: usize,
    /// How many a token is sent to.
    pub used: usize,
    /// Feed-forward width of each.
    pub n_ff: usize,
    /// Feed-forward width of those that see every token, together; 0 if there are none.
    pub shared_n_ff: usize,
    /// How their scores become weights.
    pub gating: Gating,
    /// The weights of a token are divided by their sum.
    pub normalized: bool,
    /// All weights are multiplied with it.
    pub scale: f32,
    /// Which groups of experts are chosen from.
    pub groups: Option<TopGroups>,
}

/// How a router's scores become weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// Softmax over those that were chosen.
    SoftmaxOfChosen,
}

/// What an architecture says of its experts where files do not.
#[derive(Clone, Copy)]
pub(crate) struct ExpertRules {
    /// Unless `expert_gating_func` says another.
    pub(crate) gating: Gating,
    /// Whether weights are divided by their sum; `None`: `expert_weights_norm` says.
    pub(crate) normalized: Option<bool>,
    /// Feed-forward width without `expert_feed_forward_length`.
    pub(crate) n_ff: DefaultWidth,
}

/// Feed-forward width of an expert, if no key has it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultWidth {
    /// `feed_forward_length`, whatever the other key says.
    Whole,
    /// The experts that a token uses are as wide together.
    Divided,
    /// The key must be there.
    Required,
}

/// Most mixtures: softmax over all experts, then divided by the sum.
pub(crate) const MIXTURE: ExpertRules = ExpertRules {
    gating: Gating::Softmax,
    normalized: Some(true),
    n_ff: DefaultWidth::Divided,
};

/// Keys that [`experts`] reads, of those that are refused otherwise.
pub(crate) const EXPERT_KEYS: [&str; 2] = ["expert_count", "expert_used_count"];

/// Reads what there is of experts, if there are any: files of models without them may say 0.
pub(crate) fn experts_if_any(
    k: &mut Keys<'_>,
    h: &Hparams,
    rules: ExpertRules,
) -> Result<Option<Experts>, Error> {
    if k.get("expert_count").is_none() {
        return Ok(None);
    }
    match k.count("expert_count", 0..=MAX_EXPERTS, None)?.value {
        0 => Ok(None),
        _ => experts(k, h, rules).map(Some),
    }
}

/// Reads what there is of experts.
pub(crate) fn experts(k: &mut Keys<'_>, h: &Hparams, rules: ExpertRules) -> Result<Experts, Error> {
    let count = k.count("expert_count", 1..=MAX_EXPERTS, None)?.value;
    let used = k.count("expert_used_count", 1..=count, None)?.value;
    let n_ff = width(k, h, rules.n_ff, used)?;
    let shared_n_ff = shared_width(k, n_ff)?;
    let normalized = match rules.normalized {
        Some(normalized) => normalized,
        None => k.flag("expert_weights_norm", false)?,
    };
    Ok(Experts {
        count,
        used,
        n_ff,
        shared_n_ff,
        gating: gating(k, rules.gating)?,
        normalized,
        scale: k.factor("expert_weights_scale", Some(1.0))?,
        groups: groups(k, count, used)?,
    })
}

fn width(
    k: &mut Keys<'_>,
    h: &Hparams,
    default: DefaultWidth,
    used: usize,
) -> Result<usize, Error> {
    let whole = h.layers[0].n_ff;
    let default = match default {
        DefaultWidth::Whole => return Ok(whole),
        DefaultWidth::Divided => Some(whole / used).filter(|n| *n > 0),
        DefaultWidth::Required => None,
    };
    let range = 1..=MAX_WIDTH;
    Ok(k.count("expert_feed_forward_length", range, default)?.value)
}

/// As a width, or as a number of experts of the usual one.
fn shared_width(k: &mut Keys<'_>, n_ff: usize) -> Result<usize, Error> {
    const WIDTH: &str = "expert_shared_feed_forward_length";
    const COUNT: &str = "expert_shared_count";
    if k.get(WIDTH).is_some() {
        return Ok(k.count(WIDTH, 0..=MAX_WIDTH, None)?.value);
    }
    if k.get(COUNT).is_none() {
        return Ok(0);
    }
    let count = k.count(COUNT, 0..=MAX_EXPERTS, None)?.value;
    let width = Some(count * n_ff).filter(|width| *width <= MAX_WIDTH);
    width.ok_or_else(|| {
        let expected = format!("shared experts of {n_ff}, at most {MAX_WIDTH} together");
        k.bad(k.full(COUNT), expected, count.to_string())
    })
}

fn gating(k: &mut Keys<'_>, default: Gating) -> Result<Gating, Error> {
    const KEY: &str = "expert_gating_func";
    let number = match default {
        Gating::Softmax => 1,
        Gating::Sigmoid => 2,
        Gating::SoftmaxOfChosen => 3,
    };
    // 0 is what converters write that do not know
    match k.count(KEY, 0..=4, Some(number))?.value {
        0 => Ok(default),
        1 => Ok(Gating::Softmax),
        2 => Ok(Gating::Sigmoid),
        3 => Ok(Gating::SoftmaxOfChosen),
        other => Err(k.unsupported(KEY, "1, 2 or 3", other.to_string())),
    }
}

fn groups(k: &mut Keys<'_>, experts: usize, used: usize) -> Result<Option<TopGroups>, Error> {
    const COUNT: &str = "expert_group_count";
    const USED: &str = "expert_group_used_count";
    if k.get(COUNT).is_none() {
        return Ok(None);
    }
    let count = k.count(COUNT, 0..=experts, None)?.value;
    if count <= 1 {
        return Ok(None);
    }
    // a group's score is the sum of its two best
    if !experts.is_multiple_of(count) || experts / count < 2 {
        let expected = format!("groups of at least two of {experts} experts");
        return Err(k.bad(k.full(COUNT), expected, count.to_string()));
    }
    let groups = k.count(USED, 1..=count, None)?.value;
    if groups * (experts / count) < used {
        let expected = format!("enough groups of {} experts for {used}", experts / count);
        return Err(k.bad(k.full(USED), expected, groups.to_string()));
    }
    Ok(Some(TopGroups {
        count,
        used: groups,
    }))
}

/// How many layers at the end are for predicting several tokens at once.
pub(super) const PREDICTION_LAYERS: &str = "nextn_predict_layers";

/// How many these are; they are not part of the forward pass.
pub(super) fn prediction_layers(k: &mut Keys<'_>, n_block: usize) -> Result<usize, Error> {
    Ok(k.count(PREDICTION_LAYERS, 0..=n_block - 1, Some(0))?.value)
}
