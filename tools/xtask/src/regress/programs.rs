//! The two programs that are compared, each built from its commit.

use std::path::{Path, PathBuf};
use std::process::Command;

use octavo_fixtures::workspace_root;

use crate::side;

/// A program and the name of what it was built from.
pub(super) struct Program {
    pub(super) name: String,
    pub(super) path: PathBuf,
}

impl Program {
    /// Builds the working tree.
    pub(super) fn of_working_tree() -> Result<Program, String> {
        let changes = git(&["status", "--porcelain", "--untracked-files=no"], None)?;
        let more = if changes.is_empty() {
            ""
        } else {
            " and changes"
        };
        Ok(Program {
            name: format!("{}{more}", short_hash("HEAD")?),
            path: side::build()?,
        })
    }

    /// Builds a commit, unless that was done before.
    pub(super) fn at(commit: &str) -> Result<Program, String> {
        let name = short_hash(commit)?;
        // builds run in another folder
        let dir = std::path::absolute(workspace_root().join("target/regress"));
        let dir = dir.map_err(|error| format!("target/regress: {error}"))?;
        let path = dir.join(format!("octavo-{name}{}", std::env::consts::EXE_SUFFIX));
        if !path.is_file() {
            let source = dir.join(format!("source-{name}"));
            let built = build(&name, &source, &dir.join("build"));
            // the source is of no use afterwards, built or not
            let removed = git(&["worktree", "remove", "--force"], Some(&source));
            let built = built?;
            removed?;
            std::fs::copy(&built, &path).map_err(|error| format!("{}: {error}", path.display()))?;
        }
        Ok(Program { name, path })
    }
}

/// Builds a commit in a folder of its own, and returns its program.
fn build(commit: &str, source: &Path, target: &Path) -> Result<PathBuf, String> {
    println!("building {commit}");
    git(&["worktree", "prune"], None)?;
    let mut add = Command::new("git");
    add.args(["worktree", "add", "--quiet", "--force", "--detach"]);
    crate::must(add.arg(source).arg(commit).current_dir(workspace_root()))?;
    let mut cargo = crate::cargo();
    cargo.args([
        "build",
        "--release",
        "--quiet",
        "--bin",
        "octavo",
        "--target-dir",
    ]);
    crate::must(cargo.arg(target).current_dir(source))?;
    Ok(target.join(format!("release/octavo{}", std::env::consts::EXE_SUFFIX)))
}

/// Returns the first ten digits of a commit's hash.
fn short_hash(commit: &str) -> Result<String, String> {
    let name = format!("{commit}^{{commit}}");
    let said = git(
        &["rev-parse", "--verify", "--quiet", "--short=10", &name],
        None,
    );
    said.map_err(|_| format!("{commit}: expected a commit of this repository"))
}

/// Runs git in the repository and returns what it printed.
fn git(args: &[&str], path: Option<&Path>) -> Result<String, String> {
    let mut command = Command::new("git");
    command.args(args).args(path).current_dir(workspace_root());
    let output = command
        .output()
        .map_err(|error| format!("cannot start git: {error}"))?;
    if !output.status.success() {
        let message = String::from_utf8_lossy(&output.stderr);
        return Err(format!("git {}: {}", args.join(" "), message.trim_end()));
    }
    Ok(String::from_utf8_lossy(&output.stdout)
        .trim_end()
        .to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commits_are_named_or_refused() {
        let refused = Program::at("no-such-commit").err().expect("refused");
        assert_eq!(
            refused,
            "no-such-commit: expected a commit of this repository"
        );
    }
}
