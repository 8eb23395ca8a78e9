//! The `expert_*` keys.

use octavo_kernels::TopGroups;

use crate::error::Error;
use crate::keys::Keys;

use super::{Hparams, MAX_WIDTH};

/// Maximum number of experts in a layer (llama.cpp's limit is of the same size).
const MAX_EXPERTS: usize = 1024;

/// Experts of a model's layers, and their routing.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Experts {
    /// Number of experts.
    pub count: usize,
    /// Experts used per token.
    pub used: usize,
    /// Feed-forward width of each expert.
    pub n_ff: usize,
    /// Total feed-forward width of the shared experts; 0 if there are none.
    pub shared_n_ff: usize,
    /// Function that turns router scores into weights.
    pub gating: Gating,
    /// The weights of a token are normalized to sum 1.
    pub normalized: bool,
    /// Factor on all weights.
    pub scale: f32,
    /// Group-limited routing, if used.
    pub groups: Option<TopGroups>,
    /// Weights multiply the experts' inputs instead of their results, and experts are chosen by
    /// scores before the router's function.
    pub weighs_inputs: bool,
    /// Width that the experts read and yield, where it is another than the embedding's.
    pub latent: Option<usize>,
}

/// Function that turns router scores into weights.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Gating {
    /// Softmax over all experts.
    Softmax,
    /// Sigmoid of each.
    Sigmoid,
    /// Softmax over the chosen experts.
    SoftmaxOfChosen,
}

/// An architecture's defaults for its experts.
#[derive(Clone, Copy)]
pub(crate) struct ExpertRules {
    /// Default, where `expert_gating_func` is not read or not set.
    pub(crate) gating: Gating,
    /// Router keys that are read.
    pub(crate) router_keys: RouterKeys,
    /// Whether weights are normalized; `None`: as `expert_weights_norm` says.
    pub(crate) normalized: Option<bool>,
    /// Feed-forward width without `expert_feed_forward_length`.
    pub(crate) n_ff: DefaultWidth,
    /// Where the width of shared experts comes from.
    pub(crate) shared: SharedWidth,
    /// `moe_latent_size` is read: [`Experts::latent`].
    pub(crate) latent: bool,
    /// See [`Experts::weighs_inputs`].
    pub(crate) weighs_inputs: bool,
}

/// Width of the shared experts.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum SharedWidth {
    /// `expert_shared_feed_forward_length`, or `expert_shared_count` times an expert's width; none
    /// without either key.
    Keyed,
    /// `expert_shared_feed_forward_length`, by default `feed_forward_length`.
    LikeDense,
    /// `expert_shared_feed_forward_length`, by default an expert's width.
    LikeExpert,
    /// `expert_shared_count`, which is required, times `expert_shared_feed_forward_length`, by
    /// default an expert's width.
    Multiplied,
}

/// Router keys llama.cpp reads for an architecture. Most architectures support a single way of
/// routing: there llama.cpp ignores the keys, and so do we.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum RouterKeys {
    /// None.
    Nothing,
    /// `expert_gating_func`.
    Gating,
    /// `expert_weights_scale`.
    Scale,
    /// `expert_gating_func` and `expert_weights_scale`.
    GatingAndScale,
    /// `expert_gating_func`, which is required.
    RequiredGating,
    /// `expert_gating_func`, which is required, and `expert_weights_scale`.
    RequiredGatingAndScale,
}

impl RouterKeys {
    fn requires_gating(self) -> bool {
        use RouterKeys::{RequiredGating, RequiredGatingAndScale};
        matches!(self, RequiredGating | RequiredGatingAndScale)
    }

    fn has_scale(self) -> bool {
        use RouterKeys::{GatingAndScale, RequiredGatingAndScale, Scale};
        matches!(self, Scale | GatingAndScale | RequiredGatingAndScale)
    }
}

/// Feed-forward width of an expert without a key for it.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum DefaultWidth {
    /// `feed_forward_length`, even if `expert_feed_forward_length` is set.
    Whole,
    /// `feed_forward_length` divided by the number of experts used.
    Divided,
    /// None: the key is required.
    Required,
}

/// Most mixtures: softmax over all experts, then normalized to sum 1.
pub(crate) const MIXTURE: ExpertRules = ExpertRules {
    gating: Gating::Softmax,
    router_keys: RouterKeys::Nothing,
    normalized: Some(true),
    n_ff: DefaultWidth::Divided,
    shared: SharedWidth::Keyed,
    latent: false,
    weighs_inputs: false,
};

/// Mixtures whose files must state how the router weighs experts, and how wide they are.
pub(crate) const STATED: ExpertRules = ExpertRules {
    router_keys: RouterKeys::RequiredGatingAndScale,
    normalized: None,
    n_ff: DefaultWidth::Required,
    ..MIXTURE
};

/// Keys [`experts`] reads, among those refused by default.
pub(crate) const EXPERT_KEYS: [&str; 2] = ["expert_count", "expert_used_count"];

/// Reads the experts' keys, if the model has experts: dense models may state a count of 0.
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

/// Reads the experts' keys, and the number of first layers that are dense.
pub(crate) fn experts_after_dense(
    k: &mut Keys<'_>,
    h: &mut Hparams,
    rules: ExpertRules,
) -> Result<(), Error> {
    h.experts = Some(experts(k, h, rules)?);
    h.leading_dense = k
        .count("leading_dense_block_count", 0..=h.n_layer(), Some(0))?
        .value;
    Ok(())
}

