//! Hyperparameters: read from the metadata, checked in one pass before any tensor is looked at,
//! each with its source.
//!
//! The rule is that numbers come from the file. Keys that may be missing have documented defaults
//! (the table in `Hparams::from_gguf`), which the report shows as such; everything else that
//! changes results is an error naming the key, and so is a key that asks for something not
//! implemented.

use gguf_rs_lite::{Gguf, Value};

use super::arch::{Arch, Spec};
use super::keys::{Entry, Keys, Source, Sourced, float, show};
use super::{Error, rope::Pairing};

/// Most layers a file may ask for (llama.cpp's limit is of the same size).
pub const MAX_LAYERS: usize = 1024;
/// Largest embedding or feed-forward width; with it no product of two sizes can overflow.
pub const MAX_WIDTH: usize = 1 << 24;
/// Most attention heads.
pub const MAX_HEADS: usize = 1 << 16;
/// Largest head.
pub const MAX_HEAD_DIM: usize = 1024;
/// Fewest tensors that any architecture's layer has (fused QKV): bounds the layer count by the
/// tensor count.
const MIN_TENSORS_PER_LAYER: usize = 7;

/// How positions are scaled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingKind {
    /// Positions as they are.
    None,
    /// All angles divided by the factor.
    Linear,
    /// YaRN: high frequencies kept, low ones divided, with a ramp between.
    Yarn,
}

impl ScalingKind {
    /// The name in the file.
    pub fn name(self) -> &'static str {
        match self {
            ScalingKind::None => "none",
            ScalingKind::Linear => "linear",
            ScalingKind::Yarn => "yarn",
        }
    }
}

/// The `rope.*` keys.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeHparams {
    /// Dimensions of a head that turn (the first ones); even.
    pub n_rot: Sourced<usize>,
    /// Base of the angles' geometric series.
    pub freq_base: Sourced<f32>,
    /// Kind of scaling.
    pub scaling: Sourced<ScalingKind>,
    /// Context extension factor.
    pub factor: Sourced<f32>,
    /// Context length before extension (YaRN).
    pub original_context: Sourced<usize>,
    /// Extra factor on the rotated values' magnitude.
    pub attn_factor: Sourced<f32>,
    /// YaRN: rotations above which a dimension is not scaled.
    pub beta_fast: Sourced<f32>,
    /// YaRN: rotations below which a dimension is scaled in full.
    pub beta_slow: Sourced<f32>,
    /// How dimensions pair up (a property of the architecture).
    pub pairing: Pairing,
}

/// A model's hyperparameters, validated.
#[derive(Clone, Debug)]
pub struct Hparams {
    /// The architecture.
    pub arch: Arch,
    /// Context length the model was trained for.
    pub context_length: Sourced<usize>,
    /// Embedding width.
    pub n_embd: Sourced<usize>,
    /// Layers.
    pub n_layer: Sourced<usize>,
    /// Feed-forward width.
    pub n_ff: Sourced<usize>,
    /// Query heads.
    pub n_head: Sourced<usize>,
    /// Key and value heads; divides `n_head`.
    pub n_head_kv: Sourced<usize>,
    /// Width of one query, key or value head; even.
    pub head_dim: Sourced<usize>,
    /// Epsilon of every RMS norm.
    pub rms_eps: Sourced<f32>,
    /// Vocabulary size: the length of the token list, or else `vocab_size`, or else the embedding's
    /// rows.
    pub n_vocab: Sourced<usize>,
    /// Rotary embedding.
    pub rope: RopeHparams,
    entries: Vec<Entry>,
    warnings: Vec<String>,
}

