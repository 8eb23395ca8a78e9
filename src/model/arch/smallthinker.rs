//! SmallThinker: the router reads the layer's input before any norm, experts have a ReLU gate, and
//! only layers with a window have RoPE.

use super::{Binder, DECODER, Error, Feature, Ffn, Hparams, Keys, Layer, Spec};
use super::{pre_norm_layer, taps};
use crate::hparams::{DefaultWidth, ExpertRules, MIXTURE, RouterKeys};
use crate::hparams::{constant_windows, experts, sliding_window_rope_base};
use crate::weights::Experts;

const WINDOW: &str = "attention.sliding_window";
/// Constants of llama.cpp's loader; no keys store them.
const PERIOD: usize = 4;
const SIZE: usize = 4096;

pub(super) const SPEC: Spec = Spec {
    name: "smallthinker",
    full_rotary: true,
    feature: Feature::Relu,
    early_router: true,
    attn_out: None,
    reads: &[WINDOW, "expert_count", "expert_used_count"],
    read_hparams,
    layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let rules = ExpertRules {
        router_keys: RouterKeys::RequiredGating,
        n_ff: DefaultWidth::Required,
        ..MIXTURE
    };
    h.experts = Some(experts(k, h, rules)?);
    if k.count(WINDOW, 0..=i32::MAX as usize, Some(0))?.value == 0 {
        return Ok(());
    }
    constant_windows(k, h, SIZE, PERIOD, true)?;
    sliding_window_rope_base(k, h)?;
    if h.n_layer() != PERIOD {
        h.layers
            .iter_mut()
            .step_by(PERIOD)
            .for_each(|layer| layer.rope = None);
    }
    Ok(())
}

fn layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| {
        Ok(Ffn::Experts(Experts {
            tap: taps::FFN_OUT,
            ..b.experts(l)?
        }))
    })
}
