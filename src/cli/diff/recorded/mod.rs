//! A model against what other programs recorded.

mod report;

use std::path::{Path, PathBuf};

use octavo_engine::{Engine, ModelSource, default_threads};
use octavo_lab::diff::{LlamaCpp, Measured, Options, Reference, Tensors, Tolerance};
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use report::{to_html, to_json, to_text};

use super::DiffArgs;
use crate::cli::failure::{Exit, Failure};
use crate::cli::load::{self, in_trained_context, shown};
use crate::cli::output::{Inputs, Kind, Output};
use crate::cli::terminal;

/// One reference, compared.
struct Compared {
    path: PathBuf,
    reference: Reference,
    measured: Measured,
}

/// Compares the model with each reference.
pub(super) fn diff(
    args: &DiffArgs,
    page: Option<&Output<'_>>,
    inputs: &Inputs,
) -> Result<Exit, Failure> {
    let name = if args.json {
        "report.json"
    } else {
        "report.txt"
    };
    let report = args.keep.join(name);
    let report = args
        .llama_cpp
        .is_some()
        .then(|| args.output(&report, Kind::Kept, inputs));
    if report.is_some() {
        args.check_kept(Some(name), inputs)?;
    }
    let source = load::source_at(args.a.as_deref());
    let text = text(args)?;
    let mut paths = args.reference.clone();
    if let Some(folder) = &args.llama_cpp {
        let text = text
            .as_deref()
            .ok_or_else(|| Failure::Usage(super::NO_TEXT.to_owned()))?;
        paths.push(run_llama_cpp(args, folder, &source, text)?);
    }
    let read = |path: &PathBuf| Reference::read(path, args.against.into());
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
    let out = match args.json {
        true => to_json(&engine, &tolerance, &all)?,
        false => to_text(args, &engine, &tolerance, &all),
    };
    if let Some(report) = &report {
        report.write(out.as_bytes())?;
    }
    if let Some(page) = page {
        page.write(to_html(&engine, &tolerance, &all)?.as_bytes())?;
    }
    terminal::print(out.as_bytes())?;
    Ok(if all.iter().all(|c| tolerance.holds(&c.measured)) {
        Exit::Done
    } else {
        Exit::Outside
    })
}

/// Refuses references without a text of their own, for when none is given either.
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

/// Refuses references without choices of experts, for when the model is to go on with these.
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
    let measured = reference
        .compare_with(engine, text, tolerance, options)
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    if matches!(&measured, Measured::Tensors(Tensors { all, .. }) if all.is_empty()) {
        let message = format!(
            "{}: no tensor that this model and text have too",
            path.display()
        );
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
    // as llama.cpp's own -f, so that one file means the same text to both
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
        args.keep.display()
    ));
    Ok(llama.results(model, text, (n_tokens, threads), &args.keep)?)
}

/// llama.cpp's tools add special tokens, and most of them do not look for any in the text.
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
    options.kv_type = args.compute.kv_type_or_f32()?;
    let given = match text {
        Some(text) if references.iter().any(Reference::wants_text) => {
            let tokenizer = Tokenizer::from_gguf(&source.open(args.compute.mmap())?)?;
            Some(tokenizer.encode(text, special(false))?.len())
        }
        _ => None,
    };
    let longest = references.iter().map(|r| r.n_ctx(given)).max().unwrap_or(1);
    // positions beyond what the model was trained with were computed there too
    in_trained_context(source, &mut options, longest)?;
    let engine = shown(|sink| Engine::load(source, &options, sink))?;
    terminal::warn(engine.warnings());
    Ok(engine)
}

/// The reference's ids are what is computed; a text or ids given with it must be the same.
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
    let given = match (&args.tokens, text) {
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
    // a prompt cache holds all but the last token
    if given
        .iter()
        .any(|ours| ours == theirs || ours.split_last().is_some_and(|(_, rest)| rest == theirs))
    {
        return Ok(());
    }
    let ours = &given[0];
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
    let default = Tolerance::of(engine.model());
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
