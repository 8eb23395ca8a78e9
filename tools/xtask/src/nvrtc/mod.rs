//! `cargo xtask nvrtc`: compiles every CUDA kernel for some of the architectures, with the oldest
//! and the newest compiler.

mod ptx;
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

/// Compile every CUDA kernel with two versions of NVRTC; no GPU needed
///
/// A kernel of one weight format or head size is compiled for two of the five pairs of compiler
/// and architecture, a different two for each; if OCTAVO_FULL is set, for all five.
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

/// Resources of one kernel.
#[derive(Debug, PartialEq, Eq)]
struct Usage {
    kernel: String,
    registers: u32,
    /// Bytes of local memory (register spills).
    local: u32,
    /// Facts of its machine code, if examined.
    code: Option<sass::Code>,
}

/// Strips the predicate from an instruction: `@!P0 LDG R4` is `LDG R4`.
fn unpredicated(line: &str) -> &str {
    match line.strip_prefix('@') {
        Some(rest) => rest
            .split_once(' ')
            .map_or("", |(_, rest)| rest.trim_start()),
        None => line,
    }
}

/// Returns rows and tokens per tile of `wide_gemm_Q4_K_128_256`; `None` for other kernels.
fn wide_tile(kernel: &str) -> Option<[usize; 2]> {
    let mut sizes = kernel.strip_prefix("wide_gemm_")?.rsplit('_');
    let tokens = sizes.next()?.parse().ok()?;
    Some([sizes.next()?.parse().ok()?, tokens])
}

/// Returns products per unit of a warp for `imma_Q4_K_64_16` and `expert_imma_Q4_K_64_16`; `None`
/// for other kernels.
fn imma_products(kernel: &str) -> Option<usize> {
    let kernel = kernel.strip_prefix("expert_").unwrap_or(kernel);
    let mut parts = kernel.strip_prefix("imma_")?.rsplitn(3, '_');
    let mut size = || parts.next()?.parse::<usize>().ok();
    let (columns, rows) = (size()?, size()?);
    // each half of a unit has its own product where it has its own scale
    let halves = match parts.next()? {
        "Q2_K" | "Q3_K" | "Q6_K" | "NVFP4" | "IQ2_XS" | "IQ2_S" | "IQ1_M" => 2,
        _ => 1,
    };
    // high and low bytes of tiles of 16 rows and 8 columns
    Some(2 * halves * rows / 16 * columns / 8)
}

/// Returns the head size of `attend_prompt_128_F16`; `None` for other kernels.
fn prompt_head(kernel: &str) -> Option<usize> {
    let (dim, _) = kernel.strip_prefix("attend_prompt_")?.split_once('_')?;
    dim.parse().ok()
}

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
    let results = compile_all(&compilers, &jobs, &args.dir.join(NVDISASM));
    let mut wrong: Vec<String> = Vec::new();
    let mut lanes: BTreeMap<(usize, &str), (usize, u32, usize)> = BTreeMap::new();
    let mut all: Vec<(usize, &str, Usage)> = Vec::new();
    for ((compiler, _, arch), result) in results {
        let (usages, bytes) = match result {
            Ok(done) => done,
            Err(error) => {
                wrong.push(error);
                continue;
            }
        };
        let lane = lanes.entry((compiler, arch)).or_default();
        lane.0 += usages.len();
        lane.1 = usages
            .iter()
            .map(|u| u.registers)
            .max()
            .unwrap_or(0)
            .max(lane.1);
        lane.2 += bytes;
        all.extend(usages.into_iter().map(|usage| (compiler, arch, usage)));
    }
    if args.list {
        print_registers(&mut all);
    }
    for ((compiler, arch), (kernels, registers, bytes)) in &lanes {
        let (version, kib) = (COMPILERS[*compiler].name, bytes >> 10);
        println!(
            "NVRTC {version} {arch}: {kernels} kernels, at most {registers} registers, no spills, \
             {kib} KiB of code"
        );
    }
    for error in &wrong {
        eprintln!("{error}");
    }
    if !wrong.is_empty() {
        return Err(format!(
            "{} of {} modules are not as they should be",
            wrong.len(),
            jobs.len()
        ));
    }
    let (modules, seconds) = (jobs.len(), started.elapsed().as_secs_f64());
    println!(
        "{} kernels in {modules} modules compiled in {seconds:.1} s",
        all.len()
    );
    Ok(())
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

/// Resources of a module's kernels and the code size in bytes, or the compiler's message.
type Compiled = Result<(Vec<Usage>, usize), String>;

