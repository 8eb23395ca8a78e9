//! Writes tensors as arrays: one NumPy file, or a safetensors file of several.

use std::io::{BufWriter, Write};
use std::path::Path;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use octavo_quant::{can_dequantize, quantize};
use safetensors::Dtype;
use serde_json::{Map, Value, json};

use super::{Error, decode, npy, pieces};

/// Prefix of the metadata that names the type of a raw tensor.
pub(super) const RAW_TYPE: &str = "gguf.type.";

/// Form of the elements that are written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Form {
    /// The tensor's own type if arrays have it, else the exact values as F32.
    Own,
    /// The values as F32, F16 or BF16; integers and F64 as they are.
    As(TensorType),
    /// The bytes of the blocks, whatever the type: rows of bytes.
    Raw,
}

/// A tensor that is written as an array.
struct ArrayOf<'g> {
    gguf: &'g Gguf,
    tensor: &'g TensorInfo,
    /// Type of the elements; `None` for bytes.
    ty: Option<TensorType>,
    dtype: Dtype,
    /// Rows first.
    shape: Vec<usize>,
}

/// Types that arrays have too.
const PLAIN: [(TensorType, Dtype); 8] = [
    (TensorType::F32, Dtype::F32),
    (TensorType::F16, Dtype::F16),
    (TensorType::BF16, Dtype::BF16),
    (TensorType::F64, Dtype::F64),
    (TensorType::I8, Dtype::I8),
    (TensorType::I16, Dtype::I16),
    (TensorType::I32, Dtype::I32),
    (TensorType::I64, Dtype::I64),
];

/// Returns the array type of a tensor type, if arrays have it.
pub(super) fn dtype_of(ty: TensorType) -> Option<Dtype> {
    PLAIN.iter().find(|row| row.0 == ty).map(|row| row.1)
}

/// Returns the tensor type of an array type, if tensors have it.
pub(super) fn type_of(dtype: Dtype) -> Option<TensorType> {
    PLAIN.iter().find(|row| row.1 == dtype).map(|row| row.0)
}

impl<'g> ArrayOf<'g> {
    fn new(gguf: &'g Gguf, tensor: &'g TensorInfo, form: Form) -> Result<ArrayOf<'g>, Error> {
        let is_float = can_dequantize(tensor.ty);
        let ty = match (form, dtype_of(tensor.ty)) {
            (Form::Raw, _) => None,
            (Form::As(ty), _) if is_float => Some(ty),
            (Form::Own, None) if is_float => Some(TensorType::F32),
            (_, Some(_)) => Some(tensor.ty),
            (_, None) => {
                return Err(Error::Tensor {
                    file: gguf.name().to_owned(),
                    tensor: tensor.name.clone(),
                    expected: "a type with values".to_owned(),
                    got: tensor.ty.to_string(),
                });
            }
        };
        let mut shape: Vec<usize> = tensor.dims.iter().rev().map(|&n| n as usize).collect();
        if let (None, Some(row)) = (ty, shape.last_mut()) {
            *row = *row / tensor.ty.block_len() * tensor.ty.block_bytes();
        }
        let dtype = ty.and_then(dtype_of).unwrap_or(Dtype::U8);
        Ok(ArrayOf {
            gguf,
            tensor,
            ty,
            dtype,
            shape,
        })
    }

    fn bytes(&self) -> usize {
        match self.ty {
            // a file that fits into memory's addresses has this many at most
            Some(ty) => self.tensor.n_elements() as usize * ty.block_bytes(),
            None => self.tensor.bytes as usize,
        }
    }

    /// Passes on the array's bytes, a piece at a time.
    fn each_piece(&self, put: &mut dyn FnMut(&[u8]) -> std::io::Result<()>) -> std::io::Result<()> {
        self.gguf
            .check(self.tensor)
            .map_err(std::io::Error::other)?;
        let data = self.gguf.data(self.tensor);
        let Some(ty) = self.ty.filter(|ty| *ty != self.tensor.ty) else {
            return put(data);
        };
        let (mut values, mut out) = (Vec::new(), Vec::new());
        for (_, range) in pieces(self.tensor) {
            decode(self.tensor, &data[range.clone()], &mut values);
            out.clear();
            quantize(ty, &values, 1, None, &mut out).expect("a float type takes every value");
            put(&out)?;
            self.gguf.release_part(self.tensor, range);
        }
        Ok(())
    }
}

