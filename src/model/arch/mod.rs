//! The supported architectures: one file each, with what differs in its hyperparameters, its
//! weights and its layer. Adding one is that file, its `mod` and a line in the list of them all.

mod llama;
mod qwen2;
mod qwen3;

use std::fmt;

use gguf_rs_lite::{Gguf, Value};

use super::blocks::Builder;
use super::graph::{Graph, ValueId};
use super::keys::show;
use super::weights::{Binder, Ends, Layer, blk};
use super::{Error, hparams::Hparams, weights::Weights};
use octavo_kernels::Pairing;

/// Every supported architecture. Adding one is its file, and a line here.
static ALL: [Arch; 3] = [Arch(&llama::SPEC), Arch(&qwen2::SPEC), Arch(&qwen3::SPEC)];

/// A supported architecture.
#[derive(Clone, Copy)]
pub struct Arch(&'static Spec);

impl PartialEq for Arch {
    fn eq(&self, other: &Arch) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Arch {}

impl fmt::Debug for Arch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// What an architecture is, as data and three functions.
pub(super) struct Spec {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// How rotary dimensions pair up.
    pub(super) pairing: Pairing,
    /// The whole head must turn.
    pub(super) full_rotary: bool,
    /// Heads must fill the embedding width exactly.
    pub(super) heads_fill_width: bool,
    /// Keys that this architecture reads itself, of those that are refused otherwise.
    pub(super) reads: &'static [&'static str],
    /// Binds what surrounds the layers.
    pub(super) ends: fn(&mut Binder<'_>) -> Result<Ends, Error>,
    /// Binds one layer.
    pub(super) layer: fn(&mut Binder<'_>, usize) -> Result<Layer, Error>,
    /// Adds one layer's ops; takes the layer's input and gives its output.
    pub(super) block: fn(&mut Builder<'_>, ValueId, usize) -> ValueId,
}

impl Arch {
    /// Every supported architecture.
    pub fn all() -> &'static [Arch] {
        &ALL
    }

    pub(super) fn spec(self) -> &'static Spec {
        self.0
    }

    /// The name in `general.architecture`.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// The architecture a file says it has.
    pub fn of_file(gguf: &Gguf) -> Result<Arch, Error> {
        const KEY: &str = "general.architecture";
        let file = || gguf.name().to_owned();
        let supported = || ALL.map(Arch::name).join(", ");
        match gguf.get(KEY) {
            Some(Value::Str(s)) => ALL
                .into_iter()
                .find(|a| a.name().as_bytes() == s)
                .ok_or_else(|| {
                    let got = String::from_utf8_lossy(s).chars().take(60).collect();
                    Error::UnknownArchitecture {
                        file: file(),
                        got,
                        supported: supported(),
                    }
                }),
            Some(v) => Err(Error::BadValue {
                file: file(),
                key: KEY.to_owned(),
                expected: "a string".to_owned(),
                got: show(&v),
            }),
            None => {
                let expected = format!("one of {}", supported());
                Err(Error::MissingKey {
                    file: file(),
                    key: KEY.to_owned(),
                    expected,
                })
            }
        }
    }
}

/// The forward pass of a bound model.
pub(super) fn build(h: &Hparams, w: &Weights) -> Graph {
    let mut b = Builder::new(h, w);
    let mut x = b.embed();
    let mut layers = Vec::with_capacity(h.n_layer());
    for l in 0..h.n_layer() {
        x = (h.arch.spec().block)(&mut b, x, l);
        layers.push(x);
    }
    b.head(x, layers)
}

/// The weights that every architecture's layer has, without its optional ones.
fn dense_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let n_embd = b.h.n_embd();
    let (n_ff, q_width) = (b.h.layers[l].n_ff, b.h.layers[l].q_width());
    let attn_norm = b.vector(&blk(l, "attn_norm.weight"), n_embd)?;
    let qkv = b.qkv(l)?;
    Ok(Layer {
        attn_norm,
        wq: qkv.w[0],
        wk: qkv.w[1],
        wv: qkv.w[2],
        bq: qkv.b[0],
        bk: qkv.b[1],
        bv: qkv.b[2],
        q_norm: None,
        k_norm: None,
        wo: b.matrix(&blk(l, "attn_output.weight"), n_embd, q_width)?,
        bo: None,
        ffn_norm: b.vector(&blk(l, "ffn_norm.weight"), n_embd)?,
        gate: b.matrix(&blk(l, "ffn_gate.weight"), n_ff, n_embd)?,
        gate_bias: None,
        up: b.matrix(&blk(l, "ffn_up.weight"), n_ff, n_embd)?,
        up_bias: None,
        down: b.matrix(&blk(l, "ffn_down.weight"), n_embd, n_ff)?,
        down_bias: None,
    })
}

/// The pre-norm decoder layer: attention, then a gated feed-forward block, each added to its input.
fn pre_norm_block(b: &mut Builder<'_>, x: ValueId, l: usize) -> ValueId {
    let attn_out = b.attention(x, l);
    let ffn_inp = b.attention_residual(attn_out, x, l);
    let ffn_out = b.gated(ffn_inp, l);
    b.ffn_residual(ffn_out, ffn_inp, l)
}
