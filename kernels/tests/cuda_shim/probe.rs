//! Device measurements: the counts are right, whatever the speed.

use octavo_kernels::cuda::probe;

use super::device;

#[test]
fn limits_are_those_of_work_that_was_done() {
    let Some(mut bench) = device() else { return };
    let copied = probe::copy_bandwidth(bench.0.device(), 1 << 20).expect("it copies");
    assert!(copied > 0.01, "{copied} GB/s");
    let computed = probe::flops_peak(bench.0.device(), 2).expect("sums are right");
    assert!(computed > 1e-6, "{computed} GFLOP/s");
}
