//! Puts arrays into a model: tensors of the same name are replaced, others are added.

use std::cell::RefCell;
use std::collections::HashMap;
use std::io;
use std::path::Path;

use gguf_rs_lite::{
    Gguf, OpenOptions, SharedFile, TensorData, TensorInfo, TensorType, View, Writer,
};
use octavo_quant::needs_importance;
use safetensors::{Dtype, SafeTensors};

use super::arrays::{RAW_TYPE, type_of};
use super::{Error, npy};
use crate::quantize::{Change, Error as ConvertError, Job, change_to};

/// Arrays of files, as tensors.
pub struct Arrays {
    gguf: Gguf,
}

/// An array's shape and place in its file.
struct Place {
    dtype: Dtype,
    /// Rows first.
    shape: Vec<u64>,
    range: std::ops::Range<usize>,
}

impl Arrays {
    /// Opens files: all tensors of safetensors files, and NumPy files, each with the name that its
    /// tensor gets.
    ///
    /// # Errors
    /// A file of another kind, a type that tensors cannot have, a name given twice.
    pub fn open(files: &[(Option<String>, &Path)]) -> Result<Arrays, Error> {
        let mut view = View::new(Path::new("arrays"));
        for (name, path) in files {
            let file = SharedFile::open(path, &OpenOptions::default())?;
            match name {
                Some(name) => {
                    let header = npy::read(file.name(), file.bytes())?;
                    let place = Place {
                        dtype: header.dtype,
                        shape: header.shape,
                        range: header.start..file.bytes().len(),
                    };
                    add(&mut view, &file, name, place, None)?;
                }
                None => add_all(&mut view, &file)?,
            }
        }
        Ok(Arrays { gguf: view.open()? })
    }

    /// Returns the arrays as tensors.
    pub fn tensors(&self) -> &[TensorInfo] {
        self.gguf.tensors()
    }
}

/// Adds every tensor of a safetensors file.
fn add_all(view: &mut View, file: &SharedFile) -> Result<(), Error> {
    let unread = |source| Error::Safetensors {
        file: file.name().to_owned(),
        source,
    };
    let (header, metadata) = SafeTensors::read_metadata(file.bytes()).map_err(unread)?;
    let none = HashMap::new();
    let notes = metadata.metadata().as_ref().unwrap_or(&none);
    let mut tensors: Vec<_> = metadata.tensors().into_iter().collect();
    tensors.sort_by_key(|(_, info)| info.data_offsets);
    for (name, info) in tensors {
        let at = |offset: usize| header + 8 + offset;
        let place = Place {
            dtype: info.dtype,
            shape: info.shape.iter().map(|&n| n as u64).collect(),
            range: at(info.data_offsets.0)..at(info.data_offsets.1),
        };
        let raw = notes.get(&format!("{RAW_TYPE}{name}"));
        add(view, file, &name, place, raw.map(String::as_str))?;
    }
    Ok(())
}

/// Adds an array as a tensor: bytes as blocks of the type that is named for them.
fn add(
    view: &mut View,
    file: &SharedFile,
    name: &str,
    place: Place,
    raw: Option<&str>,
) -> Result<(), Error> {
    let bad = |expected: &str, got: String| Error::Tensor {
        file: file.name().to_owned(),
        tensor: name.to_owned(),
        expected: expected.to_owned(),
        got,
    };
    let mut dims: Vec<u64> = place.shape.iter().rev().copied().collect();
    let ty = match (place.dtype, raw) {
        (Dtype::U8, Some(raw)) => {
            let ty = TensorType::from_name(raw);
            let ty = ty.ok_or_else(|| bad("the name of a type", raw.to_owned()))?;
            let bytes = ty.block_bytes() as u64;
            if let Some(row) = dims.first_mut() {
                if !row.is_multiple_of(bytes) {
                    let got = format!("rows of {row} bytes");
                    return Err(bad(&format!("whole blocks of {bytes} bytes"), got));
                }
                *row = *row / bytes * ty.block_len() as u64;
            }
            ty
        }
        (dtype, _) => type_of(dtype).ok_or_else(|| {
            let expected = "F32, F16, BF16, F64 or signed integers";
            bad(expected, format!("{dtype:?}"))
        })?,
    };
    view.tensor(name, &dims, ty, file, place.range)?;
    Ok(())
}

/// A tensor of the new file.
#[derive(Clone, Debug)]
pub struct Insertion {
    /// Name.
    pub name: String,
    /// Type in the model before, if it had the tensor.
    pub before: Option<TensorType>,
    /// Type in the new file.
    pub after: TensorType,
}

