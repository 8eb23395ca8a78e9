//! Behaviour of every writing command with existing files: the table of outputs x (new name, older
//! output, other file, input, link to an input, device, pipe, link). Files that must survive do so
//! byte for byte.
#![cfg(unix)]

mod beside;
mod rows;

use std::fs;
use std::io::Read;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::Command as Plain;

use octavo_fixtures::{Lacks, committed_goldens, skip, workspace_root};
use tempfile::TempDir;

use super::{folder, octavo, stderr};

const NOTES: &[u8] = b"<!doctype html>\n<title>notes</title> that nobody wants to lose\n";

/// Folder with copies of everything that commands read.
pub(super) struct Desk(TempDir);

impl Desk {
    pub(super) fn new() -> Desk {
        let desk = Desk(folder());
        let demo = workspace_root().join("src/engine/demo/tiny-qwen3-Q4_K_M.gguf");
        fs::copy(demo, desk.at("model.gguf")).expect("copied");
        fs::copy(
            committed_goldens().join("tiny-qwen3-Q4_K_M/sum.safetensors"),
            desk.at("golden"),
        )
        .expect("copied");
        let text = "Once there was a red fox. The fox lived under the tree.\n3+4=7\n".repeat(30);
        fs::write(desk.at("few"), "1+1=").expect("written");
        fs::write(desk.at("text"), text).expect("written");
        desk
    }

    pub(super) fn at(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    pub(super) fn name(&self, name: &str) -> String {
        self.at(name).to_str().expect("UTF-8").to_owned()
    }

    /// Expands arguments: a word that begins with `@` is a file here.
    fn args(&self, args: &str, out: &str) -> Vec<String> {
        let arg = |word: &str| match word.strip_prefix('@') {
            Some("OUT") => self.name(out),
            Some(name) => self.name(name),
            None => word.to_owned(),
        };
        args.split_whitespace().map(arg).collect()
    }

    fn run(&self, args: &str, out: &str) -> (Option<i32>, String) {
        let args = self.args(args, out);
        let args: Vec<&str> = args.iter().map(String::as_str).collect();
        let output = octavo(&args).output().expect("the program runs");
        (output.status.code(), stderr(&output))
    }

    pub(super) fn good(&self, args: &str, out: &str) {
        let (code, text) = self.run(args, out);
        assert_eq!(code, Some(0), "{args} to {out}: {text}");
    }

    /// Returns the names of temporary files.
    pub(super) fn temporary_files(&self) -> Vec<String> {
        let names = fs::read_dir(self.0.path())
            .expect("lists")
            .map(|e| e.expect("an entry").file_name());
        names
            .map(|name| name.to_string_lossy().into_owned())
            .filter(|name| name.starts_with('.'))
            .collect()
    }
}

/// Behaviour of a command with an older output of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Older {
    /// Replaced without `--force`.
    Replaced,
    /// Refused: a model, which looks like any other model.
    Refused,
    /// Accepted as done, because it is what would be written.
    Done,
}

/// Command that writes `@OUT`.
struct Writer<'a> {
    args: &'a str,
    /// Files that it reads, under the names of the desk.
    reads: &'a [&'a str],
    /// Exit code of a refusal.
    code: i32,
    /// Behaviour with an older output.
    older: Older,
    /// Whether equal runs write equal bytes.
    same_bytes: bool,
}

