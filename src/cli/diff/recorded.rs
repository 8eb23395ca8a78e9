//! A model against what other programs recorded.

use std::fmt::Write;
use std::path::{Path, PathBuf};

use octavo_engine::{Engine, ModelSource, default_threads};
use octavo_lab::diff::{
    LlamaCpp, LogitComparison, Measured, Reference, TensorComparison, Tolerance, mean_kl,
};
use octavo_lab::report::{ChartError, Page};
use octavo_model::taps::{L_OUT, RESULT_OUTPUT};
use octavo_text::tokenizer::{EncodeOptions, Tokenizer};
use serde_json::{Value, json};

use super::{DiffArgs, html, print};
use crate::cli::failure::{Exit, Failure};
use crate::cli::load::{self, shown};
use crate::cli::output::{Inputs, Kind, Output};
use crate::cli::run::piece;
use crate::cli::terminal;

const COLUMNS: print::Columns = print::Columns {
    ours: "ours",
    theirs: "theirs",
    theirs_first: false,
};

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
    if text.is_none() {
        check_text_is_recorded(&paths, &references)?;
    }
    let engine = load_for(args, &source, &references, text.as_deref())?;
    for (path, reference) in paths.iter().zip(&references) {
        check_tokens(args, &engine, (path, reference), text.as_deref())?;
    }
    let tolerance = tolerance(args, &engine);
    let all = paths
        .into_iter()
        .zip(references)
        .map(|(path, reference)| compared(path, reference, &engine, text.as_deref(), &tolerance))
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

