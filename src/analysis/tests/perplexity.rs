//! Perplexity and divergence: against figures that llama-perplexity printed, and against
//! written-out definitions.

mod continuations;
mod definitions;
mod refused;
mod shards;

use std::io::Cursor;
use std::path::{Path, PathBuf};

use gguf_rs_lite::{Gguf, OpenOptions, Writer as GgufWriter};
use octavo_analysis::eval::base::{self, Norm, Reader, Shape, Writer};
use octavo_analysis::eval::{
    Divergence, Error, Observer, Options, Perplexity, Text, check_text, divergence, encode,
    perplexity, perplexity_with_base, rounded_divergence_beside,
};
use octavo_engine::backend::Phase;
use octavo_engine::{Engine, EngineOptions, LogitsFor, ModelSource};
use octavo_kernels::{Isa, IsaChoice, KvType, PromptBits};
use octavo_reference::metrics::log_sum_exp;

const TEXT: &[u8] =
    b"The capital of France is Paris. 1+1=2, 2+2=4, and the cat sat on the mat. Once upon a time \
      there was a small model that knew a few sentences by heart and had never heard of any other.";

fn engine(source: &ModelSource, ctx: usize) -> Engine {
    // recorded figures are reproduced closely only by vector kernels: a matrix unit rounds prompt
    // activations to bf16
    let isa = Isa::available()
        .into_iter()
        .rfind(|isa| {
            let rounding = isa.prompt_rounding_in(PromptBits::Sixteen, KvType::F32.both());
            rounding.attention == 0.0
        })
        .expect("scalar is always there");
    let options = EngineOptions {
        isa: IsaChoice::Only(isa),
        ctx: Some(ctx),
        kv_type: KvType::F32.both(),
        prompt_bits: PromptBits::Sixteen,
        threads: Some(2),
        ..EngineOptions::default()
    };
    Engine::load(source, &options, &mut |_| {}).expect("loads")
}

/// Writes a model whose vocabulary asks for a BOS.
fn with_bos(folder: &Path) -> PathBuf {
    let demo = Gguf::from_bytes(octavo_engine::demo_model(), "demo", &OpenOptions::default())
        .expect("sound");
    let path = folder.join("bos.gguf");
    let mut writer = GgufWriter::new();
    for (key, value) in demo.keys() {
        writer.set(key, value);
    }
    writer.set("tokenizer.ggml.add_bos_token", true);
    writer.set("tokenizer.ggml.bos_token_id", 0u32);
    for t in demo.tensors() {
        writer.tensor(&t.name, &t.dims, t.ty, demo.data(t));
    }
    writer.write_file(&path).expect("written");
    path
}

fn text(engine: &Engine, n_ctx: usize, chunks: Option<usize>) -> Text {
    let tokens = encode(engine.tokenizer(), TEXT).expect("encodes");
    Text::new(tokens, engine.tokenizer().n_vocab(), n_ctx, chunks).expect("long enough")
}

/// Returns the logits of the scored positions and the tokens that follow them, computed in one
/// pass.
fn scored(engine: &Engine, text: &Text) -> Vec<(Vec<f32>, usize)> {
    let n_ctx = text.shape().n_ctx;
    let mut all = Vec::new();
    for tokens in text.tokens().chunks(n_ctx) {
        let mut read = tokens.to_vec();
        if engine.tokenizer().add_bos() {
            read[0] = engine.tokenizer().bos().expect("there is one");
        }
        let logits = engine
            .session()
            .eval(&read, Phase::Prefill, LogitsFor::All)
            .expect("evaluates");
        all.extend(
            (n_ctx / 2..n_ctx - 1).map(|at| (logits.row(at).to_vec(), tokens[at + 1] as usize)),
        );
    }
    all
}

fn close(what: &str, got: f64, expected: f64, relative: f64) {
    assert!(
        (got - expected).abs() <= relative * expected.abs().max(1e-3),
        "{what}: {got}, expected {expected}"
    );
}

fn mean_and_error(values: &[f64]) -> (f64, f64) {
    let n = values.len() as f64;
    let mean = values.iter().sum::<f64>() / n;
    let variance = values.iter().map(|x| (x - mean) * (x - mean)).sum::<f64>() / n;
    (mean, (variance / (n - 1.0)).sqrt())
}

