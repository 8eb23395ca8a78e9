//! Pinned host memory, which a GPU reads and writes by DMA: uploads pass through a ring of staging
//! buffers, and downloads often go to one buffer that stays.
//!
//! The driver copies pageable memory too, but in chunks through its own buffers, while the caller
//! waits.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};

use super::gpus::driver_error;
use super::{Error, Ptr};

/// A staging buffer of a [`Ring`].
pub(super) trait Staging {
    /// Capacity in bytes.
    fn len(&self) -> usize;

    /// Waits until the device has read the last transfer.
    fn wait(&mut self) -> Result<(), Error>;

    /// Copies the next transfer into the buffer, at most [`Staging::len`] bytes. No transfer may
    /// still be reading it.
    fn fill(&mut self, bytes: &[u8]);

    /// Starts copying the first `bytes` bytes to the device, in stream order.
    fn send(&mut self, to: Ptr, bytes: usize) -> Result<(), Error>;
}

/// Staging buffers used round-robin, so that one is filled while others are being copied.
pub(super) struct Ring<S> {
    buffers: Vec<S>,
    next: usize,
}

impl<S: Staging> Ring<S> {
    pub(super) fn new(buffers: Vec<S>) -> Ring<S> {
        Ring { buffers, next: 0 }
    }

    /// Copies to the device, in as many chunks as needed. The caller's bytes have been read when
    /// this returns; later work on the stream sees them at `to`.
    pub(super) fn upload(&mut self, to: Ptr, bytes: &[u8]) -> Result<(), Error> {
        let mut done = 0;
        while done < bytes.len() {
            let n = self.buffers.len();
            let buffer = &mut self.buffers[self.next];
            self.next = (self.next + 1) % n;
            buffer.wait()?;
            let piece = &bytes[done..bytes.len().min(done + buffer.len())];
            buffer.fill(piece);
            buffer.send(to.offset(done as u64), piece.len())?;
            done += piece.len();
        }
        Ok(())
    }
}

/// Binds a context for freeing resources in `drop`. cudarc reports an error of an earlier drop to
/// the next bind, which then does not bind, so this tries twice.
pub(super) fn bind_in_the_end(context: &CudaContext) -> bool {
    (0..2).any(|_| context.bind_to_thread().is_ok())
}

/// Pinned host memory, initially zero.
struct Pinned {
    at: NonNull<u8>,
    bytes: usize,
    /// Context that owns the memory.
    context: Arc<CudaContext>,
}

// SAFETY: the memory has one owner, and any thread that binds the context may free it, which `drop`
// does.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Pinned, DriverError> {
        context.bind_to_thread()?;
        let bytes = bytes.max(1);
        // SAFETY: the size is not 0, and the context is bound. No flags, so the memory is cached:
        // the host may read it.
        let at = unsafe { result::malloc_host(bytes, 0)? };
        let at = NonNull::new(at.cast::<u8>()).expect("the driver gave memory");
        // SAFETY: just allocated with `bytes` bytes.
        unsafe { at.write_bytes(0, bytes) };
        Ok(Pinned {
            at,
            bytes,
            context: context.clone(),
        })
    }
}

impl Drop for Pinned {
    fn drop(&mut self) {
        if bind_in_the_end(&self.context) {
            // SAFETY: allocated by `new`, freed once. No copy is in flight: `Staged` waits for its
            // own before this is dropped, and downloads finish before they return. An error cannot
            // be reported any more.
            let _ = unsafe { result::free_host(self.at.as_ptr().cast::<c_void>()) };
        }
    }
}

/// A staging buffer with an event recorded after each copy to the GPU.
pub(super) struct Staged {
    memory: Pinned,
    event: sys::CUevent,
    /// Whether a copy was started and the event recorded after it.
    sent: bool,
    stream: Arc<CudaStream>,
}

// SAFETY: an event belongs to its context and not to a thread, and every call binds the context
// first.
unsafe impl Send for Staged {}

