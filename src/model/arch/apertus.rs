//! Apertus: norms of heads, and an ungated feed-forward block of xIELU, whose coefficients differ
//! from layer to layer.

use octavo_kernels::Xielu;

use super::{DECODER, Error, Feature, Ffn, Hparams, Keys, Spec, pre_norm_layer, taps};
use super::{with_head_norms, with_output_bias};

pub(super) const SPEC: Spec = Spec {
    name: "apertus",
    full_rotary: true,
    longrope: true,
    feature: Feature::Xielu,
    attn_out: Some(taps::ATTN_OUT),
    ffn_out: taps::FFN_DOWN,
    rotated: [Some(taps::Q_CUR_POS), Some(taps::K_CUR_POS)],
    read_hparams,
    bind_embeddings_and_head: |b| b.bind_embeddings_and_head_with_rope_freqs(),
    layer: |b, l| {
        let layer = pre_norm_layer(b, l, |b| Ok(Ffn::Dense(b.plain_ffn(l)?)))?;
        let layer = with_output_bias(b, l, layer)?;
        with_head_norms(b, l, layer)
    },
    ..DECODER
};

/// Reads the coefficients, whose keys do not begin with the architecture's name.
fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let n_layer = h.n_layer();
    let mut read = |name: &str| {
        let (key, expected) = (format!("xielu.{name}"), "finite numbers");
        let all = k.numbers(key.clone(), n_layer, (expected, f64::MIN))?;
        all.ok_or_else(|| k.missing(key, expected))
    };
    let [alpha_p, alpha_n, beta, eps] = [
        read("alpha_p")?,
        read("alpha_n")?,
        read("beta")?,
        read("eps")?,
    ];
    let softplus = |x: f32| f64::from(x).exp().ln_1p() as f32;
    for (l, layer) in h.layers.iter_mut().enumerate() {
        layer.xielu = Some(Xielu {
            positive: softplus(alpha_p[l]),
            negative: beta[l] + softplus(alpha_n[l]),
            linear: beta[l],
            least: eps[l],
        });
    }
    Ok(())
}
