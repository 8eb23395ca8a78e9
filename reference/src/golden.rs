//! Goldens: stock llama.cpp's logits for a model and a prompt, in safetensors, beside the logits of
//! the exact dequantization of that model. Two forms: all logits, or, for large vocabularies, the
//! most likely tokens. A third form holds the vectors of embedding models.

use crate::Error;
use crate::metrics::{Kl, TopRow, kl_top_rows, log_sum_exp};
use safetensors::{Dtype, SafeTensors};
use std::collections::BTreeMap;
use std::path::Path;

/// A golden with logits, in either form.
#[derive(Debug, Clone)]
pub enum Golden {
    /// All logits of all positions.
    Full(Full),
    /// The most likely tokens of all positions, all logits of the last.
    Top(Box<Top>),
}

/// All logits of all positions.
#[derive(Debug, Clone)]
pub struct Full {
    /// Prompt, n ids.
    pub tokens: Vec<u32>,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// `(n, n_vocab)`: llama.cpp on the file itself, with its quantized activations.
    pub logits: Vec<f32>,
    /// `(n, n_vocab)`: llama.cpp on the file dequantized to F32, the target of a perfect engine.
    pub exact: Vec<f32>,
}

/// The most likely tokens of all positions.
#[derive(Debug, Clone)]
pub struct Top {
    /// Prompt, n ids.
    pub tokens: Vec<u32>,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Tokens stored per position.
    pub k: usize,
    /// llama.cpp on the file itself.
    pub llama_cpp: TopLogits,
    /// llama.cpp on the file dequantized to F32.
    pub exact: TopLogits,
    /// `(n, k)`: llama.cpp's logits, on the file itself, of the tokens in `exact.ids`.
    pub at_exact_top: Vec<f32>,
}

/// One model's data in [`Top`].
#[derive(Debug, Clone)]
pub struct TopLogits {
    /// `(n, k)`: most likely first.
    pub ids: Vec<u32>,
    /// `(n, k)`: their logits.
    pub logits: Vec<f32>,
    /// `n`: log-sum-exp of all logits.
    pub lse: Vec<f32>,
    /// `n_vocab`: all logits of the last position.
    pub last: Vec<f32>,
}

/// Embedding vectors of a text: one per token, and the model's own pooling of these, not
/// normalised.
#[derive(Debug, Clone)]
pub struct Embedded {
    /// Text, n ids, including those the model adds.
    pub tokens: Vec<u32>,
    /// Length of a vector.
    pub width: usize,
    /// `(n, width)`: llama.cpp on the file itself.
    pub rows: Vec<f32>,
    /// `width`
    pub pooled: Vec<f32>,
    /// `(n, width)`: llama.cpp on the file dequantized to F32; the same as `rows` where a golden of
    /// an F32 file has no others.
    pub exact_rows: Vec<f32>,
    /// `width`
    pub exact_pooled: Vec<f32>,
}

/// Results of a model's MTP layer at every position of a prompt, and for a chain of draft tokens
/// after it.
#[derive(Debug, Clone)]
pub struct Mtp {
    /// Prompt, n ids.
    pub tokens: Vec<u32>,
    /// Size of the vocabulary.
    pub n_vocab: usize,
    /// Values of a hidden state.
    pub width: usize,
    /// `(n, width)`: the model's own hidden states.
    pub hidden: Vec<f32>,
    /// `(n, n_vocab)`: the layer's logits; of an assistant from position 1 on, `(n - 1, n_vocab)`.
    pub logits: Vec<f32>,
    /// `(n, width)`: the hidden states that it gives, likewise.
    pub predicted: Vec<f32>,
    /// The model's next token, and the draft tokens after it.
    pub chain: Vec<u32>,
    /// `(drafts, n_vocab)`: the layer's logits for each of these draft tokens.
    pub chain_logits: Vec<f32>,
}

impl Mtp {
    /// Reads such a golden and checks every type and shape.
    ///
    /// # Errors
    /// Names the file and the tensor.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read(path)?;
        File::open(&bytes, &path.display().to_string())?.predicted()
    }
}

