//! A GPU behind NVIDIA's driver, as a [`Device`].

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, sys};

use super::gpus::{self, GpuInfo, driver_error, guarded};
use super::nvrtc::Nvrtc;
use super::params::Pair;
use super::pinned::{Ring, Staged, bind_in_the_end};
use super::{Cache, Device, Error, HostBuffer, Launch, Module, Ptr, Recording, Task, launch};

/// Bytes that are not given to models: code, captured launches, and what the driver wants later.
const RESERVED: u64 = 256 << 20;
/// What share of the machine's memory is not given to models where a GPU has no other: everything
/// else that runs there lives in it.
const RESERVED_SHARE: u64 = 16;
/// Buffers that small uploads pass through, step records above all, and their bytes: a step may be
/// written down while those before it wait for their turn.
const SMALL: (usize, usize) = (4, 256 << 10);
/// Likewise for pieces of all others: one is filled while the other is copied.
const LARGE: (usize, usize) = (2, 8 << 20);
/// Bytes of the largest buffer for downloads that is pinned: memory that is locked is missing
/// elsewhere.
const MOST_PINNED: usize = 256 << 20;

/// A GPU that passed its self-test.
pub struct Gpu {
    info: GpuInfo,
    nvrtc: &'static Nvrtc,
    cache: Option<Cache>,
    modules: HashMap<Module, sys::CUmodule>,
    functions: HashMap<String, sys::CUfunction>,
    /// Address and length.
    memory: Vec<(Ptr, usize)>,
    recordings: Vec<CudaGraph>,
    /// What uploads pass through, from the first of each kind on.
    small: Option<Ring<Staged>>,
    large: Option<Ring<Staged>>,
    /// The driver has no page-locked memory for uploads to pass through.
    unstaged: bool,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

// SAFETY: modules, functions and graphs belong to the context and not to a thread; each call binds
// the context first, and takes the whole struct, so that no two happen at the same time.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Opens a GPU and runs a small kernel on it, whose results are checked.
    ///
    /// # Errors
    /// One line that says what is missing.
    pub fn open(ordinal: usize, cache: Option<Cache>) -> Result<Gpu, Error> {
        let all = gpus::gpus()?;
        let n = all.len();
        let info = all.into_iter().nth(ordinal).ok_or_else(|| {
            Error::Unavailable(format!("GPU {ordinal}: expected a number below {n}"))
        })?;
        info.check()?;
        let nvrtc = Nvrtc::find(info.driver.0, info.capability)?;
        guarded(|| {
            let context =
                CudaContext::new(ordinal).map_err(driver_error("cuDevicePrimaryCtxRetain"))?;
            // SAFETY: there is one stream, and it is ours: nothing needs ordering across streams,
            // and events would be recorded inside of captures.
            unsafe { context.disable_event_tracking() };
            let stream = context
                .new_stream()
                .map_err(driver_error("cuStreamCreate"))?;
            let (modules, functions) = (HashMap::new(), HashMap::new());
            let (memory, recordings) = (Vec::new(), Vec::new());
            let (small, large) = (None, None);
            let mut gpu = Gpu {
                info,
                nvrtc,
                cache,
                modules,
                functions,
                memory,
                recordings,
                small,
                large,
                unstaged: false,
                stream,
                context,
            };
            gpu.self_test()?;
            Ok(gpu)
        })
    }

