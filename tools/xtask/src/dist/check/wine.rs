//! The program for Windows under Wine: the same bits as on Linux, files with difficult names, line
//! ends, locked files, the server and Ctrl-C.

use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde_json::Value;

use super::super::system::System;
use super::installation::{Installation, interrupt};
use super::root::{Debian, Root};
use super::transcript::Transcript;
use super::{Check, copy, expect, smollm2};

/// Instruction sets that both programs have on every x86-64 with AVX2.
const ISAS: [&str; 2] = ["scalar", "avx2"];

/// A Debian with a Wine that is new enough for programs of Rust.
const WINE: Debian = Debian {
    name: "debian-wine",
    suite: "trixie",
    architecture: "amd64",
    variant: "minbase",
    packages: "wine,wine64",
};

/// Both programs, and files for them.
struct Pair<'a> {
    windows: &'a Installation<'a>,
    linux: PathBuf,
    /// Folder that Wine has as drive Z.
    root: &'a Path,
    /// Folder in it for files.
    work: PathBuf,
}

pub(super) fn prove(check: &Check, transcript: &mut Transcript) -> Result<(), String> {
    let root = Root::make(check, &WINE)?;
    root.shorten(transcript);
    let linux = check.unpack(System::Linux, "linux")?;
    transcript.shorten(
        &linux.join("bin/octavo").display().to_string(),
        "octavo-linux",
    );
    let windows = check.unpack(System::Windows, "windows")?;
    let work = root.path().join("files");
    super::make_folder(&work)?;
    copy(&windows.join("octavo.exe"), &root.path().join("octavo.exe"))?;
    copy(&smollm2()?, &work.join("smollm2.gguf"))?;
    let wine = || {
        let mut command = root.inside("wine");
        command.env("WINEDEBUG", "-all");
        command.env("XDG_RUNTIME_DIR", "/tmp");
        command
    };
    transcript.succeed(wine().arg("--version"))?;
    transcript.succeed(wine().args(["wineboot", "--init"]))?;
    let place = Installation {
        octavo: &|| {
            let mut command = wine();
            command.arg("/octavo.exe");
            command
        },
        model: r"Z:\files\smollm2.gguf".to_owned(),
        logs: check.work.clone(),
    };
    place.prove(transcript)?;
    let pair = Pair {
        windows: &place,
        linux: linux.join("bin/octavo"),
        root: root.path(),
        work,
    };
    pair.prove_equal_bits(transcript)?;
    pair.prove_names(transcript)?;
    pair.prove_line_ends(transcript)?;
    pair.prove_locks(transcript)?;
    pair.prove_interrupts(transcript)
}

/// Returns the texts of `octavo run --lines`.
fn texts(output: &str) -> Result<Vec<String>, String> {
    let text = |line: &str| {
        let answer: Value = serde_json::from_str(line).map_err(|error| error.to_string())?;
        Ok(answer["text"].to_string())
    };
    output.lines().map(text).collect()
}

