//! Formats the figures: llama-perplexity's lines, and JSON.

use std::fmt::Write;
use std::path::Path;

use octavo_analysis::eval::{Divergence, Estimate, Interval, Perplexity, Sorted};
use octavo_analysis::shards::About;
use serde_json::{Value, json};

use crate::answer;

/// Header of the rows of [`divergence_row`].
const DIVERGENCE_HEADER: &str = "\
    \nchunk             PPL               \
    ln(PPL(Q)/PPL(base))          \
    KL Divergence              Δp RMS            Same top p\n";

/// Formats a number as C prints it: `inf` and `nan` in lower case.
fn fixed(x: f64, width: usize, precision: usize) -> String {
    match x.is_nan() {
        true => format!("{:>width$}", "nan"),
        false => format!("{x:width$.precision$}"),
    }
}

/// Formats the estimated time of all chunks, from the time of the first.
pub(super) fn eta(seconds: f64, chunks: usize) -> String {
    let total = (seconds * chunks as f64) as u64;
    let hours = if total >= 3600 {
        format!("{} hours ", total / 3600)
    } else {
        String::new()
    };
    format!(
        "{seconds:.2} seconds per pass - ETA {hours}{:.2} minutes",
        (total % 3600) as f64 / 60.0
    )
}

/// Formats the perplexity up to a chunk.
pub(super) fn perplexity_chunk(ppl: &Perplexity) -> String {
    format!("[{}]{},", ppl.chunks(), fixed(ppl.ppl().value, 0, 4))
}

pub(super) fn final_estimate(ppl: &Perplexity) -> String {
    let Estimate { value, uncertainty } = ppl.ppl();
    format!(
        "Final estimate: PPL = {} +/- {}\n",
        fixed(value, 0, 4),
        fixed(uncertainty, 0, 5)
    )
}

/// Formats the row of a chunk; the first one with the header.
pub(super) fn divergence_chunk(d: &Divergence) -> String {
    match d.chunks() {
        1 => DIVERGENCE_HEADER.to_owned() + &divergence_row(d),
        _ => divergence_row(d),
    }
}

/// Formats one row of the table: the figures up to a chunk.
fn divergence_row(d: &Divergence) -> String {
    let pair = |e: Estimate, scale: f64, width: usize, precision: usize| {
        format!(
            "    {} ± {}",
            fixed(scale * e.value, width, precision),
            fixed(scale * e.uncertainty, width, precision)
        )
    };
    format!(
        "{:4}{}{}{}{} %{} %\n",
        d.chunks(),
        pair(d.ppl(), 1.0, 9, 4),
        pair(d.ln_ratio(), 1.0, 10, 5),
        pair(d.kld(), 1.0, 10, 5),
        pair(d.rms_dp(), 100.0, 6, 3),
        pair(d.same_top(), 100.0, 6, 3),
    )
}

/// Minimum number of scored tokens for statistics, as in llama-perplexity.
const ENOUGH: usize = 100;

const KLD_PERCENTILES: [(&str, f32); 8] = [
    ("99.9%", 0.999),
    ("99.0%", 0.99),
    ("95.0%", 0.95),
    ("90.0%", 0.9),
    ("10.0%", 0.1),
    (" 5.0%", 0.05),
    (" 1.0%", 0.01),
    (" 0.1%", 0.001),
];

const DP_PERCENTILES: [(&str, f32); 10] = [
    ("99.9%", 0.999),
    ("99.0%", 0.99),
    ("95.0%", 0.95),
    ("90.0%", 0.9),
    ("75.0%", 0.75),
    ("25.0%", 0.25),
    ("10.0%", 0.1),
    (" 5.0%", 0.05),
    (" 1.0%", 0.01),
    (" 0.1%", 0.001),
];

