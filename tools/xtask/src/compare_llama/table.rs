//! Results of the programs at one test, as a table for people and as lines of CSV.

use std::fmt::Write as _;
use std::path::Path;

use serde_json::Value;

use super::test::Test;
use crate::side::{self, median, text};

/// Column names of the CSV files.
const NAMES: &str = "date,cpu,model,test,isa,octavo,octavo_cpu_s,program,setting,speed,cpu_s,ratio,\
                     min,max,cpu_ratio";

/// Measurements of one program at a test, one a round.
#[derive(Clone, Debug, Default, PartialEq)]
pub(super) struct Series {
    /// Tokens per second.
    pub(super) rates: Vec<f64>,
    /// CPU seconds of a repetition.
    pub(super) cpu: Vec<f64>,
}

/// Result of another program at a test.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Peer {
    pub(super) name: &'static str,
    /// The fastest setting and its measurements, or why there are none.
    pub(super) result: Result<(String, Series), String>,
}

/// Results of one test.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Line {
    pub(super) test: Test,
    pub(super) ours: Series,
    pub(super) peers: Vec<Peer>,
}

/// Our speed as a multiple of another program's.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Ratio {
    /// Of the medians of the rates.
    pub(super) wall: f64,
    /// Smallest and largest of the rounds.
    spread: (f64, f64),
    /// Of the medians of CPU seconds.
    pub(super) cpu: f64,
}

impl Ratio {
    pub(super) fn of(ours: &Series, theirs: &Series) -> Ratio {
        let each = ours.rates.iter().zip(&theirs.rates).map(|(a, b)| a / b);
        let least = each.clone().fold(f64::INFINITY, f64::min);
        Ratio {
            wall: median(&ours.rates) / median(&theirs.rates),
            spread: (least, each.fold(0.0, f64::max)),
            cpu: median(&theirs.cpu) / median(&ours.cpu),
        }
    }
}

/// Returns the table of one model.
pub(super) fn table(lines: &[Line], about: &Value, rounds: u32) -> String {
    let mut out = format!(
        "{}, {}, {}; medians of {rounds} rounds\n",
        side::model(about),
        text(about, "isa"),
        text(about, "cpu_info")
    );
    out += &format!(
        "{:<24} {:<12} {:>9} {:>8}  {:<20} {:>9}\n",
        "test", "program", "tokens/s", "CPU s", "ratio (min - max)", "CPU ratio"
    );
    for line in lines {
        let (rate, cpu) = (median(&line.ours.rates), median(&line.ours.cpu));
        let test = line.test.to_string();
        // writing to a string cannot fail
        let _ = writeln!(out, "{test:<24} {:<12} {rate:>9.1} {cpu:>8.3}", "octavo");
        for peer in &line.peers {
            let _ = writeln!(out, "{:<24} {}", "", of_peer(&line.ours, peer));
        }
    }
    out
}

fn of_peer(ours: &Series, peer: &Peer) -> String {
    let (setting, theirs) = match &peer.result {
        Ok(result) => result,
        Err(message) => return format!("{:<12} cannot: {message}", peer.name),
    };
    let ratio = Ratio::of(ours, theirs);
    let (least, most) = ratio.spread;
    let spread = format!("{:.2} ({least:.2} - {most:.2})", ratio.wall);
    format!(
        "{:<12} {:>9.1} {:>8.3}  {spread:<20} {:>9.2}  {setting}",
        peer.name,
        median(&theirs.rates),
        median(&theirs.cpu),
        ratio.cpu
    )
}

/// Returns a table of several models: one line for each, with the ratios of wall and CPU time to
/// each other program.
pub(super) fn summary(models: &[(String, Vec<Line>)]) -> String {
    let mut out = "Speed as a multiple of the other program's: wall time, CPU time\n".to_owned();
    for (model, lines) in models {
        for line in lines {
            let _ = write!(out, "{model:<8} {:<24}", line.test.to_string());
            for peer in &line.peers {
                let ratios = match &peer.result {
                    Ok((_, theirs)) => {
                        let ratio = Ratio::of(&line.ours, theirs);
                        format!("{:.2} {:.2}", ratio.wall, ratio.cpu)
                    }
                    Err(_) => "cannot".to_owned(),
                };
                let _ = write!(out, "  {} {ratios:<12}", peer.name);
            }
            let _ = writeln!(out);
        }
    }
    out
}