#[test]
fn perplexity_is_what_the_definition_says() {
    let folder = tempfile::tempdir().expect("a folder");
    for source in [
        ModelSource::Demo,
        ModelSource::Path(with_bos(folder.path())),
    ] {
        for n_ctx in [3, 8, 15, 16] {
            let engine = engine(&source, 16);
            let text = text(&engine, n_ctx, None);
            let nll: Vec<f64> = scored(&engine, &text)
                .iter()
                .map(|(row, target)| log_sum_exp(row) - f64::from(row[*target]))
                .collect();
            let (mean, error) = mean_and_error(&nll);
            let got = perplexity(&engine, &text, &Options::default(), &mut ()).expect("scores");
            let rows = (n_ctx - 1 - n_ctx / 2) * text.shape().n_chunks;
            assert_eq!(
                (got.scored(), got.chunks(), nll.len()),
                (rows, text.shape().n_chunks, rows)
            );
            close("mean", got.mean_nll().value, mean, 1e-6);
            close("its uncertainty", got.mean_nll().uncertainty, error, 1e-6);
            close("PPL", got.ppl().value, mean.exp(), 1e-5);
            close(
                "its uncertainty",
                got.ppl().uncertainty,
                mean.exp() * error,
                1e-5,
            );
        }
    }
}

#[test]
fn a_bos_is_read_in_place_of_the_first_token_but_not_stored() {
    let folder = tempfile::tempdir().expect("a folder");
    let engine = engine(&ModelSource::Path(with_bos(folder.path())), 16);
    assert!(engine.tokenizer().add_bos());
    let text = text(&engine, 16, Some(2));
    assert_eq!(text.tokens()[0], 0, "the tokenizer added one");
    assert_ne!(text.tokens()[16], 0);
    let mut base = Reader::new(
        Cursor::new(in_memory(&engine, &text, &Options::default())),
        "base",
    )
    .expect("sound");
    assert_eq!(base.tokens(1).expect("tokens"), text.tokens()[16..]);
}

/// Returns each position's logits, moved away from the model's by a fixed pattern and flattened.
fn foreign_rows(engine: &Engine, text: &Text) -> Vec<Vec<f32>> {
    let moved = |row: &[f32], at: usize| -> Vec<f32> {
        row.iter()
            .enumerate()
            .map(|(id, x)| 0.8 * x + ((id * 7 + at * 13) % 11) as f32 * 0.2)
            .collect()
    };
    scored(engine, text)
        .iter()
        .enumerate()
        .map(|(at, (row, _))| moved(row, at))
        .collect()
}

fn base_of(text: &Text, rows: &[Vec<f32>]) -> Vec<u8> {
    let mut writer =
        Writer::new(Vec::new(), "base", text.shape(), text.tokens()).expect("a header");
    let mut bytes = vec![0; text.shape().row_bytes()];
    for row in rows {
        base::encode(row, &Norm::of(row), &mut bytes);
        writer.rows(&bytes).expect("a row");
    }
    writer.finish().expect("complete")
}

/// Decodes the log-probabilities in a base's bytes.
fn stored(bytes: &[u8], shape: Shape) -> Vec<Vec<f64>> {
    let rows = &bytes[20 + 4 * shape.n_ctx * shape.n_chunks..];
    let word = |b: &[u8]| f64::from(f32::from_le_bytes([b[0], b[1], b[2], b[3]]));
    let row = |b: &[u8]| -> Vec<f64> {
        let codes = b[8..]
            .chunks(2)
            .take(shape.n_vocab)
            .map(|q| f64::from(u16::from_le_bytes([q[0], q[1]])));
        codes.map(|q| word(b) * q + word(&b[4..])).collect()
    };
    rows.chunks(8 + 2 * shape.n_vocab.next_multiple_of(2))
        .map(row)
        .collect()
}

fn in_memory(engine: &Engine, text: &Text, options: &Options) -> Vec<u8> {
    let mut writer =
        Writer::new(Vec::new(), "base", text.shape(), text.tokens()).expect("a header");
    perplexity_with_base(engine, text, options, &mut (), &mut writer).expect("scores");
    writer.finish().expect("complete")
}

#[test]
fn nothing_depends_on_threads_and_batches() {
    let engine = engine(&ModelSource::Demo, 32);
    let text = text(&engine, 32, None);
    let plain = Options {
        threads: 1,
        batch: 512,
    };
    let expected = perplexity(&engine, &text, &plain, &mut ())
        .expect("scores")
        .ppl();
    let bytes = in_memory(&engine, &text, &plain);
    let against = |options: &Options| {
        let base = base_of(&text, &foreign_rows(&engine, &text));
        let mut reader = Reader::new(Cursor::new(base), "base").expect("sound");
        divergence(&engine, &mut reader, None, options, &mut ()).expect("scores")
    };
    let kld = against(&plain).kld();
    for (threads, batch) in [(2, 512), (3, 7), (16, 1)] {
        let options = Options { threads, batch };
        assert_eq!(
            perplexity(&engine, &text, &options, &mut ())
                .expect("scores")
                .ppl(),
            expected,
            "{options:?}"
        );
        assert!(in_memory(&engine, &text, &options) == bytes, "{options:?}");
        assert_eq!(against(&options).kld(), kld, "{options:?}");
    }
}

