//! Quantization targets: llama-quantize's names, the number each writes to `general.file_type`, and
//! the type its matrices have unless a rule says otherwise.

use octavo_quant::TensorType as T;

/// Target file type, by llama-quantize's name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[allow(missing_docs, non_camel_case_types)] // the names are llama-quantize's
pub enum Target {
    F32,
    F16,
    BF16,
    Q1_0,
    Q2_0,
    Q4_0,
    Q4_1,
    Q5_0,
    Q5_1,
    Q8_0,
    MXFP4_MOE,
    Q2_K,
    Q2_K_S,
    Q3_K_S,
    Q3_K_M,
    Q3_K_L,
    Q4_K_S,
    Q4_K_M,
    Q5_K_S,
    Q5_K_M,
    Q6_K,
    IQ1_S,
    IQ1_M,
    IQ2_XXS,
    IQ2_XS,
    IQ2_S,
    IQ2_M,
    IQ3_XXS,
    IQ3_XS,
    IQ3_S,
    IQ3_M,
    IQ4_NL,
    IQ4_XS,
    TQ1_0,
    TQ2_0,
    /// Copies every tensor unchanged.
    COPY,
}

/// Name, `general.file_type`, default type of matrices. `COPY` keeps the file's own number.
const TARGETS: [(Target, &str, u32, T); 36] = [
    (Target::F32, "F32", 0, T::F32),
    (Target::F16, "F16", 1, T::F16),
    (Target::BF16, "BF16", 32, T::BF16),
    (Target::Q1_0, "Q1_0", 40, T::Q1_0),
    (Target::Q2_0, "Q2_0", 41, T::Q2_0),
    (Target::Q4_0, "Q4_0", 2, T::Q4_0),
    (Target::Q4_1, "Q4_1", 3, T::Q4_1),
    (Target::Q5_0, "Q5_0", 8, T::Q5_0),
    (Target::Q5_1, "Q5_1", 9, T::Q5_1),
    (Target::Q8_0, "Q8_0", 7, T::Q8_0),
    (Target::MXFP4_MOE, "MXFP4_MOE", 38, T::MXFP4),
    (Target::Q2_K, "Q2_K", 10, T::Q2_K),
    (Target::Q2_K_S, "Q2_K_S", 21, T::Q2_K),
    (Target::Q3_K_S, "Q3_K_S", 11, T::Q3_K),
    (Target::Q3_K_M, "Q3_K_M", 12, T::Q3_K),
    (Target::Q3_K_L, "Q3_K_L", 13, T::Q3_K),
    (Target::Q4_K_S, "Q4_K_S", 14, T::Q4_K),
    (Target::Q4_K_M, "Q4_K_M", 15, T::Q4_K),
    (Target::Q5_K_S, "Q5_K_S", 16, T::Q5_K),
    (Target::Q5_K_M, "Q5_K_M", 17, T::Q5_K),
    (Target::Q6_K, "Q6_K", 18, T::Q6_K),
    (Target::IQ1_S, "IQ1_S", 24, T::IQ1_S),
    (Target::IQ1_M, "IQ1_M", 31, T::IQ1_M),
    (Target::IQ2_XXS, "IQ2_XXS", 19, T::IQ2_XXS),
    (Target::IQ2_XS, "IQ2_XS", 20, T::IQ2_XS),
    (Target::IQ2_S, "IQ2_S", 28, T::IQ2_XS),
    (Target::IQ2_M, "IQ2_M", 29, T::IQ2_S),
    (Target::IQ3_XXS, "IQ3_XXS", 23, T::IQ3_XXS),
    (Target::IQ3_XS, "IQ3_XS", 22, T::IQ3_S),
    (Target::IQ3_S, "IQ3_S", 26, T::IQ3_S),
    (Target::IQ3_M, "IQ3_M", 27, T::IQ3_S),
    (Target::IQ4_NL, "IQ4_NL", 25, T::IQ4_NL),
    (Target::IQ4_XS, "IQ4_XS", 30, T::IQ4_XS),
    (Target::TQ1_0, "TQ1_0", 36, T::TQ1_0),
    (Target::TQ2_0, "TQ2_0", 37, T::TQ2_0),
    (Target::COPY, "COPY", 0, T::F32),
];

/// Aliases that llama-quantize accepts.
const ALIASES: [(&str, Target); 3] = [
    ("Q3_K", Target::Q3_K_M),
    ("Q4_K", Target::Q4_K_M),
    ("Q5_K", Target::Q5_K_M),
];

/// A name that is not a target.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("type {got:?}: expected one of {}", names())]
pub struct UnknownTarget {
    /// Name given.
    pub got: String,
}

fn names() -> String {
    Target::all()
        .map(Target::name)
        .collect::<Vec<_>>()
        .join(", ")
}

impl Target {
    /// Returns all targets, the coarser ones later within a family.
    pub fn all() -> impl Iterator<Item = Target> {
        TARGETS.iter().map(|row| row.0)
    }

    fn row(self) -> &'static (Target, &'static str, u32, T) {
        // every variant has a row (checked by a test); COPY is the last
        TARGETS
            .iter()
            .find(|row| row.0 == self)
            .unwrap_or(&TARGETS[TARGETS.len() - 1])
    }

    /// Returns llama-quantize's name.
    pub fn name(self) -> &'static str {
        self.row().1
    }

    /// Returns the number in `general.file_type`.
    pub fn file_type(self) -> u32 {
        self.row().2
    }

    /// Returns the type of matrices without a rule of their own.
    pub fn default_type(self) -> T {
        self.row().3
    }
}

impl std::fmt::Display for Target {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name())
    }
}

impl std::str::FromStr for Target {
    type Err = UnknownTarget;

    fn from_str(name: &str) -> Result<Target, UnknownTarget> {
        let is = |other: &str| other.eq_ignore_ascii_case(name);
        // llama-quantize accepts the number in `general.file_type` as well; 0 is F32 there, not
        // COPY
        let number = name.parse::<u32>().ok();
        let found = TARGETS
            .iter()
            .find(|row| is(row.1) || number == Some(row.2))
            .map(|row| row.0);
        let found = found.or_else(|| {
            ALIASES
                .iter()
                .find(|alias| is(alias.0))
                .map(|alias| alias.1)
        });
        found.ok_or_else(|| UnknownTarget {
            got: name.to_owned(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_read_back_in_any_case_and_file_types_are_unique() {
        let mut seen = std::collections::HashSet::new();
        for target in Target::all() {
            assert_eq!(target.row().0, target);
            assert_eq!(target.name(), format!("{target:?}"));
            assert_eq!(target.name().parse(), Ok(target));
            let numbered = target.file_type().to_string().parse();
            let copied = target == Target::COPY;
            assert!(copied || numbered == Ok(target), "{target}: {numbered:?}");
            assert_eq!(target.name().to_lowercase().parse(), Ok(target));
            assert!(
                target == Target::COPY || seen.insert(target.file_type()),
                "{target}"
            );
        }
        assert_eq!("q4_k".parse(), Ok(Target::Q4_K_M));
        let error = "Q9".parse::<Target>().unwrap_err().to_string();
        assert!(
            error.starts_with("type \"Q9\": expected one of F32, F16, "),
            "{error}"
        );
    }
}
