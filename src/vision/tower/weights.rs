//! A vision encoder's weights, bound once: names, shapes and element types are checked here.

use gguf_rs_lite::Gguf;
use octavo_model::weights::NormWeights;
use octavo_model::{Error, TensorBinder, Tensors, VecId, WeightId};

use super::hparams::{Hparams, MERGE, Projector};
use super::positions::PositionTable;

/// A matrix and its bias.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    pub(super) w: WeightId,
    pub(super) bias: Option<VecId>,
}

/// A feed-forward block, optionally gated.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedForward {
    pub(super) gate: Option<Affine>,
    pub(super) up: Affine,
    pub(super) down: Affine,
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Block {
    pub(super) attn_norm: NormWeights,
    /// Projections of queries, keys and values.
    pub(super) qkv: [Affine; 3],
    pub(super) out: Affine,
    pub(super) ffn_norm: NormWeights,
    pub(super) ffn: FeedForward,
    /// Deepstack projector to the text model.
    pub(super) deepstack: Option<Projection>,
}

/// Projector from a block's rows to rows of the text model.
#[derive(Clone, Copy, Debug)]
pub(super) struct Projection {
    pub(super) norm: NormWeights,
    pub(super) ffn: FeedForward,
}

#[derive(Clone, Debug)]
pub(super) struct Weights {
    /// Patch embedding kernels of the two frames of a video moment; an image is both frames.
    pub(super) patches: [WeightId; 2],
    pub(super) patch_bias: Option<VecId>,
    pub(super) positions: Option<PositionTable>,
    pub(super) blocks: Vec<Block>,
    pub(super) projection: Projection,
}

/// Binds every tensor of the file to its field, except those of an audio encoder in the same file.
pub(super) fn bind(gguf: &Gguf, h: &Hparams) -> Result<(Weights, Tensors), Error> {
    let mut b = Binder {
        tensors: TensorBinder::new(gguf),
        h,
    };
    let weights = b.all()?;
    let is_audio = |name: &str| name.starts_with("a.") || name.starts_with("mm.a.");
    let tensors = b.tensors.finish(h.projector.name(), is_audio)?;
    Ok((weights, tensors))
}

struct Binder<'a> {
    tensors: TensorBinder<'a>,
    h: &'a Hparams,
}

impl Binder<'_> {
    fn all(&mut self) -> Result<Weights, Error> {
        let h = self.h;
        let names = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
        let kernel = [h.patch, h.patch, 3];
        let patches = [
            self.tensors.kernels(names[0], &kernel, h.n_embd)?,
            self.tensors.kernels(names[1], &kernel, h.n_embd)?,
        ];
        let (mut patch_bias, mut positions) = (None, None);
        if h.projector == Projector::Qwen3Vl {
            patch_bias = Some(self.tensors.vector("v.patch_embd.bias", h.n_embd)?);
            positions = Some(PositionTable::bind(&mut self.tensors, h.n_embd)?);
        }
        let blocks = (0..h.n_block).map(|l| self.block(l));
        let blocks = blocks.collect::<Result<_, _>>()?;
        // llama.cpp numbers this norm as if another block followed
        let norm = self.norm("v.post_ln", h.n_embd, "norm_b")?;
        let projection = Projection {
            norm,
            ffn: self.projector("mm.0", "mm.2")?,
        };
        Ok(Weights {
            patches,
            patch_bias,
            positions,
            blocks,
            projection,
        })
    }

    fn block(&mut self, l: usize) -> Result<Block, Error> {
        let (n, n_ff) = (self.h.n_embd, self.h.n_ff);
        let name = |tensor: &str| format!("v.blk.{l}.{tensor}");
        let gated = self.h.projector == Projector::Qwen25Vl;
        let gate = match gated {
            true => Some(self.affine(&name("ffn_gate"), n_ff, n)?),
            false => None,
        };
        Ok(Block {
            attn_norm: self.norm(&name("ln1"), n, "ln1")?,
            qkv: self.qkv(l)?,
            out: self.affine(&name("attn_out"), n, n)?,
            ffn_norm: self.norm(&name("ln2"), n, "ffn_inp_normed")?,
            ffn: FeedForward {
                gate,
                up: self.affine(&name("ffn_up"), n_ff, n)?,
                down: self.affine(&name("ffn_down"), n, n_ff)?,
            },
            deepstack: match self.h.deepstack.contains(&l) {
                true => Some(self.deepstack(l)?),
                false => None,
            },
        })
    }

    /// Binds Q, K and V from one fused tensor, or from three.
    fn qkv(&mut self, l: usize) -> Result<[Affine; 3], Error> {
        let n = self.h.n_embd;
        let name = |tensor: &str| format!("v.blk.{l}.{tensor}");
        if !self.tensors.has(&name("attn_qkv.weight")) {
            return Ok([
                self.affine(&name("attn_q"), n, n)?,
                self.affine(&name("attn_k"), n, n)?,
                self.affine(&name("attn_v"), n, n)?,
            ]);
        }
        let all = self.affine(&name("attn_qkv"), 3 * n, n)?;
        let w = self.tensors.split_matrix(all.w, [n; 3]);
        let biases = all.bias.map(|bias| self.tensors.split_vector(bias, [n; 3]));
        let part = |i: usize| Affine {
            w: w[i],
            bias: biases.map(|biases| biases[i]),
        };
        Ok([part(0), part(1), part(2)])
    }

    fn deepstack(&mut self, l: usize) -> Result<Projection, Error> {
        let name = |tensor: &str| format!("v.deepstack.{l}.{tensor}");
        Ok(Projection {
            norm: self.norm(&name("norm"), self.merged(), "norm_b")?,
            ffn: self.projector(&name("fc1"), &name("fc2"))?,
        })
    }

    fn projector(&mut self, up: &str, down: &str) -> Result<FeedForward, Error> {
        let merged = self.merged();
        Ok(FeedForward {
            gate: None,
            up: self.affine(up, merged, merged)?,
            down: self.affine(down, self.h.n_projected, merged)?,
        })
    }

    /// Returns the width of the concatenated patches of an image token.
    fn merged(&self) -> usize {
        MERGE * MERGE * self.h.n_embd
    }

    fn affine(&mut self, name: &str, rows: usize, cols: usize) -> Result<Affine, Error> {
        Ok(Affine {
            w: self.tensors.matrix(&format!("{name}.weight"), rows, cols)?,
            bias: Some(self.tensors.vector(&format!("{name}.bias"), rows)?),
        })
    }

    /// Binds a norm; layer norms must have biases.
    fn norm(&mut self, name: &str, n: usize, tap: &'static str) -> Result<NormWeights, Error> {
        let kind = self.h.projector.norm();
        let norm = self.tensors.norm(name, kind, n, tap)?;
        if kind == octavo_model::graph::Norm::Layer && norm.bias.is_none() {
            // reports the missing bias
            self.tensors.vector(&format!("{name}.bias"), n)?;
        }
        // a norm without a bias has the tap name of an unbiased result
        let unbiased = norm.bias.is_none() && tap == "norm_b";
        Ok(NormWeights {
            tap: Some(if unbiased { "norm_w" } else { tap }),
            ..norm
        })
    }
}