impl Hparams {
    /// Reads and checks everything; touches no tensor data.
    ///
    /// Silent defaults: head_count_kv = head_count; key_length = value_length = embedding_length /
    /// head_count; rope.dimension_count = key_length; no rope.scaling (factor 1, attn_factor 1,
    /// beta_fast 32, beta_slow 1, original_context_length = context_length); vocab_size from the
    /// token list; alignment 32. Default with a warning: rope.freq_base 10000. No other key may be
    /// missing.
    pub fn from_gguf(gguf: &Gguf) -> Result<Hparams, Error> {
        let arch = Arch::of_file(gguf)?;
        let spec = arch.spec();
        let mut k = Keys::new(gguf, spec.name);
        k.note("general.architecture".to_owned(), spec.name, Source::File);
        let aligned = gguf
            .get("general.alignment")
            .map_or(Source::Default, |_| Source::File);
        k.note("general.alignment".to_owned(), gguf.alignment(), aligned);

        let context_length = k.count("context_length", 1..=i32::MAX as usize, None)?;
        let n_embd = k.count("embedding_length", 1..=MAX_WIDTH, None)?;
        let n_layer = k.count("block_count", 1..=MAX_LAYERS, None)?;
        let most = gguf.tensors().len() / MIN_TENSORS_PER_LAYER;
        if n_layer.value > most {
            let expected = match gguf.tensors().len() {
                0 => "layers with tensors, but the file has no tensors (a vocabulary only)"
                    .to_owned(),
                n => format!("at most {most} layers in a file of {n} tensors"),
            };
            return Err(k.bad(k.full("block_count"), expected, n_layer.value.to_string()));
        }
        let n_ff = k.per_layer("feed_forward_length", n_layer.value, 1..=MAX_WIDTH, None)?;
        let (n_head, n_head_kv, head_dim) = heads(&mut k, spec, n_embd.value, n_layer.value)?;
        // 1 would make every norm return almost nothing: no model is trained so
        let rms_eps = k.positive("attention.layer_norm_rms_epsilon", 1.0, None)?;
        let rope = rope(&mut k, spec, head_dim.value, context_length.value)?;
        let n_vocab = vocabulary(&mut k)?;
        refuse_unsupported(&mut k, context_length.value)?;

        let Keys {
            entries, warnings, ..
        } = k;
        Ok(Hparams {
            arch,
            context_length,
            n_embd,
            n_layer,
            n_ff,
            n_head,
            n_head_kv,
            head_dim,
            rms_eps,
            n_vocab,
            rope,
            entries,
            warnings,
        })
    }

    /// Every value in use, in a fixed order, with its source.
    pub fn report(&self) -> Vec<Entry> {
        self.entries.clone()
    }

    /// What was assumed or left out, one line each.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Embedding width.
    pub fn n_embd(&self) -> usize {
        self.n_embd.value
    }

    /// Layers.
    pub fn n_layer(&self) -> usize {
        self.n_layer.value
    }

    /// Feed-forward width.
    pub fn n_ff(&self) -> usize {
        self.n_ff.value
    }

    /// Query heads.
    pub fn n_head(&self) -> usize {
        self.n_head.value
    }

    /// Key and value heads.
    pub fn n_head_kv(&self) -> usize {
        self.n_head_kv.value
    }

    /// Width of one head.
    pub fn head_dim(&self) -> usize {
        self.head_dim.value
    }

    /// Vocabulary size.
    pub fn n_vocab(&self) -> usize {
        self.n_vocab.value
    }

    /// Context length the model was trained for.
    pub fn n_ctx_train(&self) -> usize {
        self.context_length.value
    }

    /// Epsilon of every RMS norm.
    pub fn rms_eps(&self) -> f32 {
        self.rms_eps.value
    }

    /// Width of all query heads together.
    pub fn q_width(&self) -> usize {
        self.n_head() * self.head_dim()
    }

    /// Width of all key (or value) heads together.
    pub fn kv_width(&self) -> usize {
        self.n_head_kv() * self.head_dim()
    }

    /// Cached numbers per position: keys and values of every layer.
    pub fn kv_elements_per_position(&self) -> usize {
        2 * self.n_layer() * self.kv_width()
    }
}

type Heads = (Sourced<usize>, Sourced<usize>, Sourced<usize>);

