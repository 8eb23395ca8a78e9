//! The `rope.*` keys.

use gguf_rs_lite::Value;

use super::Hparams;
use crate::arch::Spec;
use crate::error::Error;
use crate::keys::{Keys, Source, Sourced, float, is_one_of, json_f32, show};
use octavo_kernels::Pairing;

/// Kind of position scaling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ScalingKind {
    /// No scaling.
    None,
    /// All angles are divided by the factor.
    Linear,
    /// LongRoPE: per-pair divisors that depend on the context length; all are divided by the factor
    /// too.
    LongRope,
    /// YaRN: keeps high frequencies, divides low ones, with a ramp between.
    Yarn,
}

impl ScalingKind {
    /// Returns the name in the file.
    pub fn name(self) -> &'static str {
        match self {
            ScalingKind::None => "none",
            ScalingKind::Linear => "linear",
            ScalingKind::LongRope => "longrope",
            ScalingKind::Yarn => "yarn",
        }
    }
}

/// The `rope.*` keys.
#[derive(Clone, Debug, PartialEq)]
pub struct RopeHparams {
    /// Rotated dimensions of a head (the first ones); even.
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
    /// YaRN: strength of the magnitude's cancellation; 0 cancels nothing.
    pub log_multiplier: f32,
    /// Whether `rope_freqs` and the like divide the angles.
    pub divided: bool,
    /// Image axis of each pair, or `None` for pairs that are not rotated; empty where all pairs use
    /// the token's position.
    pub axes: Vec<Option<usize>>,
    /// Pairing of dimensions (a property of the architecture).
    pub pairing: Pairing,
}

/// Reads and checks the keys for heads of `head_dim` values.
pub(super) fn read(
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
    if freq_base.source == Source::Default && !spec.embeds_positions {
        let key = k.full("rope.freq_base");
        k.warn(format!("no {key}: 10000 is assumed"));
    }
    let (scaling, factor) = scaling(k, spec)?;
    let original_context = k.count(
        "rope.scaling.original_context_length",
        1..=i32::MAX as usize,
        Some(context),
    )?;
    let attn_factor = k.positive("rope.scaling.attn_factor", f32::INFINITY, Some(1.0))?;
    let beta_fast = yarn_beta(k, spec, "rope.scaling.yarn_beta_fast", 32.0)?;
    let beta_slow = yarn_beta(k, spec, "rope.scaling.yarn_beta_slow", 1.0)?;
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
            if got.value != usual && !spec.reads.contains(&suffix) {
                let key = k.full(suffix);
                k.warn(format!(
                    "{key} = {} is used; llama.cpp takes {usual} for this architecture",
                    got.value
                ));
            }
        }
    }
    refuse_ext_factor(k, scaling.value)?;
    let axes = match spec.sections {
        Some(sections) => axes(k, sections, n_rot.value)?,
        None => Vec::new(),
    };
    Ok(RopeHparams {
        n_rot,
        freq_base,
        scaling,
        factor,
        original_context,
        attn_factor,
        beta_fast,
        beta_slow,
        log_multiplier: 0.0,
        divided: true,
        axes,
        pairing: spec.pairing,
    })
}

/// Reads an end of YaRN's ramp.
fn yarn_beta(k: &mut Keys<'_>, spec: &Spec, key: &str, usual: f32) -> Result<Sourced<f32>, Error> {
    if spec.ignores_yarn_betas {
        k.warn_of_unheard(key, &[usual.into()]);
        return Ok(Sourced::default(usual));
    }
    k.positive(key, f32::INFINITY, Some(usual))
}

/// Returns a placeholder for models without RoPE; reads no key.
pub(super) fn unused(spec: &Spec, context: usize) -> RopeHparams {
    RopeHparams {
        n_rot: Sourced::default(2),
        freq_base: Sourced::default(10000.0),
        scaling: Sourced::default(ScalingKind::None),
        factor: Sourced::default(1.0),
        original_context: Sourced::default(context),
        attn_factor: Sourced::default(1.0),
        beta_fast: Sourced::default(32.0),
        beta_slow: Sourced::default(1.0),
        log_multiplier: 0.0,
        divided: false,
        axes: Vec::new(),
        pairing: spec.pairing,
    }
}

