//! A model against what another program recorded.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use octavo_llm::diff::{LlamaCpp, LogitComparison, Reference, Tolerance};
use octavo_llm::engine::{Engine, ModelSource, default_threads};
use octavo_llm::report::{ChartError, Page};
use octavo_llm::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

use super::{DiffArgs, html, print};
use crate::cli::failure::{Exit, Failure};
use crate::cli::load;
use crate::cli::terminal::{self, Progress};

const COLUMNS: print::Columns = print::Columns { ours: "ours", theirs: "theirs", theirs_first: false };

/// One reference, compared.
struct Compared {
    path: PathBuf,
    reference: Reference,
    logits: LogitComparison,
}

/// Compares the model with each reference.
pub(super) fn diff(args: &DiffArgs) -> Result<Exit, Failure> {
    let source = load::source_at(args.a.as_deref());
    let text = args.text.read()?;
    if args.llama_cpp.is_some() && args.tokens.is_some() {
        return Err(Failure::Usage(
            "--tokens with --llama-cpp: expected a text (llama-results takes no ids)".to_owned(),
        ));
    }
    let mut paths = args.reference.clone();
    if let Some(folder) = &args.llama_cpp {
        let text = text.as_deref().ok_or_else(|| Failure::Usage(super::NO_TEXT.to_owned()))?;
        paths.push(run_llama_cpp(args, folder, &source, text)?);
    }
    let read = |path: &PathBuf| Reference::read(path, args.against.into());
    let references = paths.iter().map(read).collect::<Result<Vec<_>, _>>()?;
    let engine = load_for(args, &source, &references)?;
    for (path, reference) in paths.iter().zip(&references) {
        check_tokens(args, &engine, (path, reference), text.as_deref())?;
    }
    let tolerance = tolerance(args, &engine);
    let mut all = Vec::new();
    for (path, reference) in paths.into_iter().zip(references) {
        let logits = reference.compare(&engine)?;
        all.push(Compared { path, reference, logits });
    }
    let out = match args.json {
        true => to_json(&engine, &tolerance, &all)?,
        false => to_text(args, &engine, &tolerance, &all),
    };
    if args.llama_cpp.is_some() {
        let path = args.keep.join(if args.json { "report.json" } else { "report.txt" });
        super::write(&path, &out)?;
    }
    if let Some(path) = &args.html {
        super::write(path, &to_html(&engine, &tolerance, &all)?)?;
    }
    terminal::print(out.as_bytes())?;
    Ok(if all.iter().all(|c| tolerance.allows(&c.logits)) { Exit::Done } else { Exit::Outside })
}

fn run_llama_cpp(args: &DiffArgs, folder: &Path, source: &ModelSource, text: &[u8]) -> Result<PathBuf, Failure> {
    let llama = LlamaCpp::open(folder)?;
    let tokenizer = Tokenizer::from_gguf(&source.open(args.compute.mmap())?)?;
    let n_tokens = tokenizer.encode(text, special(false))?.len();
    let ModelSource::Path(model) = source else {
        return Err(Failure::Usage(
            "--llama-cpp: expected a MODEL file (llama.cpp cannot read the built-in one)".to_owned(),
        ));
    };
    let threads = args.compute.options()?.threads.unwrap_or_else(default_threads);
    terminal::note(&format!("octavo: running llama-results; its output is kept in {}", args.keep.display()));
    Ok(llama.results(model, text, (n_tokens, threads), &args.keep)?)
}

/// llama.cpp's tools add special tokens, and most of them do not look for any in the text.
fn special(parse_special: bool) -> EncodeOptions {
    EncodeOptions { add_special: true, parse_special }
}

fn load_for(args: &DiffArgs, source: &ModelSource, references: &[Reference]) -> Result<Engine, Failure> {
    let mut options = args.compute.options()?;
    options.kv_type = args.compute.kv_type_or_f32()?;
    let longest = references.iter().map(|r| r.tokens.len()).max().unwrap_or(1);
    // positions beyond what the model was trained with were computed there too
    options.ctx = Some(longest.max(1));
    let bar = Progress::bytes("loading");
    let engine = Engine::load(source, &options, &mut |done, total| bar.at(done, total));
    bar.clear();
    let engine = engine?;
    terminal::warn(engine.warnings());
    Ok(engine)
}

