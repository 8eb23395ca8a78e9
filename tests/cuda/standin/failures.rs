//! Every call to the driver fails once, with every kind of error, while a model is loaded and runs.

use std::collections::BTreeMap;
use std::ffi::{CStr, CString, c_char};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use libloading::Library;
use octavo_engine::backend::cuda::{Cuda, Options};
use octavo_engine::backend::{Backend, Phase, Step, StepSequence};
use octavo_kernels::KvType;
use octavo_kernels::cuda::Gpu;
use octavo_model::Model;

use super::{cache, driver, limits, small, text};

/// Out of memory, a stub of the library, no code for the device, an invalidated capture, a kernel
/// that failed (which every later call repeats), and any other error.
const CODES: [i32; 6] = [2, 34, 209, 901, 719, 999];

/// Calls that only make things faster.
const OPTIONAL: [&str; 6] = [
    "cuStreamBeginCapture",
    "cuStreamEndCapture",
    "cuGraphInstantiate",
    "cuGraphUpload",
    "cuMemHostAlloc",
    "cuEventCreate",
];

#[test]
fn every_call_may_fail() {
    let Some(driver) = driver() else { return };
    let ended = driver.inside("cuda::standin::failures::sweep", "execute=late");
    let text = ended.text("a sweep of failures");
    let line = text.lines().find(|line| line.starts_with("sweep: "));
    println!("{}", line.unwrap_or_else(|| panic!("no result: {text}")));
}

/// The stand-in's own functions, in this process.
pub(super) struct Controls(Library);

impl Controls {
    pub(super) fn new() -> Controls {
        // SAFETY: this is the stand-in, which only reads its settings when it is opened.
        Controls(unsafe { Library::new("libcuda.so.1") }.expect("a stand-in"))
    }

    pub(super) fn configure(&self, settings: &str) {
        let settings = CString::new(settings).expect("no zero bytes");
        // SAFETY: the type is that of the function in device.cpp; the text ends in zero.
        unsafe {
            let configure = self
                .0
                .get::<unsafe extern "C" fn(*const c_char)>(b"octavo_standin_configure\0")
                .expect("a stand-in");
            configure(settings.as_ptr());
        }
    }

    pub(super) fn number(&self, function: &[u8]) -> u64 {
        // SAFETY: both requested functions have this type.
        unsafe {
            let number = self.0.get::<unsafe extern "C" fn() -> u64>(function);
            number.expect("a stand-in")()
        }
    }

    /// Returns the names of the calls so far.
    fn names(&self) -> Vec<String> {
        let calls = self.number(b"octavo_standin_calls\0");
        let name = |call| {
            // SAFETY: the type is that of the function in device.cpp, which returns a constant.
            unsafe {
                let name = self
                    .0
                    .get::<unsafe extern "C" fn(u64) -> *const c_char>(b"octavo_standin_name\0")
                    .expect("a stand-in");
                let text = name(call);
                assert!(!text.is_null(), "call {call} has a name");
                CStr::from_ptr(text).to_string_lossy().into_owned()
            }
        };
        (1..=calls).map(name).collect()
    }
}

/// Loads a model, computes a prompt, generates three tokens; returns all logits.
fn life((gguf, model): &(Arc<Gguf>, Model)) -> Result<Vec<f32>, String> {
    let one_line = |error: &dyn std::fmt::Display| error.to_string();
    let gpu = Gpu::open(0, Some(cache())).map_err(|e| one_line(&e))?;
    let options = Options {
        kv_type: KvType::F16.both(),
        limits: limits(5, 1, 16),
        graphs: true,
        check_pages: true,
        threads: 1,
    };
    let mut cuda =
        Cuda::prepare(gpu, gguf, model, &options, &mut |_| {}).map_err(|e| one_line(&e))?;
    let tokens = text(8);
    let mut all = Vec::new();
    for (phase, range) in [
        (Phase::Prefill, 0..5),
        (Phase::Decode, 5..6),
        (Phase::Decode, 6..7),
        (Phase::Decode, 7..8),
    ] {
        let tokens = &tokens[range.clone()];
        let seqs = [StepSequence {
            tokens,
            start: range.start,
            tables: &[&[0]],
            outputs: 0..tokens.len(),
            ..StepSequence::default()
        }];
        let step = Step {
            phase,
            seqs: &seqs,
            input: &[],
        };
        let logits = cuda.step(&step, None).map_err(|e| one_line(&e))?;
        all.extend_from_slice(logits);
    }
    Ok(all)
}

#[test]
#[ignore = "runs on the stand-in"]
fn sweep() {
    let (controls, model) = (Controls::new(), small("llama"));
    // the compiled code is cached, so later runs read it
    life(&model).expect("nothing fails");
    controls.number(b"octavo_standin_settle\0");
    controls.configure("trace=1");
    let expected = life(&model).expect("nothing fails");
    let names = controls.names();
    assert_eq!(controls.number(b"octavo_standin_settle\0"), 0, "left over");
    // unless all are asked for, each call fails with one of the codes, and its neighbour with
    // another; of the later calls to a function, one in three fails
    let all = std::env::var_os("OCTAVO_STANDIN_SWEEP").is_some_and(|v| v == "all");
    let is_first = |i: usize| !names[..i].contains(&names[i]);
    let mut runs = 0;
    let (mut errors, mut same, mut wrong) = (0, 0, BTreeMap::<String, usize>::new());
    let quiet = std::panic::take_hook();
    std::panic::set_hook(Box::new(|_| {}));
    for code in CODES {
        for (i, name) in names.iter().enumerate() {
            let optional = OPTIONAL.contains(&&name[..]);
            let is_taken = is_first(i) || (i / CODES.len()).is_multiple_of(3);
            if !all && !optional && (CODES[i % CODES.len()] != code || !is_taken) {
                continue;
            }
            runs += 1;
            controls.configure(&format!("fail={}:{code}", i + 1));
            let mut note = |what: String| *wrong.entry(what).or_default() += 1;
            match catch_unwind(AssertUnwindSafe(|| life(&model))) {
                Err(_) => note(format!("panic: {name} {code}")),
                Ok(Ok(logits)) if logits == expected => same += 1,
                Ok(Ok(_)) => note(format!("other numbers: {name} {code}")),
                Ok(Err(error)) if error.is_empty() || error.contains('\n') => {
                    note(format!("not one line: {name} {code}: {error}"));
                }
                Ok(Err(error)) => {
                    errors += 1;
                    if optional && code != 719 {
                        note(format!("not done without: {name} {code}: {error}"));
                    }
                }
            }
            let left = controls.number(b"octavo_standin_settle\0");
            // cudarc retains a context, and does not release it if its next call fails
            let of_cudarc = name == "cuDeviceGetAttribute"
                && i > 0
                && names[i - 1] == "cuDevicePrimaryCtxRetain";
            if left > 0 && !of_cudarc {
                note(format!("left over: {name} {code}"));
            }
        }
    }
    std::panic::set_hook(quiet);
    let (calls, codes) = (names.len(), CODES.len());
    println!(
        "sweep: {calls} calls x {codes} codes, {runs} of them run: {errors} errors of one line, \
         {same} with the same numbers, {} others (panics, leaks): {wrong:#?}",
        wrong.values().sum::<usize>()
    );
    assert!(wrong.is_empty());
}