/// Appends a CSV line for each test and other program.
pub(super) fn append(path: &Path, lines: &[Line], about: &Value) -> Result<(), String> {
    let [date, cpu, isa] = ["test_time", "cpu_info", "isa"].map(|name| text(about, name));
    let model = side::model(about);
    let mut rows = Vec::new();
    for line in lines {
        let (rate, seconds) = (median(&line.ours.rates), median(&line.ours.cpu));
        let ours = format!(
            "{date},\"{cpu}\",\"{model}\",\"{}\",{isa},{rate:.2},{seconds:.4}",
            line.test
        );
        for peer in &line.peers {
            // what a program cannot do is said in the table
            let Ok((setting, theirs)) = &peer.result else {
                continue;
            };
            let ratio = Ratio::of(&line.ours, theirs);
            rows.push(format!(
                "{ours},{},{setting},{:.2},{:.4},{:.3},{:.3},{:.3},{:.3}",
                peer.name,
                median(&theirs.rates),
                median(&theirs.cpu),
                ratio.wall,
                ratio.spread.0,
                ratio.spread.1,
                ratio.cpu
            ));
        }
    }
    side::append(path, NAMES, &rows)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare_llama::test::Tokens;
    use serde_json::json;

    fn line() -> Line {
        let series = |rates: [f64; 3], cpu| Series {
            rates: rates.to_vec(),
            cpu: vec![cpu; 3],
        };
        let peer = |name, result| Peer { name, result };
        Line {
            test: Test {
                threads: 2,
                depth: 0,
                tokens: Tokens::Generated(64),
            },
            ours: series([30.0, 20.0, 40.0], 2.0),
            peers: vec![
                peer(
                    "llama.cpp",
                    Ok(("-fa 1".to_owned(), series([10.0, 5.0, 20.0], 3.0))),
                ),
                peer("ik_llama.cpp", Err("no such type".to_owned())),
            ],
        }
    }

    fn about() -> Value {
        json!({
            "test_time": "2026-01-01T00:00:00Z",
            "cpu_info": "c",
            "model_type": "m",
            "prompt_bits": 8,
            "isa": "avx2"
        })
    }

    #[test]
    fn ratios_are_of_medians_and_their_spread_is_that_of_rounds() {
        let line = line();
        let theirs = &line.peers[0].result.as_ref().expect("measured").1;
        let ratio = Ratio::of(&line.ours, theirs);
        assert_eq!(
            (ratio.wall, ratio.spread, ratio.cpu),
            (3.0, (2.0, 4.0), 1.5)
        );
    }

    #[test]
    fn tables_have_every_program_and_say_what_cannot_be_run() {
        let text = table(&[line()], &about(), 3);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 5, "{text}");
        assert!(lines[3].contains("3.00 (2.00 - 4.00)") && lines[3].ends_with("-fa 1"));
        assert!(lines[4].contains("ik_llama.cpp cannot: no such type"));
        let all = summary(&[("Q4_K".to_owned(), vec![line()])]);
        assert!(all.contains("llama.cpp 3.00 1.50") && all.contains("ik_llama.cpp cannot"));
    }

    #[test]
    fn files_get_one_head_and_only_lines_of_their_kind() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("x.csv");
        for _ in 0..2 {
            append(&path, &[line()], &about()).expect("written");
        }
        let text = std::fs::read_to_string(&path).expect("there");
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!((lines.len(), lines[1]), (3, lines[2]));
        assert_eq!(
            lines[1],
            "2026-01-01T00:00:00Z,\"c\",\"m, prompts in 8 bits\",\"tg64, 2 threads\",avx2,30.00,\
             2.0000,llama.cpp,-fa 1,10.00,3.0000,3.000,2.000,4.000,1.500"
        );
        std::fs::write(&path, "date,other\n").expect("written");
        let refused = append(&path, &[line()], &about()).expect_err("other columns");
        assert!(refused.contains("date,other"), "{refused}");
    }
}