impl Staged {
    pub(super) fn new(
        context: &Arc<CudaContext>,
        stream: &Arc<CudaStream>,
        bytes: usize,
    ) -> Result<Staged, Error> {
        let memory = Pinned::new(context, bytes).map_err(driver_error("cuMemHostAlloc"))?;
        let flags = sys::CUevent_flags::CU_EVENT_DISABLE_TIMING;
        let event = result::event::create(flags).map_err(driver_error("cuEventCreate"))?;
        Ok(Staged {
            memory,
            event,
            sent: false,
            stream: stream.clone(),
        })
    }
}

impl Staging for Staged {
    fn len(&self) -> usize {
        self.memory.bytes
    }

    fn wait(&mut self) -> Result<(), Error> {
        if self.sent {
            self.memory
                .context
                .bind_to_thread()
                .map_err(driver_error("cuCtxSetCurrent"))?;
            // SAFETY: the event lives as long as `self`, and was recorded.
            unsafe { result::event::synchronize(self.event) }
                .map_err(driver_error("cuEventSynchronize"))?;
            self.sent = false;
        }
        Ok(())
    }

    fn fill(&mut self, bytes: &[u8]) {
        assert!(
            bytes.len() <= self.memory.bytes && !self.sent,
            "a buffer that is too small, or still read"
        );
        // SAFETY: the bytes fit, and nothing else accesses the memory: the device has read the last
        // transfer.
        unsafe {
            self.memory
                .at
                .as_ptr()
                .copy_from_nonoverlapping(bytes.as_ptr(), bytes.len())
        };
    }

