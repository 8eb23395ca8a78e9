//! Metadata values that own their content, the input of the writer.

use crate::{Value, ValueType, value};

/// A metadata value to write. Converted from a Rust value (`7u32.into()`, `"text".into()`,
/// `vec![1f32].into()`), or from a [`Value`] of an open file.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names say all
pub enum OwnedValue {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(Vec<u8>),
    Array(OwnedArray),
    U64(u64),
    I64(i64),
    F64(f64),
}

/// An array to write: one variant for each element type, so that empty arrays have one too.
#[derive(Clone, Debug, PartialEq)]
#[allow(missing_docs)] // the names say all
pub enum OwnedArray {
    U8(Vec<u8>),
    I8(Vec<i8>),
    U16(Vec<u16>),
    I16(Vec<i16>),
    U32(Vec<u32>),
    I32(Vec<i32>),
    F32(Vec<f32>),
    Bool(Vec<bool>),
    Str(Vec<Vec<u8>>),
    U64(Vec<u64>),
    I64(Vec<i64>),
    F64(Vec<f64>),
}

macro_rules! from {
    ($($variant:ident: $t:ty;)*) => {$(
        impl From<$t> for OwnedValue {
            fn from(v: $t) -> OwnedValue {
                OwnedValue::$variant(v)
            }
        }
        impl From<Vec<$t>> for OwnedValue {
            fn from(v: Vec<$t>) -> OwnedValue {
                OwnedValue::Array(OwnedArray::$variant(v))
            }
        }
    )*};
}

// only u8 has no array conversion: `Vec<u8>` could be a string or an array
from! {
    I8: i8; U16: u16; I16: i16; U32: u32; I32: i32; F32: f32; Bool: bool;
    U64: u64; I64: i64; F64: f64;
}

impl From<u8> for OwnedValue {
    fn from(v: u8) -> OwnedValue {
        OwnedValue::U8(v)
    }
}

impl From<&str> for OwnedValue {
    fn from(v: &str) -> OwnedValue {
        OwnedValue::Str(v.as_bytes().to_vec())
    }
}

impl From<String> for OwnedValue {
    fn from(v: String) -> OwnedValue {
        OwnedValue::Str(v.into_bytes())
    }
}

impl From<Vec<Vec<u8>>> for OwnedValue {
    fn from(v: Vec<Vec<u8>>) -> OwnedValue {
        OwnedValue::Array(OwnedArray::Str(v))
    }
}

impl From<Vec<String>> for OwnedValue {
    fn from(v: Vec<String>) -> OwnedValue {
        v.into_iter()
            .map(String::into_bytes)
            .collect::<Vec<_>>()
            .into()
    }
}

impl From<OwnedArray> for OwnedValue {
    fn from(v: OwnedArray) -> OwnedValue {
        OwnedValue::Array(v)
    }
}

impl From<Value<'_>> for OwnedValue {
    fn from(v: Value<'_>) -> OwnedValue {
        match v {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::F32(v) => v.into(),
            Value::Bool(v) => v.into(),
            Value::Str(v) => OwnedValue::Str(v.to_vec()),
            Value::Array(v) => OwnedValue::Array(v.into()),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            Value::F64(v) => v.into(),
        }
    }
}

impl From<value::Array<'_>> for OwnedArray {
    fn from(a: value::Array<'_>) -> OwnedArray {
        fn all<T>(values: Option<impl Iterator<Item = T>>) -> Vec<T> {
            values.into_iter().flatten().collect()
        }
        match a.elem_type() {
            ValueType::U8 => OwnedArray::U8(all(a.u8s())),
            ValueType::I8 => OwnedArray::I8(all(a.i8s())),
            ValueType::U16 => OwnedArray::U16(all(a.u16s())),
            ValueType::I16 => OwnedArray::I16(all(a.i16s())),
            ValueType::U32 => OwnedArray::U32(all(a.u32s())),
            ValueType::I32 => OwnedArray::I32(all(a.i32s())),
            ValueType::F32 => OwnedArray::F32(all(a.f32s())),
            ValueType::Bool => OwnedArray::Bool(all(a.bools())),
            ValueType::U64 => OwnedArray::U64(all(a.u64s())),
            ValueType::I64 => OwnedArray::I64(all(a.i64s())),
            ValueType::F64 => OwnedArray::F64(all(a.f64s())),
            // arrays never have array elements
            ValueType::String | ValueType::Array => OwnedArray::Str(
                a.strings()
                    .into_iter()
                    .flatten()
                    .map(<[u8]>::to_vec)
                    .collect(),
            ),
        }
    }
}