#[test]
fn a_model_does_not_differ_from_its_own_base() {
    let engine = engine(&ModelSource::Demo, 32);
    let text = text(&engine, 32, None);
    let bytes = in_memory(&engine, &text, &Options::default());
    let mut reader = Reader::new(Cursor::new(bytes), "base").expect("sound");
    let all = divergence(&engine, &mut reader, None, &Options::default(), &mut ()).expect("scores");
    assert!(
        all.kld().value.abs() < 2e-4 && all.dps().maximum() < 2e-4,
        "{:?}",
        all.kld()
    );
    assert_eq!(all.same_top().value, 1.0);
    let ppl = perplexity(&engine, &text, &Options::default(), &mut ())
        .expect("scores")
        .ppl();
    close("PPL", all.ppl().value, ppl.value, 1e-12);
    let one =
        divergence(&engine, &mut reader, Some(1), &Options::default(), &mut ()).expect("scores");
    assert_eq!((one.chunks(), one.scored()), (1, 15));
    let many = divergence(
        &engine,
        &mut reader,
        Some(1000),
        &Options::default(),
        &mut (),
    )
    .expect("scores");
    assert_eq!(many.chunks(), text.shape().n_chunks);
}

/// Observer that cancels after some chunks.
struct After(usize);

impl<S> Observer<S> for After {
    fn chunk(&mut self, _: &S, _: usize) {
        self.0 -= 1;
    }

    fn cancelled(&self) -> bool {
        self.0 == 0
    }
}

#[test]
fn work_can_be_cancelled_and_leaves_no_file() {
    let engine = engine(&ModelSource::Demo, 16);
    let text = text(&engine, 16, None);
    let options = Options::default();
    for chunks in 0..2 {
        let error =
            perplexity(&engine, &text, &options, &mut After(chunks)).expect_err("cancelled");
        assert!(matches!(error, Error::Cancelled));
    }
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("base.kld");
    let result: Result<Perplexity, Error> =
        base::write_file(&path, text.shape(), text.tokens(), |writer| {
            perplexity_with_base(&engine, &text, &options, &mut After(1), writer)
        });
    assert!(matches!(result, Err(Error::Cancelled)));
    assert_eq!(std::fs::read_dir(folder.path()).expect("lists").count(), 0);
    let mut reader =
        Reader::new(Cursor::new(in_memory(&engine, &text, &options)), "base").expect("sound");
    let result: Result<Divergence, Error> =
        divergence(&engine, &mut reader, None, &options, &mut After(1));
    assert!(matches!(result, Err(Error::Cancelled)));
}

/// Output of `llama-perplexity -c 64 -fa off -ctk f32 -ctv f32` for the demo model, dequantized to
/// F32 by `llama-quantize`, over LICENSE-APACHE: some of its 119 chunks, and the final estimate.
const LLAMA_CPP: [(usize, f64); 5] = [
    (1, 29429.1903),
    (2, 19980.2043),
    (3, 95607.3382),
    (60, 1489610.3402),
    (119, 1607637.3512),
];

/// Records the perplexity after each chunk.
#[derive(Default)]
struct Running(Vec<f64>);

impl Observer<Perplexity> for Running {
    fn chunk(&mut self, so_far: &Perplexity, total: usize) {
        self.0.push(so_far.ppl().value);
        assert_eq!((so_far.chunks(), total), (self.0.len(), 119));
    }
}

#[test]
fn the_demo_model_has_the_perplexity_that_llama_perplexity_prints() {
    let licence = std::fs::read(octavo_fixtures::workspace_root().join("LICENSE-APACHE"))
        .expect("the licence");
    let engine = engine(&ModelSource::Demo, 64);
    let tokens = encode(
        engine.tokenizer(),
        licence.strip_suffix(b"\n").unwrap_or(&licence),
    )
    .expect("encodes");
    let text = Text::new(tokens, engine.tokenizer().n_vocab(), 64, None).expect("long enough");
    let mut running = Running::default();
    let ppl = perplexity(&engine, &text, &Options::default(), &mut running)
        .expect("scores")
        .ppl();
    for (chunk, expected) in LLAMA_CPP {
        // ln 10, with 15-bit rounding error
        close(
            &format!("chunk {chunk}"),
            running.0[chunk - 1],
            expected,
            2e-4,
        );
    }
    close("uncertainty", ppl.uncertainty, 60039.70595, 2e-4);
}
