//! `cargo xtask skips`: checks the number of skipped tests.

use std::collections::BTreeMap;
use std::fmt::Write as _;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use octavo_fixtures::{Lacks, workspace_root};

/// Sum up the skipped tests, and fail if there are more than allowed
///
/// Tests add a line to the file named by OCTAVO_SKIPS for everything they skip. The largest number
/// of each kind is in tests/skips.txt.
#[derive(Debug, Args)]
pub(crate) struct SkipsArgs {
    /// File that the tests wrote
    file: PathBuf,
    /// Kinds of which any number is allowed, because this machine is known to lack something
    #[arg(long, value_name = "KINDS", value_delimiter = ',', value_parser = kind)]
    without: Vec<Lacks>,
}

pub(crate) fn run(args: &SkipsArgs) -> Result<(), String> {
    let read = |path: &Path| {
        fs::read_to_string(path).map_err(|error| format!("{}: {error}", path.display()))
    };
    let bounds = read(&workspace_root().join("tests/skips.txt"))?;
    let skips = Skips::parse(&read(&args.file)?)?;
    println!("{}", skips.summary());
    skips.hold(&parse_bounds(&bounds)?, &args.without)
}

fn kind(name: &str) -> Result<Lacks, String> {
    let mut all = Lacks::ALL.into_iter();
    all.find(|lacks| lacks.to_string() == name)
        .ok_or_else(|| format!("expected a kind of what tests lack, got '{name}'"))
}

/// Parses the bound of every kind, in the order of [`Lacks::ALL`].
fn parse_bounds(text: &str) -> Result<Vec<usize>, String> {
    let mut bounds = vec![None; Lacks::ALL.len()];
    for line in text.lines() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let wrong = |what| format!("tests/skips.txt: expected {what}, got '{line}'");
        let (name, most) = line.split_once('=').ok_or_else(|| wrong("KIND = NUMBER"))?;
        let most = most.trim().parse().map_err(|_| wrong("a number"))?;
        if bounds[kind(name.trim())? as usize].replace(most).is_some() {
            return Err(wrong("every kind once"));
        }
    }
    let all = Lacks::ALL.into_iter().zip(bounds);
    all.map(|(lacks, most)| most.ok_or_else(|| format!("tests/skips.txt: no bound of '{lacks}'")))
        .collect()
}

/// By kind, in the order of [`Lacks::ALL`]: how often each test skipped something.
struct Skips(Vec<BTreeMap<String, usize>>);

impl Skips {
    fn parse(text: &str) -> Result<Skips, String> {
        let mut all = vec![BTreeMap::new(); Lacks::ALL.len()];
        for line in text.lines() {
            let (name, test) = line
                .split_once('\t')
                .ok_or_else(|| format!("expected KIND, a tab and TEST, got '{line}'"))?;
            *all[kind(name)? as usize]
                .entry(test.to_owned())
                .or_default() += 1;
        }
        Ok(Skips(all))
    }

    /// Returns the number of tests that skipped something, by kind.
    fn counts(&self) -> impl Iterator<Item = (Lacks, usize)> {
        let tests = self.0.iter().map(BTreeMap::len);
        Lacks::ALL.into_iter().zip(tests)
    }

    fn summary(&self) -> String {
        let mut line = format!("{} skipped", self.counts().map(|(_, n)| n).sum::<usize>());
        let some = self.counts().filter(|(_, n)| *n > 0);
        for (i, (lacks, n)) in some.enumerate() {
            let _ = write!(line, "{} {lacks} {n}", if i == 0 { ":" } else { "," });
        }
        line
    }

    /// Fails if a kind exceeds its bound, and names those tests.
    fn hold(&self, bounds: &[usize], without: &[Lacks]) -> Result<(), String> {
        let mut wrong = String::new();
        for (lacks, n) in self.counts() {
            let most = bounds[lacks as usize];
            if n <= most || without.contains(&lacks) {
                continue;
            }
            let _ = write!(wrong, "\n  {lacks}: expected {most} at most, got {n}");
            for (test, n) in &self.0[lacks as usize] {
                let _ = write!(wrong, "\n    {test}: {n}");
            }
        }
        match wrong.is_empty() {
            true => Ok(()),
            false => Err(format!(
                "more tests are left out than tests/skips.txt allows:{wrong}"
            )),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = "fixtures\ta::b\ninstruction set\tm::c\nfixtures\ta::d\nfixtures\ta::b\n";

    #[test]
    fn skips_are_summed_by_kind() {
        let summary = |text| Skips::parse(text).map(|skips| skips.summary());
        assert_eq!(
            summary(LINES),
            Ok("3 skipped: fixtures 2, instruction set 1".to_owned())
        );
        assert_eq!(summary(""), Ok("0 skipped".to_owned()));
        for wrong in ["fixtures a::b", "luck\ta::b"] {
            let error = summary(wrong).expect_err(wrong);
            assert!(error.starts_with("expected"), "{error}");
        }
    }

    #[test]
    fn more_than_a_bound_fails_and_names_the_tests() {
        let skips = Skips::parse(LINES).expect("lines");
        let hold = |fixtures, without: &[Lacks]| {
            let mut bounds = vec![1; Lacks::ALL.len()];
            bounds[Lacks::Fixtures as usize] = fixtures;
            skips.hold(&bounds, without)
        };
        assert_eq!(hold(2, &[]), Ok(()));
        assert_eq!(hold(0, &[Lacks::Fixtures]), Ok(()));
        let error = hold(1, &[Lacks::Compiler]).expect_err("two");
        assert!(
            error.ends_with("\n  fixtures: expected 1 at most, got 2\n    a::b: 2\n    a::d: 1"),
            "{error}"
        );
    }

    #[test]
    fn every_kind_has_one_bound() {
        let committed = fs::read_to_string(workspace_root().join("tests/skips.txt"));
        let committed = committed.expect("it is part of the repository");
        parse_bounds(&committed).expect("all kinds");
        for (wrong, says) in [
            ("", "no bound of 'fixtures'"),
            ("fixtures = 0\nfixtures = 1", "every kind once"),
            ("fixtures", "KIND = NUMBER"),
            ("fixtures = few", "a number"),
            ("luck = 1", "a kind of what tests lack"),
        ] {
            let error = parse_bounds(wrong).expect_err(wrong);
            assert!(error.contains(says), "{error}");
        }
    }
}