impl Embedded {
    /// Reads such a golden and checks every type and shape.
    ///
    /// # Errors
    /// Names the file and the tensor.
    pub fn read(path: &Path) -> Result<Self, Error> {
        let bytes = read(path)?;
        File::open(&bytes, &path.display().to_string())?.embedded()
    }
}

impl Golden {
    /// Reads a golden and checks every type, shape and id.
    ///
    /// # Errors
    /// Names the file and the tensor.
    pub fn read(path: &Path) -> Result<Self, Error> {
        Self::from_bytes(&read(path)?, &path.display().to_string())
    }

    /// Does the same as [`Golden::read`] from memory; messages call it `name`.
    ///
    /// # Errors
    /// As [`Golden::read`].
    pub fn from_bytes(bytes: &[u8], name: &str) -> Result<Self, Error> {
        let file = File::open(bytes, name)?;
        if file.tensors.tensor("at_exact_top").is_ok() {
            file.top().map(|top| Self::Top(Box::new(top)))
        } else {
            file.full().map(Self::Full)
        }
    }

    /// Returns the prompt ids.
    pub fn tokens(&self) -> &[u32] {
        match self {
            Self::Full(golden) => &golden.tokens,
            Self::Top(golden) => &golden.tokens,
        }
    }

    /// Returns the size of the vocabulary.
    pub fn n_vocab(&self) -> usize {
        match self {
            Self::Full(golden) => golden.n_vocab,
            Self::Top(golden) => golden.n_vocab,
        }
    }
}

impl Full {
    /// Reads a golden that must have this form.
    ///
    /// # Errors
    /// As [`Golden::read`]; the other form is an error that names the tensor it lacks.
    pub fn read(path: &Path) -> Result<Self, Error> {
        match Golden::read(path)? {
            Golden::Full(golden) => Ok(golden),
            Golden::Top(golden) => Err(Error::MissingTensor {
                file: path.display().to_string(),
                tensor: "logits".into(),
                expected: format!("{:?}", [golden.tokens.len(), golden.n_vocab]),
            }),
        }
    }
}

impl Top {
    /// Returns KL(exact ‖ llama.cpp), estimated over exact's top tokens
    /// ([`crate::metrics::kl_top`]).
    ///
    /// # Errors
    /// None for a golden that was read from a file.
    pub fn llama_cpp_kl(&self) -> Result<Kl, Error> {
        let ours = self.at_exact_top.chunks(self.k).zip(&self.llama_cpp.lse);
        kl_top_rows(
            ours.map(|(logits, &lse)| TopRow {
                logits,
                lse: lse.into(),
            })
            .zip(self.exact_rows()),
        )
    }

    /// Returns KL(exact ‖ ours) by the same estimator, for our logits `(n, n_vocab)`.
    ///
    /// # Errors
    /// `logits` has the wrong length.
    pub fn kl(&self, logits: &[f32]) -> Result<Kl, Error> {
        let expected = self.tokens.len() * self.n_vocab;
        if logits.len() != expected {
            return Err(Error::Length {
                what: "logits",
                expected,
                got: logits.len(),
            });
        }
        let rows = logits
            .chunks(self.n_vocab)
            .zip(self.exact.ids.chunks(self.k));
        let picked: Vec<(Vec<f32>, f64)> = rows
            .map(|(row, ids)| {
                (
                    ids.iter().map(|&id| row[id as usize]).collect(),
                    log_sum_exp(row),
                )
            })
            .collect();
        kl_top_rows(
            picked
                .iter()
                .map(|(logits, lse)| TopRow { logits, lse: *lse })
                .zip(self.exact_rows()),
        )
    }

    fn exact_rows(&self) -> impl Iterator<Item = TopRow<'_>> {
        let rows = self.exact.logits.chunks(self.k).zip(&self.exact.lse);
        rows.map(|(logits, &lse)| TopRow {
            logits,
            lse: lse.into(),
        })
    }
}

