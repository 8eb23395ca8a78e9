//! The report, as a table, one JSON object and an HTML page.

use std::collections::BTreeSet;

use octavo_analysis::quant_report::{
    BaseRow, Failed, ModelScores, QuantRow, Scores, Sensitivity, TensorScores,
};
use octavo_analysis::report::{Axes, ChartError, Page, named_points};
use serde_json::json;

use super::TITLE;
use crate::answer::VERSION;
use crate::failure::{Exit, Failure};
use crate::output::Output;
use crate::terminal;

/// A report.
pub(crate) struct Report {
    model: String,
    base: BaseRow,
    rows: Vec<QuantRow>,
    /// Mixes that lose least in the sizes of types.
    mixes: Vec<QuantRow>,
    ranking: Option<(String, Vec<Sensitivity>)>,
    /// Types that could not be made or scored, with errors.
    failed: Vec<Failed>,
}

const HEAD: [&str; 10] = [
    "type",
    "MiB",
    "bits/weight",
    "PPL",
    "ln PPL ratio",
    "mean KL",
    "99 % KL",
    "same top",
    "prompt t/s",
    "generation t/s",
];

impl Report {
    /// Makes a report of the figures of all chunks.
    pub(crate) fn of(model: String, scores: &Scores) -> Report {
        let base = scores.base.row();
        let (mut failed, mut ranking) = (Vec::new(), None);
        let mut measured = |all: &[Result<ModelScores, Failed>]| {
            let row = |one: &Result<ModelScores, Failed>| match one {
                Ok(scores) => Some(scores.row(&base)),
                Err(why) => {
                    failed.push(why.clone());
                    None
                }
            };
            all.iter().filter_map(row).collect::<Vec<_>>()
        };
        let (rows, mixes) = (measured(&scores.models), measured(&scores.mixes));
        match &scores.ranking {
            Some((to, Ok(tensors))) => ranking = Some((to.clone(), TensorScores::ranked(tensors))),
            Some((_, Err(why))) => failed.push(why.clone()),
            None => {}
        }
        Report {
            model,
            base,
            rows,
            mixes,
            ranking,
            failed,
        }
    }

    /// Returns the types that could not be measured.
    pub(crate) fn failed(&self) -> &[Failed] {
        &self.failed
    }

    /// Writes the page, if one is given, and prints the figures.
    pub(crate) fn finish(&self, as_json: bool, page: Option<&Output<'_>>) -> Result<Exit, Failure> {
        if let Some(page) = page {
            page.write(self.html()?.as_bytes())?;
        }
        let out = if as_json { self.json()? } else { self.text() };
        terminal::print(out.as_bytes())?;
        Ok(if self.failed.is_empty() {
            Exit::Done
        } else {
            Exit::Partly
        })
    }

    /// Returns the cells of the base and of every type.
    fn cells(&self) -> Vec<[String; 10]> {
        let mib = |bytes: u64| format!("{:.1}", bytes as f64 / f64::from(1 << 20));
        let b = &self.base;
        let none = || "-".to_owned();
        let base = [
            "base".to_owned(),
            mib(b.bytes),
            format!("{:.2}", b.bits),
            format!("{:.4}", b.ppl),
            none(),
            none(),
            none(),
            none(),
            format!("{:.0}", b.prompt_rate),
            format!("{:.1}", b.generation_rate),
        ];
        let row = |r: &QuantRow| {
            [
                r.name.to_owned(),
                mib(r.bytes),
                format!("{:.2}", r.bits_per_weight),
                format!("{:.4}", r.ppl),
                format!("{:+.5} ± {:.5}", r.ln_ppl_ratio.0, r.ln_ppl_ratio.1),
                format!("{:.6} ± {:.6}", r.mean_kl.0, r.mean_kl.1),
                format!("{:.5}", r.kl_99),
                format!("{:.2} %", 100.0 * r.same_top),
                format!("{:.0}", r.prompt_rate),
                format!("{:.1}", r.generation_rate),
            ]
        };
        std::iter::once(base)
            .chain(self.rows.iter().chain(&self.mixes).map(row))
            .collect()
    }

