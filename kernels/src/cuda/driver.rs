//! A GPU behind NVIDIA's driver, as a [`Device`].

use std::collections::HashMap;
use std::ffi::CString;
use std::sync::Arc;
use std::thread;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaGraph, CudaStream, sys};

use super::builds::Builds;
use super::gpus::{self, GpuInfo, driver_error, guarded};
use super::nvrtc::Nvrtc;
use super::params::Pair;
use super::pinned::{Ring, Staged, bind_in_the_end};
use super::{Cache, Device, Error, HostBuffer, Launch, Module, Ptr, Recording, Task, launch};

/// Bytes of device memory kept back for code, CUDA graphs and later allocations of the driver.
pub const RESERVED: u64 = 256 << 20;
/// Fraction (1/16) of memory kept back on an integrated GPU, which shares the machine's memory with
/// everything else that runs.
const RESERVED_SHARE: u64 = 16;
/// Number and bytes of staging buffers for small uploads, mainly step records: several, so that a
/// step's record can be written while earlier steps are still queued.
const SMALL: (usize, usize) = (4, 256 << 10);
/// Number and bytes of staging buffers for chunks of larger uploads: one is filled while the other
/// is copied.
const LARGE: (usize, usize) = (2, 8 << 20);
/// Bytes of the largest pinned download buffer: pinned memory is lost to everything else.
const MAX_PINNED: usize = 256 << 20;

/// A GPU that passed its self-test.
pub struct Gpu {
    info: GpuInfo,
    nvrtc: &'static Nvrtc,
    cache: Option<Cache>,
    /// Modules that threads compile.
    builds: Builds,
    modules: HashMap<Module, sys::CUmodule>,
    functions: HashMap<String, sys::CUfunction>,
    /// Address and bytes of each allocation.
    memory: Vec<(Ptr, usize)>,
    recordings: Vec<CudaGraph>,
    /// Staging buffers, allocated on the first upload of each size class.
    small: Option<Ring<Staged>>,
    large: Option<Ring<Staged>>,
    /// Pinned memory could not be allocated: uploads are not staged.
    unstaged: bool,
    stream: Arc<CudaStream>,
    context: Arc<CudaContext>,
}

// SAFETY: modules, functions and graphs belong to the context and not to a thread; each call binds
// the context first and borrows the whole struct, so that no two run at the same time.
unsafe impl Send for Gpu {}

impl Gpu {
    /// Opens a GPU and checks the results of a small kernel on it.
    ///
    /// # Errors
    /// One line that names what is missing.
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
            // SAFETY: there is only one stream, our own, so that nothing needs ordering across
            // streams; and events would be recorded inside captures.
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
                builds: Builds::default(),
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

    /// Returns the GPU's properties.
    pub fn info(&self) -> &GpuInfo {
        &self.info
    }

    /// Returns the stream that all work is enqueued on.
    pub(super) fn stream(&self) -> &Arc<CudaStream> {
        &self.stream
    }

    /// Frees all allocations, and the recordings that use them.
    ///
    /// # Errors
    /// If the device fails.
    pub fn clear(&mut self) -> Result<(), Error> {
        self.bind()?;
        self.wait()?;
        self.free().map_err(driver_error("cuMemFree"))
    }