/// Compiles with one thread per CPU; results come in order of completion.
fn compile_all(compilers: &[Nvrtc], jobs: &[Job], nvdisasm: &Path) -> Vec<(Job, Compiled)> {
    let (next, results) = (AtomicUsize::new(0), Mutex::new(Vec::new()));
    thread::scope(|scope| {
        for _ in 0..thread::available_parallelism().map_or(1, usize::from) {
            scope.spawn(|| {
                while let Some(&job) = jobs.get(next.fetch_add(1, Ordering::Relaxed)) {
                    let result = compile(&compilers[job.0], job, nvdisasm);
                    results
                        .lock()
                        .expect("no panic under the lock")
                        .push((job, result));
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

/// Compiles a module; returns the resources of every kernel and the code size, or an error for any
/// warning or fault.
fn compile(nvrtc: &Nvrtc, (compiler, module, arch): Job, nvdisasm: &Path) -> Compiled {
    let compiled = nvrtc
        .compile(module, arch)
        .map_err(|error| error.to_string())?;
    let (major, minor) = nvrtc.version();
    let named = |what: String| format!("{module}, NVRTC {major}.{minor}, {arch}: {what}");
    if let Some(line) = compiled.log.lines().find(|line| line.contains("warning")) {
        return Err(named(line.trim().to_owned()));
    }
    let mut usages = usages(&compiled.log);
    if usages.is_empty() {
        return Err(named(
            "the compiler did not say what registers it used".to_owned(),
        ));
    }
    let local: Vec<String> = usages
        .iter()
        .filter(|u| u.local > 0)
        .map(|u| format!("{} {}", u.kernel, u.local))
        .collect();
    if !local.is_empty() {
        return Err(named(format!(
            "bytes in local memory: {}",
            local.join(", ")
        )));
    }
    let faults = ptx::faults(&compiled.ptx);
    if !faults.is_empty() {
        return Err(named(faults.join("; ")));
    }
    if COMPILERS[compiler].looked_at == arch {
        let codes = sass::disassemble(nvdisasm, &compiled.cubin).map_err(&named)?;
        let faults: Vec<String> = codes.iter().filter_map(sass::fault).collect();
        if !faults.is_empty() {
            return Err(named(faults.join("; ")));
        }
        for usage in &mut usages {
            usage.code = codes
                .iter()
                .find(|code| code.kernel == usage.kernel)
                .cloned();
            if usage.code.is_none() {
                return Err(named(format!("{} was not disassembled", usage.kernel)));
            }
        }
    }
    Ok((usages, compiled.cubin.len()))
}

/// Parses ptxas' report: for each function a line with its name, one with its stack and spills, one
/// with its registers.
fn usages(log: &str) -> Vec<Usage> {
    let mut all: Vec<Usage> = Vec::new();
    for line in log.lines() {
        if let Some((_, rest)) = line.split_once("Compiling entry function '") {
            let kernel = rest.split('\'').next().unwrap_or_default().to_owned();
            all.push(Usage {
                kernel,
                registers: 0,
                local: 0,
                code: None,
            });
        }
        let Some(usage) = all.last_mut() else {
            continue;
        };
        let before = |what: &str| {
            let (head, _) = line.split_once(what)?;
            head.trim_end()
                .rsplit(|c: char| !c.is_ascii_digit())
                .next()?
                .parse::<u32>()
                .ok()
        };
        let parts = [
            "bytes stack frame",
            "bytes spill stores",
            "bytes spill loads",
        ];
        usage.local += parts.iter().filter_map(|what| before(what)).sum::<u32>();
        usage.registers = before("registers").unwrap_or(usage.registers);
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_kind_of_module_is_compiled_for_every_architecture() {
        let args = NvrtcArgs {
            dir: PathBuf::new(),
            list: false,
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

    #[test]
    fn a_report_is_read_function_by_function() {
        let log = "\
ptxas info    : 0 bytes gmem
ptxas info    : Compiling entry function 'clean' for 'sm_90'
ptxas info    : Function properties for clean
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used 56 registers, used 0 barriers
ptxas info    : Compiling entry function 'spills' for 'sm_90'
ptxas info    : Function properties for spills
    16 bytes stack frame, 12 bytes spill stores, 8 bytes spill loads
ptxas info    : Used 255 registers, used 1 barriers, 424 bytes cmem[0]";
        let usage = |kernel: &str, registers, local| Usage {
            kernel: kernel.to_owned(),
            registers,
            local,
            code: None,
        };
        assert_eq!(
            usages(log),
            [usage("clean", 56, 0), usage("spills", 255, 36)]
        );
        assert!(usages("").is_empty());
    }
}
