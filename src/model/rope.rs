//! Builds the rotary embedding's table from the hyperparameters: every scaling variant (linear,
//! YaRN, `rope_freqs.weight`) only changes its numbers.

use octavo_kernels::Rope;

use super::hparams::{Hparams, RopeHparams, ScalingKind};
use super::weights::Weights;

/// Returns the tables of a model for a context of `n_ctx` positions.
pub(crate) fn tables(h: &Hparams, w: &Weights, n_ctx: usize) -> Vec<Rope> {
    let table = |rope: &RopeHparams| {
        let by_length = if n_ctx > rope.original_context.value {
            w.rope_divisors.long
        } else {
            w.rope_divisors.short
        };
        let divisors = w.rope_divisors.all.or(by_length);
        let divisors = divisors.filter(|_| rope.divided);
        self::table(rope, divisors.map(|id| w.vector(id)))
    };
    h.ropes.iter().map(table).collect()
}

/// Returns the table for these hyperparameters; `divisors` is `rope_freqs.weight`, one divisor of
/// the angle per pair.
///
/// YaRN follows ggml: pair i keeps its frequency below `floor(dim(beta_fast))`, is divided by the
/// factor above `ceil(dim(beta_slow))`, with a linear ramp between, where `dim(r) = n_rot *
/// ln(original_context / (2 pi r)) / (2 ln base)` is the pair that completes r rotations over the
/// original context. The magnitude is `1 + 0.1 ln factor` (1 for factors up to 1) times
/// attn_factor, divided by `1 + 0.1 log_multiplier ln factor`.
fn table(h: &RopeHparams, divisors: Option<&[f32]>) -> Rope {
    let n_rot = h.n_rot.value;
    let base = f64::from(h.freq_base.value);
    let scale = match h.scaling.value {
        ScalingKind::None => 1.0,
        ScalingKind::Linear | ScalingKind::LongRope | ScalingKind::Yarn => {
            1.0 / f64::from(h.factor.value)
        }
    };
    let yarn = (h.scaling.value == ScalingKind::Yarn).then(|| Ramp::new(h, base));
    let frequencies = (0..n_rot / 2)
        .map(|i| {
            let divisor = divisors
                .and_then(|d| d.get(i))
                .map_or(1.0, |&d| f64::from(d));
            let full = base.powf(-2.0 * i as f64 / n_rot as f64) / divisor;
            let keep = yarn.as_ref().map_or(0.0, |ramp| ramp.keep(i));
            let is_still = h.axes.get(i).is_some_and(Option::is_none);
            let rotates = if is_still { 0.0 } else { 1.0 };
            rotates * full * (scale * (1.0 - keep) + keep)
        })
        .collect();
    let stretch = match (yarn, f64::from(h.factor.value)) {
        (Some(_), factor) if factor > 1.0 => {
            let taken_back = 0.1 * f64::from(h.log_multiplier) * factor.ln();
            (1.0 + 0.1 * factor.ln()) / (1.0 + taken_back)
        }
        _ => 1.0,
    };
    Rope {
        pairing: h.pairing,
        frequencies,
        magnitude: stretch * f64::from(h.attn_factor.value),
        // pairs without an axis have frequency 0, so any axis will do
        axes: h.axes.iter().map(|axis| axis.unwrap_or(0)).collect(),
    }
}

/// YaRN's ramp from pairs that keep their frequency to fully scaled pairs.
struct Ramp {
    low: f64,
    high: f64,
}

impl Ramp {
    fn new(h: &RopeHparams, base: f64) -> Ramp {
        let n = h.n_rot.value as f64;
        let dim = |rotations: f32| {
            let rotations = h.original_context.value as f64
                / (f64::from(rotations) * 2.0 * std::f64::consts::PI);
            n * rotations.ln() / (2.0 * base.ln())
        };
        Ramp {
            low: dim(h.beta_fast.value).floor().max(0.0),
            high: dim(h.beta_slow.value).ceil().min(n - 1.0),
        }
    }

    /// Returns 1 where pair `i` keeps its frequency, 0 where it is divided by the factor.
    fn keep(&self, i: usize) -> f64 {
        // 0.001 is ggml's guard against a ramp of no width
        1.0 - ((i as f64 - self.low) / (self.high - self.low).max(0.001)).clamp(0.0, 1.0)
    }
}