    /// Frees everything, continuing past errors. The stream must be idle and the context bound.
    fn free(&mut self) -> Result<(), DriverError> {
        self.recordings.clear();
        let mut freed = Ok(());
        for (at, _) in self.memory.drain(..) {
            // SAFETY: allocated here, freed once, and not in use: the stream is idle.
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
        // SAFETY: both allocations hold 1000 floats, and the first was written.
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
        let built = self.builds.take(module).transpose()?.flatten();
        let compile = || match built {
            Some(image) => Ok(image),
            None => self.nvrtc.compile(module, &arch).map(|c| c.cubin),
        };
        // SAFETY: an image made by NVRTC; the driver validates it.
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
        // SAFETY: the module is loaded and stays loaded.
        let function = unsafe { result::module::get_function(module, name) }
            .map_err(driver_error("cuModuleGetFunction"))?;
        if launch.shared > 0 {
            let most = sys::CUfunction_attribute::CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES;
            let bytes = i32::try_from(launch.shared).expect("far below 2^31");
            // SAFETY: a kernel of this module, all of whose launches request the same amount.
            unsafe { result::function::set_function_attribute(function, most, bytes) }
                .map_err(driver_error("cuFuncSetAttribute"))?;
        }
        self.functions.insert(launch.kernel.clone(), function);
        Ok(function)
    }

    /// Copies without staging, for lack of pinned memory.
    fn upload_unstaged(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error> {
        if bytes.is_empty() {
            return Ok(());
        }
        // SAFETY: the caller checked the range on the device. Pageable memory has been read when
        // this returns.
        unsafe { result::memcpy_htod_async(to.0, bytes, self.stream.cu_stream()) }
            .map_err(driver_error("cuMemcpyHtoDAsync"))
    }

    /// Synchronizes the stream, and once more where that failed: cudarc may return an earlier error
    /// before it waits. If the second call fails too, the device itself failed and no longer reads
    /// or writes.
    fn wait(&self) -> Result<(), Error> {
        let waited = self.stream.synchronize();
        if waited.is_err() {
            // SAFETY: the stream is alive. The first error is the one reported.
            let _ = unsafe { result::stream::synchronize(self.stream.cu_stream()) };
        }
        waited.map_err(driver_error("cuStreamSynchronize"))
    }

    /// Ends a capture that may still be active: cudarc may return an earlier error before it ends
    /// it.
    fn abandon_capture(&self) {
        // SAFETY: the stream is alive. Without an active capture this returns an error, as
        // expected.
        if let Ok(graph) = unsafe { result::stream::end_capture(self.stream.cu_stream()) } {
            // SAFETY: just created, with no other owner; if this fails, a few bytes leak.
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

    fn has_fast_imma(&self) -> bool {
        self.info.has_fast_imma()
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        self.bind()?;
        let (free, all) = result::mem_get_info().map_err(driver_error("cuMemGetInfo"))?;
        if !self.info.integrated {
            return Ok((free as u64).saturating_sub(RESERVED));
        }
        // the page cache does not count as free memory there, but is reclaimed on demand
        let available = gpus::available().unwrap_or(0).max(free as u64);
        let reserved = RESERVED.max(all as u64 / RESERVED_SHARE);
        Ok(available.min(all as u64).saturating_sub(reserved))
    }

    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error> {
        self.bind()?;
        // SAFETY: only a size is passed; it is not 0, which the driver rejects.
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
        // never during a capture: `record` captures launches and gathers only
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
                    // pinned memory is only an optimization
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
            // SAFETY: inside an allocation; the stream is synchronized below, while the bytes are
            // still borrowed.
            let copy = unsafe { result::memcpy_dtoh_async(bytes, from.0, self.stream.cu_stream()) };
            copied = copied.and(copy.map_err(driver_error("cuMemcpyDtoHAsync")));
        }
        // synchronize even after an error: copies already begun write to the caller's memory
        copied.and(self.wait())
    }

    fn host_buffer(&mut self, floats: usize) -> Result<HostBuffer, Error> {
        if floats > MAX_PINNED / 4 {
            return Ok(HostBuffer::plain(floats));
        }
        // pinned memory is only an optimization
        Ok(HostBuffer::pinned(&self.context, floats).unwrap_or_else(|_| HostBuffer::plain(floats)))
    }

    fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), Error> {
        self.inside(from, bytes)?;
        self.inside(to, bytes)?;
        self.bind()?;
        // SAFETY: both ranges are inside allocations.
        unsafe { result::memcpy_dtod_async(to.0, from.0, bytes, self.stream.cu_stream()) }
            .map_err(driver_error("cuMemcpyDtoDAsync"))
    }

    fn start_building(&mut self, modules: &[Module]) {
        let is_new = |module: &&Module| !self.modules.contains_key(module);
        let mut modules: Vec<Module> = modules.iter().filter(is_new).copied().collect();
        modules.sort_by_key(|module| std::cmp::Reverse(module.effort()));
        let (nvrtc, arch, cache) = (self.nvrtc, self.info.arch(), self.cache.clone());
        let key = nvrtc.key(&arch);
        let build = move |module: Module| {
            let path = cache.as_ref().map(|cache| cache.path(module, &key));
            match path.is_some_and(|path| Cache::has(&path)) {
                true => Ok(None),
                false => nvrtc.compile(module, &arch).map(|c| Some(c.cubin)),
            }
        };
        let threads = thread::available_parallelism().map_or(1, usize::from);
        self.builds.start(modules, threads, build);
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
        // SAFETY: the launch table passes each kernel its own struct; the caller guarantees the
        // addresses in it.
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
                // code cannot be loaded during a capture
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
        // SAFETY: guaranteed by the caller.
        let started = tasks
            .iter()
            .try_for_each(|task| unsafe { task.start(self) });
        // end the capture even after an error: a capturing stream refuses everything else
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
        // Errors cannot be reported any more, and none keeps the rest from being freed. If the
        // context cannot be bound, nothing is: others may use the context, which then stays.
        if !bind_in_the_end(&self.context) {
            return;
        }
        let _ = self.wait();
        bind_in_the_end(&self.context);
        let _ = self.free();
        bind_in_the_end(&self.context);
        for (_, module) in self.modules.drain() {
            // SAFETY: loaded here, unloaded once; its functions are dropped with this struct.
            let _ = unsafe { result::module::unload(module) };
        }
    }
}
