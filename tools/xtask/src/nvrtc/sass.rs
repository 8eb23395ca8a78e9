//! Requirements on a kernel's machine code (SASS), which neither source nor PTX shows: matrix
//! products in one stream, and overlapping memory loads. A branch between them makes each wait for
//! the one before.

use std::path::Path;
use std::process::Command;

use super::check::{imma_products, prompt_head, unpredicated, wide_tile};

/// Facts of one kernel's machine code.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Code {
    pub(super) kernel: String,
    /// Number of matrix products.
    pub(super) mma: usize,
    /// Most matrix products between two branches.
    pub(super) mma_run: usize,
    /// Most loads of global memory between two branches.
    pub(super) loads_run: usize,
}

/// Disassembles machine code with NVIDIA's disassembler.
pub(super) fn disassemble(nvdisasm: &Path, cubin: &[u8]) -> Result<Vec<Code>, String> {
    let file = tempfile::NamedTempFile::new().map_err(|error| error.to_string())?;
    std::fs::write(file.path(), cubin).map_err(|error| error.to_string())?;
    let said = Command::new(nvdisasm)
        .arg("-c")
        .arg(file.path())
        .output()
        .map_err(|error| format!("{}: {error}", nvdisasm.display()))?;
    if !said.status.success() {
        let why = String::from_utf8_lossy(&said.stderr);
        return Err(format!("{}: {}", nvdisasm.display(), why.trim()));
    }
    Ok(codes(&String::from_utf8_lossy(&said.stdout)))
}

/// Parses the kernels of a disassembled file, in the file's order.
pub(super) fn codes(text: &str) -> Vec<Code> {
    let mut all: Vec<Code> = Vec::new();
    let (mut mma, mut loads) = (0, 0);
    for line in text.lines().map(str::trim) {
        let is_label = line.ends_with(':');
        if let Some(kernel) = line
            .strip_prefix(".text.")
            .and_then(|l| l.strip_suffix(':'))
        {
            all.push(Code {
                kernel: kernel.to_owned(),
                ..Code::default()
            });
        }
        let Some(code) = all.last_mut() else {
            continue;
        };
        let opcode = opcode(line);
        if is_label || BRANCHES.contains(&opcode.split('.').next().unwrap_or_default()) {
            (mma, loads) = (0, 0);
            continue;
        }
        if ["HMMA", "HGMMA", "IMMA"]
            .iter()
            .any(|name| opcode.starts_with(name))
        {
            code.mma += 1;
            mma += 1;
        }
        loads += usize::from(opcode.starts_with("LDG"));
        code.mma_run = code.mma_run.max(mma);
        code.loads_run = code.loads_run.max(loads);
    }
    all
}

/// Instructions that end a run of overlapping ones, as does a branch target.
const BRANCHES: [&str; 7] = ["BRA", "BRX", "BSYNC", "BSSY", "WARPSYNC", "EXIT", "BAR"];

/// Returns the opcode of a line: `LDG.E.128` for `/*0040*/  @!P0 LDG.E.128 R4, ... ;`.
fn opcode(line: &str) -> &str {
    let Some((_, instruction)) = line.split_once("*/") else {
        return "";
    };
    let instruction = unpredicated(instruction.trim_start());
    instruction.split([' ', ';']).next().unwrap_or_default()
}

/// Least numbers that a kernel must have between two branches.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Least {
    mma_run: usize,
    loads_run: usize,
}

/// Returns the floor for a kind of kernel: its current numbers, so that a regression is noticed.
fn least(kernel: &str) -> Least {
    let at_least = |mma_run, loads_run| Least { mma_run, loads_run };
    if let Some(dim) = prompt_head(kernel) {
        // all products of a tile's queries and keys; two warps share large heads
        return at_least(if dim > 128 { dim / 2 } else { dim }, 0);
    }
    if let Some([_, tokens]) = wide_tile(kernel) {
        // all of a slice
        return at_least(8 * tokens / 128, 0);
    }
    if let Some(of_unit) = imma_products(kernel) {
        // of a unit; the compiler moves some to its ends
        return at_least(of_unit / 3, 0);
    }
    match kernel {
        // a slice of a warp's part; in large tiles, two of its four tiles
        _ if kernel.starts_with("gemm_") && kernel.ends_with("_64") => at_least(16, 0),
        _ if kernel.starts_with("gemm_") && kernel.ends_with("_128") => at_least(8, 0),
        // a unit of a strip
        _ if kernel.starts_with("gemv_") => at_least(0, 4),
        // codes and scales of a page's keys; in other attention kernels the queries hide them
        "attend_Q8_0_128_1" => at_least(0, 16),
        _ => at_least(0, 0),
    }
}

/// Returns a message if a kernel's machine code is below its floor.
pub(super) fn fault(code: &Code) -> Option<String> {
    let Least { mma_run, loads_run } = least(&code.kernel);
    let short = |what: &str, expected: usize, got: usize| {
        (got < expected).then(|| {
            let kernel = &code.kernel;
            format!("{kernel}: expected {expected} {what} between two branches at least, got {got}")
        })
    };
    short("matrix products", mma_run, code.mma_run)
        .or_else(|| short("reads of memory", loads_run, code.loads_run))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "
.text.gemm_Q4_K_64:
        /*0000*/                   LDC R1, c[0x0][0x28] ;
        /*0010*/                   LDG.E.128 R4, [R2] ;
        /*0020*/              @!P0 LDG.E.128 R8, [R2] ;
        /*0030*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0040*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
        /*0050*/               @P1 BRA `(.L_x_1) ;
        /*0060*/                   HMMA.16816.F32 R4, R8, R10, R4 ;
.L_x_1:
        /*0070*/                   LDG.E.128 R4, [R2] ;
        /*0080*/                   EXIT ;
.text.rows:
        /*0000*/                   EXIT ;
";

    #[test]
    fn runs_end_at_branches_and_where_they_go_to() {
        let [gemm, rows] = codes(TEXT).try_into().expect("two kernels");
        assert_eq!((gemm.mma, gemm.mma_run, gemm.loads_run), (3, 2, 2));
        assert_eq!(
            (rows.kernel.as_str(), rows.mma, rows.loads_run),
            ("rows", 0, 0)
        );
        assert_eq!(fault(&rows), None);
        assert_eq!(
            fault(&gemm).as_deref(),
            Some("gemm_Q4_K_64: expected 16 matrix products between two branches at least, got 2")
        );
    }
}
