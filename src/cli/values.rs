//! Values that options take by name: read by the types' own rules, and offered by a shell's
//! completions.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use octavo_kernels::{Isa, IsaChoice, KvType, PromptBits};
use octavo_lab::quantize::Target;

/// Reads a value with `parse`; `names` are what completions offer. What else `parse` knows is taken
/// too, and what is wrong is said in its words.
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

/// An instruction set, or the best.
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

/// What `--isa` says of itself.
pub(super) fn isa_help() -> String {
    let names = Isa::names();
    let (others, last) = names.rsplit_once(", ").expect("more than one");
    format!("Instruction set of the kernels: {others} or {last}")
}

/// A type of the KV cache.
pub(super) fn kv_type() -> Named<KvType> {
    Named::new(|| KvType::ALL.map(KvType::name).to_vec(), str::parse)
}

/// What `--kv-type` says of itself.
pub(super) fn kv_type_help() -> String {
    format!(
        "Type of the KV cache: {}; q8_0 costs little accuracy (mean KL divergence 0.0009 with \
         SmolLM2 135M), f8_e4m3 more for as many bytes (0.009), q4_0 some (0.07); on a GPU not \
         q5_0, q5_1 and iq4_nl",
        KvType::names()
    )
}

/// Bits of prompts.
pub(super) fn prompt_bits() -> Named<PromptBits> {
    Named::new(|| vec!["8", "16"], str::parse)
}

/// What `--prompt-bits` says of itself.
pub(super) fn prompt_bits_help() -> &'static str {
    "Bits to which prompts are rounded where they are multiplied with quantized weights on a CPU: \
     16, or 8, which is faster; the KL divergence from exact logits is 0.35 of llama.cpp's on \
     average then, and 1.6 times it at worst. AMX, Arm and GPUs have one way only, and so have IQ1 \
     to IQ3 and --no-repack (on AVX2 without VNNI Q8_0 and IQ4 too): for them it changes nothing"
}

fn target_names() -> Vec<&'static str> {
    Target::all().map(Target::name).collect()
}

/// A kind of quantized file.
pub(super) fn target() -> Named<Target> {
    Named::new(target_names, |text| {
        text.parse()
            .map_err(|error: octavo_lab::quantize::UnknownTarget| error.to_string())
    })
}

/// What `quantize` makes; looked at when it is known whether it is one of the files or a folder.
pub(super) fn target_or_awq() -> Named<String> {
    let names = || target_names().into_iter().chain(["awq"]).collect();
    Named::new(names, |text| Ok(text.to_owned()))
}

/// Chunks at most; -1 is all, as in llama.cpp.
pub(super) fn chunks(text: &str) -> Result<i64, String> {
    match text.parse() {
        Ok(n) if n == -1 || n >= 1 => Ok(n),
        _ => Err("expected a number of at least 1, or -1 for all".to_owned()),
    }
}

/// Bytes: a number, perhaps with K, M, G or T behind it for powers of 1024.
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
    // beyond this no memory is
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
