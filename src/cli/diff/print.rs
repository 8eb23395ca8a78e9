//! Reports of comparisons, as text and as JSON.

use std::fmt::Write;

use octavo_analysis::diff::suite::Cell;
use octavo_analysis::diff::{Comparison, LogitComparison, PositionTop, TapReport, Verdict};
use octavo_model::taps::{L_OUT, LAYER_OUT, numbered};
use octavo_text::tokenizer::Tokenizer;
use serde_json::json;

use super::routing;
use crate::answer::{VERSION, piece, shown_id, shown_ids};

/// A comparison of two executions and its inputs.
pub(super) struct Report<'a> {
    pub(super) a: String,
    pub(super) b: String,
    /// Tokenizer of a text model; image encoders have none.
    pub(super) tokenizer: Option<&'a Tokenizer>,
    pub(super) tokens: &'a [u32],
    pub(super) comparison: Comparison,
}

impl Report<'_> {
    /// Returns one object on one line.
    pub(super) fn json(&self) -> Result<String, serde_json::Error> {
        let mut object = serde_json::to_value(&self.comparison)?;
        object["version"] = json!(VERSION);
        object["a"] = json!(self.a);
        object["b"] = json!(self.b);
        let ids = shown_ids(self.tokens);
        object["tokens"] = json!(ids);
        Ok(format!("{object}\n"))
    }

    /// Returns the report as text; `all` shows every tensor and position.
    pub(super) fn text(&self, all: bool) -> String {
        let c = &self.comparison;
        let mut out = format!("A  {}\nB  {}\n\n", self.a, self.b);
        tensors(&mut out, c, all);
        for absent in c.absent.iter().filter(|_| all) {
            let _ = writeln!(
                out,
                "{:<18} absent in {}",
                absent.name,
                absent.absent_in.to_uppercase()
            );
        }
        out.push('\n');
        if let Some(c) = &c.logits {
            logits(&mut out, c, self.tokenizer, &EXECUTIONS, all);
        }
        let verdict = self.verdict().to_owned();
        for line in self
            .routing()
            .into_iter()
            .chain(self.first())
            .chain([verdict])
        {
            let _ = writeln!(out, "{line}");
        }
        out
    }

    /// Returns lines about the choices of experts, if the model has any: these are the first place
    /// to look.
    pub(super) fn routing(&self) -> Vec<String> {
        let Some(routing) = &self.comparison.routing else {
            return Vec::new();
        };
        let tensors: Vec<&str> = self.comparison.taps.iter().map(|tap| &*tap.name).collect();
        let token = |position: usize| {
            let id = self.tokens.get(position)?;
            Some(quoted(self.tokenizer, *id))
        };
        routing::lines(routing, &routing::EXECUTIONS, &tensors, &token)
    }

    /// Returns the line about the first divergence, if there is one.
    pub(super) fn first(&self) -> Option<String> {
        self.comparison.first_divergence.as_ref().map(|first| {
            let part = first
        .of_bound
        .map_or(String::new(), |part| format!("; {part:.4} times its bound"));
            let (name, a, b) = (title(first), first.a, first.b);
            let (position, channel) = (first.position, first.channel);
            format!(
        "first divergence: {name}, position {position}, channel {channel}: A {a:?}, B {b:?}{part}"
    )
        })
    }

    /// Returns the verdict as one line.
    pub(super) fn verdict(&self) -> &'static str {
        match self.comparison.verdict {
            Verdict::Identical => "verdict: identical, bit for bit",
            Verdict::Within => "verdict: within the bounds of every tensor",
            Verdict::Diverged => "verdict: diverged",
        }
    }
}

/// Returns a tensor's name, with its number where the name repeats.
pub(super) fn title(tap: &TapReport) -> String {
    numbered(&tap.name, tap.occurrence)
}

