//! The supported architectures: one file each, with what differs in its hyperparameters, its
//! weights and its layer. Adding one is that file, its `mod` and a line in the list of them all.

mod bert;
mod cohere2;
mod command_r;
mod deepseek2;
mod ernie4_5;
mod ernie4_5_moe;
mod exaone4;
mod falcon;
mod falcon_h1;
mod gemma;
mod gemma2;
mod gemma3;
mod gemma4;
mod gemma_embedding;
mod glm4;
mod glm4moe;
mod gpt_oss;
mod granite;
mod granitehybrid;
mod granitemoe;
mod hunyuan_dense;
mod lfm2;
mod lfm2moe;
mod llama;
mod mamba2;
mod minicpm;
mod mistral3;
mod nemotron;
mod nomic_bert;
mod olmo2;
mod phi2;
mod phi3;
mod qwen2;
mod qwen2moe;
mod qwen2vl;
mod qwen3;
mod qwen35;
mod qwen35moe;
mod qwen3moe;
mod qwen3next;
mod qwen3vl;
mod qwen3vlmoe;
mod seed_oss;
mod smollm3;
mod starcoder2;

use std::fmt;

use gguf_rs_lite::{Gguf, Value};

use super::blocks::{Block, Builder, Feature};
use super::graph::{Graph, Norm};
use super::keys::{Keys, show};
use super::taps;
use super::weights::{Attention, Binder, Ends, Ffn, Layer, NormWeights, Recurrence, blk};
use super::{Error, hparams::Hparams, hparams::Sections, weights::Weights};
use octavo_kernels::{KeyHeads, Pairing};

/// Every supported architecture. Adding one is its file, and a line here.
static ALL: [Arch; 45] = [
    Arch(&bert::SPEC),
    Arch(&cohere2::SPEC),
    Arch(&command_r::SPEC),
    Arch(&deepseek2::SPEC),
    Arch(&ernie4_5::SPEC),
    Arch(&ernie4_5_moe::SPEC),
    Arch(&exaone4::SPEC),
    Arch(&falcon::SPEC),
    Arch(&falcon_h1::SPEC),
    Arch(&gemma::SPEC),
    Arch(&gemma2::SPEC),
    Arch(&gemma3::SPEC),
    Arch(&gemma4::SPEC),
    Arch(&gemma_embedding::SPEC),
    Arch(&glm4::SPEC),
    Arch(&glm4moe::SPEC),
    Arch(&gpt_oss::SPEC),
    Arch(&granite::SPEC),
    Arch(&granitehybrid::SPEC),
    Arch(&granitemoe::SPEC),
    Arch(&hunyuan_dense::SPEC),
    Arch(&lfm2::SPEC),
    Arch(&lfm2moe::SPEC),
    Arch(&llama::SPEC),
    Arch(&mamba2::SPEC),
    Arch(&minicpm::SPEC),
    Arch(&mistral3::SPEC),
    Arch(&nemotron::SPEC),
    Arch(&nomic_bert::SPEC),
    Arch(&olmo2::SPEC),
    Arch(&phi2::SPEC),
    Arch(&phi3::SPEC),
    Arch(&qwen2::SPEC),
    Arch(&qwen2moe::SPEC),
    Arch(&qwen2vl::SPEC),
    Arch(&qwen3::SPEC),
    Arch(&qwen35::SPEC),
    Arch(&qwen35moe::SPEC),
    Arch(&qwen3moe::SPEC),
    Arch(&qwen3next::SPEC),
    Arch(&qwen3vl::SPEC),
    Arch(&qwen3vlmoe::SPEC),
    Arch(&seed_oss::SPEC),
    Arch(&smollm3::SPEC),
    Arch(&starcoder2::SPEC),
];

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

