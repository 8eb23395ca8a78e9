//! A vision encoder's weights, bound once: names, shapes and element types are checked here.

use gguf_rs_lite::Gguf;
use octavo_model::graph::{Norm, once};
use octavo_model::hparams::MAX_WIDTH;
use octavo_model::weights::NormWeights;
use octavo_model::{Error, TensorBinder, Tensors, VecId, WeightId};

use super::arch::Spec;
use super::hparams::Hparams;
use super::positions::PositionTable;
use super::step::Step;

/// A matrix, its bias, and the bounds of its inputs and outputs.
#[derive(Clone, Copy, Debug)]
pub(super) struct Affine {
    pub(super) w: WeightId,
    pub(super) bias: Option<VecId>,
    /// Lowest and highest input.
    pub(super) input: Option<[f32; 2]>,
    /// Lowest and highest output.
    pub(super) output: Option<[f32; 2]>,
}

/// A feed-forward block, optionally gated.
#[derive(Clone, Copy, Debug)]
pub(super) struct FeedForward {
    pub(super) gate: Option<Affine>,
    pub(super) up: Affine,
    pub(super) down: Affine,
}

#[derive(Clone, Debug)]
pub(super) struct Block {
    pub(super) attn_norm: NormWeights,
    /// Projections of queries, keys and values.
    pub(super) qkv: [Affine; 3],
    /// Norms of each head's query, key and value.
    pub(super) q_norm: Option<NormWeights>,
    pub(super) k_norm: Option<NormWeights>,
    pub(super) v_norm: Option<NormWeights>,
    pub(super) out: Affine,
    /// Factors on the values of attention's result.
    pub(super) attn_scale: Option<VecId>,
    /// Norm of attention's result.
    pub(super) attn_post_norm: Option<NormWeights>,
    pub(super) ffn_norm: NormWeights,
    pub(super) ffn: FeedForward,
    /// Norm of the feed-forward block's result.
    pub(super) ffn_post_norm: Option<NormWeights>,
    /// Factors on the values of the feed-forward block's result.
    pub(super) ffn_scale: Option<VecId>,
    /// Factor on the block's result.
    pub(super) out_scale: Option<f32>,
    /// Steps from the block's result to rows for a layer of the text model (deepstack).
    pub(super) deepstack: Vec<Step>,
}

#[derive(Clone, Debug)]
pub(super) struct Weights {
    /// Steps from pixels to the first block.
    pub(super) embed: Vec<Step>,
    pub(super) blocks: Vec<Block>,
    /// Steps from the last block to the rows of the text model.
    pub(super) project: Vec<Step>,
    pub(super) positions: Option<PositionTable>,
    /// Row that follows every line of image tokens but the last, of the text model's width.
    pub(super) row_end: Option<Vec<f32>>,
}

/// Binds every tensor of the file, except those of an audio encoder in the same file.
pub(super) fn bind(gguf: &Gguf, h: &Hparams) -> Result<(Weights, Tensors), Error> {
    let spec = h.projector.spec();
    let mut b = Binder {
        gguf,
        tensors: TensorBinder::new(gguf),
        h,
        spec,
        positions: None,
        row_end: None,
    };
    let embed = (spec.embed)(&mut b)?;
    let blocks = (0..h.n_block).map(|l| (spec.block)(&mut b, l));
    let blocks = blocks.collect::<Result<_, _>>()?;
    let weights = Weights {
        embed,
        blocks,
        project: (spec.project)(&mut b)?,
        positions: b.positions,
        row_end: b.row_end,
    };
    let is_audio = |name: &str| name.starts_with("a.") || name.starts_with("mm.a.");
    let tensors = b.tensors.finish(h.projector.name(), is_audio)?;
    Ok((weights, tensors))
}

/// Finds the tensors that a vision encoder's file requires.
pub(super) struct Binder<'a> {
    gguf: &'a Gguf,
    pub(super) tensors: TensorBinder<'a>,
    pub(super) h: &'a Hparams,
    spec: &'static Spec,
    pub(super) positions: Option<PositionTable>,
    pub(super) row_end: Option<Vec<f32>>,
}

