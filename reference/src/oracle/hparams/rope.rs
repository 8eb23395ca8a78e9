//! Reads the rotary embedding.

use super::super::architecture::{Architecture, Sections, WindowRope};
use super::super::rope::{Rope, YarnKeys};
use super::MAX_WIDTH;
use super::keys::Keys;
use crate::Error;
use gguf_rs_lite::Value;

const SECTIONS: &str = "rope.dimension_sections";

/// Reads the RoPE of layers without and with a window.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    head_dim: usize,
    window_head_dim: usize,
) -> Result<(Rope, Rope), Error> {
    let n_rot = read_n_rot(keys, architecture, "rope.dimension_count", head_dim)?;
    let base = keys.number("rope.freq_base")?.unwrap_or(10_000.0);
    let base = match keys.factor("rope.scaling.alpha")? {
        Some(alpha) => base * alpha.powf(head_dim as f64 / (head_dim as f64 - 2.0)),
        None => base,
    };
    let mut rope = scaled(keys, architecture, n_rot, base)?;
    if architecture.sections != Sections::None {
        rope.axes = read_axes(keys, architecture.sections, n_rot / 2)?;
    }
    let window_base = keys.number("rope.freq_base_swa")?;
    let window_rope = match architecture.windows.map(|windows| windows.rope) {
        None => rope.clone(),
        Some(WindowRope::Same) => scaled(keys, architecture, n_rot, base)?,
        Some(WindowRope::Based) => scaled(keys, architecture, n_rot, window_base.unwrap_or(base))?,
        Some(WindowRope::Local(local) | WindowRope::Undivided(local)) => Rope {
            base: window_base.unwrap_or(local),
            scale: 1.0,
            magnitude: read_magnitude(keys)?,
            yarn: None,
            ..rope.clone()
        },
        Some(WindowRope::Plain) => Rope {
            scale: 1.0,
            magnitude: 1.0,
            yarn: None,
            ..rope.clone()
        },
    };
    let own = architecture
        .windows
        .is_some_and(|windows| windows.own_heads);
    let window_n_rot = match own {
        true => {
            let key = "rope.dimension_count_swa";
            read_n_rot(keys, architecture, key, window_head_dim)?
        }
        false => n_rot,
    };
    if architecture.half_rotation {
        rope = scaled(keys, architecture, n_rot / 2, base)?;
    }
    let window_rope = Rope {
        n_rot: window_n_rot,
        divisors: vec![1.0; window_n_rot / 2],
        axes: match own {
            true => vec![0; window_n_rot / 2],
            false => window_rope.axes,
        },
        ..window_rope
    };
    for (key, rope) in [
        ("rope.freq_base", &rope),
        ("rope.freq_base_swa", &window_rope),
    ] {
        if !rope.base.is_finite() || rope.base <= 1.0 {
            return Err(keys.bad(key, "more than 1", rope.base));
        }
    }
    Ok((rope, window_rope))
}

fn read_n_rot(
    keys: &Keys<'_>,
    architecture: &Architecture,
    key: &str,
    head_dim: usize,
) -> Result<usize, Error> {
    let n_rot = keys.optional_count(key)?.unwrap_or(head_dim);
    let allowed = n_rot == head_dim || (n_rot < head_dim && !architecture.whole_rotation);
    if !allowed || n_rot % 2 != 0 {
        let expected = format!("an even count within the head width {head_dim}");
        return Err(keys.bad(key, expected, n_rot));
    }
    // Files of multimodal models rotate pairs by several positions each.
    if architecture.sections == Sections::None && keys.array(SECTIONS, 0)?.is_some() {
        let expected = "no sections: a text has one position for each token";
        return Err(keys.bad(SECTIONS, expected, "an array"));
    }
    Ok(n_rot)
}

/// Reads the axis of each pair. Where there are more pairs than the sections count, the sections
/// repeat.
fn read_axes(keys: &Keys<'_>, sections: Sections, n_pairs: usize) -> Result<Vec<usize>, Error> {
    let values = keys
        .array(SECTIONS, 4)?
        .ok_or_else(|| keys.bad(SECTIONS, "an array of counts", "no array"))?;
    let count = |value: &Value<'_>| value.as_int().and_then(|v| usize::try_from(v).ok());
    let counts: Option<Vec<usize>> = values.iter().map(count).collect();
    let in_range = |counts: &Vec<usize>| {
        let total = counts
            .iter()
            .fold(0usize, |sum, &count| sum.saturating_add(count));
        (1..=MAX_WIDTH).contains(&total)
    };
    let counts = counts.filter(in_range).ok_or_else(|| {
        let expected = format!("four counts of 1 to {MAX_WIDTH} pairs together");
        keys.bad(SECTIONS, expected, "others")
    })?;
    let total: usize = counts.iter().sum();
    let axis = |pair: usize| axis_of(sections, &counts, pair % total);
    Ok((0..n_pairs).map(axis).collect())
}

