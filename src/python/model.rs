//! A loaded model as a Python object.

use std::path::PathBuf;
use std::process;
use std::sync::{Arc, Mutex, PoisonError};

use numpy::PyArray2;
use octavo_llm::engine::backend::{Phase, TapView};
use octavo_llm::engine::{Embed, Engine, LogitsFor, Pooling, Request};
use octavo_llm::model::taps::numbered;
use octavo_llm::text::tokenizer::{DetokenizeOptions, EncodeOptions};
use pyo3::prelude::*;
use pyo3::types::{PyDict, PyList};

use crate::answer::Completion;
use crate::arrays::{self, Input};
use crate::call;
use crate::embed;
use crate::error::{BadArgument, Failure, closed, forked};
use crate::gguf::GgufFile;
use crate::json;
use crate::load::{Arguments, Loaded};
use crate::params::Params;
use crate::stream::{Running, Stream};

/// A model ready to run: a GGUF file, a Hugging Face folder, a model of the hub, or the built-in
/// demo model.
///
/// It may be used from several threads at once: texts are generated together, other calls take
/// turns. A child process must load its own (`ForkedError`).
///
/// Args:
///     source: Path of a GGUF file (of a split model its first part) or of a Hugging Face folder,
///         or "hf:USER/REPO:QUANT"; None is the built-in demo model.
///     device: "auto" (a GPU that works and has room, else the CPU), "cpu", "cuda" or "cuda:N".
///     ctx: Context length in tokens; by default the trained context, reduced until its KV cache
///         fits into a quarter of the free memory, but not below 4096.
///     kv_type: Element type of the KV cache: "f16", "f32", "q8_0", ..., or "q8_0/q4_0" for keys
///         and values.
///     threads: Number of threads; by default one for each physical core.
///     isa: Instruction set of the kernels: "auto", "avx2", "avx512", "amx", ...
///     parallel: Texts that are generated at once; others wait.
///     gpu_layers: Number of last layers to run on the GPU; by default all.
///     n_cpu_moe: Number of first layers whose experts stay on the CPU, where a GPU has the rest.
///     mmproj: Image encoder of the model, for chats with images.
///     offline: Take models of the hub from the cache alone.
#[pyclass(frozen, subclass, module = "octavo")]
pub(crate) struct Model {
    loaded: Mutex<Option<Arc<Loaded>>>,
    /// Process that loaded it.
    pid: u32,
    name: String,
}

impl Model {
    /// Returns what is loaded; an error if the model is closed, or in a child process.
    pub(crate) fn loaded(&self, py: Python<'_>) -> PyResult<Arc<Loaded>> {
        if self.pid != process::id() {
            return Err(forked(py, self.pid));
        }
        let loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        loaded.as_ref().map(Arc::clone).ok_or_else(|| closed(py))
    }