/// What an architecture is, as data and functions that read and bind what is its own. Those of one
/// kind begin with [`DECODER`].
pub(super) struct Spec {
    /// `general.architecture`.
    pub(super) name: &'static str,
    /// How rotary dimensions pair up.
    pub(super) pairing: Pairing,
    /// The whole head must turn.
    pub(super) full_rotary: bool,
    /// How the axes of pictures share out pairs, where a model sees pictures.
    pub(super) sections: Option<Sections>,
    /// Angles may be divided by one of two lists, by the context's length.
    pub(super) longrope: bool,
    /// Heads must fill the embedding width exactly.
    pub(super) heads_fill_width: bool,
    /// What its norms are.
    pub(super) norm: Norm,
    /// What a feed-forward block puts its gate through, or without a gate its product.
    pub(super) feature: Feature,
    /// How attention and feed-forward block stand to each other.
    pub(super) block: Block,
    /// Heads of attention read one narrow row for all of them.
    pub(super) latent: bool,
    /// How layers go from token to token, if some do.
    pub(super) recurrent: Option<Recurrent>,
    /// Attention is followed by a feed-forward block.
    pub(super) feeds_forward: bool,
    /// Behind each head's query there is a gate of its result.
    pub(super) gated_attention: bool,
    /// Where queries and keys are normed, if they are.
    pub(super) qk_norm: QkNorm,
    /// What queries and keys are called after that.
    pub(super) qk_normed: [&'static str; 2],
    /// What gates of attention's result are called.
    pub(super) query_gate: &'static str,
    /// What gates the expert that sees every token: scores, their sigmoid, and what it gives then.
    pub(super) shared_gate: [&'static str; 3],
    /// What token embeddings are called.
    pub(super) embedding: &'static str,
    /// What attention's projection is called, if it has a name.
    pub(super) attn_out: Option<&'static str>,
    /// What queries and keys are called after they turned.
    pub(super) turned: [&'static str; 2],
    /// What token embeddings are called after a factor.
    pub(super) scaled_embedding: &'static str,
    /// Tokens see only those before them, and the last layer's rows become logits. Otherwise they
    /// see their whole text, and the rows are what the model is for.
    pub(super) causal: bool,
    /// Positions are embedded, and nothing turns.
    pub(super) embeds_positions: bool,
    /// Files may count one expert, where others without experts count none.
    pub(super) counts_one_expert: bool,
    /// Keys that this architecture reads itself, of those that are refused otherwise.
    pub(super) reads: &'static [&'static str],
    /// Reads them, and makes the hyperparameters what it needs.
    pub(super) numbers: fn(&mut Keys<'_>, &mut Hparams) -> Result<(), Error>,
    /// Binds what surrounds the layers.
    pub(super) ends: fn(&mut Binder<'_>) -> Result<Ends, Error>,
    /// Binds one layer.
    pub(super) layer: fn(&mut Binder<'_>, usize) -> Result<Layer, Error>,
}

/// Where queries and keys are normed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum QkNorm {
    BeforeRope,
    AfterRope,
}

/// How layers go from token to token.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Recurrent {
    /// A gated delta net, in all layers but those that the file's keys name.
    DeltaNet(KeyHeads),
    /// A convolution between two gates, in layers without heads for keys.
    ShortConv,
    /// Mamba 2, in layers without heads for keys.
    Mamba2,
    /// Mamba 2 beside attention in every layer.
    Mamba2Beside,
}

/// Most decoders: RMS norms before attention and before a gated feed-forward block, SiLU, and
/// halves of heads that turn together.
const DECODER: Spec = Spec {
    name: "",
    pairing: Pairing::Neox,
    full_rotary: false,
    sections: None,
    longrope: false,
    heads_fill_width: false,
    norm: Norm::Rms,
    feature: Feature::Silu,
    block: Block::Sequential {
        residual: Some(taps::FFN_INP),
    },
    latent: false,
    recurrent: None,
    feeds_forward: true,
    gated_attention: false,
    qk_norm: QkNorm::BeforeRope,
    qk_normed: [taps::Q_CUR_NORMED, taps::K_CUR_NORMED],
    query_gate: taps::GATE_RESHAPED,
    shared_gate: [
        taps::FFN_SHEXP_GATE_INP,
        taps::FFN_SHEXP_GATE,
        taps::FFN_SHEXP_OUT,
    ],
    embedding: taps::INP_EMBD,
    attn_out: Some(taps::ATTN_OUT),
    turned: [taps::Q_CUR, taps::K_CUR],
    scaled_embedding: taps::INP_EMBD,
    causal: true,
    embeds_positions: false,
    counts_one_expert: false,
    reads: &[],
    numbers: |_, _| Ok(()),
    ends: |b| b.ends(),
    layer: dense_layer,
};

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
        x = b.layer(x, l);
        if l < h.n_deepstack {
            x = b.add_deep(x, l);
        }
        layers.push(x);
    }
    b.head(x, layers)
}

/// A pre-norm layer with a gated feed-forward block, without the weights that may be missing.
fn dense_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    pre_norm_layer(b, l, |b| Ok(Ffn::Dense(b.gated_ffn(l)?)))
}

/// A pre-norm layer with experts, where the model has some.
fn expert_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    match b.h.experts {
        Some(_) => pre_norm_layer(b, l, |b| Ok(Ffn::Experts(b.experts(l)?))),
        None => dense_layer(b, l),
    }
}

/// A pre-norm layer with this feed-forward block.
fn pre_norm_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    pre_norm_layer_with(b, l, ["ffn_norm", taps::FFN_NORM], ffn)
}

/// The same with another tensor, of another name, for the norm before the feed-forward block.
fn pre_norm_layer_with<'b>(
    b: &mut Binder<'b>,
    l: usize,
    [ffn_norm, tap]: [&'static str; 2],
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let attn_norm = b.layer_norm(l, "attn_norm", taps::ATTN_NORM)?;
    let bare = bare_layer(b, l, ffn)?;
    Ok(Layer {
        attn_norm: Some(attn_norm),
        ffn_norm: Some(b.layer_norm(l, ffn_norm, tap)?),
        ..bare
    })
}