/// Returns the axis of the pair at `place` among those that the sections count.
fn axis_of(sections: Sections, counts: &[usize], place: usize) -> usize {
    const FOURTH: usize = 3;
    match sections {
        Sections::None => 0,
        Sections::Interleaved if place < 3 * counts[place % 3] => place % 3,
        Sections::Interleaved => FOURTH,
        Sections::Blocks => {
            let mut ends = counts.iter().scan(0, |end, count| {
                *end += count;
                Some(*end)
            });
            ends.position(|end| place < end).unwrap_or(FOURTH)
        }
    }
}

fn read_magnitude(keys: &Keys<'_>) -> Result<f64, Error> {
    Ok(keys.number("rope.scaling.attn_factor")?.unwrap_or(1.0))
}

/// Context lengths that choose between long and short factors.
#[derive(Debug, Clone, Copy)]
pub(in super::super) struct Contexts {
    /// Whether the model has such factors, if its file has the tensors.
    pub(in super::super) choose_factors: bool,
    /// Context length of the original training: long factors apply to longer ones.
    pub(in super::super) original: Option<f64>,
    /// Extended context length.
    pub(in super::super) trained: Option<f64>,
}

pub(super) fn read_contexts(
    keys: &Keys<'_>,
    architecture: &Architecture,
) -> Result<Contexts, Error> {
    let trained = keys.number("context_length")?;
    let original = keys.number("rope.scaling.original_context_length")?;
    let kind = keys.gguf.str(&keys.name("rope.scaling.type"))?;
    Ok(Contexts {
        choose_factors: architecture.long_factors || kind == Some("longrope"),
        original: original.or(trained),
        trained,
    })
}

/// Builds a RoPE with this base, scaled as the keys say.
fn scaled(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_rot: usize,
    base: f64,
) -> Result<Rope, Error> {
    let mut rope = Rope {
        pairs: architecture.rope_pairs,
        n_rot,
        base,
        scale: 1.0,
        magnitude: read_magnitude(keys)?,
        yarn: None,
        divisors: vec![1.0; n_rot / 2],
        axes: vec![0; n_rot / 2],
    };
    let factor = match keys.number("rope.scaling.factor")? {
        Some(factor) => factor,
        None => keys.number("rope.scale_linear")?.unwrap_or(0.0),
    };
    let factor = if factor == 0.0 { 1.0 } else { factor };
    match keys.gguf.str(&keys.name("rope.scaling.type"))? {
        Some("none") => {}
        None | Some("linear" | "longrope") => rope.scale = 1.0 / factor,
        Some("yarn") => {
            rope.scale = 1.0 / factor;
            let or = |key: &str, usual| Ok::<_, Error>(keys.number(key)?.unwrap_or(usual));
            rope.set_yarn(YarnKeys {
                factor,
                context: read_contexts(keys, architecture)?
                    .original
                    .ok_or_else(|| keys.missing("context_length"))?,
                beta_fast: match architecture.usual_ramp {
                    true => 32.0,
                    false => or("rope.scaling.yarn_beta_fast", 32.0)?,
                },
                beta_slow: match architecture.usual_ramp {
                    true => 1.0,
                    false => or("rope.scaling.yarn_beta_slow", 1.0)?,
                },
                // with latent attention the multiplier scales scores, and cancels the magnitude
                // completely
                log_multiplier: match or("rope.scaling.yarn_log_multiplier", 0.0)? {
                    multiplier if architecture.latent && multiplier != 0.0 => 1.0,
                    multiplier => multiplier,
                },
            });
        }
        Some(other) => {
            let expected = "none, linear, yarn or longrope";
            return Err(keys.bad("rope.scaling.type", expected, format!("{other:?}")));
        }
    }
    Ok(rope)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn axes_take_pairs_in_turn_or_one_after_another() {
        let axes = |sections, counts: [usize; 4]| -> String {
            let total: usize = counts.iter().sum();
            let axis = |place| {
                "thw-"
                    .chars()
                    .nth(axis_of(sections, &counts, place))
                    .unwrap()
            };
            (0..total).map(axis).collect()
        };
        let interleaved = |counts| axes(Sections::Interleaved, counts);
        assert_eq!(interleaved([4, 3, 3, 0]), "thwthwthwt");
        // a short third axis leaves pairs without an axis, and so does a fourth section
        assert_eq!(interleaved([3, 3, 1, 2]), "thwth-th-");
        // real files: with 24, 20, 20 the last height and width pairs are left over
        assert_eq!(&interleaved([24, 20, 20, 0])[57..], "thwt--t");
        assert_eq!(axes(Sections::Blocks, [2, 3, 1, 1]), "tthhhw-");
    }
}
