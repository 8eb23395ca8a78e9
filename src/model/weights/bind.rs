//! Finds each weight of a model in its file, once, and refuses what is missing, misshapen or left
//! over.

use std::collections::HashMap;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

use super::{
    DenseAndExperts, ExpertBank, Experts, FeedForward, Layer, NormWeights, PerLayer,
    PerLayerInputs, RopeDivisors, VecId, Vector, WeightId, WeightRef, Weights,
};
use crate::Error;
use crate::arch::Norm;
use crate::hparams::Hparams;
use crate::taps;

/// What surrounds the layers.
pub(crate) struct Ends {
    pub(crate) token_embd: WeightId,
    pub(crate) output_norm: NormWeights,
    pub(crate) output: WeightId,
    pub(crate) output_bias: Option<VecId>,
    pub(crate) rope_divisors: RopeDivisors,
    pub(crate) per_layer_inputs: Option<PerLayerInputs>,
}

/// A layer's query, key and value projections, separate or cut out of one fused tensor.
pub(crate) struct Qkv {
    pub(crate) w: [WeightId; 3],
    pub(crate) b: [Option<VecId>; 3],
}

/// Looks tensors up by name, checks them, and remembers which were used.
pub(crate) struct Binder<'a> {
    gguf: &'a Gguf,
    pub(crate) h: &'a Hparams,
    index: HashMap<&'a str, usize>,
    used: Vec<bool>,
    matrices: Vec<WeightRef>,
    vectors: Vec<Vector>,
}