impl Writer<'_> {
    fn refused(&self, desk: &Desk, out: &str, force: bool, says: &str) {
        let args = if force {
            format!("{} --force", self.args)
        } else {
            self.args.to_owned()
        };
        let (code, text) = desk.run(&args, out);
        assert_eq!(code, Some(self.code), "{args} to {out}: {text}");
        let errors: Vec<&str> = text
            .lines()
            .filter(|line| line.starts_with("octavo: error: "))
            .collect();
        assert!(
            errors.len() == 1 && errors[0].contains(says) && errors[0].contains(out),
            "{args} to {out}: {text}"
        );
    }

    fn forced(&self) -> String {
        format!("{} --force", self.args)
    }

    /// Tests the whole row of the table.
    fn row(&self, desk: &Desk) {
        desk.good(self.args, "new");
        let made = fs::read(desk.at("new")).expect("it is there");
        self.files(desk, &made);
        self.inputs(desk);
        self.links(desk, &made);
        self.devices(desk, &made);
        assert_eq!(desk.temporary_files(), [""; 0], "{}", self.args);
    }

    fn check(&self, path: &Path, made: &[u8]) {
        let now = fs::read(path).expect("it is there");
        let same = if self.same_bytes {
            now == made
        } else {
            now.starts_with(&made[..80])
        };
        assert!(same, "{}: {} is another", self.args, path.display());
    }

    fn files(&self, desk: &Desk, made: &[u8]) {
        // older output
        let older = desk.at("older");
        fs::write(&older, made).expect("written");
        fs::set_permissions(&older, fs::Permissions::from_mode(0o600)).expect("changed");
        let before = fs::metadata(&older).expect("there").ino();
        if self.older == Older::Refused {
            self.refused(
                desk,
                "older",
                false,
                "is there already: --force replaces it",
            );
            assert_eq!(fs::metadata(&older).expect("there").ino(), before);
            desk.good(&self.forced(), "older");
        } else {
            desk.good(self.args, "older");
        }
        self.check(&older, made);
        let after = fs::metadata(&older).expect("there");
        assert_eq!(after.ino() == before, self.older == Older::Done);
        let private = after.mode() & 0o777 == 0o600;
        assert!(private, "{}: as private as before", self.args);
        // write-protected
        fs::set_permissions(&older, fs::Permissions::from_mode(0o444)).expect("changed");
        self.refused(
            desk,
            "older",
            false,
            "is write-protected: --force replaces it",
        );
        assert_eq!(fs::metadata(&older).expect("there").ino(), after.ino());
        // empty, as mktemp makes it
        fs::write(desk.at("empty"), "").expect("written");
        desk.good(self.args, "empty");
        self.check(&desk.at("empty"), made);
        // other file
        fs::write(desk.at("notes"), NOTES).expect("written");
        self.refused(desk, "notes", false, "--force replaces it");
        assert_eq!(fs::read(desk.at("notes")).expect("there"), NOTES);
        desk.good(&self.forced(), "notes");
        self.check(&desk.at("notes"), made);
        // not a file
        fs::create_dir(desk.at("folder")).expect("made");
        self.refused(desk, "folder", true, "got a folder");
        self.refused(desk, "none/file", false, "none/file");
        let socket = std::os::unix::net::UnixListener::bind(desk.at("socket")).expect("bound");
        self.refused(desk, "socket", true, "got a socket");
        assert!(
            fs::symlink_metadata(desk.at("socket"))
                .expect("there")
                .file_type()
                .is_socket()
        );
        drop(socket);
    }

    fn inputs(&self, desk: &Desk) {
        for input in self.reads {
            let before = fs::read(desk.at(input)).expect("there");
            let [soft, far, hard] =
                ["soft", "far", "hard"].map(|kind| format!("{kind}-{}", input.replace('/', "-")));
            symlink(desk.at(input), desk.at(&soft)).expect("linked");
            symlink(&soft, desk.at(&far)).expect("linked");
            fs::hard_link(desk.at(input), desk.at(&hard)).expect("linked");
            let dotted = format!("./{input}");
            for (name, force) in [*input, &soft, &far, &hard, &dotted]
                .into_iter()
                .flat_map(|n| [(n, false), (n, true)])
            {
                self.refused(
                    desk,
                    name,
                    force,
                    "is the input itself: expected another file",
                );
                assert_eq!(
                    fs::read(desk.at(input)).expect("there"),
                    before,
                    "{}: {name}",
                    self.args
                );
            }
            assert!(
                fs::symlink_metadata(desk.at(&far))
                    .expect("there")
                    .is_symlink()
            );
            assert_eq!(fs::metadata(desk.at(&hard)).expect("there").nlink(), 2);
            for link in [soft, far, hard] {
                fs::remove_file(desk.at(&link)).expect("removed");
            }
        }
    }

    fn links(&self, desk: &Desk, made: &[u8]) {
        fs::create_dir(desk.at("far away")).expect("made");
        symlink("far away/fresh", desk.at("dangling")).expect("linked");
        desk.good(self.args, "dangling");
        self.check(&desk.at("far away/fresh"), made);
        // the link leads to an older output by now
        if self.older == Older::Refused {
            self.refused(desk, "dangling", false, "is there already");
            desk.good(&self.forced(), "dangling");
        } else {
            desk.good(self.args, "dangling");
        }
        self.check(&desk.at("far away/fresh"), made);
        fs::write(desk.at("far away/fresh"), NOTES).expect("written");
        self.refused(desk, "dangling", false, "--force replaces it");
        assert_eq!(fs::read(desk.at("far away/fresh")).expect("there"), NOTES);
        assert!(
            fs::symlink_metadata(desk.at("dangling"))
                .expect("there")
                .is_symlink()
        );
        assert_eq!(
            fs::read_dir(desk.at("far away")).expect("lists").count(),
            1,
            "{}",
            self.args
        );
    }

    fn devices(&self, desk: &Desk, made: &[u8]) {
        assert!(
            Plain::new("mkfifo")
                .arg(desk.at("pipe"))
                .status()
                .expect("mkfifo runs")
                .success()
        );
        let pipe = desk.at("pipe");
        let reader = std::thread::spawn(move || fs::read(pipe).expect("readable"));
        desk.good(self.args, "pipe");
        fs::write(desk.at("from pipe"), reader.join().expect("read")).expect("written");
        self.check(&desk.at("from pipe"), made);
        assert!(
            fs::symlink_metadata(desk.at("pipe"))
                .expect("there")
                .file_type()
                .is_fifo()
        );
        // devices of our own, like the system's null device and a loop device that is not in use
        for (name, kind, major, minor) in [("null", "c", 1, 3), ("block", "b", 7, 251)] {
            let (major_arg, minor_arg) = (major.to_string(), minor.to_string());
            let made = Plain::new("mknod")
                .arg(desk.at(name))
                .args([kind, &major_arg, &minor_arg])
                .output();
            if !made.is_ok_and(|out| out.status.success()) {
                skip(Lacks::System, "no devices can be made here");
                return;
            }
        }
        let still = |name: &str| fs::symlink_metadata(desk.at(name)).expect("there");
        for args in [self.args, &self.forced()] {
            desk.good(args, "null");
            assert!(still("null").file_type().is_char_device(), "{args}");
        }
        symlink("null", desk.at("to null")).expect("linked");
        desk.good(self.args, "to null");
        assert!(
            still("null").file_type().is_char_device() && still("to null").is_symlink(),
            "{}",
            self.args
        );
        self.refused(desk, "block", true, "got a block device");
        assert!(
            still("block").file_type().is_block_device(),
            "{}",
            self.args
        );
    }
}
