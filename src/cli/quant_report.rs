//! `octavo quant-report`: what each quantization of a model costs in accuracy.

use std::collections::BTreeSet;
use std::path::PathBuf;

use clap::Args;
use gguf_rs_lite::{Temporary, TensorType};
use octavo_engine::ModelSource;
use octavo_lab::eval;
use octavo_lab::imatrix::Importance;
use octavo_lab::quant_report::{
    Base, Error, Row, Sensitivity, Setup, Watch, base, check, existing, quantized, sensitivity,
};
use octavo_lab::quantize::Target;
use octavo_lab::report::{Axes, ChartError, Page, named_points};
use octavo_text::tokenizer::Tokenizer;
use serde_json::json;

use super::args::ComputeArgs;
use super::failure::{Exit, Failure, one_line};
use super::output::{Inputs, Kind, Output};
use super::quantize;
use super::signal;
use super::terminal::{self, Progress};
use super::values;

/// Measure what each quantization of a model costs: size, perplexity, KL divergence, speed
///
/// Every type is made as `octavo quantize` makes it, in a temporary folder, and scored on the text
/// against the model itself, as `octavo perplexity --kl-divergence` does.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo quant-report model-f16.gguf -f text.txt
  octavo quant-report model-f16.gguf -f text.txt --types Q8_0,Q4_K_M,IQ4_XS \
--chunks 20 --html report.html
  octavo quant-report model-f16.gguf -f text.txt --types Q4_K_M --sensitivity Q2_K \
--html report.html
  octavo quant-report model-f16.gguf -f text.txt --types Q4_0,Q4_1 --also model-awq

--sensitivity TYPE quantizes one tensor at a time and ranks them by the KL divergence \
that each causes alone; with
--by-role all layers of a tensor together.
--json prints {model, base: {ppl, ...}, types: [{name, bytes, bits_per_weight, ppl, \
mean_kl, kl_99, ...}],
sensitivity?: [{name, layer, role, mean_kl, ...}], failed?: [{name, error}]}.
A type that cannot be made or scored is named on stderr and left out; the rest is printed, with \
exit code 1.")]
pub(super) struct QuantReportArgs {
    /// GGUF file or Hugging Face folder in F16, BF16 or F32
    #[arg(value_name = "MODEL", value_hint = clap::ValueHint::FilePath)]
    model: PathBuf,
    /// The text to score (- is stdin)
    #[arg(short, long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    file: PathBuf,
    /// Types to measure, separated by commas
    #[arg(long, value_name = "TYPES", value_delimiter = ',')]
    #[arg(default_value = "Q8_0,Q6_K,Q5_K_M,Q4_K_M,Q4_0,Q3_K_M,Q2_K")]
    #[arg(value_parser = values::target(), hide_possible_values = true)]
    types: Vec<Target>,
    /// Also score this file or folder, of the same vocabulary; may be given several times
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::AnyPath)]
    also: Vec<PathBuf>,
    /// Chunks of text to score at most; -1 is all
    #[arg(long, value_name = "N", default_value_t = -1, value_parser = values::chunks)]
    chunks: i64,
    /// Importance matrix for the quantizers
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    imatrix: Option<PathBuf>,
    /// Also quantize one tensor at a time to this type, and rank them
    #[arg(long, value_name = "TYPE", value_parser = values::target(), hide_possible_values = true)]
    sensitivity: Option<Target>,
    /// With --sensitivity: all layers of a tensor together
    #[arg(long, requires = "sensitivity")]
    by_role: bool,
    /// Take a model that is quantized already: figures then are of what is lost on top of that
    #[arg(long)]
    allow_requantize: bool,
    /// Print one JSON object
    #[arg(long)]
    json: bool,
    /// Also write the report as one self-contained HTML page
    #[arg(long, value_name = "FILE", value_hint = clap::ValueHint::FilePath)]
    html: Option<PathBuf>,
    /// Replace --html's file whatever it is, unless it is an input
    #[arg(long, requires = "html")]
    force: bool,
    #[command(flatten)]
    compute: ComputeArgs,
}

/// Of the page.
const TITLE: &str = "octavo quant-report";

/// A bar for each part of the work.
struct Bars(Progress);

impl Watch for Bars {
    fn begin(&mut self, what: &str) {
        self.0.clear();
        terminal::note(&format!("octavo: scoring {what}"));
        self.0 = Progress::chunks("scoring");
    }
    fn at(&mut self, done: usize, total: usize) {
        self.0.at(done as u64, total as u64);
    }
    fn cancelled(&self) -> bool {
        // nothing is shown before the end: Ctrl-C ends the program at once
        false
    }
}

struct Report {
    model: String,
    base: Base,
    rows: Vec<Row>,
    ranking: Option<(String, Vec<Sensitivity>)>,
    /// What could not be made or scored, and why.
    failed: Vec<(String, String)>,
}

