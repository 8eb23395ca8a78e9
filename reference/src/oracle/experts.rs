//! Mixtures of experts: each token goes through the experts that a router chooses for it, and
//! through a shared one if there is one.

use super::architecture::{Gating, Norm, Up};
use super::hparams::{Groups, LayerExperts, Routing};
use super::layer::Layer;
use super::math::{add_bias, add_into, columns, rms_norm, scale, sigmoid, softmax_rows};
use crate::Error;

/// Smallest divisor of weights, as in llama.cpp: the smallest normal f16.
const SMALLEST_SUM: f64 = 6.103515625e-5;

/// The experts of every token, best first, and their weights: `(n_tokens, used)`.
pub(super) struct Chosen {
    ids: Vec<usize>,
    weights: Vec<f64>,
}

impl Layer<'_, '_> {
    pub(super) fn mixture(
        &mut self,
        routing: &Routing,
        experts: LayerExperts,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let chosen = match self.chosen.take() {
            Some(chosen) => chosen,
            None => self.route(routing, experts.used, h)?,
        };
        let mut out = self.routed_by(routing, experts, &chosen, h)?;
        if let Some(n_ff) = experts.n_ff_shared {
            add_into(&mut out, &self.shared(n_ff, h)?);
            let merged = self.hp.architecture.experts.map(|facts| facts.sums[1]);
            self.tap(merged.unwrap_or("ffn_out"), n_embd, &mut out);
        }
        Ok(out)
    }

    /// Chooses experts by the layer's input, where the router reads that.
    pub(super) fn route_early(&mut self, x: &[f64]) -> Result<(), Error> {
        let is_early = self
            .hp
            .architecture
            .experts
            .is_some_and(|facts| facts.early);
        if let (Some(routing), Some(experts), true) =
            (&self.hp.routing, self.dims.experts, is_early)
        {
            self.chosen = Some(self.route(routing, experts.used, x)?);
        }
        Ok(())
    }

    /// Applies the chosen experts to `h`.
    fn routed_by(
        &mut self,
        routing: &Routing,
        experts: LayerExperts,
        chosen: &Chosen,
        h: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let Some(width) = routing.latent else {
            let mut out = self.routed(routing, experts, chosen, (h, n_embd))?;
            let sum = self.hp.architecture.experts.map(|facts| facts.sums[0]);
            self.tap(sum.unwrap_or("ffn_moe_out"), n_embd, &mut out);
            return Ok(out);
        };
        let z = self.product("ffn_latent_down", n_embd, width, h)?;
        let mut out = self.routed(routing, experts, chosen, (&z, width))?;
        self.tap("ffn_moe_out", width, &mut out);
        self.product("ffn_latent_up", width, n_embd, &out)
    }