impl Pair<'_> {
    /// Returns the path of a file in the root folder as a program for Windows takes it.
    fn on_windows(&self, path: &Path) -> String {
        let inside = path.strip_prefix(self.root).unwrap_or(path);
        format!("Z:\\{}", inside.display().to_string().replace('/', "\\"))
    }

    /// Runs both programs with arguments in which `FILE` stands for a file, and returns what each
    /// printed.
    fn both(
        &self,
        transcript: &mut Transcript,
        arguments: &[&str],
        file: &Path,
    ) -> Result<[String; 2], String> {
        let with = |file: &str| -> Vec<String> {
            let words = arguments.iter();
            words.map(|word| word.replace("FILE", file)).collect()
        };
        let mut windows = (self.windows.octavo)();
        let mut linux = Command::new(&self.linux);
        Ok([
            transcript.succeed(windows.args(with(&self.on_windows(file))))?,
            transcript.succeed(linux.args(with(&file.display().to_string())))?,
        ])
    }

    /// Fails unless both print the same.
    fn same(
        &self,
        transcript: &mut Transcript,
        arguments: &[&str],
        file: &Path,
    ) -> Result<(), String> {
        let [windows, linux] = self.both(transcript, arguments, file)?;
        match windows == linux {
            true => Ok(()),
            false => Err("both programs printed different results".to_owned()),
        }
    }

    fn prove_equal_bits(&self, transcript: &mut Transcript) -> Result<(), String> {
        let model = self.work.join("smollm2.gguf");
        for isa in ISAS {
            let compute = ["--isa", isa, "--all", "--top", "1000", "--json", "-q"];
            let demo = [&["logits", "-p", "1+1="][..], &compute].concat();
            self.same(transcript, &demo, &model)?;
            let text = "Grüße, 世界: the capital of France is";
            let real = [&["logits", "FILE", "-p", text][..], &compute].concat();
            self.same(transcript, &real, &model)?;
        }
        transcript.say("equal bits: every logit that both programs printed is the same");
        Ok(())
    }

    /// Long paths and names in several scripts.
    fn prove_names(&self, transcript: &mut Transcript) -> Result<(), String> {
        let mut dir = self.work.clone();
        for _ in 0..6 {
            dir.push("a folder with a name of fifty characters, Größe 模型");
        }
        fs::create_dir_all(&dir).map_err(|error| error.to_string())?;
        let path = dir.join("модель 模型.gguf");
        copy(&smollm2()?, &path)?;
        let name = self.on_windows(&path);
        transcript.say(&format!("a path of {} characters:", name.chars().count()));
        self.same(
            transcript,
            &["tokenize", "FILE", "-p", "Grüße, 世界"],
            &path,
        )?;
        let out = self.on_windows(&dir.join("größe.gguf"));
        let quantize = ["quantize", "-q", &name, &out, "COPY"];
        transcript.succeed(&mut self.windows.command(&quantize))?;
        transcript
            .succeed(&mut self.windows.command(&["inspect", "-q", &out]))
            .map(drop)
    }

    /// Lines that end as Windows' do are the same lines.
    fn prove_line_ends(&self, transcript: &mut Transcript) -> Result<(), String> {
        let path = self.work.join("lines.txt");
        fs::write(&path, "1+1=\r\n2+2=\r\n").map_err(|error| error.to_string())?;
        let run = ["run", "-q", "-f", "FILE", "--lines", "-n", "4"];
        let [windows, linux] = self.both(transcript, &run, &path)?;
        let answers = texts(&windows)?;
        match answers == texts(&linux)? && answers.len() == 2 {
            true => Ok(()),
            false => Err(format!("expected two equal answers, got {answers:?}")),
        }
    }

    /// A model in use cannot be replaced, and stays whole; afterwards it can.
    fn prove_locks(&self, transcript: &mut Transcript) -> Result<(), String> {
        let (input, used) = (self.work.join("input.gguf"), self.work.join("used.gguf"));
        copy(&smollm2()?, &input)?;
        copy(&smollm2()?, &used)?;
        let (input, output) = (self.on_windows(&input), self.on_windows(&used));
        let replace = ["quantize", "-q", &input, &output, "COPY", "--force"];
        let place = Installation {
            model: output.clone(),
            logs: self.windows.logs.clone(),
            octavo: self.windows.octavo,
        };
        place.serve(transcript, |server, transcript| {
            let printed = transcript.run(&mut place.command(&replace))?;
            if printed.code == Some(0) {
                return Err("a file in use was replaced".to_owned());
            }
            expect(&printed.err, "used.gguf")?;
            let body = r#"{"prompt": "The capital of France is", "max_tokens": 4}"#;
            expect(&server.post(transcript, "/v1/completions", body)?, "Paris")
        })?;
        transcript.succeed(&mut self.windows.command(&replace))?;
        let left = fs::read_dir(&self.work).map_err(|error| error.to_string())?;
        let mut left = left.flatten().map(|entry| entry.file_name());
        match left.find(|name| name.to_string_lossy().ends_with(".tmp")) {
            Some(name) => Err(format!("{}: was left behind", name.to_string_lossy())),
            None => Ok(()),
        }
    }

    /// Ctrl-C ends a generation with what it has written so far.
    fn prove_interrupts(&self, transcript: &mut Transcript) -> Result<(), String> {
        let long = [
            "run",
            &self.windows.model,
            "-p",
            "Once upon a time",
            "-n",
            "100000",
        ];
        let mut command = self.windows.command(&long);
        transcript.say_command(&command);
        command
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped());
        let mut child = command.spawn().map_err(|error| error.to_string())?;
        // the first bytes of the text
        let mut stdout = child.stdout.take().ok_or("no stdout")?;
        let mut text = vec![0; 8];
        let read = |error: std::io::Error| error.to_string();
        stdout.read_exact(&mut text).map_err(read)?;
        let status = interrupt(&mut child, transcript)?;
        stdout.read_to_end(&mut text).map_err(read)?;
        let output = child.wait_with_output().map_err(read)?;
        transcript.say_lines(&String::from_utf8_lossy(&text));
        let said = String::from_utf8_lossy(&output.stderr).into_owned();
        transcript.say_lines(&said);
        expect(&said, "cancelled")?;
        match status.code() {
            Some(130) => Ok(()),
            code => Err(format!("expected exit code 130 after Ctrl-C, got {code:?}")),
        }
    }
}