/// M-RoPE: assignment of a head's pairs to the image axes time, height and width. In text all of
/// these use the token's position; pairs outside the three sections are not rotated.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Sections {
    /// Pairs go to the axes in turn, as long as an axis' section has pairs left.
    Interleaved,
    /// One section after the other.
    Blocks,
}

/// Key of the section sizes.
pub(crate) const SECTIONS: &str = "rope.dimension_sections";

/// Returns the axis of each pair.
fn axes(k: &mut Keys<'_>, sections: Sections, n_rot: usize) -> Result<Vec<Option<usize>>, Error> {
    let Some(value) = k.get(SECTIONS) else {
        return Err(k.missing(k.full(SECTIONS), "four counts of pairs"));
    };
    let counts: Option<Vec<usize>> = match &value {
        Value::Array(counts) => counts
            .iter()
            .map(|v| usize::try_from(v.as_int()?).ok().filter(|n| *n <= n_rot))
            .collect(),
        _ => None,
    };
    let is_sound = |counts: &Vec<usize>| counts.len() == 4 && counts.iter().sum::<usize>() > 0;
    let counts = counts.filter(is_sound);
    let counts = counts.ok_or_else(|| {
        let expected = format!("four counts of pairs, each at most {n_rot} and not all 0");
        k.bad(k.full(SECTIONS), expected, show(&value))
    })?;
    let shown: Vec<serde_json::Value> = counts.iter().map(|n| (*n).into()).collect();
    k.note(k.full(SECTIONS), shown, Source::File);
    let total: usize = counts.iter().sum();
    let axis = |pair: usize| {
        let place = pair % total;
        match sections {
            Sections::Interleaved => Some(place % 3).filter(|axis| place < 3 * counts[*axis]),
            Sections::Blocks => (0..3).find(|axis| place < counts[..=*axis].iter().sum()),
        }
    };
    Ok((0..n_rot / 2).map(axis).collect())
}

/// Rotates pairs by image axes where the file has their sections, as llama.cpp does in
/// architectures that got vision models later. Angles of text do not depend on the axes.
pub(crate) fn sections_if_any(k: &mut Keys<'_>, h: &mut Hparams) -> Result<(), Error> {
    let is_set = k.get(SECTIONS).is_some_and(|v| !is_one_of(&v, &[0.0]));
    if is_set {
        let rope = &mut h.ropes[0];
        rope.axes = axes(k, Sections::Blocks, rope.n_rot.value)?;
        rope.pairing = Pairing::Neox;
    }
    Ok(())
}

/// Reads `rope.scaling.type` and the factor, which old files call `rope.scale_linear`. A missing
/// factor, or 0, means 1, for every type.
fn scaling(k: &mut Keys<'_>, spec: &Spec) -> Result<(Sourced<ScalingKind>, Sourced<f32>), Error> {
    const TYPE: &str = "rope.scaling.type";
    let old = k.get("rope.scaling.factor").is_none() && k.get("rope.scale_linear").is_some();
    let suffix = if old {
        "rope.scale_linear"
    } else {
        "rope.scaling.factor"
    };
    let has_factor = k.get(suffix).is_some();
    let kind = match k.text(TYPE)? {
        None if has_factor => Sourced::default(ScalingKind::Linear),
        None => Sourced::default(ScalingKind::None),
        Some("none") => Sourced::file(ScalingKind::None),
        Some("linear") => Sourced::file(ScalingKind::Linear),
        Some("yarn") => Sourced::file(ScalingKind::Yarn),
        Some("longrope") if spec.longrope => Sourced::file(ScalingKind::LongRope),
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
    if k.get(suffix).is_some_and(|v| float(&v) == Some(0.0)) {
        k.note(k.full(suffix), json_f32(1.0), Source::Default);
        return Ok((kind, Sourced::default(1.0)));
    }
    Ok((kind, k.positive(suffix, f32::INFINITY, Some(1.0))?))
}

/// Refuses other extrapolation factors than YaRN's default: 1 with yarn and 0 without.
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
