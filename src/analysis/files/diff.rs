//! Compares two GGUF files: keys by type and value, tensors by type, shape, bytes and values.

use std::collections::BTreeSet;

use gguf_rs_lite::{Gguf, TensorInfo, Value};
use octavo_quant::can_dequantize;
use serde::Serialize;

use super::{Error, bytes, decode, each, pieces};
use crate::facts::value_json;

/// Longest array of which a difference shows all elements.
const MAX_ARRAY: usize = 8;

/// Differences of two files.
#[derive(Debug, Serialize)]
pub struct FileDiff {
    /// Keys that differ, in the order of A, then those that only B has.
    pub keys: Vec<KeyDiff>,
    /// Number of equal keys.
    pub equal_keys: usize,
    /// Tensors that differ, in the order of A, then those that only B has.
    pub tensors: Vec<TensorDiff>,
    /// Number of tensors of equal type, shape and bytes.
    pub equal_tensors: usize,
}

impl FileDiff {
    /// Returns whether nothing differs.
    pub fn is_equal(&self) -> bool {
        self.keys.is_empty() && self.tensors.is_empty()
    }
}

/// A key that differs.
#[derive(Debug, Serialize)]
pub struct KeyDiff {
    /// Name.
    pub key: String,
    /// Its value in A, if A has it.
    pub a: Option<KeyFacts>,
    /// Its value in B, if B has it.
    pub b: Option<KeyFacts>,
    /// For arrays of equal type, the index of the first element that differs or that only one has.
    pub first: Option<usize>,
}

/// The value of a key.
#[derive(Debug, PartialEq, Serialize)]
pub struct KeyFacts {
    /// Type: "u32", "string", "[f32]".
    #[serde(rename = "type")]
    pub ty: String,
    /// Value; of longer arrays their length, or the first element that differs.
    pub value: serde_json::Value,
}

/// A tensor that differs.
#[derive(Debug, Serialize)]
pub struct TensorDiff {
    /// Name.
    pub name: String,
    /// The tensor in A, if A has it.
    pub a: Option<TensorFacts>,
    /// The tensor in B, if B has it.
    pub b: Option<TensorFacts>,
    /// Difference of the values, if both have the same shape and are floats.
    pub error: Option<ValueError>,
}

/// Type and size of a tensor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct TensorFacts {
    /// Name of the type.
    #[serde(rename = "type")]
    pub ty: &'static str,
    /// Shape in ggml's order: the length of a row first.
    pub shape: Vec<u64>,
    /// Bytes of data.
    pub bytes: u64,
}

/// Difference of the values of two tensors.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
pub struct ValueError {
    /// Number of values.
    pub values: u64,
    /// Number of values that differ.
    pub differing: u64,
    /// Σ (A - B)² / Σ A².
    pub nmse: f64,
    /// Largest |A - B|; infinite if one of them is not finite.
    pub max_abs: f64,
    /// Index of the value with the largest difference.
    pub at: u64,
    /// A's value there.
    pub a: f32,
    /// B's value there.
    pub b: f32,
}

