//! Arrays for other programs: safetensors files.

use std::io::{self, Write};

use serde_json::json;

/// An array of a file.
pub(super) struct Array<'a> {
    name: &'static str,
    shape: Vec<usize>,
    values: Values<'a>,
}

/// What an array has, 4 bytes each.
enum Values<'a> {
    Floats(&'a [f32]),
    Ids(&'a [i32]),
}

impl Array<'_> {
    /// Of floats, the last dimension's neighbours side by side.
    pub(super) fn floats<'a>(name: &'static str, shape: &[usize], values: &'a [f32]) -> Array<'a> {
        Array {
            name,
            shape: shape.to_vec(),
            values: Values::Floats(values),
        }
    }

    /// Of token ids; -1 is a cell of a picture.
    pub(super) fn ids<'a>(name: &'static str, ids: &'a [i32]) -> Array<'a> {
        Array {
            name,
            shape: vec![ids.len()],
            values: Values::Ids(ids),
        }
    }

    fn ty(&self) -> &'static str {
        match self.values {
            Values::Floats(_) => "F32",
            Values::Ids(_) => "I32",
        }
    }

    fn bytes(&self) -> usize {
        4 * match self.values {
            Values::Floats(values) => values.len(),
            Values::Ids(ids) => ids.len(),
        }
    }

    fn write(&self, out: &mut dyn Write) -> io::Result<()> {
        match self.values {
            Values::Floats(values) => pieces(values, |x| x.to_le_bytes(), out),
            Values::Ids(ids) => pieces(ids, |id| id.to_le_bytes(), out),
        }
    }
}

/// Writes values a few at a time: an array may be a good part of what memory there is.
fn pieces<T: Copy>(values: &[T], bytes: fn(T) -> [u8; 4], out: &mut dyn Write) -> io::Result<()> {
    values.chunks(16 << 10).try_for_each(|piece| {
        let piece: Vec<u8> = piece.iter().flat_map(|x| bytes(*x)).collect();
        out.write_all(&piece)
    })
}

/// Writes a safetensors file: the length of a header, the header, and the arrays one after the
/// other.
pub(super) fn write(producer: &str, arrays: &[Array<'_>], out: &mut dyn Write) -> io::Result<()> {
    let mut header = json!({ "__metadata__": { "producer": producer } });
    let mut end = 0;
    for array in arrays {
        let start = end;
        end += array.bytes();
        let (ty, shape) = (array.ty(), &array.shape);
        header[array.name] = json!({ "dtype": ty, "shape": shape, "data_offsets": [start, end] });
    }
    let mut header = header.to_string();
    // arrays begin at a multiple of 8
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    out.write_all(&(header.len() as u64).to_le_bytes())?;
    out.write_all(header.as_bytes())?;
    arrays.iter().try_for_each(|array| array.write(out))
}
