//! Values that options take by name: read by the types' own rules, and offered by a shell's
//! completions.

use std::ffi::OsStr;

use clap::builder::{PossibleValue, TypedValueParser};
use clap::{Arg, Command};
use octavo_kernels::{Isa, IsaChoice, KvType};
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
    Named::new(|| vec!["f16", "f32", "bf16", "q8_0"], str::parse)
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

#[cfg(test)]
mod tests {
    use super::*;

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