/// The reference's ids are what is computed; a text or ids given with it must be the same.
fn check_tokens(
    args: &DiffArgs,
    engine: &Engine,
    (path, reference): (&Path, &Reference),
    text: Option<&[u8]>,
) -> Result<(), Failure> {
    let given = match (&args.tokens, text) {
        (Some(ids), _) => vec![ids.clone()],
        (None, Some(text)) => {
            let options = [special(false), special(true), EncodeOptions { add_special: false, parse_special: false }];
            options.iter().map(|o| engine.tokenizer().encode(text, *o)).collect::<Result<_, _>>()?
        }
        (None, None) => return Ok(()),
    };
    if given.contains(&reference.tokens) {
        return Ok(());
    }
    let (ours, theirs) = (&given[0], &reference.tokens);
    let at = ours.iter().zip(theirs).take_while(|(a, b)| a == b).count();
    let name = |ids: &[u32]| ids.get(at).map_or("the end".to_owned(), |id| format!("id {id}"));
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
        Some(nmse) => Tolerance { nmse, kl: args.tol_kl, reason: "--tol-nmse".to_owned() },
        None => Tolerance { kl: args.tol_kl, ..default },
    }
}

fn to_json(engine: &Engine, tolerance: &Tolerance, all: &[Compared]) -> Result<String, serde_json::Error> {
    let word = |within| if within { "within" } else { "outside" };
    let one = |c: &Compared| -> Result<Value, serde_json::Error> {
        let within = tolerance.allows(&c.logits);
        Ok(json!({
            "file": c.path.to_string_lossy(),
            "kind": c.reference.kind,
            "tokens": c.reference.tokens,
            "verdict": word(within),
            "first_divergence": if within { Value::Null } else { first_outside(tolerance, &c.logits) },
            "logits": serde_json::to_value(&c.logits)?,
        }))
    };
    let object = json!({
        "verdict": word(all.iter().all(|c| tolerance.allows(&c.logits))),
        "model": engine.gguf().name(),
        "device": engine.describe(),
        "tolerance": serde_json::to_value(tolerance)?,
        "references": all.iter().map(one).collect::<Result<Vec<_>, _>>()?,
    });
    Ok(format!("{object}\n"))
}

/// The first position whose own NMSE is beyond what is allowed for all, with the token that differs most of those shown.
fn first_outside(tolerance: &Tolerance, logits: &LogitComparison) -> Value {
    let beyond = |p: &&octavo_llm::diff::PositionTop| p.nmse > tolerance.nmse || p.nmse.is_nan();
    let Some(position) = logits.by_position.iter().find(beyond) else { return Value::Null };
    let pair = position.top.iter().max_by(|a, b| a.delta.abs().total_cmp(&b.delta.abs()));
    json!({
        "name": "result_output",
        "layer": null,
        "position": position.position,
        "channel": pair.map(|p| p.id),
        "a": pair.map(|p| p.ours),
        "b": pair.map(|p| p.theirs),
    })
}

fn to_text(args: &DiffArgs, engine: &Engine, tolerance: &Tolerance, all: &[Compared]) -> String {
    let mut out = format!("{} on {}\n", engine.gguf().name(), engine.describe());
    for c in all {
        let n = c.reference.tokens.len();
        let _ = writeln!(out, "\n{} ({}, {n} tokens)", c.path.display(), c.reference.kind);
        print::logits(&mut out, &c.logits, engine.tokenizer(), &COLUMNS, args.all);
        let _ = writeln!(out, "{}", verdict(tolerance, &c.logits));
    }
    out
}

fn verdict(tolerance: &Tolerance, logits: &LogitComparison) -> String {
    let word = if tolerance.allows(logits) { "within" } else { "outside" };
    let (nmse, allowed, reason) = (logits.nmse, tolerance.nmse, &tolerance.reason);
    let kl = |kl: f64| format!("; mean KL {:.3e}, allowed {kl:e}", logits.mean_kl);
    let kl = tolerance.kl.map_or(String::new(), kl);
    format!("verdict: {word} tolerance: NMSE {nmse:.3e}, allowed {allowed:e} ({reason}){kl}")
}

fn to_html(engine: &Engine, tolerance: &Tolerance, all: &[Compared]) -> Result<String, ChartError> {
    let mut page = Page::new("octavo diff");
    page.paragraph(&format!("{} on {}", engine.gguf().name(), engine.describe()), None);
    for c in all {
        page.heading(&format!("{} ({})", c.path.display(), c.reference.kind));
        page.paragraph(&verdict(tolerance, &c.logits), Some(tolerance.allows(&c.logits)));
        page.chart(&html::by_position(&c.logits)?);
        html::logits(&mut page, &c.logits, engine.tokenizer(), &COLUMNS);
    }
    Ok(page.finish())
}
