//! Type of each tensor in a quantization mix: llama-quantize's rules, as pure functions of names,
//! shapes and a few numbers.
//!
//! A file type is a mix. Its matrices have one type by default; those that matter most (output
//! head, V projections, FFN down projections, the first and last layers) get more bits. The rules
//! count tensors in the order of layers and names, so that order is part of them.

use octavo_quant::TensorType as T;

mod names;

use super::Target;
pub(super) use names::layer_of;
pub use names::{Role, is_quantizable, order};

/// Model properties that the rules depend on.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Facts {
    /// `general.architecture`.
    pub architecture: String,
    /// Number of layers, prediction (MTP) layers included.
    pub n_layer: u32,
    /// Query heads of the first layer.
    pub n_head: u32,
    /// Key and value heads of the first layer.
    pub n_head_kv: u32,
    /// Number of experts; 0 in a dense model.
    pub n_expert: u32,
}

impl Facts {
    /// Returns the number of query heads per KV head.
    fn n_gqa(&self) -> u32 {
        self.n_head.checked_div(self.n_head_kv).unwrap_or(0)
    }

    /// Returns whether llama.cpp calls the model a 70B; the V projections of these are small and
    /// get more bits.
    fn is_70b(&self) -> bool {
        match (self.architecture.as_str(), self.n_layer) {
            ("llama", 80) => self.n_head != self.n_head_kv,
            ("qwen2" | "deci" | "olmo", 80) | ("jais2", 68) => true,
            _ => false,
        }
    }
}

/// User's choices beyond the file type.
#[derive(Clone, Debug, Default)]
pub struct Choices {
    /// Give every matrix the default type.
    pub pure: bool,
    /// Type of `output.weight` (and of tied embeddings).
    pub output: Option<T>,
    /// Type of the token embeddings.
    pub embedding: Option<T>,
    /// Leave `output.weight` unchanged.
    pub keep_output: bool,
    /// Types for tensors whose name matches a pattern; the first match decides.
    pub overrides: Vec<(regex::Regex, T)>,
    /// Whether an importance matrix is given.
    pub has_importance: bool,
}

/// A tensor without a layer number, or with one past the last layer, where the rules need it.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("tensor {tensor}: expected a name blk.N. with N below {n_layer}")]
pub struct NoLayer {
    /// Name of the tensor.
    pub tensor: String,
    /// Number of layers in the model.
    pub n_layer: u32,
}

/// Assigns each tensor its type; tensors must come in order.
#[derive(Clone, Debug)]
pub struct Mix<'a> {
    facts: &'a Facts,
    target: Target,
    choices: &'a Choices,
    tied: bool,
    n_values: u32,
    values: u32,
    downs: u32,
    gates: u32,
    ups: u32,
}