/// The same with biases behind attention and in a feed-forward block for all tokens, where the file
/// has them.
fn biased_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = expert_layer(b, l)?;
    let layer = with_output_bias(b, l, layer)?;
    Ok(Layer {
        ffn: match layer.ffn {
            Ffn::Dense(ffn) => Ffn::Dense(b.ffn_biases(l, ffn)?),
            others => others,
        },
        ..layer
    })
}

/// A layer with a bias behind attention, where the file has one.
fn with_output_bias(b: &mut Binder<'_>, l: usize, layer: Layer) -> Result<Layer, Error> {
    layer.attending(|attention| {
        let bo = b.optional_vector(&blk(l, "attn_output.bias"), b.h.n_embd())?;
        Ok(Attention { bo, ..attention })
    })
}

/// The same with a norm of each query and key head.
fn qk_normed_layer(b: &mut Binder<'_>, l: usize) -> Result<Layer, Error> {
    let layer = expert_layer(b, l)?;
    with_head_norms(b, l, layer)
}

/// A layer with a norm of each query and key head.
fn with_head_norms(b: &mut Binder<'_>, l: usize, layer: Layer) -> Result<Layer, Error> {
    let widths = [b.h.layers[l].head_dim; 2];
    with_qk_norms(b, l, layer, widths)
}

/// A layer with norms of so many values of queries and keys.
fn with_qk_norms(
    b: &mut Binder<'_>,
    l: usize,
    layer: Layer,
    widths: [usize; 2],
) -> Result<Layer, Error> {
    let names = b.h.arch.spec().qk_normed;
    layer.attending(|attention| {
        Ok(Attention {
            q_norm: Some(b.norm(&blk(l, "attn_q_norm"), widths[0], names[0])?),
            k_norm: Some(b.norm(&blk(l, "attn_k_norm"), widths[1], names[1])?),
            ..attention
        })
    })
}

/// What norms of what attention and the feed-forward block add are called.
struct PostNorms {
    attn: &'static str,
    ffn: &'static str,
    /// Whether the second name has the layer's number.
    ffn_is_numbered: bool,
}

/// Their usual names.
const POST_NORMS: PostNorms = PostNorms {
    attn: taps::ATTN_POST_NORM,
    ffn: taps::FFN_POST_NORM,
    ffn_is_numbered: false,
};

/// The same with the layer's number.
const NUMBERED_POST_NORMS: PostNorms = PostNorms {
    ffn_is_numbered: true,
    ..POST_NORMS
};

/// A layer with norms of what attention and the feed-forward block add.
fn with_post_norms(
    b: &mut Binder<'_>,
    l: usize,
    layer: Layer,
    names: &PostNorms,
) -> Result<Layer, Error> {
    Ok(Layer {
        attn_post_norm: Some(b.layer_norm(l, "post_attention_norm", names.attn)?),
        ffn_post_norm: Some(NormWeights {
            numbered: names.ffn_is_numbered,
            ..b.layer_norm(l, "post_ffw_norm", names.ffn)?
        }),
        ..layer
    })
}

/// A layer without norms.
fn bare_layer<'b>(
    b: &mut Binder<'b>,
    l: usize,
    ffn: impl FnOnce(&mut Binder<'b>) -> Result<Ffn, Error>,
) -> Result<Layer, Error> {
    let sizes = &b.h.layers[l];
    let (attends, recurs) = (sizes.attends(), sizes.recurs());
    let latent = b.h.arch.spec().latent;
    Ok(Layer {
        latent: latent.then(|| b.latent_attention(l)).transpose()?,
        attention: (attends && !latent).then(|| attention(b, l)).transpose()?,
        recurrence: recurs.then(|| recurrence(b, l)).transpose()?,
        ..Layer::new(ffn(b)?)
    })
}

fn attention(b: &mut Binder<'_>, l: usize) -> Result<Attention, Error> {
    let (n_embd, q_width) = (b.h.n_embd(), b.h.layers[l].q_width());
    let qkv = b.qkv(l)?;
    let wo = b.matrix(&blk(l, "attn_output.weight"), n_embd, q_width)?;
    Ok(Attention {
        gated: b.h.arch.spec().gated_attention,
        wk: Some(qkv.w[1]),
        wv: Some(qkv.w[2]),
        bq: qkv.b[0],
        bk: qkv.b[1],
        bv: qkv.b[2],
        ..Attention::new(qkv.w[0], wo)
    })
}

fn recurrence(b: &mut Binder<'_>, l: usize) -> Result<Recurrence, Error> {
    let recurrent = b.h.arch.spec().recurrent;
    Ok(match recurrent.expect("it has recurrent layers") {
        Recurrent::DeltaNet(_) => Recurrence::DeltaNet(b.delta_net(l)?),
        Recurrent::ShortConv => Recurrence::ShortConv(b.short_conv(l)?),
        Recurrent::Mamba2 => Recurrence::Mamba2(b.mamba2(l, taps::MAMBA_OUT, false)?),
        Recurrent::Mamba2Beside => Recurrence::Mamba2(b.mamba2(l, taps::SSM_OUT, true)?),
    })
}
