//! Qwen 3 VL and 3.5: layer norms, a table of position embeddings that is stretched over the image,
//! and blocks whose results are projected for the text model's first layers (deepstack).

use octavo_kernels::Pairing;

use super::{Binder, Block, COLUMN, Error, Positions, QWEN, ROW, Rope, Spec, Step, frequencies};

pub(super) const SPEC: Spec = Spec {
    names: &["qwen3vl_merger"],
    read_hparams: |k, h| {
        // a key names these too, but llama.cpp decides by the tensors
        let has = |l: &usize| k.gguf.tensor(&deepstack(*l, "fc1.weight")).is_some();
        h.deepstack = (0..h.n_block).filter(has).collect();
        Ok(())
    },
    embed: |b| {
        Ok(vec![
            b.patches_of_frames()?,
            b.patch_bias("patch_bias")?,
            b.positions(Positions::stretched, "inp_pos_emb")?,
        ])
    },
    block,
    project: |b| {
        let (n, behind) = (b.h.n_embd, b.h.n_block);
        // llama.cpp numbers this norm as if another block followed
        let norm = b.layer_norm_step("v.post_ln", n, Some(behind))?;
        let mut steps = vec![norm, Step::merge()];
        steps.extend(b.two_products(["mm.0", "mm.2"], b.h.merged(), None)?);
        Ok(steps)
    },
    ..QWEN
};

fn deepstack(l: usize, tensor: &str) -> String {
    format!("v.deepstack.{l}.{tensor}")
}

/// Returns the 2D RoPE: the first half of a head's pairs is rotated by the patch's row, the other
/// by its column, both beginning with the highest frequency. No key stores the base.
pub(super) fn rope(head_dim: usize) -> Rope {
    let half = frequencies(10_000.0, head_dim, 0);
    Rope {
        pairing: Pairing::Neox,
        axes: [vec![ROW; half.len()], vec![COLUMN; half.len()]].concat(),
        frequencies: [&half[..], &half].concat(),
        magnitude: 1.0,
    }
}

fn block(b: &mut Binder<'_>, l: usize) -> Result<Block, Error> {
    let mut block = b.block(l)?;
    if b.h.deepstack.contains(&l) {
        // merged before it is normed, unlike the last block's result
        let merged = b.h.merged();
        let norm = b.layer_norm_step(&deepstack(l, "norm"), merged, Some(l))?;
        block.deepstack = vec![Step::merge(), norm];
        let names = [deepstack(l, "fc1"), deepstack(l, "fc2")];
        let products = b.two_products([&names[0], &names[1]], b.h.merged(), Some(l))?;
        block.deepstack.extend(products);
    }
    Ok(block)
}
