//! Coefficients of xIELU, of which keys store one for all layers or one for each.

use super::super::architecture::Architecture;
use super::super::math::{Activation, softplus};
use super::keys::Keys;
use crate::Error;
use gguf_rs_lite::Value;

/// Reads the coefficients of each layer, if the architecture has them.
pub(super) fn read(
    keys: &Keys<'_>,
    architecture: &Architecture,
    n_layer: usize,
) -> Result<Option<Vec<[f64; 4]>>, Error> {
    if architecture.activation != Activation::Xielu {
        return Ok(None);
    }
    // no prefix
    let number = |value: &Value<'_>| match value {
        Value::F32(x) => Some(f64::from(*x)),
        Value::F64(x) => Some(*x),
        _ => None,
    };
    let read = |name: &str| {
        let values = match keys.gguf.get(&format!("xielu.{name}")) {
            Some(Value::Array(values)) => values.iter().map(|value| number(&value)).collect(),
            Some(value) => number(&value).map(|x| vec![x; n_layer]),
            None => None,
        };
        let values = values.filter(|values| values.len() == n_layer);
        values.ok_or_else(|| keys.bad(name, "a number, or one for each layer", "others"))
    };
    let (positive, negative) = (read("alpha_p")?, read("alpha_n")?);
    let (linear, least) = (read("beta")?, read("eps")?);
    let of = |il: usize| {
        let negative = linear[il] + softplus(negative[il]);
        [softplus(positive[il]), negative, linear[il], least[il]]
    };
    Ok(Some((0..n_layer).map(of).collect()))
}