impl<'a> Binder<'a> {
    fn new(gguf: &'a Gguf, h: &'a Hparams) -> Binder<'a> {
        let index = gguf
            .tensors()
            .iter()
            .enumerate()
            .map(|(i, t)| (t.name.as_str(), i))
            .collect();
        let used = vec![false; gguf.tensors().len()];
        Binder {
            gguf,
            h,
            index,
            used,
            matrices: Vec::new(),
            vectors: Vec::new(),
        }
    }

    fn file(&self) -> String {
        self.gguf.name().to_owned()
    }

    /// The tensor of this name, its shape checked and marked as used.
    fn take(
        &mut self,
        name: &str,
        shape: &[usize],
    ) -> Result<Option<(usize, &'a TensorInfo)>, Error> {
        let Some(&i) = self.index.get(name) else {
            return Ok(None);
        };
        let info = &self.gguf.tensors()[i];
        let padded = |n: usize| shape.get(n).map_or(1, |&d| d as u64);
        let n_dims = info.dims.len().max(shape.len());
        if (0..n_dims).any(|n| info.dims.get(n).copied().unwrap_or(1) != padded(n)) {
            let (expected, got) = (show_shape(shape), show_shape(&info.dims));
            return Err(Error::TensorShape {
                file: self.file(),
                tensor: name.to_owned(),
                expected,
                got,
            });
        }
        self.used[i] = true;
        Ok(Some((i, info)))
    }

    fn missing(&self, name: &str, shape: &[usize]) -> Error {
        Error::MissingTensor {
            file: self.file(),
            tensor: name.to_owned(),
            expected: show_shape(shape),
        }
    }

    fn wrong_type(&self, info: &TensorInfo, expected: &'static str) -> Error {
        Error::TensorType {
            file: self.file(),
            tensor: info.name.clone(),
            expected,
            got: info.ty.name(),
        }
    }

    /// A matrix, or `None` if the file lacks it.
    pub(crate) fn optional_matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<Option<WeightId>, Error> {
        self.matrix_of(name, &[cols, rows])
    }

    /// A tensor of this shape as a matrix: all dimensions but the first are rows.
    fn matrix_of(&mut self, name: &str, shape: &[usize]) -> Result<Option<WeightId>, Error> {
        let Some((tensor, info)) = self.take(name, shape)? else {
            return Ok(None);
        };
        if !is_matrix_type(info.ty) {
            return Err(self.wrong_type(info, "F32, F16, BF16 or a quantized weight type"));
        }
        self.matrices.push(WeightRef {
            name: name.to_owned(),
            tensor,
            ty: info.ty,
            rows: shape[1..].iter().product::<usize>() as u64,
            cols: shape[0] as u64,
            row_start: 0,
        });
        Ok(Some(WeightId(self.matrices.len() as u32 - 1)))
    }

    /// A matrix that must be there.
    pub(crate) fn matrix(
        &mut self,
        name: &str,
        rows: usize,
        cols: usize,
    ) -> Result<WeightId, Error> {
        self.optional_matrix(name, rows, cols)?
            .ok_or_else(|| self.missing(name, &[cols, rows]))
    }

    /// A vector, or `None` if the file lacks it.
    pub(crate) fn optional_vector(&mut self, name: &str, n: usize) -> Result<Option<VecId>, Error> {
        match self.take(name, &[n])? {
            Some((_, info)) => self.vector_of(name, info).map(Some),
            None => Ok(None),
        }
    }

    /// All values of a tensor.
    fn vector_of(&mut self, name: &str, info: &TensorInfo) -> Result<VecId, Error> {
        // llama.cpp multiplies and adds f32 vectors only; a file with others runs nowhere
        if info.ty != TensorType::F32 {
            return Err(self.wrong_type(info, "F32"));
        }
        let bytes = self.gguf.data(info).chunks_exact(4);
        let data: Vec<f32> = bytes
            .map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]]))
            .collect();
        if let Some(index) = data.iter().position(|x| !x.is_finite()) {
            return Err(self.bad_element(name, index, "a finite number", data[index]));
        }
        self.vectors.push(Vector {
            name: name.to_owned(),
            data,
            is_made: false,
        });
        Ok(VecId(self.vectors.len() as u32 - 1))
    }

    /// A vector that follows from others, or from the architecture.
    pub(crate) fn made_vector(&mut self, name: &str, data: Vec<f32>) -> VecId {
        self.vectors.push(Vector {
            name: name.to_owned(),
            data,
            is_made: true,
        });
        VecId(self.vectors.len() as u32 - 1)
    }

    /// A vector's values.
    pub(crate) fn values(&self, id: VecId) -> &[f32] {
        &self.vectors[id.0 as usize].data
    }

    /// A vector that must be there.
    pub(crate) fn vector(&mut self, name: &str, n: usize) -> Result<VecId, Error> {
        self.optional_vector(name, n)?
            .ok_or_else(|| self.missing(name, &[n]))
    }

    fn bad_element(&self, name: &str, index: usize, expected: &'static str, got: f32) -> Error {
        Error::TensorValue {
            file: self.file(),
            tensor: name.to_owned(),
            index,
            expected,
            got,
        }
    }

    /// Token embedding, final norm and output matrix, which is the embedding if the file has no
    /// other.
    pub(crate) fn ends(&mut self) -> Result<Ends, Error> {
        let (n_embd, n_vocab) = (self.h.n_embd(), self.h.n_vocab());
        let token_embd = self.matrix("token_embd.weight", n_vocab, n_embd)?;
        let output_norm = self.norm("output_norm", n_embd, taps::RESULT_NORM)?;
        let output = self
            .optional_matrix("output.weight", n_vocab, n_embd)?
            .unwrap_or(token_embd);
        Ok(Ends {
            token_embd,
            output_norm,
            output,
            output_bias: None,
            rope_divisors: RopeDivisors::default(),
            per_layer_inputs: None,
        })
    }

    /// The same with `rope_freqs.weight`, if the file has it.
    pub(crate) fn ends_with_rope_freqs(&mut self) -> Result<Ends, Error> {
        let all = self.rope_divisors("rope_freqs.weight")?;
        let rope_divisors = RopeDivisors {
            all,
            ..RopeDivisors::default()
        };
        Ok(Ends {
            rope_divisors,
            ..self.ends()?
        })
    }

    /// The same, and with what every layer gets of the token beside its input, if it gets something.
    pub(crate) fn ends_with_per_layer_inputs(&mut self) -> Result<Ends, Error> {
        let ends = self.ends_with_rope_freqs()?;
        let (width, n_embd) = (self.h.n_embd_per_layer, self.h.n_embd());
        if width == 0 {
            return Ok(ends);
        }
        let all = width * self.h.n_layer();
        Ok(Ends {
            per_layer_inputs: Some(PerLayerInputs {
                table: self.matrix("per_layer_token_embd.weight", self.h.n_vocab(), all)?,
                projection: self.matrix("per_layer_model_proj.weight", all, n_embd)?,
                norm: self.norm("per_layer_proj_norm", width, taps::PER_LAYER_PROJ)?,
            }),
            ..ends
        })
    }

    /// What a layer makes of its part of that.
    pub(crate) fn per_layer(&mut self, l: usize) -> Result<Option<PerLayer>, Error> {
        let (width, n_embd) = (self.h.n_embd_per_layer, self.h.n_embd());
        if width == 0 {
            return Ok(None);
        }
        Ok(Some(PerLayer {
            gate: self.matrix(&blk(l, "inp_gate.weight"), width, n_embd)?,
            projection: self.matrix(&blk(l, "proj.weight"), n_embd, width)?,
            norm: self.layer_norm(l, "post_norm", taps::PER_LAYER_EMBD_OUT)?,
        }))
    }

    /// The block for all tokens with experts beside it.
    pub(crate) fn dense_and_experts(
        &mut self,
        l: usize,
        dense: FeedForward,
    ) -> Result<DenseAndExperts, Error> {
        let n_embd = self.h.n_embd();
        // the router reads rows of length 1, times these
        let scales = self.vector(&blk(l, "ffn_gate_inp.scale"), n_embd)?;
        let unit = 1.0 / (n_embd as f32).sqrt();
        let scales = self
            .values(scales)
            .iter()
            .map(|scale| scale * unit)
            .collect();
        Ok(DenseAndExperts {
            dense,
            dense_post_norm: self.layer_norm(l, "post_ffw_norm_1", taps::FFN_MLP)?,
            experts: self.experts(l)?,
            router_norm: self.made_vector("ffn_gate_inp.scale / sqrt(n_embd)", scales),
            experts_norm: self.layer_norm(l, "pre_ffw_norm_2", taps::FFN_NORM_2)?,
            experts_post_norm: self.layer_norm(l, "post_ffw_norm_2", taps::FFN_MOE)?,
        })
    }

    /// The same with `rope_factors_short.weight` and `rope_factors_long.weight`, both or neither.
    pub(crate) fn ends_with_rope_factors(&mut self) -> Result<Ends, Error> {
        const NAMES: [&str; 2] = ["rope_factors_short.weight", "rope_factors_long.weight"];
        let (short, long) = (self.rope_divisors(NAMES[0])?, self.rope_divisors(NAMES[1])?);
        for (id, name) in [(short, NAMES[0]), (long, NAMES[1])] {
            if id.is_none() && short.or(long).is_some() {
                return Err(self.missing(name, &[self.n_pairs()]));
            }
        }
        Ok(Ends {
            rope_divisors: RopeDivisors {
                all: None,
                short,
                long,
            },
            ..self.ends()?
        })
    }

    /// Pairs of a head that turn.
    fn n_pairs(&self) -> usize {
        self.h.ropes[0].n_rot.value / 2
    }

    /// A vector whose values divide angles.
    fn rope_divisors(&mut self, name: &str) -> Result<Option<VecId>, Error> {
        let Some(id) = self.optional_vector(name, self.n_pairs())? else {
            return Ok(None);
        };
        let data = &self.vectors[id.0 as usize].data;
        match data.iter().position(|&x| x <= 0.0) {
            Some(i) => Err(self.bad_element(name, i, "a divisor above 0", data[i])),
            None => Ok(Some(id)),
        }
    }

    /// The experts of a layer; a bias of the router, and of experts, is optional.
    pub(crate) fn experts(&mut self, l: usize) -> Result<Experts, Error> {
        let n_embd = self.h.n_embd();
        let rules = self
            .h
            .experts
            .expect("read by whoever has layers with experts");
        let (count, n_ff) = (rules.count, rules.n_ff);
        let router = self.matrix(&blk(l, "ffn_gate_inp.weight"), count, n_embd)?;
        let router_bias = self.optional_vector(&blk(l, "ffn_gate_inp.bias"), count)?;
        let selection_bias = self.optional_vector(&blk(l, "exp_probs_b.bias"), count)?;
        Ok(Experts {
            router,
            router_bias,
            selection_bias,
            gate: self.bank(&blk(l, "ffn_gate_exps"), n_ff, n_embd)?,
            up: self.bank(&blk(l, "ffn_up_exps"), n_ff, n_embd)?,
            down: self.bank(&blk(l, "ffn_down_exps"), n_embd, n_ff)?,
            shared: self.shared_expert(l, rules.shared_n_ff)?,
            shared_tap: taps::FFN_SHEXP,
            shared_gate: None,
        })
    }

    /// A matrix of every expert, in one tensor.
    fn bank(&mut self, name: &str, rows: usize, cols: usize) -> Result<ExpertBank, Error> {
        let count = self.h.experts.map_or(0, |rules| rules.count);
        let (weight, bias) = (format!("{name}.weight"), format!("{name}.bias"));
        let shape = [cols, rows, count];
        let found = self.matrix_of(&weight, &shape)?;
        let bias = match self.take(&bias, &[rows, count])? {
            Some((_, info)) => Some(self.vector_of(&bias, info)?),
            None => None,
        };
        Ok(ExpertBank {
            weight: found.ok_or_else(|| self.missing(&weight, &shape))?,
            bias,
        })
    }

    fn shared_expert(&mut self, l: usize, n_ff: usize) -> Result<Option<FeedForward>, Error> {
        if n_ff == 0 {
            return Ok(None);
        }
        let n_embd = self.h.n_embd();
        Ok(Some(FeedForward {
            gate: Some(self.matrix(&blk(l, "ffn_gate_shexp.weight"), n_ff, n_embd)?),
            gate_bias: None,
            up: self.matrix(&blk(l, "ffn_up_shexp.weight"), n_ff, n_embd)?,
            up_bias: None,
            down: self.matrix(&blk(l, "ffn_down_shexp.weight"), n_embd, n_ff)?,
            down_bias: None,
        }))
    }

    /// A norm's weights, or `None` if the file lacks them; a bias may stand beside them where
    /// norms are layer norms.
    pub(crate) fn optional_norm(
        &mut self,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<Option<NormWeights>, Error> {
        let Some(weight) = self.optional_vector(&format!("{name}.weight"), n)? else {
            return Ok(None);
        };
        let bias = match self.h.arch.spec().norm {
            Norm::Rms => None,
            Norm::Layer => self.optional_vector(&format!("{name}.bias"), n)?,
        };
        Ok(Some(NormWeights {
            weight,
            bias,
            tap,
            numbered: true,
        }))
    }

    /// A norm's weights, which must be there.
    pub(crate) fn norm(
        &mut self,
        name: &str,
        n: usize,
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        self.optional_norm(name, n, tap)?
            .ok_or_else(|| self.missing(&format!("{name}.weight"), &[n]))
    }

    /// A norm of a layer's rows.
    pub(crate) fn layer_norm(
        &mut self,
        l: usize,
        name: &str,
        tap: &'static str,
    ) -> Result<NormWeights, Error> {
        self.norm(&blk(l, name), self.h.n_embd(), tap)
    }

    /// A feed-forward block with a gate, without biases.
    pub(crate) fn gated_ffn(&mut self, l: usize) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        let gate = self.matrix(&blk(l, "ffn_gate.weight"), n_ff, n_embd)?;
        Ok(FeedForward {
            gate: Some(gate),
            ..self.plain_ffn(l)?
        })
    }

    /// A feed-forward block without a gate and without biases.
    pub(crate) fn plain_ffn(&mut self, l: usize) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        Ok(FeedForward {
            gate: None,
            gate_bias: None,
            up: self.matrix(&blk(l, "ffn_up.weight"), n_ff, n_embd)?,
            up_bias: None,
            down: self.matrix(&blk(l, "ffn_down.weight"), n_embd, n_ff)?,
            down_bias: None,
        })
    }

    /// The block with those biases that the file has.
    pub(crate) fn ffn_biases(&mut self, l: usize, ffn: FeedForward) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        let gate_bias = match ffn.gate {
            Some(_) => self.optional_vector(&blk(l, "ffn_gate.bias"), n_ff)?,
            None => None,
        };
        Ok(FeedForward {
            gate_bias,
            up_bias: self.optional_vector(&blk(l, "ffn_up.bias"), n_ff)?,
            down_bias: self.optional_vector(&blk(l, "ffn_down.bias"), n_embd)?,
            ..ffn
        })
    }

    /// A feed-forward block whose `ffn_up` has the gate's rows and then those that are gated.
    pub(crate) fn fused_ffn(&mut self, l: usize) -> Result<FeedForward, Error> {
        let (n_ff, n_embd) = (self.h.layers[l].n_ff, self.h.n_embd());
        let both = self.matrix(&blk(l, "ffn_up.weight"), 2 * n_ff, n_embd)?;
        let [gate, up] = self.split_matrix(both, [n_ff, n_ff]);
        Ok(FeedForward {
            gate: Some(gate),
            gate_bias: None,
            up,
            up_bias: None,
            down: self.matrix(&blk(l, "ffn_down.weight"), n_embd, n_ff)?,
            down_bias: None,
        })
    }

    /// A layer's Q, K and V: three tensors, or one with the rows of Q, then K, then V. Biases are
    /// optional.
    pub(crate) fn qkv(&mut self, l: usize) -> Result<Qkv, Error> {
        let n_embd = self.h.n_embd();
        let layer = &self.h.layers[l];
        let rows = [layer.q_width(), layer.kv_width(), layer.kv_width()];
        let names = ["attn_q", "attn_k", "attn_v"];
        let total = rows.iter().sum();
        let Some(fused) = self.optional_matrix(&blk(l, "attn_qkv.weight"), total, n_embd)? else {
            let mut qkv = Qkv {
                w: [WeightId(0); 3],
                b: [None; 3],
            };
            for i in 0..3 {
                qkv.w[i] =
                    self.matrix(&blk(l, &format!("{}.weight", names[i])), rows[i], n_embd)?;
                qkv.b[i] = self.optional_vector(&blk(l, &format!("{}.bias", names[i])), rows[i])?;
            }
            return Ok(qkv);
        };
        let w = self.split_matrix(fused, rows);
        if let Some(bias) = self.optional_vector(&blk(l, "attn_qkv.bias"), total)? {
            return Ok(Qkv {
                w,
                b: self.split_vector(bias, rows).map(Some),
            });
        }
        let mut b = [None; 3];
        for i in 0..3 {
            b[i] = self.optional_vector(&blk(l, &format!("{}.bias", names[i])), rows[i])?;
        }
        // llama.cpp adds separate biases to a fused product only when all three are there, else
        // silently none
        if let Some(i) = b
            .iter()
            .position(Option::is_none)
            .filter(|_| b.iter().any(Option::is_some))
        {
            return Err(self.missing(&blk(l, &format!("{}.bias", names[i])), &[rows[i]]));
        }
        Ok(Qkv { w, b })
    }

    fn split_matrix<const N: usize>(&mut self, fused: WeightId, rows: [usize; N]) -> [WeightId; N] {
        let whole = self.matrices[fused.0 as usize].clone();
        let mut start = 0;
        let mut ids = [fused; N];
        for (i, rows) in rows.into_iter().enumerate() {
            let part = WeightRef {
                rows: rows as u64,
                row_start: start,
                ..whole.clone()
            };
            start += part.rows;
            if i == 0 {
                self.matrices[fused.0 as usize] = part;
            } else {
                self.matrices.push(part);
                ids[i] = WeightId(self.matrices.len() as u32 - 1);
            }
        }
        ids
    }

    fn split_vector(&mut self, fused: VecId, rows: [usize; 3]) -> [VecId; 3] {
        let whole = self.vectors[fused.0 as usize].clone();
        let mut rest = whole.data.as_slice();
        let mut ids = [fused; 3];
        for (i, n) in rows.into_iter().enumerate() {
            let (part, tail) = rest.split_at(n);
            rest = tail;
            let part = Vector {
                name: whole.name.clone(),
                data: part.to_vec(),
                is_made: whole.is_made,
            };
            if i == 0 {
                self.vectors[fused.0 as usize] = part;
            } else {
                self.vectors.push(part);
                ids[i] = VecId(self.vectors.len() as u32 - 1);
            }
        }
        ids
    }

    /// Whether the file has a tensor of this name.
    pub(crate) fn has(&self, name: &str) -> bool {
        self.index.contains_key(name)
    }

    /// Marks a tensor as known but not used by the forward pass.
    pub(crate) fn ignore(&mut self, name: &str) {
        if let Some(&i) = self.index.get(name) {
            self.used[i] = true;
        }
    }

    /// The weights, if every tensor of the file found its place, but those of layers that are not
    /// part of the forward pass.
    fn finish(self, ends: Ends, layers: Vec<Layer>) -> Result<Weights, Error> {
        let behind = |name: &str| {
            let layer = name
                .strip_prefix("blk.")
                .and_then(|rest| rest.split('.').next());
            let layer = layer.and_then(|layer| layer.parse::<usize>().ok());
            layer.is_some_and(|l| (self.h.n_layer()..self.h.n_block).contains(&l))
        };
        let is_left_over =
            |(i, used): (usize, &bool)| !used && !behind(&self.gguf.tensors()[i].name);
        if let Some(i) = self.used.iter().enumerate().position(is_left_over) {
            let tensor = self.gguf.tensors()[i].name.clone();
            return Err(Error::UnexpectedTensor {
                file: self.file(),
                why: why_unexpected(&tensor),
                tensor,
                arch: self.h.arch.name(),
                expected: self.used.iter().filter(|used| **used).count(),
                got: self.used.len(),
            });
        }
        Ok(Weights {
            matrices: self.matrices,
            vectors: self.vectors,
            token_embd: ends.token_embd,
            output_norm: ends.output_norm,
            output: ends.output,
            output_bias: ends.output_bias,
            rope_divisors: ends.rope_divisors,
            per_layer_inputs: ends.per_layer_inputs,
            layers,
        })
    }
}

