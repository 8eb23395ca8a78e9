//! The driver's caller on a stand-in for the driver: what it does with a GPU that is strict, and
//! what it says of GPUs, drivers and compilers that it cannot use.

mod planted;

use crate::common::standin::Driver;

/// A stand-in, if there are the compilers that it takes.
fn driver() -> Option<Driver> {
    Driver::new(env!("CARGO_TARGET_TMPDIR"))
}

/// The tests of copies, and the first kernel, in three orders of what is queued.
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
