//! Planted faults of a caller, and their detection by the stand-in.
#![allow(unsafe_code)] // the driver's own functions are called

use std::ffi::c_void;

use cudarc::driver::sys::CUresult as Code;
use cudarc::driver::{result, sys};
use octavo_kernels::cuda::nvrtc::Nvrtc;
use octavo_kernels::cuda::params::Pair;
use octavo_kernels::cuda::{Launch, Module, Ptr, launch};

use super::driver;

/// A context, a stream, device memory and pinned host memory.
struct Scene {
    stream: sys::CUstream,
    device: u64,
    pinned: &'static mut [u8],
}

const BYTES: usize = 4096;

fn scene() -> Scene {
    // SAFETY: follows the driver's documentation; the memory is never freed.
    unsafe {
        result::init().expect("a stand-in");
        let context = result::primary_ctx::retain(0).expect("a device");
        result::ctx::set_current(context).expect("a context");
        let kind = result::stream::StreamKind::NonBlocking;
        let stream = result::stream::create(kind).expect("a stream");
        let at = result::malloc_host(BYTES, 0).expect("memory");
        Scene {
            stream,
            device: result::malloc_sync(BYTES).expect("memory"),
            pinned: std::slice::from_raw_parts_mut(at.cast(), BYTES),
        }
    }
}

impl Scene {
    fn upload(&self) {
        // SAFETY: both ranges have `BYTES` bytes. Writes to the source before it was read are the
        // fault to be detected.
        unsafe { result::memcpy_htod_async(self.device, self.pinned, self.stream) }
            .expect("it is queued");
    }

    fn module(&self) -> (sys::CUmodule, sys::CUfunction, Launch) {
        let nvrtc = Nvrtc::find(13, (9, 0)).expect("a compiler");
        let image = nvrtc.compile(Module::Rows, "sm_90").expect("it compiles");
        // SAFETY: an image made by NVRTC, and a kernel in it.
        let (module, function) = unsafe {
            let module = result::module::load_data(image.cubin.as_ptr().cast());
            let module = module.expect("it is loaded");
            let name = std::ffi::CString::new("add").expect("no zero bytes");
            let function = result::module::get_function(module, name).expect("a kernel");
            (module, function)
        };
        let n = (BYTES / 4) as u64;
        let (a, b, out) = (Ptr(self.device), Ptr(self.device), Ptr(self.device));
        let period = n;
        let launch = launch::add(&Pair {
            a,
            b,
            out,
            n,
            period,
        });
        (module, function, launch)
    }

    fn launch(&self, function: sys::CUfunction, launch: &Launch, threads: u32) -> Result<(), Code> {
        let [x, y, z] = launch.grid;
        let mut params = [launch.params.as_ptr().cast_mut().cast::<c_void>()];
        // SAFETY: the kernel's own parameters; faults in them are to be detected.
        unsafe {
            let (grid, block) = ((x, y, z), (threads, 1, 1));
            result::launch_kernel(function, grid, block, 0, self.stream, &mut params)
        }
        .map_err(|error| error.0)
    }

    fn begin(&self) {
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive.
        unsafe { result::stream::begin_capture(self.stream, mode) }.expect("it captures");
    }

    fn end(&self) -> Result<sys::CUgraph, Code> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::end_capture(self.stream) }.map_err(|error| error.0)
    }

    fn wait(&self) -> Result<(), Code> {
        // SAFETY: the stream is alive.
        unsafe { result::stream::synchronize(self.stream) }.map_err(|error| error.0)
    }
}