    /// Applies a dense block and a mixture to the same stream, each between norms of its own.
    pub(super) fn dense_beside_experts(&mut self, x: &[f64]) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let h = self.norm(beside("ffn_norm", "ffn_norm_1"), x)?;
        let fed = self.dense("", self.dims.n_ff, &h)?;
        let mut out = self.norm(beside("post_ffw_norm_1", "ffn_mlp"), &fed)?;
        let h = self.norm(beside("pre_ffw_norm_2", "ffn_norm_2"), x)?;
        let factors = self.name("ffn_gate_inp.scale");
        let factors = self.weights.required_vector(&factors, n_embd)?;
        let mut input = rms_norm(x, &factors, self.hp.norm_eps);
        scale(&mut input, 1.0 / (n_embd as f64).sqrt());
        if let (Some(routing), Some(experts)) = (&self.hp.routing, self.dims.experts) {
            let chosen = self.route(routing, experts.used, &input)?;
            let mixed = self.routed_by(routing, experts, &chosen, &h)?;
            let mixed = self.norm(beside("post_ffw_norm_2", "ffn_moe"), &mixed)?;
            add_into(&mut out, &mixed);
        }
        self.tap("ffn_moe_combined", n_embd, &mut out);
        Ok(out)
    }

    fn route(&mut self, routing: &Routing, used: usize, h: &[f64]) -> Result<Chosen, Error> {
        let (logits, probs) = self.router_probs(routing, h)?;
        let scores = match routing.weighs_inputs {
            true => logits,
            false => self.selection(routing, &probs)?,
        };
        let mut top: Vec<f64> = scores
            .chunks(routing.count)
            .flat_map(|row| best(row, used))
            .map(|id| id as f64)
            .collect();
        // a caller that writes to this tap chooses the experts
        self.tap("ffn_moe_topk", used, &mut top);
        let ids = top.iter().map(|&id| self.expert(routing, id));
        let ids: Vec<usize> = ids.collect::<Result<_, _>>()?;
        let weights = probs
            .chunks(routing.count)
            .zip(ids.chunks(used))
            .flat_map(|(probs, ids)| ids.iter().map(|&id| probs[id]))
            .collect();
        let weights = self.finish_weights(routing, used, weights);
        Ok(Chosen { ids, weights })
    }

    fn expert(&self, routing: &Routing, id: f64) -> Result<usize, Error> {
        if id >= 0.0 && id < routing.count as f64 && id.fract() == 0.0 {
            return Ok(id as usize);
        }
        Err(Error::Expert {
            layer: self.il,
            count: routing.count,
            got: id,
        })
    }

    /// Computes the router's logits and probabilities for each token; the latter are the source of
    /// the experts' weights.
    fn router_probs(
        &mut self,
        routing: &Routing,
        h: &[f64],
    ) -> Result<(Vec<f64>, Vec<f64>), Error> {
        let count = routing.count;
        let mut x = self.product("ffn_gate_inp", self.hp.n_embd, count, h)?;
        let bias = self.bias("ffn_gate_inp", count)?;
        // Untransformed logits are named as probabilities.
        let named = routing.gating != Gating::SoftmaxOfChosen;
        if named || bias.is_some() {
            self.tap("ffn_moe_logits", count, &mut x);
        }
        if let Some(bias) = bias {
            add_bias(&mut x, &bias);
            if named {
                self.tap("ffn_moe_logits_biased", count, &mut x);
            }
        }
        let logits = x.clone();
        match routing.gating {
            Gating::Softmax => x = softmax_rows(&x, count),
            Gating::Sigmoid => x.iter_mut().for_each(|x| *x = sigmoid(*x)),
            Gating::SoftmaxOfChosen => {}
        }
        self.tap("ffn_moe_probs", count, &mut x);
        Ok((logits, x))
    }

    /// Returns the scores experts are chosen by: their probabilities, with a bias and without the
    /// worse groups, if the model has these.
    fn selection(&mut self, routing: &Routing, probs: &[f64]) -> Result<Vec<f64>, Error> {
        let count = routing.count;
        let mut scores = probs.to_vec();
        let bias = match routing.selection_bias {
            true => {
                let name = self.name("exp_probs_b.bias");
                Some(self.weights.required_vector(&name, count)?)
            }
            false => self.bias("exp_probs_b", count)?,
        };
        if let Some(bias) = bias {
            add_bias(&mut scores, &bias);
            self.tap("ffn_moe_probs_biased", count, &mut scores);
        }
        if let Some(groups) = routing.groups {
            scores
                .chunks_mut(count)
                .for_each(|row| mask_groups(row, groups));
            self.tap("ffn_moe_probs_masked", count, &mut scores);
        }
        Ok(scores)
    }

    fn finish_weights(&mut self, routing: &Routing, used: usize, mut w: Vec<f64>) -> Vec<f64> {
        self.tap("ffn_moe_weights", used, &mut w);
        if routing.gating == Gating::SoftmaxOfChosen {
            w = softmax_rows(&w, used);
            self.tap("ffn_moe_weights_softmax", used, &mut w);
        }
        if routing.normed {
            for row in w.chunks_mut(used) {
                let sum: f64 = row.iter().sum();
                scale(row, 1.0 / sum.max(SMALLEST_SUM));
            }
            self.tap("ffn_moe_weights_norm", used, &mut w);
        }
        if routing.scale != 1.0 {
            scale(&mut w, routing.scale);
            self.tap("ffn_moe_weights_scaled", used, &mut w);
        }
        w
    }

    /// Computes the weighted sum of the chosen experts' results for each token, of which `h` has
    /// `n_embd` values.
    fn routed(
        &mut self,
        routing: &Routing,
        experts: LayerExperts,
        chosen: &Chosen,
        (h, n_embd): (&[f64], usize),
    ) -> Result<Vec<f64>, Error> {
        let (n_ff, used) = (experts.n_ff, experts.used);
        let activation = self.hp.architecture.activation;
        let plain = self.hp.architecture.up == Up::Plain;
        let merged = self.weights.has(&self.name("ffn_gate_up_exps.weight"));
        // one row for each chosen expert of each token
        let rows = h.chunks(n_embd);
        let mut x: Vec<f64> = rows.flat_map(|row| row.repeat(used)).collect();
        if routing.weighs_inputs {
            self.weigh(chosen, n_embd, used, &mut x);
        }
        let mut product = |what: &str, n_out| {
            self.expert_product(what, [n_embd, n_out, routing.count], used, &chosen.ids, &x)
        };
        let (gate, up) = if plain {
            (Vec::new(), product("up", n_ff)?)
        } else if merged {
            let both = product("gate_up", 2 * n_ff)?;
            (
                columns(&both, 2 * n_ff, 0..n_ff),
                columns(&both, 2 * n_ff, n_ff..2 * n_ff),
            )
        } else {
            let mut gate = product("gate", n_ff)?;
            if let Some(limit) = self.dims.limits[0] {
                gate = self.limited_gate("ffn_moe", used * n_ff, gate, limit);
            }
            let dims = [n_embd, n_ff, routing.count];
            (
                gate,
                self.expert_product("up", dims, used, &chosen.ids, &x)?,
            )
        };
        let width = used * n_ff;
        let gated = match (plain, self.dims.limits[0]) {
            (false, Some(limit)) => self.limited_product("ffn_moe", width, &gate, up, limit),
            (false, None) => {
                let mut gated = activation.gated(&gate, &up);
                let name = format!("ffn_moe_{}", activation.gated_name());
                self.tap(&name, width, &mut gated);
                gated
            }
            (true, _) => {
                let mut all: Vec<f64> = up.iter().map(|x| activation.of(*x)).collect();
                self.tap("ffn_moe_relu_sqr", width, &mut all);
                all
            }
        };
        let dims = [n_ff, n_embd, routing.count];
        let mut down = self.expert_product("down", dims, used, &chosen.ids, &gated)?;
        if !routing.weighs_inputs {
            self.weigh(chosen, n_embd, used, &mut down);
        }
        let mut out = vec![0.0; h.len()];
        for (sum, rows) in out.chunks_mut(n_embd).zip(down.chunks(used * n_embd)) {
            rows.chunks(n_embd).for_each(|row| add_into(sum, row));
        }
        Ok(out)
    }

    /// Multiplies each expert's row with its weight.
    fn weigh(&mut self, chosen: &Chosen, n_embd: usize, used: usize, x: &mut [f64]) {
        for (row, &weight) in x.chunks_mut(n_embd).zip(&chosen.weights) {
            scale(row, weight);
        }
        self.tap("ffn_moe_weighted", used * n_embd, x);
    }

    /// Multiplies each row of `x` with its expert's matrix, and adds that expert's bias, if there
    /// is one.
    fn expert_product(
        &mut self,
        what: &str,
        dims: [usize; 3],
        used: usize,
        ids: &[usize],
        x: &[f64],
    ) -> Result<Vec<f64>, Error> {
        let [n_in, n_out, count] = dims;
        let tensor = self.name(&format!("ffn_{what}_exps"));
        let matrices = self.weights.experts(&format!("{tensor}.weight"), dims)?;
        let mut y = vec![0.0; ids.len() * n_out];
        for id in 0..count {
            let slots: Vec<usize> = (0..ids.len()).filter(|&slot| ids[slot] == id).collect();
            if slots.is_empty() {
                continue; // most matrices of a large model need not be dequantized
            }
            let rows = slots.iter().flat_map(|slot| &x[slot * n_in..][..n_in]);
            let products = matrices.get(id)?.times(&rows.copied().collect::<Vec<_>>());
            for (slot, product) in slots.iter().zip(products.chunks(n_out)) {
                y[slot * n_out..][..n_out].copy_from_slice(product);
            }
        }
        let name = format!("ffn_moe_{what}");
        self.tap(&name, used * n_out, &mut y);
        let rounding = format!("{tensor}.input_scale");
        self.weights.used.borrow_mut().insert(rounding);
        let factors = format!("{tensor}.scale");
        if let Some(factors) = self.weights.vector(&factors, count)? {
            let rows = y.chunks_mut(n_out).zip(ids);
            rows.for_each(|(row, &id)| scale(row, factors[id]));
            self.tap(&format!("{name}_scaled"), used * n_out, &mut y);
        }
        if let Some(bias) = self.weights.rows(&format!("{tensor}.bias"), n_out, count)? {
            for (row, id) in y.chunks_mut(n_out).zip(ids) {
                add_into(row, &bias[id * n_out..][..n_out]);
            }
            self.tap(&format!("{name}_biased"), used * n_out, &mut y);
        }
        Ok(y)
    }

    /// Applies the shared expert.
    fn shared(&mut self, n_ff: usize, h: &[f64]) -> Result<Vec<f64>, Error> {
        let n_embd = self.hp.n_embd;
        let mut out = self.dense("_shexp", n_ff, h)?;
        let Some(facts) = self.hp.architecture.experts else {
            return Ok(out);
        };
        self.tap(facts.shared_tap, n_embd, &mut out);
        if let Some([gate_name, sigmoid_name, gated_name]) = facts.shared_gate {
            let mut gate = self.product("ffn_gate_inp_shexp", n_embd, 1, h)?;
            self.tap(gate_name, 1, &mut gate);
            gate.iter_mut().for_each(|x| *x = sigmoid(*x));
            self.tap(sigmoid_name, 1, &mut gate);
            for (row, &gate) in out.chunks_mut(n_embd).zip(&gate) {
                scale(row, gate);
            }
            self.tap(gated_name, n_embd, &mut out);
        }
        Ok(out)
    }
}

