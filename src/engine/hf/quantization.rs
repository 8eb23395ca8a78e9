//! `quantization_config`: how weights are quantized.

use serde_json::Value;

use super::Error;
use super::config::Config;

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

impl Config {
    pub(super) fn quantization(&self) -> Result<Option<Awq>, Error> {
        let key = |name: &str| format!("quantization_config.{name}");
        if self.get("quantization_config").is_none() {
            return Ok(None);
        }
        // blocks are recognised by the names of their tensors
        let method = self.string(&key("quant_method"))?;
        if self.row.transposed && method.as_deref() == Some("mxfp4") {
            return Ok(None);
        }
        if !self.row.awq {
            let expected = format!("nothing, as {} is read unquantized only", self.row.name);
            return Err(self.bad("quantization_config", expected, method.unwrap_or_default()));
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
}