fn heads(k: &mut Keys<'_>, spec: &Spec, n_embd: usize, n_layer: usize) -> Result<Heads, Error> {
    let n_head = k.per_layer("attention.head_count", n_layer, 1..=MAX_HEADS, None)?;
    let n_head_kv = k.per_layer(
        "attention.head_count_kv",
        n_layer,
        1..=MAX_HEADS,
        Some(n_head.value),
    )?;
    if n_head.value % n_head_kv.value != 0 {
        let expected = format!("a divisor of attention.head_count ({})", n_head.value);
        return Err(k.bad(
            k.full("attention.head_count_kv"),
            expected,
            n_head_kv.value.to_string(),
        ));
    }
    let default = n_embd / n_head.value;
    if k.get("attention.key_length").is_none()
        && (!n_embd.is_multiple_of(n_head.value) || !even(default))
    {
        let expected = format!(
            "heads of an even width up to {MAX_HEAD_DIM} that fill embedding_length {n_embd}"
        );
        return Err(k.bad(
            k.full("attention.head_count"),
            expected,
            n_head.value.to_string(),
        ));
    }
    let key = k.count("attention.key_length", 2..=MAX_HEAD_DIM, Some(default))?;
    if !even(key.value) {
        return Err(k.bad(
            k.full("attention.key_length"),
            "an even number",
            key.value.to_string(),
        ));
    }
    let value = k.count("attention.value_length", 1..=MAX_HEAD_DIM, Some(default))?;
    if value.value != key.value {
        let expected = format!("must equal attention.key_length, {}", key.value);
        return Err(k.unsupported("attention.value_length", expected, value.value.to_string()));
    }
    if spec.heads_fill_width && n_head.value * key.value != n_embd {
        let expected = format!(
            "embedding_length / head_count = {n_embd} / {}",
            n_head.value
        );
        return Err(k.bad(
            k.full("attention.key_length"),
            expected,
            key.value.to_string(),
        ));
    }
    Ok((n_head, n_head_kv, key))
}

fn even(head_dim: usize) -> bool {
    head_dim.is_multiple_of(2) && (2..=MAX_HEAD_DIM).contains(&head_dim)
}

fn rope(
    k: &mut Keys<'_>,
    spec: &Spec,
    head_dim: usize,
    context: usize,
) -> Result<RopeHparams, Error> {
    let n_rot = k.count("rope.dimension_count", 2..=head_dim, Some(head_dim))?;
    if n_rot.value % 2 != 0 || (spec.full_rotary && n_rot.value != head_dim) {
        let expected = if spec.full_rotary {
            format!("{head_dim}, the head's width")
        } else {
            "an even number".into()
        };
        return Err(k.bad(
            k.full("rope.dimension_count"),
            expected,
            n_rot.value.to_string(),
        ));
    }
    let freq_base = k.positive("rope.freq_base", f32::INFINITY, Some(10000.0))?;
    if freq_base.source == Source::Default {
        let key = k.full("rope.freq_base");
        k.warn(format!("no {key}: 10000 is assumed"));
    }
    let (scaling, factor) = scaling(k)?;
    let original_context = k.count(
        "rope.scaling.original_context_length",
        1..=i32::MAX as usize,
        Some(context),
    )?;
    let attn_factor = k.positive("rope.scaling.attn_factor", f32::INFINITY, Some(1.0))?;
    let beta_fast = k.positive("rope.scaling.yarn_beta_fast", f32::INFINITY, Some(32.0))?;
    let beta_slow = k.positive("rope.scaling.yarn_beta_slow", f32::INFINITY, Some(1.0))?;
    if scaling.value == ScalingKind::Yarn {
        // the ramp's ends are logarithms to this base
        if freq_base.value <= 1.0 {
            return Err(k.bad(
                k.full("rope.freq_base"),
                "above 1 with yarn scaling",
                freq_base.value.to_string(),
            ));
        }
        for (suffix, got, usual) in [
            ("rope.scaling.yarn_beta_fast", beta_fast, 32.0),
            ("rope.scaling.yarn_beta_slow", beta_slow, 1.0),
        ] {
            if got.value != usual {
                let key = k.full(suffix);
                k.warn(format!(
                    "{key} = {} is used; llama.cpp takes {usual} for this architecture",
                    got.value
                ));
            }
        }
    }
    refuse_ext_factor(k, scaling.value)?;
    Ok(RopeHparams {
        n_rot,
        freq_base,
        scaling,
        factor,
        original_context,
        attn_factor,
        beta_fast,
        beta_slow,
        pairing: spec.pairing,
    })
}