fn beside(tensor: &'static str, tap: &'static str) -> Norm {
    Norm {
        tensor,
        tap,
        numbered: true,
        bare: false,
    }
}

/// Returns the indices of the `n` greatest values, greatest first, the lower index first on ties.
fn best(row: &[f64], n: usize) -> Vec<usize> {
    let mut order: Vec<usize> = (0..row.len()).collect();
    // adding 0 makes both zeros equal in the total order, which also orders NaN
    order.sort_by(|&a, &b| (row[b] + 0.0).total_cmp(&(row[a] + 0.0)));
    order.truncate(n);
    order
}

/// Masks all groups except those with the largest sums of their two best experts.
fn mask_groups(row: &mut [f64], groups: Groups) {
    let size = row.len() / groups.count;
    let sum_of_two = |group: &[f64]| best(group, 2).iter().map(|&i| group[i]).sum::<f64>();
    let scores: Vec<f64> = row.chunks(size).map(sum_of_two).collect();
    let kept = best(&scores, groups.used);
    for (index, group) in row.chunks_mut(size).enumerate() {
        if !kept.contains(&index) {
            group.fill(f64::NEG_INFINITY);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn of_equal_scores_the_lower_index_comes_first() {
        assert_eq!(best(&[1.0, 3.0, 3.0, 2.0, 3.0], 4), [1, 2, 4, 3]);
        assert_eq!(best(&[-0.0, 0.0, -0.0], 3), [0, 1, 2]);
        assert_eq!(best(&[f64::NAN, 1.0, f64::NEG_INFINITY], 2).len(), 2);
    }

    #[test]
    fn groups_are_judged_by_their_two_best() {
        let groups = Groups { count: 3, used: 2 };
        let mut row = [9.0, 0.0, 0.0, 5.0, 5.0, 0.0, 4.0, 4.0, 4.0];
        mask_groups(&mut row, groups);
        let gone = f64::NEG_INFINITY;
        assert_eq!(row, [9.0, 0.0, 0.0, 5.0, 5.0, 0.0, gone, gone, gone]);
    }
}
