//! Prints the results as a table and as CSV.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::scenario::Scenario;
use super::{Rate, Test};
use crate::side::{self, text};

/// A program's speed in a scenario and on the quiet machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Cell {
    pub(super) rate: Rate,
    pub(super) quiet: Rate,
}

/// A scenario's test, or the reason it was skipped.
pub(super) struct Row {
    scenario: Scenario,
    test: String,
    fair: f64,
    /// Cells of octavo, the baseline if there is one, and llama.cpp; empty if skipped.
    cells: Vec<Cell>,
    skipped: Option<String>,
}

/// Formats a quotient with its bound: an upper bound if the dividend is one, a lower bound if the
/// divisor is one, unknown if both are.
fn quotient(a: Rate, b: Rate, digits: usize) -> String {
    match (a, b) {
        (Rate::Measured(a), Rate::Measured(b)) => format!("{:.digits$}", a / b),
        (Rate::Below(a), Rate::Measured(b)) => format!("<{:.digits$}", a / b),
        (Rate::Measured(a), Rate::Below(b)) => format!(">{:.digits$}", a / b),
        (Rate::Below(_), Rate::Below(_)) => "?".to_owned(),
    }
}

fn speed(rate: Rate) -> String {
    match rate {
        Rate::Measured(rate) => format!("{rate:.1}"),
        Rate::Below(bound) => format!("<{bound:.1}"),
    }
}

impl Row {
    pub(super) fn measured(scenario: Scenario, test: Test, fair: f64, cells: Vec<Cell>) -> Row {
        Row {
            scenario,
            test: test.name(),
            fair,
            cells,
            skipped: None,
        }
    }

    pub(super) fn skipped(scenario: Scenario, why: String) -> Row {
        Row {
            scenario,
            test: "-".to_owned(),
            fair: 0.0,
            cells: Vec::new(),
            skipped: Some(why),
        }
    }

    /// Returns Octavo's speed relative to llama.cpp's.
    fn ratio(&self) -> String {
        match &self.cells[..] {
            [ours, .., theirs] => quotient(ours.rate, theirs.rate, 2),
            _ => String::new(),
        }
    }
}

/// Formats the table; `setting` is the number of threads and of rounds.
pub(super) fn render(
    rows: &[Row],
    programs: &[&str],
    about: &Value,
    setting: (usize, u32),
) -> String {
    let (threads, rounds) = setting;
    let [isa, cpu] = ["isa", "cpu_info"].map(|name| text(about, name));
    let model = side::model(about);
    let s = if threads == 1 { "" } else { "s" };
    let mut out = format!(
        "{model}, {isa}, {cpu}, {threads} thread{s}; tokens per second and their share of the \
         program's own quiet speed, median of {rounds} round{}\n",
        if rounds == 1 { "" } else { "s" }
    );
    out += &format!("{:<8} {:<6} {:>5}", "scenario", "test", "fair");
    for name in programs {
        out += &format!(" {name:>10} {:>6}", "share");
    }
    out += "  octavo/llama.cpp\n";
    for row in rows {
        // writing to a string cannot fail
        let _ = match &row.skipped {
            Some(why) => writeln!(out, "{:<8} skipped: {why}", row.scenario),
            None => {
                let _ = write!(out, "{:<8} {:<6} {:>5.2}", row.scenario, row.test, row.fair);
                for cell in &row.cells {
                    let _ = write!(
                        out,
                        " {:>10} {:>6}",
                        speed(cell.rate),
                        quotient(cell.rate, cell.quiet, 2)
                    );
                }
                writeln!(out, "  {:>16}", row.ratio())
            }
        };
    }
    out
}

