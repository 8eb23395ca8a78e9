//! A choice of types as llama-quantize takes it: patterns of names with types, and a file type.

use std::collections::BTreeMap;

use gguf_rs_lite::TensorType;
use regex::{Regex, RegexBuilder};

use crate::quantize::Target;

/// Returns the pattern that matches this tensor alone.
fn pattern(name: &str) -> String {
    format!("^{}$", regex::escape(name))
}

/// Returns the patterns and types of a mix.
///
/// # Panics
/// Never: an escaped name is a pattern.
pub(super) fn overrides(types: &[(&str, TensorType)]) -> Vec<(Regex, TensorType)> {
    let one = |&(name, ty): &(&str, TensorType)| {
        let pattern = RegexBuilder::new(&pattern(name))
            .case_insensitive(true)
            .build();
        (pattern.expect("an escaped name"), ty)
    };
    types.iter().map(one).collect()
}

/// Returns the lines of a file for `--tensor-type-file`.
pub(super) fn text(types: &[(&str, TensorType)]) -> String {
    let line = |(name, ty): &(&str, TensorType)| {
        format!("{}={}\n", pattern(name), ty.name().to_lowercase())
    };
    types.iter().map(line).collect()
}

/// Returns the file type that most weights have. Types that are no blocks count as Q8_0:
/// llama-quantize ignores patterns where the file type is a float.
pub(super) fn target(types: &[(TensorType, u64)]) -> Target {
    let mut weights = BTreeMap::new();
    for (ty, n) in types {
        *weights.entry(ty.id()).or_insert(0) += n;
    }
    let most = weights.into_iter().max_by_key(|(_, n)| *n);
    let most = most.and_then(|(id, _)| TensorType::from_id(id));
    let named = most.and_then(|ty| Target::all().find(|target| target.name() == ty.name()));
    let default = || Target::all().find(|target| Some(target.default_type()) == most);
    named
        .or_else(default)
        .filter(|target| target.default_type().block_len() > 1)
        .unwrap_or(Target::Q8_0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn patterns_match_one_tensor() {
        use TensorType as T;
        let types = [("blk.1.attn_v.weight", T::Q4_K), ("output.weight", T::Q6_K)];
        let patterns = overrides(&types);
        let of = |name: &str| patterns.iter().find(|(p, _)| p.is_match(name)).map(|p| p.1);
        assert_eq!(of("blk.1.attn_v.weight"), Some(T::Q4_K));
        assert_eq!(of("blk.11.attn_v.weight"), None);
        assert_eq!(of("blk.1.attn_output.weight"), None);
        assert_eq!(of("output.weight"), Some(T::Q6_K));
        assert_eq!(
            text(&types),
            "^blk\\.1\\.attn_v\\.weight$=q4_k\n^output\\.weight$=q6_k\n"
        );
    }

    #[test]
    fn the_file_type_is_that_of_most_weights() {
        use TensorType as T;
        let of = |types: &[(T, u64)]| target(types).name();
        assert_eq!(of(&[(T::Q4_K, 5), (T::Q6_K, 9), (T::Q4_K, 5)]), "Q4_K_S");
        assert_eq!(of(&[(T::Q5_0, 5)]), "Q5_0");
        assert_eq!(of(&[(T::IQ3_S, 5)]), "IQ3_S");
        assert_eq!(of(&[(T::F16, 5), (T::Q4_K, 1)]), "Q8_0");
    }
}
