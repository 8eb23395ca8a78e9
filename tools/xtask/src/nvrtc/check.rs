//! Compiling one module, and everything that must hold of its code.

use std::path::Path;

use octavo_kernels::cuda::nvrtc::Nvrtc;

use super::{COMPILERS, Job, ptx, sass};

/// Resources of one kernel.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Usage {
    pub(super) kernel: String,
    pub(super) registers: u32,
    /// Bytes of local memory (register spills).
    pub(super) local: u32,
    /// Facts of its machine code, if examined.
    pub(super) code: Option<sass::Code>,
}

/// Strips the predicate from an instruction: `@!P0 LDG R4` is `LDG R4`.
pub(super) fn unpredicated(line: &str) -> &str {
    match line.strip_prefix('@') {
        Some(rest) => rest
            .split_once(' ')
            .map_or("", |(_, rest)| rest.trim_start()),
        None => line,
    }
}

/// Returns rows and tokens per tile of `wide_gemm_Q4_K_128_256`; `None` for other kernels.
pub(super) fn wide_tile(kernel: &str) -> Option<[usize; 2]> {
    let mut sizes = kernel.strip_prefix("wide_gemm_")?.rsplit('_');
    let tokens = sizes.next()?.parse().ok()?;
    Some([sizes.next()?.parse().ok()?, tokens])
}

/// Returns products per unit of a warp for `imma_Q4_K_64_16` and `expert_imma_Q4_K_64_16`; `None`
/// for other kernels.
pub(super) fn imma_products(kernel: &str) -> Option<usize> {
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
pub(super) fn prompt_head(kernel: &str) -> Option<usize> {
    let (dim, _) = kernel.strip_prefix("attend_prompt_")?.split_once('_')?;
    dim.parse().ok()
}

/// Resources of a module's kernels and the code size in bytes, or the compiler's message.
pub(super) type Compiled = Result<(Vec<Usage>, usize), String>;

/// Compiles a module; returns the resources of every kernel and the code size, or an error for any
/// warning or fault.
pub(super) fn compile(nvrtc: &Nvrtc, (compiler, module, arch): Job, nvdisasm: &Path) -> Compiled {
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
