//! Facts about a model file without running it: its keys and the defaults where it has none, the
//! kernel that would run for each tensor, the memory needed, and the reasons it would be refused.

use gguf_rs_lite::{Gguf, TensorInfo, TensorType, Value};
use octavo_engine::threads::Threads;
use octavo_engine::{DEFAULT_CONTEXT, EngineOptions, kv_bytes};
use octavo_kernels::{Isa, PromptBits, kernel_name};
use octavo_model::weights::WeightId;
use octavo_model::{Hparams, LayerHparams, Model, Op, Source, hparams};
use octavo_text::chat::ChatTemplate;
use octavo_text::tokenizer::Tokenizer;
use octavo_vision::Tower;
use serde::Serialize;

/// Longest array shown in full.
const MAX_ARRAY: usize = 32;

/// One metadata key.
pub struct Key {
    /// Key name as in the file.
    pub name: String,
    /// Value; long arrays as type and length.
    pub value: serde_json::Value,
    /// Origin of the value: the file, or a default.
    pub source: Source,
}

/// Totals of the tensors of one type.
#[derive(Serialize)]
pub struct TypeShare {
    #[serde(rename = "type")]
    /// Name of the type.
    pub ty: &'static str,
    /// Number of tensors.
    pub tensors: usize,
    /// Number of weights.
    pub elements: u64,
    /// Bytes in the file.
    pub bytes: u64,
    /// Average bits per weight.
    pub bits_per_weight: f64,
    /// Kernel that runs for the matrices among them.
    pub kernel: Option<String>,
}

/// Memory needed to run, in bytes.
#[derive(Serialize)]
pub struct Memory {
    /// Bytes of all tensors in the file.
    pub weights: u64,
    /// Positions of the KV cache.
    pub context: usize,
    /// Element type of the KV cache.
    pub kv_type: String,
    /// Bytes of the KV cache.
    pub kv_cache: u64,
    /// Bytes of one sequence's recurrent state.
    pub state: u64,
    /// Prompt tokens per step.
    pub batch: usize,
    /// Bytes of a step's activations.
    pub buffers: u64,
    /// Sum of all bytes.
    pub total: u64,
}

/// A reason the file would not load.
#[derive(Serialize)]
pub struct Refusal {
    /// Part of the file that is refused.
    pub what: &'static str,
    /// Reason in one line.
    pub why: String,
}

/// All facts about a file.
pub struct Facts<'g> {
    /// Open file.
    pub gguf: &'g Gguf,
    /// Instruction set of the kernels that would run.
    pub isa: Isa,
    /// Number of threads that would run, with the reason.
    pub threads: Threads,
    /// Whether weights would be repacked into the kernels' layout.
    pub repack: bool,
    /// Precision that prompt activations are rounded to in products with quantized weights.
    pub prompt_bits: PromptBits,
    /// Keys in the order of the file, then defaults.
    pub keys: Vec<Key>,
    /// Hyperparameters; `None` if they are refused.
    pub hparams: Option<Hparams>,
    /// Model; `None` if it is refused.
    pub model: Option<Model>,
    /// Vision tower, if the file is one; `None` if it is refused.
    pub tower: Option<Tower>,
    /// Tokenizer; `None` if it is refused.
    pub tokenizer: Option<Tokenizer>,
    /// Whether there is a valid chat template.
    pub chat_template: bool,
    /// Tensor types by size in bytes, the largest first.
    pub types: Vec<TypeShare>,
    /// Memory needed; `None` if the hyperparameters are refused.
    pub memory: Option<Memory>,
    /// Assumptions made, one line each.
    pub warnings: Vec<String>,
    /// Reasons the file would not load; empty if it does.
    pub refusals: Vec<Refusal>,
}

