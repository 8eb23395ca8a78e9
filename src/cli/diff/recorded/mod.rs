//! Compares a model with recordings of other programs.

mod report;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_analysis::diff::{
    ImageInput, LlamaCpp, Measured, Options, Reference, Tensors, Tolerance,
};
use octavo_engine::{Engine, ModelSource, default_threads};
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use octavo_vision::{Encoder, Tower};
use report::{to_html, to_json, to_text};

use super::{DiffArgs, images};
use crate::failure::{Exit, Failure};
use crate::load::{self, in_trained_context, shown};
use crate::output::{Inputs, Kind, Output};
use crate::terminal;

/// A reference and its comparison.
struct Compared {
    path: PathBuf,
    reference: Reference,
    measured: Measured,
}

/// Description of the model and its device.
struct Computed<'a> {
    file: &'a str,
    device: String,
    /// Tokenizer of a text model; image encoders have none.
    tokenizer: Option<&'a Tokenizer>,
}

/// Compares the model with each reference.
pub(super) fn diff(
    args: &DiffArgs,
    page: Option<&Output<'_>>,
    inputs: &Inputs,
) -> Result<Exit, Failure> {
    let source = args.keys.changed(load::source_at(args.a.as_deref())?);
    let model = Arc::new(source.open(args.compute.mmap())?);
    if Tower::is_in(&model) {
        return tower(args, &model, page);
    }
    if !args.image.is_empty() {
        return Err(Failure::Usage(format!(
            "{}: reads text: expected a vision tower for --image with --reference",
            model.name()
        )));
    }
    drop(model);
    let name = if args.json {
        "report.json"
    } else {
        "report.txt"
    };
    let report = args.keep().join(name);
    let report = args
        .llama_cpp
        .is_some()
        .then(|| args.output(&report, Kind::Kept, inputs));
    if report.is_some() {
        args.check_kept(Some(name), inputs)?;
    }
    let text = text(args)?;
    let mut paths = args.reference.clone();
    if let Some(folder) = &args.llama_cpp {
        let text = text
            .as_deref()
            .ok_or_else(|| Failure::Usage(super::NO_TEXT.to_owned()))?;
        paths.push(run_llama_cpp(args, folder, &source, text)?);
    }
    let read = |path: &PathBuf| Reference::read(path, args.reference_values());
    let references = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    if args.same_routing {
        check_routing_is_recorded(&paths, &references)?;
    }
    if text.is_none() {
        check_text_is_recorded(&paths, &references)?;
    }
    terminal::warn(references.iter().filter_map(|r| r.warning.as_ref()));
    let engine = load_for(args, &source, &references, text.as_deref())?;
    for (path, reference) in paths.iter().zip(&references) {
        check_tokens(args, &engine, path, reference, text.as_deref())?;
    }
    let tolerance = tolerance(args, &engine);
    let all = paths
        .into_iter()
        .zip(references)
        .map(|(path, reference)| {
            compared(args, path, reference, &engine, text.as_deref(), &tolerance)
        })
        .collect::<Result<Vec<_>, _>>()?;
    let computed = Computed {
        file: engine.gguf().name(),
        device: engine.describe().to_owned(),
        tokenizer: Some(engine.tokenizer()),
    };
    let report = report.as_ref();
    finish(args, &computed, &tolerance, &all, [report, page])
}

