//! `cargo xtask dist`: builds what users install, and proves that it works where they are.

mod archive;
mod check;
mod system;
mod tools;

use std::ffi::OsString;
use std::fs;
use std::path::{Path, PathBuf};

use clap::Args;
use octavo_fixtures::workspace_root;

use archive::Stage;
use check::Proof;
use system::{GLIBC, System};
use tools::{Tools, add_target, require};

/// Version of what is built.
const VERSION: &str = env!("CARGO_PKG_VERSION");

/// Targets that have no archive, but are kept compiling, and the checked packages: the whole
/// program for Apple's CPUs; for Intel's, the crates that know both the system and the CPU.
const MACOS: [(&str, &[&str]); 2] = [
    ("aarch64-apple-darwin", &["octavo-llm"]),
    ("x86_64-apple-darwin", &["gguf-rs-lite", "octavo-kernels"]),
];

/// Build what users install: archives, Debian packages, an installer
///
/// Programs for Linux run with every glibc from 2.17 on; Zig links them, MinGW those for Windows.
/// Symbols are in archives of their own. Takes an hour on two CPUs.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask dist                          build everything
  cargo xtask dist --only linux             one system
  cargo xtask dist --check                  prove all that was built
  cargo xtask dist --check --prove wine     one proof
  cargo xtask dist --macos                  check that it compiles for macOS")]
pub(crate) struct DistArgs {
    /// Systems to build for; all if not given
    #[arg(long, value_name = "SYSTEMS", value_delimiter = ',')]
    #[arg(conflicts_with_all = ["check", "macos"])]
    only: Vec<System>,
    /// Folder of the archives
    #[arg(long, value_name = "DIR", default_value = "target/dist")]
    dir: PathBuf,
    /// Prove the archives instead: in a bare Debian, under Wine and under qemu, as root; and that
    /// the crates can be published
    #[arg(long)]
    check: bool,
    /// Proofs to run; all if not given
    #[arg(long, value_name = "PROOFS", value_delimiter = ',', requires = "check")]
    prove: Vec<Proof>,
    /// Only check that macOS compiles: the program for Apple's CPUs, its kernels for Intel's
    #[arg(long, conflicts_with = "check")]
    macos: bool,
}

pub(crate) fn run(args: &DistArgs) -> Result<(), String> {
    if args.macos {
        return check_macos();
    }
    let dir = std::path::absolute(&args.dir)
        .map_err(|error| format!("{}: {error}", args.dir.display()))?;
    if args.check {
        return check::run(&dir, &args.prove);
    }
    make_folder(&dir)?;
    let systems = match args.only.is_empty() {
        true => &System::ALL[..],
        false => &args.only,
    };
    require(&archive::NEEDS)?;
    for system in systems {
        require(system.needs())?;
    }
    let tools = Tools::zig()?;
    for system in systems {
        println!("== {}", system.triple());
        build(*system, &tools)?;
        let stage = Stage::fill(*system, &dir)?;
        stage.pack(&dir)?;
        if let Some(architecture) = system.debian() {
            stage.make_debian_package(&tools, &dir, architecture)?;
        }
    }
    archive::write_installers(&dir)?;
    archive::sum(&dir)
}

fn make_folder(dir: &Path) -> Result<(), String> {
    fs::create_dir_all(dir).map_err(|error| format!("{}: {error}", dir.display()))
}

/// Builds the program for a system.
fn build(system: System, tools: &Tools) -> Result<(), String> {
    add_target(system.triple())?;
    let (mut command, target) = match system {
        System::Windows => {
            let mut command = crate::cargo();
            command.arg("build");
            (command, system.triple().to_owned())
        }
        System::Linux | System::LinuxArm => {
            let mut command = tools.cargo_zigbuild();
            command.arg("zigbuild");
            (command, format!("{}.{GLIBC}", system.triple()))
        }
    };
    let program = ["--package", "octavo-llm", "--bin", "octavo"];
    command.args(["--release", "--locked", "--target", &target]);
    // symbols are what the archives of symbols are for, whatever the environment says
    command.env("CARGO_PROFILE_RELEASE_DEBUG", "line-tables-only");
    command.env("CARGO_ENCODED_RUSTFLAGS", flags()?);
    crate::must(command.args(program).current_dir(workspace_root()))
}

/// Returns the compiler's flags, whatever the environment says. They leave no folder of this
/// machine in a program: messages of panics have paths of sources, and symbols have more of them.
fn flags() -> Result<OsString, String> {
    let home = std::env::var_os("CARGO_HOME").map(PathBuf::from);
    let home = home.or_else(|| Some(std::env::home_dir()?.join(".cargo")));
    let home = home.ok_or("CARGO_HOME: expected the folder of Cargo")?;
    let mut flags = OsString::new();
    for (folder, name) in [(workspace_root(), "/octavo"), (home, "/cargo")] {
        let folder = folder.canonicalize();
        let folder = folder.map_err(|error| format!("{name}: {error}"))?;
        if !flags.is_empty() {
            flags.push("\x1f");
        }
        flags.push("--remap-path-prefix=");
        flags.push(folder);
        flags.push(format!("={name}"));
    }
    Ok(flags)
}

/// Checks that the program compiles for macOS. Its C code, which is the cryptography of TLS, is
/// compiled by Zig: only linking would take Apple's own files.
fn check_macos() -> Result<(), String> {
    let tools = Tools::zig()?;
    for (triple, packages) in MACOS {
        add_target(triple)?;
        println!("== {triple}");
        let mut command = tools.cargo_zigbuild();
        command.args(["check", "--release", "--locked", "--target", triple]);
        command.args(packages.iter().flat_map(|name| ["--package", name]));
        crate::must(command.current_dir(workspace_root()))?;
    }
    Ok(())
}
