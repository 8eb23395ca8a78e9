//! Instruction sets of this CPU, as a value: detected once or requested, printed, passed down.

use crate::prompt_bits::PromptBits;
use octavo_simd::kv_layout::{KvType, KvTypes};
use octavo_simd::table::Table;
use std::f64::consts::SQRT_2;
use std::fmt;
use std::str::FromStr;

/// Relative rms errors of single values, from deliberate rounding.
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

    /// Combines each error of this and of another by `f`.
    #[must_use]
    pub fn with(self, other: Rounding, f: fn(f64, f64) -> f64) -> Rounding {
        Rounding {
            products: f(self.products, other.products),
            floats: f(self.floats, other.floats),
            attention: f(self.attention, other.attention),
        }
    }
}

/// Row of the list of instruction sets.
struct Spec {
    isa: Isa,
    name: &'static str,
    /// Operands of its fastest multiply-adds.
    arithmetic: &'static str,
    prompt_rounding: Rounding,
    byte_prompts: bool,
    /// Its kernels, in builds for its architecture.
    table: Option<&'static Table>,
}

/// Makes [`Isa`] and the list of [`Spec`]s from one row each.
macro_rules! instruction_sets {
    ($($(#[$doc:meta])* $isa:ident: $name:literal, on $architecture:meta,
        kernels $($table:ident)::+, arithmetic $arithmetic:literal, rounding $rounding:expr,
        bytes $bytes:literal;)*) => {
        /// An instruction set that has kernels, in this build or in one for its architecture.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum Isa {
            $($(#[$doc])* $isa,)*
        }

        impl Isa {
            /// Every instruction set, whether this CPU has it or not; within one architecture
            /// coarsest first.
            pub const ALL: [Isa; ISAS.len()] = [$(Isa::$isa),*];
        }

        const ISAS: [Spec; [$(Isa::$isa),*].len()] = [$({
            #[cfg($architecture)]
            const TABLE: Option<&Table> = Some(&crate::$($table)::+);
            #[cfg(not($architecture))]
            const TABLE: Option<&Table> = None;
            Spec {
                isa: Isa::$isa,
                name: $name,
                arithmetic: $arithmetic,
                prompt_rounding: $rounding,
                byte_prompts: $bytes,
                table: TABLE,
            }
        }),*];
    };
}

instruction_sets! {
    /// Portable Rust, vectorized by the compiler.
    Scalar: "scalar", on all(), kernels portable::scalar::TABLE,
        arithmetic "f32", rounding INT16, bytes true;
    /// AVX2 with FMA and F16C.
    Avx2: "avx2", on target_arch = "x86_64", kernels x86::avx2::TABLE,
        arithmetic "f32", rounding INT16, bytes true;
    /// The same with AVX-VNNI, which CPUs without AVX-512 have.
    AvxVnni: "avxvnni", on target_arch = "x86_64", kernels x86::avxvnni::TABLE,
        arithmetic "f32", rounding INT16, bytes true;
    /// AVX-512 F, BW, VL, DQ and VNNI.
    Avx512: "avx512", on target_arch = "x86_64", kernels x86::avx512::TABLE,
        arithmetic "f32", rounding INT16, bytes true;
    /// AVX-512 as above, and AMX with bf16 for prompts.
    Amx: "amx", on target_arch = "x86_64", kernels x86::amx::TABLE,
        arithmetic "bf16 tiles", rounding BF16, bytes false;
    /// NEON as in every 64-bit Arm CPU.
    Neon: "neon", on target_arch = "aarch64", kernels aarch64::neon::TABLE,
        arithmetic "f32", rounding INT16_PRODUCTS, bytes false;
    /// NEON with `sdot` (Armv8.2 `dotprod`).
    NeonDot: "dotprod", on target_arch = "aarch64", kernels aarch64::dotprod::TABLE,
        arithmetic "f32", rounding INT16_PRODUCTS, bytes false;
    /// NEON with `usdot` (Armv8.6 `i8mm`).
    NeonI8mm: "i8mm", on target_arch = "aarch64", kernels aarch64::i8mm::TABLE,
        arithmetic "f32", rounding INT16_PRODUCTS, bytes false;
}

/// Products of prompts with quantized weights in 16-bit integers: half a step of 15 bits below the
/// largest of 256, which is at most 16 times their rms, evenly spread. Attention likewise, at 14
/// bits below the length of a head's 256 values.
const INT16: Rounding = Rounding {
    attention: 16.0 / 16_383.0 / ROOT_12,
    ..INT16_PRODUCTS
};

/// The same for products only, with attention in f32.
const INT16_PRODUCTS: Rounding = Rounding {
    products: 16.0 / 32_639.0 / ROOT_12,
    floats: 0.0,
    attention: 0.0,
};

/// The same in 13 bits.
const INT13: f64 = 16.0 / 4095.0 / ROOT_12;

/// The same in 8-bit integers: half a step of 7 bits below the largest of 32, which is at most
/// sqrt(32) times their rms.
const INT8: f64 = 5.656_854_249_492_38 / 127.0 / ROOT_12;

/// In bf16, which rounds both factors: half a step of 8 bits, evenly spread.
const BF16: Rounding = Rounding {
    products: 1.0 / 512.0 / ROOT_3 * SQRT_2,
    floats: 0.0,
    attention: 1.0 / 512.0 / ROOT_3 * SQRT_2,
};

/// The rms of a uniform distribution of width 1 is one over this.
const ROOT_12: f64 = 2.0 * ROOT_3;
const ROOT_3: f64 = 1.732_050_807_568_877_2;

impl Isa {
    fn spec(self) -> &'static Spec {
        // both are made from the same rows, in their order
        const { &ISAS }
            .iter()
            .find(|spec| spec.isa == self)
            .expect("every instruction set has a row")
    }

    /// Its name, as chosen on the command line.
    pub fn name(self) -> &'static str {
        self.spec().name
    }

    /// Operands of its fastest multiply-adds, for display.
    pub fn arithmetic(self) -> &'static str {
        self.spec().arithmetic
    }

    /// Rounding of its prompt kernels, coarser than f32, for models of quantized weights.
    pub fn prompt_rounding(self) -> Rounding {
        self.spec().prompt_rounding
    }

    /// The same for kernels that round to `bits` where they can, with keys and values of these
    /// types.
    pub fn prompt_rounding_in(self, bits: PromptBits, kv_types: KvTypes) -> Rounding {
        let mut sixteen = self.prompt_rounding();
        if kv_types.has(KvType::F32) && sixteen.attention == INT16.attention {
            // integers would round keys and values that such a cache keeps exactly
            sixteen.attention = 0.0;
        }
        let products = match bits {
            PromptBits::Eight if self.has_byte_prompts() => INT8,
            PromptBits::Sixteen => 0.0,
            // formats that have no kernels of eight bits have those of thirteen
            _ if self.has_thirteen_bits() => INT13,
            _ => 0.0,
        };
        Rounding {
            products: sixteen.products.max(products),
            ..sixteen
        }
    }

    /// Whether it has 8-bit prompt kernels, for some formats at least.
    pub fn has_byte_prompts(self) -> bool {
        self.spec().byte_prompts
    }

    /// Whether it has 13-bit prompt kernels, for some formats at least.
    pub fn has_thirteen_bits(self) -> bool {
        self.spec().prompt_rounding.products == INT16_PRODUCTS.products
    }

    /// Whether this CPU runs it.
    pub fn is_available(self) -> bool {
        self.spec().table.is_some_and(|table| (table.detect)())
    }

    /// Its kernels.
    ///
    /// # Panics
    /// If this CPU lacks it.
    pub fn table(self) -> &'static Table {
        let table = self.spec().table.filter(|table| (table.detect)());
        table.unwrap_or_else(|| panic!("kernels of {self} asked for on a CPU without it"))
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

    /// The accepted names, for error messages.
    pub fn names() -> String {
        format!("auto, {}", names(&Isa::ALL))
    }
}

fn names(isas: &[Isa]) -> String {
    let names: Vec<&str> = isas.iter().map(|isa| isa.name()).collect();
    names.join(", ")
}

impl fmt::Display for Isa {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// Instruction set to run.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum IsaChoice {
    /// The best this CPU offers.
    #[default]
    Auto,
    /// This one or an error.
    Only(Isa),
}

/// Error in resolving an instruction set.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum IsaError {
    /// The CPU lacks it.
    #[error(
        "instruction set {requested}: this CPU lacks it (it offers {})",
        names(offered)
    )]
    Missing {
        /// The requested instruction set.
        requested: Isa,
        /// Instruction sets of this CPU.
        offered: Vec<Isa>,
    },
    /// No kernels of this name.
    #[error("instruction set {0}: unknown; expected one of {expected}", expected = Isa::names())]
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
            IsaChoice::Only(requested) => Err(IsaError::Missing {
                requested,
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
