//! Ops outside the layers: embeddings, final norm and logits.

use octavo_kernels::{Function, RowSet, ValueShape};

use super::super::graph::{Graph, HiddenRows, Op, ValueId};
use super::super::taps;
use super::super::weights::{MtpInput, NormWeights, PerLayerInputs, WeightId};
use super::{Builder, at, once};

impl Builder<'_> {
    /// Appends token embeddings with everything added to them, and their factor or norm.
    pub(crate) fn embed(&mut self) -> ValueId {
        if let Some(w) = self.w.assistant {
            let x = self.assistant_input(w.input);
            self.first_layer = self.nodes.nodes.len();
            return x;
        }
        let info = ValueShape {
            width: self.h.n_embd(),
            rows: RowSet::All,
        };
        let w = self.w;
        let (factor, name) = (self.h.factors.embedding, self.spec.scaled_embedding);
        // where scaled and unscaled embeddings share a name, it belongs to the scaled ones; of the
        // sums only the last is named
        let own = (factor == 1.0 || name != taps::INP_EMBD).then_some(self.spec.embedding);
        let named = |is_last: bool| own.filter(|_| is_last).and_then(once);
        let (typed, placed) = (w.token_type.is_some(), w.positions.is_some());
        let table = w.token_embd;
        let embed = Op::Embed {
            table,
            placeholder: None,
        };
        let x = self.push(embed, info, named(!typed && !placed));
        let x = self.bias(x, w.token_type, named(!placed));
        let x = match w.positions {
            Some(table) => {
                let positions = self.push(Op::EmbedPositions { table }, info, None);
                self.add(positions, x, named(true))
            }
            None => x,
        };
        let x = self.scale(x, factor, once(name));
        self.per_layer = w.per_layer_inputs.map(|w| self.per_layer_inputs(x, &w));
        let x = self.optional_norm(x, w.embd_norm, 0);
        let x = match &w.mtp {
            Some(w) => self.mtp_input(x, w),
            None => x,
        };
        self.first_layer = self.nodes.nodes.len();
        x
    }

    /// Appends an MTP layer's input: the tokens' embeddings and the hidden states that come
    /// with the step, each normed, side by side and projected.
    fn mtp_input(&mut self, x: ValueId, w: &MtpInput) -> ValueId {
        let info = self.info(x);
        let hidden = self.push(Op::Input, info, None);
        let embedded = self.norm(x, w.embedding_norm, Some(0));
        let hidden = self.norm(hidden, w.hidden_norm, Some(0));
        let both = self.concat(embedded, hidden, [info.width; 2], at(taps::MTP_CONCAT, 0));
        self.matmul(both, w.projection, at(taps::MTP_EH_PROJ, 0))
    }

    /// Appends an assistant's input: the target's embeddings and hidden states, which come with the
    /// step side by side, projected.
    fn assistant_input(&mut self, projection: WeightId) -> ValueId {
        let info = ValueShape {
            width: 2 * self.h.n_embd_target,
            rows: RowSet::All,
        };
        let both = self.push(Op::Input, info, None);
        self.matmul(both, projection, once(taps::PRE_PROJ))
    }

    /// Adds the image encoder's deepstack features for layer `l` to the layer's result.
    pub(crate) fn add_deep(&mut self, x: ValueId, l: usize) -> ValueId {
        let from = (1 + l) * self.h.n_embd();
        self.push(
            Op::AddEmbeddings { x, from },
            self.info(x),
            at(taps::DEEPSTACK_OUT, l),
        )
    }

    /// Appends the per-layer inputs of all layers, side by side: each token's row of the per-layer
    /// table plus a projection of its embedding.
    fn per_layer_inputs(&mut self, x: ValueId, w: &PerLayerInputs) -> ValueId {
        let width = self.h.n_embd_per_layer;
        let all = ValueShape {
            width: width * self.h.n_layer(),
            ..self.info(x)
        };
        // an image token has the row of token 0, as in llama.cpp
        let embed = Op::Embed {
            table: w.table,
            placeholder: Some(0),
        };
        let rows = self.push(embed, all, None);
        let selected = once(taps::INP_PER_LAYER_SELECTED);
        let rows = self.scale(rows, (width as f32).sqrt(), selected);
        let projected = self.matmul(x, w.projection, None);
        let projected = self.scale(projected, 1.0 / (self.h.n_embd() as f32).sqrt(), None);
        let projected = self.norm(projected, w.norm, None);
        let sum = self.add(projected, rows, None);
        self.scale(
            sum,
            std::f32::consts::FRAC_1_SQRT_2,
            once(taps::INP_PER_LAYER),
        )
    }

    /// Appends the final norm and the logits; or, where there are none, the rows and the products
    /// that follow them. Pooling comes after these products: they are linear, so the order makes no
    /// difference.
    pub(crate) fn head(mut self, x: ValueId, layers: Vec<ValueId>) -> Graph {
        let w = self.w;
        let (mut hidden, kept) = self.final_norm(x);
        for (i, dense) in w.dense.iter().enumerate() {
            let is_last = i + 1 == w.dense.len();
            let name = is_last.then_some(taps::RESULT_EMBD_POOLED).and_then(once);
            hidden = self.matmul(hidden, *dense, name);
        }
        let logits = match w.output {
            Some(output) => self.logits(hidden, output),
            None => hidden,
        };
        self.show_inputs();
        Graph {
            nodes: self.nodes.nodes,
            values: self.nodes.values,
            states: self.nodes.states,
            n_layer: self.h.n_layer(),
            first_layer: self.first_layer,
            input: match w.mtp {
                Some(_) => self.h.n_embd(),
                None => 2 * self.h.n_embd_target,
            },
            borrows_cache: w.assistant.is_some(),
            embedding_input_width: self.h.image_embedding_width(),
            layers,
            hidden,
            kept,
            logits,
        }
    }

    /// Appends the final norm; returns its rows with outputs, and those to keep, if any.
    fn final_norm(&mut self, x: ValueId) -> (ValueId, Option<ValueId>) {
        let w = self.w;
        let normed = |b: &mut Self, tap: Option<&'static str>| match w.output_norm {
            Some(norm) => b.norm(x, NormWeights { tap, ..norm }, None),
            None => x,
        };
        let tap = w.output_norm.and_then(|norm| norm.tap);
        match self.rows {
            HiddenRows::Outputs => {
                let hidden = normed(self, tap);
                let projected = w
                    .assistant
                    .map(|w| self.matmul(hidden, w.output, once(taps::H_NEXTN)));
                (hidden, w.mtp.map(|_| hidden).or(projected))
            }
            HiddenRows::All => {
                let all = normed(self, Some(taps::H_NEXTN));
                (self.select_rows(all, tap.and_then(once)), Some(all))
            }
        }
    }

    fn logits(&mut self, hidden: ValueId, output: WeightId) -> ValueId {
        let factors = self.h.factors;
        let steps = [factors.logits != 1.0, factors.logit_cap.is_some()];
        // only the last step is named
        let named = |step: usize| {
            let is_last = steps[step..].iter().all(|follows| !follows);
            is_last.then_some(taps::RESULT_OUTPUT).and_then(once)
        };
        let bias = self.w.output_bias;
        let logits = self.affine(hidden, output, bias, named(0));
        let mut logits = self.scale(logits, factors.logits, named(1));
        if let Some(cap) = factors.logit_cap {
            logits = self.unary(logits, Function::SoftCap(cap), once(taps::RESULT_OUTPUT));
        }
        logits
    }
}
