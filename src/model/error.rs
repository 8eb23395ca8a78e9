//! Errors of a model file whose container has been read.

use std::fmt;

/// The alternatives to choose from, for a message: `1, 2 or 4`.
pub struct Choice<'a, T>(pub &'a [T]);

impl<T: fmt::Display> fmt::Display for Choice<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let all: Vec<String> = self.0.iter().map(T::to_string).collect();
        match &all[..] {
            [others @ .., last] if !others.is_empty() => {
                write!(f, "{} or {last}", others.join(", "))
            }
            _ => f.write_str(&all.join("")),
        }
    }
}

/// Reason why a file is not a model that can run. Every message is one line with the file and the
/// key or tensor.
#[derive(Debug, thiserror::Error)]
#[allow(missing_docs)] // the fields are what the messages say
pub enum Error {
    /// An invalid GGUF file.
    #[error("{0}")]
    Gguf(gguf_rs_lite::Error),
    /// `general.architecture` names an unsupported architecture.
    #[error(
        "{file}: general.architecture is {got:?}, which is not supported (supported: {supported})"
    )]
    UnknownArchitecture {
        file: String,
        got: String,
        supported: String,
    },
    /// A key without a default is absent.
    #[error("{file}: missing key {key} (expected {expected})")]
    MissingKey {
        file: String,
        key: String,
        expected: String,
    },
    /// A key holds a value of the wrong type or out of range.
    #[error("{file}: {key}: expected {expected}, got {got}")]
    BadValue {
        file: String,
        key: String,
        expected: String,
        got: String,
    },
    /// A key asks for something that would change the results and is not implemented.
    #[error("{file}: {key} = {got} is not supported for {arch} ({expected})")]
    Unsupported {
        file: String,
        key: String,
        arch: &'static str,
        expected: String,
        got: String,
    },
    /// A tensor that the architecture requires is absent.
    #[error("{file}: missing tensor {tensor} (expected shape {expected})")]
    MissingTensor {
        file: String,
        tensor: String,
        expected: String,
    },
    /// A tensor's shape differs from what the hyperparameters require.
    #[error("{file}: tensor {tensor}: expected shape {expected}, got {got}")]
    TensorShape {
        file: String,
        tensor: String,
        expected: String,
        got: String,
    },
    /// A tensor has an element type that its role does not allow.
    #[error("{file}: tensor {tensor}: expected type {expected}, got {got}")]
    TensorType {
        file: String,
        tensor: String,
        expected: &'static str,
        got: &'static str,
    },
    /// A value inside a tensor that is read at load is not usable.
    #[error("{file}: tensor {tensor}: element {index}: expected {expected}, got {got}")]
    TensorValue {
        file: String,
        tensor: String,
        index: usize,
        expected: &'static str,
        got: f32,
    },
    /// The file has tensors that the architecture does not use.
    #[error(
        "{file}: unexpected tensor {tensor} ({why}; {arch} uses {expected} of the file's {got} \
         tensors)"
    )]
    UnexpectedTensor {
        file: String,
        tensor: String,
        arch: &'static str,
        why: &'static str,
        expected: usize,
        got: usize,
    },
    /// The file has an MTP layer and no others.
    #[error("{0}: only an MTP layer, which drafts tokens: expected the model that it belongs to")]
    OnlyMtp(String),
    /// The file is an assistant, which reads another model's cache.
    #[error("{0}: an assistant, which drafts tokens: expected the model that it belongs to")]
    OnlyAssistant(String),
    /// The file is no assistant for models of this architecture.
    #[error("{file}: a model of {arch}: expected an assistant for {expected}")]
    NoAssistant {
        file: String,
        arch: &'static str,
        expected: &'static str,
    },
    /// An assistant is for another target.
    #[error("{file}: {what} {got}: expected {expected}, as the model has that it drafts for")]
    OtherTarget {
        file: String,
        what: String,
        expected: usize,
        got: usize,
    },
    /// The file has no MTP layer that could draft tokens.
    #[error("{file}: a model of {arch} {reason}: expected one to draft tokens with")]
    NoMtp {
        file: String,
        arch: &'static str,
        reason: &'static str,
    },
    /// The graph built for the model is inconsistent: a bug in this program, not a fault of the
    /// file.
    #[error("{file}: the graph built for {arch} is inconsistent: {source}")]
    Graph {
        file: String,
        arch: &'static str,
        source: super::graph::GraphError,
    },
}
