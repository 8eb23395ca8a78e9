//! Overrides of a model's metadata.

use clap::{Args, ValueEnum};
use gguf_rs_lite::OwnedValue;
use octavo_engine::ModelSource;

/// Heading of these options; those that follow keep their own.
const HEADING: &str = "Overrides of model metadata";

/// Options that override a model's metadata.
#[derive(Debug, Args)]
pub(crate) struct KeyArgs {
    /// Override the metadata KEY with VALUE; TYPE is int, float, bool or str, like the key's own;
    /// separate several by commas, or repeat the option
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "KEY=TYPE:VALUE", value_parser = key_values)]
    override_kv: Vec<KeyValues>,
    /// RoPE scaling: none, linear or yarn
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "HOW", hide_possible_values = true)]
    rope_scaling: Option<Scaling>,
    /// RoPE scaling factor: divide the rotary angles by N
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "N", value_parser = positive)]
    rope_scale: Option<f32>,
    /// Multiply the rotary angles by X: the inverse of --rope-scale
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "X", value_parser = positive, conflicts_with = "rope_scale")]
    rope_freq_scale: Option<f32>,
    /// RoPE base frequency
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "X", value_parser = positive)]
    rope_freq_base: Option<f32>,
    /// YaRN: original context size of the model, in tokens
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "N")]
    #[arg(value_parser = clap::value_parser!(u32).range(1..=1 << 30))]
    yarn_orig_ctx: Option<u32>,
    /// YaRN: extrapolation mix factor; supported so far: 1 with yarn, 0 without it, -1 for either
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "X", allow_negative_numbers = true)]
    yarn_ext_factor: Option<f32>,
    /// RoPE magnitude factor, of the parts of queries and keys that are rotated
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "X", value_parser = positive)]
    yarn_attn_factor: Option<f32>,
    /// YaRN: number of rotations above which a frequency is not scaled
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "X", value_parser = positive)]
    yarn_beta_fast: Option<f32>,
    /// YaRN: number of rotations below which a frequency is fully scaled
    #[arg(help_heading = HEADING)]
    #[arg(long, value_name = "X", value_parser = positive)]
    yarn_beta_slow: Option<f32>,
}

/// RoPE scaling methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
enum Scaling {
    None,
    Linear,
    Yarn,
}

/// A key and its value.
pub(crate) type KeyValue = (String, OwnedValue);

/// A newtype, so that clap takes the list as one value.
#[derive(Clone, Debug)]
struct KeyValues(Vec<KeyValue>);

impl KeyArgs {
    /// Returns the keys and their values, in the order in which to set them; a name that begins
    /// with a dot belongs to the model's architecture.
    pub(crate) fn changes(&self) -> Vec<KeyValue> {
        let scaling = self.rope_scaling.map(|scaling| match scaling {
            Scaling::None => "none",
            Scaling::Linear => "linear",
            Scaling::Yarn => "yarn",
        });
        let factor = self.rope_freq_scale.map(|scale| 1.0 / scale);
        let number = |key: &str, value: Option<f32>| {
            value.map(|value| (key.to_owned(), OwnedValue::F32(value)))
        };
        let scaling = scaling.map(|name| {
            let value = OwnedValue::Str(name.as_bytes().to_vec());
            (".rope.scaling.type".to_owned(), value)
        });
        let context = self.yarn_orig_ctx.map(|n| {
            let key = ".rope.scaling.original_context_length".to_owned();
            (key, OwnedValue::U32(n))
        });
        let options = [
            scaling,
            number(".rope.scaling.factor", self.rope_scale.or(factor)),
            number(".rope.freq_base", self.rope_freq_base),
            context,
            number(".rope.scaling.yarn_ext_factor", self.yarn_ext_factor),
            number(".rope.scaling.attn_factor", self.yarn_attn_factor),
            number(".rope.scaling.yarn_beta_fast", self.yarn_beta_fast),
            number(".rope.scaling.yarn_beta_slow", self.yarn_beta_slow),
        ];
        let options = options.into_iter().flatten();
        let overrides = self.override_kv.iter().flat_map(|list| list.0.clone());
        options.chain(overrides).collect()
    }

