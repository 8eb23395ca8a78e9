//! Faults of a file's weights and vocabulary that do not keep it from being loaded.

use std::collections::HashMap;

use gguf_rs_lite::{Gguf, TensorInfo};
use octavo_quant::{first_bad_block, first_underflow};
use serde::Serialize;

use super::{Error, bytes, each, pieces};

/// A fault of a tensor or key.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub struct Finding {
    /// Tensor or key.
    pub of: String,
    /// Fault, with the number of places and the first of them.
    pub what: String,
}

/// Faults of a file.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Findings {
    /// Faults that make results wrong: weights that are not finite.
    pub errors: Vec<Finding>,
    /// Faults that make results worse, or that programs treat differently: scales that underflow,
    /// tokens of the same text.
    pub warnings: Vec<Finding>,
}

/// Reads all weights on `threads` threads, and the vocabulary; `progress` gets the bytes that were
/// read.
///
/// # Errors
/// A file that changes meanwhile.
pub fn check(
    gguf: &Gguf,
    threads: usize,
    progress: &mut dyn FnMut(u64),
) -> Result<Findings, Error> {
    let tensors = gguf.tensors();
    let faults = each(
        tensors.len(),
        threads,
        |i| faults(gguf, &tensors[i]),
        |i| progress(tensors[i].bytes),
    );
    let mut findings = Findings::default();
    for (tensor, faults) in tensors.iter().zip(faults) {
        let faults = faults?;
        let finding = |what: String| Finding {
            of: format!("tensor {}", tensor.name),
            what,
        };
        let unit = match tensor.ty.block_len() {
            1 => "value",
            _ => "block",
        };
        if let Some(places) = faults.not_finite.describe(unit) {
            let what = format!("{places} not finite: NaN or infinity");
            findings.errors.push(finding(what));
        }
        if let Some(places) = faults.underflow.describe("block") {
            let what = format!("{places} nearly without bits: the f16 scale underflows");
            findings.warnings.push(finding(what));
        }
    }
    findings.warnings.extend(tokens_twice(gguf)?);
    Ok(findings)
}

/// Number of blocks with a fault, and the first of them.
#[derive(Default)]
struct Places {
    n: u64,
    first: u64,
}

impl Places {
    fn add(&mut self, block: u64) {
        if self.n == 0 {
            self.first = block;
        }
        self.n += 1;
    }

    /// Returns "3 blocks, the first of index 7,", or `None` if there is no fault.
    fn describe(&self, unit: &str) -> Option<String> {
        match self.n {
            0 => None,
            1 => Some(format!("{unit} {} is", self.first)),
            n => Some(format!("{n} {unit}s, the first {}, are", self.first)),
        }
    }
}

/// Faults of a tensor, by block.
#[derive(Default)]
struct Faults {
    not_finite: Places,
    underflow: Places,
}

fn faults(gguf: &Gguf, tensor: &TensorInfo) -> Result<Faults, Error> {
    let (ty, data) = (tensor.ty, bytes(gguf, tensor)?);
    let mut faults = Faults::default();
    for (first, range) in pieces(tensor) {
        let first = first / ty.block_len() as u64;
        let blocks = &data[range.clone()];
        let every = |find: &dyn Fn(&[u8]) -> Option<usize>, places: &mut Places| {
            let mut at = 0;
            while let Some(found) = find(&blocks[at * ty.block_bytes()..]) {
                places.add(first + (at + found) as u64);
                at += found + 1;
            }
        };
        every(
            &|blocks| first_bad_block(ty, blocks),
            &mut faults.not_finite,
        );
        every(&|blocks| first_underflow(ty, blocks), &mut faults.underflow);
        gguf.release_part(tensor, range);
    }
    Ok(faults)
}

/// Key of the vocabulary.
const TOKENS: &str = "tokenizer.ggml.tokens";

/// Finds tokens of the same text: of these, programs choose different ones for a text.
fn tokens_twice(gguf: &Gguf) -> Result<Option<Finding>, Error> {
    let tokens = gguf.array(TOKENS)?.and_then(|tokens| tokens.strings());
    let mut ids: HashMap<&[u8], usize> = HashMap::new();
    let (mut n, mut example) = (0, None);
    for (id, token) in tokens.into_iter().flatten().enumerate() {
        if let Some(first) = ids.insert(token, id) {
            n += 1;
            example.get_or_insert((token, first, id));
        }
    }
    let tokens = match n {
        1 => "1 token has".to_owned(),
        n => format!("{n} tokens have"),
    };
    Ok(example.map(|(token, first, second)| Finding {
        of: format!("key {TOKENS}"),
        what: format!(
            "{tokens} the text of another: \"{}\" has the ids {first} and {second}",
            String::from_utf8_lossy(token).escape_debug()
        ),
    }))
}
