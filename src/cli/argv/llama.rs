//! Options of llama.cpp's programs (llama-cli, llama-server, llama-completion, llama-bench,
//! llama-quantize and related ones), and their counterparts here.

/// Octavo's counterpart of a llama.cpp option.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Here {
    /// The option with the same meaning.
    Is(&'static str),
    /// Nothing, since it asks for what is so anyway, as docs/llama_options.md explains. It is left
    /// out.
    Always,
    /// The same, of an option that may be followed by a number, or by `on`, `off` or `auto`.
    AlwaysOf,
    /// The reason that there is none, and what to do instead.
    No(&'static str),
}

use Here::{Always, AlwaysOf, Is, No};

const DOWNLOADS: &str = "hf:USER/REPO[:QUANT] names a model of the hub";
const PRIORITY: &str = "threads are placed and scheduled by the system; taskset and nice set both";
const TALK: &str = "octavo chat holds a conversation, octavo run --chat answers one message, and \
                    octavo run alone continues a text";
const DRAFT: &str = "the draft model runs with the settings of its target";
const DRAFT_LENGTH: &str = "the number of draft tokens follows from what they cost and save";
const OFFLOAD: &str = "--gpu-layers N says which layers a GPU takes, and --n-cpu-moe N whose \
                       experts stay on the CPU";
const GPUS: &str = "a model runs on one machine's GPUs; docs/ranks.md has several machines";
const SLOTS: &str = "requests have no slots of their own; prompts are looked up in one cache";
const PAGE: &str = "the page is part of the server and has no settings";
const STRIDES: &str = "octavo perplexity scores the second half of each chunk, without strides";
const LOGGING: &str = "--log-file FILE keeps messages, -v says more, -q less";
const TRAINING: &str = "it trains nothing";
const TOOLS: &str = "a server runs no tools; clients do";
const SPEECH: &str = "it takes and makes no sound, nor video";
const DIFFUSION: &str = "it runs no diffusion models";
const TIMES: &str = "the closing line of octavo run, or its --json, has the times";

/// Names and their counterparts here. If a command has an option of the same name, that one is
/// meant.
#[rustfmt::skip]
pub(super) const OPTIONS: &[(&[&str], Here)] = &[
    // same meaning under another name
    (&["-n", "--n-predict", "--predict"], Is("--n-predict")),
    (&["--ctx-size"], Is("--ctx-size")),
    (&["--threads"], Is("--threads")),
    (&["-ctk", "--cache-type-k"], Is("--cache-type-k")),
    (&["-ctv", "--cache-type-v"], Is("--cache-type-v")),
    (&["-ngl", "--gpu-layers", "--n-gpu-layers"], Is("--gpu-layers")),
    (&["-ncmoe", "--n-cpu-moe"], Is("--n-cpu-moe")),
    (&["-cmoe", "--cpu-moe"], Is("--cpu-moe")),
    (&["-ot", "--override-tensor"], Is("--override-tensor")),
    (&["-fit", "--fit"], Is("--fit")),
    (&["-fitt", "--fit-target"], Is("--fit-target")),
    (&["-fitc", "--fit-ctx"], Is("--fit-ctx")),
    (&["-np", "--parallel"], Is("--parallel")),
    (&["-ub", "--ubatch-size"], Is("--batch-size")),
    (&["-mg", "--main-gpu"], Is("--gpu")),
    (&["-sm", "--split-mode"], Is("--split-mode")),
    (&["-ts", "--tensor-split"], Is("--tensor-split")),
    (&["-nr", "--no-repack"], Is("--no-repack")),
    (&["-sys", "--system-prompt"], Is("--system")),
    (&["-sysf", "--system-prompt-file"], Is("--system-file")),
    (&["-jf"], Is("--json-schema-file")),
    (&["-bf", "--binary-file"], Is("--file")),
    (&["-r", "--reverse-prompt"], Is("--stop")),
    (&["-sp", "--special"], Is("--special")),
    (&["-mm", "--mmproj"], Is("--mmproj")),
    (&["-md", "--model-draft", "--spec-draft-model"], Is("--draft")),
    (&["-ofreq", "--output-frequency"], No("the matrix is written when all chunks are done; \
        --shard cuts the work into shards that are kept")),
    (&["--usage"], Is("--help")),
    (&["--verbose", "--log-verbose"], Is("--verbose")),
    (&["--log-disable"], Is("--quiet")),
    (&["--cors-origins"], Is("--cors-origin")),
    // models
    (&["-hf", "-hfr", "--hf-repo"], Is("--hf-repo")),
    (&["-hff", "--hf-file"], Is("--hf-file")),
    (&["-hft", "--hf-token"], Is("--hf-token")),
    (&["-mu", "--model-url"], Is("--model")),
    (&["-mmu", "--mmproj-url"], Is("--mmproj")),
    (&["-cl", "--cache-list"], No("octavo list lists the models in the cache")),
    (&["-hfd", "-hfrd", "--hf-repo-draft", "--spec-draft-hf"],
        No("--draft hf:USER/REPO[:QUANT] is a draft model of the hub")),
    (&["-dr", "--docker-repo", "--embd-gemma-default",
       "--fim-qwen-1.5b-default", "--fim-qwen-3b-default", "--fim-qwen-7b-default",
       "--fim-qwen-7b-spec", "--fim-qwen-14b-spec", "--fim-qwen-30b-default",
       "--gpt-oss-20b-default", "--gpt-oss-120b-default", "--vision-gemma-4b-default",
       "--vision-gemma-12b-default"], No(DOWNLOADS)),
    (&["--models-dir", "--models-preset"], Is("--models")),
    (&["--models-max"], Is("--models-max")),
    (&["--models-autoload"], Is("--models-autoload")),
    (&["--no-models-autoload"], Is("--no-models-autoload")),
    (&["--lora"], Is("--lora")),
    (&["--lora-scaled"], Is("--lora-scaled")),
    (&["--lora-init-without-apply"], Is("--lora-init-without-apply")),
    (&["--control-vector"], Is("--control-vector")),
    (&["--control-vector-scaled"], Is("--control-vector-scaled")),
    (&["--control-vector-layer-range"], Is("--control-vector-layer-range")),
    (&["--no-mmproj", "--no-mmproj-auto"], Is("--no-mmproj")),
    (&["--mmproj-auto"], No("the image encoder beside a model of the hub is taken anyway")),
    (&["--check-tensors"], No("broken blocks are refused when a model is loaded")),
    (&["--mmap"], Always),
    (&["-lm", "--load-mode", "-dio", "--direct-io"],
        No("a file is mapped unless --no-mmap is given; --mlock keeps it in memory")),
    // computing
    (&["-fa", "--flash-attn"], AlwaysOf),
    (&["-tb", "--threads-batch"], No("-t N is for prompts and generated tokens alike")),
    (&["-C", "--cpu-mask", "-Cr", "--cpu-range", "--cpu-strict", "--prio", "--poll", "-Cb",
       "--cpu-mask-batch", "-Crb", "--cpu-range-batch", "--cpu-strict-batch", "--prio-batch",
       "--poll-batch", "--delay"], No(PRIORITY)),
    (&["-dev", "--list-devices"], No("--device cpu or cuda and --gpu N choose a device, octavo \
        inspect --devices lists them")),
    (&["--rpc", "-rpc"], No(GPUS)),
    (&["-ncffn", "--n-cpu-ffn", "-kvo", "--kv-offload", "-nkvo", "--no-kv-offload", "--op-offload",
       "--no-op-offload", "-nopo", "--no-host", "--mmproj-offload", "--no-mmproj-offload"],
        No(OFFLOAD)),
    (&["-fitp", "--fit-print"], No("--fit says what it chose when the model is loaded")),
    (&["--repack"], Always),
    (&["--warmup", "--no-warmup"], Always),
    (&["--numa"], No("several processes, one for each NUMA node, share a model; docs/ranks.md")),
    (&["--perf", "--no-perf", "--show-timings", "--no-show-timings"], No(TIMES)),
    (&["-lzm", "--lazy-mode"], No("weights are read when the model is loaded")),
    // the cache
    (&["--swa-full"], Always),
    (&["--kv-unified-per-slot", "-kvu", "--kv-unified", "-no-kvu", "--no-kv-unified"],
        Always),
    (&["-cram", "--cache-ram", "-dt", "--defrag-thold"], AlwaysOf),
    (&["-ctxcp", "--ctx-checkpoints", "--swa-checkpoints", "-cms", "--checkpoint-min-step",
       "--cache-idle-slots", "--no-cache-idle-slots", "-sps", "--slot-prompt-similarity"],
        No(SLOTS)),
    (&["--slot-save-path"], Is("--slot-save-path")),
    (&["--prompt-cache", "--prompt-cache-all", "--prompt-cache-ro"],
        No("octavo serve --prompt-cache DIR keeps prompts in a folder")),
    (&["-gan", "--grp-attn-n", "-gaw", "--grp-attn-w"],
        No("--rope-scaling and its kin stretch the context")),
    (&["--attention"], No("whether a model looks ahead is written in its file")),
    // texts and conversations
    (&["-cnv", "--conversation", "-no-cnv", "--no-conversation", "-st", "--single-turn", "-i",
       "--interactive", "-if", "--interactive-first", "-mli", "--multiline-input", "--in-prefix",
       "--in-prefix-bos", "--in-suffix", "--simple-io", "-co", "--color"], No(TALK)),
    (&["--display-prompt", "--no-display-prompt", "--verbose-prompt"],
        No("run --echo prints the prompt first, and octavo tokenize its tokens")),
    (&["--no-escape"], Always),
    (&["-ptc", "--print-token-count"], No(TIMES)),
    (&["--in-file", "--context-file"], No("-f FILE reads one file, and - is stdin")),
    (&["--spm-infill"], No("/infill uses the order that the model's file names")),
    (&["--jinja"], Always),
    (&["--no-jinja"], No("chat templates are always rendered as Jinja")),
    (&["--skip-chat-parsing", "--no-skip-chat-parsing"],
        No("/completion gives a text as it is, and /v1/chat/completions what it means")),
    (&["--reasoning-format"], No("a request says reasoning_format; docs/serving.md")),
    (&["--reasoning-effort", "--reasoning-preserve", "--no-reasoning-preserve"],
        No("a template's settings are given by chat_template_kwargs")),
    // sampling
    (&["-bs", "--backend-sampling"], Always),
    // drafts
    (&["--draft-n", "--draft-max", "--spec-draft-n-max"], Is("--draft-max")),
    (&["--mtp"], Is("--draft-mtp")),
    (&["--draft-min", "--draft-n-min", "--spec-draft-n-min", "--draft-p-split",
       "--spec-draft-p-split", "--draft-p-min", "--spec-draft-p-min"], No(DRAFT_LENGTH)),
    (&["-td", "--threads-draft", "--spec-draft-threads", "-tbd", "--threads-batch-draft",
       "--spec-draft-threads-batch", "-Cd", "--cpu-mask-draft", "--spec-draft-cpu-mask", "-Crd",
       "--cpu-range-draft", "--spec-draft-cpu-range", "--cpu-strict-draft",
       "--spec-draft-cpu-strict", "--prio-draft", "--spec-draft-prio", "--poll-draft",
       "--spec-draft-poll", "-Cbd", "--cpu-mask-batch-draft", "--spec-draft-cpu-mask-batch",
       "-Crbd", "--cpu-range-batch-draft", "--spec-draft-cpu-range-batch",
       "--cpu-strict-batch-draft", "--spec-draft-cpu-strict-batch", "--prio-batch-draft",
       "--spec-draft-prio-batch", "--poll-batch-draft", "--spec-draft-poll-batch", "-ctkd",
       "--cache-type-k-draft", "--spec-draft-type-k", "-ctvd", "--cache-type-v-draft",
       "--spec-draft-type-v", "-otd", "--override-tensor-draft", "--spec-draft-override-tensor",
       "-cmoed", "--cpu-moe-draft", "--spec-draft-cpu-moe", "-ncmoed", "--n-cpu-moe-draft",
       "--spec-draft-n-cpu-moe", "--spec-draft-ncmoe", "-devd", "--device-draft",
       "--spec-draft-device", "-ngld", "--gpu-layers-draft", "--n-gpu-layers-draft",
       "--spec-draft-ngl", "--spec-draft-backend-sampling", "--no-spec-draft-backend-sampling"],
        No(DRAFT)),
    (&["--spec-type", "--spec-default", "--spec-synth-len", "--spec-synth-rates",
       "--spec-ngram-mod-n-min", "--spec-ngram-mod-n-max", "--spec-ngram-mod-n-match",
       "--spec-ngram-simple-size-n", "--spec-ngram-simple-size-m", "--spec-ngram-simple-min-hits",
       "--spec-ngram-map-k-size-n", "--spec-ngram-map-k-size-m", "--spec-ngram-map-k-min-hits",
       "--spec-ngram-map-k4v-size-n", "--spec-ngram-map-k4v-size-m",
       "--spec-ngram-map-k4v-min-hits", "--spec-ngram-size-n", "--spec-ngram-size-m",
       "--spec-ngram-min-hits", "--eagle3", "--dflash", "-lcs", "--lookup-cache-static",
       "-lcd", "--lookup-cache-dynamic"],
        No("--lookup says when the text before is a draft, --draft MODEL names a draft model, and \
            --draft-mtp drafts with the model's own MTP layer")),
    // serving
    (&["-cb", "--cont-batching"], Always),
    (&["-nocb", "--no-cont-batching"], No("requests always advance together")),
    (&["--cache-prompt", "--metrics", "--embedding", "--embeddings", "--rerank", "--reranking"],
        Always),
    (&["--slots"], Is("--slots")),
    (&["--no-slots"], Is("--no-slots")),
    (&["--media-path"], Is("--media-path")),
    (&["--props"], No("/props is always there, to be read")),
    (&["--cache-reuse"], No("whatever beginning two prompts share is read once")),
    (&["-to", "--timeout", "--sse-ping-interval", "--threads-http", "--reuse-port"],
        No("connections have fixed limits; docs/serving.md")),
    (&["--ssl-key-file"], Is("--ssl-key-file")),
    (&["--ssl-cert-file"], Is("--ssl-cert-file")),
    (&["--cors-methods", "--cors-headers", "--cors-credentials", "--no-cors-credentials"],
        No("--cors-origin ORIGIN is all there is to say")),
    (&["--path", "--ui", "--webui", "--no-ui", "--no-webui", "--ui-config", "--webui-config",
       "--ui-config-file", "--webui-config-file"], No(PAGE)),
    (&["--tools", "--tools-runtime", "-ag", "--agent", "-no-ag", "--no-agent", "--ui-mcp-proxy",
       "--webui-mcp-proxy", "--no-ui-mcp-proxy", "--no-webui-mcp-proxy", "--mcp-servers-config",
       "--mcp-servers-json"], No(TOOLS)),
    (&["--sleep-idle-seconds"], Is("--idle-unload")),
    (&["--server-base"], No("a client of octavo serve is given its address")),
    (&["-a", "--alias"], Is("--alias")),
    (&["--tags"], No("--alias NAME is another name of the model")),
    // images and sound
    (&["--audio", "--video", "--video-fps", "--video-ffmpeg-dir", "--video-timestamp-interval",
       "--tts-lang", "--tts-speaker-file"], No(SPEECH)),
    (&["--mtmd-batch-max-tokens"], No("--image-max-tokens bounds the tokens of an image")),
    // vectors
    (&["--embd-normalize"],
        No("vectors are divided by their Euclidean lengths unless --no-normalize is given")),
    (&["--embd-output-format"], No("--json prints an object, --dump writes safetensors")),
    (&["--embd-separator", "--cls-separator"], No("--lines takes every line as a text")),
    (&["-embd"], No("octavo embed makes vectors")),
    // messages
    (&["--log-colors", "--log-jsonl", "--no-log-jsonl", "--log-prompts-dir", "-lv", "--verbosity",
       "--log-verbosity", "--log-prefix", "--no-log-prefix", "--log-timestamps",
       "--no-log-timestamps", "--progress"], No(LOGGING)),
    // measuring and quantizing
    (&["--hellaswag"], Is("--hellaswag")),
    (&["--hellaswag-tasks"], Is("--hellaswag-tasks")),
    (&["--winogrande"], Is("--winogrande")),
    (&["--winogrande-tasks"], Is("--winogrande-tasks")),
    (&["--multiple-choice"], Is("--multiple-choice")),
    (&["--multiple-choice-tasks"], Is("--multiple-choice-tasks")),
    (&["--ppl-stride", "--ppl-output-type", "--no-ppl", "--ppl"], No(STRIDES)),
    (&["-pg", "-pps", "-npp", "-ntg", "-npl", "-tgs", "-oe", "--output-err"],
        No("octavo bench has -p, -n, -d and --sequences, and -o for the form")),
    (&["--save-logits", "--logits-output-dir", "--tensor-filter"],
        No("octavo logits --dump and octavo diff show tensors and logits")),
    (&["--chunk", "--from-chunk"], No("--shard I/N takes a part of the chunks")),
    (&["--output-file"], No("-o FILE names it")),
    (&["--output-format", "--save-frequency", "--show-statistics"],
        No("the matrix is written once, in GGUF form; octavo inspect shows what is in it")),
    (&["--parse-special", "--no-parse-special"],
        No("special tokens in a text are recognized unless --no-special is given")),
    (&["--no-bos"], No("--no-special leaves special tokens out")),
    (&["--stdin"], No("-f - reads stdin")),
    (&["--show-count"], No("octavo tokenize --json has all of them")),
    (&["--keep-split"], Is("--keep-split")),
    (&["--max-buffer-size"], AlwaysOf),
    (&["--completion-bash"], No("octavo completions bash prints it")),
    (&["--chunk-size", "--chunk-separator", "--junk", "--pos", "-ns", "--sequences", "--check"],
        No("none of its commands does that")),
    (&["--diffusion-steps", "--diffusion-visual", "--diffusion-eps", "--diffusion-algorithm",
       "--diffusion-alg-temp", "--diffusion-block-length", "--diffusion-cfg-scale",
       "--diffusion-add-gumbel-noise"], No(DIFFUSION)),
    (&["-lr", "--learning-rate", "-lr-min", "--learning-rate-min", "-decay-epochs",
       "--learning-rate-decay-epochs", "-wd", "--weight-decay", "-val-split", "--val-split",
       "-epochs", "--epochs", "-opt", "--optimizer", "--positive-file", "--negative-file",
       "--pca-batch", "--pca-iter", "--method"], No(TRAINING)),
];
