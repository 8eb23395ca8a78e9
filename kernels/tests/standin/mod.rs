//! Tests the code that calls the driver on the stand-in: its behaviour with a strict GPU, and its
//! errors for GPUs, drivers and compilers that it cannot use.

mod planted;

use crate::common::standin::Driver;

/// Creates the stand-in, if its compilers are available.
fn driver() -> Option<Driver> {
    Driver::new(env!("CARGO_TARGET_TMPDIR"))
}

/// Runs the tests of copies, and the first kernel, in three execution orders of queued work.
#[test]
fn copies_happen_in_their_order_whenever_they_run() {
    let Some(driver) = driver() else { return };
    for execute in ["eager", "late", "random:7"] {
        let settings = format!("execute={execute}");
        let text = driver
            .tests(&["cuda_shim::copies"], &settings)
            .text(execute);
        assert!(text.contains("3 passed"), "{text}");
    }
}
