//! Reports of comparisons as one HTML page.

use octavo_analysis::diff::suite::Cell;
use octavo_analysis::diff::{
    Comparison, LogitComparison, PositionTop, TapReport, TensorComparison, Verdict,
};
use octavo_analysis::report::{Axes, Chart, ChartError, Page, line_chart};
use octavo_model::taps;
use octavo_text::tokenizer::Tokenizer;

use super::TITLE;
use super::print::{Columns, EXECUTIONS, Report, quoted, summary, title};
use super::routing;

/// Maximum number of positions with tables: the first ones of a long text are enough.
const MAX_TABLES: usize = 200;

/// Returns the page of two executions.
pub(super) fn executions(report: &Report<'_>) -> Result<String, ChartError> {
    let c = &report.comparison;
    let mut page = Page::new(TITLE);
    page.paragraph(&format!("A: {}", report.a), None);
    page.paragraph(&format!("B: {}", report.b), None);
    page.paragraph(report.verdict(), Some(c.verdict != Verdict::Diverged));
    for line in report.routing() {
        page.paragraph(&line, None);
    }
    if let Some(first) = report.first() {
        page.paragraph(&first, Some(false));
    }
    if let Some(found) = &c.routing {
        routing::table(&mut page, found, &routing::EXECUTIONS);
    }
    page.heading("Error by layer");
    page.chart(&by_layer(c)?);
    if let Some(c) = &c.logits {
        page.heading("Error by position");
        page.chart(&by_position(c)?);
        logits(&mut page, c, report.tokenizer, &EXECUTIONS);
    }
    page.heading("Tensors");
    page.fold("Every tensor, in the order of the computation");
    let head = [
        "tensor",
        "NMSE",
        "max |Δ|",
        "of its bound",
        "position",
        "channel",
        "A",
        "B",
    ];
    page.table(
        &head,
        c.taps.iter().map(|tap| {
            let part = tap
                .of_bound
                .map_or("-".to_owned(), |part| format!("{part:.3}"));
            let numbers = [
                format!("{:.2e}", tap.nmse),
                format!("{:.2e}", tap.max_abs),
                part,
            ];
            let place = [
                tap.position.to_string(),
                tap.channel.to_string(),
                tap.a.to_string(),
                tap.b.to_string(),
            ];
            (
                tap.outside,
                std::iter::once(title(tap))
                    .chain(numbers)
                    .chain(place)
                    .collect(),
            )
        }),
    );
    page.end_fold();
    Ok(page.finish())
}

/// Returns the page of a suite's results.
pub(super) fn suite(cells: &[Cell]) -> String {
    let mut page = Page::new(TITLE);
    let all_within = cells.iter().all(|cell| cell.within);
    page.paragraph(&summary(cells), Some(all_within));
    let head = [
        "model",
        "prompt",
        "instruction set",
        "verdict",
        "NMSE",
        "allowed",
        "mean KL",
    ];
    let row = |cell: &Cell| {
        let verdict = if cell.within { "within" } else { "changed" };
        let cells = vec![
            cell.model.clone(),
            cell.prompt.clone(),
            cell.isa.clone(),
            verdict.to_owned(),
            format!("{:.3e}", cell.nmse),
            format!("{:e}", cell.allowed),
            format!("{:.3e}", cell.kl),
        ];
        (!cell.within, cells)
    };
    page.table(&head, cells.iter().map(row));
    page.finish()
}

/// Charts the NMSE of the main tensors of each layer.
fn by_layer(c: &Comparison) -> Result<Chart, ChartError> {
    let shown = [
        taps::ATTN_NORM,
        taps::KQV_OUT,
        taps::FFN_INP,
        taps::FFN_SWIGLU,
        taps::L_OUT,
        taps::LAYER_OUT,
    ];
    let points = |name| -> Vec<(f64, f64)> {
        let of_name = c.taps.iter().filter(|tap| {
            tap.name
                .strip_prefix(name)
                .is_some_and(|rest| rest.starts_with('-'))
        });
        let point = |tap: &TapReport| tap.layer.map(|layer| (layer as f64, tap.nmse));
        of_name.filter_map(point).collect()
    };
    // text models and image encoders have different tensors
    let series = shown.map(|name: &str| (name, points(name))).into_iter();
    let series: Vec<_> = series.filter(|(_, points)| !points.is_empty()).collect();
    line_chart(
        Axes {
            title: "NMSE of named tensors",
            x: "layer",
            y: "NMSE",
        },
        &series,
    )
}

/// Charts the NMSE of recorded tensors, in their order.
pub(super) fn by_tensor(tensors: &[TensorComparison]) -> Result<Chart, ChartError> {
    let points = tensors
        .iter()
        .enumerate()
        .map(|(i, t)| (i as f64, t.nmse))
        .collect();
    let axes = Axes {
        title: "NMSE of recorded tensors",
        x: "tensor, in the order of the computation",
        y: "NMSE",
    };
    line_chart(axes, &[("NMSE", points)])
}

/// Charts the KL divergence and the NMSE of the logits, position by position.
pub(super) fn by_position(c: &LogitComparison) -> Result<Chart, ChartError> {
    let line = |of: fn(&PositionTop) -> f64| {
        c.by_position
            .iter()
            .map(|p| (p.position as f64, of(p)))
            .collect()
    };
    let series = [("KL", line(|p| p.kl)), ("NMSE", line(|p| p.nmse))];
    line_chart(
        Axes {
            title: "Logits",
            x: "position",
            y: "error",
        },
        &series,
    )
}

/// Adds a summary and the top-5 tables.
pub(super) fn logits(
    page: &mut Page,
    c: &LogitComparison,
    tokenizer: Option<&Tokenizer>,
    columns: &Columns,
) {
    page.heading("Logits");
    page.table(
        &[
            "positions",
            "NMSE",
            "max |Δ|",
            "mean KL",
            "max KL",
            "same top-1",
            "same top-5",
        ],
        [(
            false,
            vec![
                c.positions.to_string(),
                format!("{:.3e}", c.nmse),
                format!("{:.3e}", c.max_abs),
                format!("{:.3e}", c.mean_kl),
                format!("{:.3e} at position {}", c.max_kl, c.max_kl_at),
                format!("{:.1} %", 100.0 * c.top1),
                format!("{:.1} %", 100.0 * c.top5),
            ],
        )],
    );
    let quoted = |id: u32| quoted(tokenizer, id);
    let (left, right) = columns.order(columns.ours, columns.theirs);
    for (i, position) in c.by_position.iter().rev().take(MAX_TABLES).enumerate() {
        if i == 1 {
            page.fold("Earlier positions");
        }
        page.paragraph(
            &format!(
                "Position {}, after {}",
                position.position,
                quoted(position.token)
            ),
            None,
        );
        page.table(
            &["piece", "id", left, right, "Δ"],
            position.top.iter().map(|pair| {
                let (left, right) = columns.order(pair.ours, pair.theirs);
                let numbers = [
                    pair.id.to_string(),
                    format!("{left:.5}"),
                    format!("{right:.5}"),
                ];
                (
                    false,
                    [
                        vec![quoted(pair.id)],
                        numbers.to_vec(),
                        vec![format!("{:.2e}", pair.delta)],
                    ]
                    .concat(),
                )
            }),
        );
    }
    if c.by_position.len() > 1 {
        page.end_fold();
    }
}
