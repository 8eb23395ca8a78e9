//! Metadata values: scalars by value, strings and arrays as views into the file's bytes.

use std::fmt;

/// The type of a metadata value. The discriminant is the id in the file; the list is closed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u32)]
#[allow(missing_docs)] // the names say all
pub enum ValueType {
    U8 = 0,
    I8 = 1,
    U16 = 2,
    I16 = 3,
    U32 = 4,
    I32 = 5,
    F32 = 6,
    Bool = 7,
    String = 8,
    Array = 9,
    U64 = 10,
    I64 = 11,
    F64 = 12,
}

use ValueType as V;

impl ValueType {
    /// Returns the type with this id in a GGUF file.
    pub fn from_id(id: u32) -> Option<ValueType> {
        Some(match id {
            0 => V::U8,
            1 => V::I8,
            2 => V::U16,
            3 => V::I16,
            4 => V::U32,
            5 => V::I32,
            6 => V::F32,
            7 => V::Bool,
            8 => V::String,
            9 => V::Array,
            10 => V::U64,
            11 => V::I64,
            12 => V::F64,
            _ => return None,
        })
    }

    /// Returns the id stored in a GGUF file.
    pub fn id(self) -> u32 {
        self as u32
    }

    /// Returns the name used in messages: `u32`, `string`, `array` ….
    pub fn name(self) -> &'static str {
        match self {
            V::U8 => "u8",
            V::I8 => "i8",
            V::U16 => "u16",
            V::I16 => "i16",
            V::U32 => "u32",
            V::I32 => "i32",
            V::F32 => "f32",
            V::Bool => "bool",
            V::String => "string",
            V::Array => "array",
            V::U64 => "u64",
            V::I64 => "i64",
            V::F64 => "f64",
        }
    }

    /// Returns the bytes of one element in a file; `None` for strings and arrays, whose size
    /// varies.
    pub fn size(self) -> Option<u64> {
        match self {
            V::U8 | V::I8 | V::Bool => Some(1),
            V::U16 | V::I16 => Some(2),
            V::U32 | V::I32 | V::F32 => Some(4),
            V::U64 | V::I64 | V::F64 => Some(8),
            V::String | V::Array => None,
        }
    }
}

impl fmt::Display for ValueType {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(self.name())
    }
}

/// A metadata value. Strings are bytes: tokens need not be UTF-8.
#[derive(Clone, Copy, Debug, PartialEq)]
#[allow(missing_docs)] // the names say all
pub enum Value<'a> {
    U8(u8),
    I8(i8),
    U16(u16),
    I16(i16),
    U32(u32),
    I32(i32),
    F32(f32),
    Bool(bool),
    Str(&'a [u8]),
    Array(Array<'a>),
    U64(u64),
    I64(i64),
    F64(f64),
}

impl<'a> Value<'a> {
    /// Returns the type of the value.
    pub fn value_type(&self) -> ValueType {
        match self {
            Value::U8(_) => V::U8,
            Value::I8(_) => V::I8,
            Value::U16(_) => V::U16,
            Value::I16(_) => V::I16,
            Value::U32(_) => V::U32,
            Value::I32(_) => V::I32,
            Value::F32(_) => V::F32,
            Value::Bool(_) => V::Bool,
            Value::Str(_) => V::String,
            Value::Array(_) => V::Array,
            Value::U64(_) => V::U64,
            Value::I64(_) => V::I64,
            Value::F64(_) => V::F64,
        }
    }

    /// Returns the value of any of the eight integer types.
    pub fn as_int(&self) -> Option<i128> {
        Some(match *self {
            Value::U8(v) => v.into(),
            Value::I8(v) => v.into(),
            Value::U16(v) => v.into(),
            Value::I16(v) => v.into(),
            Value::U32(v) => v.into(),
            Value::I32(v) => v.into(),
            Value::U64(v) => v.into(),
            Value::I64(v) => v.into(),
            _ => return None,
        })
    }

    /// Describes the value for messages: `u32`, `string`, `an array of f32`.
    pub(crate) fn kind(&self) -> String {
        let elem = if let Value::Array(a) = self {
            Some(a.elem_type())
        } else {
            None
        };
        kind(self.value_type(), elem)
    }

    /// Splits one value of a fixed-size type from the front of `bytes`.
    pub(crate) fn split_scalar(ty: ValueType, bytes: &'a [u8]) -> Option<(Value<'a>, &'a [u8])> {
        macro_rules! number {
            ($variant:ident, $t:ty) => {{
                let (head, rest) = bytes.split_first_chunk()?;
                (Value::$variant(<$t>::from_le_bytes(*head)), rest)
            }};
        }
        Some(match ty {
            V::U8 => number!(U8, u8),
            V::I8 => number!(I8, i8),
            V::U16 => number!(U16, u16),
            V::I16 => number!(I16, i16),
            V::U32 => number!(U32, u32),
            V::I32 => number!(I32, i32),
            V::F32 => number!(F32, f32),
            V::U64 => number!(U64, u64),
            V::I64 => number!(I64, i64),
            V::F64 => number!(F64, f64),
            V::Bool => {
                let (head, rest) = bytes.split_first()?;
                (Value::Bool(*head != 0), rest) // llama.cpp takes every byte but 0 for true
            }
            V::String | V::Array => return None,
        })
    }
}

/// Describes the type of a key's value, for "expected …, got …".
pub(crate) fn kind(ty: ValueType, elem: Option<ValueType>) -> String {
    match elem {
        Some(elem) => format!("an array of {elem}"),
        None => ty.name().to_owned(),
    }
}

/// Splits one string (length, bytes) from the front of `bytes`.
pub(crate) fn split_string(bytes: &[u8]) -> Option<(&[u8], &[u8])> {
    let (len, rest) = bytes.split_first_chunk()?;
    rest.split_at_checked(usize::try_from(u64::from_le_bytes(*len)).ok()?)
}

/// An array of a file's metadata: a view of the file's bytes, checked when the file was opened,
/// decoded on access.
#[derive(Clone, Copy, PartialEq)]
pub struct Array<'a> {
    elem: ValueType,
    len: usize,
    bytes: &'a [u8],
}

