//! LoRA adapters: GGUF files with two low-rank matrices for each model tensor that they change, in
//! llama.cpp's format.
//!
//! `W x` becomes `W x + s B (A x)`, `s` the caller's scale times `alpha / rank`, or the scale alone
//! where the file has no alpha. Everything is checked against the model here, once.

mod control;
mod error;

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};

pub use control::ControlVector;
pub use error::AdapterError;

use crate::Model;
use crate::graph::{Op, ValueId};

/// Name endings of the two matrices.
const HALVES: [&str; 2] = [".lora_a", ".lora_b"];

/// An adapter that fits a model.
#[derive(Clone, Debug)]
pub struct Adapter {
    gguf: Arc<Gguf>,
    /// Its task, as the file says; may be empty.
    pub task_name: String,
    /// Text to put before prompts, as the file says; may be empty.
    pub prompt_prefix: String,
    /// Tokens from which on it is active (aLoRA); empty if it always is.
    pub invocation_tokens: Vec<u32>,
    /// Its matrices, in order of the model's tensors.
    pub pairs: Vec<AdapterPair>,
}

/// The two matrices that change a tensor.
#[derive(Clone, Debug, PartialEq)]
pub struct AdapterPair {
    /// Index of the model's tensor in its file.
    pub tensor: usize,
    /// Its name.
    pub name: String,
    /// Indices in the adapter's file: `A`, (experts * rank, columns), or (tokens, rank) for a table
    /// of embeddings, and `B`, (experts * rows, rank).
    pub halves: [usize; 2],
    /// Values between the two.
    pub rank: usize,
    /// Number of stacked matrices; 1 for an ordinary one.
    pub experts: usize,
    /// The tensor is a table of embeddings, and `A` has a row for each token.
    pub is_table: bool,
    /// `alpha / rank`; 1 without an alpha.
    pub scale: f32,
}

/// How a model uses a tensor.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Use {
    Table,
    Product,
    Experts(usize),
    /// In a way that adapters do not change.
    Other(&'static str),
}

impl Adapter {
    /// Reads an adapter for a model, which was loaded from `of`.
    ///
    /// # Errors
    /// [`AdapterError`] if it is no adapter for this model, with the key or tensor.
    pub fn load(gguf: Arc<Gguf>, of: &Gguf, model: &Model) -> Result<Adapter, AdapterError> {
        check_keys(&gguf, model)?;
        let alpha = alpha(&gguf)?;
        let reader = Reader {
            gguf: &gguf,
            of,
            uses: uses(model),
            index: of.tensors().iter().enumerate().map(by_name).collect(),
            alpha,
        };
        let mut pairs = BTreeMap::new();
        for (name, halves) in reader.halves()? {
            let pair = reader.pair(name, halves)?;
            pairs.insert(pair.tensor, pair);
        }
        if pairs.is_empty() {
            let (file, expected) = (gguf.name().to_owned(), "pair of *.lora_a and *.lora_b");
            return Err(AdapterError::Empty { file, expected });
        }
        let text = |key: &str| Ok::<_, AdapterError>(gguf.str(key)?.unwrap_or_default().to_owned());
        Ok(Adapter {
            task_name: text("adapter.lora.task_name")?,
            prompt_prefix: text("adapter.lora.prompt_prefix")?,
            invocation_tokens: invocation_tokens(&gguf, model)?,
            pairs: pairs.into_values().collect(),
            gguf,
        })
    }

    /// Returns its file.
    pub fn gguf(&self) -> &Gguf {
        &self.gguf
    }

    /// Returns the rows of one of its matrices as floats that can be multiplied: in the file's type
    /// if that is a float type, otherwise dequantized.
    pub fn floats(&self, tensor: usize) -> (TensorType, Vec<u8>) {
        let info = &self.gguf.tensors()[tensor];
        match info.ty {
            TensorType::F32 | TensorType::F16 | TensorType::BF16 => {
                (info.ty, bytes(&self.gguf, info))
            }
            _ => {
                let values = dequantized(&self.gguf, info);
                let raw = values.iter().flat_map(|x| x.to_le_bytes()).collect();
                (TensorType::F32, raw)
            }
        }
    }

    /// Returns the values of one of its matrices.
    pub fn values(&self, tensor: usize) -> Vec<f32> {
        dequantized(&self.gguf, &self.gguf.tensors()[tensor])
    }
}

fn by_name((i, tensor): (usize, &TensorInfo)) -> (&str, usize) {
    (tensor.name.as_str(), i)
}

