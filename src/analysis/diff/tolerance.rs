//! Tolerances for the engine against another program on the same file.

use gguf_rs_lite::TensorType;
use serde::Serialize;

use super::logits::LogitComparison;
use super::measured::{Measured, mean_kl};
use super::tensors::Tensors;
use octavo_model::{Model, Network};
use octavo_vision::Tower;

/// Tolerances for two computations of the same file.
#[derive(Clone, Debug, PartialEq, Serialize)]
pub struct Tolerance {
    /// Largest NMSE of the logits, or of each tensor.
    pub nmse: f64,
    /// Largest mean KL, if it is to be checked; references with probabilities only are always
    /// checked by KL.
    pub kl: Option<f64>,
    /// Origin of the NMSE, for people.
    pub reason: String,
}

/// Resolution of the KL of log-probabilities stored as f32 or 16 bits.
const KL_FLOOR: f64 = 1e-6;

/// NMSE allowed if only f32 sums (in two orders) and f32 angles are rounded.
const F32_SUMS: f64 = 1e-9;

/// NMSE allowed where llama.cpp takes GELU from a table with f16 arguments and values: against an
/// exact GELU, logits of small models differ by 2e-8 to 4e-7, and inner tensors by up to 1.1e-6.
const GELU_OF_HALVES: f64 = 3e-6;

/// NMSE allowed where pixels are rounded to f16.
const HALVES_OF_IMAGES: f64 = 1e-5;

/// Returns the NMSE that llama.cpp adds to one product by rounding the activations for weights of
/// this type (`vec_dot_type` in its table of types).
///
/// Errors of a product's terms are independent of each other and of the weights, so the NMSE of a
/// sum is that of a term.
///
/// - F32: nothing is rounded.
/// - F16, BF16: the error is uniform within half a unit in the last place, of variance ulp^2 / 12,
///   where the ulp is 2^-10 (2^-7) of the power of two below the value; over mantissas m from 1 to
///   2, spread evenly in the logarithm, 1 / m^2 is 3 / (8 ln 2) on average. Together 4.3e-8 and
///   2.75e-6.
/// - Quantized: to codes that are steps of max / 127 (Q8_0, Q8_1 for blocks of 32, Q8_K for those
///   of 256), of variance (max / 127)^2 / 12. The mean square of the largest of 256 normal values
///   is LARGEST times theirs; of 32 it is 5.7, but what trained models compute has outliers:
///   SmolLM2 in Q4_1 differs by 2.0e-3, more than any random model did.
fn rounding(ty: TensorType) -> f64 {
    let mantissa = |bits: i32| 2f64.powi(-2 * bits) / 12.0 * 3.0 / (8.0 * std::f64::consts::LN_2);
    match ty {
        TensorType::F32 | TensorType::F64 => 0.0,
        TensorType::F16 => mantissa(10),
        TensorType::BF16 => mantissa(7),
        _ => LARGEST / (127.0 * 127.0 * 12.0),
    }
}

/// Mean square of the largest of 256 normally distributed values, in units of their variance.
const LARGEST: f64 = 9.5;

/// Number of such roundings allowed for in a logit.
///
/// A layer rounds four times, the output head once. More layers hardly add to that: the norm before
/// each passes a relative error on unchanged, and a layer's addition becomes an ever smaller part
/// of the residual stream. `cargo xtask tolerances` measured over fifty random models of each type
/// with 1 to 12 layers (mean, largest NMSE): F32 1.5e-12, 3.0e-12; F16 5.5e-7, 8.6e-7; BF16 3.7e-5,
/// 5.7e-5; Q8_0 5.2e-4, 1.0e-3; Q4_0 5.3e-4, 8.7e-4; Q4_1 5.4e-4, 8.3e-4; Q6_K 1.1e-3, 1.6e-3;
/// Q4_K_M 1.0e-3, 1.8e-3; Q2_K 9.0e-4, 1.3e-3; IQ4_XS 1.0e-3, 1.8e-3. That is 13 roundings, and up
/// to 37: this is some three times the largest. The planted fault, another base of the rotary
/// embedding, gave at least 0.1 (F16, BF16, Q8_0, Q6_K).
const ROUNDINGS: f64 = 100.0;