/// One prompt's entry in a golden folder's `summary.json`: llama.cpp's own error against the exact
/// dequantization.
#[derive(Debug, Clone, serde::Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Summary {
    /// Prompt length in tokens.
    pub n_tokens: usize,
    /// [`crate::metrics::nmse`] of llama.cpp against exact, over all positions.
    pub nmse: f64,
    /// Mean [`crate::metrics::kl_row`] of llama.cpp against exact, whole vocabulary.
    pub mean_kl: f64,
    /// Fraction of positions where both have the same most likely token.
    pub top1_equal: f64,
    /// llama.cpp's five most likely tokens after the last position, with their logits.
    pub top5: Vec<(u32, f64)>,
    /// Prompt as text: special tokens were not parsed, nothing was added.
    pub text: String,
}

/// Reads `summary.json`: one [`Summary`] for each golden of the folder, by the golden's name
/// without extension.
///
/// # Errors
/// The file cannot be read or is not such a summary.
pub fn read_summary(path: &Path) -> Result<BTreeMap<String, Summary>, Error> {
    serde_json::from_slice(&read(path)?).map_err(|source| Error::Summary {
        file: path.display().to_string(),
        source,
    })
}

fn read(path: &Path) -> Result<Vec<u8>, Error> {
    std::fs::read(path).map_err(|source| Error::Io {
        path: path.into(),
        source,
    })
}

/// A golden's tensors, with its name for messages.
struct File<'a> {
    name: &'a str,
    tensors: SafeTensors<'a>,
}

impl<'a> File<'a> {
    fn open(bytes: &'a [u8], name: &'a str) -> Result<Self, Error> {
        let tensors = SafeTensors::deserialize(bytes).map_err(|source| Error::Safetensors {
            file: name.into(),
            source,
        })?;
        Ok(Self { name, tensors })
    }

    fn embedded(&self) -> Result<Embedded, Error> {
        // goldens of this form do not state the vocabulary size
        const ANY_ID: usize = 1 << 31;
        let n = self.len("tokens")?;
        let width = self.second_dim("embd", n, "width")?;
        // goldens of F32 files may have one form only: their weights are exact
        let exact = |name: &str, shape: &[usize]| {
            let exact = format!("exact_{name}");
            let is_there = self.tensors.tensor(&exact).is_ok();
            self.floats(if is_there { &exact } else { name }, shape)
        };
        Ok(Embedded {
            tokens: self.ids("tokens", &[n], ANY_ID)?,
            width,
            rows: self.floats("embd", &[n, width])?,
            pooled: self.floats("pooled", &[width])?,
            exact_rows: exact("embd", &[n, width])?,
            exact_pooled: exact("pooled", &[width])?,
        })
    }

    fn predicted(&self) -> Result<Mtp, Error> {
        let n = self.len("tokens")?;
        let width = self.second_dim("hidden", n, "width")?;
        let (rows, n_vocab) = match self.second_dim("mtp_logits", n, "n_vocab") {
            Ok(n_vocab) => (n, n_vocab),
            Err(_) => (n - 1, self.second_dim("mtp_logits", n - 1, "n_vocab")?),
        };
        let chain = self.len("chain_ids")?;
        Ok(Mtp {
            tokens: self.ids("tokens", &[n], n_vocab)?,
            n_vocab,
            width,
            hidden: self.floats("hidden", &[n, width])?,
            logits: self.floats("mtp_logits", &[rows, n_vocab])?,
            predicted: self.floats("mtp_hidden", &[rows, width])?,
            chain: self.ids("chain_ids", &[chain], n_vocab)?,
            chain_logits: self.floats("chain_logits", &[chain - 1, n_vocab])?,
        })
    }

    fn full(&self) -> Result<Full, Error> {
        let n = self.len("tokens")?;
        let n_vocab = self.second_dim("logits", n, "n_vocab")?;
        Ok(Full {
            tokens: self.ids("tokens", &[n], n_vocab)?,
            n_vocab,
            logits: self.floats("logits", &[n, n_vocab])?,
            exact: self.floats("exact", &[n, n_vocab])?,
        })
    }