/// Binds every tensor of the file to its field.
pub(crate) fn bind(gguf: &Gguf, h: &Hparams) -> Result<Weights, Error> {
    let spec = h.arch.spec();
    let mut binder = Binder::new(gguf, h);
    let ends = (spec.ends)(&mut binder)?;
    let layers = (0..h.n_layer())
        .map(|l| (spec.layer)(&mut binder, l))
        .collect::<Result<Vec<_>, _>>()?;
    binder.finish(ends, layers)
}

/// `blk.<layer>.<rest>`.
pub(crate) fn blk(layer: usize, rest: &str) -> String {
    format!("blk.{layer}.{rest}")
}

/// Types a matrix may have: every type that holds weights. The rest are indices or activations.
fn is_matrix_type(ty: TensorType) -> bool {
    use TensorType as T;
    !matches!(
        ty,
        T::I8 | T::I16 | T::I32 | T::I64 | T::F64 | T::Q8_1 | T::Q8_K
    )
}

fn show_shape<D: std::fmt::Display>(dims: &[D]) -> String {
    let dims: Vec<String> = dims.iter().map(ToString::to_string).collect();
    format!("[{}]", dims.join(", "))
}

fn why_unexpected(name: &str) -> &'static str {
    if name.ends_with(".scale") || name.ends_with(".input_scale") {
        "per-tensor scales are not supported"
    } else if name.contains("_exps.") || name.contains("ffn_gate_inp") {
        "there are no experts in this architecture"
    } else if name.starts_with("rope_factors_") {
        "longrope is not supported in this architecture"
    } else {
        "no such tensor in this architecture"
    }
}