impl Tolerance {
    /// Returns the default, by llama.cpp's rounding for the coarsest type among the model's
    /// matrices.
    pub fn of(model: &Model) -> Tolerance {
        let types = model.weights.tensors.matrices.iter().map(|w| w.ty);
        let coarsest = types
            .max_by(|a, b| rounding(*a).total_cmp(&rounding(*b)))
            .unwrap_or(TensorType::F32);
        let mut nmse = (ROUNDINGS * rounding(coarsest)).max(F32_SUMS);
        let mut reason = format!("the default for {coarsest} weights");
        if nmse < GELU_OF_HALVES && model.graph.uses_gelu() {
            nmse = GELU_OF_HALVES;
            reason += ", and for GELU, which llama.cpp takes from a table of halves";
        }
        Tolerance {
            nmse: two_digits(nmse),
            kl: None,
            reason,
        }
    }

    /// Returns the default for a tower. llama.cpp rounds an image's pixels and the patch kernels to
    /// f16, and GELU's arguments and values. Output rows differ by an NMSE of 2e-7 to 2e-6, and
    /// inner tensors by up to 2.2e-6 of the few values that are printed; what blocks add is smaller
    /// than the residual stream, whose errors it carries. Faults are at 5e-5 and above.
    pub fn of_tower(tower: &Tower) -> Tolerance {
        let types = tower.tensors().matrices.iter().map(|w| w.ty);
        let rounded = types.map(rounding).fold(0.0, f64::max);
        Tolerance {
            nmse: two_digits((ROUNDINGS * rounded).max(HALVES_OF_IMAGES)),
            kl: None,
            reason: "the default for towers, whose pixels llama.cpp rounds to halves".to_owned(),
        }
    }

    /// Returns the mean KL allowed where there are probabilities only: as given, else as large as
    /// the NMSE.
    pub fn kl_alone(&self) -> f64 {
        self.kl.unwrap_or(self.nmse.max(KL_FLOOR))
    }

    /// Returns whether a comparison of logits is within the tolerances; NaN is not.
    pub fn allows(&self, c: &LogitComparison) -> bool {
        c.nmse <= self.nmse && self.kl.is_none_or(|kl| c.mean_kl <= kl)
    }

    /// Returns whether a measurement is within the tolerances. An empty comparison is not.
    pub fn holds(&self, measured: &Measured) -> bool {
        match measured {
            Measured::Logits(c) => self.allows(c),
            Measured::Tensors(Tensors { all, .. }) => {
                !all.is_empty() && all.iter().all(|t| !t.outside)
            }
            Measured::Generated(all) => mean_kl(all) <= self.kl_alone(),
            Measured::Divergence { mean_kl, .. } => *mean_kl <= self.kl_alone(),
        }
    }
}

/// Rounds to two significant digits, enough for a printed bound.
fn two_digits(x: f64) -> f64 {
    format!("{x:.1e}").parse().unwrap_or(x)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn roundings_are_those_of_the_types_that_activations_become() {
        for (ty, expected) in [
            ("F32", 0.0),
            ("F16", 4.3e-8),
            ("BF16", 2.75e-6),
            ("Q8_0", 4.9e-5),
            ("Q4_K", 4.9e-5),
        ] {
            let ty = TensorType::from_name(ty).expect("a type");
            assert!(
                (rounding(ty) - expected).abs() <= 0.02 * expected,
                "{ty}: {:e}",
                rounding(ty)
            );
        }
        // empirically: the relative square error of numbers spread evenly in the logarithm
        let n = 10_000;
        let error = |i: i32| {
            let x = 2f32.powf(i as f32 / n as f32);
            let rounded = half::bf16::from_f32(x).to_f32();
            f64::from((rounded - x) / x).powi(2)
        };
        let mean = (0..n).map(error).sum::<f64>() / f64::from(n);
        assert!(
            (mean / rounding(TensorType::BF16) - 1.0).abs() < 0.05,
            "{mean:e}"
        );
        assert_eq!(two_digits(1.870_000_000_000_2e-4), 1.9e-4);
    }
}
