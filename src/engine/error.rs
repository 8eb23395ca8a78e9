//! Errors of the engine: one line each, with the file, key or tensor, the expected value and the
//! one found.

/// Any failure of the engine.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// An invalid GGUF file.
    #[error(transparent)]
    Gguf(#[from] gguf_rs_lite::Error),
    /// An unusable Hugging Face folder.
    #[error(transparent)]
    Hf(#[from] octavo_hf::Error),
    /// Invalid hyperparameters or weights.
    #[error(transparent)]
    Model(#[from] octavo_model::Error),
    /// An invalid vocabulary, or a text that cannot be encoded.
    #[error(transparent)]
    Tokenizer(#[from] octavo_text::tokenizer::Error),
    /// An invalid chat template, or one that failed.
    #[error(transparent)]
    Chat(#[from] octavo_text::chat::Error),
    /// An instruction set that this CPU lacks.
    #[error(transparent)]
    Isa(#[from] octavo_kernels::IsaError),
    /// A failure of the CPU backend.
    #[error(transparent)]
    Cpu(#[from] crate::backend::cpu::Error),
    /// A failure of a GPU, or a GPU that was asked for and cannot be used.
    #[error("CUDA: {0}")]
    Cuda(#[from] octavo_kernels::cuda::Error),
    /// A draft model with another vocabulary.
    #[error("{draft}: token {id} is another one than in {file}: expected the same vocabulary")]
    OtherVocabulary {
        /// File of the draft model.
        draft: String,
        /// File of the target model.
        file: String,
        /// First token that differs.
        id: u32,
    },
    /// An assistant that cannot read a model's KV cache.
    #[error(
        "{draft}: an assistant, which reads the KV cache of {file} on {device}: expected both on \
         the CPU, with caches of the same types"
    )]
    AssistantCache {
        /// File of the assistant.
        draft: String,
        /// File of the target model.
        file: String,
        /// Device of the target model.
        device: String,
    },
    /// An MTP layer or an assistant of another model, or beside a model that does not keep its
    /// hidden states.
    #[error(
        "{draft}: a draft model for hidden states of {expected} values, where {file} keeps \
         {width}"
    )]
    OtherTarget {
        /// File of the MTP layer or assistant.
        draft: String,
        /// File of the target model.
        file: String,
        /// Values that it reads.
        expected: usize,
        /// Values that the model keeps; 0 if it keeps none.
        width: usize,
    },
    /// Tokens that do not fit the context.
    #[error("context full: {have} tokens there, {new} more do not fit {n_ctx} positions")]
    Context {
        /// Tokens already cached.
        have: usize,
        /// New tokens.
        new: usize,
        /// Context length.
        n_ctx: usize,
    },
    /// A file that is no adapter or control vector for the model.
    #[error(transparent)]
    Adapter(#[from] octavo_model::AdapterError),
    /// Adapters on a device that cannot apply them.
    #[error("adapters run on the CPU in one process: expected no {0}")]
    AdapterDevice(&'static str),
    /// Control vectors on several ranks.
    #[error("control vectors run in one process: expected no other ranks")]
    ControlRanks,
    /// A request with several adapters that tokens activate.
    #[error("Cannot run multiple aLoRAs in a single request")]
    SeveralInvoked,
    /// A context of more positions than the model has embeddings for.
    #[error("context {n_ctx}: expected at most the {rows} positions that the model has")]
    Positions {
        /// Context length asked for.
        n_ctx: usize,
        /// Rows of `position_embd.weight`.
        rows: usize,
    },
    /// Logits asked of a model that has none.
    #[error(
        "{file}: architecture {arch}: expected a model that generates text, got one for embeddings"
    )]
    NoLogits {
        /// The file.
        file: String,
        /// Its architecture.
        arch: &'static str,
    },
    /// A conversation for a model without a chat template.
    #[error("{file}: expected a file with a chat template (tokenizer.chat_template)")]
    NoChatTemplate {
        /// The file.
        file: String,
    },
    /// A text longer than a step, for a model that is not causal and computes texts whole.
    #[error(
        "the text has {tokens} tokens: expected at most {most}, which is how many are computed at \
         a time, for architecture {arch} reads a text whole"
    )]
    Whole {
        /// The architecture.
        arch: &'static str,
        /// Tokens of the text.
        tokens: usize,
        /// Maximum tokens of a step.
        most: usize,
    },
    /// A prefix cache on disk whose folder, or the program itself, cannot be read.
    #[error("prompt cache {}: {source}", dir.display())]
    PromptCache {
        /// The folder.
        dir: std::path::PathBuf,
        /// Reason of the system.
        source: std::io::Error,
    },
    /// A prefix cache on disk for pages that are not in the memory of one CPU process.
    #[error(
        "prompt cache {}: expected a model on the CPU in one process, got {device}",
        dir.display()
    )]
    PromptCacheDevice {
        /// The folder.
        dir: std::path::PathBuf,
        /// Where the pages are.
        device: String,
    },
    /// A computation that its caller stopped.
    #[error("stopped by the caller")]
    Stopped,
    /// An id outside the vocabulary.
    #[error("token id {id}: expected an id below {n_vocab}")]
    Token {
        /// The id that was asked for.
        id: u32,
        /// Size of the vocabulary.
        n_vocab: usize,
    },
    /// Scores asked of a model without a classifier.
    #[error(
        "this {arch} model has no classifier: expected a reranker, with cls.weight or \
         cls.output.weight"
    )]
    NoClassifier {
        /// The architecture.
        arch: &'static str,
    },
    /// An image token whose image is not held.
    #[error("token id {id}: expected a token of an image that is registered and still held")]
    ImageNotHeld {
        /// The id.
        id: u32,
    },
    /// An image encoded for another model, or given to a model without image input.
    #[error(
        "an image of {tokens} tokens in {got} values: expected {expected} for each token, which is \
         what architecture {arch} takes"
    )]
    ImageWidth {
        /// The model's architecture.
        arch: &'static str,
        /// Tokens of the image.
        tokens: usize,
        /// Values per image token; 0 if the model takes no images.
        expected: usize,
        /// Values given in all.
        got: usize,
    },
    /// A text that ends in an image whose tokens attend to each other.
    #[error(
        "{end} of {tokens} tokens of an image: expected all, because they attend to each other"
    )]
    ImageCut {
        /// Tokens of the image that are there.
        end: usize,
        /// Tokens of the image.
        tokens: usize,
    },
    /// An image longer than a step, whose tokens attend to each other.
    #[error(
        "an image of {tokens} tokens, which attend to each other: expected at most {most}, which \
         is how many are computed at a time"
    )]
    LongImage {
        /// Tokens of the image.
        tokens: usize,
        /// Maximum tokens of a step, or those of them that have an output.
        most: usize,
    },
    /// No ids left for the tokens of another image.
    #[error("too many images are registered: no ids are left for their tokens")]
    TooManyImages,
    /// A KV cache whose pages are used up.
    #[error(transparent)]
    KvPages(#[from] crate::kv::OutOfPages),
    /// A KV cache with more pages than page numbers.
    #[error("context {0}: more positions than a KV cache can number")]
    TooLong(usize),
    /// Layers that cannot be split between devices: they need more than the previous layer's
    /// output.
    #[error(
        "{file}: {gpu_layers} of {n_layer} layers on the GPU: expected all or none, since layers \
         share keys and values, or inputs, with others"
    )]
    Indivisible {
        /// The model.
        file: String,
        /// Layers asked for on the GPU.
        gpu_layers: usize,
        /// Layers of the model.
        n_layer: usize,
    },
    /// Layers that cannot be split among GPUs.
    #[error(
        "{file}: layers on {gpus} GPUs: expected all on one, since layers share keys and values, \
         or inputs, with others"
    )]
    IndivisibleLayers {
        /// The model.
        file: String,
        /// GPUs that would get layers.
        gpus: usize,
    },
    /// Layers on several GPUs and other parts of the model elsewhere.
    #[error("layers on several GPUs: expected the whole model there, got {0}")]
    LayerSplitWith(&'static str),
    /// Proportions of layers for more GPUs than there are, or none above 0.
    #[error("layers on several GPUs: expected proportions for {expected}, one above 0, got {got}")]
    LayerSplit {
        /// GPUs that there are.
        expected: String,
        /// The proportions.
        got: String,
    },
    /// A choice of tensors for the CPU that is not the experts of whole layers.
    #[error(
        "{file}: {pattern} names {got}: expected the experts of whole layers \
         (blk.N.ffn_gate_exps, ffn_up_exps and ffn_down_exps), since other tensors stay with \
         their layer"
    )]
    CpuTensor {
        /// The model.
        file: String,
        /// The choice.
        pattern: String,
        /// The tensors that it names.
        got: String,
    },
    /// Experts on the CPU, for one of several ranks.
    #[error("{ranks} ranks: expected experts on the devices of their layers, not on the CPU")]
    RanksWithCpuExperts {
        /// Number of ranks.
        ranks: usize,
    },
    /// Hidden states for an MTP layer, from one of several ranks.
    #[error("{ranks} ranks: expected one process to draft tokens with an MTP layer")]
    RanksWithMtp {
        /// Number of ranks.
        ranks: usize,
    },
    /// A number of ranks that does not divide the KV heads.
    #[error(
        "{file}: {ranks} ranks: expected {}, which divide its key heads",
        octavo_model::Choice(possible)
    )]
    Ranks {
        /// The model.
        file: String,
        /// Number of ranks asked for.
        ranks: usize,
        /// Numbers of ranks that are possible.
        possible: Vec<usize>,
    },
    /// A second model on the same tensor parallel group.
    #[error("the ranks have a model already: expected one at a time")]
    RanksTaken,
    /// A tensor parallel group whose ranks cannot know their kind of device beforehand.
    #[error("{ranks} ranks: expected all layers on CPUs, or all on GPUs that were asked for")]
    RanksOnGpu {
        /// Number of ranks.
        ranks: usize,
    },
    /// A rank of a tensor parallel group that could not prepare its shard.
    #[error("rank {rank} of {ranks}: {why}")]
    Rank {
        /// Its number.
        rank: usize,
        /// Number of ranks.
        ranks: usize,
        /// Message of that rank.
        why: String,
    },
    /// A logit that is not finite.
    #[error("position {position}: logits are not finite; the first value that is not is in {tap}")]
    NotFinite {
        /// Position of the token.
        position: usize,
        /// Tap of the first value that is not finite.
        tap: String,
    },
}
