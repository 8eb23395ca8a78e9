//! The record of the modules that have been compiled and found right, by the hash of all that they
//! are made from: those need not be compiled again.

use std::collections::BTreeMap;
use std::path::Path;
use std::process::Command;

use octavo_kernels::cuda::inputs_hash;
use octavo_kernels::cuda::nvrtc::Nvrtc;
use sha2::{Digest, Sha256};

use super::{COMPILERS, Job, NVDISASM};

/// Path of the record in the workspace.
pub(super) const PATH: &str = "tools/bench/nvrtc.csv";

/// First line of the record.
const HEAD: &str = "compiler,architecture,module,inputs,kernels,registers,code_bytes";

/// One of this many recorded modules is compiled all the same.
const SAMPLE: u8 = 16;

/// Facts of a module's code that the same inputs must give again.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Facts {
    /// Number of kernels.
    pub(super) kernels: usize,
    /// Maximum number of registers of a kernel.
    pub(super) registers: u32,
    /// Size of the code in bytes.
    pub(super) bytes: usize,
}

/// Hashes and facts, by compiler, architecture and module.
#[derive(Debug, Default, PartialEq, Eq)]
pub(super) struct Record {
    lines: BTreeMap<[String; 3], (String, Facts)>,
}

impl Record {
    /// Reads the record; it is empty if there is no such file.
    pub(super) fn read(path: &Path) -> Result<Record, String> {
        match std::fs::read_to_string(path) {
            Ok(text) => Record::parse(&text).map_err(|line| {
                let path = path.display();
                format!("{path}: expected lines of {HEAD}, found {line}")
            }),
            Err(error) if error.kind() == std::io::ErrorKind::NotFound => Ok(Record::default()),
            Err(error) => Err(format!("{}: {error}", path.display())),
        }
    }

    /// Parses the text of a record; the error is the first line that is wrong.
    fn parse(text: &str) -> Result<Record, String> {
        let mut lines = BTreeMap::new();
        let mut rest = text.lines();
        let head = rest.next().unwrap_or_default();
        if head != HEAD {
            return Err(head.to_owned());
        }
        for line in rest {
            let wrong = || line.to_owned();
            let fields: Vec<&str> = line.split(',').collect();
            let [compiler, arch, module, inputs, kernels, registers, bytes] = fields[..] else {
                return Err(wrong());
            };
            let facts = Facts {
                kernels: kernels.parse().map_err(|_| wrong())?,
                registers: registers.parse().map_err(|_| wrong())?,
                bytes: bytes.parse().map_err(|_| wrong())?,
            };
            let name = [compiler, arch, module].map(str::to_owned);
            lines.insert(name, (inputs.to_owned(), facts));
        }
        Ok(Record { lines })
    }

    /// Writes the record.
    pub(super) fn write(&self, path: &Path) -> Result<(), String> {
        let mut text = format!("{HEAD}\n");
        for ([compiler, arch, module], (inputs, facts)) in &self.lines {
            let Facts {
                kernels,
                registers,
                bytes,
            } = facts;
            text.push_str(&format!(
                "{compiler},{arch},{module},{inputs},{kernels},{registers},{bytes}\n"
            ));
        }
        std::fs::write(path, text).map_err(|error| format!("{}: {error}", path.display()))
    }

    /// Returns the recorded facts of a compilation with these inputs.
    pub(super) fn facts(&self, job: Job, inputs: &str) -> Option<&Facts> {
        let (recorded, facts) = self.lines.get(&name(job))?;
        (recorded == inputs).then_some(facts)
    }

    /// Records a compilation that was right.
    pub(super) fn set(&mut self, job: Job, inputs: String, facts: Facts) {
        self.lines.insert(name(job), (inputs, facts));
    }

    /// Forgets all but these compilations.
    pub(super) fn retain(&mut self, jobs: impl Iterator<Item = Job>) {
        let names: Vec<_> = jobs.map(name).collect();
        self.lines.retain(|line, _| names.contains(line));
    }
}

fn name((compiler, module, arch): Job) -> [String; 3] {
    [
        COMPILERS[compiler].name.to_owned(),
        arch.to_owned(),
        module.to_string(),
    ]
}

/// Returns the hash of everything that the result of a compilation depends on: what the code is
/// made from, and the checks. Half of its digits are enough.
pub(super) fn inputs(compiler: &Nvrtc, (_, module, arch): Job) -> String {
    let checks = [
        include_str!("check.rs"),
        include_str!("ptx.rs"),
        include_str!("sass.rs"),
        NVDISASM,
    ];
    let mut hash = Sha256::new();
    checks.iter().for_each(|text| hash.update(text));
    hash.update(inputs_hash(module, &compiler.key(arch)));
    let digest = hash.finalize();
    digest[..16].iter().map(|b| format!("{b:02x}")).collect()
}

/// Returns whether a recorded module is compiled all the same at a commit: other ones at every
/// commit, so that a record that is wrong is found.
pub(super) fn is_sampled(inputs: &str, commit: &str) -> bool {
    Sha256::digest(format!("{commit} {inputs}"))[0] % SAMPLE == 0
}

/// Returns the name of the commit that is checked out; empty outside a repository.
pub(super) fn commit() -> String {
    let output = Command::new("git").args(["rev-parse", "HEAD"]).output();
    let text = output.map(|output| String::from_utf8_lossy(&output.stdout).into_owned());
    text.unwrap_or_default().trim().to_owned()
}

#[cfg(test)]
mod tests {
    use octavo_kernels::cuda::Module;

    use super::*;

    const JOB: Job = (1, Module::Rows, "sm_120");

    fn facts() -> Facts {
        Facts {
            kernels: 9,
            registers: 40,
            bytes: 12345,
        }
    }

    #[test]
    fn what_is_written_is_read_and_only_equal_inputs_count() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("record.csv");
        assert_eq!(Record::read(&path), Ok(Record::default()));
        let mut record = Record::default();
        record.set(JOB, "ab".to_owned(), facts());
        record.write(&path).unwrap();
        let mut read = Record::read(&path).unwrap();
        assert_eq!(read, record);
        assert_eq!(read.facts(JOB, "ab"), Some(&facts()));
        assert_eq!(read.facts(JOB, "ac"), None);
        assert_eq!(read.facts((0, JOB.1, JOB.2), "ab"), None);
        read.retain([(0, JOB.1, JOB.2)].into_iter());
        assert_eq!(read, Record::default());
        for damaged in [
            "",
            "x",
            &format!("{HEAD}\na,b,c\n"),
            &format!("{HEAD}\na,b,c,d,1,x,2\n"),
        ] {
            assert!(Record::parse(damaged).is_err(), "{damaged}");
        }
    }

    #[test]
    fn every_commit_samples_other_modules() {
        let all: Vec<String> = (0..1600).map(|i| format!("{i:x}")).collect();
        let sample = |commit| all.iter().filter(|hash| is_sampled(hash, commit)).count();
        assert!((50..200).contains(&sample("a")), "{}", sample("a"));
        let both = all
            .iter()
            .filter(|hash| is_sampled(hash, "a") && is_sampled(hash, "b"));
        assert!(both.count() < 30);
    }
}