impl<'a> Mix<'a> {
    /// Creates the rules for a model with tensors of these names.
    pub fn new<'n>(
        facts: &'a Facts,
        target: Target,
        choices: &'a Choices,
        names: impl Iterator<Item = &'n str>,
    ) -> Mix<'a> {
        let mut mix = Mix {
            facts,
            target,
            choices,
            tied: true,
            n_values: 0,
            values: 0,
            downs: 0,
            gates: 0,
            ups: 0,
        };
        for role in names.map(Role::of) {
            mix.n_values += u32::from(role.is_value());
            mix.tied &= role != Role::Output;
        }
        mix
    }

    /// Returns the type of the next tensor, regardless of the length of its rows; `None` if it is
    /// unchanged.
    ///
    /// # Errors
    /// In an MoE model: an FFN tensor whose name has no layer of the model.
    pub fn next_type(&mut self, name: &str, dims: &[u64]) -> Result<Option<T>, NoLayer> {
        let c = self.choices;
        let is_unchanged = self.target == Target::COPY
            || (c.keep_output && name == "output.weight")
            || !is_quantizable(&self.facts.architecture, name, dims);
        if is_unchanged {
            return Ok(None);
        }
        let role = Role::of(name);
        let named = c
            .overrides
            .iter()
            .find(|(pattern, _)| pattern.is_match(name))
            .map(|(_, ty)| *ty);
        if let (Some(ty), Role::Embedding) = (c.embedding, role)
            && !(name == "per_layer_token_embd.weight" && named.is_some())
        {
            return Ok(Some(ty));
        }
        if let (Some(ty), Role::Output) = (c.output, role) {
            return Ok(Some(ty));
        }
        let default = self.target.default_type();
        if !is_block_type(default) {
            return Ok(Some(default));
        }
        match named {
            Some(ty) => Ok(Some(ty)),
            None if c.pure => Ok(Some(default)),
            None => self.by_rule(name, dims, role).map(Some),
        }
    }

    fn by_rule(&mut self, name: &str, dims: &[u64], role: Role) -> Result<T, NoLayer> {
        let default = self.target.default_type();
        let high_glm5 = ["attn_q_a", "attn_q_b", "nextn.eh_proj"];
        if self.facts.architecture == "glm5-next"
            && high_glm5.iter().any(|part| name.contains(part))
        {
            return Ok(T::Q8_0);
        }
        if role == Role::Output || (self.tied && role == Role::Embedding) {
            return Ok(self.output(dims));
        }
        if self.target == Target::MXFP4_MOE {
            let expert = self.facts.architecture != "bailingmoe3"
                || matches!(role, Role::Up | Role::Gate | Role::Down);
            let is_stack = dims.get(2).is_some_and(|&n| n > 1);
            return Ok(if is_stack && expert {
                T::MXFP4
            } else {
                T::Q8_0
            });
        }
        if role == Role::Embedding {
            return Ok(self.embedding());
        }
        if is_two_bits(self.target) {
            return Ok(self.two_bits(role));
        }
        let ty = match role {
            _ if role.is_value() => self.value(),
            Role::K | Role::Q => self.query_or_key(role),
            Role::Down => self.down(name)?,
            Role::AttentionOutput => self.attention_output(),
            Role::Gate | Role::Up => self.gate_or_up(name, role)?,
            _ => default,
        };
        Ok(ty)
    }

    /// Returns the type of the output head, or of tied embeddings.
    fn output(&self, dims: &[u64]) -> T {
        let default = self.target.default_type();
        let fits = dims
            .first()
            .is_some_and(|n| n.is_multiple_of(default.block_len() as u64));
        match self.target {
            _ if self.choices.output.is_some() => self.choices.output.unwrap_or(default),
            Target::MXFP4_MOE => T::Q8_0,
            _ if self.is("falcon") || !fits => T::Q8_0,
            target if is_two_bits(target) || target == Target::IQ3_XXS => T::Q5_K,
            Target::Q8_0 => T::Q8_0,
            _ => T::Q6_K,
        }
    }

    /// Returns the type of embeddings that are not tied.
    fn embedding(&self) -> T {
        match self.target {
            Target::IQ2_XXS | Target::IQ2_XS | Target::IQ1_S | Target::IQ1_M => T::Q2_K,
            Target::IQ2_S | Target::IQ2_M | Target::IQ3_XXS => T::IQ3_S,
            Target::TQ1_0 | Target::TQ2_0 | Target::Q2_0 => T::Q4_K,
            target => target.default_type(),
        }
    }

    /// Returns the type in the mixes IQ1_S .. IQ2_M.
    fn two_bits(&mut self, role: Role) -> T {
        let default = self.target.default_type();
        let upper = matches!(self.target, Target::IQ2_S | Target::IQ2_M);
        let better = if upper { T::IQ3_S } else { T::Q2_K };
        match role {
            _ if role.is_value() => {
                self.values += 1;
                if self.facts.n_gqa() >= 4 || self.facts.n_expert >= 4 {
                    T::Q4_K
                } else {
                    better
                }
            }
            Role::K if self.facts.n_expert == 8 => T::Q4_K,
            Role::Down => {
                let early = self.downs < self.facts.n_layer / 8;
                self.downs += 1;
                if early { better } else { default }
            }
            Role::AttentionOutput if self.facts.n_expert == 8 => T::Q5_K,
            Role::AttentionOutput => match self.target {
                Target::IQ1_S | Target::IQ1_M => T::IQ2_XXS,
                _ if upper => T::IQ3_S,
                _ => default,
            },
            _ => default,
        }
    }

    fn value(&mut self) -> T {
        let grouped = self.facts.n_gqa() >= 4;
        let i = self.values;
        self.values += 1;
        let mut ty = match self.target {
            Target::Q2_K if grouped => T::Q4_K,
            Target::Q2_K => T::Q3_K,
            Target::Q2_K_S | Target::IQ3_XS | Target::IQ3_S | Target::IQ3_XXS if grouped => T::Q4_K,
            Target::IQ3_XXS if !self.choices.has_importance => T::IQ3_S,
            Target::IQ3_M => T::Q4_K,
            Target::Q3_K_M if i < 2 => T::Q5_K,
            Target::Q3_K_M => T::Q4_K,
            Target::Q3_K_L => T::Q5_K,
            Target::IQ4_NL | Target::IQ4_XS if grouped => T::Q5_K,
            Target::Q4_K_M | Target::Q5_K_M if more_bits(i, self.n_values) => T::Q6_K,
            Target::Q4_K_S if i < 4 => T::Q5_K,
            target => target.default_type(),
        };
        if self.facts.is_70b() && matches!(ty, T::Q3_K | T::Q4_K) {
            ty = T::Q5_K;
        }
        if self.facts.n_expert == 8 {
            T::Q8_0
        } else {
            ty
        }
    }

    fn query_or_key(&self, role: Role) -> T {
        match self.target {
            _ if role == Role::K && self.facts.n_expert == 8 => T::Q8_0,
            Target::IQ3_XS => T::IQ3_XXS,
            Target::IQ3_XXS => T::IQ2_S,
            target => target.default_type(),
        }
    }

    fn down(&mut self, name: &str) -> Result<T, NoLayer> {
        let i = self.layer(name, self.downs)?;
        self.downs += 1;
        let n = self.facts.n_layer;
        let (falcon, early, first) = (self.is("falcon"), i < n / 8, i < n / 16);
        let has_importance = self.choices.has_importance;
        Ok(match self.target {
            Target::Q2_K => T::Q3_K,
            Target::Q2_K_S if early => T::Q4_K,
            Target::IQ3_XXS if !has_importance && early => T::Q4_K,
            Target::IQ3_XXS if !has_importance => T::Q3_K,
            Target::Q3_K_M if first => T::Q5_K,
            Target::Q3_K_M if !falcon || more_bits(i, n) => T::Q4_K,
            Target::IQ3_M if early || (self.facts.n_expert == 8 && more_bits(i, n)) => T::Q4_K,
            Target::Q3_K_L if falcon => T::Q4_K,
            Target::Q3_K_L => T::Q5_K,
            Target::Q4_K_M if falcon && first => T::Q6_K,
            Target::Q4_K_M if falcon && more_bits(i, n) => T::Q5_K,
            Target::Q4_K_M if falcon => T::Q4_K,
            Target::Q4_K_M | Target::Q5_K_M if more_bits(i, n) => T::Q6_K,
            Target::IQ4_NL | Target::IQ4_XS if early && !has_importance => T::Q5_K,
            Target::Q4_K_S if !falcon && early => T::Q5_K,
            // importance-weighted Q4_0 and Q5_0 can go wrong in the first of these matrices
            Target::Q4_0 if has_importance && early => T::Q4_1,
            Target::Q5_0 if has_importance && early => T::Q5_1,
            target => target.default_type(),
        })
    }

    fn attention_output(&self) -> T {
        let default = self.target.default_type();
        if self.is("falcon") {
            return if self.target == Target::Q3_K_L {
                T::Q4_K
            } else {
                default
            };
        }
        if self.facts.n_expert == 8 {
            return match self.target {
                Target::Q2_K
                | Target::Q3_K_S
                | Target::Q3_K_M
                | Target::Q4_K_S
                | Target::Q4_K_M
                | Target::IQ3_XS
                | Target::IQ3_XXS
                | Target::IQ3_S
                | Target::IQ3_M
                | Target::IQ4_NL
                | Target::IQ4_XS => T::Q5_K,
                _ => default,
            };
        }
        match self.target {
            Target::Q2_K => T::Q3_K,
            Target::IQ3_XXS => T::IQ3_S,
            Target::Q3_K_M | Target::IQ3_M => T::Q4_K,
            Target::Q3_K_L => T::Q5_K,
            _ => default,
        }
    }

    fn gate_or_up(&mut self, name: &str, role: Role) -> Result<T, NoLayer> {
        let counter = if role == Role::Gate {
            &mut self.gates
        } else {
            &mut self.ups
        };
        let before = *counter;
        *counter += 1;
        let (i, n) = (self.layer(name, before)?, self.facts.n_layer);
        let middle = i >= n / 8 && i < 7 * n / 8;
        Ok(if self.target == Target::IQ3_XS && middle {
            T::IQ3_XXS
        } else {
            self.target.default_type()
        })
    }

    /// Returns the layer of an FFN tensor: by count in dense models, by name in MoE models, where
    /// expert tensors come in any order.
    fn layer(&self, name: &str, counted: u32) -> Result<u32, NoLayer> {
        if self.facts.n_expert <= 1 {
            return Ok(counted);
        }
        let layer = layer_of(name)
            .and_then(|layer| u32::try_from(layer).ok())
            .filter(|&l| l < self.facts.n_layer);
        layer.ok_or_else(|| NoLayer {
            tensor: name.to_owned(),
            n_layer: self.facts.n_layer,
        })
    }

    fn is(&self, architecture: &str) -> bool {
        self.facts.architecture == architecture
    }
}

