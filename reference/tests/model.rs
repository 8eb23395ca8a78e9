//! Models derived from a file by changing keys or tensors.

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue, TensorType, Writer};
use octavo_fixtures as fixtures;
use std::collections::BTreeMap;
use std::path::Path;

/// A model in memory: every tensor F32.
pub(crate) struct Model {
    pub(crate) keys: Vec<(String, OwnedValue)>,
    pub(crate) tensors: BTreeMap<String, (Vec<u64>, Vec<f32>)>,
}

impl Model {
    /// Reads a model; a relative path is resolved from this package.
    pub(crate) fn read(path: &str) -> Self {
        let path = fixtures::workspace_root().join("reference").join(path);
        let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
        let tensors = gguf.tensors().iter().map(|info| {
            let mut values = vec![0.0; info.n_elements() as usize];
            octavo_quant::dequantize(info.ty, gguf.data(info), &mut values).unwrap();
            (info.name.clone(), (info.dims.clone(), values))
        });
        Self {
            keys: gguf
                .keys()
                .map(|(key, value)| (key.into(), value.into()))
                .collect(),
            tensors: tensors.collect(),
        }
    }

    /// Removes a key.
    pub(crate) fn unset(&mut self, key: &str) {
        self.keys.retain(|(old, _)| old != key);
    }

    pub(crate) fn set(&mut self, key: &str, value: impl Into<OwnedValue>) {
        self.unset(key);
        self.keys.push((key.into(), value.into()));
    }

    /// Removes a tensor.
    pub(crate) fn remove(&mut self, tensor: &str) {
        self.tensors.remove(tensor);
    }

    /// Replaces two tensors that differ in one dim by the concatenation of their values.
    pub(crate) fn join(&mut self, parts: &[String; 2], name: &str, dim: usize) {
        let [(mut dims, mut values), other] = parts
            .each_ref()
            .map(|part| self.tensors.remove(part).unwrap());
        dims[dim] += other.0[dim];
        values.extend(other.1);
        self.tensors.insert(name.into(), (dims, values));
    }

    /// Copies a layer's tensors to another layer.
    pub(crate) fn copy_layer(&mut self, from: usize, to: usize) {
        let prefix = format!("blk.{from}.");
        let copies: Vec<_> = self
            .tensors
            .iter()
            .filter_map(|(name, tensor)| {
                let rest = name.strip_prefix(&prefix)?;
                Some((format!("blk.{to}.{rest}"), tensor.clone()))
            })
            .collect();
        self.tensors.extend(copies);
    }

    /// Adds a vector of small, distinct values.
    pub(crate) fn add_bias(&mut self, name: &str, len: usize) {
        let values = (0..len)
            .map(|i| ((i * 37 + name.len() * 11) % 101) as f32 / 100.0 - 0.5)
            .collect();
        self.tensors.insert(name.into(), (vec![len as u64], values));
    }

    /// Replaces q, k and v of every layer, weights or biases, by one tensor.
    pub(crate) fn fuse(&mut self, what: &str) {
        for il in 0.. {
            let parts =
                ["q", "k", "v"].map(|p| self.tensors.remove(&format!("blk.{il}.attn_{p}.{what}")));
            let [Some(q), Some(k), Some(v)] = parts else {
                break;
            };
            let mut dims = q.0.clone();
            *dims.last_mut().unwrap() += k.0.last().unwrap() + v.0.last().unwrap();
            self.tensors.insert(
                format!("blk.{il}.attn_qkv.{what}"),
                (dims, [q.1, k.1, v.1].concat()),
            );
        }
    }

    pub(crate) fn write(self, path: &Path) {
        let mut writer = Writer::new();
        for (key, value) in self.keys {
            writer.set(&key, value);
        }
        for (name, (dims, values)) in &self.tensors {
            let bytes: Vec<u8> = values.iter().flat_map(|v| v.to_le_bytes()).collect();
            writer.tensor(name, dims, TensorType::F32, bytes);
        }
        writer.write_file(path).unwrap();
    }
}
