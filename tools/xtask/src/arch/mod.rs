//! `cargo xtask arch`: begins an architecture from a file of it. Says which supported architecture
//! it is nearest to and what differs, and writes the parts that follow from that.

mod edits;
mod nearest;

use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_model::Arch;

use nearest::{Differences, nearest};

/// Architectures that are shown.
const SHOWN: usize = 3;

/// Begin an architecture from a GGUF file of it: say which one it is nearest to, write
/// src/model/arch/NAME.rs, and add it to the lists and to a test that fails until it is right
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask arch --from model.gguf --dry-run
  cargo xtask arch --from model.gguf
  cargo xtask arch --from model.gguf --like llama

docs/adding-an-architecture.md says how to go on.")]
pub(crate) struct ArchArgs {
    /// GGUF file of the architecture; a small one with random weights is enough
    #[arg(long, value_name = "FILE")]
    from: PathBuf,
    /// Begin with this architecture instead of the nearest one
    #[arg(long, value_name = "NAME")]
    like: Option<String>,
    /// Only say what differs
    #[arg(long)]
    dry_run: bool,
}

/// Runs the task.
pub(crate) fn run(args: &ArchArgs) -> Result<(), String> {
    let gguf = Gguf::open(&args.from, &OpenOptions::default());
    let gguf = Arc::new(gguf.map_err(|error| error.to_string())?);
    let name = gguf
        .str("general.architecture")
        .map_err(|error| error.to_string())?;
    let name = name.ok_or("the file has no general.architecture")?;
    let all = nearest(&gguf, name);
    println!("{name}: nearest among {} architectures", all.len());
    for (other, differences) in all.iter().take(SHOWN) {
        println!("\n{other}: {} differences", differences.count());
        differences
            .lines()
            .iter()
            .for_each(|line| println!("  {line}"));
    }
    if args.dry_run {
        return Ok(());
    }
    if Arch::all().iter().any(|arch| arch.name() == name) {
        return Err(format!(
            "{name} is supported already: expected another architecture"
        ));
    }
    let chosen = match &args.like {
        None => all.first(),
        Some(like) => all.iter().find(|(other, _)| other == like),
    };
    let (other, differences) = chosen.ok_or("--like: expected a supported architecture")?;
    println!();
    write(Path::new("."), name, other, differences)
}

/// Writes the new file and the lines of the others.
fn write(root: &Path, name: &str, other: &str, differences: &Differences) -> Result<(), String> {
    let module = edits::module(name)?;
    let file = root.join(format!("src/model/arch/{module}.rs"));
    if file.exists() {
        return Err(format!("{}: it is there already", file.display()));
    }
    let source = edits::source(name, other, differences);
    let lines = source
        .lines()
        .filter(|line| !line.is_empty() && !line.starts_with("//"))
        .count();
    let row = format!("| {name} | {lines} | - | {name} |");
    let edited = [
        edited(root, "src/model/arch/mod.rs", |text| {
            edits::listed(text, &module)
        })?,
        edited(root, "docs/architectures.md", |text| {
            edits::row_added(text, &row)
        })?,
        edited(root, "reference/tests/architectures.rs", |text| {
            edits::tested(text, name)
        })?,
    ];
    put(&file, &source)?;
    edited.iter().try_for_each(|(path, text)| put(path, text))?;
    println!("\nNext: docs/adding-an-architecture.md, from step 2");
    Ok(())
}

/// Returns a file of the project as it will be.
fn edited(
    root: &Path,
    path: &str,
    edit: impl FnOnce(&str) -> Result<String, String>,
) -> Result<(PathBuf, String), String> {
    let full = root.join(path);
    let text = fs::read_to_string(&full).map_err(|error| format!("{path}: {error}"))?;
    let text = edit(&text).map_err(|error| format!("{path}: {error}"))?;
    Ok((full, text))
}

fn put(path: &Path, text: &str) -> Result<(), String> {
    fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))?;
    println!("wrote {}", path.display());
    Ok(())
}