/// Runs the command.
pub(super) fn run(args: &QuantReportArgs) -> Result<Exit, Failure> {
    let inputs = Inputs::default()
        .model(Some(&args.model))
        .file(Some(&args.file))
        .file(args.imatrix.as_deref());
    let inputs = args
        .also
        .iter()
        .fold(inputs, |inputs, path| inputs.model(Some(path)));
    let page = args.html.as_deref();
    let page = page.map(|path| Output {
        path,
        kind: Kind::Page(TITLE),
        force: args.force,
        inputs: &inputs,
    });
    if let Some(page) = &page {
        page.check()?;
    }
    signal::install()?;
    let mut text = super::prompt::read(&args.file)?;
    if text.last() == Some(&b'\n') {
        // as llama-perplexity's -f
        text.pop();
    }
    let gguf = ModelSource::Path(args.model.clone()).open(true)?;
    let tokens = eval::encode(&Tokenizer::from_gguf(&gguf)?, &text)?;
    drop(gguf);
    let importance = args.imatrix.as_deref().map(Importance::open).transpose()?;
    let folder = Temporary::new(tempfile::tempdir()?.keep());
    let mut engine = args.compute.options()?;
    let n_ctx = engine.ctx.filter(|n| *n > 0).unwrap_or(512);
    engine.ctx = Some(n_ctx);
    let setup = Setup {
        model: &args.model,
        engine,
        tokens,
        n_ctx,
        chunks: usize::try_from(args.chunks).ok(),
        importance: importance.as_ref(),
        allow_requantize: args.allow_requantize,
        folder: folder.path(),
    };
    let ranking = args
        .sensitivity
        .map(|target| (target.default_type(), args.by_role));
    check(&setup, &args.types, ranking, &args.also).map_err(refused)?;
    let mut bars = Bars(Progress::chunks("scoring"));
    let report = measure(args, &setup, ranking, &mut bars);
    bars.0.clear();
    let report = report?;
    if let Some(page) = &page {
        page.write(report.html()?.as_bytes())?;
    }
    terminal::print(
        if args.json {
            report.json()?
        } else {
            report.text()
        }
        .as_bytes(),
    )?;
    Ok(if report.failed.is_empty() {
        Exit::Done
    } else {
        Exit::Partly
    })
}

/// What stands against the report before it begins, with the option that helps.
fn refused(error: Error) -> Failure {
    let within = |what: String, source| match quantize::refused(source) {
        Failure::Input(text) => Failure::Input(format!("{what}: {text}")),
        other => other,
    };
    match error {
        Error::Target { target, source } => within(target.to_string(), source),
        Error::Quantize(source) => within("--sensitivity".to_owned(), source),
        error => error.into(),
    }
}

/// The base, then one row after the other; what fails after the base does not take the others with
/// it.
fn measure(
    args: &QuantReportArgs,
    setup: &Setup<'_>,
    ranking: Option<(TensorType, bool)>,
    bars: &mut Bars,
) -> Result<Report, Error> {
    let base = base(setup, bars)?;
    let model = args.model.display().to_string();
    let mut report = Report {
        model,
        base,
        rows: Vec::new(),
        ranking: None,
        failed: Vec::new(),
    };
    for &target in &args.types {
        let row = quantized(setup, &report.base, target, bars);
        let row = report.keep(target.name(), row, bars);
        report.rows.extend(row);
    }
    for path in &args.also {
        let row = existing(setup, &report.base, path, bars);
        let row = report.keep(&path.display().to_string(), row, bars);
        report.rows.extend(row);
    }
    if let Some((to, by_role)) = ranking {
        let ranked = sensitivity(setup, &report.base, (to, by_role), bars);
        let kept = report.keep(&format!("one tensor at a time in {to}"), ranked, bars);
        report.ranking = kept.map(|ranked| (to.to_string(), ranked));
    }
    Ok(report)
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
    /// What was measured; or notes why nothing was, and says so at once.
    fn keep<T>(&mut self, name: &str, measured: Result<T, Error>, bars: &Bars) -> Option<T> {
        match measured {
            Ok(measured) => Some(measured),
            Err(error) => {
                bars.0.clear();
                let error = one_line(&error.to_string());
                terminal::note(&format!("octavo: error: {name}: {error}"));
                self.failed.push((name.to_owned(), error));
                None
            }
        }
    }

    /// The base and every type, as cells.
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
        let row = |r: &Row| {
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
            .chain(self.rows.iter().map(row))
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
            "model": self.model,
            "base": {"ppl": b.ppl, "bytes": b.bytes, "bits_per_weight": b.bits,
                     "prompt_rate": b.prompt_rate, "generation_rate": b.generation_rate},
            "types": serde_json::to_value(&self.rows)?,
        });
        if let Some((to, ranking)) = &self.ranking {
            object["sensitivity_type"] = json!(to);
            object["sensitivity"] = serde_json::to_value(ranking)?;
        }
        if !self.failed.is_empty() {
            let failed = |(name, error): &(String, String)| json!({"name": name, "error": error});
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
        for (name, error) in &self.failed {
            page.paragraph(&format!("{name} is missing: {error}"), None);
        }
        if !self.rows.is_empty() {
            page.heading("KL divergence against size");
            let points: Vec<(f64, f64, &str)> = self
                .rows
                .iter()
                .map(|r| (r.bits_per_weight, r.mean_kl.0, r.name.as_str()))
                .collect();
            let axes = Axes {
                title: "Mean KL divergence from the model itself",
                x: "bits per weight",
                y: "mean KL (nats)",
            };
            page.chart(&named_points(axes, &points)?);
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

fn heat_map(page: &mut Page, ranking: &[Sensitivity]) {
    let roles: BTreeSet<&str> = ranking.iter().map(|s| s.role.as_str()).collect();
    let layers: BTreeSet<Option<usize>> = ranking.iter().map(|s| s.layer).collect();
    // a model has many layers and few kinds of tensors: columns are what a screen has no room for
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