/// Returns the maximum, the percentiles with the median in their middle, and the minimum.
fn distribution(values: &Sorted, percentiles: &[(&'static str, f32)]) -> Vec<(&'static str, f32)> {
    let mut all: Vec<_> = percentiles
        .iter()
        .map(|&(name, fraction)| (name, values.percentile(fraction)))
        .collect();
    all.insert(percentiles.len() / 2, ("Median", values.median()));
    all.insert(0, ("Maximum", values.maximum()));
    all.push(("Minimum", values.minimum()));
    all
}

/// Formats the statistics after the table.
pub(super) fn divergence(d: &Divergence) -> String {
    let mut out = String::from("\n");
    if d.scored() >= ENOUGH {
        // writing to a String cannot fail
        let _ = statistics(&mut out, d);
    }
    out
}

fn statistics(out: &mut String, d: &Divergence) -> std::fmt::Result {
    let pair = |e: Estimate| {
        format!(
            "{} ± {}",
            fixed(e.value, 10, 6),
            fixed(e.uncertainty, 10, 6)
        )
    };
    let percent = |x: f64| fixed(100.0 * x, 6, 3);
    let percents = |e: Estimate| {
        format!(
            "{} ± {} %",
            percent(e.value),
            fixed(100.0 * e.uncertainty, 5, 3)
        )
    };
    writeln!(out, "====== Perplexity statistics ======")?;
    writeln!(out, "Mean PPL(Q)                   : {}", pair(d.ppl()))?;
    writeln!(
        out,
        "Mean PPL(base)                : {}",
        pair(d.ppl_base())
    )?;
    writeln!(
        out,
        "Cor(ln(PPL(Q)), ln(PPL(base))): {}%",
        fixed(100.0 * d.correlation(), 6, 2)
    )?;
    writeln!(
        out,
        "Mean ln(PPL(Q)/PPL(base))     : {}",
        pair(d.ln_ratio())
    )?;
    writeln!(out, "Mean PPL(Q)/PPL(base)         : {}", pair(d.ratio()))?;
    writeln!(
        out,
        "Mean PPL(Q)-PPL(base)         : {}",
        pair(d.difference())
    )?;
    writeln!(out, "\n====== KL divergence statistics ======")?;
    writeln!(out, "Mean    KLD: {}", pair(d.kld()))?;
    for (name, value) in distribution(&d.klds(), &KLD_PERCENTILES) {
        writeln!(out, "{name:7} KLD: {}", fixed(value.into(), 10, 6))?;
    }
    writeln!(out, "\n====== Token probability statistics ======")?;
    writeln!(out, "Mean    Δp: {}", percents(d.dp()))?;
    for (name, value) in distribution(&d.dps(), &DP_PERCENTILES) {
        writeln!(out, "{name:7} Δp: {}%", percent(value.into()))?;
    }
    writeln!(out, "RMS Δp    : {}", percents(d.rms_dp()))?;
    writeln!(out, "Same top p: {}", percents(d.same_top()))?;
    intervals(out, d)
}

/// Formats the intervals by chunks, which llama-perplexity does not have.
fn intervals(out: &mut String, d: &Divergence) -> std::fmt::Result {
    let Some((kld, ratio, top)) = all_intervals(d) else {
        return Ok(());
    };
    let ends = |interval: Interval, scale: f64, width: usize, precision: usize| {
        let [low, high] = [interval.low, interval.high].map(|x| fixed(scale * x, width, precision));
        format!("{low} to {high}")
    };
    writeln!(out, "\n====== 95 % intervals, by chunks ======")?;
    writeln!(out, "Mean KLD                  : {}", ends(kld, 1.0, 10, 6))?;
    writeln!(
        out,
        "Mean ln(PPL(Q)/PPL(base)) : {}",
        ends(ratio, 1.0, 10, 6)
    )?;
    writeln!(
        out,
        "Same top p                : {} %",
        ends(top, 100.0, 6, 3)
    )
}

/// Returns the intervals of the mean KL divergence, the ratio of perplexities and the share of
/// tokens with the same most likely token; `None` for too few chunks.
fn all_intervals(d: &Divergence) -> Option<(Interval, Interval, Interval)> {
    Some((
        d.kld_interval()?,
        d.ln_ratio_interval()?,
        d.same_top_interval()?,
    ))
}

/// Returns the JSON of a figure.
fn estimate(e: Estimate) -> Value {
    json!({"value": e.value, "uncertainty": e.uncertainty})
}

pub(super) fn perplexity_json(
    ppl: &Perplexity,
    chunk_ppl: &[f64],
    base: Option<&Path>,
    about: &About,
) -> Result<String, serde_json::Error> {
    let mut object = json!({
        "ppl": estimate(ppl.ppl()),
        "mean_nll": estimate(ppl.mean_nll()),
        "n_ctx": about.n_ctx,
        "chunks": ppl.chunks(),
        "scored": ppl.scored(),
        "chunk_ppl": chunk_ppl,
        "interval_95": ppl.ppl_interval(),
    });
    if let Some(base) = base {
        object["base"] = base.display().to_string().into();
    }
    finish(object, about)
}

pub(super) fn divergence_json(
    d: &Divergence,
    cut: Option<f32>,
    about: &About,
) -> Result<String, serde_json::Error> {
    let with = |e: Estimate, values: &Sorted, percentiles: &[(&'static str, f32)]| {
        let mut object = estimate(e);
        for (name, value) in distribution(values, percentiles) {
            object[name.trim().to_lowercase()] = value.into();
        }
        object
    };
    let intervals = all_intervals(d).map(
        |(kld, ln_ratio, same_top)| json!({"kld": kld, "ln_ratio": ln_ratio, "same_top": same_top}),
    );
    let object = json!({
        "ppl": estimate(d.ppl()),
        "ppl_base": estimate(d.ppl_base()),
        "correlation": d.correlation(),
        "ln_ratio": estimate(d.ln_ratio()),
        "ratio": estimate(d.ratio()),
        "difference": estimate(d.difference()),
        "kld": with(d.kld(), &d.klds(), &KLD_PERCENTILES),
        "dp": with(d.dp(), &d.dps(), &DP_PERCENTILES),
        "rms_dp": estimate(d.rms_dp()),
        "same_top": estimate(d.same_top()),
        "n_ctx": about.n_ctx,
        "chunks": d.chunks(),
        "scored": d.scored(),
        "chunk_kld": d.chunk_klds().collect::<Vec<f64>>(),
        "intervals_95": intervals,
        "base": about.source,
        "cut": cut,
    });
    finish(object, about)
}

/// Adds the fields of every JSON object.
fn finish(mut object: Value, about: &About) -> Result<String, serde_json::Error> {
    object["version"] = answer::VERSION.into();
    object["model"] = about.model.as_str().into();
    object["backend"] = about.backend.as_str().into();
    Ok(serde_json::to_string(&object)? + "\n")
}