fn compared(
    path: PathBuf,
    reference: Reference,
    engine: &Engine,
    text: Option<&[u8]>,
    tolerance: &Tolerance,
) -> Result<Compared, Failure> {
    let measured = reference
        .compare(engine, text, tolerance)
        .map_err(|error| Failure::Input(format!("{}: {error}", path.display())))?;
    if matches!(&measured, Measured::Tensors(tensors) if tensors.is_empty()) {
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
    options.ctx = Some(longest.max(1));
    let engine = shown(|sink| Engine::load(source, &options, sink))?;
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

fn to_json(
    engine: &Engine,
    tolerance: &Tolerance,
    all: &[Compared],
) -> Result<String, serde_json::Error> {
    let word = |within| if within { "within" } else { "outside" };
    let one = |c: &Compared| -> Result<Value, serde_json::Error> {
        let within = tolerance.holds(&c.measured);
        let mut object = json!({
            "file": c.path.to_string_lossy(),
            "kind": c.reference.kind,
            "tokens": c.reference.tokens,
            "verdict": word(within),
            "first_divergence": if within {
                Value::Null
            } else {
                first_outside(tolerance, &c.measured)
            },
        });
        // one of: logits, tensors, generated, divergence
        if let (Value::Object(object), Value::Object(measured)) =
            (&mut object, serde_json::to_value(&c.measured)?)
        {
            object.extend(measured);
        }
        Ok(object)
    };
    let object = json!({
        "verdict": word(all.iter().all(|c| tolerance.holds(&c.measured))),
        "model": engine.gguf().name(),
        "device": engine.describe(),
        "tolerance": serde_json::to_value(tolerance)?,
        "references": all.iter().map(one).collect::<Result<Vec<_>, _>>()?,
    });
    Ok(format!("{object}\n"))
}

/// The first tensor beyond the tolerance; of logits the first position whose own NMSE is, with the
/// token of those shown that differs most.
fn first_outside(tolerance: &Tolerance, measured: &Measured) -> Value {
    match measured {
        Measured::Logits(logits) => {
            let beyond =
                |p: &&octavo_lab::diff::PositionTop| p.nmse > tolerance.nmse || p.nmse.is_nan();
            let Some(position) = logits.by_position.iter().find(beyond) else {
                return Value::Null;
            };
            let pair = position
                .top
                .iter()
                .max_by(|a, b| a.delta.abs().total_cmp(&b.delta.abs()));
            json!({
                "name": RESULT_OUTPUT,
                "layer": null,
                "position": position.position,
                "channel": pair.map(|p| p.id),
                "a": pair.map(|p| p.ours),
                "b": pair.map(|p| p.theirs),
            })
        }
        Measured::Tensors(all) => json!(all.iter().find(|t| t.outside)),
        Measured::Generated(_) | Measured::Divergence { .. } => Value::Null,
    }
}

fn to_text(args: &DiffArgs, engine: &Engine, tolerance: &Tolerance, all: &[Compared]) -> String {
    let mut out = format!("{} on {}\n", engine.gguf().name(), engine.describe());
    for c in all {
        let _ = write!(out, "\n{} ({}", c.path.display(), c.reference.kind);
        let _ = match &c.reference.tokens {
            Some(tokens) => writeln!(out, ", {} tokens)", tokens.len()),
            None => writeln!(out, ")"),
        };
        match &c.measured {
            Measured::Logits(logits) => {
                print::logits(&mut out, logits, engine.tokenizer(), &COLUMNS, args.all)
            }
            Measured::Tensors(tensors) => print_tensors(&mut out, tensors, args.all),
            Measured::Generated(tokens) => {
                let _ = writeln!(
                    out,
                    "  {:>8} {:<20} {:>12} {:>12} {:>11}",
                    "id", "piece", "ours", "theirs", "Δ"
                );
                for t in tokens {
                    let piece = format!("{:?}", piece(engine.tokenizer(), t.id));
                    let mark = if t.our_top == t.id {
                        ""
                    } else {
                        "  (ours is another)"
                    };
                    let (ours, theirs, delta) = (t.ours, t.theirs, t.ours - t.theirs);
                    let _ = writeln!(
                        out,
                        "  {:>8} {piece:<20} {ours:>12.6} {theirs:>12.6} {delta:>11.2e}{mark}",
                        t.id
                    );
                }
            }
            Measured::Divergence {
                max_kl,
                same_top,
                scored,
                ..
            } => {
                let same = 100.0 * same_top;
                let _ = writeln!(
                    out,
                    "{scored} tokens scored: max KL {max_kl:.3e}, same top {same:.2} %"
                );
            }
        }
        let _ = writeln!(out, "{}", verdict(tolerance, &c.measured));
    }
    out
}

/// Without `all`: the ends of layers, the results, and what is outside.
fn print_tensors(out: &mut String, tensors: &[TensorComparison], all: bool) {
    let _ = writeln!(
        out,
        "{:<28} {:>8} {:>10}  worst",
        "tensor", "values", "NMSE"
    );
    let first = tensors.iter().position(|t| t.outside);
    for (i, t) in tensors.iter().enumerate() {
        let few = tensors.len() <= 24;
        let matters = t.name.starts_with(L_OUT) || t.layer.is_none() || Some(i) == first;
        if !(all || few || matters) {
            continue;
        }
        let mark = if t.outside { "  <- outside" } else { "" };
        let name = if t.occurrence == 0 {
            t.name.clone()
        } else {
            format!("{} #{}", t.name, t.occurrence + 1)
        };
        let (values, nmse, position, channel) = (t.values, t.nmse, t.position, t.channel);
        let (a, b) = (t.a, t.b);
        let _ = writeln!(
            out,
            "{name:<28} {values:>8} {nmse:>10.2e}  position {position}, channel {channel}: ours \
             {a:?}, theirs {b:?}{mark}"
        );
    }
}

fn verdict(tolerance: &Tolerance, measured: &Measured) -> String {
    let word = if tolerance.holds(measured) {
        "within"
    } else {
        "outside"
    };
    let (allowed, reason) = (tolerance.nmse, &tolerance.reason);
    match measured {
        Measured::Logits(logits) => {
            let kl = |kl: f64| format!("; mean KL {:.3e}, allowed {kl:e}", logits.mean_kl);
            let kl = tolerance.kl.map_or(String::new(), kl);
            format!(
                "verdict: {word} tolerance: NMSE {:.3e}, allowed {allowed:e} ({reason}){kl}",
                logits.nmse
            )
        }
        Measured::Tensors(all) => {
            let n = all.len();
            match all.iter().find(|t| t.outside) {
                None => format!(
                    "verdict: within tolerance: {n} tensors, NMSE {allowed:e} allowed for each \
                     ({reason})"
                ),
                Some(t) => format!(
                    "verdict: outside tolerance: first at {}, position {}, channel {}: NMSE \
                     {:.3e}, allowed {allowed:e} ({reason})",
                    t.name, t.position, t.channel, t.nmse
                ),
            }
        }
        Measured::Generated(all) => {
            let (kl, allowed) = (mean_kl(all), tolerance.kl_alone());
            format!("verdict: {word} tolerance: mean KL {kl:.3e}, allowed {allowed:e}")
        }
        Measured::Divergence { mean_kl, .. } => {
            format!(
                "verdict: {word} tolerance: mean KL {mean_kl:.3e}, allowed {:e}",
                tolerance.kl_alone()
            )
        }
    }
}

fn to_html(engine: &Engine, tolerance: &Tolerance, all: &[Compared]) -> Result<String, ChartError> {
    let mut page = Page::new(super::TITLE);
    page.paragraph(
        &format!("{} on {}", engine.gguf().name(), engine.describe()),
        None,
    );
    for c in all {
        page.heading(&format!("{} ({})", c.path.display(), c.reference.kind));
        page.paragraph(
            &verdict(tolerance, &c.measured),
            Some(tolerance.holds(&c.measured)),
        );
        match &c.measured {
            Measured::Logits(logits) => logits_html(&mut page, engine, logits)?,
            Measured::Tensors(tensors) => {
                page.chart(&html::by_tensor(tensors)?);
                let row = |t: &TensorComparison| {
                    let numbers = [t.values.to_string(), format!("{:.2e}", t.nmse)];
                    let place = [
                        t.position.to_string(),
                        t.channel.to_string(),
                        t.a.to_string(),
                        t.b.to_string(),
                    ];
                    (
                        t.outside,
                        std::iter::once(t.name.clone())
                            .chain(numbers)
                            .chain(place)
                            .collect(),
                    )
                };
                let head = [
                    "tensor", "values", "NMSE", "position", "channel", "ours", "theirs",
                ];
                page.table(&head, tensors.iter().map(row));
            }
            Measured::Generated(tokens) => {
                let row = |t: &octavo_lab::diff::TokenComparison| {
                    let piece = format!("{:?}", piece(engine.tokenizer(), t.id));
                    (
                        t.our_top != t.id,
                        vec![piece, format!("{:.6}", t.ours), format!("{:.6}", t.theirs)],
                    )
                };
                page.table(&["piece", "ours", "theirs"], tokens.iter().map(row));
            }
            Measured::Divergence { .. } => {}
        }
    }
    Ok(page.finish())
}

fn logits_html(
    page: &mut Page,
    engine: &Engine,
    logits: &LogitComparison,
) -> Result<(), ChartError> {
    page.chart(&html::by_position(logits)?);
    html::logits(page, logits, engine.tokenizer(), &COLUMNS);
    Ok(())
}
