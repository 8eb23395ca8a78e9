//! Reads the factors of a model.

use super::super::architecture::{Architecture, Scales, ScoreScale};
use super::heads::Heads;
use super::keys::Keys;
use crate::Error;

/// Factors of the whole model; 1 where an architecture has none.
#[derive(Debug)]
pub(in super::super) struct Factors {
    pub(in super::super) embedding: f64,
    /// Factor on both branches, before they are added to the stream.
    pub(in super::super) residual: f64,
    /// Factor on attention's result.
    pub(in super::super) attention: f64,
    pub(in super::super) logits: f64,
}

pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_embd: usize,
    n_layer: usize,
) -> Result<Factors, Error> {
    let keyed = |key, default| Ok::<_, Error>(keys.factor(key)?.unwrap_or(default));
    let mut factors = Factors {
        embedding: 1.0,
        residual: 1.0,
        attention: match architecture.value_scale {
            true => keyed("attention.value_scale", 1.0)?,
            false => 1.0,
        },
        logits: 1.0,
    };
    let wide = n_embd as f64;
    match architecture.scales {
        Scales::None => {}
        Scales::Embedding => factors.embedding = wide.sqrt(),
        Scales::Logits => factors.logits = keyed("logit_scale", 1.0)?,
        Scales::Granite { divisor_required } => {
            let divisor = match keys.factor("logit_scale")? {
                None if divisor_required => return Err(keys.missing("logit_scale")),
                divisor => divisor.unwrap_or(1.0),
            };
            factors = Factors {
                embedding: keyed("embedding_scale", 1.0)?,
                residual: keyed("residual_scale", 1.0)?,
                attention: 1.0,
                logits: 1.0 / divisor,
            };
        }
        Scales::MiniCpm => {
            factors = Factors {
                embedding: keyed("embedding_scale", 12.0)?,
                residual: keyed("residual_scale", 1.4 / (n_layer as f64).sqrt())?,
                attention: 1.0,
                logits: 1.0 / keyed("logit_scale", 256.0 / wide)?,
            };
        }
    }
    Ok(factors)
}

/// Reads the factor on scores.
pub(super) fn read_score_scale(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_embd: usize,
    heads: &Heads,
) -> Result<f64, Error> {
    let n_layer = heads.n_head.len();
    let width = match architecture.score_scale {
        ScoreScale::One => return Ok(1.0),
        ScoreScale::WideAt(at) if at == n_layer => n_embd as f64 / heads.n_head[0] as f64,
        _ => heads.dim as f64,
    };
    let scale = 1.0 / width.sqrt();
    Ok(keys.factor("attention.scale")?.unwrap_or(scale))
}
