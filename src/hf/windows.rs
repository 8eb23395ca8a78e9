//! Sliding windows: `sliding_window`, and the layers that have one.

use gguf_rs_lite::View;
use serde_json::Value;

use super::Error;
use super::config::Config;
use super::types::Windows;

const WINDOW: &str = "sliding_window";
const PATTERN: &str = "sliding_window_pattern";
const TYPES: &str = "layer_types";

impl Config {
    /// Sets the keys of sliding windows, or refuses them.
    pub(super) fn windows(&self, view: &mut View) -> Result<(), Error> {
        let key = self.key("attention.sliding_window");
        let narrow = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        match self.row.windows {
            Windows::Refused(unless) => self.refuse_window(unless),
            Windows::Reported => {
                view.set(&key, narrow(self.optional_count(WINDOW)?.unwrap_or(0)));
                Ok(())
            }
            Windows::Every(period) => {
                view.set(&key, narrow(self.count(WINDOW)?));
                let expected = format!("sliding_attention for layers but every {period}th");
                self.every(TYPES, self.windowed_by_type()?, period, &expected)?;
                self.number_is(PATTERN, period as f64)
            }
            Windows::Marked(period) => {
                if self.optional_count(WINDOW)?.is_none() {
                    return Ok(());
                }
                let flags = match self.windowed_by_type()? {
                    Some(flags) => flags,
                    None => self.windowed_by_pattern(period)?,
                };
                self.mark(flags, view)
            }
            Windows::Listed => {
                let flags = self.windowed_by_type()?;
                self.mark(self.must(TYPES, "a kind for each layer", flags)?, view)
            }
        }
    }

    /// Sets the keys of a window that only some layers have.
    fn mark(&self, flags: Vec<bool>, view: &mut View) -> Result<(), Error> {
        let window = u32::try_from(self.count(WINDOW)?).unwrap_or(u32::MAX);
        let layers = self.count("num_hidden_layers")?;
        if flags.len() != layers {
            let expected = format!("a kind for each of {layers} layers");
            return Err(self.bad(TYPES, expected, flags.len()));
        }
        view.set(&self.key("attention.sliding_window"), window)
            .set(&self.key("attention.sliding_window_pattern"), flags);
        Ok(())
    }

    /// Refuses a window narrower than the context, unless the flag `unless` says that it is not
    /// used.
    fn refuse_window(&self, unless: Option<&'static str>) -> Result<(), Error> {
        let used = unless.map_or(Ok(Some(true)), |flag| self.flag(flag))?;
        if used != Some(true) {
            return Ok(());
        }
        let context = self.count("max_position_embeddings")?;
        match self.optional_count(WINDOW)?.filter(|w| *w < context) {
            Some(window) => Err(self.bad(
                WINDOW,
                format!("nothing, or at least max_position_embeddings, {context}"),
                window,
            )),
            None => Ok(()),
        }
    }

    /// Returns for each layer whether `layer_types` gives it a window.
    pub(super) fn windowed_by_type(&self) -> Result<Option<Vec<bool>>, Error> {
        self.flags(TYPES, |v| match v.as_str() {
            Some("sliding_attention") => Some(true),
            Some("full_attention") => Some(false),
            _ => None,
        })
    }

    /// Returns for each layer whether `sliding_window_pattern` gives it a window: the pattern is a
    /// period, or letters to repeat, L for a window. Without it all layers but every `period`-th
    /// have one.
    fn windowed_by_pattern(&self, period: usize) -> Result<Vec<bool>, Error> {
        let layers = 0..self.count("num_hidden_layers")?;
        if let Some(letters) = self.get(PATTERN).and_then(Value::as_str) {
            let letters = letters.as_bytes();
            if letters.is_empty() {
                return Err(self.bad(PATTERN, "a letter for each layer in turn", "none"));
            }
            return Ok(layers.map(|l| letters[l % letters.len()] == b'L').collect());
        }
        let period = self.optional_count(PATTERN)?.unwrap_or(period);
        Ok(layers.map(|l| (l + 1) % period != 0).collect())
    }

    /// Reads a list with a flag for each layer.
    pub(super) fn flags(
        &self,
        key: &str,
        read: impl Fn(&Value) -> Option<bool>,
    ) -> Result<Option<Vec<bool>>, Error> {
        let all = |v: &Value| v.as_array()?.iter().map(&read).collect();
        self.typed(key, "a list with a known value for each layer", all)
    }

    /// Refuses flags unless they are set for all layers but every `period`-th.
    pub(super) fn every(
        &self,
        key: &str,
        flags: Option<Vec<bool>>,
        period: usize,
        expected: &str,
    ) -> Result<(), Error> {
        let Some(flags) = flags else { return Ok(()) };
        let other = |(l, flag): (usize, &bool)| *flag != ((l + 1) % period != 0);
        match flags.iter().enumerate().position(other) {
            Some(layer) => Err(self.bad(key, expected, format!("another for layer {layer}"))),
            None => Ok(()),
        }
    }
}
