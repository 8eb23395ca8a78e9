//! Mixtures of experts: a router sends every token to a few of many feed-forward blocks.

use octavo_kernels::{Function, RowSet, ValueShape};

use super::super::graph::{Op, ValueId};
use super::super::hparams::Gating;
use super::super::taps;
use super::super::weights::{ExpertBank, ExpertInputs, ExpertScale, Experts, VecId, WeightId};
use super::feed_forward::OF_EXPERTS;
use super::{Builder, Named, at};

/// Smallest divisor when weights are divided by their sum, as in llama.cpp: the smallest normal
/// f16.
const LEAST_SUM: f32 = 1.0 / 16384.0;

/// llama.cpp's names of the products with a bank of experts: plain, scaled, and with biases.
struct BankNames {
    product: &'static str,
    scaled: &'static str,
    biased: &'static str,
}

const GATE: BankNames = BankNames {
    product: taps::FFN_MOE_GATE,
    scaled: taps::FFN_MOE_GATE_SCALED,
    biased: taps::FFN_MOE_GATE_BIASED,
};

const UP: BankNames = BankNames {
    product: taps::FFN_MOE_UP,
    scaled: taps::FFN_MOE_UP_SCALED,
    biased: taps::FFN_MOE_UP_BIASED,
};

const GATE_UP: BankNames = BankNames {
    product: taps::FFN_MOE_GATE_UP,
    scaled: taps::FFN_MOE_GATE_UP_SCALED,
    biased: taps::FFN_MOE_GATE_UP_BIASED,
};

const DOWN: BankNames = BankNames {
    product: taps::FFN_MOE_DOWN,
    scaled: taps::FFN_MOE_DOWN_SCALED,
    biased: taps::FFN_MOE_DOWN_BIASED,
};

/// Chosen experts and their weights, both `[rows][used]`.
#[derive(Clone, Copy)]
struct Route {
    ids: ValueId,
    weights: ValueId,
}

