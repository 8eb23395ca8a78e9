//! RoPE: base, dimensions and scaling under GGUF's keys.

use gguf_rs_lite::View;
use serde_json::Value;

use super::Error;
use super::config::Config;
use super::types::global_head_dim;
use octavo_model::Choice;

/// Settings that may describe the scaling.
const GROUPS: [&str; 3] = [
    "rope_scaling",
    "rope_parameters",
    "rope_parameters.full_attention",
];

impl Config {
    pub(super) fn rope(&self, view: &mut View) -> Result<(), Error> {
        let key = |name: &str| self.key(&format!("rope.{name}"));
        let turns = self.turning()?;
        view.set(
            &key("dimension_count"),
            u32::try_from(turns).unwrap_or(u32::MAX),
        );
        if let Some(base) = self.rope_base()? {
            view.set(&key("freq_base"), base);
        }
        let Some((group, kind)) = self.scaling()? else {
            return Ok(());
        };
        let path = |name: &str| format!("{group}.{name}");
        let number = |name: &str| -> Result<f32, Error> {
            self.must(&path(name), "a number", self.float(&path(name))?)
        };
        if !self.row.scalings.contains(&kind.as_str()) {
            let known = [&["default"], self.row.scalings].concat();
            let expected = Choice(&known).to_string();
            return Err(self.bad(&path("rope_type"), expected, kind));
        }
        match kind.as_str() {
            "linear" | "yarn" => {
                view.set(&key("scaling.type"), kind.as_str())
                    .set(&key("scaling.factor"), number("factor")?);
            }
            // the row's own function sets the other keys that these need
            "longrope" | "su" if self.row.arch != "phi3" => {
                view.set(&key("scaling.type"), "longrope");
            }
            _ => {}
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
            // GGUF's factor multiplies the one that follows from the scaling, `attention_factor`
            // replaces it
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

    /// Returns the number of a head's values that are rotated.
    fn turning(&self) -> Result<usize, Error> {
        const NAMES: [&str; 4] = [
            "rope_parameters.partial_rotary_factor",
            "rope_scaling.partial_rotary_factor",
            "partial_rotary_factor",
            "rotary_pct",
        ];
        let mut found = None;
        for name in NAMES {
            found = found.or(self.float(name)?.map(|part| (name, part)));
        }
        let (name, part) = found.unwrap_or((NAMES[2], self.row.rotary.unwrap_or(1.0)));
        if part != 1.0 && self.row.rotary.is_none() {
            return Err(self.bad(name, "1", part));
        }
        if !(0.0..=1.0).contains(&part) {
            return Err(self.bad(name, "a part of 1", part));
        }
        Ok((f64::from(part) * self.head_dim as f64) as usize)
    }

    /// Returns the base of the RoPE frequencies: newer configurations keep it with the scaling.
    pub(super) fn rope_base(&self) -> Result<Option<f32>, Error> {
        for group in GROUPS {
            if let Some(base) = self.float(&format!("{group}.rope_theta"))? {
                return Ok(Some(base));
            }
        }
        self.float("rope_theta")
    }

    /// Returns which setting describes the scaling, and its kind, if there is one.
    pub(super) fn scaling(&self) -> Result<Option<(&'static str, String)>, Error> {
        for group in GROUPS {
            self.typed(group, "settings by name, or null", Value::as_object)?;
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

    /// Returns how many pairs of a head are rotated by each of four axes, the last of which has
    /// none.
    pub(super) fn axes(&self) -> Result<Option<Vec<i32>>, Error> {
        let expected = "at most four numbers of pairs";
        for group in GROUPS {
            let read = |v: &Value| {
                let number = |v: &Value| i32::try_from(v.as_u64()?).ok();
                let all: Vec<i32> = v.as_array()?.iter().map(number).collect::<Option<_>>()?;
                (all.len() <= 4).then_some(all)
            };
            let listed = self.typed(&format!("{group}.mrope_section"), expected, read)?;
            if let Some(mut axes) = listed {
                axes.resize(4, 0);
                return Ok(Some(axes));
            }
        }
        Ok(None)
    }

    /// Returns the original context length of the training, before it was extended.
    pub(super) fn original_context(&self) -> Result<Option<usize>, Error> {
        const NAME: &str = "original_max_position_embeddings";
        for group in GROUPS {
            if let Some(n) = self.optional_count(&format!("{group}.{NAME}"))? {
                return Ok(Some(n));
            }
        }
        self.optional_count(NAME)
    }

    /// Returns divisors of the RoPE frequencies, by the names of their tensors.
    pub(super) fn divisors(&self) -> Result<Vec<(&'static str, Vec<f32>)>, Error> {
        let mut all: Vec<_> = self
            .llama3()?
            .map(|divisors| ("rope_freqs.weight", divisors))
            .into_iter()
            .collect();
        if let Some(divisors) = self.proportional()? {
            all.push(("rope_freqs.weight", divisors));
        }
        let longrope = self.scaling()?.filter(|s| s.1 == "longrope" || s.1 == "su");
        if let Some((group, _)) = longrope {
            for (name, to) in [
                ("long_factor", "rope_factors_long.weight"),
                ("short_factor", "rope_factors_short.weight"),
            ] {
                all.push((to, self.factors(&format!("{group}.{name}"))?));
            }
        }
        Ok(all)
    }

    /// Returns the divisors of Gemma 4's heads without a window, of which only the first pairs of
    /// either half are rotated. The others get a huge divisor, as in llama.cpp's files, so that
    /// their rotation vanishes and they keep their places between the two halves.
    fn proportional(&self) -> Result<Option<Vec<f32>>, Error> {
        let Some((group, _)) = self.scaling()?.filter(|s| s.1 == "proportional") else {
            return Ok(None);
        };
        let path = format!("{group}.partial_rotary_factor");
        let expected = "a part of 1";
        let is_part = |part: &f64| (0.0..=1.0).contains(part);
        let part = self.typed(&path, expected, |v| v.as_f64().filter(is_part))?;
        let part = self.must(&path, expected, part)?;
        let head_dim = global_head_dim(self)?;
        let turn = (head_dim as f64 * part / 2.0) as usize;
        let divisor = |pair: usize| if pair < turn { 1.0 } else { 1e30 };
        Ok(Some((0..head_dim / 2).map(divisor).collect()))
    }

    /// Reads a divisor for each rotated pair.
    fn factors(&self, key: &str) -> Result<Vec<f32>, Error> {
        let pairs = self.turning()? / 2;
        let expected = format!("{pairs} positive numbers");
        let list = |v: &Value| -> Option<Vec<f32>> {
            let number = |v: &Value| Some(v.as_f64()? as f32).filter(|x| x.is_normal() && *x > 0.0);
            let all: Vec<f32> = v.as_array()?.iter().map(number).collect::<Option<_>>()?;
            (all.len() == pairs).then_some(all)
        };
        self.must(key, &expected, self.typed(key, &expected, list)?)
    }

    /// Computes LLaMA 3.1's divisors of the RoPE frequencies as llama.cpp's converter does.
    fn llama3(&self) -> Result<Option<Vec<f32>>, Error> {
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

/// LLaMA 3.1's scaling of RoPE frequencies.
#[derive(Clone, Copy, Debug)]
pub(super) struct Llama3 {
    /// Divisor of low frequencies.
    pub(super) factor: f32,
    /// Frequencies with fewer rotations than this over the original context are low,
    pub(super) low: f32,
    /// and those with more rotations than this are high.
    pub(super) high: f32,
    /// Original context length of the training.
    pub(super) original: f32,
}

impl Llama3 {
    /// Returns the divisor of each of the frequencies `base ^ (-2 i / head_dim)`, computed in f32
    /// step by step as PyTorch computes them for llama.cpp's converter: a number divided by a
    /// tensor is the number times the reciprocal.
    pub(super) fn divisors(self, base: f32, head_dim: usize) -> Vec<f32> {
        let Llama3 {
            factor,
            low,
            high,
            original,
        } = self;
        let divisor = |i: usize| {
            let exponent = (2 * i) as f32 / head_dim as f32;
            let frequency = 1.0 / f64::from(base).powf(f64::from(exponent)) as f32;
            let wavelength = 1.0 / frequency * (2.0 * std::f32::consts::PI);
            if wavelength < original / high {
                1.0
            } else if wavelength > original / low {
                factor
            } else {
                let smooth = (1.0 / wavelength * original - low) / (high - low);
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
