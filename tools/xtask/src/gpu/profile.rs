//! The time of each kernel of a token, by Nsight Compute.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use super::figures::{Figures, Table};
use super::legs::{Legs, of_cuda};
use super::process;

/// Launches and nanoseconds of a kernel.
type Times = BTreeMap<String, (u32, f64)>;

/// Adds a line of `ncu --csv --print-units base`.
fn add(times: &mut Times, row: &BTreeMap<&str, String>) -> Option<()> {
    let value = row.get("Metric Value")?.replace(',', "");
    let nanoseconds: f64 = value.parse().ok()?;
    let (launches, sum) = times.entry(row.get("Kernel Name")?.clone()).or_default();
    (*launches, *sum) = (*launches + 1, *sum + nanoseconds);
    Some(())
}

impl Legs<'_> {
    /// Writes how long each kernel takes, of a token that is not captured.
    pub(super) fn profile(
        &self,
        model: &Path,
        leg: &str,
        figures: &mut Figures,
    ) -> Result<(), String> {
        let Some(ncu) = of_cuda("ncu") else {
            println!("skipped: ncu (Nsight Compute) was not found");
            return Ok(());
        };
        let octavo = self.programs.octavo();
        let mut command = Command::new(ncu);
        for (name, value) in octavo.get_envs() {
            value.map(|value| command.env(name, value));
        }
        command
            .args(["--csv", "--print-units", "base", "--clock-control", "none"])
            .args(["--metrics", "gpu__time_duration.sum"])
            .arg(octavo.get_program())
            .arg("bench")
            .arg(model)
            .args(["--device", "cuda", "--no-cuda-graph", "--no-limits"])
            .args(["-p", "0", "-n", "1", "-r", "1"]);
        let (mut table, mut times) = (Table::with("Metric Value"), Times::new());
        let ran = process::run_lines(&mut command, self.limit, &mut |line| {
            table.read(line).and_then(|row| add(&mut times, &row));
        });
        let name = model.file_stem().unwrap_or_default().to_string_lossy();
        for (kernel, (launches, nanoseconds)) in times {
            let each = nanoseconds / f64::from(launches) / 1e3;
            let value = format!("{each:.2}");
            let test = format!("{kernel}, {launches} launches");
            figures.note(leg, (&name, &test), &value, "us")?;
        }
        ran.result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn launches_of_a_kernel_are_added_up() {
        let text = "\
==PROF== Connected to process 7
\"ID\",\"Kernel Name\",\"Metric Name\",\"Metric Unit\",\"Metric Value\"
\"0\",\"gemv_Q4_K_1\",\"gpu__time_duration.sum\",\"ns\",\"11,000\"
\"1\",\"rms_norm\",\"gpu__time_duration.sum\",\"ns\",\"4,064\"
\"2\",\"gemv_Q4_K_1\",\"gpu__time_duration.sum\",\"ns\",\"15,000\"
";
        let (mut table, mut times) = (Table::with("Metric Value"), Times::new());
        for line in text.lines() {
            table.read(line).and_then(|row| add(&mut times, &row));
        }
        let all: Vec<_> = times.into_iter().collect();
        let expected = [("gemv_Q4_K_1", (2, 26_000.0)), ("rms_norm", (1, 4064.0))];
        assert_eq!(all, expected.map(|(name, times)| (name.to_owned(), times)));
    }
}