/// Writes a model with arrays in place of its tensors, or added behind them. A tensor that is
/// replaced keeps its type, unless `ty` is given: its new values are quantized to it. Raw blocks
/// stay as they are. Returns what became of the arrays.
///
/// # Errors
/// A model of several files; an array of another shape than its tensor; values that are not finite,
/// or a type that cannot be written without an importance matrix; a failed write.
pub fn insert(
    gguf: &Gguf,
    arrays: &Arrays,
    ty: Option<TensorType>,
    threads: usize,
    path: &Path,
) -> Result<Vec<Insertion>, Error> {
    let parts = gguf.part_names().count() as u64;
    if parts > 1 {
        return Err(Error::Gguf(gguf_rs_lite::Error::SplitModel {
            file: gguf.name().to_owned(),
            count: parts,
        }));
    }
    let changes = arrays.gguf.tensors().iter();
    let changes = changes.map(|array| change(gguf, arrays, array, ty));
    let changes: Vec<Change> = changes.collect::<Result<_, _>>()?;
    let failure = RefCell::new(None);
    let mut writer = Writer::new();
    for (key, value) in gguf.keys() {
        writer.set(key, value);
    }
    for tensor in gguf.tensors() {
        match changes.iter().find(|c| c.tensor.name == tensor.name) {
            Some(change) => {
                let data = converted(arrays, change, threads, &failure);
                writer.tensor(&tensor.name, &tensor.dims, change.to, data);
            }
            None => {
                writer.tensor(&tensor.name, &tensor.dims, tensor.ty, gguf.stream(tensor));
            }
        }
    }
    let is_new = |change: &&Change| gguf.tensor(&change.tensor.name).is_none();
    for change in changes.iter().filter(is_new) {
        let data = converted(arrays, change, threads, &failure);
        let t = &change.tensor;
        writer.tensor(&t.name, &t.dims, change.to, data);
    }
    let written = writer.write_file(path);
    if let Some(error) = failure.take() {
        return Err(Error::Convert(error));
    }
    written?;
    let report = |change: &Change| Insertion {
        name: change.tensor.name.clone(),
        before: gguf.tensor(&change.tensor.name).map(|t| t.ty),
        after: change.to,
    };
    Ok(changes.iter().map(report).collect())
}

/// Decides the type of an array in the new file.
fn change(
    gguf: &Gguf,
    arrays: &Arrays,
    array: &TensorInfo,
    ty: Option<TensorType>,
) -> Result<Change, Error> {
    let old = gguf.tensor(&array.name);
    if let Some(old) = old.filter(|old| old.counted_dims() != array.counted_dims()) {
        return Err(Error::Tensor {
            file: arrays.gguf.part_name(array).to_owned(),
            tensor: array.name.clone(),
            expected: format!("the shape of {}, {:?}", gguf.name(), rows_first(old)),
            got: format!("{:?}", rows_first(array)),
        });
    }
    let is_raw = array.ty.block_len() > 1;
    let to = match (is_raw, ty, old) {
        (true, ..) => array.ty,
        (false, Some(ty), _) => ty,
        (false, None, Some(old)) => old.ty,
        (false, None, None) => array.ty,
    };
    if to != array.ty && needs_importance(to) {
        let tensor = array.name.clone();
        return Err(Error::NeedsImportance { tensor, ty: to });
    }
    let change = change_to(array, to, |_| false)?;
    match change.instead_of {
        // another type would surprise: the rows do not fit the one that was asked for
        Some(ty) => Err(Error::Convert(ConvertError::Row {
            tensor: array.name.clone(),
            row: array.dims.first().copied().unwrap_or(1),
            ty,
        })),
        None => Ok(change),
    }
}

fn rows_first(tensor: &TensorInfo) -> Vec<u64> {
    tensor.dims.iter().rev().copied().collect()
}

/// Returns an array's data in its new type, converted when it is due.
fn converted<'a>(
    arrays: &'a Arrays,
    change: &'a Change,
    threads: usize,
    failure: &'a RefCell<Option<ConvertError>>,
) -> TensorData<'a> {
    TensorData::stream(move |out| {
        let job = Job {
            gguf: &arrays.gguf,
            change,
            weights: None,
            threads,
        };
        match job.run(out, &mut |_| {}) {
            Ok(_) => Ok(()),
            Err(ConvertError::Gguf(gguf_rs_lite::Error::Io { source, .. })) => Err(source),
            Err(other) => {
                *failure.borrow_mut() = Some(other);
                Err(io::Error::other("an array could not be converted"))
            }
        }
    })
}