    fn top(&self) -> Result<Top, Error> {
        let n = self.len("tokens")?;
        let n_vocab = self.len("exact_last")?;
        let k = self.second_dim("at_exact_top", n, "k")?;
        Ok(Top {
            tokens: self.ids("tokens", &[n], n_vocab)?,
            n_vocab,
            k,
            llama_cpp: self.top_logits("", [n, k, n_vocab])?,
            exact: self.top_logits("exact_", [n, k, n_vocab])?,
            at_exact_top: self.floats("at_exact_top", &[n, k])?,
        })
    }

    fn top_logits(&self, prefix: &str, [n, k, n_vocab]: [usize; 3]) -> Result<TopLogits, Error> {
        Ok(TopLogits {
            ids: self.ids(&format!("{prefix}top_ids"), &[n, k], n_vocab)?,
            logits: self.floats(&format!("{prefix}top_logits"), &[n, k])?,
            lse: self.floats(&format!("{prefix}lse"), &[n])?,
            last: self.floats(&format!("{prefix}last"), &[n_vocab])?,
        })
    }

    /// Returns the length of a one-dimensional tensor.
    fn len(&self, tensor: &str) -> Result<usize, Error> {
        let expected = "[n]";
        match self.shape(tensor, expected)?[..] {
            [len] if len > 0 => Ok(len),
            ref got => Err(self.dims(tensor, expected, got)),
        }
    }

    /// Returns the second dim of a tensor whose first is `n`; `name` describes it in errors.
    fn second_dim(&self, tensor: &str, n: usize, name: &str) -> Result<usize, Error> {
        let expected = format!("[{n}, {name}]");
        match self.shape(tensor, &expected)?[..] {
            [rows, dim] if rows == n && dim > 0 => Ok(dim),
            ref got => Err(self.dims(tensor, &expected, got)),
        }
    }

    fn shape(&self, tensor: &str, expected: &str) -> Result<Vec<usize>, Error> {
        match self.tensors.tensor(tensor) {
            Ok(view) => Ok(view.shape().to_vec()),
            Err(_) => Err(Error::MissingTensor {
                file: self.name.into(),
                tensor: tensor.into(),
                expected: expected.into(),
            }),
        }
    }

    fn dims(&self, tensor: &str, expected: &str, got: &[usize]) -> Error {
        let got = got.iter().map(|&dim| dim as u64).collect();
        Error::Dims {
            file: self.name.into(),
            tensor: tensor.into(),
            expected: expected.into(),
            got,
        }
    }

    /// Returns the elements of a tensor of four-byte elements, after checking its shape and type.
    fn words(
        &self,
        tensor: &str,
        shape: &[usize],
        dtype: Dtype,
        type_name: &'static str,
    ) -> Result<impl Iterator<Item = [u8; 4]>, Error> {
        let expected = format!("{shape:?}");
        let got = self.shape(tensor, &expected)?;
        if got != shape {
            return Err(self.dims(tensor, &expected, &got));
        }
        let view = self
            .tensors
            .tensor(tensor)
            .map_err(|source| Error::Safetensors {
                file: self.name.into(),
                source,
            })?;
        if view.dtype() != dtype {
            let got = format!("{:?}", view.dtype());
            return Err(Error::ElementType {
                file: self.name.into(),
                tensor: tensor.into(),
                expected: type_name,
                got,
            });
        }
        Ok(view.data().as_chunks::<4>().0.iter().copied())
    }

    fn floats(&self, tensor: &str, shape: &[usize]) -> Result<Vec<f32>, Error> {
        Ok(self
            .words(tensor, shape, Dtype::F32, "F32")?
            .map(f32::from_le_bytes)
            .collect())
    }

    fn ids(&self, tensor: &str, shape: &[usize], n_vocab: usize) -> Result<Vec<u32>, Error> {
        let ids = self
            .words(tensor, shape, Dtype::I32, "I32")?
            .map(i32::from_le_bytes);
        ids.enumerate()
            .map(|(index, id)| {
                u32::try_from(id)
                    .ok()
                    .filter(|&id| (id as usize) < n_vocab)
                    .ok_or_else(|| Error::Element {
                        file: self.name.into(),
                        tensor: tensor.into(),
                        index,
                        expected: format!("an id below {n_vocab}"),
                        got: id.to_string(),
                    })
            })
            .collect()
    }
}
