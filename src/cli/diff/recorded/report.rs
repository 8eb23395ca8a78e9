//! Report of a comparison with references, as text, JSON and HTML.

use std::fmt::Write;

use octavo_analysis::diff::{
    LogitComparison, Measured, TensorComparison, Tensors, Tolerance, mean_kl,
};
use octavo_analysis::report::{ChartError, Page};
use octavo_model::taps::{L_OUT, RESULT_OUTPUT, numbered};
use serde_json::{Value, json};

use super::super::{DiffArgs, html, print, routing};
use super::{Compared, Computed};

const COLUMNS: print::Columns = print::Columns {
    ours: "ours",
    theirs: "theirs",
    theirs_first: false,
};

pub(super) fn to_json(
    of: &Computed<'_>,
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
            if let Measured::Tensors(tensors) = &c.measured {
                let routing = serde_json::to_value(&tensors.routing)?;
                object.insert("routing".to_owned(), routing);
            }
        }
        Ok(object)
    };
    let object = json!({
        "verdict": word(all.iter().all(|c| tolerance.holds(&c.measured))),
        "model": of.file,
        "device": of.device,
        "tolerance": serde_json::to_value(tolerance)?,
        "references": all.iter().map(one).collect::<Result<Vec<_>, _>>()?,
    });
    Ok(format!("{object}\n"))
}

/// Returns the first tensor outside the tolerance; for logits the first position whose own NMSE is
/// outside, with the shown token that differs most.
fn first_outside(tolerance: &Tolerance, measured: &Measured) -> Value {
    match measured {
        Measured::Logits(logits) => {
            let beyond = |p: &&octavo_analysis::diff::PositionTop| {
                p.nmse > tolerance.nmse || p.nmse.is_nan()
            };
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
        Measured::Tensors(t) => json!(t.all.iter().find(|t| t.outside)),
        Measured::Generated(_) | Measured::Divergence { .. } => Value::Null,
    }
}

pub(super) fn to_text(
    args: &DiffArgs,
    of: &Computed<'_>,
    tolerance: &Tolerance,
    all: &[Compared],
) -> String {
    let mut out = format!("{} on {}\n", of.file, of.device);
    for c in all {
        let _ = write!(out, "\n{} ({}", c.path.display(), c.reference.kind);
        let _ = match &c.reference.tokens {
            Some(tokens) => writeln!(out, ", {} tokens)", tokens.len()),
            None => writeln!(out, ")"),
        };
        match &c.measured {
            Measured::Logits(logits) => {
                print::logits(&mut out, logits, of.tokenizer, &COLUMNS, args.all)
            }
            Measured::Tensors(tensors) => {
                print_tensors(&mut out, &tensors.all, args.all);
                for line in choices(tensors) {
                    let _ = writeln!(out, "{line}");
                }
            }
            Measured::Generated(tokens) => {
                let _ = writeln!(
                    out,
                    "  {:>8} {:<20} {:>12} {:>12} {:>11}",
                    "id", "piece", "ours", "theirs", "Δ"
                );
                for t in tokens {
                    let piece = print::quoted(of.tokenizer, t.id);
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

/// Writes the table of tensors. Without `all`, only the ends of layers, the results, and the first
/// outside.
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
        let name = numbered(&t.name, t.occurrence);
        let (values, nmse, position, channel) = (t.values, t.nmse, t.position, t.channel);
        let (a, b) = (t.a, t.b);
        let _ = writeln!(
            out,
            "{name:<28} {values:>8} {nmse:>10.2e}  position {position}, channel {channel}: ours \
             {a:?}, theirs {b:?}{mark}"
        );
    }
}

/// Returns lines about the choices of experts, if they are recorded.
fn choices(tensors: &Tensors) -> Vec<String> {
    let Some(found) = &tensors.routing else {
        return Vec::new();
    };
    let names: Vec<&str> = tensors.all.iter().map(|t| &*t.name).collect();
    routing::lines(found, &routing::RECORDED, &names, &|_| None)
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
        Measured::Tensors(Tensors { all, .. }) => {
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

pub(super) fn to_html(
    of: &Computed<'_>,
    tolerance: &Tolerance,
    all: &[Compared],
) -> Result<String, ChartError> {
    let mut page = Page::new(super::super::TITLE);
    page.paragraph(&format!("{} on {}", of.file, of.device), None);
    for c in all {
        page.heading(&format!("{} ({})", c.path.display(), c.reference.kind));
        page.paragraph(
            &verdict(tolerance, &c.measured),
            Some(tolerance.holds(&c.measured)),
        );
        match &c.measured {
            Measured::Logits(logits) => logits_html(&mut page, of, logits)?,
            Measured::Tensors(tensors) => {
                for line in choices(tensors) {
                    page.paragraph(&line, None);
                }
                if let Some(found) = &tensors.routing {
                    routing::table(&mut page, found, &routing::RECORDED);
                }
                page.chart(&html::by_tensor(&tensors.all)?);
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
                page.table(&head, tensors.all.iter().map(row));
            }
            Measured::Generated(tokens) => {
                let row = |t: &octavo_analysis::diff::TokenComparison| {
                    let piece = print::quoted(of.tokenizer, t.id);
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
    of: &Computed<'_>,
    logits: &LogitComparison,
) -> Result<(), ChartError> {
    page.chart(&html::by_position(logits)?);
    html::logits(page, logits, of.tokenizer, &COLUMNS);
    Ok(())
}
