//! `config.json`: hyperparameters under their GGUF keys, and how weights are quantized.

use std::path::Path;

use gguf_rs_lite::View;
use serde_json::Value;

use super::{Error, MAX_SETTINGS, read_json};

/// What `quantization_config` says of AWQ weights.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Awq {
    /// Weights of a row that share a scale; all of them without it.
    pub(super) group: Option<usize>,
    /// Whether files have zero points; without them every zero point is 8.
    pub(super) zero_point: bool,
    /// Parts of the names of modules that are not quantized.
    pub(super) plain: Vec<String>,
}

/// A folder's settings.
pub(super) struct Config {
    /// Its path, for messages.
    pub(super) file: String,
    root: Value,
    /// `general.architecture`.
    pub(super) arch: &'static str,
    /// Query heads.
    pub(super) heads: usize,
    /// Key and value heads.
    pub(super) heads_kv: usize,
    /// Values of a head.
    pub(super) head_dim: usize,
    /// Whether the output matrix is the embedding.
    pub(super) tied: bool,
    /// How weights are quantized, if they are.
    pub(super) awq: Option<Awq>,
}

/// Modules of a layer that have biases all together or not at all.
pub(super) struct Biases {
    /// The setting that says so.
    pub(super) key: &'static str,
    /// The modules, inside `model.layers.N.`.
    pub(super) modules: &'static [&'static str],
    /// Whether they have them.
    pub(super) there: bool,
}

/// `model_type`, and the architecture whose layers it has.
const ARCHITECTURES: [(&str, &str); 4] = [
    ("llama", "llama"),
    ("mistral", "llama"),
    ("qwen2", "qwen2"),
    ("qwen3", "qwen3"),
];

impl Config {
    pub(super) fn read(dir: &Path) -> Result<Config, Error> {
        let file = dir.join("config.json").display().to_string();
        let expected =
            "the settings of a Hugging Face model; or give a GGUF file instead of a folder";
        let root = read_json(dir, "config.json", MAX_SETTINGS)?.ok_or_else(|| Error::Missing {
            file: file.clone(),
            expected,
        })?;
        let mut config = Config {
            file,
            root,
            arch: "",
            heads: 0,
            heads_kv: 0,
            head_dim: 0,
            tied: false,
            awq: None,
        };
        let model_type = config.string("model_type")?.unwrap_or_default();
        let known = ARCHITECTURES.iter().find(|a| a.0 == model_type);
        let names = || ARCHITECTURES.map(|a| a.0).join(", ");
        config.arch = known
            .ok_or_else(|| config.bad("model_type", format!("one of {}", names()), &model_type))?
            .1;
        config.heads = config.count("num_attention_heads")?;
        config.heads_kv = config
            .optional_count("num_key_value_heads")?
            .unwrap_or(config.heads);
        let hidden = config.count("hidden_size")?;
        config.head_dim = match config.optional_count("head_dim")? {
            Some(head_dim) => head_dim,
            None if hidden.is_multiple_of(config.heads) => hidden / config.heads,
            None => {
                return Err(config.bad(
                    "head_dim",
                    "a number, since heads do not divide hidden_size",
                    "nothing",
                ));
            }
        };
        config.tied = config.flag("tie_word_embeddings")?.unwrap_or(false);
        config.awq = config.quantization()?;
        Ok(config)
    }

    pub(super) fn bad(&self, key: &str, expected: impl Into<String>, got: impl ToString) -> Error {
        let got = got.to_string().chars().take(80).collect();
        Error::Value {
            file: self.file.clone(),
            key: key.to_owned(),
            expected: expected.into(),
            got,
        }
    }

    /// The value at a path with dots; null is as good as nothing.
    fn get(&self, key: &str) -> Option<&Value> {
        key.split('.')
            .try_fold(&self.root, |value, part| value.get(part))
            .filter(|value| !value.is_null())
    }

