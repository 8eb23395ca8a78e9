//! Precision to which prompts are rounded in products with quantized weights.

use std::fmt;
use std::str::FromStr;

/// Bits of the integers to which vector kernels quantize a prompt's activations, for products with
/// quantized weights. A weight format or an instruction set without such kernels keeps its own.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum PromptBits {
    /// Eight, with a scale for every 32 values: faster, and about as far from exact results as
    /// llama.cpp.
    Eight,
    /// Thirteen, with the scales of weights folded into their codes: for formats whose scales are
    /// whole numbers times a unit of 256 weights.
    Thirteen,
    /// Sixteen, of which fifteen are significant.
    #[default]
    Sixteen,
}

impl PromptBits {
    /// All of them.
    pub const ALL: [PromptBits; 3] = [PromptBits::Eight, PromptBits::Thirteen, PromptBits::Sixteen];

    /// Number of bits.
    pub fn count(self) -> u8 {
        match self {
            PromptBits::Eight => 8,
            PromptBits::Thirteen => 13,
            PromptBits::Sixteen => 16,
        }
    }
}

impl fmt::Display for PromptBits {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.count().fmt(f)
    }
}

impl FromStr for PromptBits {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = PromptBits::ALL.into_iter();
        let mut named = known.filter(|bits| bits.to_string() == s);
        named
            .next()
            .ok_or_else(|| format!("{s} bits for prompts: expected 8, 13 or 16"))
    }
}
