//! `cargo xtask nvrtc`: compiles every CUDA kernel for some of the architectures, with the oldest
//! and the newest compiler.

mod check;
mod ptx;
mod record;
mod sass;

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::Instant;

use clap::Args;
use octavo_kernels::cuda::Module;
use octavo_kernels::cuda::nvrtc::Nvrtc;

use check::{Compiled, Usage, compile};
use record::{Facts, Record};

/// Compile every CUDA kernel with two versions of NVRTC; no GPU needed
///
/// A kernel of one weight format or head size is compiled for two of the five pairs of compiler
/// and architecture, a different two for each; if OCTAVO_FULL is set, for all five. Those that
/// tools/bench/nvrtc.csv records with the same sources, options and checks are not compiled again,
/// except one of 16 of them, other ones at every commit, and all with --again, --list or --only.
///
/// Fails on warnings, on kernels that need too many registers, and on PTX with other matrix
/// products or read-only loads than the sources ask for. Downloads the compilers from PyPI the
/// first time (185 MB).
#[derive(Debug, Args)]
pub(crate) struct NvrtcArgs {
    /// Folder for the compilers
    #[arg(long, value_name = "DIR", default_value = "target/nvrtc")]
    dir: PathBuf,
    /// List every kernel's registers, and the longest runs of its machine code between two branches
    #[arg(long)]
    list: bool,
    /// Compile also those recorded as right
    #[arg(long)]
    again: bool,
    /// Write the record, tools/bench/nvrtc.csv, if all are right
    #[arg(long, conflicts_with = "only")]
    record: bool,
    /// Only compilations with all of these words in their names, such as "13.0 sm_90a gemv.cu Q4_K"
    #[arg(long, value_name = "WORDS")]
    only: Option<String>,
}

impl NvrtcArgs {
    fn wants(&self, (compiler, module, arch): Job) -> bool {
        let name =
            format!("{} {arch} {module}", COMPILERS[compiler].name).replace([' ', '='], "  ");
        let has = |word: &str| name.split_whitespace().any(|part| part == word);
        self.only
            .as_deref()
            .is_none_or(|words| words.split_whitespace().all(has))
    }
}

/// A compiler as named by `tools/get_nvrtc.sh`, with the expected library and version.
struct Compiler {
    name: &'static str,
    library: &'static str,
    version: (i32, i32),
    /// Target architectures: Hopper with both versions, every other architecture once.
    architectures: &'static [&'static str],
    /// Target architecture whose machine code is examined too.
    looked_at: &'static str,
}

/// Ampere and Hopper; the small Ampere of the Orin boards, and consumer Blackwell.
const COMPILERS: [Compiler; 2] = [
    Compiler {
        name: "12.9",
        library: "nvidia/cuda_nvrtc/lib/libnvrtc.so.12",
        version: (12, 9),
        architectures: &["sm_80", "sm_90a"],
        looked_at: "sm_80",
    },
    Compiler {
        name: "13.0",
        library: "nvidia/cu13/lib/libnvrtc.so.13",
        version: (13, 0),
        architectures: &["sm_87", "sm_90a", "sm_120"],
        looked_at: "sm_90a",
    },
];

/// Path of NVIDIA's disassembler, as installed by `tools/get_nvrtc.sh`.
const NVDISASM: &str = "13.5/nvidia/cu13/bin/nvdisasm";