/// An operation that invalidates a capture, with its name.
type Spoiler = (&'static str, fn(&mut Scene) -> Code);

fn spoilers() -> [Spoiler; 5] {
    fn code<T>(result: Result<T, result::DriverError>) -> Code {
        result.err().expect("it is refused").0
    }
    [
        ("waiting", |scene| scene.wait().expect_err("it is refused")),
        // SAFETY: only sizes are passed.
        ("memory", |_| code(unsafe { result::malloc_sync(64) })),
        // SAFETY: as before.
        ("pinned", |_| code(unsafe { result::malloc_host(64, 0) })),
        ("loading", |_| {
            // SAFETY: the image is not read.
            code(unsafe { result::module::load_data([0u8; 64].as_ptr().cast()) })
        }),
        ("copying", |scene| {
            let bytes = [1; 64];
            // SAFETY: both ranges have at least 64 bytes.
            code(unsafe { result::memcpy_htod_async(scene.device, &bytes, scene.stream) })
        }),
    ]
}

/// Faults that the driver answers with an error.
#[test]
#[ignore = "runs on the stand-in"]
fn answered() {
    let mut scene = scene();
    for (name, spoil) in spoilers() {
        scene.begin();
        let code = spoil(&mut scene);
        assert_eq!(code, Code::CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED, "{name}");
        let ended = scene.end();
        let lost = Code::CUDA_ERROR_STREAM_CAPTURE_INVALIDATED;
        assert_eq!(ended.expect_err("it is lost"), lost, "{name}");
    }
    scene.begin();
    let stream = scene.stream as usize;
    let elsewhere = std::thread::spawn(move || {
        // SAFETY: the stream and the context are alive.
        unsafe {
            let of_none = result::stream::synchronize(stream as sys::CUstream);
            let context = result::primary_ctx::retain(0).expect("a device");
            result::ctx::set_current(context).expect("a context");
            let ended = result::stream::end_capture(stream as sys::CUstream);
            (of_none.map_err(|e| e.0), ended.map(drop).map_err(|e| e.0))
        }
    });
    let (of_none, ended) = elsewhere.join().expect("it ends");
    assert_eq!(of_none, Err(Code::CUDA_ERROR_INVALID_CONTEXT));
    let wrong = Code::CUDA_ERROR_STREAM_CAPTURE_WRONG_THREAD;
    assert_eq!(ended.expect_err("another thread's"), wrong);
    scene.end().expect("nothing spoilt it");

    let (_, function, launch) = scene.module();
    let many = scene.launch(function, &launch, 512);
    assert_eq!(many, Err(Code::CUDA_ERROR_INVALID_VALUE), "threads");
    let mut wide = launch.clone();
    wide.grid[1] = 65536;
    let wide = scene.launch(function, &wide, 256);
    assert_eq!(wide, Err(Code::CUDA_ERROR_INVALID_VALUE), "a grid");
    scene.launch(function, &launch, 256).expect("it is queued");
    // the first launch that runs fails, and so does every later call
    for _ in 0..2 {
        assert_eq!(scene.wait(), Err(Code::CUDA_ERROR_LAUNCH_FAILED));
    }
    // SAFETY: released as often as retained; the device failed, so nothing else can be freed.
    unsafe {
        result::primary_ctx::release(0).expect("a context");
        result::primary_ctx::release(0).expect("a context");
    }
    println!("all answered");
}

/// Faults that end the process: commits the one named by `OCTAVO_FAULT`.
#[test]
#[ignore = "runs on the stand-in"]
fn fatal() {
    let scene = scene();
    let name = std::env::var("OCTAVO_FAULT").expect("a fault");
    // SAFETY: the unsoundness of each is what is to be detected.
    unsafe {
        match &name[..] {
            "touch" => println!("{}", *(scene.device as *const u8)),
            "refill" => {
                scene.upload();
                scene.pinned[7] ^= 1;
                scene.wait().expect("it is seen");
            }
            "beyond" => {
                let to = scene.device + 1;
                let copied = result::memcpy_htod_async(to, scene.pinned, scene.stream);
                copied.expect("it is seen");
            }
            "free early" => {
                scene.upload();
                result::free_sync(scene.device).expect("it is seen");
            }
            "free pinned early" => {
                scene.upload();
                result::free_host(scene.pinned.as_mut_ptr().cast()).expect("it is seen");
            }
            "free twice" => {
                result::free_sync(scene.device).expect("once");
                result::free_sync(scene.device).expect("it is seen");
            }
            "unload early" => {
                let (module, function, launch) = scene.module();
                scene.begin();
                scene
                    .launch(function, &launch, 256)
                    .expect("it is captured");
                scene.end().expect("a graph");
                result::module::unload(module).expect("it is seen");
            }
            "default stream" => {
                let stream = std::ptr::null_mut();
                result::stream::synchronize(stream).expect("it is seen");
            }
            // everything leaks
            "leak" => result::primary_ctx::release(0).expect("a context"),
            other => panic!("OCTAVO_FAULT={other}: expected the name of a fault"),
        }
    }
    println!("nobody saw it");
}

#[test]
fn what_a_driver_answers_is_answered() {
    let Some(driver) = driver() else { return };
    let test = "standin::planted::answered";
    let text = driver.inside(test, "kernel_fails=1").text("answers");
    assert!(text.contains("all answered"), "{text}");
}

#[test]
fn what_a_driver_overlooks_ends_the_process() {
    let Some(driver) = driver() else { return };
    for (name, says) in [
        ("touch", ""),
        ("refill", "were written while a copy from there was queued"),
        ("beyond", "expected them inside of an allocation"),
        ("free early", "memory is freed while work with it is queued"),
        (
            "free pinned early",
            "freed while a copy from or to it is queued",
        ),
        ("free twice", "which is not allocated"),
        (
            "unload early",
            "before a graph with its kernels is destroyed",
        ),
        ("default stream", "a default stream is used"),
        ("leak", "left over: 1 of memory of a device"),
    ] {
        let ended = driver.fault("standin::planted::fatal", name);
        assert!(
            !ended.ok && ended.text.contains(says),
            "{name}: {}",
            ended.text
        );
        let overlooked = ended.text.contains("nobody saw it");
        assert!(overlooked == (name == "leak"), "{name}: {}", ended.text);
    }
}
