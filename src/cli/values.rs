//! Values that options take by name: parsed by the types' own rules, and offered by shell
//! completions.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use octavo_analysis::quantize::Target;
use octavo_kernels::{Isa, IsaChoice, KvType, PromptBits};

/// Parses a value with `parse`; completions offer `names`. `parse` may accept other values too, and
/// its message reports a wrong one.
#[derive(Clone)]
pub(super) struct Named<T> {
    names: fn() -> Vec<&'static str>,
    parse: fn(&str) -> Result<T, String>,
}

impl<T> Named<T> {
    pub(super) fn new(
        names: fn() -> Vec<&'static str>,
        parse: fn(&str) -> Result<T, String>,
    ) -> Named<T> {
        Named { names, parse }
    }
}

impl<T: Clone + Send + Sync + 'static> TypedValueParser for Named<T> {
    type Value = T;

    fn parse_ref(
        &self,
        command: &Command,
        arg: Option<&Arg>,
        value: &OsStr,
    ) -> Result<T, clap::Error> {
        let parse = self.parse;
        TypedValueParser::parse_ref(&parse, command, arg, value)
    }

    fn possible_values(&self) -> Option<Box<dyn Iterator<Item = PossibleValue> + '_>> {
        Some(Box::new((self.names)().into_iter().map(PossibleValue::new)))
    }
}

/// Parses an instruction set, or auto for the best.
pub(super) fn isa() -> Named<IsaChoice> {
    let names = || {
        std::iter::once("auto")
            .chain(Isa::ALL.map(Isa::name))
            .collect()
    };
    Named::new(names, |text| {
        text.parse()
            .map_err(|error: octavo_kernels::IsaError| error.to_string())
    })
}

/// Returns the help text of `--isa`.
pub(super) fn isa_help() -> String {
    let names = Isa::names();
    let (others, last) = names.rsplit_once(", ").expect("more than one");
    format!("Instruction set of the kernels: {others} or {last}")
}

/// Parses a KV cache type.
pub(super) fn kv_type() -> Named<KvType> {
    Named::new(|| KvType::ALL.map(KvType::name).to_vec(), str::parse)
}

/// Returns the help text of `--kv-type`.
pub(super) fn kv_type_help() -> String {
    format!(
        "KV cache type: {}; q8_0 loses little accuracy (mean KL divergence 0.0009 with \
         SmolLM2 135M), f8_e4m3 more for as many bytes (0.009), q4_0 still more (0.07); GPUs lack \
         q5_0, q5_1 and iq4_nl",
        KvType::names()
    )
}

/// Parses the bits of activations in prefill.
pub(super) fn prompt_bits() -> Named<PromptBits> {
    Named::new(|| vec!["8", "13", "16"], str::parse)
}

/// Returns the help text of `--prompt-bits`.
pub(super) fn prompt_bits_help() -> &'static str {
    "Bits of activations in prefill with quantized weights on a CPU: 16; 13, which is faster with \
     K-quants, IQ types but IQ4_NL, TQ1_0 and TQ2_0, and has about a hundredth of llama.cpp's \
     error; or 8, which is faster still, but for IQ1 to IQ3, TQ1_0, TQ2_0, Q1_0 and Q2_0 (on AVX2 \
     without VNNI also Q8_0 and IQ4), and has a KL divergence from exact logits of 0.35 times \
     llama.cpp's on average, 1.6 times at worst. No effect with AMX and on GPUs; Arm has no 8 \
     [default: 16]"
}

fn target_names() -> Vec<&'static str> {
    Target::all().map(Target::name).collect()
}

/// Parses the type of a quantized file.
pub(super) fn target() -> Named<Target> {
    Named::new(target_names, |text| {
        text.parse()
            .map_err(|error: octavo_analysis::quantize::UnknownTarget| error.to_string())
    })
}

/// Takes the type that `quantize` makes: one of the files' types or awq. It is parsed later, when
/// it is known which of the two it is.
pub(super) fn target_or_awq() -> Named<String> {
    let names = || target_names().into_iter().chain(["awq"]).collect();
    Named::new(names, |text| Ok(text.to_owned()))
}

/// Parses the maximum number of chunks; -1 is all, as in llama.cpp.
pub(super) fn chunks(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(n) if n == -1 || n >= 1 => Ok(n),
        _ => Err("expected a number of at least 1, or -1 for all".to_owned()),
    }
}

/// Parses a size in bytes: a number, with an optional K, M, G or T for powers of 1024.
pub(super) fn size(text: &str) -> Result<u64, String> {
    let expected = || "expected a size such as 512M or 2G".to_owned();
    let text = text.trim();
    let text = text.strip_suffix(['b', 'B']).unwrap_or(text);
    let text = text.strip_suffix('i').unwrap_or(text);
    let (number, shift) = match text.chars().last().map(|unit| unit.to_ascii_uppercase()) {
        Some('K') => (&text[..text.len() - 1], 10),
        Some('M') => (&text[..text.len() - 1], 20),
        Some('G') => (&text[..text.len() - 1], 30),
        Some('T') => (&text[..text.len() - 1], 40),
        _ => (text, 0),
    };
    let number: f64 = number.trim().parse().map_err(|_| expected())?;
    let bytes = number * (1u64 << shift) as f64;
    // no memory is larger than this
    if (1.0..1e18).contains(&bytes) {
        Ok(bytes as u64)
    } else {
        Err(expected())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_read_as_people_write_them() {
        for (text, bytes) in [
            ("1024", 1024),
            ("2G", 2 << 30),
            ("1.5k", 1536),
            ("3MiB", 3 << 20),
        ] {
            assert_eq!(size(text), Ok(bytes), "{text}");
        }
        for text in ["", "G", "-1", "0", "nan", "1e400", "2X"] {
            assert!(size(text).is_err(), "{text}");
        }
    }

    #[test]
    fn what_is_offered_is_taken() {
        assert_eq!((kv_type().names)(), KvType::ALL.map(|ty| ty.to_string()));
        assert!(
            (kv_type().names)()
                .into_iter()
                .all(|name| (kv_type().parse)(name).is_ok())
        );
        assert!(
            (isa().names)()
                .into_iter()
                .all(|name| (isa().parse)(name).is_ok())
        );
        assert!(
            (target().names)()
                .into_iter()
                .all(|name| (target().parse)(name).is_ok())
        );
    }
}
