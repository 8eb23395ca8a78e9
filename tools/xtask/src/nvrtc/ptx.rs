//! Invariants of the kernels' PTX, whatever later changes do to their sources: matrix units used
//! where intended, no local memory, and non-coherent loads only of data that no kernel writes.

use super::check::{imma_products, prompt_head, unpredicated, wide_tile};

/// Facts of one kernel's PTX.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) kernel: String,
    /// Number of matrix unit products (`mma`).
    pub(super) mma: usize,
    /// Read-only loads that do not bypass the L1 cache: all loads requested by our sources do, so
    /// any other one is the compiler's own assumption that the data is never written.
    pub(super) odd_loads: usize,
    /// Number of local memory declarations.
    pub(super) local: usize,
}

/// Returns the kernels of a module, in the order of the text.
pub(super) fn texts(ptx: &str) -> Vec<Text> {
    let mut all: Vec<Text> = Vec::new();
    for line in ptx.lines().map(str::trim_start) {
        if let Some((_, name)) = line.split_once(".entry ") {
            all.push(Text {
                kernel: name.split('(').next().unwrap_or_default().to_owned(),
                ..Text::default()
            });
            continue;
        }
        let Some(text) = all.last_mut() else {
            continue;
        };
        let instruction = unpredicated(line);
        let products = ["mma.sync", "wgmma.mma_async"];
        text.mma += usize::from(products.iter().any(|name| instruction.starts_with(name)));
        text.local += usize::from(instruction.starts_with(".local"));
        let read_only = instruction.starts_with("ld.global.nc");
        text.odd_loads += usize::from(read_only && !instruction.contains("L1::no_allocate"));
    }
    all
}

/// Returns the number of matrix products that a kernel's PTX must have: that of its loops,
/// unrolled. More would be duplicated work, fewer a loop that was not unrolled or products merged
/// as equal.
fn expected_mma(kernel: &str) -> usize {
    if let Some(dim) = prompt_head(kernel) {
        // 64 keys: queries in two halves take one product for each 8 keys and 16 values of a head,
        // twice; attention weights times values take one for each 16 keys and 8 values. Two warps
        // share heads of more than 128 values
        let of_warp = if dim > 128 { dim / 2 } else { dim };
        return 2 * 8 * of_warp / 16 + 4 * of_warp / 8;
    }
    if let Some([_, tokens]) = wide_tile(kernel) {
        // two slices of eight pieces, with 128 tokens at a time
        return 2 * 8 * tokens / 128;
    }
    if let Some(of_unit) = imma_products(kernel) {
        // four units of 32, with their own sums
        return 4 * of_unit;
    }
    match kernel {
        // a warp's quarter of a tile by an eighth, or both by a half, over four pieces of a slice
        _ if kernel.starts_with("gemm_") && kernel.ends_with("_64") => 16,
        _ if kernel.starts_with("gemm_") && kernel.ends_with("_128") => 64,
        _ => 0,
    }
}

/// Returns a message if a kernel does not have the expected products.
fn mma_fault(text: &Text) -> Option<String> {
    let (kernel, got) = (&text.kernel, text.mma);
    if kernel == "mma_peak" {
        // eight sums, plus four times as many in a loop that a compiler may unroll further
        let whole = got >= 40 && (got - 8).is_multiple_of(32);
        return (!whole).then(|| format!("{kernel}: expected 8 and 32 mma.sync, got {got}"));
    }
    let expected = expected_mma(kernel);
    (got != expected).then(|| format!("{kernel}: expected {expected} matrix products, got {got}"))
}

/// Whether a kernel reads the tables of grids, which are constants: the compiler may load them as
/// data that is never written.
fn reads_grids(kernel: &str) -> bool {
    let mut words = kernel.split('_');
    words.any(|word| matches!(word, "IQ1" | "IQ2" | "IQ3"))
}

/// Returns the faults in a module's PTX.
pub(super) fn faults(ptx: &str) -> Vec<String> {
    let mut faults = Vec::new();
    for text in texts(ptx) {
        let kernel = &text.kernel;
        faults.extend(mma_fault(&text));
        match (text.odd_loads, reads_grids(kernel)) {
            (0, false) | (1.., true) => {}
            (0, true) => faults.push(format!("{kernel}: expected loads of a grid's table, got 0")),
            (n, false) => faults.push(format!(
                "{kernel}: {n} read-only loads that no source asks for"
            )),
        }
        if text.local > 0 {
            faults.push(format!("{kernel}: local memory is declared"));
        }
    }
    faults
}

#[cfg(test)]
mod tests {
    use super::*;

    const PTX: &str = "
.visible .entry mma_peak(
\t.param .align 8 .b8 mma_peak_param_0[32]
)
{
\tld.global.nc.L1::no_allocate.v4.u32 {%r1,%r2,%r3,%r4}, [%rd1];
\t@%p1 mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1,%f2,%f3,%f4}, {%r1};
}
.visible .entry rows(
)
{
\t.local .align 16 .b8 __local_depot0[64];
\t@!%p2 ld.global.nc.f32 %f1, [%rd1];
}
";

    #[test]
    fn each_kernel_has_its_own_count() {
        let [peak, rows] = texts(PTX).try_into().expect("two kernels");
        assert_eq!(
            (peak.kernel.as_str(), peak.mma, peak.local, peak.odd_loads),
            ("mma_peak", 1, 0, 0)
        );
        assert_eq!(
            (rows.kernel.as_str(), rows.mma, rows.local, rows.odd_loads),
            ("rows", 0, 1, 1)
        );
    }

    #[test]
    fn every_fault_is_named() {
        let faults = faults(PTX);
        assert_eq!(
            faults,
            [
                "mma_peak: expected 8 and 32 mma.sync, got 1",
                "rows: 1 read-only loads that no source asks for",
                "rows: local memory is declared",
            ]
        );
    }

    #[test]
    fn tables_are_read_by_kernels_of_grids_alone() {
        assert!(reads_grids("gemv_IQ2_XXS_1") && reads_grids("expert_imma_IQ1_M_32_8"));
        assert!(!reads_grids("gemv_IQ4_XS_1") && !reads_grids("gemv_TQ2_0_1"));
        let no_table = super::faults(&PTX.replace("rows(", "embed_IQ3_S_rows("));
        assert!(
            !no_table.iter().any(|fault| fault.contains("read-only")),
            "{no_table:?}"
        );
        let none = PTX.replace("ld.global.nc.f32", "ld.global.f32");
        let missing = super::faults(&none.replace("rows(", "embed_IQ3_S_rows("));
        assert!(
            missing.iter().any(|fault| fault.contains("a grid's table")),
            "{missing:?}"
        );
    }

    #[test]
    fn prompts_need_half_as_much_again_as_a_head_is_wide() {
        assert_eq!(expected_mma("attend_prompt_128_F16"), 192);
        assert_eq!(expected_mma("attend_F16_128_4"), 0);
        assert_eq!(expected_mma("gemm_Q4_K_128"), 64);
        assert_eq!(expected_mma("wide_gemm_Q4_K_64_128"), 16);
        assert_eq!(expected_mma("wide_gemm_F16_128_256"), 32);
    }
}
