//! What named values are called: llama.cpp's names for the same tensors.
//!
//! Names repeat in a layer (`Qcur-0` is the product, then the biased product, then the rotated
//! one), so that a value is a name, a layer and a number.

use std::collections::HashMap;
use std::fmt;
use std::hash::Hash;

/// Token embeddings.
pub const INP_EMBD: &str = "inp_embd";
/// A layer's input, normed.
pub const ATTN_NORM: &str = "attn_norm";
/// Queries: product, with the bias, rotated.
pub const Q_CUR: &str = "Qcur";
/// Queries, normed per head.
pub const Q_CUR_NORMED: &str = "Qcur_normed";
/// Keys, as [`Q_CUR`]. The last of them goes into the cache.
pub const K_CUR: &str = "Kcur";
/// Keys, normed per head.
pub const K_CUR_NORMED: &str = "Kcur_normed";
/// Values: product, with the bias. The last of them goes into the cache.
pub const V_CUR: &str = "Vcur";
/// Attention's mix of values.
pub const KQV_OUT: &str = "kqv_out";
/// Its projection.
pub const ATTN_OUT: &str = "attn_out";
/// The layer's input and the attention's result.
pub const FFN_INP: &str = "ffn_inp";
/// That, normed.
pub const FFN_NORM: &str = "ffn_norm";
/// The gate's product.
pub const FFN_GATE: &str = "ffn_gate";
/// With its bias.
pub const FFN_GATE_B: &str = "ffn_gate_b";
/// The product that is gated.
pub const FFN_UP: &str = "ffn_up";
/// With its bias.
pub const FFN_UP_B: &str = "ffn_up_b";
/// Gate and product together.
pub const FFN_SWIGLU: &str = "ffn_swiglu";
/// Their projection, where a bias follows.
pub const FFN_DOWN: &str = "ffn_down";
/// The feed-forward block's result.
pub const FFN_OUT: &str = "ffn_out";
/// What a layer hands on.
pub const L_OUT: &str = "l_out";
/// The final norm.
pub const RESULT_NORM: &str = "result_norm";
/// The logits.
pub const RESULT_OUTPUT: &str = "result_output";

/// A named value: `Qcur-3`, or `result_norm` without a layer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tap<N = &'static str> {
    /// llama.cpp's name.
    pub name: N,
    /// The layer, for what repeats per layer.
    pub layer: Option<usize>,
    /// How many values of this name and layer come before it in a pass.
    pub nth: usize,
}

/// A value of a program that need not be ours, which may have names that we have not.
pub type OwnedTap = Tap<String>;

impl Tap {
    /// With a name of its own.
    pub fn owned(self) -> OwnedTap {
        Tap {
            name: self.name.to_owned(),
            layer: self.layer,
            nth: self.nth,
        }
    }
}

/// Name and layer.
impl<N: fmt::Display> fmt::Display for Tap<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.layer {
            Some(layer) => write!(f, "{}-{layer}", self.name),
            None => self.name.fmt(f),
        }
    }
}

/// Numbers values of the same name and layer, as they come.
#[derive(Debug)]
pub struct Numbering<N>(HashMap<(N, Option<usize>), usize>);

impl<N: Clone + Eq + Hash> Numbering<N> {
    /// The next value of that name and layer.
    pub fn next(&mut self, name: N, layer: Option<usize>) -> Tap<N> {
        let count = self.0.entry((name.clone(), layer)).or_default();
        let nth = *count;
        *count += 1;
        Tap { name, layer, nth }
    }
}

impl<N> Default for Numbering<N> {
    fn default() -> Numbering<N> {
        Numbering(HashMap::new())
    }
}
