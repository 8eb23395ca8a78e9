//! Why something could not be done: one line each, with the file, key or tensor, what was expected
//! and what was found.

use std::fmt;

/// What there is to choose from, for a message: `1, 2 or 4`.
pub(crate) struct Choice<'a, T>(pub(crate) &'a [T]);

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

/// Any failure of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The container.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// A Hugging Face folder.
    #[error(transparent)]
    Hf(#[from] crate::hf::Error),
    /// Hyperparameters or weights.
    #[error(transparent)]
    Model(#[from] octavo_model::Error),
    /// The vocabulary, or a text that cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] octavo_text::tokenizer::Error),
    /// The chat template.
    #[error(transparent)]
    Chat(#[from] octavo_text::chat::Error),
    /// An instruction set that this CPU lacks.
    #[error(transparent)]
    Isa(#[from] octavo_kernels::IsaError),
    /// The CPU backend.
    #[error(transparent)]
    Cpu(#[from] crate::backend::cpu::Error),
    /// A GPU was demanded, or failed.
    #[error("CUDA: {0}")]
    Cuda(#[from] crate::backend::cuda::Error),
    /// A model that cannot guess for another.
    #[error("{draft}: token {id} is another one than in {file}: expected the same vocabulary")]
    OtherVocabulary {
        /// The file of the model that should guess.
        draft: String,
        /// The other's.
        file: String,
        /// The first token that differs.
        id: u32,
    },
    /// More tokens than positions.
    #[error("context full: {have} tokens there, {new} more do not fit {n_ctx} positions")]
    Context {
        /// Tokens cached.
        have: usize,
        /// Tokens given.
        new: usize,
        /// Positions.
        n_ctx: usize,
    },
    /// A context of more positions than the model has embeddings for.
    #[error("context {n_ctx}: expected at most the {rows} positions that the model has")]
    Positions {
        /// Asked for.
        n_ctx: usize,
        /// Rows of `position_embd.weight`.
        rows: usize,
    },
    /// Logits are asked of a model that gives none.
    #[error(
        "{file}: architecture {arch}: expected a model that generates text, got one for embeddings"
    )]
    NoLogits {
        /// The file.
        file: String,
        /// Its architecture.
        arch: &'static str,
    },
    /// A text longer than a step, of a model that reads texts whole.
    #[error(
        "the text has {tokens} tokens: expected at most {most}, which is how many are computed at \
         a time, for architecture {arch} reads a text whole"
    )]
    Whole {
        /// The architecture.
        arch: &'static str,
        /// Tokens of the text.
        tokens: usize,
        /// Tokens of a step.
        most: usize,
    },
    /// An id outside the vocabulary.
    #[error("token id {id}: expected an id below {n_vocab}")]
    Token {
        /// The id that was asked for.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// A picture's cell without the picture.
    #[error("token id {id}: expected a cell of a picture that was shown and is still held")]
    NotShown {
        /// The id.
        id: u32,
    },
    /// A picture for another model, or for one that reads text alone.
    #[error(
        "a picture of {cells} cells in {got} values: expected {expected} for each cell, which is \
         what architecture {arch} takes"
    )]
    PictureWidth {
        /// The model's architecture.
        arch: &'static str,
        /// Cells of the picture.
        cells: usize,
        /// Values of one; 0 if the model takes none.
        expected: usize,
        /// Values of all.
        got: usize,
    },
    /// More pictures than there are ids for.
    #[error("too many pictures were shown: no ids are left for their cells")]
    TooManyPictures,
    /// Other sessions hold the cache.
    #[error(transparent)]
    KvPages(#[from] crate::kv::OutOfPages),
    /// A cache of more pages than can be numbered.
    #[error("context {0}: more positions than a KV cache can number")]
    TooLong(usize),
    /// Layers that need more than what the layer before them hands on.
    #[error(
        "{file}: {gpu_layers} of {n_layer} layers on the GPU: expected all or none, since layers \
         share keys and values, or inputs, with others"
    )]
    Indivisible {
        /// The model.
        file: String,
        /// Layers that were to be on the GPU.
        gpu_layers: usize,
        /// All layers.
        n_layer: usize,
    },
    /// More or other ranks than the key heads can be divided among.
    #[error(
        "{file}: {ranks} ranks: expected {}, which divide its key heads",
        Choice(possible)
    )]
    Ranks {
        /// The model.
        file: String,
        /// Asked for.
        ranks: usize,
        /// What could be.
        possible: Vec<usize>,
    },
    /// A second model on the same ranks.
    #[error("the ranks have a model already: expected one at a time")]
    RanksTaken,
    /// Ranks compute on devices of one kind, which are known beforehand.
    #[error("{ranks} ranks: expected all layers on CPUs, or all on GPUs that were asked for")]
    RanksOnGpu {
        /// Asked for.
        ranks: usize,
    },
    /// A rank could not do its share.
    #[error("rank {rank} of {ranks}: {why}")]
    Rank {
        /// Which.
        rank: usize,
        /// Of how many.
        ranks: usize,
        /// What it says.
        why: String,
    },
    /// A logit that is not a number.
    #[error("position {position}: logits are not finite; the first value that is not is in {tap}")]
    NotFinite {
        /// Position of the token.
        position: usize,
        /// Tap name.
        tap: String,
    },
}