/// Reads the experts' keys.
pub(crate) fn experts(k: &mut Keys<'_>, h: &Hparams, rules: ExpertRules) -> Result<Experts, Error> {
    let count = k.count("expert_count", 1..=MAX_EXPERTS, None)?.value;
    let used = k.uniform("expert_used_count", &h.fed_layers(), 1..=count, None)?;
    let n_ff = width(k, h, rules.n_ff, used)?;
    let shared_n_ff = match rules.shared {
        SharedWidth::Keyed => shared_width(k, n_ff)?,
        SharedWidth::LikeDense => always_shared_width(k, h.layers[0].n_ff)?,
        SharedWidth::LikeExpert => always_shared_width(k, n_ff)?,
        SharedWidth::Multiplied => {
            let one = always_shared_width(k, n_ff)?;
            let count = k.count(SHARED_COUNT, 0..=MAX_EXPERTS, None)?.value;
            shared_together(k, count, one)?
        }
    };
    let normalized = match rules.normalized {
        Some(normalized) => normalized,
        None => k.flag("expert_weights_norm", false)?,
    };
    let latent = match rules.latent {
        true => k.count("moe_latent_size", 0..=MAX_WIDTH, Some(0))?.value,
        false => 0,
    };
    Ok(Experts {
        latent: Some(latent).filter(|width| *width > 0),
        count,
        used,
        n_ff,
        shared_n_ff,
        gating: gating(k, rules)?,
        normalized,
        scale: scale(k, rules.router_keys)?,
        groups: groups(k, count, used)?,
        weighs_inputs: rules.weighs_inputs,
    })
}

fn width(
    k: &mut Keys<'_>,
    h: &Hparams,
    default: DefaultWidth,
    used: usize,
) -> Result<usize, Error> {
    let whole = h.layers.iter().map(|layer| layer.n_ff).find(|n| *n > 0);
    let whole = whole.unwrap_or(0);
    let default = match default {
        DefaultWidth::Whole => return Ok(whole),
        DefaultWidth::Divided => Some(whole / used).filter(|n| *n > 0),
        DefaultWidth::Required => None,
    };
    k.uniform(
        "expert_feed_forward_length",
        &h.fed_layers(),
        1..=MAX_WIDTH,
        default,
    )
}

const SHARED_WIDTH: &str = "expert_shared_feed_forward_length";
const SHARED_COUNT: &str = "expert_shared_count";

/// Returns the width of a shared expert that is always there: 0 counts as a missing key.
fn always_shared_width(k: &mut Keys<'_>, default: usize) -> Result<usize, Error> {
    let range = 0..=MAX_WIDTH;
    let default = Some(default).filter(|n| *n > 0);
    match k.count(SHARED_WIDTH, range, default)?.value {
        0 => default.ok_or_else(|| k.missing(k.full(SHARED_WIDTH), "a number above 0")),
        n => Ok(n),
    }
}

/// Reads the shared width: stored as a width, or as a number of experts of the usual width.
fn shared_width(k: &mut Keys<'_>, n_ff: usize) -> Result<usize, Error> {
    if k.get(SHARED_WIDTH).is_some() {
        return Ok(k.count(SHARED_WIDTH, 0..=MAX_WIDTH, None)?.value);
    }
    if k.get(SHARED_COUNT).is_none() {
        return Ok(0);
    }
    let count = k.count(SHARED_COUNT, 0..=MAX_EXPERTS, None)?.value;
    shared_together(k, count, n_ff)
}

/// Returns the width of `count` shared experts of `one` each.
fn shared_together(k: &Keys<'_>, count: usize, one: usize) -> Result<usize, Error> {
    let width = count.checked_mul(one).filter(|width| *width <= MAX_WIDTH);
    width.ok_or_else(|| {
        let expected = format!("shared experts of {one}, at most {MAX_WIDTH} together");
        k.bad(k.full(SHARED_COUNT), expected, count.to_string())
    })
}

fn gating(k: &mut Keys<'_>, rules: ExpertRules) -> Result<Gating, Error> {
    const KEY: &str = "expert_gating_func";
    let default = rules.gating;
    let number: u8 = match default {
        Gating::Softmax => 1,
        Gating::Sigmoid => 2,
        Gating::SoftmaxOfChosen => 3,
    };
    if matches!(rules.router_keys, RouterKeys::Nothing | RouterKeys::Scale) {
        k.warn_of_unheard(KEY, &[0.0, f64::from(number)]);
        return Ok(default);
    }
    // converters write 0 when they do not know the function
    let required = rules.router_keys.requires_gating();
    let absent = Some(number.into()).filter(|_| !required);
    match k.count(KEY, usize::from(required)..=4, absent)?.value {
        0 => Ok(default),
        1 => Ok(Gating::Softmax),
        2 => Ok(Gating::Sigmoid),
        3 => Ok(Gating::SoftmaxOfChosen),
        other => Err(k.unsupported(KEY, "1, 2 or 3", other.to_string())),
    }
}

/// Reads the factor on all weights.
fn scale(k: &mut Keys<'_>, router_keys: RouterKeys) -> Result<f32, Error> {
    const KEY: &str = "expert_weights_scale";
    if !router_keys.has_scale() {
        k.warn_of_unheard(KEY, &[0.0, 1.0]);
        return Ok(1.0);
    }
    k.factor(KEY, Some(1.0))
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

/// Key for the number of multi-token prediction (MTP) layers at the end.
pub(crate) const PREDICTION_LAYERS: &str = "nextn_predict_layers";

/// Reads the number of MTP layers; they are not part of the forward pass.
pub(super) fn prediction_layers(k: &mut Keys<'_>, n_block: usize) -> Result<usize, Error> {
    Ok(k.count(PREDICTION_LAYERS, 0..=n_block - 1, Some(0))?.value)
}
