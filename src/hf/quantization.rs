//! Quantization of weights: `quantization_config`, or AutoAWQ's older file beside `config.json`,
//! with names of its own.

use std::path::Path;

use serde_json::Value;

use super::Error;
use super::awq::Packing;
use super::config::Config;
use super::settings::Settings;

/// AutoAWQ's own file.
const BESIDE: &str = "quant_config.json";

/// Settings of AWQ weights.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Awq {
    /// Order of codes in words.
    pub(super) packing: Packing,
    /// Number of weights of a row that share a scale; `None` for a whole row.
    pub(super) group: Option<usize>,
    /// Whether files have zero points; without them every zero point is 8.
    pub(super) zero_point: bool,
    /// Parts of the names of modules that are not quantized.
    pub(super) plain: Vec<String>,
}

impl Config {
    pub(super) fn quantization(&self, dir: &Path) -> Result<Option<Awq>, Error> {
        if self.get("quantization_config").is_some() {
            return self.quantization_of(&self.settings, "quantization_config.");
        }
        match Settings::beside(dir, BESIDE)? {
            Some(settings) => self.quantization_of(&settings, ""),
            None => Ok(None),
        }
    }

    /// Reads it from `settings`, where names begin with `prefix`.
    fn quantization_of(&self, settings: &Settings, prefix: &str) -> Result<Option<Awq>, Error> {
        let key = |name: &str| format!("{prefix}{name}");
        // use AutoAWQ's name if the settings have it
        let either = |name: &str, autoawq: &str| match settings.get(&key(name)) {
            None if settings.get(&key(autoawq)).is_some() => key(autoawq),
            _ => key(name),
        };
        let method = settings.string(&key("quant_method"))?;
        // MXFP4 blocks are recognized by the names of their tensors
        if self.row.transposed && method.as_deref() == Some("mxfp4") {
            return Ok(None);
        }
        if !self.row.awq {
            let expected = format!("nothing, as {} is read unquantized only", self.row.name);
            let at = if prefix.is_empty() {
                "quant_method"
            } else {
                "quantization_config"
            };
            return Err(settings.bad(at, expected, method.unwrap_or_default()));
        }
        // only AWQ's settings have these
        let is_awq = ["zero_point", "version", "w_bit"]
            .iter()
            .any(|name| settings.get(&key(name)).is_some());
        let unsaid = || if is_awq { "awq" } else { "" }.to_owned();
        let method = method.unwrap_or_else(unsaid).to_ascii_lowercase();
        if method != "awq" {
            let expected = "awq, and no other packing can be read";
            return Err(settings.bad(&key("quant_method"), expected, format!("{method:?}")));
        }
        let version = settings.string(&key("version"))?;
        let packing = match version.as_deref().map(str::to_ascii_lowercase).as_deref() {
            None | Some("gemm") => Packing::Gemm,
            Some("gemv") => Packing::Gemv,
            Some(other) => {
                let expected = "gemm or gemv, and no other packing can be read";
                return Err(settings.bad(&key("version"), expected, format!("{other:?}")));
            }
        };
        let bits = either("bits", "w_bit");
        match settings.count(&bits)? {
            4 => {}
            other => return Err(settings.bad(&bits, "4", other)),
        }
        let group = either("group_size", "q_group_size");
        let group = match settings.get(&group).and_then(Value::as_i64) {
            Some(-1) => None,
            _ => Some(settings.count(&group)?),
        };
        let names = |v: &Value| {
            v.as_array()?
                .iter()
                .map(|v| v.as_str().map(str::to_owned))
                .collect()
        };
        let plain = settings
            .typed(&key("modules_to_not_convert"), "a list of names", names)?
            .unwrap_or_default();
        Ok(Some(Awq {
            packing,
            group,
            zero_point: settings.flag(&key("zero_point"))?.unwrap_or(true),
            plain,
        }))
    }
}