    /// Returns the source with these keys.
    pub(crate) fn changed(&self, source: ModelSource) -> ModelSource {
        let keys = self.changes();
        match keys.is_empty() {
            true => source,
            false => ModelSource::Changed {
                source: Box::new(source),
                keys,
            },
        }
    }
}

fn positive(text: &str) -> Result<f32, String> {
    match text.parse::<f32>() {
        Ok(x) if x.is_finite() && x > 0.0 => Ok(x),
        _ => Err("expected a finite number above 0".to_owned()),
    }
}

/// Parses several overrides, separated by commas as in llama.cpp: a comma in quotation marks does
/// not separate.
fn key_values(text: &str) -> Result<KeyValues, String> {
    let mut fields = vec![String::new()];
    let mut quoted = false;
    let mut characters = text.chars().peekable();
    while let Some(character) = characters.next() {
        let field = fields.last_mut().expect("one at least");
        match character {
            '"' if quoted && characters.next_if_eq(&'"').is_some() => field.push('"'),
            '"' if quoted || field.is_empty() => quoted = !quoted,
            ',' if !quoted => fields.push(String::new()),
            other => field.push(other),
        }
    }
    let all = fields.iter().map(|field| key_value(field));
    all.collect::<Result<_, _>>().map(KeyValues)
}

/// Parses `KEY=TYPE:VALUE`, llama.cpp's notation.
pub(crate) fn key_value(text: &str) -> Result<KeyValue, String> {
    let expected = || "expected KEY=TYPE:VALUE with int, float, bool or str as TYPE".to_owned();
    let (key, rest) = text.split_once('=').ok_or_else(expected)?;
    let (ty, value) = rest.split_once(':').ok_or_else(expected)?;
    if key.is_empty() {
        return Err(expected());
    }
    let bad = |what: &str| format!("expected {what} as the value of {key}, got {value:?}");
    let value = match ty {
        "int" => {
            let number: i64 = value.parse().map_err(|_| bad("an integer"))?;
            match u32::try_from(number) {
                Ok(number) => OwnedValue::U32(number),
                Err(_) => OwnedValue::I64(number),
            }
        }
        "float" => match value.parse::<f32>() {
            Ok(number) if number.is_finite() => OwnedValue::F32(number),
            _ => return Err(bad("a finite number")),
        },
        "bool" => OwnedValue::Bool(value.parse().map_err(|_| bad("true or false"))?),
        "str" => OwnedValue::Str(value.as_bytes().to_vec()),
        _ => return Err(expected()),
    };
    Ok((key.to_owned(), value))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commas_separate_keys_but_in_quotation_marks() {
        let text = |text: &str| OwnedValue::Str(text.as_bytes().to_vec());
        let all = key_values(r#"a=int:1,"b=str:x, ""y""",c=str:a"b"#).expect("three");
        let expected = [
            ("a", OwnedValue::U32(1)),
            ("b", text("x, \"y\"")),
            ("c", text("a\"b")),
        ];
        assert_eq!(all.0, expected.map(|(key, value)| (key.to_owned(), value)));
        assert!(key_values("a=int:1,").is_err());
    }

    #[test]
    fn keys_are_read_as_llama_cpp_writes_them() {
        let text = |text: &str| OwnedValue::Str(text.as_bytes().to_vec());
        for (line, key, value) in [
            ("a.b=int:7", "a.b", OwnedValue::U32(7)),
            ("a=int:-7", "a", OwnedValue::I64(-7)),
            ("a=float:0.5", "a", OwnedValue::F32(0.5)),
            ("a=bool:true", "a", OwnedValue::Bool(true)),
            ("a=str:b=c:d", "a", text("b=c:d")),
            ("a=str:", "a", text("")),
        ] {
            assert_eq!(key_value(line), Ok((key.to_owned(), value)), "{line}");
        }
        for line in [
            "a",
            "a=1",
            "=int:1",
            "a=int:x",
            "a=float:nan",
            "a=bool:1",
            "a=u8:1",
        ] {
            assert!(key_value(line).is_err(), "{line}");
        }
    }
}