    fn typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        read: impl FnOnce(&'a Value) -> Option<T>,
    ) -> Result<Option<T>, Error> {
        let Some(value) = self.get(key) else {
            return Ok(None);
        };
        read(value)
            .map(Some)
            .ok_or_else(|| self.bad(key, expected, value))
    }

    fn must<T>(&self, key: &str, expected: &str, value: Option<T>) -> Result<T, Error> {
        value.ok_or_else(|| self.bad(key, expected, "nothing"))
    }

    fn string(&self, key: &str) -> Result<Option<String>, Error> {
        self.typed(key, "a string", |v| v.as_str().map(str::to_owned))
    }

    fn flag(&self, key: &str) -> Result<Option<bool>, Error> {
        self.typed(key, "true or false", Value::as_bool)
    }

    fn optional_count(&self, key: &str) -> Result<Option<usize>, Error> {
        let read = |v: &Value| {
            v.as_u64()
                .and_then(|n| u32::try_from(n).ok())
                .filter(|n| *n > 0)
                .map(|n| n as usize)
        };
        self.typed(key, "a positive number of at most 32 bits", read)
    }

    pub(super) fn count(&self, key: &str) -> Result<usize, Error> {
        self.must(key, "a positive number", self.optional_count(key)?)
    }

    fn float(&self, key: &str) -> Result<Option<f32>, Error> {
        self.typed(key, "a number", |v| {
            v.as_f64().map(|v| v as f32).filter(|v| v.is_finite())
        })
    }

    /// Token ids: one, or a list.
    pub(super) fn ids(&self, key: &str) -> Result<Vec<u32>, Error> {
        Ok(self
            .typed(key, "a token id or a list of them", super::tokenizer::ids)?
            .unwrap_or_default())
    }

    /// The number of entries of the vocabulary, padding included.
    pub(super) fn vocab_size(&self) -> Result<usize, Error> {
        self.count("vocab_size")
    }

    /// Which biases the layers have. Qwen 2's queries, keys and values have some unless the
    /// settings say otherwise; those of other models, and what else can have one, need a setting.
    pub(super) fn biases(&self) -> Result<Vec<Biases>, Error> {
        const QKV: &[&str] = &["self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj"];
        const ATTENTION: &[&str] = &[
            "self_attn.q_proj",
            "self_attn.k_proj",
            "self_attn.v_proj",
            "self_attn.o_proj",
        ];
        const MLP: &[&str] = &["mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"];
        let (attention, mlp) = ("attention_bias", "mlp_bias");
        let (in_attention, in_mlp) = (self.flag(attention)?, self.flag(mlp)?.unwrap_or(false));
        Ok(match self.arch {
            "qwen2" => vec![Biases {
                key: attention,
                modules: QKV,
                there: in_attention.unwrap_or(true),
            }],
            _ => vec![
                Biases {
                    key: attention,
                    modules: ATTENTION,
                    there: in_attention.unwrap_or(false),
                },
                Biases {
                    key: mlp,
                    modules: MLP,
                    there: in_mlp,
                },
            ],
        })
    }

    fn quantization(&self) -> Result<Option<Awq>, Error> {
        let key = |name: &str| format!("quantization_config.{name}");
        if self.get("quantization_config").is_none() {
            return Ok(None);
        }
        for (name, expected) in [("quant_method", "awq"), ("version", "gemm")] {
            let got = self
                .string(&key(name))?
                .unwrap_or_default()
                .to_ascii_lowercase();
            if got != expected {
                let other = "and no other packing can be read";
                return Err(self.bad(
                    &key(name),
                    format!("{expected}, {other}"),
                    format!("{got:?}"),
                ));
            }
        }
        match self.count(&key("bits"))? {
            4 => {}
            bits => return Err(self.bad(&key("bits"), "4", bits)),
        }
        let group = match self.get(&key("group_size")).and_then(Value::as_i64) {
            Some(-1) => None,
            _ => Some(self.count(&key("group_size"))?),
        };
        let names = |v: &Value| {
            v.as_array()?
                .iter()
                .map(|v| v.as_str().map(str::to_owned))
                .collect()
        };
        let plain = self
            .typed(&key("modules_to_not_convert"), "a list of names", names)?
            .unwrap_or_default();
        Ok(Some(Awq {
            group,
            zero_point: self.flag(&key("zero_point"))?.unwrap_or(true),
            plain,
        }))
    }

