//! Hunyuan: Qwen 3, but queries and keys are normed after RoPE, and a context factor may raise the
//! RoPE base.

use super::{DECODER, Error, Hparams, Keys, QkNorm, Spec, qk_normed_layer, taps};

pub(super) const SPEC: Spec = Spec {
    name: "hunyuan-dense",
    qk_norm: QkNorm::AfterRope,
    qk_normed: [taps::Q_CUR_NORM, taps::K_CUR_NORM],
    counts_one_expert: true,
    reads: &["rope.scaling.alpha"],
    read_hparams,
    layer: qk_normed_layer,
    ..DECODER
};

fn read_hparams(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let alpha = k.not_negative("rope.scaling.alpha", 0.0)?;
    if alpha > 0.0 {
        let rope = &mut h.ropes[0];
        let n_rot = rope.n_rot.value as f32;
        rope.freq_base.value *= alpha.powf(n_rot / (n_rot - 2.0));
    }
    Ok(())
}
