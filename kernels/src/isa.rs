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
    /// AVX-512 F, BW, VL, DQ and VNNI; AMX is not used.
    Avx512,
    /// NEON as in every 64-bit Arm CPU.
    Neon,
    /// NEON with `sdot` (Armv8.2 `dotprod`).
    NeonDot,
    /// NEON with `usdot` (Armv8.6 `i8mm`).
    NeonI8mm,
}

impl Isa {
    /// Every instruction set that has kernels, on whatever CPU; within one architecture coarsest first.
    pub const ALL: [Isa; 6] = [Isa::Scalar, Isa::Avx2, Isa::Avx512, Isa::Neon, Isa::NeonDot, Isa::NeonI8mm];

    /// The name that `--isa` takes.
    pub fn name(self) -> &'static str {
        match self {
            Isa::Scalar => "scalar",
            Isa::Avx2 => "avx2",
            Isa::Avx512 => "avx512",
            Isa::Neon => "neon",
            Isa::NeonDot => "dotprod",
            Isa::NeonI8mm => "i8mm",
        }
    }

    /// Whether this CPU runs it.
    pub fn is_available(self) -> bool {
        match self {
            Isa::Scalar => true,
            #[cfg(target_arch = "x86_64")]
            Isa::Avx2 => {
                is_x86_feature_detected!("avx2") && is_x86_feature_detected!("fma") && is_x86_feature_detected!("f16c")
            }
            #[cfg(target_arch = "x86_64")]
            Isa::Avx512 => {
                Isa::Avx2.is_available()
                    && is_x86_feature_detected!("avx512f")
                    && is_x86_feature_detected!("avx512bw")
                    && is_x86_feature_detected!("avx512vl")
                    && is_x86_feature_detected!("avx512dq")
                    && is_x86_feature_detected!("avx512vnni")
            }
            #[cfg(target_arch = "aarch64")]
            Isa::Neon => std::arch::is_aarch64_feature_detected!("neon"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonDot => Isa::Neon.is_available() && std::arch::is_aarch64_feature_detected!("dotprod"),
            #[cfg(target_arch = "aarch64")]
            Isa::NeonI8mm => Isa::NeonDot.is_available() && std::arch::is_aarch64_feature_detected!("i8mm"),
            // those of other architectures
            _ => false,
        }
    }

    /// The instruction sets this CPU runs, coarsest first.
    pub fn available() -> Vec<Isa> {
        Isa::ALL.into_iter().filter(|isa| isa.is_available()).collect()
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
    #[error("--isa {0}: unknown; expected one of auto, scalar, avx2, avx512, neon, dotprod, i8mm")]
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
            IsaChoice::Only(wanted) => Err(IsaError::Missing { wanted, offered: Isa::available() }),
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
        let foreign = if cfg!(target_arch = "aarch64") { Isa::Avx2 } else { Isa::Neon };
        assert!(matches!(IsaChoice::Only(foreign).resolve(), Err(IsaError::Missing { .. })));
    }
}