/// Compares the keys and tensors that `is_wanted` accepts by name. Tensors are read on `threads`
/// threads; `progress` gets the bytes of A that were compared.
///
/// # Errors
/// A file that changes meanwhile.
pub fn diff(
    a: &Gguf,
    b: &Gguf,
    is_wanted: &dyn Fn(&str) -> bool,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<FileDiff, Error> {
    let of_a: Vec<&TensorInfo> = a.tensors().iter().filter(|t| is_wanted(&t.name)).collect();
    let compared = each(
        of_a.len(),
        threads,
        |i| compare(a, of_a[i], b),
        |i| progress(of_a[i].bytes),
    );
    let mut tensors = Vec::new();
    for difference in compared {
        tensors.extend(difference?);
    }
    let equal_tensors = of_a.len() - tensors.len();
    let only_b = b.tensors().iter();
    let only_b = only_b.filter(|t| is_wanted(&t.name) && a.tensor(&t.name).is_none());
    tensors.extend(only_b.map(|t| TensorDiff {
        name: t.name.clone(),
        a: None,
        b: Some(facts(t)),
        error: None,
    }));
    let (keys, equal_keys) = keys(a, b, is_wanted);
    Ok(FileDiff {
        keys,
        equal_keys,
        tensors,
        equal_tensors,
    })
}

/// Returns the keys that differ, and the number of equal ones.
fn keys(a: &Gguf, b: &Gguf, is_wanted: &dyn Fn(&str) -> bool) -> (Vec<KeyDiff>, usize) {
    let (mut differ, mut equal) = (Vec::new(), 0);
    let mut seen = BTreeSet::new();
    for (key, _) in a.keys().chain(b.keys()) {
        if !is_wanted(key) || !seen.insert(key) {
            continue;
        }
        let (of_a, of_b) = (a.get(key), b.get(key));
        if of_a.zip(of_b).is_some_and(|(a, b)| same(&a, &b)) {
            equal += 1;
            continue;
        }
        let first = of_a.zip(of_b).and_then(|(a, b)| first_difference(&a, &b));
        differ.push(KeyDiff {
            key: key.to_owned(),
            a: of_a.map(|value| key_facts(&value, first)),
            b: of_b.map(|value| key_facts(&value, first)),
            first,
        });
    }
    (differ, equal)
}

/// Returns whether two values are the same, NaN included.
fn same(a: &Value<'_>, b: &Value<'_>) -> bool {
    match (a, b) {
        (Value::F32(a), Value::F32(b)) => a.to_bits() == b.to_bits(),
        (Value::F64(a), Value::F64(b)) => a.to_bits() == b.to_bits(),
        (Value::Array(a), Value::Array(b)) => {
            a.elem_type() == b.elem_type()
                && a.len() == b.len()
                && a.iter().zip(b.iter()).all(|(a, b)| same(&a, &b))
        }
        _ => a == b,
    }
}

/// Returns the first element in which two arrays of one type differ.
fn first_difference(a: &Value<'_>, b: &Value<'_>) -> Option<usize> {
    let (Value::Array(a), Value::Array(b)) = (a, b) else {
        return None;
    };
    if a.elem_type() != b.elem_type() {
        return None;
    }
    let differs = a.iter().zip(b.iter()).position(|(a, b)| !same(&a, &b));
    Some(differs.unwrap_or(a.len().min(b.len())))
}

fn key_facts(value: &Value<'_>, first: Option<usize>) -> KeyFacts {
    let (ty, json) = match value {
        Value::Array(array) => {
            let element = first.filter(|_| array.len() > MAX_ARRAY);
            let json = match element {
                Some(i) => array
                    .iter()
                    .nth(i)
                    .map_or(serde_json::Value::Null, |v| value_json(&v, MAX_ARRAY)),
                None => value_json(value, MAX_ARRAY),
            };
            (format!("[{}]", array.elem_type()), json)
        }
        other => (other.value_type().to_string(), value_json(other, MAX_ARRAY)),
    };
    KeyFacts { ty, value: json }
}

fn facts(tensor: &TensorInfo) -> TensorFacts {
    TensorFacts {
        ty: tensor.ty.name(),
        shape: tensor.dims.clone(),
        bytes: tensor.bytes,
    }
}

/// Compares a tensor of A with that of the same name of B; `None` if they are equal.
fn compare(a: &Gguf, tensor: &TensorInfo, b: &Gguf) -> Result<Option<TensorDiff>, Error> {
    let other = b.tensor(&tensor.name);
    let difference = |error| TensorDiff {
        name: tensor.name.clone(),
        a: Some(facts(tensor)),
        b: other.map(facts),
        error,
    };
    let Some(other) = other else {
        return Ok(Some(difference(None)));
    };
    let is_same_shape = tensor.counted_dims() == other.counted_dims();
    let (of_a, of_b) = (bytes(a, tensor)?, bytes(b, other)?);
    if is_same_shape && tensor.ty == other.ty && of_a == of_b {
        return Ok(None);
    }
    let has_values = can_dequantize(tensor.ty) && can_dequantize(other.ty);
    let error = (is_same_shape && has_values).then(|| error((tensor, of_a), (other, of_b)));
    a.release(tensor);
    b.release(other);
    Ok(Some(difference(error)))
}

/// Measures the difference of two tensors of the same shape.
fn error(a: (&TensorInfo, &[u8]), b: (&TensorInfo, &[u8])) -> ValueError {
    let mut found = ValueError {
        values: a.0.n_elements(),
        differing: 0,
        nmse: 0.0,
        max_abs: 0.0,
        at: 0,
        a: 0.0,
        b: 0.0,
    };
    let (mut squares, mut total) = (0.0, 0.0);
    let (mut of_a, mut of_b) = (Vec::new(), Vec::new());
    // both in pieces of as many values, as every piece is a multiple of every block
    for ((first, range_a), (_, range_b)) in pieces(a.0).zip(pieces(b.0)) {
        decode(a.0, &a.1[range_a], &mut of_a);
        decode(b.0, &b.1[range_b], &mut of_b);
        for (i, (&x, &y)) in of_a.iter().zip(&of_b).enumerate() {
            total += f64::from(x) * f64::from(x);
            if x.to_bits() == y.to_bits() || x == y {
                continue;
            }
            found.differing += 1;
            let mut size = (f64::from(x) - f64::from(y)).abs();
            if size.is_nan() {
                size = f64::INFINITY;
            }
            squares += size * size;
            if size > found.max_abs {
                (found.max_abs, found.at) = (size, first + i as u64);
                (found.a, found.b) = (x, y);
            }
        }
    }
    found.nmse = match total > 0.0 {
        true => squares / total,
        false if squares > 0.0 => f64::INFINITY,
        false => 0.0,
    };
    found
}
