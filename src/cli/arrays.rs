//! Writes arrays as safetensors files for other programs.

use std::io::{self, Write};

use octavo_analysis::files::{ArrayHead, safetensors_header};

/// A named array of a file.
pub(super) struct Array<'a> {
    name: &'static str,
    shape: Vec<usize>,
    values: Values<'a>,
}

/// Elements of an array, 4 bytes each.
enum Values<'a> {
    Floats(&'a [f32]),
    Ids(&'a [i32]),
}

impl Array<'_> {
    /// Creates an array of floats; the last dimension is contiguous.
    pub(super) fn floats<'a>(name: &'static str, shape: &[usize], values: &'a [f32]) -> Array<'a> {
        Array {
            name,
            shape: shape.to_vec(),
            values: Values::Floats(values),
        }
    }

    /// Creates an array of token ids; -1 is an image token.
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

/// Writes values in small blocks: an array may take a large part of the memory.
fn pieces<T: Copy>(values: &[T], bytes: fn(T) -> [u8; 4], out: &mut dyn Write) -> io::Result<()> {
    values.chunks(16 << 10).try_for_each(|piece| {
        let piece: Vec<u8> = piece.iter().flat_map(|x| bytes(*x)).collect();
        out.write_all(&piece)
    })
}

/// Writes a safetensors file: the length of the header, the header, and the arrays one after the
/// other.
pub(super) fn write(producer: &str, arrays: &[Array<'_>], out: &mut dyn Write) -> io::Result<()> {
    let metadata = [("producer".to_owned(), producer.to_owned())];
    let heads = arrays.iter().map(|array| ArrayHead {
        name: array.name,
        dtype: array.ty(),
        shape: &array.shape,
        bytes: array.bytes(),
    });
    out.write_all(&safetensors_header(metadata, heads))?;
    arrays.iter().try_for_each(|array| array.write(out))
}