    /// Makes the request of a text.
    fn request(
        &self,
        py: Python<'_>,
        (text, options): (&Input, Option<&Bound<'_, PyDict>>),
    ) -> PyResult<(Arc<Loaded>, Request)> {
        let loaded = self.loaded(py)?;
        let params = Params::read(py, options)?;
        let request = py.detach(|| {
            let prompt = text.tokens(&loaded.engine)?;
            let constraint = params
                .rule
                .map(|rule| loaded.constraint(rule))
                .transpose()?;
            Ok(Request {
                constraint: constraint.flatten(),
                ..Request::new(&prompt, &params.generation)
            })
        });
        let request = request.map_err(|failure: Failure| failure.into_py(py))?;
        Ok((loaded, request))
    }

    fn begin(
        &self,
        py: Python<'_>,
        text: &Input,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Running> {
        let (loaded, request) = self.request(py, (text, options))?;
        Running::text(&loaded, request).map_err(|failure| failure.into_py(py))
    }

    /// Submits a chat request, whose fields are those of OpenAI's API.
    fn begin_chat(&self, py: Python<'_>, request: &Bound<'_, PyDict>) -> PyResult<Running> {
        let loaded = self.loaded(py)?;
        let request = json::from_python(request)?;
        let has_logprobs = request["logprobs"] == true;
        let inner = Arc::clone(&loaded);
        let answer = call::run(py, move |_| Ok(inner.chats()?.begin(&request)?))?;
        Ok(Running::chat(&loaded, answer, has_logprobs))
    }
}

#[pymethods]
impl Model {
    #[new]
    #[pyo3(signature = (
        source=None, *, device="auto", ctx=None, kv_type="f16", threads=None, isa="auto",
        parallel=8, gpu_layers=None, n_cpu_moe=0, mmproj=None, offline=false
    ))]
    #[allow(clippy::too_many_arguments)] // one for each keyword
    fn new(
        py: Python<'_>,
        source: Option<PathBuf>,
        device: &str,
        ctx: Option<usize>,
        kv_type: &str,
        threads: Option<usize>,
        isa: &str,
        parallel: usize,
        gpu_layers: Option<usize>,
        n_cpu_moe: usize,
        mmproj: Option<PathBuf>,
        offline: bool,
    ) -> PyResult<Model> {
        let name = match &source {
            Some(source) => source.display().to_string(),
            None => "built-in demo model".to_owned(),
        };
        let arguments = Arguments {
            source,
            device: device.to_owned(),
            ctx,
            kv_type: kv_type.to_owned(),
            threads,
            isa: isa.to_owned(),
            parallel,
            gpu_layers,
            n_cpu_moe,
            mmproj,
            offline,
        };
        let loaded = call::run(py, move |_| arguments.load())?;
        Ok(Model {
            loaded: Mutex::new(Some(Arc::new(loaded))),
            pid: process::id(),
            name,
        })
    }

    /// Continues a text.
    ///
    /// Greedy unless one of temperature, top_k, top_p, min_p, seed and samplers is given; the
    /// others of these are then 0.8, 40, 0.95, 0.05 and a random seed.
    ///
    /// Args:
    ///     text: A text, whose control tokens are parsed, or token ids.
    ///     max_tokens (int): Tokens to generate; by default up to the end of the context.
    ///     temperature, top_k, top_p, min_p, seed, repeat_penalty, presence_penalty,
    ///         frequency_penalty, repeat_last_n, samplers: As on the command line.
    ///     logit_bias (dict[int, float]): Added to logits of tokens.
    ///     stop (str | list[str]), stop_ids (list[int]): The text ends before these.
    ///     ignore_eos (bool), min_tokens (int): Never, or not before, end by itself.
    ///     logprobs (int): Record log-probabilities, with this many alternatives.
    ///     special (bool): Write control tokens as text.
    ///     json_schema (dict | str), grammar (str): Rule that the text follows.
    #[pyo3(
        signature = (text, **options),
        text_signature = "($self, text, *, max_tokens=None, temperature=None, **options)"
    )]
    fn generate(
        &self,
        py: Python<'_>,
        text: Input,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Completion> {
        self.begin(py, &text, options)?.complete(py)
    }

    /// Continues a text and iterates over its pieces (`Delta`) as they come. Arguments are those of
    /// `generate`.
    #[pyo3(
        signature = (text, **options),
        text_signature = "($self, text, *, max_tokens=None, temperature=None, **options)"
    )]
    fn stream(
        &self,
        py: Python<'_>,
        text: Input,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Stream> {
        Ok(Stream::new(self.begin(py, &text, options)?))
    }

    /// Continues several texts together; returns a list in their order. Arguments are those of
    /// `generate`. Each text is what `generate` makes of it alone.
    #[pyo3(
        signature = (texts, **options),
        text_signature = "($self, texts, *, max_tokens=None, temperature=None, **options)"
    )]
    fn batch(
        &self,
        py: Python<'_>,
        texts: Vec<Input>,
        options: Option<&Bound<'_, PyDict>>,
    ) -> PyResult<Vec<Completion>> {
        let begin = |text: &Input| self.begin(py, text, options);
        let all = texts.iter().map(begin).collect::<PyResult<Vec<_>>>()?;
        all.into_iter().map(|one| one.complete(py)).collect()
    }

    /// Answers a chat request with the fields of OpenAI's API.
    fn _chat(&self, py: Python<'_>, request: &Bound<'_, PyDict>) -> PyResult<Completion> {
        self.begin_chat(py, request)?.complete(py)
    }

    fn _chat_stream(&self, py: Python<'_>, request: &Bound<'_, PyDict>) -> PyResult<Stream> {
        Ok(Stream::new(self.begin_chat(py, request)?))
    }

    fn _render_chat(&self, py: Python<'_>, request: &Bound<'_, PyDict>) -> PyResult<String> {
        let loaded = self.loaded(py)?;
        let request = json::from_python(request)?;
        call::run(py, move |_| Ok(loaded.chats()?.render(&request)?))
    }

    /// Returns the token ids of a text, as the command line has them.
    ///
    /// Args:
    ///     text: str or bytes.
    ///     add_special: Add the special tokens that the model has around a text.
    ///     parse_special: Parse control tokens that are written in the text.
    #[pyo3(signature = (text, *, add_special=true, parse_special=true))]
    fn tokenize(
        &self,
        py: Python<'_>,
        text: Input,
        add_special: bool,
        parse_special: bool,
    ) -> PyResult<Vec<u32>> {
        let loaded = self.loaded(py)?;
        let options = EncodeOptions {
            add_special,
            parse_special,
        };
        let ids = py.detach(|| text.encode(&loaded.engine, options));
        ids.map_err(|failure| failure.into_py(py))
    }

    /// Returns the text of token ids; bytes that are not UTF-8 become U+FFFD.
    ///
    /// Args:
    ///     ids: Token ids.
    ///     special: Write control tokens as their text.
    #[pyo3(signature = (ids, *, special=false))]
    fn detokenize(&self, py: Python<'_>, ids: Vec<u32>, special: bool) -> PyResult<String> {
        let loaded = self.loaded(py)?;
        let options = DetokenizeOptions {
            unparse_special: special,
            ..DetokenizeOptions::default()
        };
        let text = loaded.engine.tokenizer().detokenize(&ids, options);
        Ok(String::from_utf8_lossy(&text).into_owned())
    }

    /// Computes the logits after every token of a text.
    ///
    /// Args:
    ///     text: A text or token ids, n tokens.
    ///
    /// Returns:
    ///     Array (n, n_vocab), float32: natural logarithms up to a constant for each row.
    fn logits<'py>(&self, py: Python<'py>, text: Input) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let loaded = self.loaded(py)?;
        let n_vocab = loaded.engine.hparams().n_vocab();
        let values = call::run(py, move |stop| {
            let tokens = text.tokens(&loaded.engine)?;
            let mut session = loaded.engine.session();
            session.stop_when(Arc::clone(stop));
            let mut values = Vec::with_capacity(tokens.len() * n_vocab);
            let mut sink = |_, row: &[f32]| values.extend_from_slice(row);
            session.eval_with(&tokens, Phase::Prefill, LogitsFor::All, None, &mut sink)?;
            Ok(values)
        })?;
        arrays::rows(py, values, n_vocab)
    }

    /// Computes intermediate tensors of a text.
    ///
    /// Args:
    ///     text: A text or token ids, n tokens.
    ///     names: Names of tensors (`tap_names`), with `*`, `?` and `[...]` as in file names:
    ///         ["Qcur-*", "l_out-3"]; by default all.
    ///
    /// Returns:
    ///     Dictionary of arrays (n, width), float32, in the order of the computation. The second
    ///     tensor of a name has " #2" behind it.
    #[pyo3(signature = (text, names=None))]
    fn taps<'py>(
        &self,
        py: Python<'py>,
        text: Input,
        names: Option<Vec<String>>,
    ) -> PyResult<Bound<'py, PyDict>> {
        let loaded = self.loaded(py)?;
        let selected = matching_taps(py, &loaded.engine, names)?;
        let arrays = call::run(py, move |stop| {
            let tokens = text.tokens(&loaded.engine)?;
            let mut session = loaded.engine.session();
            session.stop_when(Arc::clone(stop));
            let mut all: Vec<arrays::Named> = Vec::new();
            session.run_with_taps(&tokens, &mut |view: &TapView<'_>| {
                if !view.tap.is_named() {
                    return;
                }
                let name = numbered(view.tap, view.tap.nth);
                if !selected.contains(&name) {
                    return;
                }
                match all.iter_mut().find(|array| array.0 == name) {
                    Some(array) => array.2.extend_from_slice(view.data),
                    None => all.push((name, view.width, view.data.to_vec())),
                }
            })?;
            Ok(all)
        })?;
        arrays::dictionary(py, arrays)
    }

    /// Names of the tensors that `taps` returns, in the order of the computation.
    #[getter]
    fn tap_names(&self, py: Python<'_>) -> PyResult<Vec<String>> {
        Ok(tap_names(&self.loaded(py)?.engine))
    }

    /// Turns texts into vectors.
    ///
    /// Args:
    ///     texts: A list of texts, or of lists of token ids.
    ///     pooling: "mean", "cls", "last" or "rank"; by default what the file says, or else
    ///         "mean".
    ///     normalize: Divide each vector by its length.
    ///
    /// Returns:
    ///     Array (len(texts), n_embd), float32.
    #[pyo3(signature = (texts, *, pooling=None, normalize=true))]
    fn embed<'py>(
        &self,
        py: Python<'py>,
        texts: Vec<Input>,
        pooling: Option<&str>,
        normalize: bool,
    ) -> PyResult<Bound<'py, PyArray2<f32>>> {
        let loaded = self.loaded(py)?;
        let raise = |failure: Failure| failure.into_py(py);
        let how = Embed {
            pooling: embed::pooling_of(pooling, &loaded.engine).map_err(raise)?,
            normalize,
        };
        let tokens = |text: &Input| text.tokens(&loaded.engine);
        let prompts: Result<Vec<_>, _> = texts.iter().map(tokens).collect();
        let (values, width) = embed::vectors(py, &loaded, prompts.map_err(raise)?, how)?;
        arrays::rows(py, values, width)
    }

    /// Scores documents by how well they answer a query, with a reranker.
    ///
    /// Args:
    ///     query: The query.
    ///     documents: A list of texts.
    ///
    /// Returns:
    ///     A list of scores, one for each document; the higher the better.
    fn rerank(&self, py: Python<'_>, query: &str, documents: Vec<String>) -> PyResult<Vec<f32>> {
        let loaded = self.loaded(py)?;
        let raise = |failure: Failure| failure.into_py(py);
        let prompts = embed::pairs(&loaded.engine, query, &documents).map_err(raise)?;
        let how = Embed {
            pooling: Pooling::Rank,
            normalize: false,
        };
        let (values, width) = embed::vectors(py, &loaded, prompts, how)?;
        Ok(values
            .chunks(width.max(1))
            .map(|scores| scores[0])
            .collect())
    }

    /// The model file (`octavo.gguf`).
    #[getter]
    fn _gguf(&self, py: Python<'_>) -> PyResult<GgufFile> {
        Ok(GgufFile::of(self.loaded(py)?.engine.shared_gguf()))
    }

    /// Name or path that the model was loaded from.
    #[getter]
    fn name(&self) -> &str {
        &self.name
    }

    /// Facts about the model, by name.
    #[getter]
    fn _facts<'py>(&self, py: Python<'py>) -> PyResult<Bound<'py, PyDict>> {
        let loaded = self.loaded(py)?;
        let (engine, facts) = (&loaded.engine, PyDict::new(py));
        let (h, memory) = (engine.hparams(), engine.memory());
        facts.set_item("architecture", h.arch.name())?;
        facts.set_item("n_layer", h.n_layer())?;
        facts.set_item("n_embd", h.n_embd())?;
        facts.set_item("n_vocab", h.n_vocab())?;
        facts.set_item("n_ctx", engine.n_ctx())?;
        facts.set_item("n_ctx_train", h.n_ctx_train())?;
        facts.set_item("file_bytes", memory.file)?;
        facts.set_item("weight_bytes", memory.packed)?;
        facts.set_item("kv_bytes", memory.kv)?;
        facts.set_item("device", engine.describe())?;
        facts.set_item("eos", engine.tokenizer().eos())?;
        facts.set_item("bos", engine.tokenizer().bos())?;
        facts.set_item("eog", PyList::new(py, engine.tokenizer().eog_ids())?)?;
        facts.set_item("warnings", PyList::new(py, engine.warnings())?)?;
        Ok(facts)
    }

    /// Frees the model. Calls and streams that run go on until they end.
    fn close(&self, py: Python<'_>) {
        if self.pid == process::id() {
            let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
            let loaded = loaded.take();
            py.detach(|| drop(loaded));
        }
    }
}

