//! Element types of the cache: their sizes and rounding errors.

use std::fmt;
use std::str::FromStr;

/// Values of a head that share a scale, in types that have scales.
pub const SCALE_GROUP: usize = 32;

/// Element type of the cache.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum KvType {
    /// IEEE half: the default of llama.cpp.
    #[default]
    F16,
    /// Exact.
    F32,
    /// The upper half of a float.
    Bf16,
    /// Bytes, with an f16 scale for every 32 values of a head: ggml's Q8_0.
    Q8_0,
    /// Floats of 8 bits, OCP's E4M3, with an f16 scale for every 32 values of a head.
    F8E4M3,
    /// Four bits, with an f16 scale for every 32 values of a head: ggml's Q4_0.
    Q4_0,
    /// Five bits, with an f16 scale for every 32 values of a head: ggml's Q5_0.
    Q5_0,
    /// Five bits, with an f16 scale and an f16 minimum for every 32 values of a head: ggml's Q5_1.
    Q5_1,
    /// Four-bit codes of unevenly spaced levels, with an f16 scale for every 32 values of a head:
    /// ggml's IQ4_NL.
    Iq4Nl,
}

impl KvType {
    /// All of them.
    pub const ALL: [KvType; 9] = [
        KvType::F16,
        KvType::F32,
        KvType::Bf16,
        KvType::Q8_0,
        KvType::F8E4M3,
        KvType::Q4_0,
        KvType::Q5_0,
        KvType::Q5_1,
        KvType::Iq4Nl,
    ];

    /// Bytes of `values` values, whole heads that the type [takes](KvType::takes).
    pub fn bytes(self, values: usize) -> Option<usize> {
        match self {
            KvType::F16 | KvType::F32 | KvType::Bf16 => values.checked_mul(self.bits() / 8),
            KvType::Q8_0
            | KvType::F8E4M3
            | KvType::Q4_0
            | KvType::Q5_0
            | KvType::Q5_1
            | KvType::Iq4Nl => {
                let codes = SCALE_GROUP * self.bits() / 8;
                let halves = 1 + usize::from(self.has_minimum());
                (values / SCALE_GROUP).checked_mul(codes + halves * size_of::<u16>())
            }
        }
    }

    /// Bytes of the codes that share a scale; `None` for types without scales.
    pub fn group_bytes(self) -> Option<usize> {
        match self {
            KvType::F16 | KvType::F32 | KvType::Bf16 => None,
            KvType::Q8_0
            | KvType::F8E4M3
            | KvType::Q4_0
            | KvType::Q5_0
            | KvType::Q5_1
            | KvType::Iq4Nl => Some(SCALE_GROUP * self.bits() / 8),
        }
    }

    /// Bits of an element, scales left out.
    pub fn bits(self) -> usize {
        match self {
            KvType::F16 | KvType::Bf16 => 16,
            KvType::F32 => 32,
            KvType::Q8_0 | KvType::F8E4M3 => 8,
            KvType::Q5_0 | KvType::Q5_1 => 5,
            KvType::Q4_0 | KvType::Iq4Nl => 4,
        }
    }

    /// Whether groups have a minimum beside the scale.
    pub fn has_minimum(self) -> bool {
        self == KvType::Q5_1
    }

    /// Whether heads of `head_dim` values can be stored.
    pub fn takes(self, head_dim: usize) -> bool {
        self.group_bytes().is_none() || head_dim.is_multiple_of(SCALE_GROUP)
    }

    /// Whether it has so few bits that a head's largest values would leave no precision for the
    /// others, unless heads are rotated.
    pub fn wants_rotated_heads(self) -> bool {
        match self {
            KvType::F16 | KvType::F32 | KvType::Bf16 | KvType::Q8_0 | KvType::F8E4M3 => false,
            KvType::Q4_0 | KvType::Q5_0 | KvType::Q5_1 | KvType::Iq4Nl => true,
        }
    }

    /// Rounding error of storing, as a fraction of the root mean square of a head's values: half a
    /// unit in the last place; for codes, the rms of a uniform error of up to half the distance
    /// between two of them, for a largest value that is the square root of 32 times the rms at
    /// most. (With four bits, a value as large as that one and of the other sign is off by a whole
    /// step. With five and a minimum, there are 31 steps from the smallest value to the largest,
    /// which are 8 times the rms apart at most, and the minimum is rounded too. Levels of uneven
    /// distances are 24 of 127 parts of the largest value apart at most.) Codes that are floats
    /// count in their scale as it is stored, so that it adds nothing.
    pub fn rounding(self) -> f64 {
        match self {
            KvType::F16 => 1.0 / 2048.0,
            KvType::F32 => 0.0,
            KvType::Bf16 => 1.0 / 256.0,
            KvType::Q8_0 => 32f64.sqrt() / 254.0 / 3f64.sqrt() + 1.0 / 2048.0,
            KvType::F8E4M3 => 1.0 / 16.0,
            KvType::Q4_0 => 32f64.sqrt() / 16.0 / 3f64.sqrt() + 1.0 / 2048.0,
            KvType::Q5_0 => 32f64.sqrt() / 32.0 / 3f64.sqrt() + 1.0 / 2048.0,
            KvType::Q5_1 => 8.0 / 62.0 / 3f64.sqrt() + (8.0 + 32f64.sqrt()) / 2048.0,
            KvType::Iq4Nl => 32f64.sqrt() * 12.0 / 127.0 / 3f64.sqrt() + 1.0 / 2048.0,
        }
    }

