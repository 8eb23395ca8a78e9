//! What this CPU can do, as a value: detected once, printed, forced with `--isa`, passed down.

use std::fmt;
use std::str::FromStr;

/// An instruction set whose kernels this build holds and this CPU runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Isa {
    /// Portable Rust, whatever the compiler makes of it.
    Scalar,
    /// AVX2 with FMA and F16C.
    Avx2,
    /// The same with AVX-VNNI, which CPUs without AVX-512 have.
    AvxVnni,
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512,
    /// AVX-512 as above, and AMX with bf16 for prompts.
    Amx,
    /// NEON as in every 64-bit Arm CPU.
    Neon,
    /// NEON with `sdot` (Armv8.2 `dotprod`).
    NeonDot,
    /// NEON with `usdot` (Armv8.6 `i8mm`).
    NeonI8mm,
}

/// Relative rms errors of single values, made on purpose.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Rounding {
    /// Of the inputs of products with quantized weights.
    pub products: f64,
    /// Of the inputs of products with float weights.
    pub floats: f64,
    /// Of attention's weights and values.
    pub attention: f64,
}

impl Rounding {
    /// Nothing is rounded.
    pub const NONE: Rounding = Rounding {
        products: 0.0,
        floats: 0.0,
        attention: 0.0,
    };

    /// Each error of this and of another, made one by `f`.
    #[must_use]
    pub fn with(self, other: Rounding, f: fn(f64, f64) -> f64) -> Rounding {
        Rounding {
            products: f(self.products, other.products),
            floats: f(self.floats, other.floats),
            attention: f(self.attention, other.attention),
        }
    }
}

impl Isa {
    /// Every instruction set that has kernels, on whatever CPU; within one architecture coarsest
    /// first.
    pub const ALL: [Isa; 8] = [
        Isa::Scalar,
        Isa::Avx2,
        Isa::AvxVnni,
        Isa::Avx512,
        Isa::Amx,
        Isa::Neon,
        Isa::NeonDot,
        Isa::NeonI8mm,
    ];

    /// The name that `--isa` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::AvxVnni => "avxvnni",
            Isa::Avx512 => "avx512",
            Isa::Amx => "amx",
            Isa::Neon => "neon",
            Isa::NeonDot => "dotprod",
            Isa::NeonI8mm => "i8mm",
        }
    }

    /// What its fastest multiply-adds work on, for people.
    pub fn arithmetic(self) -> &'static str {
        if self == Isa::Amx {
            "bf16 tiles"
        } else {
            "f32"
        }
    }

    /// What its prompt kernels round beyond f32, for models of quantized weights.
    pub fn prompt_rounding(self) -> Rounding {
        // half a step of bf16's 8 bits, evenly spread
        let bf16 = 1.0 / 512.0 / 3f64.sqrt();
        match self {
            // factors are both rounded
            Isa::Amx => Rounding {
                products: bf16 * 2f64.sqrt(),
                floats: 0.0,
                attention: bf16 * 2f64.sqrt(),
            },
            // half a step of 15 bits below the largest of 256, which is at most 16 times their rms
            _ => Rounding {
                products: 16.0 / 32_639.0 / 12f64.sqrt(),
                floats: 0.0,
                attention: 0.0,
            },
        }
    }

    /// Whether this CPU runs it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2")
                    && is_x86_feature_detected!("fma")
                    && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::AvxVnni => Isa::Avx2.is_available() && is_x86_feature_detected!("avxvnni"),
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Amx => Isa::Avx512.is_available() && crate::x86::amx::is_available(),
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => {
                Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => {
                Isa::NeonDot.is_available() && std::arch::is_aarch64_feature_detected!("i8mm")
            }
            // those of other architectures
            _ => false,
        }
    }

    /// The instruction sets this CPU runs, coarsest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL
            .into_iter()
            .filter(|isa| isa.is_available())
            .collect()
    }

    /// The best one this CPU runs.
    pub fn best() -> Isa {
        Isa::available().into_iter().max().unwrap_or(Isa::Scalar)
    }
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// What the user asked for.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsaChoice {
    /// The best this CPU offers.
    #[default]
    Auto,
    /// This one or an error.
    Only(Isa),
}

/// Why an instruction set cannot be had.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The CPU lacks it.
    #[error("--isa {wanted}: this CPU lacks it (it offers {})", offered.iter().map(|i| i.name()).collect::<Vec<_>>().join(", "))]
    Missing {
        /// The instruction set asked for.
        wanted: Isa,
        /// What the CPU offers.
        offered: Vec<Isa>,
    },
    /// No kernels of this name.
    #[error(
        "--isa {0}: unknown; expected one of auto, scalar, avx2, avxvnni, avx512, amx, neon, dotprod, i8mm"
    )]
    Unknown(String),
}

impl IsaChoice {
    /// The instruction set to run.
    ///
    /// # Errors
    /// [`IsaError::Missing`] if a forced one is not available.
    pub fn resolve(self) -> Result<Isa, IsaError> {
        match self {
            IsaChoice::Auto => Ok(Isa::best()),
            IsaChoice::Only(isa) if isa.is_available() => Ok(isa),
            IsaChoice::Only(wanted) => Err(IsaError::Missing {
                wanted,
                offered: Isa::available(),
            }),
        }
    }
}

impl FromStr for IsaChoice {
    type Err = IsaError;

    fn from_str(s: &str) -> Result<Self, IsaError> {
        if s == "auto" {
            return Ok(IsaChoice::Auto);
        }
        Isa::ALL
            .into_iter()
            .find(|isa| isa.name() == s)
            .map(IsaChoice::Only)
            .ok_or_else(|| IsaError::Unknown(s.to_owned()))
    }
}

impl fmt::Display for IsaChoice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            IsaChoice::Auto => f.pad("auto"),
            IsaChoice::Only(isa) => isa.fmt(f),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_round_trip_and_unknown_ones_are_refused() {
        for isa in Isa::ALL {
            assert_eq!(isa.name().parse::<IsaChoice>(), Ok(IsaChoice::Only(isa)));
        }
        assert_eq!("auto".parse::<IsaChoice>(), Ok(IsaChoice::Auto));
        assert!("sse9".parse::<IsaChoice>().is_err());
        assert_eq!(IsaChoice::Only(Isa::Scalar).resolve(), Ok(Isa::Scalar));
        let foreign = if cfg!(target_arch = "aarch64") {
            Isa::Avx2
        } else {
            Isa::Neon
        };
        assert!(matches!(
            IsaChoice::Only(foreign).resolve(),
            Err(IsaError::Missing { .. })
        ));
    }
}
