//! Contents of archives and packages: the program, manual pages, completions and texts. They are
//! packed as tar.xz, zip and as packages of Debian.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use octavo_fixtures::workspace_root;

use super::system::System;
use super::tools::Tools;
use super::{VERSION, make_folder};

/// Programs that pack, with Debian's packages of them.
pub(super) const NEEDS: [(&str, &str); 4] = [
    ("tar", "tar"),
    ("xz", "xz-utils"),
    ("zip", "zip"),
    ("sha256sum", "coreutils"),
];

/// Texts of every archive.
const TEXTS: [&str; 4] = ["README.md", "CHANGELOG.md", "LICENSE-MIT", "LICENSE-APACHE"];

/// Two lines that make an image of a container.
const CONTAINER: &str = "\
FROM docker.io/library/debian:bookworm-slim
RUN --mount=type=bind,target=/dist \
dpkg --install /dist/octavo_*_$(dpkg --print-architecture).deb
";

/// Files of one system, laid out as they are installed.
pub(super) struct Stage {
    system: System,
    /// Folder of all stages.
    parent: PathBuf,
    /// Name of its folder, and of the archive without its ending.
    name: String,
}

fn wrong(path: &Path) -> impl Fn(std::io::Error) -> String + '_ {
    move |error| format!("{}: {error}", path.display())
}

/// Returns an archive's name without its ending.
pub(super) fn name(system: System) -> String {
    format!("octavo-{VERSION}-{}", system.triple())
}

impl Stage {
    /// Lays out the files of a system below `dir`. Its program runs to print its own manual.
    pub(super) fn fill(system: System, dir: &Path) -> Result<Stage, String> {
        let stage = Stage {
            system,
            parent: dir.join("stages"),
            name: name(system),
        };
        let root = stage.root();
        if root.exists() {
            fs::remove_dir_all(&root).map_err(wrong(&root))?;
        }
        match system {
            System::Windows => stage.fill_flat()?,
            System::Linux | System::LinuxArm => stage.fill_prefix()?,
        }
        Ok(stage)
    }

    fn root(&self) -> PathBuf {
        self.parent.join(&self.name)
    }

    /// Returns the folder of the symbols.
    fn symbols(&self) -> PathBuf {
        self.parent.join(format!("{}-symbols", self.name))
    }

    /// Lays out what is unpacked anywhere: all files in one folder.
    fn fill_flat(&self) -> Result<(), String> {
        let root = self.root();
        self.place_program(&root)?;
        copy_texts(&root)
    }

    /// Lays out what is unpacked below a prefix such as `/usr/local`.
    fn fill_prefix(&self) -> Result<(), String> {
        let root = self.root();
        self.place_program(&root.join("bin"))?;
        copy_texts(&root.join("share/doc/octavo"))?;
        let octavo = Own::new(self.system, &root.join("bin").join("octavo"));
        let manual = root.join("share/man/man1");
        octavo.write(&["man"], &manual.join("octavo.1"))?;
        for command in octavo.commands()? {
            octavo.write(
                &["man", &command],
                &manual.join(format!("octavo-{command}.1")),
            )?;
        }
        for (shell, path) in [
            ("bash", "bash-completion/completions/octavo"),
            ("zsh", "zsh/site-functions/_octavo"),
            ("fish", "fish/vendor_completions.d/octavo.fish"),
        ] {
            octavo.write(&["completions", shell], &root.join("share").join(path))?;
        }
        Ok(())
    }

    /// Places the program without symbols into a folder, and its symbols apart.
    fn place_program(&self, dir: &Path) -> Result<(), String> {
        let (built, name) = (self.system.built(), self.system.program());
        let symbols = self.symbols();
        make_folder(dir)?;
        make_folder(&symbols)?;
        let symbols = symbols.join(format!("{name}.debug"));
        let placed = dir.join(name);
        let objcopy = || Command::new(self.system.binutil("objcopy"));
        let keep = "--only-keep-debug";
        crate::must(objcopy().arg(keep).arg(&built).arg(&symbols))?;
        let mut link = std::ffi::OsString::from("--add-gnu-debuglink=");
        link.push(&symbols);
        crate::must(
            objcopy()
                .arg("--strip-all")
                .arg(link)
                .arg(&built)
                .arg(&placed),
        )
    }