/// Prints the report, keeps it in a file, and writes the page.
fn finish(
    args: &DiffArgs,
    computed: &Computed<'_>,
    tolerance: &Tolerance,
    all: &[Compared],
    [report, page]: [Option<&Output<'_>>; 2],
) -> Result<Exit, Failure> {
    let out = match args.json {
        true => to_json(computed, tolerance, all)?,
        false => to_text(args, computed, tolerance, all),
    };
    if let Some(report) = report {
        report.write(out.as_bytes())?;
    }
    if let Some(page) = page {
        page.write(to_html(computed, tolerance, all)?.as_bytes())?;
    }
    terminal::print(out.as_bytes())?;
    Ok(if all.iter().all(|c| tolerance.holds(&c.measured)) {
        Exit::Done
    } else {
        Exit::Outside
    })
}

/// Compares an image encoder with each reference.
fn tower(args: &DiffArgs, gguf: &Arc<Gguf>, page: Option<&Output<'_>>) -> Result<Exit, Failure> {
    let image = images::only(args)?;
    let token_limits = args.image_tokens.limits()?;
    let read = |path: &PathBuf| Reference::read(path, args.reference_values());
    let references = args
        .reference
        .iter()
        .map(read)
        .collect::<Result<Vec<_>, _>>()?;
    terminal::warn(references.iter().filter_map(|r| r.warning.as_ref()));
    let options = args.compute.options()?;
    let max_image_tokens = Tower::load(gguf)?.max_image_tokens(token_limits);
    let mut encoder = shown(|sink| Encoder::load(gguf, &options, max_image_tokens, sink))?;
    let tolerance = tolerance_or(args, Tolerance::of_tower(encoder.tower()));
    let seen = ImageInput {
        image: &image,
        token_limits,
    };
    let mut all = Vec::new();
    for (path, reference) in args.reference.iter().zip(references) {
        let measured = reference.compare_image(&mut encoder, seen, &tolerance);
        all.push(checked(path.clone(), reference, measured)?);
    }
    let computed = Computed {
        file: gguf.name(),
        device: encoder.describe(),
        tokenizer: None,
    };
    finish(args, &computed, &tolerance, &all, [None, page])
}

/// Refuses references without a text of their own, if no text is given either.
fn check_text_is_recorded(paths: &[PathBuf], references: &[Reference]) -> Result<(), Failure> {
    let mut all = paths.iter().zip(references);
    let Some((path, reference)) = all.find(|(_, r)| r.wants_text()) else {
        return Ok(());
    };
    let (path, kind) = (path.display(), reference.kind);
    let message = format!(
        "{path}: the file of {kind} has no text: expected -p TEXT or -f FILE, the same as it \
         was made from"
    );
    Err(Failure::Usage(message))
}

/// Refuses references without choices of experts, if the model is to run with these.
fn check_routing_is_recorded(paths: &[PathBuf], references: &[Reference]) -> Result<(), Failure> {
    let mut all = paths.iter().zip(references);
    let Some((path, reference)) = all.find(|(_, r)| !r.has_routing()) else {
        return Ok(());
    };
    let (path, kind) = (path.display(), reference.kind);
    let message = format!(
        "{path}: the file of {kind} has no choices of experts: expected what llama-eval-callback \
         prints of a mixture for --same-routing"
    );
    Err(Failure::Usage(message))
}

fn compared(
    args: &DiffArgs,
    path: PathBuf,
    reference: Reference,
    engine: &Engine,
    text: Option<&[u8]>,
    tolerance: &Tolerance,
) -> Result<Compared, Failure> {
    let options = Options {
        same_routing: args.same_routing,
    };
    let measured = reference.compare_with(engine, text, tolerance, options);
    checked(path, reference, measured)
}

/// Refuses a comparison in which nothing was compared.
fn checked(
    path: PathBuf,
    reference: Reference,
    measured: Result<Measured, octavo_analysis::diff::Error>,
) -> Result<Compared, Failure> {
    let measured =
        measured.map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    if matches!(&measured, Measured::Tensors(Tensors { all, .. }) if all.is_empty()) {
        let message = format!("{}: no tensor that is computed here too", path.display());
        return Err(Failure::Input(message));
    }
    Ok(Compared {
        path,
        reference,
        measured,
    })
}

fn text(args: &DiffArgs) -> Result<Option<Vec<u8>>, Failure> {
    let mut text = args.text.read()?;
    if args.llama_cpp.is_some() && args.tokens.is_some() {
        return Err(Failure::Usage(
            "--tokens with --llama-cpp: expected a text (llama-results takes no ids)".to_owned(),
        ));
    }
    // as llama.cpp's own -f does, so that a file is the same text to both programs
    if let (Some(_), Some(b'\n')) = (&args.text.file, text.as_ref().and_then(|text| text.last())) {
        text = text.map(|mut text| {
            text.pop();
            text
        });
    }
    Ok(text)
}

fn run_llama_cpp(
    args: &DiffArgs,
    folder: &Path,
    source: &ModelSource,
    text: &[u8],
) -> Result<PathBuf, Failure> {
    let llama = LlamaCpp::open(folder)?;
    let tokenizer = Tokenizer::from_gguf(&source.open(args.compute.mmap())?)?;
    let n_tokens = tokenizer.encode(text, special(false))?.len();
    let ModelSource::Path(model) = source else {
        return Err(Failure::Usage(
            "--llama-cpp: expected a MODEL file (llama.cpp cannot read the built-in one)"
                .to_owned(),
        ));
    };
    let threads = args
        .compute
        .options()?
        .threads
        .unwrap_or_else(default_threads);
    terminal::note(&format!(
        "octavo: running llama-results; its output is kept in {}",
        args.keep().display()
    ));
    Ok(llama.results(model, text, (n_tokens, threads), args.keep())?)
}

/// Returns the options of llama.cpp's tools: they add special tokens, and most do not parse them in
/// the text.
fn special(parse_special: bool) -> EncodeOptions {
    EncodeOptions {
        add_special: true,
        parse_special,
    }
}

fn load_for(
    args: &DiffArgs,
    source: &ModelSource,
    references: &[Reference],
    text: Option<&[u8]>,
) -> Result<Engine, Failure> {
    let mut options = args.compute.options()?;
    options.kv_type = args.compute.kv_type_or_f32();
    args.adapters.apply(&mut options)?;
    let text_tokens = match text {
        Some(text) if references.iter().any(Reference::wants_text) => {
            let tokenizer = Tokenizer::from_gguf(&source.open(args.compute.mmap())?)?;
            Some(tokenizer.encode(text, special(false))?.len())
        }
        _ => None,
    };
    let longest = references
        .iter()
        .map(|r| r.n_ctx(text_tokens))
        .max()
        .unwrap_or(1);
    // llama.cpp computes positions beyond the trained context, too
    in_trained_context(source, &mut options, longest)?;
    let engine = shown(|sink| Engine::load(source, &options, sink))?;
    terminal::warn(engine.warnings());
    Ok(engine)
}

/// Checks the options' text or ids against the reference's ids, which are what is computed.
fn check_tokens(
    args: &DiffArgs,
    engine: &Engine,
    path: &Path,
    reference: &Reference,
    text: Option<&[u8]>,
) -> Result<(), Failure> {
    let Some(theirs) = &reference.tokens else {
        return Ok(());
    };
    let candidates = match (&args.tokens, text) {
        (Some(ids), _) => vec![ids.clone()],
        (None, Some(text)) => {
            let options = [special(false), special(true), EncodeOptions::PIECE];
            options
                .iter()
                .map(|o| engine.tokenizer().encode(text, *o))
                .collect::<Result<_, _>>()?
        }
        (None, None) => return Ok(()),
    };
    // a prompt cache has all tokens but the last
    if candidates
        .iter()
        .any(|ours| ours == theirs || ours.split_last().is_some_and(|(_, rest)| rest == theirs))
    {
        return Ok(());
    }
    let ours = &candidates[0];
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let name = |ids: &[u32]| {
        ids.get(at)
            .map_or("the end".to_owned(), |id| format!("id {id}"))
    };
    Err(Failure::Input(format!(
        "{}: other tokens than the text: expected {} at position {at}, got {} ({} and {} tokens)",
        path.display(),
        name(ours),
        name(theirs),
        ours.len(),
        theirs.len()
    )))
}

fn tolerance(args: &DiffArgs, engine: &Engine) -> Tolerance {
    tolerance_or(args, Tolerance::of(engine.model()))
}

/// Returns the tolerance of the options, or the default.
fn tolerance_or(args: &DiffArgs, default: Tolerance) -> Tolerance {
    match args.tol_nmse {
        Some(nmse) => Tolerance {
            nmse,
            kl: args.tol_kl,
            reason: "--tol-nmse".to_owned(),
        },
        None => Tolerance {
            kl: args.tol_kl,
            ..default
        },
    }
}