impl Binder<'_> {
    /// Binds the kernels of patches.
    pub(super) fn patches(&mut self) -> Result<Step, Error> {
        Ok(Step::Patches(vec![self.kernels("v.patch_embd.weight")?]))
    }

    /// Binds the kernels of patches for the two frames of a video moment.
    pub(super) fn patches_of_frames(&mut self) -> Result<Step, Error> {
        let names = ["v.patch_embd.weight", "v.patch_embd.weight.1"];
        let kernels = names.iter().map(|name| self.kernels(name));
        Ok(Step::Patches(kernels.collect::<Result<_, _>>()?))
    }

    fn kernels(&mut self, name: &str) -> Result<WeightId, Error> {
        let patch = self.h.patch;
        self.tensors
            .kernels(name, &[patch, patch, 3], self.h.n_embd)
    }

    pub(super) fn patch_bias(&mut self, tap: &'static str) -> Result<Step, Error> {
        let bias = self.tensors.vector("v.patch_embd.bias", self.h.n_embd)?;
        Ok(Step::Bias(bias, once(tap)))
    }

    /// Binds the position embeddings as a table of the kind that `of` makes.
    pub(super) fn positions(
        &mut self,
        of: fn(&mut TensorBinder<'_>, &Hparams) -> Result<PositionTable, Error>,
        tap: &'static str,
    ) -> Result<Step, Error> {
        self.positions = Some(of(&mut self.tensors, self.h)?);
        Ok(Step::Positions(once(tap)))
    }

    /// Binds a block: what llama.cpp's vision transformers have in common.
    pub(super) fn block(&mut self, l: usize) -> Result<Block, Error> {
        let n = self.h.n_embd;
        let name = |tensor: &str| format!("v.blk.{l}.{tensor}");
        Ok(Block {
            attn_norm: self.norm(&name("ln1"), n, self.spec.taps.normed)?,
            qkv: self.qkv(l)?,
            q_norm: None,
            k_norm: None,
            v_norm: None,
            out: self.affine(&name("attn_out"), n, self.h.q_width())?,
            attn_scale: None,
            attn_post_norm: None,
            ffn_norm: self.norm(&name("ln2"), n, "ffn_inp_normed")?,
            ffn: self.feed_forward(l)?,
            ffn_post_norm: None,
            ffn_scale: None,
            out_scale: None,
            deepstack: Vec::new(),
        })
    }

    /// Binds Q, K and V from one fused tensor, or from three.
    fn qkv(&mut self, l: usize) -> Result<[Affine; 3], Error> {
        let (n, rows) = (self.h.n_embd, self.h.qkv_rows());
        let name = |tensor: &str| format!("v.blk.{l}.{tensor}");
        if !self.tensors.has(&name("attn_qkv.weight")) {
            return Ok([
                self.affine(&name("attn_q"), rows[0], n)?,
                self.affine(&name("attn_k"), rows[1], n)?,
                self.affine(&name("attn_v"), rows[2], n)?,
            ]);
        }
        let all = self.affine(&name("attn_qkv"), rows.iter().sum(), n)?;
        let w = self.tensors.split_matrix(all.w, rows);
        let biases = all.bias.map(|bias| self.tensors.split_vector(bias, rows));
        let part = |i: usize| Affine {
            w: w[i],
            bias: biases.map(|biases| biases[i]),
            ..all
        };
        Ok([part(0), part(1), part(2)])
    }

    /// Binds a feed-forward block, with a gate if the file has one.
    fn feed_forward(&mut self, l: usize) -> Result<FeedForward, Error> {
        let (n, n_ff) = (self.h.n_embd, self.h.n_ff);
        let name = |tensor: &str| format!("v.blk.{l}.{tensor}");
        let [mut up, mut down] = [name("ffn_up"), name("ffn_down")];
        let is_swapped = |info: &gguf_rs_lite::TensorInfo| info.dims.first() == Some(&(n as u64));
        let second = self.gguf.tensor(&format!("{down}.weight"));
        if self.spec.swaps_feed_forward && second.is_some_and(is_swapped) {
            std::mem::swap(&mut up, &mut down);
        }
        Ok(FeedForward {
            gate: match self.tensors.has(&name("ffn_gate.weight")) {
                true => Some(self.affine(&name("ffn_gate"), n_ff, n)?),
                false => None,
            },
            up: self.affine(&up, n_ff, n)?,
            down: self.affine(&down, n, n_ff)?,
        })
    }

    /// Binds two products with biases, from merged patches to rows of the text model, by way of
    /// `inner` values.
    pub(super) fn two_products(
        &mut self,
        [up, down]: [&str; 2],
        inner: usize,
        layer: Option<usize>,
    ) -> Result<[Step; 3], Error> {
        let up = self.biased(up, inner, self.h.merged())?;
        let down = self.biased(down, self.h.n_projected, inner)?;
        Ok(Step::two_products([up, down], layer))
    }

    /// Binds a matrix as those of blocks: with a bias, and bounds, if they have these.
    pub(super) fn affine(&mut self, name: &str, rows: usize, cols: usize) -> Result<Affine, Error> {
        let w = self.tensors.matrix(&format!("{name}.weight"), rows, cols)?;
        let bias = match self.spec.biases {
            true => Some(self.tensors.vector(&format!("{name}.bias"), rows)?),
            false => None,
        };
        let [input, output] = match self.spec.clamps {
            true => [self.bounds(name, "input")?, self.bounds(name, "output")?],
            false => [None; 2],
        };
        Ok(Affine {
            w,
            bias,
            input,
            output,
        })
    }

    /// Returns the number of rows of a matrix whose width the file alone says.
    pub(super) fn rows_of(&self, name: &str) -> usize {
        let rows = self.gguf.tensor(name).and_then(|info| info.dims.get(1));
        let rows = rows.and_then(|rows| usize::try_from(*rows).ok());
        // binding a matrix without rows says what is wrong with it
        rows.filter(|rows| (1..=MAX_WIDTH).contains(rows))
            .unwrap_or(1)
    }

    /// Binds a matrix with a bias.
    pub(super) fn biased(&mut self, name: &str, rows: usize, cols: usize) -> Result<Affine, Error> {
        let bias = Some(self.tensors.vector(&format!("{name}.bias"), rows)?);
        let w = self.tensors.matrix(&format!("{name}.weight"), rows, cols)?;
        Ok(Affine {
            w,
            bias,
            input: None,
            output: None,
        })
    }

    /// Binds a matrix, with a bias if the file has one.
    pub(super) fn optionally_biased(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Affine, Error> {
        let bias = self
            .tensors
            .optional_vector(&format!("{name}.bias"), rows)?;
        let w = self.tensors.matrix(&format!("{name}.weight"), rows, cols)?;
        Ok(Affine {
            w,
            bias,
            input: None,
            output: None,
        })
    }

    /// Reads the bounds of a matrix's inputs or outputs; none if the file has neither.
    fn bounds(&mut self, name: &str, what: &str) -> Result<Option<[f32; 2]>, Error> {
        let mut bound = |end: &str, without: f32| {
            let id = self
                .tensors
                .optional_vector(&format!("{name}.{what}_{end}"), 1)?;
            Ok(id.map_or(without, |id| self.tensors.values(id)[0]))
        };
        let bounds = [
            bound("min", f32::NEG_INFINITY)?,
            bound("max", f32::INFINITY)?,
        ];
        Ok(Some(bounds).filter(|bounds| bounds.iter().any(|bound| bound.is_finite())))
    }

    /// Binds a norm as those of blocks; layer norms must have biases if blocks have them.
    pub(super) fn norm(
        &mut self,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        self.norm_of(self.spec.norm, name, n, tap)
    }

    /// Binds the norm of each head's query or key.
    pub(super) fn head_norm(&mut self, name: &str) -> Result<NormWeights, Error> {
        let norm = self.norm(name, self.h.head_dim(), "")?;
        // llama.cpp names the result only after it is reshaped
        Ok(NormWeights { tap: None, ..norm })
    }

    fn norm_of(
        &mut self,
        kind: Norm,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        let norm = self.tensors.norm(name, kind, n, tap)?;
        if kind == Norm::Layer && norm.bias.is_none() {
            // reports the missing bias
            self.tensors.vector(&format!("{name}.bias"), n)?;
        }
        Ok(norm)
    }

    /// Binds a layer norm outside of blocks; `behind` is the number in its name.
    pub(super) fn layer_norm_step(
        &mut self,
        name: &str,
        n: usize,
        behind: Option<usize>,
    ) -> Result<Step, Error> {
        self.layer_norm_step_with(name, n, behind, self.h.norm_eps)
    }

    /// As [`Binder::layer_norm_step`], with an epsilon of its own.
    pub(super) fn layer_norm_step_with(
        &mut self,
        name: &str,
        n: usize,
        behind: Option<usize>,
        eps: f32,
    ) -> Result<Step, Error> {
        let norm = self.norm_of(Norm::Layer, name, n, "norm_b")?;
        Ok(Step::Norm(norm, Norm::Layer, eps, behind))
    }

    /// Binds a layer norm outside of blocks, if the file has it; `tap` names its result.
    pub(super) fn optional_layer_norm_step(
        &mut self,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<Option<Step>, Error> {
        if !self.tensors.has(&format!("{name}.weight")) {
            return Ok(None);
        }
        let norm = self.norm_of(Norm::Layer, name, n, tap)?;
        Ok(Some(Step::Norm(norm, Norm::Layer, self.h.norm_eps, None)))
    }

    /// Checks the tensors of a block that is not run, and leaves them out.
    pub(super) fn leave_out_block(&mut self, l: usize) -> Result<(), Error> {
        let mut unused = Binder {
            tensors: TensorBinder::new(self.gguf),
            positions: None,
            row_end: None,
            ..*self
        };
        unused.block(l)?;
        let own = format!("v.blk.{l}.");
        let all = self.gguf.tensors().iter();
        for info in all.filter(|info| info.name.starts_with(&own)) {
            self.tensors.ignore(&info.name);
        }
        Ok(())
    }

    /// Binds an RMS norm outside of blocks; `behind` is the number in its name.
    pub(super) fn rms_norm_step(
        &mut self,
        name: &str,
        n: usize,
        behind: Option<usize>,
    ) -> Result<Step, Error> {
        let norm = self.norm_of(Norm::Rms, name, n, "norm_w")?;
        Ok(Step::Norm(norm, Norm::Rms, self.h.norm_eps, behind))
    }

    /// Binds an RMS norm with a name of its own.
    pub(super) fn named_rms_norm_step(
        &mut self,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<Step, Error> {
        let norm = self.norm_of(Norm::Rms, name, n, tap)?;
        Ok(Step::Norm(norm, Norm::Rms, self.h.norm_eps, None))
    }
}