    /// Packs the program's archive and that of its symbols.
    pub(super) fn pack(&self, dir: &Path) -> Result<(), String> {
        let symbols = format!("{}-symbols", self.name);
        for folder in [self.name.as_str(), &symbols] {
            match self.system {
                System::Windows => self.zip(folder, dir)?,
                System::Linux | System::LinuxArm => self.tar(folder, dir)?,
            }
        }
        Ok(())
    }

    fn tar(&self, folder: &str, dir: &Path) -> Result<(), String> {
        let mut command = Command::new("tar");
        command.args(["--create", "--xz", "--sort=name", "--numeric-owner"]);
        command.args(["--owner=0", "--group=0", "--mode=go=rX,u+rw"]);
        command.arg(format!("--mtime=@{}", time_of_commit()?));
        command
            .arg("--file")
            .arg(dir.join(format!("{folder}.tar.xz")));
        crate::must(
            command
                .env("XZ_OPT", "-9")
                .current_dir(&self.parent)
                .arg(folder),
        )
    }

    fn zip(&self, folder: &str, dir: &Path) -> Result<(), String> {
        let time = format!("@{}", time_of_commit()?);
        let find = [
            "-exec",
            "touch",
            "--no-dereference",
            "--date",
            &time,
            "{}",
            "+",
        ];
        crate::must(
            Command::new("find")
                .arg(self.parent.join(folder))
                .args(find),
        )?;
        let archive = dir.join(format!("{folder}.zip"));
        // zip adds to an archive that is there
        if archive.exists() {
            fs::remove_file(&archive).map_err(wrong(&archive))?;
        }
        let mut command = Command::new("zip");
        command
            .args(["--quiet", "--recurse-paths", "-X", "-9"])
            .arg(archive);
        crate::must(
            command
                .env("TZ", "UTC")
                .current_dir(&self.parent)
                .arg(folder),
        )
    }

    /// Makes a package of Debian; its contents are listed in `Cargo.toml`.
    pub(super) fn make_debian_package(
        &self,
        tools: &Tools,
        dir: &Path,
        architecture: &str,
    ) -> Result<(), String> {
        // where Cargo.toml expects the files
        let assets = workspace_root().join("target/deb");
        if assets.exists() {
            fs::remove_dir_all(&assets).map_err(wrong(&assets))?;
        }
        crate::must(Command::new("cp").arg("-r").arg(self.root()).arg(&assets))?;
        let mut command = tools.cargo_deb()?;
        command.args(["deb", "--no-build", "--no-strip", "--quiet"]);
        command.args(["--target", self.system.triple(), "--output"]);
        command.arg(dir.join(format!("octavo_{VERSION}_{architecture}.deb")));
        command.env("SOURCE_DATE_EPOCH", time_of_commit()?);
        crate::must(command.current_dir(workspace_root()))
    }
}

/// The packed program, asked for its own manual.
struct Own {
    system: System,
    program: PathBuf,
}

impl Own {
    fn new(system: System, program: &Path) -> Own {
        let program = program.to_owned();
        Own { system, program }
    }

    fn ask(&self, arguments: &[&str]) -> Result<Vec<u8>, String> {
        // where Debian's cross compiler has the libraries
        let root = Path::new("/usr/aarch64-linux-gnu");
        let mut command = self.system.runs(&self.program, root);
        let output = command.args(arguments).output();
        let output = output.map_err(wrong(&self.program))?;
        match output.status.success() {
            true => Ok(output.stdout),
            false => Err(format!(
                "{} {}: {}",
                self.program.display(),
                arguments.join(" "),
                String::from_utf8_lossy(&output.stderr).trim()
            )),
        }
    }