/// One compilation: index of the compiler, module, architecture.
type Job = (usize, Module, &'static str);

pub(crate) fn run(args: &NvrtcArgs) -> Result<(), String> {
    crate::must(Command::new("tools/get_nvrtc.sh").arg(&args.dir))?;
    let compilers = COMPILERS
        .iter()
        .map(|compiler| open(&args.dir, compiler))
        .collect::<Result<Vec<_>, _>>()?;
    let jobs = selected_jobs(args);
    if jobs.is_empty() {
        return Err(format!(
            "--only {}: no kernel is called that",
            args.only.as_deref().unwrap_or_default()
        ));
    }
    let started = Instant::now();
    let mut record = Record::read(Path::new(record::PATH))?;
    let jobs: Vec<(Job, String)> = jobs
        .into_iter()
        .map(|job| (job, record::inputs(&compilers[job.0], job)))
        .collect();
    let taken = not_recorded(args, &record, &jobs);
    let results = compile_all(&compilers, &taken, &args.dir.join(NVDISASM));
    let mut wrong: Vec<String> = Vec::new();
    let mut all: Vec<(usize, &str, Usage)> = Vec::new();
    for ((job, inputs), result) in results {
        let (usages, bytes) = match result {
            Ok(done) => done,
            Err(error) => {
                wrong.push(error);
                continue;
            }
        };
        let facts = facts(&usages, bytes);
        match record.facts(job, &inputs) {
            Some(before) if *before != facts => wrong.push(format!(
                "{} {} {}: {} has {before:?}, but now it is {facts:?}",
                COMPILERS[job.0].name,
                job.2,
                job.1,
                record::PATH
            )),
            _ => record.set(job, inputs, facts),
        }
        all.extend(usages.into_iter().map(|usage| (job.0, job.2, usage)));
    }
    if args.list {
        print_registers(&mut all);
    }
    print_lanes(&record, &jobs);
    for error in &wrong {
        eprintln!("{error}");
    }
    if !wrong.is_empty() {
        return Err(format!(
            "{} of {} modules are not as they should be",
            wrong.len(),
            taken.len()
        ));
    }
    if args.record {
        record.retain(jobs.iter().map(|(job, _)| *job));
        record.write(Path::new(record::PATH))?;
    }
    let (modules, seconds) = (taken.len(), started.elapsed().as_secs_f64());
    println!(
        "{} kernels in {modules} modules compiled in {seconds:.1} s; {} modules are in {}",
        all.len(),
        jobs.len() - modules,
        record::PATH
    );
    Ok(())
}

/// Returns the compilations that are not in the record, and the sample of those that are.
fn not_recorded(args: &NvrtcArgs, record: &Record, jobs: &[(Job, String)]) -> Vec<(Job, String)> {
    let takes_all = args.again || args.list || args.only.is_some();
    let commit = record::commit();
    let is_taken = |(job, inputs): &&(Job, String)| {
        takes_all || record.facts(*job, inputs).is_none() || record::is_sampled(inputs, &commit)
    };
    jobs.iter().filter(is_taken).cloned().collect()
}

fn facts(usages: &[Usage], bytes: usize) -> Facts {
    Facts {
        kernels: usages.len(),
        registers: usages.iter().map(|u| u.registers).max().unwrap_or(0),
        bytes,
    }
}

/// Prints a line for each compiler and architecture: the kernels found right, now or before.
fn print_lanes(record: &Record, jobs: &[(Job, String)]) {
    let mut lanes: BTreeMap<(usize, &str), Facts> = BTreeMap::new();
    for (job, inputs) in jobs {
        let Some(facts) = record.facts(*job, inputs) else {
            continue;
        };
        let lane = lanes.entry((job.0, job.2)).or_insert(Facts {
            kernels: 0,
            registers: 0,
            bytes: 0,
        });
        lane.kernels += facts.kernels;
        lane.registers = lane.registers.max(facts.registers);
        lane.bytes += facts.bytes;
    }
    for ((compiler, arch), lane) in &lanes {
        println!(
            "NVRTC {} {arch}: {} kernels, at most {} registers, no spills, {} KiB of code",
            COMPILERS[*compiler].name,
            lane.kernels,
            lane.registers,
            lane.bytes >> 10
        );
    }
}

/// Opens the newest compiler, which is fetched into `dir` the first time.
pub(crate) fn newest(dir: &Path) -> Result<Nvrtc, String> {
    crate::must(Command::new("tools/get_nvrtc.sh").arg(dir))?;
    open(dir, &COMPILERS[COMPILERS.len() - 1])
}

/// Returns the modules to compile, filtered by `--only`.
fn selected_jobs(args: &NvrtcArgs) -> Vec<Job> {
    let whole = octavo_fixtures::is_full() || args.only.is_some();
    let mut jobs: Vec<Job> = Vec::new();
    let mut turns: BTreeMap<&str, usize> = BTreeMap::new();
    for module in Module::all() {
        let targets = targets(module);
        let whole = whole || module.defines().is_empty();
        // modules of one file take turns: each begins one target later
        let turn = turns.entry(module.file().0).or_default();
        let n = targets.len();
        let taken: &[usize] = if n == 5 { &[0, 2] } else { &[0] };
        let is_taken = |at: usize| taken.iter().any(|ahead| (*turn + ahead) % n == at);
        let targets = targets.into_iter().enumerate();
        let some = targets.filter(|(at, _)| whole || is_taken(*at));
        jobs.extend(some.map(|(_, (compiler, arch))| (compiler, module, arch)));
        *turn += 1;
    }
    jobs.retain(|job| args.wants(*job));
    jobs
}

/// Returns the compilers, by index, and architectures for which a module has kernels.
fn targets(module: Module) -> Vec<(usize, &'static str)> {
    let compilers = COMPILERS.iter().enumerate();
    let all =
        compilers.flat_map(|(i, which)| which.architectures.iter().map(move |arch| (i, *arch)));
    let wide = matches!(module, Module::WideGemm(..));
    all.filter(|(_, arch)| !wide || *arch == "sm_90a").collect()
}

/// Compiles with one thread per CPU; results come in order of completion.
fn compile_all(
    compilers: &[Nvrtc],
    jobs: &[(Job, String)],
    nvdisasm: &Path,
) -> Vec<((Job, String), Compiled)> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = compile(&compilers[job.0.0], job.0, nvdisasm);
                    results
                        .lock()
                        .expect("no panic under the lock")
                        .push((job.clone(), result));
                }
            });
        }
    });
    results.into_inner().expect("no panic under the lock")
}