    /// What it is.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// On which everything happens.
    #[cfg(feature = "nccl")]
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Frees everything that was allocated, and what was recorded over it.
    ///
    /// # Errors
    /// If the device fails.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.bind()?;
        self.wait()?;
        self.free().map_err(driver_error("cuMemFree"))
    }

    /// Frees everything, whatever fails; nothing runs any more. The context must be bound.
    fn free(&mut self) -> Result<(), DriverError> {
        self.recordings.clear();
        let mut freed = Ok(());
        for (at, _) in self.memory.drain(..) {
            // SAFETY: allocated here, freed once, and nothing uses it: the stream is idle.
            freed = freed.and(unsafe { result::free_sync(at.0) });
        }
        freed
    }

    fn self_test(&mut self) -> Result<(), Error> {
        let x: Vec<f32> = (0..1000u16).map(f32::from).collect();
        let bytes: Vec<u8> = x.iter().flat_map(|v| v.to_le_bytes()).collect();
        let (a, out) = (self.alloc(bytes.len())?, self.alloc(bytes.len())?);
        self.upload(a, &bytes)?;
        let launch = launch::add(&Pair {
            a,
            b: a,
            out,
            n: x.len() as u64,
            period: x.len() as u64,
        });
        let mut got = vec![0; bytes.len()];
        // SAFETY: both allocations have 1000 floats, and the first was written.
        unsafe { self.launch(&launch)? };
        self.download(out, &mut got)?;
        let right = got
            .chunks_exact(4)
            .zip(&x)
            .all(|(y, x)| y == (x + x).to_le_bytes());
        if !right {
            let name = &self.info.name;
            return Err(Error::Unavailable(format!(
                "GPU {} ({name}) failed its self-test",
                self.info.ordinal
            )));
        }
        Ok(())
    }

    fn bind(&self) -> Result<(), Error> {
        self.context
            .bind_to_thread()
            .map_err(driver_error("cuCtxSetCurrent"))
    }

    fn module(&mut self, module: Module) -> Result<sys::CUmodule, Error> {
        if let Some(loaded) = self.modules.get(&module) {
            return Ok(*loaded);
        }
        let arch = self.info.arch();
        let compile = || self.nvrtc.compile(module, &arch).map(|c| c.cubin);
        // SAFETY: an image that NVRTC made; the driver checks what it is given.
        let load = |image: &[u8]| unsafe {
            result::module::load_data(image.as_ptr().cast())
                .map_err(driver_error("cuModuleLoadData"))
        };
        let loaded = match &self.cache {
            Some(cache) => {
                Cache::get(&cache.path(module, &self.nvrtc.key(&arch)), compile, load)?.0
            }
            None => load(&compile()?)?,
        };
        self.modules.insert(module, loaded);
        Ok(loaded)
    }

    fn function(&mut self, launch: &Launch) -> Result<sys::CUfunction, Error> {
        if let Some(function) = self.functions.get(&launch.kernel) {
            return Ok(*function);
        }
        let module = self.module(launch.module)?;
        let name = CString::new(launch.kernel.as_str()).expect("kernels' names have no zero bytes");
        // SAFETY: the module is loaded, and stays so.
        let function = unsafe { result::module::get_function(module, name) }
            .map_err(driver_error("cuModuleGetFunction"))?;
        if launch.shared > 0 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(launch.shared).expect("far below 2^31");
            // SAFETY: a kernel of this module, all of whose launches ask for as much.
            unsafe { result::function::set_function_attribute(function, most, bytes) }
                .map_err(driver_error("cuFuncSetAttribute"))?;
        }
        self.functions.insert(launch.kernel.clone(), function);
        Ok(function)
    }

    /// Copies at the call, for lack of page-locked memory.
    fn upload_unstaged(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller checked the range on the device. Memory that is not page-locked has
        // been read when this returns.
        unsafe { result::memcpy_htod_async(to.0, bytes, self.stream.cu_stream()) }
            .map_err(driver_error("cuMemcpyHtoDAsync"))
    }

    /// Waits for everything, and once more where that failed: cudarc asks other things first. Only
    /// a device that failed has not stopped to read and write then, and it does so no more.
    fn wait(&self) -> Result<(), Error> {
        let waited = self.stream.synchronize();
        if waited.is_err() {
            // SAFETY: the stream lives. The first error is the one that is told.
            let _ = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        }
        waited.map_err(driver_error("cuStreamSynchronize"))
    }

    /// Ends a capture that may not have ended: cudarc asks other things first.
    fn abandon_capture(&self) {
        // SAFETY: the stream lives. Where nothing is captured any more this is an error, which says
        // what is known.
        if let Ok(graph) = unsafe { result::stream::end_capture(self.stream.cu_stream()) } {
            // SAFETY: just made, and nobody else has it; where it stays, that is a few bytes.
            let _ = unsafe { result::graph::destroy(graph) };
        }
    }

    fn inside(&self, at: Ptr, len: usize) -> Result<(), Error> {
        let inside =
            |(base, n): &(Ptr, usize)| at.0 >= base.0 && at.0 + len as u64 <= base.0 + *n as u64;
        match self.memory.iter().any(inside) {
            true => Ok(()),
            false => Err(Error::Driver {
                call: "copy",
                message: format!("{len} bytes at {:#x}: not allocated", at.0),
            }),
        }
    }
}

impl Device for Gpu {
    fn describe(&self) -> String {
        format!("GPU {} ({})", self.info.ordinal, self.info.name)
    }

    fn multiprocessors(&self) -> u32 {
        self.info.multiprocessors
    }

    fn is_wide(&self) -> bool {
        self.info.is_wide()
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        self.bind()?;
        let (free, all) = result::mem_get_info().map_err(driver_error("cuMemGetInfo"))?;
        if !self.info.integrated {
            return Ok((free as u64).saturating_sub(RESERVED));
        }
        // what files fill is not free there, and files give way
        let available = gpus::available().unwrap_or(0).max(free as u64);
        let reserved = RESERVED.max(all as u64 / RESERVED_SHARE);
        Ok(available.min(all as u64).saturating_sub(reserved))
    }

    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error> {
        self.bind()?;
        // SAFETY: a size; the driver refuses none at all.
        let at =
            unsafe { result::malloc_sync(bytes.max(1)) }.map_err(driver_error("cuMemAlloc"))?;
        self.memory.push((Ptr(at), bytes));
        Ok(Ptr(at))
    }

    fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error> {
        self.inside(to, bytes.len())?;
        self.bind()?;
        if self.unstaged {
            return self.upload_unstaged(to, bytes);
        }
        // never inside of a capture: `record` captures launches and nothing else
        let (ring, (n, size)) = match bytes.len() <= SMALL.1 {
            true => (&mut self.small, SMALL),
            false => (&mut self.large, LARGE),
        };
        let ring = match ring {
            Some(ring) => ring,
            None => {
                let buffers = (0..n).map(|_| Staged::new(&self.context, &self.stream, size));
                match buffers.collect::<Result<_, _>>() {
                    Ok(buffers) => ring.insert(Ring::new(buffers)),
                    // page-locked memory is for speed alone
                    Err(_) => {
                        self.unstaged = true;
                        return self.upload_unstaged(to, bytes);
                    }
                }
            }
        };
        ring.upload(to, bytes)
    }

    fn download_all(&mut self, copies: &mut [(Ptr, &mut [u8])]) -> Result<(), Error> {
        copies
            .iter()
            .try_for_each(|(from, bytes)| self.inside(*from, bytes.len()))?;
        self.bind()?;
        let mut copied = Ok(());
        for (from, bytes) in copies.iter_mut().filter(|(_, bytes)| !bytes.is_empty()) {
            // SAFETY: inside an allocation; the stream is waited for below, while the bytes are
            // borrowed.
            let copy = unsafe { result::memcpy_dtoh_async(bytes, from.0, self.stream.cu_stream()) };
            copied = copied.and(copy.map_err(driver_error("cuMemcpyDtoHAsync")));
        }
        // whatever happened: copies that were begun write to the caller's memory
        copied.and(self.wait())
    }

    fn host_buffer(&mut self, floats: usize) -> Result<HostBuffer, Error> {
        if floats > MOST_PINNED / 4 {
            return Ok(HostBuffer::plain(floats));
        }
        // page-locked memory is for speed alone
        Ok(HostBuffer::pinned(&self.context, floats).unwrap_or_else(|_| HostBuffer::plain(floats)))
    }

    fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), Error> {
        self.inside(from, bytes)?;
        self.inside(to, bytes)?;
        self.bind()?;
        // SAFETY: both inside allocations.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream.cu_stream()) }
            .map_err(driver_error("cuMemcpyDtoDAsync"))
    }

    fn build(&mut self, module: Module) -> Result<(), Error> {
        self.bind()?;
        self.module(module).map(|_| ())
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        self.bind()?;
        let function = self.function(launch)?;
        let [x, y, z] = launch.grid;
        let mut params = [launch.params.as_ptr().cast_mut().cast()];
        // SAFETY: the launch table gives a kernel its own struct; the addresses in it are the
        // caller's promise.
        unsafe {
            let stream = self.stream.cu_stream();
            result::launch_kernel(
                function,
                (x, y, z),
                (launch.threads, 1, 1),
                launch.shared,
                stream,
                &mut params,
            )
        }
        .map_err(driver_error("cuLaunchKernel"))
    }

    unsafe fn record(&mut self, tasks: Vec<Task>) -> Result<Recording, Error> {
        self.bind()?;
        for task in &tasks {
            match task {
                // a capture cannot load code
                Task::Launch(launch) => self.function(launch).map(|_| ())?,
                Task::Gather(gather) if gather.by.is_enqueued() => {}
                Task::Gather(_) => {
                    let why = "ranks gather through the host".to_owned();
                    return Err(Error::Unavailable(why));
                }
            }
        }
        let mode = sys::CUstreamCaptureMode::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        self.stream
            .begin_capture(mode)
            .map_err(driver_error("cuStreamBeginCapture"))?;
        // SAFETY: the caller's promise.
        let started = tasks
            .iter()
            .try_for_each(|task| unsafe { task.start(self) });
        // whatever happened: a stream that goes on capturing refuses everything else
        let graph = self.stream.end_capture(sys::CUgraphInstantiate_flags(0));
        if graph.is_err() {
            self.abandon_capture();
        }
        started?;
        let graph = graph
            .map_err(driver_error("cuStreamEndCapture"))?
            .ok_or_else(|| Error::Driver {
                call: "cuStreamEndCapture",
                message: "no launch was captured".to_owned(),
            })?;
        graph.upload().map_err(driver_error("cuGraphUpload"))?;
        self.recordings.push(graph);
        Ok(Recording(self.recordings.len() - 1))
    }

    unsafe fn replay(&mut self, recording: Recording) -> Result<(), Error> {
        self.recordings[recording.0]
            .launch()
            .map_err(driver_error("cuGraphLaunch"))
    }
}

impl Drop for Gpu {
    fn drop(&mut self) {
        // Errors cannot be told to anybody any more. None keeps the rest from being freed: others
        // may use the context, and then it stays.
        if !bind_in_the_end(&self.context) {
            return;
        }
        let _ = self.wait();
        bind_in_the_end(&self.context);
        let _ = self.free();
        bind_in_the_end(&self.context);
        for (_, module) in self.modules.drain() {
            // SAFETY: loaded here, unloaded once; its functions go with this struct.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
