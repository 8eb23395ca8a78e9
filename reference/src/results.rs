//! The file of llama.cpp's `llama-results -m MODEL -o FILE -p TEXT`: a GGUF with the key
//! `path_model`, the tensors `tokens` (I32) and `logits` (F32, every position), nothing else.
//!
//! `logits` is declared with dims `[n_tokens, n_vocab]`, which in GGUF's order would make
//! `n_tokens` the length of a row; but the bytes are consecutive rows of `n_vocab`. Files are read
//! and written that way, so that either program can check the other's (`llama-results --check`).

use crate::Error;
use gguf_rs_lite::{Gguf, OpenOptions, TensorData, TensorInfo, TensorType, Writer};
use std::path::Path;

const MODEL_KEY: &str = "path_model";

/// Logits of every position of a prompt.
#[derive(Debug, Clone, PartialEq)]
pub struct Results {
    /// Path of the model, as given on the command line.
    pub path_model: String,
    /// Prompt, n ids.
    pub tokens: Vec<u32>,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// `(n, n_vocab)`.
    pub logits: Vec<f32>,
}

impl Results {
    /// Reads a results file.
    ///
    /// # Errors
    /// Names the file and the key or tensor that is missing or wrong.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let gguf = Gguf::open(
            path,
            &OpenOptions {
                mmap: false,
                ..OpenOptions::default()
            },
        )?;
        let file = || gguf.name().to_string();
        let path_model = gguf.str(MODEL_KEY)?.ok_or_else(|| Error::MissingKey {
            file: file(),
            key: MODEL_KEY.into(),
            expected: "the model's path",
        })?;
        let tokens_info = tensor(&gguf, "tokens", TensorType::I32, "[n_tokens]")?;
        let words = gguf.data(tokens_info).as_chunks::<4>().0;
        let n_tokens = words.len() as u64;
        if tokens_info.dims.iter().skip(1).any(|&dim| dim != 1) {
            return Err(wrong_dims(&gguf, tokens_info, format!("[{n_tokens}]")));
        }
        let logits_info = tensor(
            &gguf,
            "logits",
            TensorType::F32,
            &format!("[{n_tokens}, n_vocab]"),
        )?;
        let n_vocab = match logits_info.dims[..] {
            [rows, n_vocab] if rows == n_tokens && n_vocab > 0 => n_vocab as usize,
            _ => {
                return Err(wrong_dims(
                    &gguf,
                    logits_info,
                    format!("[{n_tokens}, n_vocab]"),
                ));
            }
        };
        let tokens = words.iter().enumerate().map(|(index, word)| {
            let id = i32::from_le_bytes(*word);
            u32::try_from(id)
                .ok()
                .filter(|&id| (id as usize) < n_vocab)
                .ok_or_else(|| Error::Element {
                    file: file(),
                    tensor: "tokens".into(),
                    index,
                    expected: format!("an id below {n_vocab}"),
                    got: id.to_string(),
                })
        });
        Ok(Self {
            path_model: path_model.into(),
            tokens: tokens.collect::<Result<_, _>>()?,
            n_vocab,
            logits: gguf
                .data(logits_info)
                .as_chunks()
                .0
                .iter()
                .map(|b| f32::from_le_bytes(*b))
                .collect(),
        })
    }

    /// Writes a results file, byte for byte as llama-results lays it out.
    ///
    /// # Errors
    /// `logits` is not `tokens.len()` rows of `n_vocab`, or the file cannot be written.
    pub fn write(&self, path: &Path) -> Result<(), Error> {
        let expected = self.tokens.len() * self.n_vocab;
        if self.logits.len() != expected {
            return Err(Error::Length {
                what: "logits",
                expected,
                got: self.logits.len(),
            });
        }
        let (n_tokens, n_vocab) = (self.tokens.len() as u64, self.n_vocab as u64);
        let tokens: Vec<u8> = self.tokens.iter().flat_map(|id| id.to_le_bytes()).collect();
        // A row at a time: the logits of a long prompt and a large vocabulary take most of the
        // memory used here.
        let logits = TensorData::stream(|out| {
            self.logits.chunks(self.n_vocab.max(1)).try_for_each(|row| {
                let bytes: Vec<u8> = row.iter().flat_map(|logit| logit.to_le_bytes()).collect();
                out.write_all(&bytes)
            })
        });
        let mut writer = Writer::new();
        writer.set(MODEL_KEY, self.path_model.as_str());
        writer.tensor("tokens", &[n_tokens], TensorType::I32, tokens);
        writer.tensor("logits", &[n_tokens, n_vocab], TensorType::F32, logits);
        writer.write_file(path)?;
        Ok(())
    }
}

fn tensor<'g>(
    gguf: &'g Gguf,
    name: &str,
    ty: TensorType,
    dims: &str,
) -> Result<&'g TensorInfo, Error> {
    let info = gguf.tensor(name).ok_or_else(|| Error::MissingTensor {
        file: gguf.name().into(),
        tensor: name.into(),
        expected: dims.into(),
    })?;
    if info.ty != ty {
        return Err(Error::ElementType {
            file: gguf.name().into(),
            tensor: name.into(),
            expected: ty.name(),
            got: info.ty.name().into(),
        });
    }
    Ok(info)
}

fn wrong_dims(gguf: &Gguf, info: &TensorInfo, expected: String) -> Error {
    Error::Dims {
        file: gguf.name().into(),
        tensor: info.name.clone(),
        expected,
        got: info.dims.clone(),
    }
}