impl OwnedValue {
    /// Returns the type that is written.
    pub fn value_type(&self) -> ValueType {
        match self {
            OwnedValue::U8(_) => ValueType::U8,
            OwnedValue::I8(_) => ValueType::I8,
            OwnedValue::U16(_) => ValueType::U16,
            OwnedValue::I16(_) => ValueType::I16,
            OwnedValue::U32(_) => ValueType::U32,
            OwnedValue::I32(_) => ValueType::I32,
            OwnedValue::F32(_) => ValueType::F32,
            OwnedValue::Bool(_) => ValueType::Bool,
            OwnedValue::Str(_) => ValueType::String,
            OwnedValue::Array(_) => ValueType::Array,
            OwnedValue::U64(_) => ValueType::U64,
            OwnedValue::I64(_) => ValueType::I64,
            OwnedValue::F64(_) => ValueType::F64,
        }
    }

    /// Returns the value of any of the eight integer types.
    pub(crate) fn as_int(&self) -> Option<i128> {
        Some(match *self {
            OwnedValue::U8(v) => v.into(),
            OwnedValue::I8(v) => v.into(),
            OwnedValue::U16(v) => v.into(),
            OwnedValue::I16(v) => v.into(),
            OwnedValue::U32(v) => v.into(),
            OwnedValue::I32(v) => v.into(),
            OwnedValue::U64(v) => v.into(),
            OwnedValue::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Describes the value for messages: `u32`, `string`, `an array of f32`.
    pub(crate) fn kind(&self) -> String {
        let elem = match self {
            OwnedValue::Array(array) => Some(array.elem_type()),
            _ => None,
        };
        value::kind(self.value_type(), elem)
    }

    /// Appends the value as a file stores it after the type.
    pub(crate) fn encode(&self, out: &mut Vec<u8>) {
        match self {
            OwnedValue::U8(v) => out.push(*v),
            OwnedValue::I8(v) => out.extend(v.to_le_bytes()),
            OwnedValue::U16(v) => out.extend(v.to_le_bytes()),
            OwnedValue::I16(v) => out.extend(v.to_le_bytes()),
            OwnedValue::U32(v) => out.extend(v.to_le_bytes()),
            OwnedValue::I32(v) => out.extend(v.to_le_bytes()),
            OwnedValue::F32(v) => out.extend(v.to_le_bytes()),
            OwnedValue::Bool(v) => out.push((*v).into()),
            OwnedValue::Str(v) => encode_string(out, v),
            OwnedValue::Array(v) => v.encode(out),
            OwnedValue::U64(v) => out.extend(v.to_le_bytes()),
            OwnedValue::I64(v) => out.extend(v.to_le_bytes()),
            OwnedValue::F64(v) => out.extend(v.to_le_bytes()),
        }
    }
}

/// Appends a string: its length, then its bytes.
pub(crate) fn encode_string(out: &mut Vec<u8>, text: &[u8]) {
    out.extend((text.len() as u64).to_le_bytes());
    out.extend(text);
}

impl OwnedArray {
    /// Returns the type of the elements.
    pub fn elem_type(&self) -> ValueType {
        match self {
            OwnedArray::U8(_) => ValueType::U8,
            OwnedArray::I8(_) => ValueType::I8,
            OwnedArray::U16(_) => ValueType::U16,
            OwnedArray::I16(_) => ValueType::I16,
            OwnedArray::U32(_) => ValueType::U32,
            OwnedArray::I32(_) => ValueType::I32,
            OwnedArray::F32(_) => ValueType::F32,
            OwnedArray::Bool(_) => ValueType::Bool,
            OwnedArray::Str(_) => ValueType::String,
            OwnedArray::U64(_) => ValueType::U64,
            OwnedArray::I64(_) => ValueType::I64,
            OwnedArray::F64(_) => ValueType::F64,
        }
    }

    fn encode(&self, out: &mut Vec<u8>) {
        macro_rules! numbers {
            ($ty:ident, $values:expr) => {{
                array_head(out, ValueType::$ty, $values.len());
                out.extend($values.iter().flat_map(|v| v.to_le_bytes()));
            }};
        }
        match self {
            OwnedArray::U8(v) => numbers!(U8, v),
            OwnedArray::I8(v) => numbers!(I8, v),
            OwnedArray::U16(v) => numbers!(U16, v),
            OwnedArray::I16(v) => numbers!(I16, v),
            OwnedArray::U32(v) => numbers!(U32, v),
            OwnedArray::I32(v) => numbers!(I32, v),
            OwnedArray::F32(v) => numbers!(F32, v),
            OwnedArray::U64(v) => numbers!(U64, v),
            OwnedArray::I64(v) => numbers!(I64, v),
            OwnedArray::F64(v) => numbers!(F64, v),
            OwnedArray::Bool(v) => {
                array_head(out, ValueType::Bool, v.len());
                out.extend(v.iter().map(|&b| u8::from(b)));
            }
            OwnedArray::Str(v) => {
                array_head(out, ValueType::String, v.len());
                v.iter().for_each(|s| encode_string(out, s));
            }
        }
    }
}

fn array_head(out: &mut Vec<u8>, ty: ValueType, len: usize) {
    out.extend(ty.id().to_le_bytes());
    out.extend((len as u64).to_le_bytes());
}