    fn write(&self, arguments: &[&str], path: &Path) -> Result<(), String> {
        make_folder(path.parent().unwrap_or(path))?;
        fs::write(path, self.ask(arguments)?).map_err(wrong(path))
    }

    /// Returns the names of all commands, as its help lists them.
    fn commands(&self) -> Result<Vec<String>, String> {
        let help = String::from_utf8_lossy(&self.ask(&["--help"])?).into_owned();
        let names = commands_in(&help);
        match names.is_empty() {
            true => Err("octavo --help: expected a list of commands".to_owned()),
            false => Ok(names),
        }
    }
}

/// Returns the commands that a help text lists, without `help` itself.
fn commands_in(help: &str) -> Vec<String> {
    let list = help.lines().skip_while(|line| *line != "Commands:").skip(1);
    let list = list.take_while(|line| !line.is_empty());
    // a description that is longer than the line continues further right
    let names = list.filter_map(|line| line.strip_prefix("  ")?.split(' ').next());
    let names = names.filter(|name| !name.is_empty() && *name != "help");
    names.map(str::to_owned).collect()
}

fn copy_texts(dir: &Path) -> Result<(), String> {
    make_folder(dir)?;
    for text in TEXTS {
        let to = dir.join(text);
        fs::copy(workspace_root().join(text), &to).map_err(wrong(&to))?;
    }
    Ok(())
}

/// Returns the time of the last commit, in seconds since 1970: the same sources make the same
/// archives.
fn time_of_commit() -> Result<String, String> {
    let mut git = Command::new("git");
    git.args(["log", "-1", "--format=%ct"]);
    let output = git.current_dir(workspace_root()).output();
    let output = output.map_err(|error| format!("git: {error}"))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).trim().to_owned()),
        false => Err("git: expected a clone, whose last commit has a time".to_owned()),
    }
}

/// Writes the installer and the container file.
pub(super) fn write_installers(dir: &Path) -> Result<(), String> {
    let script = include_str!("install.sh")
        .replace("@VERSION@", VERSION)
        .replace("@REPOSITORY@", env!("CARGO_PKG_REPOSITORY"));
    for (name, text) in [("install.sh", script.as_str()), ("Dockerfile", CONTAINER)] {
        let path = dir.join(name);
        fs::write(&path, text).map_err(wrong(&path))?;
    }
    Ok(())
}

/// Returns the artifacts in a folder, by name.
pub(super) fn artifacts(dir: &Path) -> Result<Vec<String>, String> {
    let mut names = Vec::new();
    for entry in fs::read_dir(dir).map_err(wrong(dir))? {
        let entry = entry.map_err(wrong(dir))?;
        let name = entry.file_name().to_string_lossy().into_owned();
        if entry.path().is_file() && name != "SHA256SUMS" {
            names.push(name);
        }
    }
    names.sort();
    Ok(names)
}

/// Writes the hashes of all artifacts, and lists them with their sizes.
pub(super) fn sum(dir: &Path) -> Result<(), String> {
    let names = artifacts(dir)?;
    let mut command = Command::new("sha256sum");
    let output = command.args(&names).current_dir(dir).output();
    let output = output.map_err(|error| format!("sha256sum: {error}"))?;
    let sums = dir.join("SHA256SUMS");
    fs::write(&sums, output.stdout).map_err(wrong(&sums))?;
    for name in names {
        let path = dir.join(&name);
        let bytes = path.metadata().map_err(wrong(&path))?.len();
        println!("{:>7.1} MiB  {name}", bytes as f64 / f64::from(1 << 20));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_those_that_help_lists() {
        let help = [
            "About",
            "",
            "Commands:",
            "  run    Generate",
            "           more",
            "  quant-report  Report",
            "  help   Print",
            "",
            "Options:",
            "  -v  Verbose",
        ];
        let help = help.join("\n");
        assert_eq!(commands_in(&help), ["run", "quant-report"]);
    }
}
