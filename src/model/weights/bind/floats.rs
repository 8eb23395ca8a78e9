//! Reads all values of a tensor whose shape the file decides in part.

use super::TensorBinder;
use super::tensors::show_shape;
use crate::error::Error;

impl TensorBinder<'_> {
    /// Returns the dimensions of a tensor after its first, which `right` must accept, and all its
    /// values; rows have `width` values.
    pub fn rows(
        &mut self,
        name: &str,
        width: usize,
        expected: &str,
        right: impl Fn(&[u64]) -> bool,
    ) -> Result<(Vec<usize>, Vec<f32>), Error> {
        let dims = self.index.get(name).map(|i| &self.gguf.tensors()[*i].dims);
        let expected = || format!("[{width}, {expected}]");
        let Some(dims) = dims else {
            return Err(Error::MissingTensor {
                file: self.file(),
                tensor: name.to_owned(),
                expected: expected(),
            });
        };
        let dims: &[u64] = dims;
        let right = |rows: &[u64]| right(rows) && dims.first() == Some(&(width as u64));
        let Some(rows) = dims.get(1..).filter(|rows| right(rows)) else {
            return Err(Error::TensorShape {
                file: self.file(),
                tensor: name.to_owned(),
                expected: expected(),
                got: show_shape(dims),
            });
        };
        // the reader refused tensors larger than memory
        let rows: Vec<usize> = rows.iter().map(|n| *n as usize).collect();
        let found = self.take(name, &[&[width], &rows[..]].concat())?;
        let (_, info) = found.expect("its shape was looked at");
        let values = self.read_floats(name, info)?;
        Ok((rows, values))
    }

    /// Returns the number of rows of a matrix, which `right` must accept, and all its values, of
    /// whatever type they are stored in; `None` if the file lacks it.
    pub(crate) fn optional_floats(
        &mut self,
        name: &str,
        cols: usize,
        right: impl Fn(u64) -> bool,
    ) -> Result<Option<(usize, Vec<f32>)>, Error> {
        let Some(&i) = self.index.get(name) else {
            return Ok(None);
        };
        let dims: &[u64] = &self.gguf.tensors()[i].dims;
        // a tensor of one row may have one dimension only
        let rows = match dims {
            [_] => 1,
            [_, rows] => *rows,
            _ => 0,
        };
        if !right(rows) {
            return Err(Error::TensorShape {
                file: self.file(),
                tensor: name.to_owned(),
                expected: format!("[{cols}, as many rows as it has outputs]"),
                got: show_shape(dims),
            });
        }
        let rows = rows as usize;
        let found = self.take(name, &[cols, rows])?;
        let (_, info) = found.expect("it is in the index");
        let mut values = vec![0.0f32; rows * cols];
        if octavo_quant::dequantize(info.ty, self.gguf.data(info), &mut values).is_err() {
            return Err(self.wrong_type(info, "a type that holds weights"));
        }
        self.all_finite(name, &values)?;
        Ok(Some((rows, values)))
    }
}
