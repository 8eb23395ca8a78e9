//! A device that counts the calls to it, and one with a fault.

use std::sync::atomic::{AtomicUsize, Ordering};

use octavo_kernels::cuda::{Device, Error, HostBuffer, Launch, Module, Ptr, Recording, Task};

/// A device under observation.
pub(crate) struct Watched {
    pub(crate) device: Box<dyn Device>,
    pub(crate) allocations: usize,
    pub(crate) uploads: usize,
    /// Number of waits for a result.
    pub(crate) downloads: usize,
    pub(crate) host_buffers: usize,
    pub(crate) recordings: usize,
    pub(crate) replays: usize,
    /// Replays of several devices together, for those that a test cannot reach.
    pub(crate) all_replays: Option<&'static AtomicUsize>,
    /// Recordings, likewise.
    pub(crate) all_recordings: Option<&'static AtomicUsize>,
    /// Launches that find candidates, but for replays, likewise.
    pub(crate) all_candidates: Option<&'static AtomicUsize>,
    /// Uploads of this many bytes are lost.
    pub(crate) lost: Option<usize>,
    /// Uploads when the last replay began.
    replayed_after: usize,
    /// Whether the block tables of later steps are lost: this many last bytes of each upload stay
    /// what they were when the launches were captured.
    pub(crate) stale: Option<usize>,
    captured: Vec<u8>,
    /// Bytes of the last upload.
    pub(crate) last: Vec<u8>,
    /// Names of the kernels in the last recording.
    pub(crate) recorded: Vec<String>,
}

impl Watched {
    pub(crate) fn new(device: Box<dyn Device>) -> Watched {
        Watched {
            device,
            allocations: 0,
            uploads: 0,
            downloads: 0,
            host_buffers: 0,
            recordings: 0,
            replays: 0,
            all_replays: None,
            all_recordings: None,
            all_candidates: None,
            lost: None,
            replayed_after: 0,
            stale: None,
            captured: Vec::new(),
            last: Vec::new(),
            recorded: Vec::new(),
        }
    }
}

impl Device for Watched {
    fn describe(&self) -> String {
        self.device.describe()
    }

    fn multiprocessors(&self) -> u32 {
        self.device.multiprocessors()
    }

    fn is_wide(&self) -> bool {
        self.device.is_wide()
    }

    fn has_fast_imma(&self) -> bool {
        self.device.has_fast_imma()
    }

    fn free_bytes(&self) -> Result<u64, Error> {
        self.device.free_bytes()
    }

    fn alloc(&mut self, bytes: usize) -> Result<Ptr, Error> {
        self.allocations += 1;
        self.device.alloc(bytes)
    }

    fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error> {
        self.uploads += 1;
        if self.lost == Some(bytes.len()) {
            return Ok(());
        }
        let mut bytes = bytes.to_vec();
        if let Some(n) = self.stale.filter(|_| self.captured.len() == bytes.len()) {
            let from = bytes.len() - n;
            bytes[from..].copy_from_slice(&self.captured[from..]);
        }
        self.device.upload(to, &bytes)?;
        self.last = bytes;
        Ok(())
    }

    fn download_all(&mut self, copies: &mut [(Ptr, &mut [u8])]) -> Result<(), Error> {
        self.downloads += 1;
        self.device.download_all(copies)
    }

    fn host_buffer(&mut self, floats: usize) -> Result<HostBuffer, Error> {
        self.host_buffers += 1;
        self.device.host_buffer(floats)
    }

    fn copy(&mut self, from: Ptr, to: Ptr, bytes: usize) -> Result<(), Error> {
        self.device.copy(from, to, bytes)
    }

    fn build(&mut self, module: Module) -> Result<(), Error> {
        self.device.build(module)
    }

    unsafe fn launch(&mut self, launch: &Launch) -> Result<(), Error> {
        if let Some(all) = self.all_candidates {
            let finds = launch.kernel == "candidates_merge";
            all.fetch_add(usize::from(finds), Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.launch(launch) }
    }

    unsafe fn record(&mut self, tasks: Vec<Task>) -> Result<Recording, Error> {
        self.recordings += 1;
        if let Some(all) = self.all_recordings {
            all.fetch_add(1, Ordering::Relaxed);
        }
        self.captured.clone_from(&self.last);
        let kernel = |task: &Task| match task {
            Task::Launch(launch) => Some(launch.kernel.clone()),
            Task::Gather(_) => None,
        };
        self.recorded = tasks.iter().filter_map(kernel).collect();
        // SAFETY: the caller's promise.
        unsafe { self.device.record(tasks) }
    }

    unsafe fn replay(&mut self, recording: Recording) -> Result<(), Error> {
        assert!(
            self.uploads > self.replayed_after,
            "a replay without a step record of its own"
        );
        self.replayed_after = self.uploads;
        self.replays += 1;
        if let Some(all) = self.all_replays {
            all.fetch_add(1, Ordering::Relaxed);
        }
        // SAFETY: the caller's promise.
        unsafe { self.device.replay(recording) }
    }
}
