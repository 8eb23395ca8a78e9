//! Arrays for other programs: safetensors files.

use serde_json::json;

/// An array of a file.
pub(super) struct Array {
    name: &'static str,
    ty: &'static str,
    shape: Vec<usize>,
    data: Vec<u8>,
}

impl Array {
    /// Of floats, the last dimension's neighbours side by side.
    pub(super) fn floats(name: &'static str, shape: &[usize], values: &[f32]) -> Array {
        Array {
            name,
            ty: "F32",
            shape: shape.to_vec(),
            data: values.iter().flat_map(|x| x.to_le_bytes()).collect(),
        }
    }

    /// Of token ids; -1 is a cell of a picture.
    pub(super) fn ids(name: &'static str, ids: &[i32]) -> Array {
        Array {
            name,
            ty: "I32",
            shape: vec![ids.len()],
            data: ids.iter().flat_map(|id| id.to_le_bytes()).collect(),
        }
    }
}

/// A safetensors file: the length of a header, the header, and the arrays one after the other.
pub(super) fn file(producer: &str, arrays: &[Array]) -> Vec<u8> {
    let mut header = json!({ "__metadata__": { "producer": producer } });
    let mut end = 0;
    for array in arrays {
        let start = end;
        end += array.data.len();
        let (ty, shape) = (array.ty, &array.shape);
        header[array.name] = json!({ "dtype": ty, "shape": shape, "data_offsets": [start, end] });
    }
    let mut header = header.to_string();
    // arrays begin at a multiple of 8
    header.push_str(&" ".repeat(header.len().next_multiple_of(8) - header.len()));
    let mut file = (header.len() as u64).to_le_bytes().to_vec();
    file.extend(header.bytes());
    arrays.iter().for_each(|array| file.extend(&array.data));
    file
}