/// An array of a safetensors file.
pub struct ArrayHead<'a> {
    /// Name.
    pub name: &'a str,
    /// Name of the element type: "F32".
    pub dtype: &'a str,
    /// Shape, rows first.
    pub shape: &'a [usize],
    /// Bytes of data.
    pub bytes: usize,
}

/// Returns the beginning of a safetensors file: the length of the header, and the header, which
/// places the arrays one after the other.
pub fn safetensors_header<'a>(
    metadata: impl IntoIterator<Item = (String, String)>,
    arrays: impl IntoIterator<Item = ArrayHead<'a>>,
) -> Vec<u8> {
    let metadata: Map<String, Value> = metadata
        .into_iter()
        .map(|(name, text)| (name, text.into()))
        .collect();
    let mut header = json!({ "__metadata__": metadata });
    let mut end = 0;
    for array in arrays {
        let start = end;
        end += array.bytes;
        let (dtype, shape) = (array.dtype, array.shape);
        header[array.name] =
            json!({ "dtype": dtype, "shape": shape, "data_offsets": [start, end] });
    }
    let mut header = header.to_string();
    // arrays must begin at a multiple of 8
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut out = (header.len() as u64).to_le_bytes().to_vec();
    out.extend(header.into_bytes());
    out
}

/// Writes tensors as a safetensors file, in the form asked for. Raw tensors have the names of their
/// types in the metadata, so that [`super::Arrays::open`] reads them back.
///
/// # Errors
/// No tensor, a type without values, and a failed write.
pub fn extract(gguf: &Gguf, tensors: &[&TensorInfo], form: Form, path: &Path) -> Result<(), Error> {
    if tensors.is_empty() {
        return Err(none(gguf, "one tensor at least", 0));
    }
    let arrays = tensors.iter().map(|t| ArrayOf::new(gguf, t, form));
    let arrays: Vec<ArrayOf<'_>> = arrays.collect::<Result<_, _>>()?;
    let mut metadata = vec![("format".to_owned(), "pt".to_owned())];
    if form == Form::Raw {
        metadata.extend(arrays.iter().map(|array| {
            let tensor = array.tensor;
            (format!("{RAW_TYPE}{}", tensor.name), tensor.ty.to_string())
        }));
    }
    let names: Vec<String> = arrays.iter().map(|a| format!("{:?}", a.dtype)).collect();
    let heads = arrays.iter().zip(&names).map(|(array, dtype)| ArrayHead {
        name: &array.tensor.name,
        dtype,
        shape: &array.shape,
        bytes: array.bytes(),
    });
    let header = safetensors_header(metadata, heads);
    write(path, &header, &arrays)
}

/// Writes a header and arrays.
fn write(path: &Path, header: &[u8], arrays: &[ArrayOf<'_>]) -> Result<(), Error> {
    gguf_rs_lite::replace_file(path, |out| {
        let failed = |source| Error::Io {
            file: path.display().to_string(),
            source,
        };
        let mut out = BufWriter::with_capacity(1 << 20, out);
        out.write_all(header).map_err(failed)?;
        for array in arrays {
            let written = array.each_piece(&mut |piece| out.write_all(piece));
            written.map_err(failed)?;
        }
        out.flush().map_err(failed)
    })
}

/// Writes one tensor as a NumPy file, in the form asked for; NumPy has no BF16, which becomes F32.
///
/// # Errors
/// More or less than one tensor, a type without values, and a failed write.
pub fn extract_one(
    gguf: &Gguf,
    tensors: &[&TensorInfo],
    form: Form,
    path: &Path,
) -> Result<(), Error> {
    let [tensor] = tensors else {
        let expected = "one tensor for a NumPy file";
        return Err(none(gguf, expected, tensors.len()));
    };
    let form = match form {
        Form::Own if tensor.ty == TensorType::BF16 => Form::As(TensorType::F32),
        Form::As(TensorType::BF16) => Form::As(TensorType::F32),
        other => other,
    };
    let array = ArrayOf::new(gguf, tensor, form)?;
    let descr = npy::descr(array.dtype).expect("every type but BF16 has a name");
    let header = npy::header(descr, &array.shape);
    write(path, &header, &[array])
}

fn none(gguf: &Gguf, expected: &'static str, got: usize) -> Error {
    Error::Count {
        file: gguf.name().to_owned(),
        expected,
        got,
    }
}