    /// Sets the keys that the architecture reads.
    pub(super) fn declare(&self, view: &mut View) -> Result<(), Error> {
        let key = |name: &str| format!("{}.{name}", self.arch);
        let as_u32 = |n: usize| u32::try_from(n).expect("counts have 32 bits");
        view.set("general.architecture", self.arch);
        for (name, from) in [
            ("context_length", "max_position_embeddings"),
            ("embedding_length", "hidden_size"),
            ("block_count", "num_hidden_layers"),
            ("feed_forward_length", "intermediate_size"),
            ("vocab_size", "vocab_size"),
        ] {
            view.set(&key(name), as_u32(self.count(from)?));
        }
        view.set(&key("attention.head_count"), as_u32(self.heads));
        view.set(&key("attention.head_count_kv"), as_u32(self.heads_kv));
        view.set(&key("attention.key_length"), as_u32(self.head_dim));
        view.set(&key("attention.value_length"), as_u32(self.head_dim));
        view.set(&key("rope.dimension_count"), as_u32(self.head_dim));
        let eps = self.must("rms_norm_eps", "a number", self.float("rms_norm_eps")?)?;
        view.set(&key("attention.layer_norm_rms_epsilon"), eps);
        self.refuse_others()?;
        self.rope(view)
    }

    /// Settings that would change what comes out, with the one value that is implemented.
    fn refuse_others(&self) -> Result<(), Error> {
        if let Some(act) = self.string("hidden_act")?.filter(|act| act != "silu") {
            return Err(self.bad("hidden_act", "silu", act));
        }
        let windows = match self.arch {
            "llama" => true,
            _ => self.flag("use_sliding_window")?.unwrap_or(false),
        };
        let context = self.count("max_position_embeddings")?;
        match self
            .optional_count("sliding_window")?
            .filter(|w| windows && *w < context)
        {
            Some(window) => Err(self.bad(
                "sliding_window",
                format!("none, or at least {context}"),
                window,
            )),
            None => Ok(()),
        }
    }

    fn rope(&self, view: &mut View) -> Result<(), Error> {
        let key = |name: &str| format!("{}.rope.{name}", self.arch);
        if let Some(base) = self.rope_base()? {
            view.set(&key("freq_base"), base);
        }
        if let Some(part) = self
            .float("partial_rotary_factor")?
            .filter(|part| *part != 1.0)
        {
            return Err(self.bad("partial_rotary_factor", "1", part));
        }
        let Some((group, kind)) = self.scaling()? else {
            return Ok(());
        };
        let path = |name: &str| format!("{group}.{name}");
        let number = |name: &str| -> Result<f32, Error> {
            self.must(&path(name), "a number", self.float(&path(name))?)
        };
        match kind.as_str() {
            "linear" | "yarn" => {
                view.set(&key("scaling.type"), kind.as_str())
                    .set(&key("scaling.factor"), number("factor")?);
            }
            "llama3" => {}
            other => {
                return Err(self.bad(&path("rope_type"), "default, linear, yarn or llama3", other));
            }
        }
        if kind == "yarn" {
            let original = self.count(&path("original_max_position_embeddings"))?;
            view.set(
                &key("scaling.original_context_length"),
                u32::try_from(original).unwrap_or(u32::MAX),
            );
            for name in ["beta_fast", "beta_slow"] {
                if let Some(value) = self.float(&path(name))? {
                    view.set(&key(&format!("scaling.yarn_{name}")), value);
                }
            }
            // GGUF's factor multiplies the one that follows from the scaling, this one replaces it
            let follows = 0.1 * number("factor")?.ln() + 1.0;
            let other = |factor: &f32| (factor - follows).abs() > 1e-3;
            if let Some(factor) = self.float(&path("attention_factor"))?.filter(other) {
                return Err(self.bad(
                    &path("attention_factor"),
                    format!("nothing, or {follows}"),
                    factor,
                ));
            }
        }
        Ok(())
    }

