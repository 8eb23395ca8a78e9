//! The norm of whole rows.

use super::architecture::NormKind;
use super::hparams::Hparams;
use super::math::{add_bias, layer_norm, rms_norm};
use super::weights::Weights;
use crate::Error;

/// Applies an architecture's norm to rows of `width`, with `{tensor}.weight` and
/// `{tensor}.bias` if it exists.
pub(super) fn whole_norm(
    hp: &Hparams,
    weights: &Weights<'_>,
    tensor: &str,
    width: usize,
    x: &[f64],
) -> Result<Vec<f64>, Error> {
    if hp.architecture.norm == NormKind::BareLayer {
        return Ok(layer_norm(x, width, &vec![1.0; width], hp.norm_eps));
    }
    let weight = weights.required_vector(&format!("{tensor}.weight"), width)?;
    if hp.architecture.norm == NormKind::Rms {
        return Ok(rms_norm(x, &weight, hp.norm_eps));
    }
    let mut h = match hp.architecture.norm {
        NormKind::BiasedRms => rms_norm(x, &weight, hp.norm_eps),
        _ => layer_norm(x, width, &weight, hp.norm_eps),
    };
    if let Some(bias) = weights.vector(&format!("{tensor}.bias"), width)? {
        add_bias(&mut h, &bias);
    }
    Ok(h)
}