/// `rope.scaling.type` and the factor, which old files call `rope.scale_linear`.
fn scaling(k: &mut Keys<'_>) -> Result<(Sourced<ScalingKind>, Sourced<f32>), Error> {
    const TYPE: &str = "rope.scaling.type";
    let old = k.get("rope.scaling.factor").is_none() && k.get("rope.scale_linear").is_some();
    let suffix = if old {
        "rope.scale_linear"
    } else {
        "rope.scaling.factor"
    };
    let given = k.get(suffix).is_some();
    let kind = match k.text(TYPE)? {
        None if given => Sourced::default(ScalingKind::Linear),
        None => Sourced::default(ScalingKind::None),
        Some("none") => Sourced::file(ScalingKind::None),
        Some("linear") => Sourced::file(ScalingKind::Linear),
        Some("yarn") => Sourced::file(ScalingKind::Yarn),
        Some("longrope") => return Err(k.unsupported(TYPE, "none, linear or yarn", "longrope")),
        Some(other) => {
            return Err(k.bad(
                k.full(TYPE),
                "none, linear or yarn",
                show(&Value::Str(other.as_bytes())),
            ));
        }
    };
    k.note(k.full(TYPE), kind.value.name(), kind.source);
    let needs = kind.source == Source::File && kind.value != ScalingKind::None;
    let factor = k.positive(suffix, f32::INFINITY, if needs { None } else { Some(1.0) })?;
    Ok((kind, factor))
}

/// YaRN's extrapolation factor is 1 with yarn and 0 without; a file may only say so.
fn refuse_ext_factor(k: &mut Keys<'_>, kind: ScalingKind) -> Result<(), Error> {
    const KEY: &str = "rope.scaling.yarn_ext_factor";
    let neutral = if kind == ScalingKind::Yarn { 1.0 } else { 0.0 };
    match k.get(KEY) {
        Some(v) if !is_one_of(&v, &[neutral, -1.0]) => Err(k.unsupported(
            KEY,
            format!("only {neutral} with {} scaling", kind.name()),
            show(&v),
        )),
        _ => Ok(()),
    }
}

fn vocabulary(k: &mut Keys<'_>) -> Result<Sourced<usize>, Error> {
    const LIST: &str = "tokenizer.ggml.tokens";
    // token ids are i32 in every GGUF tool
    const RANGE: std::ops::RangeInclusive<usize> = 1..=i32::MAX as usize;
    let list = match k.gguf.get(LIST) {
        None => None,
        Some(Value::Array(a)) => Some(a.len()),
        Some(v) => return Err(k.bad(LIST.to_owned(), "an array of strings", show(&v))),
    };
    let rows = k
        .gguf
        .tensor("token_embd.weight")
        .and_then(|t| t.dims.get(1))
        .and_then(|&n| usize::try_from(n).ok());
    let derived = list.or(rows);
    let said = k.count("vocab_size", RANGE, derived).map_err(|e| match e {
        Error::MissingKey { .. } => k.missing(LIST.to_owned(), "the token list"),
        e => e,
    })?;
    let value = list.unwrap_or(said.value);
    if !RANGE.contains(&value) {
        return Err(k.bad(LIST.to_owned(), "1 to 2147483647 tokens", value.to_string()));
    }
    if value != said.value {
        let key = k.full("vocab_size");
        k.warn(format!(
            "{key} is {} but the token list has {value}: the list decides",
            said.value
        ));
        k.entries.pop();
        k.note(key, value, Source::Default);
        return Ok(Sourced::default(value));
    }
    Ok(said)
}