fn print_registers(all: &mut [(usize, &str, Usage)]) {
    all.sort_by(|a, b| (a.0, a.1, &a.2.kernel).cmp(&(b.0, b.1, &b.2.kernel)));
    for (compiler, arch, usage) in all {
        let looked_at = usage.code.as_ref().map_or_else(String::new, |code| {
            format!(
                ", {} matrix products ({} between branches), {} reads between branches",
                code.mma, code.mma_run, code.loads_run
            )
        });
        println!(
            "{} {arch} {}: {} registers{looked_at}",
            COMPILERS[*compiler].name, usage.kernel, usage.registers
        );
    }
}

fn open(dir: &Path, compiler: &Compiler) -> Result<Nvrtc, String> {
    let path = dir.join(compiler.name).join(compiler.library);
    let nvrtc = Nvrtc::open(&path).map_err(|error| error.to_string())?;
    match nvrtc.version() == compiler.version {
        true => Ok(nvrtc),
        false => Err(format!(
            "{}: expected version {:?}, got {:?}",
            nvrtc.path().display(),
            compiler.version,
            nvrtc.version()
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_module_is_compiled_for_every_architecture() {
        let args = NvrtcArgs {
            dir: PathBuf::new(),
            list: false,
            again: false,
            record: false,
            only: None,
        };
        let jobs = selected_jobs(&args);
        for module in Module::all() {
            let file = module.file().0;
            let same_file = |other: &Module| other.file().0 == file;
            for target in targets(module) {
                let is_there = |(compiler, other, arch): &Job| {
                    same_file(other) && (*compiler, *arch) == target
                };
                assert!(jobs.iter().any(is_there), "{file} for {target:?}");
            }
        }
    }
}
