//! Changes an open model's keys, or its tensors' names.

use super::{Gguf, TensorInfo, sort_by_name};
use crate::map::Bytes;
use crate::parse::parse;
use crate::{Error, OwnedValue, Writer};
use std::sync::Arc;

impl Gguf {
    /// Returns the same model with changed or added keys. The tensors' bytes are not moved. An
    /// existing key keeps its type: integers and floats are converted to the type in the file.
    ///
    /// # Errors
    /// A value that the key's type cannot hold, an invalid key, or too many keys.
    pub fn with_keys(
        self,
        changes: impl IntoIterator<Item = (String, OwnedValue)>,
    ) -> Result<Gguf, Error> {
        let mut writer = Writer::new();
        for (key, value) in self.keys() {
            writer.set(key, value);
        }
        for (key, value) in changes {
            let value = match self.get(&key) {
                Some(old) => self.as_old(&key, &old.into(), value)?,
                None => value,
            };
            writer.set(&key, value);
        }
        let mut head = Vec::new();
        writer.write_to(&mut head)?;
        let bytes = Bytes::Held(head.into());
        let directory = parse(self.name(), &bytes, 0, false)?;
        Ok(Gguf {
            keys: directory.keys,
            changed: Some(Arc::new(bytes)),
            ..self
        })
    }

    /// Converts the new value of a key to the type of the old one.
    pub(crate) fn as_old(
        &self,
        key: &str,
        old: &OwnedValue,
        new: OwnedValue,
    ) -> Result<OwnedValue, Error> {
        if old.kind() == new.kind() {
            return Ok(new);
        }
        let int = new.as_int();
        let fitting = match (old, int, &new) {
            (OwnedValue::F64(_), _, OwnedValue::F32(v)) => return Ok(f64::from(*v).into()),
            #[allow(clippy::cast_possible_truncation)] // as llama.cpp does with its overrides
            (OwnedValue::F32(_), _, OwnedValue::F64(v)) => return Ok((*v as f32).into()),
            (OwnedValue::U8(_), Some(int), _) => u8::try_from(int).map(OwnedValue::from).ok(),
            (OwnedValue::I8(_), Some(int), _) => i8::try_from(int).map(OwnedValue::from).ok(),
            (OwnedValue::U16(_), Some(int), _) => u16::try_from(int).map(OwnedValue::from).ok(),
            (OwnedValue::I16(_), Some(int), _) => i16::try_from(int).map(OwnedValue::from).ok(),
            (OwnedValue::U32(_), Some(int), _) => u32::try_from(int).map(OwnedValue::from).ok(),
            (OwnedValue::I32(_), Some(int), _) => i32::try_from(int).map(OwnedValue::from).ok(),
            (OwnedValue::U64(_), Some(int), _) => u64::try_from(int).map(OwnedValue::from).ok(),
            (OwnedValue::I64(_), Some(int), _) => i64::try_from(int).map(OwnedValue::from).ok(),
            (old, ..) => {
                let got = match &new {
                    OwnedValue::Array(_) => new.kind(),
                    other => format!("a {}", other.kind()),
                };
                return Err(Error::KeyChange {
                    file: self.name().to_owned(),
                    key: key.to_owned(),
                    expected: old.kind(),
                    got,
                });
            }
        };
        fitting.ok_or_else(|| Error::KeyRange {
            file: self.name().to_owned(),
            key: key.to_owned(),
            expected: old.value_type().name(),
            got: int.unwrap_or_default().to_string(),
        })
    }

    /// Returns the same model with renamed tensors; those for which `rename` returns `None` are
    /// left out.
    ///
    /// # Errors
    /// A duplicate name.
    pub fn with_names(self, rename: impl Fn(&str) -> Option<String>) -> Result<Gguf, Error> {
        let tensors = self.tensors.into_iter().filter_map(|tensor| {
            let name = rename(&tensor.name)?;
            Some(TensorInfo { name, ..tensor })
        });
        let tensors: Vec<TensorInfo> = tensors.collect();
        let sorted = sort_by_name(&tensors, &self.parts)?;
        Ok(Gguf {
            tensors,
            sorted,
            ..self
        })
    }
}