/// Appends a CSV line for each row.
pub(super) fn append(path: &Path, rows: &[Row], about: &Value) -> Result<(), String> {
    let [date, cpu] = ["test_time", "cpu_info"].map(|name| text(about, name));
    let model = side::model(about);
    let line = |row: &Row| {
        let cell = |cell: Option<&Cell>| {
            cell.map_or(",".to_owned(), |c| {
                format!("{},{}", speed(c.rate), quotient(c.rate, c.quiet, 3))
            })
        };
        let (first, last) = (row.cells.first(), row.cells.last());
        let baseline = row.cells.get(1).filter(|_| row.cells.len() == 3);
        let fair = if row.skipped.is_some() {
            String::new()
        } else {
            format!("{:.3}", row.fair)
        };
        let [ours, baseline, theirs] = [first, baseline, last].map(cell);
        let (scenario, test, ratio) = (row.scenario, &row.test, row.ratio());
        let skipped = row.skipped.as_deref().unwrap_or_default().replace('"', "'");
        format!(
            "{date},\"{cpu}\",\"{model}\",{scenario},{test},{fair},{ours},{baseline},\
             {theirs},{ratio},\"{skipped}\""
        )
    };
    let names = "date,cpu,model,scenario,test,fair,\
                 octavo,octavo_share,baseline,baseline_share,llama_cpp,\
                 llama_cpp_share,ratio,skipped";
    side::append(path, names, &rows.iter().map(line).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    fn rows() -> [Row; 3] {
        let cell = |rate, quiet| Cell {
            rate,
            quiet: Rate::Measured(quiet),
        };
        let (ours, old) = (
            cell(Rate::Measured(100.0), 200.0),
            cell(Rate::Measured(4.0), 160.0),
        );
        let theirs = cell(Rate::Below(5.0), 150.0);
        [
            Row::measured(
                Scenario::Busy2,
                Test::Generation(48),
                0.5,
                vec![ours, theirs],
            ),
            Row::measured(
                Scenario::Busy2,
                Test::Generation(48),
                0.5,
                vec![ours, old, theirs],
            ),
            Row::skipped(Scenario::Quota, "no \"groups\"".to_owned()),
        ]
    }

    #[test]
    fn rows_have_speeds_shares_and_bounds() {
        let about = json!({"model_type": "m", "prompt_bits": 8, "isa": "avx2", "cpu_info": "c"});
        let [two, three, skipped] = rows();
        let text = render(&[two, skipped], &["octavo", "llama.cpp"], &about, (2, 3));
        let lines: Vec<&str> = text.lines().collect();
        assert!(
            lines[0].starts_with("m, prompts in 8 bits, avx2, c, 2 threads; "),
            "{text}"
        );
        assert_eq!(
            lines[2],
            "busy2    tg48    0.50      100.0   0.50       <5.0  <0.03            >20.00"
        );
        assert_eq!(lines[3], "quota    skipped: no \"groups\"");
        let text = render(
            &[three],
            &["octavo", "baseline", "llama.cpp"],
            &about,
            (1, 3),
        );
        assert!(
            text.contains("1 thread;") && text.contains(" 4.0   0.03 "),
            "{text}"
        );
        assert_eq!(quotient(Rate::Below(1.0), Rate::Below(1.0), 2), "?");
    }

    #[test]
    fn lines_have_every_column() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = folder.path().join("busy.csv");
        let about =
            json!({"model_type": "m", "test_time": "2026-01-01T00:00:00Z", "cpu_info": "c"});
        append(&path, &rows(), &about).expect("written");
        let text = std::fs::read_to_string(&path).expect("there");
        let lines: Vec<&str> = text.lines().collect();
        let start = "2026-01-01T00:00:00Z,\"c\",\"m\"";
        assert_eq!(
            lines[1],
            format!("{start},busy2,tg48,0.500,100.0,0.500,,,<5.0,<0.033,>20.00,\"\"")
        );
        assert_eq!(
            lines[2],
            format!("{start},busy2,tg48,0.500,100.0,0.500,4.0,0.025,<5.0,<0.033,>20.00,\"\"")
        );
        assert_eq!(lines[3], format!("{start},quota,-,,,,,,,,,\"no 'groups'\""));
        let columns = lines[0].split(',').count();
        assert!(
            lines.iter().all(|line| line.split(',').count() == columns),
            "{text}"
        );
    }
}