/// Writes the table of tensors. Without `all`, only the ends of layers, the results, and the
/// surroundings of the first divergence.
fn tensors(out: &mut String, c: &Comparison, all: bool) {
    let first = c.taps.iter().position(|tap| tap.outside);
    let matters = |i: usize, tap: &TapReport| {
        all || [L_OUT, LAYER_OUT]
            .iter()
            .any(|end| tap.name.starts_with(end))
            || tap.layer.is_none()
            || first.is_some_and(|first| (first.saturating_sub(3)..first + 2).contains(&i))
    };
    let _ = writeln!(
        out,
        "{:<18} {:>10} {:>10} {:>9}  worst",
        "tensor", "NMSE", "max |Δ|", "of bound"
    );
    for (_, tap) in c
        .taps
        .iter()
        .enumerate()
        .filter(|(i, tap)| matters(*i, tap))
    {
        let part = tap
            .of_bound
            .map_or("-".to_owned(), |part| format!("{part:.3}"));
        let mark = if tap.outside { "  <- outside" } else { "" };
        let _ = writeln!(
            out,
            "{:<18} {:>10.2e} {:>10.2e} {:>9}  position {}, channel {}{mark}",
            title(tap),
            tap.nmse,
            tap.max_abs,
            part,
            tap.position,
            tap.channel
        );
    }
}

/// Writes the most likely tokens side by side, and the distance of all logits.
pub(super) fn logits(
    out: &mut String,
    c: &LogitComparison,
    tokenizer: Option<&Tokenizer>,
    columns: &Columns,
    all: bool,
) {
    let shown = if all {
        &c.by_position[..]
    } else {
        &c.by_position[c.by_position.len().saturating_sub(1)..]
    };
    for position in shown {
        top(out, position, tokenizer, columns);
    }
    let (at, id) = c.max_at;
    let _ = writeln!(
        out,
        "logits of {} positions: NMSE {:.3e}, max |Δ| {:.3e} (position {at}, token {id}), KL mean \
         {:.3e}, max {:.3e} (position {}), same top-1 {:.1} %, same top-5 {:.1} %",
        c.positions,
        c.nmse,
        c.max_abs,
        c.mean_kl,
        c.max_kl,
        c.max_kl_at,
        100.0 * c.top1,
        100.0 * c.top5
    );
}

/// Returns a token's text in quotes; empty without a vocabulary.
pub(super) fn quoted(tokenizer: Option<&Tokenizer>, id: u32) -> String {
    tokenizer.map_or(String::new(), |tokenizer| {
        format!("{:?}", piece(tokenizer, id))
    })
}

/// Column names of a table of logits.
pub(super) struct Columns {
    pub(super) ours: &'static str,
    pub(super) theirs: &'static str,
    pub(super) theirs_first: bool,
}

/// Columns of two executions.
pub(super) const EXECUTIONS: Columns = Columns {
    ours: "B",
    theirs: "A",
    theirs_first: true,
};

impl Columns {
    /// Returns the values in the order of the columns: left, right.
    pub(super) fn order<T>(&self, ours: T, theirs: T) -> (T, T) {
        if self.theirs_first {
            (theirs, ours)
        } else {
            (ours, theirs)
        }
    }
}

fn top(out: &mut String, position: &PositionTop, tokenizer: Option<&Tokenizer>, columns: &Columns) {
    let (left, right) = columns.order(columns.ours, columns.theirs);
    let quoted = |id: u32| quoted(tokenizer, id);
    let _ = writeln!(
        out,
        "position {}, after token {} {}:",
        position.position,
        shown_id(position.token),
        quoted(position.token)
    );
    let _ = writeln!(
        out,
        "  {:>8} {:<20} {left:>12} {right:>12} {:>11}",
        "id", "piece", "Δ"
    );
    for pair in &position.top {
        let (left, right) = columns.order(pair.ours, pair.theirs);
        let _ = writeln!(
            out,
            "  {:>8} {:<20} {left:>12.6} {right:>12.6} {:>11.2e}",
            pair.id,
            quoted(pair.id),
            pair.delta
        );
    }
}

/// Returns the line about all comparisons of a suite.
pub(super) fn summary(cells: &[Cell]) -> String {
    let changed = cells.iter().filter(|cell| !cell.within).count();
    format!("{} comparisons, {changed} changed", cells.len())
}