    /// The base of the rotary frequencies: newer configurations keep it with the scaling.
    fn rope_base(&self) -> Result<Option<f32>, Error> {
        Ok(self
            .float("rope_theta")?
            .or(self.float("rope_parameters.rope_theta")?))
    }

    /// Where positions' scaling is described, and its kind, if there is one.
    fn scaling(&self) -> Result<Option<(&'static str, String)>, Error> {
        for group in ["rope_scaling", "rope_parameters"] {
            let kind = match self.string(&format!("{group}.rope_type"))? {
                Some(kind) => Some(kind),
                None => self.string(&format!("{group}.type"))?,
            };
            if let Some(kind) = kind {
                return Ok((kind != "default").then_some((group, kind)));
            }
        }
        Ok(None)
    }

    /// LLaMA 3.1's scaling: divisors of the rotary frequencies, computed as llama.cpp's converter
    /// does.
    pub(super) fn rope_freqs(&self) -> Result<Option<Vec<f32>>, Error> {
        let Some((group, _)) = self.scaling()?.filter(|s| s.1 == "llama3") else {
            return Ok(None);
        };
        let number = |name: &str| {
            let path = format!("{group}.{name}");
            self.must(&path, "a number", self.float(&path)?)
        };
        let (factor, low, high) = (
            number("factor")?,
            number("low_freq_factor")?,
            number("high_freq_factor")?,
        );
        let original = number("original_max_position_embeddings")?;
        let base = self.must("rope_theta", "a number", self.rope_base()?)?;
        if high <= low {
            return Err(self.bad(
                &format!("{group}.high_freq_factor"),
                format!("more than {low}"),
                high,
            ));
        }
        let llama3 = Llama3 {
            factor,
            low,
            high,
            original,
        };
        Ok(Some(llama3.divisors(base, self.head_dim)))
    }
}

/// LLaMA 3.1's scaling of rotary frequencies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Llama3 {
    /// Divides low frequencies.
    pub(super) factor: f32,
    /// Frequencies that turn less often than this over the original context are low,
    pub(super) low: f32,
    /// and high those that turn more often than this.
    pub(super) high: f32,
    /// The context of the training.
    pub(super) original: f32,
}

impl Llama3 {
    /// What each of the frequencies `base ^ (-2 i / head_dim)` is divided by.
    pub(super) fn divisors(self, base: f32, head_dim: usize) -> Vec<f32> {
        let Llama3 {
            factor,
            low,
            high,
            original,
        } = self;
        let divisor = |i: usize| {
            let frequency = f64::from(base).powf(-2.0 * i as f64 / head_dim as f64);
            let wavelength = (2.0 * std::f64::consts::PI / frequency) as f32;
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (original / wavelength - low) / (high - low);
                1.0 / ((1.0 - smooth) / factor + smooth)
            }
        };
        (0..head_dim / 2).map(divisor).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn llama_3_divides_low_frequencies_only() {
        let llama3 = Llama3 {
            factor: 8.0,
            low: 1.0,
            high: 4.0,
            original: 8192.0,
        };
        let divisors = llama3.divisors(500_000.0, 128);
        // a wavelength of 2 pi * 500000^(i / 64): up to 2048 for i <= 28, from 8192 for i >= 35
        assert!(
            divisors[..=28].iter().all(|d| *d == 1.0) && divisors[35..].iter().all(|d| *d == 8.0)
        );
        // i = 32: 4442.9; (8192 / 4442.9 - 1) / 3 = 0.28128; 1 / (0.71872 / 8 + 0.28128)
        assert!((divisors[32] - 2.6943).abs() < 1e-3, "{}", divisors[32]);
        assert!(divisors.is_sorted());
    }
}