/// Keys that ask for something these architectures' graphs do not do, with the values that ask for
/// nothing.
const REFUSED: &[(&str, &[f64])] = &[
    ("expert_count", &[0.0]),
    ("expert_used_count", &[0.0]),
    ("nextn_predict_layers", &[0.0]),
    ("use_parallel_residual", &[0.0]),
    ("attention.causal", &[1.0]),
    ("attention.scale", &[0.0]),
    ("attention.output_scale", &[0.0, 1.0]),
    ("attention.value_scale", &[0.0, 1.0]),
    ("attention.temperature_scale", &[0.0]),
    ("attention.temperature_length", &[0.0]),
    ("attention.clamp_kqv", &[0.0]),
    ("attention.max_alibi_bias", &[0.0]),
    ("attention.shared_kv_layers", &[0.0]),
    ("attention.rope_pattern", &[1.0]),
    ("attn_logit_softcapping", &[0.0]),
    ("final_logit_softcapping", &[0.0]),
    ("logit_scale", &[0.0, 1.0]),
    ("residual_scale", &[0.0, 1.0]),
    ("embedding_scale", &[0.0, 1.0]),
    ("swiglu_clamp_exp", &[0.0]),
    ("swiglu_clamp_shexp", &[0.0]),
    ("n_deepstack_layers", &[0.0]),
    ("rope.dimension_sections", &[0.0]),
    ("rope.scaling.alpha", &[0.0]),
    ("rope.scaling.yarn_log_multiplier", &[0.0]),
    ("rope.scaling.yarn_attn_factor", &[1.0]),
];

fn refuse_unsupported(k: &mut Keys<'_>, context: usize) -> Result<(), Error> {
    for (suffix, neutral) in REFUSED {
        if let Some(v) = k.get(suffix).filter(|v| !is_one_of(v, neutral)) {
            return Err(k.unsupported(suffix, "not implemented", show(&v)));
        }
    }
    if let Some(act) = k
        .text("hidden_activation")?
        .filter(|a| !["silu", "swiglu", "swish"].contains(a))
    {
        return Err(k.unsupported("hidden_activation", "only silu", act));
    }
    // llama.cpp attends to everything in these architectures whatever the key says, and so do we;
    // the user is told
    const WINDOW: &str = "attention.sliding_window";
    if let Some(window) = k
        .get(WINDOW)
        .and_then(|v| v.as_int())
        .filter(|&w| w > 0 && w < context as i128)
    {
        let key = k.full(WINDOW);
        k.warn(format!(
            "{key} = {window} is not applied: attention sees the whole context, as in llama.cpp"
        ));
    }
    Ok(())
}

/// Whether a value (or every element of an array) is one of a few numbers; a bool counts as 0 or 1.
fn is_one_of(v: &Value<'_>, numbers: &[f64]) -> bool {
    match v {
        Value::Array(a) => a.iter().all(|v| is_one_of(&v, numbers)),
        Value::Bool(b) => numbers.contains(&f64::from(u8::from(*b))),
        v => v
            .as_int()
            .map(|i| i as f64)
            .or(float(v))
            .is_some_and(|x| numbers.contains(&x)),
    }
}

#[cfg(test)]
mod tests {
    use super::super::keys::json_f32;
    use super::*;

    #[test]
    fn numbers_print_as_the_file_means_them() {
        assert_eq!(json_f32(1e-6).to_string(), "1e-6");
        assert_eq!(json_f32(10000.0).to_string(), "10000.0");
        assert_eq!(json_f32(f32::NAN), serde_json::Value::Null);
        assert_eq!(show(&Value::F32(1e-5)), "0.00001");
        assert_eq!(show(&Value::I8(-3)), "-3");
        assert_eq!(show(&Value::Str(b"a\nb\xff")), "\"a\\nb\u{fffd}\"");
    }

    #[test]
    fn neutral_values() {
        assert!(is_one_of(&Value::U32(0), &[0.0]));
        assert!(!is_one_of(&Value::U32(8), &[0.0]));
        assert!(is_one_of(&Value::Bool(true), &[1.0]));
        assert!(!is_one_of(&Value::F32(f32::NAN), &[0.0]));
        assert!(!is_one_of(&Value::Str(b"0"), &[0.0]));
    }
}
