//! Tests the code that calls the driver on the stand-in: its behaviour with a strict GPU, and its
//! errors for GPUs, drivers and compilers that it cannot use.

mod planted;

use octavo_kernels::cuda::{Cache, Device, Gpu, Module};
use octavo_quant::TensorType;

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

/// Modules that are compiled beside other work are there when they are asked for; one that does not
/// compile is an error with its name, and no other is lost with it.
#[test]
fn modules_are_compiled_together() {
    let Some(driver) = driver() else { return };
    let ended = driver.inside("standin::compiled_together", "");
    let text = ended.text("modules");
    assert!(
        text.contains("six modules, one of them refused, twice"),
        "{text}"
    );
}

#[test]
#[ignore = "runs on the stand-in"]
fn compiled_together() {
    // a type that has no kernels
    let bad = Module::Gemv(TensorType::Q8_K);
    let mut good = vec![Module::Rows, Module::Probe];
    good.extend(Module::Kv(1).parts().into_iter().take(3));
    let dir = tempfile::tempdir().expect("a folder");
    let cache = Cache::new(dir.path());
    for is_cached in [false, true] {
        let mut gpu = Gpu::open(0, Some(cache.clone())).expect("a stand-in");
        let all: Vec<Module> = good.iter().copied().chain([bad]).collect();
        gpu.start_building(&all);
        // a second time changes nothing
        gpu.start_building(&all);
        // the computation goes on meanwhile
        let at = gpu.alloc(4).expect("memory");
        gpu.upload(at, &[1, 2, 3, 4]).expect("it is copied");
        let error = gpu.build(bad).expect_err("it does not compile").to_string();
        let start = "gemv.cu -DFORMAT=Q8_K: NVRTC 13.0 for sm_90a does not compile it: ";
        assert!(error.starts_with(start), "{error}");
        for module in &good {
            gpu.build(*module).unwrap_or_else(|error| panic!("{error}"));
        }
        let mut bytes = [0; 4];
        gpu.download(at, &mut bytes).expect("it is copied");
        assert_eq!(bytes, [1, 2, 3, 4]);
        let files = std::fs::read_dir(dir.path()).expect("a folder").count();
        assert_eq!(files, good.len(), "cached before: {is_cached}");
        // whatever is begun and not asked for is dropped
        gpu.start_building(&Module::Kv(1).parts());
    }
    println!("six modules, one of them refused, twice");
}