/// Returns whether layer `i` is in the first or last eighth, or a third one in between.
fn more_bits(i: u32, n: u32) -> bool {
    i < n / 8 || i >= 7 * n / 8 || (i - n / 8) % 3 == 2
}

fn is_two_bits(target: Target) -> bool {
    use Target::{IQ1_M, IQ1_S, IQ2_M, IQ2_S, IQ2_XS, IQ2_XXS};
    matches!(target, IQ1_S | IQ1_M | IQ2_XXS | IQ2_XS | IQ2_S | IQ2_M)
}

/// Returns whether this type stores values in blocks.
pub(super) fn is_block_type(ty: T) -> bool {
    ty.block_len() > 1
}

/// Returns the type for rows of `n` values, a smaller block's if `n` is no multiple of `ty`'s;
/// `None` where llama-quantize has no fallback.
pub fn fallback(ty: T, n: u64) -> Option<T> {
    let fits = |ty: T| n.is_multiple_of(ty.block_len() as u64);
    if fits(ty) {
        return Some(ty);
    }
    let smaller = match ty {
        T::IQ1_S
        | T::IQ1_M
        | T::IQ2_XXS
        | T::IQ2_XS
        | T::IQ2_S
        | T::IQ3_XXS
        | T::IQ3_S
        | T::IQ4_XS => T::IQ4_NL,
        T::Q2_0 | T::Q2_K | T::Q3_K | T::TQ1_0 | T::TQ2_0 => T::Q4_0,
        T::Q4_K => T::Q5_0,
        T::Q5_K => T::Q5_1,
        T::Q6_K => T::Q8_0,
        other if other.block_len() <= 32 => other,
        _ => return None,
    };
    Some(if fits(smaller) { smaller } else { T::F16 })
}

/// Returns whether a tensor of this type is useless without an importance matrix.
pub fn requires_importance(target: Target, name: &str, ty: T) -> bool {
    if matches!(Role::of(name), Role::Embedding | Role::Output) {
        return false;
    }
    match ty {
        T::IQ1_S | T::IQ1_M | T::IQ2_XXS | T::IQ2_XS | T::IQ2_S | T::IQ3_XXS => true,
        T::Q2_K => target == Target::Q2_K_S,
        _ => false,
    }
}
