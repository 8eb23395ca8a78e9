//! Layers with mixtures of experts, and their routing.

use super::super::architecture::{Architecture, Experts, Gating, SharedWidth, WeightsNorm};
use super::keys::Keys;
use crate::Error;

/// Choice and weighting of a layer's experts.
#[derive(Debug)]
pub(in super::super) struct Routing {
    pub(in super::super) count: usize,
    pub(in super::super) gating: Gating,
    /// The weights of the chosen experts are normalized to sum 1.
    pub(in super::super) normed: bool,
    /// Factor on the weights, after that.
    pub(in super::super) scale: f64,
    pub(in super::super) groups: Option<Groups>,
    /// Width that experts read and yield, if it is another than the stream's.
    pub(in super::super) latent: Option<usize>,
    /// Logits choose experts, and weights multiply their inputs.
    pub(in super::super) weighs_inputs: bool,
    /// A bias is added to the scores experts are chosen by.
    pub(in super::super) selection_bias: bool,
}

/// Group-limited routing: experts come in groups of equal size, and only the best groups are used.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Groups {
    pub(in super::super) count: usize,
    pub(in super::super) used: usize,
}

/// The experts of a layer.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct LayerExperts {
    /// Experts used per token.
    pub(in super::super) used: usize,
    /// Width of one expert.
    pub(in super::super) n_ff: usize,
    /// Width of the shared expert, if there is one.
    pub(in super::super) n_ff_shared: Option<usize>,
}

/// Reads the routing, if the file has experts, and the experts of each layer.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_ff: &[usize],
) -> Result<(Option<Routing>, Vec<Option<LayerExperts>>), Error> {
    let n_layer = n_ff.len();
    let count = match architecture.experts {
        Some(experts) if experts.required => keys.count("expert_count")?,
        Some(_) => keys.integer("expert_count")?.unwrap_or(0),
        None => 0,
    };
    let (Some(facts), true) = (architecture.experts, count > 0) else {
        return Ok((None, vec![None; n_layer]));
    };
    let is_fed = |il: usize| !architecture.one_of_both || n_ff[il] > 0;
    let used = match architecture.one_of_both {
        true => keys
            .per_layer_from(0, "expert_used_count", n_layer)?
            .ok_or_else(|| keys.missing("expert_used_count"))?,
        false => keys.required_per_layer("expert_used_count", n_layer)?,
    };
    if let Some(&used) = used.iter().find(|&&used| used > count) {
        let expected = format!("at most the {count} experts there are");
        return Err(keys.bad("expert_used_count", expected, used));
    }
    let n_ff_expert = match facts.dense_width {
        true => n_ff.to_vec(),
        false => read_widths(keys, n_ff, &used)?,
    };
    let first = keys.integer("leading_dense_block_count")?.unwrap_or(0);
    let step = keys
        .optional_count("interleave_moe_layer_step")?
        .unwrap_or(1);
    let mut layers = vec![None; n_layer];
    let is_routed = |il: usize| {
        let router = format!("blk.{il}.ffn_gate_inp.weight");
        !facts.where_routed || keys.gguf.tensor(&router).is_some()
    };
    let has = |il: &usize| (il + 1).is_multiple_of(step) && is_fed(*il) && is_routed(*il);
    for il in (first..n_layer).filter(has) {
        layers[il] = Some(LayerExperts {
            used: used[il],
            n_ff: n_ff_expert[il],
            n_ff_shared: read_shared_width(keys, &facts, n_ff[il], n_ff_expert[il])?,
        });
    }
    let routing = Routing {
        count,
        gating: read_gating(keys, &facts)?,
        normed: match facts.weights_norm {
            WeightsNorm::Always => true,
            WeightsNorm::Never => false,
            WeightsNorm::Keyed => keys.flag("expert_weights_norm")?.unwrap_or(false),
        },
        scale: match facts.keyed_scale {
            true => keys.factor("expert_weights_scale")?.unwrap_or(1.0),
            false => 1.0,
        },
        groups: read_groups(keys, count)?,
        latent: match facts.latent {
            true => keys.integer("moe_latent_size")?.filter(|&size| size > 0),
            false => None,
        },
        weighs_inputs: facts.weighs_inputs,
        selection_bias: facts.selection_bias,
    };
    Ok((Some(routing), layers))
}

/// Reads the width of an expert in each layer, by default that of a dense block divided by the
/// number of chosen experts.
fn read_widths(keys: &Keys<'_>, n_ff: &[usize], used: &[usize]) -> Result<Vec<usize>, Error> {
    let least = usize::from(!n_ff.contains(&0));
    let key = "expert_feed_forward_length";
    if let Some(widths) = keys.per_layer_from(least, key, n_ff.len())? {
        return Ok(widths);
    }
    let shares = n_ff
        .iter()
        .zip(used)
        .map(|(n_ff, used)| match n_ff / (*used).max(1) {
            0 if *n_ff == 0 => Ok(0),
            0 => {
                let expected = format!("at least the {used} experts used");
                Err(keys.bad("feed_forward_length", expected, n_ff))
            }
            share => Ok(share),
        });
    shares.collect()
}

fn read_shared_width(
    keys: &Keys<'_>,
    facts: &Experts,
    n_ff: usize,
    n_ff_expert: usize,
) -> Result<Option<usize>, Error> {
    let counted = || Ok::<_, Error>(keys.integer("expert_shared_count")?.unwrap_or(0));
    let keyed = keys.integer("expert_shared_feed_forward_length")?;
    let keyed = keyed.filter(|&width| width > 0);
    let width = match (facts.shared_width, keyed) {
        (SharedWidth::TimesCount, keyed) => counted()?.saturating_mul(keyed.unwrap_or(n_ff_expert)),
        (_, Some(width)) => width,
        (SharedWidth::Counted, None) => counted()?.saturating_mul(n_ff_expert),
        (SharedWidth::Dense, None) => n_ff,
        (SharedWidth::Expert, None) => n_ff_expert,
    };
    Ok(Some(width).filter(|&width| width > 0))
}

fn read_gating(keys: &Keys<'_>, facts: &Experts) -> Result<Gating, Error> {
    const KEY: &str = "expert_gating_func";
    let keyed = match facts.keyed_gating {
        true => keys.integer(KEY)?,
        false => None,
    };
    match keyed {
        None | Some(0) => Ok(facts.gating),
        Some(1) => Ok(Gating::Softmax),
        Some(2) => Ok(Gating::Sigmoid),
        Some(3) => Ok(Gating::SoftmaxOfChosen),
        Some(other) => Err(keys.bad(KEY, "0 to 3", other)),
    }
}

fn read_groups(keys: &Keys<'_>, n_expert: usize) -> Result<Option<Groups>, Error> {
    let count = keys.integer("expert_group_count")?.unwrap_or(0);
    if count <= 1 {
        return Ok(None);
    }
    if !n_expert.is_multiple_of(count) {
        let expected = format!("a divisor of the {n_expert} experts");
        return Err(keys.bad("expert_group_count", expected, count));
    }
    let used = keys.count("expert_group_used_count")?;
    if used > count {
        let expected = format!("at most the {count} groups there are");
        return Err(keys.bad("expert_group_used_count", expected, used));
    }
    Ok(Some(Groups { count, used }))
}