    fn text(&self) -> String {
        let cells = self.cells();
        let head = HEAD.map(str::to_owned);
        let width = |i: usize| {
            std::iter::once(&head)
                .chain(&cells)
                .map(|row| row[i].chars().count())
                .max()
                .unwrap_or(0)
        };
        let line = |row: &[String; 10]| {
            let cell = |(i, text): (usize, &String)| match i {
                0 => format!("{text:<width$}", width = width(i)),
                _ => format!("  {text:>width$}", width = width(i)),
            };
            row.iter()
                .enumerate()
                .map(cell)
                .collect::<String>()
                .trim_end()
                .to_owned()
                + "\n"
        };
        let mut out = line(&head) + &cells.iter().map(line).collect::<String>();
        if let Some((to, ranking)) = &self.ranking {
            out +=
                &format!("\nOne tensor at a time in {to}, by the KL divergence that it causes:\n");
            for s in ranking {
                let mega = s.weights as f64 / 1e6;
                out += &format!(
                    "{:<28} {mega:>9.2} M weights  mean KL {:.3e}  same top {:.2} %\n",
                    s.name,
                    s.mean_kl,
                    100.0 * s.same_top
                );
            }
        }
        out
    }

    fn json(&self) -> Result<String, serde_json::Error> {
        let b = &self.base;
        let mut object = json!({
            "version": VERSION,
            "model": self.model,
            "base": {"ppl": b.ppl, "bytes": b.bytes, "bits_per_weight": b.bits,
                     "prompt_rate": b.prompt_rate, "generation_rate": b.generation_rate},
            "types": serde_json::to_value(&self.rows)?,
        });
        if !self.mixes.is_empty() {
            object["mixes"] = serde_json::to_value(&self.mixes)?;
        }
        if let Some((to, ranking)) = &self.ranking {
            object["sensitivity_type"] = json!(to);
            object["sensitivity"] = serde_json::to_value(ranking)?;
        }
        if !self.failed.is_empty() {
            let failed = |Failed { name, error }: &Failed| json!({"name": name, "error": error});
            object["failed"] = self.failed.iter().map(failed).collect();
        }
        Ok(format!("{object}\n"))
    }

    fn html(&self) -> Result<String, ChartError> {
        let mut page = Page::new(TITLE);
        page.paragraph(&self.model, None);
        page.heading("Types");
        page.table(
            &HEAD,
            self.cells().into_iter().map(|row| (false, row.to_vec())),
        );
        for Failed { name, error } in &self.failed {
            page.paragraph(&format!("{name} is missing: {error}"), None);
        }
        if !self.rows.is_empty() {
            page.heading("KL divergence against size");
            let mut series = vec![("types", points(&self.rows))];
            if !self.mixes.is_empty() {
                series.push(("best mixes of their sizes", points(&self.mixes)));
            }
            let axes = Axes {
                title: "Mean KL divergence from the model itself",
                x: "bits per weight",
                y: "mean KL (nats)",
            };
            page.chart(&named_points(axes, &series)?);
        }
        if let Some((to, ranking)) = &self.ranking {
            page.heading(&format!("One tensor at a time in {to}"));
            page.paragraph(
                "Mean KL divergence that a tensor causes when it alone is quantized; rows are \
                 layers, columns tensors.",
                None,
            );
            heat_map(&mut page, ranking);
            page.fold("Ranked");
            let row = |s: &Sensitivity| {
                let cells = vec![
                    s.name.clone(),
                    s.weights.to_string(),
                    format!("{:.3e}", s.mean_kl),
                    format!("{:.2} %", 100.0 * s.same_top),
                ];
                (false, cells)
            };
            page.table(
                &["tensor", "weights", "mean KL", "same top"],
                ranking.iter().map(row),
            );
            page.end_fold();
        }
        Ok(page.finish())
    }
}

/// Returns the points of a chart: bits per weight, mean KL divergence, name.
fn points(rows: &[QuantRow]) -> Vec<(f64, f64, &str)> {
    rows.iter()
        .map(|r| (r.bits_per_weight, r.mean_kl.0, r.name.as_str()))
        .collect()
}

fn heat_map(page: &mut Page, ranking: &[Sensitivity]) {
    let roles: BTreeSet<&str> = ranking.iter().map(|s| s.role.as_str()).collect();
    let layers: BTreeSet<Option<usize>> = ranking.iter().map(|s| s.layer).collect();
    // a model has many layers and few kinds of tensors, and a screen has no room for many columns
    let head: Vec<String> = roles.iter().map(|role| (*role).to_owned()).collect();
    let of = |role: &str, layer: &Option<usize>| {
        ranking
            .iter()
            .find(|s| s.role == role && s.layer == *layer)
            .map(|s| s.mean_kl)
    };
    let row = |layer: &Option<usize>| {
        let name = layer.map_or("-".to_owned(), |l| l.to_string());
        (name, roles.iter().map(|role| of(role, layer)).collect())
    };
    let rows: Vec<(String, Vec<Option<f64>>)> = layers.iter().map(row).collect();
    page.heat_map(&head, &rows);
}