impl<'g> Facts<'g> {
    /// Reads a file as it would be loaded with these options.
    pub fn new(gguf: &'g Gguf, options: &EngineOptions, isa: Isa, threads: Threads) -> Facts<'g> {
        let mut refusals = Vec::new();
        if Tower::is_in(gguf) {
            let tower = keep("tower", Tower::load(gguf), &mut refusals);
            return Facts {
                tower,
                refusals,
                ..Facts::bare(gguf, options, isa, threads)
            };
        }
        let hparams = keep("hyperparameters", Hparams::from_gguf(gguf), &mut refusals);
        // without hyperparameters the model fails for the same reason
        let model = hparams
            .as_ref()
            .and_then(|_| keep("model", Model::load(gguf), &mut refusals));
        let tokenizer = keep("tokenizer", Tokenizer::from_gguf(gguf), &mut refusals);
        let template = tokenizer.as_ref().and_then(|tokenizer| {
            keep(
                "chat template",
                ChatTemplate::from_gguf(gguf, tokenizer),
                &mut refusals,
            )
            .flatten()
        });
        let mut warnings: Vec<String> = hparams
            .iter()
            .flat_map(Hparams::warnings)
            .cloned()
            .collect();
        warnings.extend(tokenizer.iter().flat_map(Tokenizer::warnings).cloned());
        Facts {
            keys: keys(gguf, hparams.as_ref()),
            memory: hparams.as_ref().map(|h| memory(gguf, h, options)),
            chat_template: template.is_some(),
            hparams,
            model,
            tokenizer,
            warnings,
            refusals,
            ..Facts::bare(gguf, options, isa, threads)
        }
    }

    /// Returns the facts known of any file.
    fn bare(gguf: &'g Gguf, options: &EngineOptions, isa: Isa, threads: Threads) -> Facts<'g> {
        Facts {
            gguf,
            isa,
            threads,
            repack: options.repack,
            prompt_bits: options.prompt_bits,
            keys: keys(gguf, None),
            memory: None,
            types: types(gguf, isa, options),
            chat_template: false,
            hparams: None,
            model: None,
            tower: None,
            tokenizer: None,
            warnings: Vec::new(),
            refusals: Vec::new(),
        }
    }

    fn kernel_of(&self, ty: TensorType) -> String {
        kernel_name(self.isa, ty, self.repack, self.prompt_bits)
    }

    /// Returns the kernel that runs for a tensor; `None` if it is not a matrix.
    pub fn kernel(&self, tensor: &TensorInfo) -> Option<String> {
        let Some(model) = &self.model else {
            return is_matrix(tensor).then(|| self.kernel_of(tensor.ty));
        };
        let at = self
            .gguf
            .tensors()
            .iter()
            .position(|t| t.name == tensor.name)?;
        let uses = |matrix: WeightId| model.weights.matrix(matrix).tensor == at;
        let (mut looked_up, mut multiplied) = (false, false);
        for node in &model.graph.nodes {
            if let Op::Embed { table, .. } | Op::EmbedPositions { table } = node.op {
                looked_up |= uses(table);
            }
            if let Op::MatMul { w, .. } | Op::ExpertMatMul { w, .. } = node.op {
                multiplied |= uses(w);
            }
        }
        let rows = looked_up.then(|| "row look-up".to_owned());
        let kernel = multiplied.then(|| self.kernel_of(tensor.ty));
        match (rows, kernel) {
            (Some(rows), Some(kernel)) => Some(format!("{rows}; {kernel}")),
            (rows, kernel) => rows.or(kernel),
        }
    }

    /// Returns the bytes of all tensors.
    pub fn tensor_bytes(&self) -> u64 {
        self.gguf.tensors().iter().map(|t| t.bytes).sum()
    }

    /// Returns the number of weights in all tensors.
    pub fn elements(&self) -> u64 {
        self.gguf.tensors().iter().map(TensorInfo::n_elements).sum()
    }
}

fn keep<T, E: std::error::Error>(
    what: &'static str,
    result: Result<T, E>,
    refusals: &mut Vec<Refusal>,
) -> Option<T> {
    result
        .map_err(|error| {
            refusals.push(Refusal {
                what,
                why: error.to_string(),
            })
        })
        .ok()
}

/// Returns whether a tensor is a matrix, or a stack of one per expert; experts' biases are
/// two-dimensional too.
fn is_matrix(tensor: &TensorInfo) -> bool {
    (2..=3).contains(&tensor.dims.len())
        && !tensor.name.ends_with(".bias")
        && octavo_quant::can_dequantize(tensor.ty)
}

fn types(gguf: &Gguf, isa: Isa, options: &EngineOptions) -> Vec<TypeShare> {
    let mut shares: Vec<TypeShare> = Vec::new();
    for ty in TensorType::all().chain(TensorType::AWQ) {
        let of_type: Vec<&TensorInfo> = gguf.tensors().iter().filter(|t| t.ty == ty).collect();
        if of_type.is_empty() {
            continue;
        }
        let (elements, bytes) = of_type.iter().fold((0u64, 0u64), |(n, b), t| {
            (n.saturating_add(t.n_elements()), b + t.bytes)
        });
        shares.push(TypeShare {
            ty: ty.name(),
            tensors: of_type.len(),
            elements,
            bytes,
            bits_per_weight: if elements == 0 {
                0.0
            } else {
                bytes as f64 * 8.0 / elements as f64
            },
            kernel: of_type
                .iter()
                .any(|t| is_matrix(t))
                .then(|| kernel_name(isa, ty, options.repack, options.prompt_bits)),
        });
    }
    shares.sort_by_key(|share| std::cmp::Reverse(share.bytes));
    shares
}

fn memory(gguf: &Gguf, h: &Hparams, options: &EngineOptions) -> Memory {
    let context = match options.ctx {
        Some(0) => h.n_ctx_train(),
        Some(n) => n,
        None => h.n_ctx_train().min(DEFAULT_CONTEXT),
    };
    let kv_type = options.kv_type;
    let kv_cache = kv_bytes(h, kv_type, context);
    let weights: u64 = gguf.tensors().iter().map(|t| t.bytes).sum();
    // per prompt token: the residual stream and its branch, the attention's inputs and output, both
    // halves of the FFN, or of all experts that a token is routed to with the output of each; and
    // one row of logits
    let experts = |e: hparams::Experts| e.used * (2 * e.n_ff + h.n_embd()) + 2 * e.shared_n_ff;
    let experts = h.experts.map_or(0, experts);
    let of = |l: &LayerHparams| 2 * l.q_width() + 2 * l.kv_width() + (2 * l.n_ff).max(experts);
    let width = 3 * h.n_embd() + h.layers.iter().map(of).max().unwrap_or(0);
    let rows = options.batch().min(context) as u64;
    let buffers = (rows.saturating_mul(width as u64))
        .saturating_add(h.n_vocab() as u64)
        .saturating_mul(4);
    let state = h.state_bytes();
    let caches = kv_cache.saturating_add(state);
    Memory {
        weights,
        context,
        kv_type: kv_type.to_string(),
        kv_cache,
        state,
        batch: options.batch(),
        buffers,
        total: weights.saturating_add(caches).saturating_add(buffers),
    }
}

/// Returns the file's keys in its order, then the defaults in use. If the file's value is
/// overridden, the value in use is shown.
fn keys(gguf: &Gguf, hparams: Option<&Hparams>) -> Vec<Key> {
    let mut used = hparams.map(Hparams::report).unwrap_or_default();
    let mut keys: Vec<Key> = Vec::new();
    for (name, value) in gguf.keys() {
        let at = used.iter().position(|entry| entry.key == name);
        keys.push(match at.map(|at| used.remove(at)) {
            Some(entry) => Key {
                name: entry.key,
                value: entry.value,
                source: entry.source,
            },
            None => Key {
                name: name.to_owned(),
                value: value_json(&value, MAX_ARRAY),
                source: Source::File,
            },
        });
    }
    keys.extend(used.into_iter().map(|entry| Key {
        name: entry.key,
        value: entry.value,
        source: entry.source,
    }));
    keys
}

/// Returns a value as JSON: an array of more than `longest` elements as its type and length, bytes
/// that are not UTF-8 with replacement characters, NaN and infinities as null.
pub fn value_json(value: &Value<'_>, longest: usize) -> serde_json::Value {
    match value {
        Value::Str(s) => String::from_utf8_lossy(s).into(),
        Value::Bool(b) => (*b).into(),
        Value::F32(x) => float(x.to_string()),
        Value::F64(x) => float(x.to_string()),
        Value::Array(array) if array.len() > longest => {
            serde_json::json!({"array": array.elem_type().name(), "len": array.len()})
        }
        Value::Array(array) => array.iter().map(|v| value_json(&v, longest)).collect(),
        Value::U64(x) => (*x).into(),
        // every other integer type fits
        other => other
            .as_int()
            .and_then(|i| i64::try_from(i).ok())
            .map_or(serde_json::Value::Null, Into::into),
    }
}

/// Parses a decimal as a JSON number, so that an f32 prints with its own digits; null for NaN and
/// infinities, which JSON lacks.
fn float(decimal: String) -> serde_json::Value {
    decimal
        .parse()
        .ok()
        .and_then(serde_json::Number::from_f64)
        .map_or(serde_json::Value::Null, Into::into)
}
