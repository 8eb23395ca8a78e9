//! Gemma 4: RMS norms before and after everything, a table of positions along each axis, RoPE with
//! a half of each head for either axis, and bounds around products.

use octavo_kernels::Pairing;
use octavo_model::graph::{Norm, once};
use octavo_model::weights::NormWeights;

use super::{Binder, Block, COLUMN, Error, Images, Merge, Positions, Prompt, ROW, Rope, Rotation};
use super::{Hparams, Spec, Step, VIT, frequencies};

/// RoPE base; no key stores it.
const ROPE_BASE: f64 = 100.0;

pub(super) const SPEC: Spec = Spec {
    names: &["gemma4v"],
    images: Images::dynamic(70, 1120),
    prompt: Prompt::Between(["<|image>", "<image|>"]),
    bidirectional,
    merge: Merge {
        default: 3,
        ..VIT.merge
    },
    centred: true,
    norm: Norm::Rms,
    biases: false,
    clamps: true,
    rotation: Rotation::Halves(|head_dim| [COLUMN, ROW].map(|axis| rope(head_dim, axis))),
    scale: |_| 1.0,
    head_multiple: 4,
    embed: |b| {
        Ok(vec![
            b.patches()?,
            b.positions(Positions::of_axes, "pos_embd")?,
        ])
    },
    block,
    project: |b| {
        let n = b.h.n_embd;
        let mut steps = vec![
            Step::Average(None),
            Step::Scale((n as f32).sqrt(), once("pooled")),
        ];
        steps.extend(standardized(b)?);
        steps.extend(projection(b)?);
        Ok(steps)
    },
    ..VIT
};

/// Text models of these widths, E2B and E4B, read images like text: so does llama.cpp, which looks
/// at the width alone.
fn bidirectional(h: &Hparams) -> bool {
    ![1536, 2560].contains(&h.n_projected)
}

fn rope(head_dim: usize, axis: usize) -> Rope {
    Rope {
        pairing: Pairing::Neox,
        frequencies: frequencies(ROPE_BASE, head_dim, 0),
        magnitude: 1.0,
        axes: vec![axis; head_dim / 4],
    }
}

fn block(b: &mut Binder<'_>, l: usize) -> Result<Block, Error> {
    let name = |tensor: &str| format!("v.blk.{l}.{tensor}");
    let (n, head_dim) = (b.h.n_embd, b.h.head_dim());
    let scale = b.tensors.optional_vector(&name("out_scale.weight"), 1)?;
    let ones = b.tensors.made_vector("(no weight)", vec![1.0; head_dim]);
    Ok(Block {
        q_norm: Some(b.head_norm(&name("attn_q_norm"))?),
        k_norm: Some(b.head_norm(&name("attn_k_norm"))?),
        v_norm: Some(NormWeights::plain(ones, "Vcur_normed")),
        attn_post_norm: Some(b.norm(&name("attn_post_norm"), n, "attn_post_normed")?),
        ffn_post_norm: Some(b.norm(&name("ffn_post_norm"), n, "ffn_post_normed")?),
        out_scale: scale.map(|scale| b.tensors.values(scale)[0]),
        ..b.block(l)?
    })
}

/// Binds mean and deviation of rows, both or neither.
fn standardized(b: &mut Binder<'_>) -> Result<Vec<Step>, Error> {
    let n = b.h.n_embd;
    let Some(mean) = b.tensors.optional_vector("v.std_bias", n)? else {
        return Ok(Vec::new());
    };
    let negative = b.tensors.values(mean).iter().map(|x| -x).collect();
    let mean = b.tensors.made_vector("-v.std_bias", negative);
    let scale = b.tensors.vector("v.std_scale", n)?;
    Ok(vec![
        Step::Bias(mean, None),
        Step::MulVector(scale, once("std_scaled")),
    ])
}

/// Binds the norm without weight and the projection.
pub(super) fn projection(b: &mut Binder<'_>) -> Result<Vec<Step>, Error> {
    let (n, eps) = (b.h.n_embd, b.h.norm_eps);
    let ones = b.tensors.made_vector("(no weight)", vec![1.0; n]);
    let norm = NormWeights::plain(ones, "projector_normed");
    let projection = b.affine("mm.input_projection", b.h.n_projected, n)?;
    Ok(vec![
        Step::Norm(norm, Norm::Rms, eps, None),
        Step::Affine(projection, [None; 2]),
    ])
}