fn bytes(gguf: &Gguf, info: &TensorInfo) -> Vec<u8> {
    let mut bytes = vec![0; info.bytes as usize];
    gguf.read(info, 0, &mut bytes);
    bytes
}

fn dequantized(gguf: &Gguf, info: &TensorInfo) -> Vec<f32> {
    let mut values = vec![0.0; info.dims.iter().product::<u64>() as usize];
    octavo_quant::dequantize(info.ty, &bytes(gguf, info), &mut values)
        .expect("the type was checked, and the reader refused tensors of other sizes");
    values
}

fn check_keys(gguf: &Gguf, model: &Model) -> Result<(), AdapterError> {
    let arch = model.hparams.arch.name();
    let expected = [
        ("general.type", "adapter"),
        ("adapter.type", "lora"),
        ("general.architecture", arch),
    ];
    for (key, expected) in expected {
        let got = gguf.str(key)?;
        if got != Some(expected) {
            return Err(AdapterError::Key {
                file: gguf.name().to_owned(),
                key,
                expected: format!("{expected:?}"),
                got: got.map_or("nothing".to_owned(), |got| format!("{got:?}")),
            });
        }
    }
    Ok(())
}

/// Returns the alpha of a file; 0 if it has none.
fn alpha(gguf: &Gguf) -> Result<f32, AdapterError> {
    const KEY: &str = "adapter.lora.alpha";
    let alpha = gguf.f32(KEY)?.unwrap_or(0.0);
    if !alpha.is_finite() {
        return Err(AdapterError::Key {
            file: gguf.name().to_owned(),
            key: KEY,
            expected: "a finite number".to_owned(),
            got: alpha.to_string(),
        });
    }
    Ok(alpha)
}

fn invocation_tokens(gguf: &Gguf, model: &Model) -> Result<Vec<u32>, AdapterError> {
    const KEY: &str = "adapter.alora.invocation_tokens";
    let Some(array) = gguf.array(KEY)? else {
        return Ok(Vec::new());
    };
    let n_vocab = model.hparams.n_vocab();
    let wrong = |got: String| AdapterError::Key {
        file: gguf.name().to_owned(),
        key: KEY,
        expected: format!("token ids below {n_vocab}"),
        got,
    };
    let token = |value: gguf_rs_lite::Value<'_>| {
        let id = value.as_int().and_then(|id| u32::try_from(id).ok());
        let known = id.filter(|id| (*id as usize) < n_vocab);
        known.ok_or_else(|| wrong(format!("{value:?}")))
    };
    array.iter().map(token).collect()
}

/// Returns how a model uses each of its tensors, by index.
fn uses(model: &Model) -> HashMap<usize, Use> {
    let (graph, weights) = (&model.graph, &model.weights);
    let is_constant = |value: ValueId| {
        let node = graph.nodes.iter().find(|node| node.out == value);
        node.is_some_and(|node| matches!(node.op, Op::Constant { .. }))
    };
    let mut uses = HashMap::new();
    for node in &graph.nodes {
        let (w, used) = match node.op {
            Op::Embed { table, .. } if table == weights.token_embd => (table, Use::Table),
            Op::MatMul { w, .. } => (w, Use::Product),
            Op::ExpertMatMul { w, ids, .. } if is_constant(ids) => {
                (w, Use::Other("it is multiplied head by head"))
            }
            Op::ExpertMatMul { w, experts, .. } => match weights.matrix(w).ty {
                TensorType::NVFP4 => (w, Use::Other("experts of NVFP4 have scales of their own")),
                _ => (w, Use::Experts(experts)),
            },
            _ => continue,
        };
        let matrix = weights.matrix(w);
        let used = match &matrix.transposed {
            Some(_) => Use::Other("its rows are made from its columns"),
            None => used,
        };
        let of = uses.entry(matrix.tensor).or_insert(used);
        if *of != used {
            *of = Use::Other("the model's output is its token embedding");
        }
    }
    uses
}

/// Reads the pairs of a file.
struct Reader<'a> {
    gguf: &'a Gguf,
    /// The model's file.
    of: &'a Gguf,
    uses: HashMap<usize, Use>,
    /// The model's tensors by name.
    index: HashMap<&'a str, usize>,
    alpha: f32,
}

impl<'a> Reader<'a> {
    fn file(&self) -> String {
        self.gguf.name().to_owned()
    }