impl Builder<'_> {
    /// Appends the weighted sum of the chosen experts' results, plus the shared expert's; the
    /// router may read another value than the experts.
    pub(super) fn experts(
        &mut self,
        x: ValueId,
        router: ValueId,
        w: &Experts,
        l: usize,
    ) -> ValueId {
        let route = self.route(router, w, l);
        let ids = route.ids;
        // before the products, so that these and what lies between them are one block
        let weights = match w.down.scale {
            Some(ExpertScale::OfExperts(scales)) => self.scaled_experts(route, scales),
            Some(ExpertScale::OfRows(_)) | None => route.weights,
        };
        let z = match w.latent {
            Some([down, _]) => self.matmul(x, down, None),
            None => x,
        };
        let (z, weights) = match w.ones {
            Some(ones) => {
                let ones = self.constant(ones, z);
                (self.weighted_inputs(z, weights, l), ones)
            }
            None => (z, weights),
        };
        let y = self.inner_values(z, ids, w, l);
        let y = self.bank(y, ids, w.down, l, &DOWN);
        let sum = Op::ExpertSum { x: y, weights };
        let info = ValueShape {
            width: self.info(y).width / self.info(ids).width,
            ..self.info(y)
        };
        let mut out = self.push(sum, info, at(w.tap, l));
        if let Some([_, up]) = w.latent {
            out = self.matmul(out, up, None);
        }
        let Some(shared) = w.shared else {
            return out;
        };
        let mut y = self.dense(x, &shared, l, w.shared_tap);
        if let Some(gate) = w.shared_gate {
            let [scores, sigmoid, gated] = self.spec.shared_gate;
            let by = self.matmul(x, gate, at(scores, l));
            let by = self.unary(by, Function::Sigmoid, at(sigmoid, l));
            y = self.push(Op::ScaleRows { x: y, by }, self.info(y), at(gated, l));
        }
        self.add(out, y, at(w.merged_tap, l))
    }

    /// Appends the experts' inputs side by side, each times the expert's weight.
    fn weighted_inputs(&mut self, x: ValueId, weights: ValueId, l: usize) -> ValueId {
        let (one, used) = (self.info(x).width, self.info(weights).width);
        let all = (1..used).fold(x, |all, n| self.concat(all, x, [n * one, one], None));
        let op = Op::ScaleRows {
            x: all,
            by: weights,
        };
        self.push(op, self.info(all), at(taps::FFN_MOE_WEIGHTED, l))
    }

    /// Appends a vector for each row of another value.
    fn constant(&mut self, values: VecId, like: ValueId) -> ValueId {
        let info = ValueShape {
            width: self.w.vector(values).len(),
            rows: RowSet::All,
        };
        let x = self.push(Op::Constant { values }, info, None);
        match self.info(like).rows {
            rows @ RowSet::Outputs => {
                self.push(Op::SelectRows { x }, ValueShape { rows, ..info }, None)
            }
            _ => x,
        }
    }

    /// Appends the values that the chosen experts' down projections read.
    fn inner_values(&mut self, x: ValueId, ids: ValueId, w: &Experts, l: usize) -> ValueId {
        let [gate, up] = match w.input {
            ExpertInputs::Plain(up) => {
                let up = self.bank(x, ids, up, l, &UP);
                let (f, _) = self.h.feature().plain();
                return self.unary(up, f, at(taps::FFN_MOE_RELU_SQR, l));
            }
            ExpertInputs::Apart { gate, up } => {
                let gate = self.bank(x, ids, gate, l, &GATE);
                [gate, self.bank(x, ids, up, l, &UP)]
            }
            ExpertInputs::Together(both) => {
                let all = self.bank(x, ids, both, l, &GATE_UP);
                let n = self.h.experts.map_or(0, |rules| rules.n_ff);
                let mut half = |from, name| self.named_slice(all, 2 * n, from, n, at(name, l));
                [half(0, taps::FFN_MOE_GATE), half(n, taps::FFN_MOE_UP)]
            }
        };
        let limit = self.h.layers[l].clamps.experts;
        self.gated_product([gate, up], limit, l, &OF_EXPERTS)
    }

    /// Multiplies the chosen experts' weights with the experts' scales.
    fn scaled_experts(&mut self, route: Route, values: VecId) -> ValueId {
        let ids = route.ids;
        let x = self.constant(values, ids);
        let chosen = self.push(Op::Gather { x, ids }, self.info(ids), None);
        self.mul(route.weights, chosen, None)
    }

    fn route(&mut self, x: ValueId, w: &Experts, l: usize) -> Route {
        let rules = self
            .h
            .experts
            .expect("checked where the weights were bound");
        let logits = self.matmul(x, w.router, at(taps::FFN_MOE_LOGITS, l));
        let named = at(taps::FFN_MOE_PROBS, l);
        // scores that are not transformed are named as probabilities
        let biased = match rules.gating {
            Gating::SoftmaxOfChosen => named,
            Gating::Softmax | Gating::Sigmoid => at(taps::FFN_MOE_LOGITS_BIASED, l),
        };
        let logits = self.bias(logits, w.router_bias, biased);
        let probs = match rules.gating {
            Gating::Softmax => self.push(Op::Softmax { x: logits }, self.info(logits), named),
            Gating::Sigmoid => self.unary(logits, Function::Sigmoid, named),
            Gating::SoftmaxOfChosen => logits,
        };
        let scores = match rules.weighs_inputs {
            true => logits,
            false => self.bias(probs, w.selection_bias, at(taps::FFN_MOE_PROBS_BIASED, l)),
        };
        let of_used = ValueShape {
            width: rules.used,
            ..self.info(x)
        };
        let top = Op::TopK {
            x: scores,
            n: rules.used,
            groups: rules.groups,
        };
        let ids = self.push(top, of_used, at(taps::FFN_MOE_TOPK, l));
        let gather = Op::Gather { x: probs, ids };
        let mut weights = self.push(gather, of_used, at(taps::FFN_MOE_WEIGHTS, l));
        if rules.gating == Gating::SoftmaxOfChosen {
            let op = Op::Softmax { x: weights };
            weights = self.push(op, of_used, at(taps::FFN_MOE_WEIGHTS_SOFTMAX, l));
        }
        if rules.normalized {
            let op = Op::Normalize {
                x: weights,
                least: LEAST_SUM,
            };
            weights = self.push(op, of_used, at(taps::FFN_MOE_WEIGHTS_NORM, l));
        }
        let weights = self.scale(weights, rules.scale, at(taps::FFN_MOE_WEIGHTS_SCALED, l));
        Route { ids, weights }
    }

    /// Appends the products with the chosen experts of a bank, their scales and biases.
    fn bank(
        &mut self,
        x: ValueId,
        ids: ValueId,
        bank: ExpertBank,
        l: usize,
        names: &BankNames,
    ) -> ValueId {
        let is_scaled = bank.scale.is_some();
        let product = at(names.product, l).filter(|_| !is_scaled);
        let mut y = self.expert_matmul(x, ids, bank.weight, product);
        if let Some(ExpertScale::OfRows(scales)) = bank.scale {
            // no op multiplies by expert: adding the scales to zeros gathers them
            let info = self.info(y);
            let zeros = self.unary(y, Function::Scale(0.0), None);
            let op = Op::ExpertBias {
                x: zeros,
                bias: scales,
                ids,
            };
            let factors = self.push(op, info, None);
            y = self.mul(y, factors, at(names.scaled, l));
        }
        match bank.bias {
            Some(bias) => {
                let op = Op::ExpertBias { x: y, bias, ids };
                self.push(op, self.info(y), at(names.biased, l))
            }
            None => y,
        }
    }

    fn expert_matmul(
        &mut self,
        x: ValueId,
        ids: ValueId,
        w: WeightId,
        tap: Option<Named>,
    ) -> ValueId {
        let rules = self
            .h
            .experts
            .expect("checked where the weights were bound");
        let experts = rules.count;
        let width = rules.used * (self.w.matrix(w).rows as usize / experts);
        let info = ValueShape {
            width,
            ..self.info(x)
        };
        self.push(Op::ExpertMatMul { x, w, ids, experts }, info, tap)
    }
}
