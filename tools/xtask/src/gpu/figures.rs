//! The table of a plan's figures: a line as soon as there is one, beside what was predicted.

use std::collections::BTreeMap;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::path::{Path, PathBuf};

/// Table that [`super::predict`] wrote.
const PREDICTIONS: &str = include_str!("../../../bench/gpu-predictions.csv");

/// Names of the columns.
const HEAD: &str = "gpu,plan,leg,model,test,value,unit,predicted";

/// A file of figures.
pub(super) struct Figures {
    file: File,
    path: PathBuf,
    gpu: String,
    plan: String,
    predictions: BTreeMap<(String, String), String>,
}

impl Figures {
    /// Opens a file, to which lines are appended; the names of columns are its first line.
    pub(super) fn open(path: &Path, gpu: &str, plan: &str) -> Result<Figures, String> {
        let wrong = |error: std::io::Error| format!("{}: {error}", path.display());
        if let Some(dir) = path.parent() {
            std::fs::create_dir_all(dir).map_err(wrong)?;
        }
        let mut open = OpenOptions::new();
        let mut file = open.create(true).append(true).open(path).map_err(wrong)?;
        if file.metadata().map_err(wrong)?.len() == 0 {
            writeln!(file, "{HEAD}").map_err(wrong)?;
        }
        Ok(Figures {
            file,
            path: path.to_owned(),
            gpu: gpu.to_owned(),
            plan: plan.to_owned(),
            predictions: predictions(),
        })
    }

    /// Writes a figure.
    pub(super) fn note(
        &mut self,
        leg: &str,
        (model, test): (&str, &str),
        value: &str,
        unit: &str,
    ) -> Result<(), String> {
        let predicted = self.predictions.get(&(model.to_owned(), test.to_owned()));
        let predicted = predicted.map_or("", String::as_str);
        let Figures { gpu, plan, .. } = self;
        let line =
            format!("\"{gpu}\",{plan},{leg},\"{model}\",\"{test}\",\"{value}\",{unit},{predicted}");
        println!("{line}");
        // in one piece, and at once: the machine may be taken away
        let written = self.file.write_all(format!("{line}\n").as_bytes());
        let written = written.and_then(|()| self.file.sync_data());
        written.map_err(|error| format!("{}: {error}", self.path.display()))
    }
}

/// Returns the predicted speeds, by model and test.
fn predictions() -> BTreeMap<(String, String), String> {
    let row = |line: &str| match &fields(line)[..] {
        [_, model, test, speed] => Some(((model.clone(), test.clone()), speed.clone())),
        _ => None,
    };
    PREDICTIONS.lines().skip(1).filter_map(row).collect()
}

/// Splits a line of CSV. Quotes in quoted fields are doubled.
fn fields(line: &str) -> Vec<String> {
    let (mut all, mut quoted) = (vec![String::new()], false);
    let mut chars = line.chars().peekable();
    while let Some(c) = chars.next() {
        let last = all.last_mut().expect("there is one");
        match c {
            '"' if quoted && chars.peek() == Some(&'"') => last.extend(chars.next()),
            '"' => quoted = !quoted,
            ',' if !quoted => all.push(String::new()),
            c => last.push(c),
        }
    }
    all
}

/// A figure of octavo bench: model, test, tokens per second, and hash of the tokens.
#[derive(Debug, PartialEq)]
pub(super) struct Speed {
    pub(super) model: String,
    pub(super) test: String,
    pub(super) tokens_per_second: String,
    pub(super) hash: String,
}

/// A table whose lines come one at a time, after others that do not belong to it.
pub(super) struct Table {
    /// A column by which the line of names is known.
    column: &'static str,
    names: Vec<String>,
}

impl Table {
    pub(super) fn with(column: &'static str) -> Table {
        Table {
            column,
            names: Vec::new(),
        }
    }

    /// Returns the fields of a line by name; `None` for that of the names, and those before it.
    pub(super) fn read(&mut self, line: &str) -> Option<BTreeMap<&str, String>> {
        let row = fields(line);
        if self.names.is_empty() {
            if row.iter().any(|name| name == self.column) {
                self.names = row;
            }
            return None;
        }
        Some(self.names.iter().map(String::as_str).zip(row).collect())
    }
}

impl Speed {
    /// Reads a line of `octavo bench -o csv`.
    pub(super) fn of(row: &BTreeMap<&str, String>) -> Option<Speed> {
        let field = |name: &str| row.get(name);
        let (prompt, generated, depth) = (field("n_prompt")?, field("n_gen")?, field("n_depth")?);
        let test = match (generated.as_str(), depth.as_str()) {
            ("0", "0") => format!("pp{prompt}"),
            ("0", _) => format!("pp{prompt} @ d{depth}"),
            _ => format!("{} sequences @ d{depth}", field("n_sequences")?),
        };
        let speed: f64 = field("avg_ts")?.parse().ok()?;
        Some(Speed {
            model: field("model_type")?.clone(),
            test,
            tokens_per_second: format!("{speed:.1}"),
            hash: field("token_hash")?.clone(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_there_as_soon_as_they_are_known() {
        let dir = tempfile::tempdir().expect("a folder");
        let path = dir.path().join("new/figures.csv");
        let text = || std::fs::read_to_string(&path).expect("it is there");
        let mut figures = Figures::open(&path, "GPU", "speed").expect("it is made");
        let test = ("qwen3 8.2B Q4_K_M", "1 sequences @ d0");
        figures.note("large", test, "410.1", "t/s").expect("room");
        let line = "\"GPU\",speed,large,\"qwen3 8.2B Q4_K_M\",\"1 sequences @ d0\",\"410.1\",t/s";
        assert_eq!(text(), format!("{HEAD}\n{line},402\n"));
        // another run goes on; nothing was predicted
        let mut figures = Figures::open(&path, "GPU", "check").expect("it is there");
        figures
            .note("tests", ("", "seconds"), "7", "s")
            .expect("room");
        let other = "\"GPU\",check,tests,\"\",\"seconds\",\"7\",s,";
        assert_eq!(text(), format!("{HEAD}\n{line},402\n{other}\n"));
    }

    #[test]
    fn benchmarks_are_named_as_the_predictions_are() {
        let mut table = Table::with("avg_ts");
        let mut read = |line: &str| table.read(line).and_then(|row| Speed::of(&row));
        assert_eq!(read("some other line"), None);
        let names = "cpu_info,model_type,n_prompt,n_gen,n_depth,avg_ts,n_sequences,token_hash";
        assert_eq!(read(names), None);
        let mut test = |line: &str| read(line).expect("a figure").test;
        let pp = "\"a \"\"b\"\", c\",\"m\",\"512\",\"0\",\"0\",\"15677.23\",\"1\",\"ab\"";
        assert_eq!(test(pp), "pp512");
        assert_eq!(test("x,m,0,128,4096,9,16,ab"), "16 sequences @ d4096");
        assert_eq!(test("x,m,64,0,8,9,1,ab"), "pp64 @ d8");
        let all = read(pp).expect("a figure");
        assert_eq!(
            (&*all.model, &*all.tokens_per_second, &*all.hash),
            ("m", "15677.2", "ab")
        );
        assert_eq!(read("broken"), None);
        let all = predictions();
        let known = ("qwen3 0.6B Q8_0".to_owned(), "pp512".to_owned());
        assert!(all.contains_key(&known) && all.len() > 50);
    }
}