    fn send(&mut self, to: Ptr, bytes: usize) -> Result<(), Error> {
        assert!(bytes <= self.memory.bytes, "more than there is");
        self.memory
            .context
            .bind_to_thread()
            .map_err(driver_error("cuCtxSetCurrent"))?;
        let stream = self.stream.cu_stream();
        // SAFETY: the buffer has `bytes` bytes, and nothing writes to them before `wait`; the
        // caller checked the range on the device.
        let copied = unsafe {
            let bytes = std::slice::from_raw_parts(self.memory.at.as_ptr(), bytes);
            result::memcpy_htod_async(to.0, bytes, stream)
        };
        copied.map_err(driver_error("cuMemcpyHtoDAsync"))?;
        // SAFETY: the event lives as long as `self`, on a stream of the same context.
        let recorded = unsafe { result::event::record(self.event, stream) };
        if recorded.is_err() {
            // without the event, only synchronizing shows that the copy is done
            let _ = self.stream.synchronize();
        }
        recorded.map_err(driver_error("cuEventRecord"))?;
        self.sent = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // errors cannot be reported any more; a device that failed reads nothing
        let _ = self.wait();
        if bind_in_the_end(&self.memory.context) {
            // SAFETY: created by `new`, destroyed once.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// Host buffer of floats for downloads: pinned where that makes them faster.
pub struct HostBuffer(Memory);

enum Memory {
    Plain(Vec<f32>),
    Pinned { memory: Pinned, len: usize },
}

impl HostBuffer {
    /// Allocates pageable memory of `len` zeros.
    pub fn plain(len: usize) -> HostBuffer {
        HostBuffer(Memory::Plain(vec![0.0; len]))
    }

    /// Allocates pinned memory of `len` zeros.
    pub(super) fn pinned(context: &Arc<CudaContext>, len: usize) -> Result<HostBuffer, Error> {
        let memory = Pinned::new(context, 4 * len).map_err(driver_error("cuMemHostAlloc"))?;
        Ok(HostBuffer(Memory::Pinned { memory, len }))
    }

    /// Returns the number of floats.
    pub fn len(&self) -> usize {
        self.floats().len()
    }

    /// Whether it has no floats.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Returns all floats.
    pub fn floats(&self) -> &[f32] {
        match &self.0 {
            Memory::Plain(values) => values,
            // SAFETY: the allocation has `len` floats, is page-aligned, was zeroed, and is borrowed
            // together with `self`.
            Memory::Pinned { memory, len } => unsafe {
                std::slice::from_raw_parts(memory.at.as_ptr().cast(), *len)
            },
        }
    }

    /// Returns the bytes of the first `n` floats as a download target.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn bytes_mut(&mut self, n: usize) -> &mut [u8] {
        assert!(n <= self.len(), "a buffer of fewer floats");
        let at = match &mut self.0 {
            Memory::Plain(values) => values.as_mut_ptr().cast::<u8>(),
            Memory::Pinned { memory, .. } => memory.at.as_ptr(),
        };
        // SAFETY: the bytes of these floats, for which every bit pattern is valid, borrowed
        // together with `self`.
        unsafe { std::slice::from_raw_parts_mut(at, 4 * n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// A device that copies as late as allowed: when `wait` is called.
    #[derive(Default)]
    struct Lazy {
        memory: Vec<u8>,
        /// Number of waits.
        waits: usize,
    }

    struct Late {
        device: Rc<RefCell<Lazy>>,
        bytes: Vec<u8>,
        sent: Option<(usize, usize)>,
        /// Whether it skips waiting, as a planted fault.
        careless: bool,
    }

    impl Late {
        fn arrive(&mut self) {
            if let Some((to, n)) = self.sent.take() {
                self.device.borrow_mut().memory[to..to + n].copy_from_slice(&self.bytes[..n]);
            }
        }
    }

    impl Staging for Late {
        fn len(&self) -> usize {
            self.bytes.len()
        }

        fn wait(&mut self) -> Result<(), Error> {
            self.device.borrow_mut().waits += usize::from(self.sent.is_some());
            if !self.careless {
                self.arrive();
            }
            Ok(())
        }

        fn fill(&mut self, bytes: &[u8]) {
            self.bytes[..bytes.len()].copy_from_slice(bytes);
        }

        fn send(&mut self, to: Ptr, bytes: usize) -> Result<(), Error> {
            // a copy not waited for still happens, with the buffer's current contents
            self.arrive();
            self.sent = Some((to.0 as usize, bytes));
            Ok(())
        }
    }

    /// Runs `uploads` through `n` buffers of `len` bytes; returns the device's memory and the
    /// number of waits.
    fn through(n: usize, len: usize, uploads: &[Vec<u8>], careless: bool) -> (Vec<u8>, usize) {
        let total = uploads.iter().map(Vec::len).sum();
        let device = Rc::new(RefCell::new(Lazy {
            memory: vec![0; total],
            waits: 0,
        }));
        let buffer = |_| Late {
            device: device.clone(),
            bytes: vec![0; len],
            sent: None,
            careless,
        };
        let mut ring = Ring::new((0..n).map(buffer).collect());
        let mut at = 0;
        for bytes in uploads {
            ring.upload(Ptr(at), bytes).expect("it is copied");
            at += bytes.len() as u64;
        }
        ring.buffers.iter_mut().for_each(Late::arrive);
        let device = device.borrow();
        (device.memory.clone(), device.waits)
    }

    #[test]
    fn a_buffer_is_filled_again_only_when_it_was_read() {
        let uploads = |lengths: &[usize]| -> Vec<Vec<u8>> {
            let mut byte = 0u8;
            let mut one = |n: &usize| {
                (0..*n)
                    .map(|_| (byte, byte = byte.wrapping_mul(5).wrapping_add(1)).0)
                    .collect()
            };
            lengths.iter().map(&mut one).collect()
        };
        for lengths in [
            &[][..],
            &[0, 1, 0],
            &[7, 8, 9],
            &[8; 20],
            &[1000],
            &[3, 100, 16, 1, 64, 8, 8, 8],
        ] {
            let uploads = uploads(lengths);
            let pieces: usize = lengths.iter().map(|n| n.div_ceil(8)).sum();
            for n in 1..=5 {
                let (arrived, waits) = through(n, 8, &uploads, false);
                assert_eq!(arrived, uploads.concat(), "{lengths:?} through {n}");
                assert_eq!(waits, pieces.saturating_sub(n), "{lengths:?} through {n}");
            }
        }
        let uploads = uploads(&[8; 20]);
        assert_ne!(
            through(4, 8, &uploads, true).0,
            uploads.concat(),
            "who does not wait is found out"
        );
    }

    #[test]
    fn plain_buffers_hold_floats() {
        let mut buffer = HostBuffer::plain(3);
        buffer.bytes_mut(2)[4..].copy_from_slice(&2.5f32.to_ne_bytes());
        assert_eq!(
            (buffer.floats(), buffer.len(), buffer.is_empty()),
            (&[0.0, 2.5, 0.0][..], 3, false)
        );
        assert!(HostBuffer::plain(0).is_empty());
    }
}