macro_rules! typed {
    ($($(#[$doc:meta])* $name:ident: $elem:ident, $t:ty;)*) => {$(
        $(#[$doc])*
        pub fn $name(&self) -> Option<impl ExactSizeIterator<Item = $t> + use<'a>> {
            let bytes = self.of(V::$elem)?;
            Some(bytes.as_chunks().0.iter().map(|b| <$t>::from_le_bytes(*b)))
        }
    )*};
}

impl<'a> Array<'a> {
    /// Creates a view; `bytes` must hold exactly `len` values of type `elem`, as checked by the
    /// caller.
    pub(crate) fn new(elem: ValueType, len: usize, bytes: &'a [u8]) -> Array<'a> {
        Array { elem, len, bytes }
    }

    /// Returns the type of the elements; never [`ValueType::Array`].
    pub fn elem_type(&self) -> ValueType {
        self.elem
    }

    /// Returns the number of elements.
    pub fn len(&self) -> usize {
        self.len
    }

    /// Returns whether there are no elements.
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Iterates over the elements in order.
    pub fn iter(&self) -> ArrayIter<'a> {
        ArrayIter {
            elem: self.elem,
            left: self.len,
            bytes: self.bytes,
        }
    }

    fn of(&self, elem: ValueType) -> Option<&'a [u8]> {
        (self.elem == elem).then_some(self.bytes)
    }

    /// Returns the strings of an array of strings; `None` for another type.
    pub fn strings(&self) -> Option<impl ExactSizeIterator<Item = &'a [u8]> + use<'a>> {
        self.of(V::String)?;
        Some(
            self.iter()
                .map(|v| if let Value::Str(s) = v { s } else { &[] }),
        )
    }

    /// Returns the values of an array of bool; `None` for another type.
    pub fn bools(&self) -> Option<impl ExactSizeIterator<Item = bool> + use<'a>> {
        Some(self.of(V::Bool)?.iter().map(|&b| b != 0))
    }

    typed! {
        /// Returns the values of an array of u8; `None` for another type.
        u8s: U8, u8;
        /// Returns the values of an array of i8; `None` for another type.
        i8s: I8, i8;
        /// Returns the values of an array of u16; `None` for another type.
        u16s: U16, u16;
        /// Returns the values of an array of i16; `None` for another type.
        i16s: I16, i16;
        /// Returns the values of an array of u32; `None` for another type.
        u32s: U32, u32;
        /// Returns the values of an array of i32; `None` for another type.
        i32s: I32, i32;
        /// Returns the values of an array of f32; `None` for another type.
        f32s: F32, f32;
        /// Returns the values of an array of u64; `None` for another type.
        u64s: U64, u64;
        /// Returns the values of an array of i64; `None` for another type.
        i64s: I64, i64;
        /// Returns the values of an array of f64; `None` for another type.
        f64s: F64, f64;
    }
}

impl fmt::Debug for Array<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "[{}; {}]", self.elem, self.len)
    }
}

impl<'a> IntoIterator for Array<'a> {
    type Item = Value<'a>;
    type IntoIter = ArrayIter<'a>;
    fn into_iter(self) -> ArrayIter<'a> {
        self.iter()
    }
}

/// The elements of an [`Array`], in order.
#[derive(Clone, Debug)]
pub struct ArrayIter<'a> {
    elem: ValueType,
    left: usize,
    bytes: &'a [u8],
}

impl<'a> Iterator for ArrayIter<'a> {
    type Item = Value<'a>;

    fn next(&mut self) -> Option<Value<'a>> {
        self.left = self.left.checked_sub(1)?;
        let read = match self.elem {
            V::String => split_string(self.bytes).map(|(s, rest)| (Value::Str(s), rest)),
            elem => Value::split_scalar(elem, self.bytes),
        };
        // only a file that is changed while mapped can fail here: it then reads as empty strings
        let (value, rest) = read.unwrap_or((Value::Str(&[]), &[]));
        self.bytes = rest;
        Some(value)
    }

    fn size_hint(&self) -> (usize, Option<usize>) {
        (self.left, Some(self.left))
    }
}

impl ExactSizeIterator for ArrayIter<'_> {}