    /// Name on the command line and in files.
    pub fn name(self) -> &'static str {
        match self {
            KvType::F16 => "f16",
            KvType::F32 => "f32",
            KvType::Bf16 => "bf16",
            KvType::Q8_0 => "q8_0",
            KvType::F8E4M3 => "f8_e4m3",
            KvType::Q4_0 => "q4_0",
            KvType::Q5_0 => "q5_0",
            KvType::Q5_1 => "q5_1",
            KvType::Iq4Nl => "iq4_nl",
        }
    }

    /// The same type for keys and values.
    pub const fn both(self) -> KvTypes {
        KvTypes { k: self, v: self }
    }

    /// The names of all, for help texts.
    pub fn names() -> String {
        KvType::listed(&KvType::ALL)
    }

    /// The names of these, for messages.
    pub fn listed(types: &[KvType]) -> String {
        let names: Vec<&str> = types.iter().map(|ty| ty.name()).collect();
        match names.split_last() {
            Some((last, others)) => format!("{} or {last}", others.join(", ")),
            None => String::new(),
        }
    }
}

impl fmt::Display for KvType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

impl FromStr for KvType {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        let known = KvType::ALL.into_iter().find(|ty| ty.name() == s);
        known.ok_or_else(|| format!("KV type {s}: unknown; expected {}", KvType::names()))
    }
}

/// Element types of the cache: that of keys and that of values.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct KvTypes {
    /// Type of keys.
    pub k: KvType,
    /// Type of values.
    pub v: KvType,
}

impl KvTypes {
    /// Bytes of `values` values as keys and as many as values, whole heads that both types
    /// [take](KvType::takes).
    pub fn bytes(self, values: usize) -> Option<usize> {
        self.k.bytes(values)?.checked_add(self.v.bytes(values)?)
    }

    /// Whether heads of `head_dim` values can be stored.
    pub fn takes(self, head_dim: usize) -> bool {
        self.k.takes(head_dim) && self.v.takes(head_dim)
    }

    /// Whether either is of this type.
    pub fn has(self, ty: KvType) -> bool {
        self.k == ty || self.v == ty
    }
}

impl From<KvType> for KvTypes {
    fn from(ty: KvType) -> KvTypes {
        ty.both()
    }
}

/// One name where both are equal, else those of keys and of values.
impl fmt::Display for KvTypes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.k == self.v {
            self.k.fmt(f)
        } else {
            f.pad(&format!("{}/{}", self.k, self.v))
        }
    }
}

impl FromStr for KvTypes {
    type Err = String;

    fn from_str(s: &str) -> Result<Self, String> {
        match s.split_once('/') {
            Some((k, v)) => Ok(KvTypes {
                k: k.parse()?,
                v: v.parse()?,
            }),
            None => Ok(s.parse::<KvType>()?.both()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_pairs_are_read_back() {
        for k in KvType::ALL {
            for v in KvType::ALL {
                let types = KvTypes { k, v };
                assert_eq!(types.to_string().parse(), Ok(types));
            }
            assert_eq!(k.both().to_string(), k.name());
        }
        for wrong in ["", "/", "f16/", "f16/q9", "f16/f16/f16"] {
            assert!(wrong.parse::<KvTypes>().is_err(), "{wrong}");
        }
    }

    /// Checks that floats are off by at most half a unit in the last place, and somewhere nearly by
    /// that.
    #[test]
    fn floats_are_off_by_half_a_unit_in_the_last_place() {
        let off = |round: fn(f32) -> f32| {
            let all = (0..1 << 16).map(|i| 1.0 + i as f32 / (1 << 16) as f32);
            all.map(|x| f64::from((x - round(x)).abs() / x))
                .fold(0.0, f64::max)
        };
        for (ty, worst) in [
            (KvType::F32, off(|x| x)),
            (KvType::F16, off(|x| half::f16::from_f32(x).to_f32())),
            (KvType::Bf16, off(|x| half::bf16::from_f32(x).to_f32())),
        ] {
            let bound = ty.rounding();
            assert!(0.99 * bound <= worst && worst <= bound, "{ty}: {worst:e}");
        }
    }
}
