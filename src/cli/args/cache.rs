//! KV cache type options.

use clap::Args;
use octavo_kernels::{KvType, KvTypes};

use crate::values;

/// KV cache type options.
#[derive(Debug, Args)]
pub(crate) struct CacheArgs {
    #[arg(help = format!("{} [default: f16]", values::kv_type_help()))]
    #[arg(long, value_name = "TYPE", value_parser = values::kv_type(), hide_possible_values = true)]
    #[arg(conflicts_with_all = ["cache_type_k", "cache_type_v"])]
    kv_type: Option<KvType>,
    /// KV cache type for keys only; values stay f16 (also: -ctk TYPE)
    #[arg(long, value_name = "TYPE", value_parser = values::kv_type(), hide_possible_values = true)]
    cache_type_k: Option<KvType>,
    /// KV cache type for values only; keys stay f16 (also: -ctv TYPE)
    #[arg(long, value_name = "TYPE", value_parser = values::kv_type(), hide_possible_values = true)]
    cache_type_v: Option<KvType>,
}

impl CacheArgs {
    /// Returns the types of keys and values; f16 where not given.
    pub(crate) fn types(&self) -> KvTypes {
        self.types_or(KvType::default())
    }

    /// Returns the types of keys and values; f32 if no type is given.
    pub(crate) fn types_or_f32(&self) -> KvTypes {
        let any_is_set = self.cache_type_k.is_some() || self.cache_type_v.is_some();
        self.types_or(if any_is_set {
            KvType::default()
        } else {
            KvType::F32
        })
    }

    fn types_or(&self, default: KvType) -> KvTypes {
        let of = |half: Option<KvType>| half.or(self.kv_type).unwrap_or(default);
        KvTypes {
            k: of(self.cache_type_k),
            v: of(self.cache_type_v),
        }
    }
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Line {
        #[command(flatten)]
        cache: CacheArgs,
    }

    fn parse(line: &str) -> Result<CacheArgs, clap::Error> {
        let words = std::iter::once("x").chain(line.split_whitespace());
        Ok(Line::try_parse_from(words)?.cache)
    }

    #[test]
    fn keys_and_values_have_types_of_their_own() {
        use KvType::{Bf16, F16, F32, Q4_0, Q8_0};
        // the types for runs and for comparisons
        for (line, expected, compared) in [
            ("", F16.both(), F32.both()),
            ("--kv-type f16", F16.both(), F16.both()),
            ("--kv-type bf16", Bf16.both(), Bf16.both()),
        ] {
            let args = parse(line).expect("parses");
            assert_eq!(args.types(), expected, "{line}");
            assert_eq!(args.types_or_f32(), compared, "{line}");
        }
        for (line, k, v) in [
            ("-k q8_0 -v q4_0", Q8_0, Q4_0),
            ("-v q8_0 -k f32", F32, Q8_0),
            ("-k f32 -v f32", F32, F32),
            ("-k q8_0", Q8_0, F16),
            ("-v q8_0", F16, Q8_0),
        ] {
            let long = line.replace('-', "--cache-type-");
            let args = parse(&long).expect("parses");
            assert_eq!(args.types(), KvTypes { k, v }, "{line}");
            assert_eq!(args.types_or_f32(), KvTypes { k, v }, "{line}");
        }
        assert!(parse("--kv-type f16 --cache-type-k q8_0").is_err());
        assert!(parse("--cache-type-v q9").is_err());
    }
}