impl Drop for Model {
    fn drop(&mut self) {
        let loaded = self
            .loaded
            .get_mut()
            .unwrap_or_else(PoisonError::into_inner);
        // a child process has no thread that could be waited for
        if self.pid != process::id() {
            std::mem::forget(loaded.take());
        }
    }
}

/// Returns the names of a model's tensors.
fn tap_names(engine: &Engine) -> Vec<String> {
    let taps = engine.model().graph.taps();
    let named = taps.filter(|(tap, _)| tap.is_named());
    named.map(|(tap, _)| numbered(tap, tap.nth)).collect()
}

/// Returns the names that any of these patterns matches; refuses a pattern that matches none.
fn matching_taps(
    py: Python<'_>,
    engine: &Engine,
    patterns: Option<Vec<String>>,
) -> PyResult<Vec<String>> {
    let all = tap_names(engine);
    let Some(patterns) = patterns else {
        return Ok(all);
    };
    let mut selected = Vec::new();
    for pattern in patterns {
        let matching: Vec<String> = py
            .import("fnmatch")?
            .call_method1("filter", (&all, &pattern))?
            .extract()?;
        if matching.is_empty() {
            let some: Vec<&str> = all.iter().take(12).map(String::as_str).collect();
            let error = BadArgument {
                name: "names",
                expected: format!("names of tensors, such as {}", some.join(", ")),
                got: pattern,
            };
            return Err(Failure::from(error).into_py(py));
        }
        selected.extend(matching);
    }
    Ok(selected)
}