    /// Returns the tensors of each pair, by the name of the model's tensor.
    fn halves(&self) -> Result<BTreeMap<&'a str, [usize; 2]>, AdapterError> {
        let mut found: BTreeMap<&str, [Option<usize>; 2]> = BTreeMap::new();
        for (i, tensor) in self.gguf.tensors().iter().enumerate() {
            let name = tensor.name.as_str();
            let half = HALVES.iter().position(|end| name.ends_with(end));
            let Some(half) = half else {
                // llama.cpp's converter leaves them there
                if name.ends_with("_norm.weight") {
                    continue;
                }
                return Err(AdapterError::Name {
                    file: self.file(),
                    tensor: name.to_owned(),
                    expected: ".lora_a or .lora_b",
                });
            };
            let of = &name[..name.len() - HALVES[half].len()];
            found.entry(of).or_default()[half] = Some(i);
        }
        let both = |(name, halves): (&'a str, [Option<usize>; 2])| match halves {
            [Some(a), Some(b)] => Ok((name, [a, b])),
            _ => {
                let there = usize::from(halves[0].is_none());
                Err(AdapterError::Half {
                    file: self.file(),
                    tensor: format!("{name}{}", HALVES[there]),
                    missing: format!("{name}{}", HALVES[1 - there]),
                })
            }
        };
        found.into_iter().map(both).collect()
    }

    fn pair(&self, name: &str, halves: [usize; 2]) -> Result<AdapterPair, AdapterError> {
        let [a, b] = halves.map(|half| &self.gguf.tensors()[half]);
        let Some(&tensor) = self.index.get(name) else {
            return Err(AdapterError::NoTensor {
                file: self.file(),
                tensor: a.name.clone(),
                model: self.of.name().to_owned(),
                name: name.to_owned(),
            });
        };
        let unused = Use::Other("it is part of no matrix product");
        let used = self.uses.get(&tensor).copied().unwrap_or(unused);
        if let Use::Other(reason) = used {
            return Err(AdapterError::NotAdaptable {
                file: self.file(),
                tensor: a.name.clone(),
                name: name.to_owned(),
                reason,
            });
        }
        let experts = match used {
            Use::Experts(n) => n,
            _ => 1,
        };
        let rank = self.check_shapes([a, b], used, &self.of.tensors()[tensor].dims)?;
        for half in [a, b] {
            self.check_values(half)?;
        }
        Ok(AdapterPair {
            tensor,
            name: name.to_owned(),
            halves,
            rank: rank as usize,
            experts,
            is_table: used == Use::Table,
            scale: match self.alpha {
                0.0 => 1.0,
                alpha => alpha / rank as f32,
            },
        })
    }

    /// Checks the shapes of a pair for a tensor of `dims`; returns its rank.
    fn check_shapes(
        &self,
        [a, b]: [&TensorInfo; 2],
        used: Use,
        dims: &[u64],
    ) -> Result<u64, AdapterError> {
        let dim = |dims: &[u64], i: usize| dims.get(i).copied().unwrap_or(1);
        // ggml's order: columns first
        let [cols, rows] = [0, 1].map(|i| dim(dims, i));
        let rank = dim(&b.dims, 0).max(1);
        let stacked = match used {
            Use::Experts(n) => Some(n as u64),
            _ => None,
        };
        let expected = match used {
            Use::Table => [vec![rank, rows], vec![rank, cols]],
            _ => [vec![cols, rank], vec![rank, rows]],
        };
        for (half, mut expected) in [a, b].into_iter().zip(expected) {
            expected.extend(stacked);
            let mut got = half.dims.to_vec();
            while got.len() > expected.len() && got.last() == Some(&1) {
                got.pop();
            }
            got.resize(got.len().max(expected.len()), 1);
            if got != expected {
                return Err(AdapterError::Shape {
                    file: self.file(),
                    tensor: half.name.clone(),
                    expected: format!("{expected:?}"),
                    got: half.dims.to_vec(),
                });
            }
        }
        Ok(rank)
    }

    fn check_values(&self, tensor: &TensorInfo) -> Result<(), AdapterError> {
        if !octavo_quant::can_dequantize(tensor.ty) {
            return Err(AdapterError::Type {
                file: self.file(),
                tensor: tensor.name.clone(),
                ty: tensor.ty,
                expected: "a type of weights",
            });
        }
        let values = dequantized(self.gguf, tensor);
        match values.iter().position(|x| !x.is_finite()) {
            Some(index) => Err(AdapterError::NotFinite {
                file: self.file(),
                tensor: tensor.name.clone(),
                index,
                value: values[index],
            }),
            None => Ok(()),
        }
    }
}
