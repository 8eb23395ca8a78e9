//! Memory of the host that a GPU reads and writes by itself: what is uploaded passes through a few
//! such buffers in turn, what is downloaded often goes into one that stays.
//!
//! The driver copies from any other memory too, but in pieces through buffers of its own, while the
//! caller waits.

use std::ffi::c_void;
use std::ptr::NonNull;
use std::sync::Arc;

use cudarc::driver::result::{self, DriverError};
use cudarc::driver::{CudaContext, CudaStream, sys};

use super::gpus::driver_error;
use super::{Error, Ptr};

/// A buffer of a [`Ring`].
pub(super) trait Staging {
    /// Bytes it has room for.
    fn len(&self) -> usize;

    /// Waits until what was sent last has been read.
    fn wait(&mut self) -> Result<(), Error>;

    /// Writes down what is sent next, at most [`Staging::len`] bytes. Nothing reads the buffer now.
    fn fill(&mut self, bytes: &[u8]);

    /// Begins to copy the first bytes to the device, in the order of everything else that is asked
    /// of it.
    fn send(&mut self, to: Ptr, bytes: usize) -> Result<(), Error>;
}

/// Buffers that take turns, so that one is filled while others are copied from.
pub(super) struct Ring<S> {
    buffers: Vec<S>,
    next: usize,
}

impl<S: Staging> Ring<S> {
    pub(super) fn new(buffers: Vec<S>) -> Ring<S> {
        Ring { buffers, next: 0 }
    }

    /// Copies to the device, in as many pieces as it takes. The caller's bytes have been read when
    /// this returns; what follows on the stream finds them at `to`.
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

/// Binds a context for what is freed in the end. What went wrong in a drop before, cudarc tells
/// whoever binds next, and does not bind: once.
pub(super) fn bind_in_the_end(context: &CudaContext) -> bool {
    (0..2).any(|_| context.bind_to_thread().is_ok())
}

/// Page-locked memory of the host, zero at first.
struct Pinned {
    at: NonNull<u8>,
    bytes: usize,
    /// The memory belongs to it.
    context: Arc<CudaContext>,
}

// SAFETY: the memory has one owner, and is freed by any thread that binds the context, which `drop`
// does.
unsafe impl Send for Pinned {}

impl Pinned {
    fn new(context: &Arc<CudaContext>, bytes: usize) -> Result<Pinned, DriverError> {
        context.bind_to_thread()?;
        let bytes = bytes.max(1);
        // SAFETY: a size that is not 0, in the bound context. Cached memory (no flags): the host
        // may read it.
        let at = unsafe { result::malloc_host(bytes, 0)? };
        let at = NonNull::new(at.cast::<u8>()).expect("the driver gave memory");
        // SAFETY: just allocated, of so many bytes.
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
            // SAFETY: allocated by `new`, freed once. No copy is under way: `Staged` waits for its
            // own before this is dropped, and downloads end before they return. An error cannot be
            // told to anybody any more.
            let _ = unsafe { result::free_host(self.at.as_ptr().cast::<c_void>()) };
        }
    }
}

/// A buffer whose copies to a GPU are followed by an event.
pub(super) struct Staged {
    memory: Pinned,
    event: sys::CUevent,
    /// A copy was begun, and the event recorded behind it.
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
            // SAFETY: the event lives as long as this, and was recorded.
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
        // SAFETY: there is room, and nobody else has the memory: the device has read what was sent.
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
        // SAFETY: so many bytes are there, and nobody writes them before `wait`; the caller checked
        // the range on the device.
        let copied = unsafe {
            let bytes = std::slice::from_raw_parts(self.memory.at.as_ptr(), bytes);
            result::memcpy_htod_async(to.0, bytes, stream)
        };
        copied.map_err(driver_error("cuMemcpyHtoDAsync"))?;
        // SAFETY: the event lives as long as this, on a stream of the same context.
        let recorded = unsafe { result::event::record(self.event, stream) };
        if recorded.is_err() {
            // nothing else says when the copy is done
            let _ = self.stream.synchronize();
        }
        recorded.map_err(driver_error("cuEventRecord"))?;
        self.sent = true;
        Ok(())
    }
}

impl Drop for Staged {
    fn drop(&mut self) {
        // errors cannot be told to anybody any more; a device that fails reads nothing
        let _ = self.wait();
        if bind_in_the_end(&self.memory.context) {
            // SAFETY: created by `new`, destroyed once.
            let _ = unsafe { result::event::destroy(self.event) };
        }
    }
}

/// Floats on the host that a device downloads to: pinned where that makes it faster.
pub struct HostBuffer(Memory);

enum Memory {
    Plain(Vec<f32>),
    Pinned { memory: Pinned, len: usize },
}

impl HostBuffer {
    /// Memory like any other, of so many zeros.
    pub fn plain(len: usize) -> HostBuffer {
        HostBuffer(Memory::Plain(vec![0.0; len]))
    }

    /// Page-locked memory of so many zeros.
    pub(super) fn pinned(context: &Arc<CudaContext>, len: usize) -> Result<HostBuffer, Error> {
        let memory = Pinned::new(context, 4 * len).map_err(driver_error("cuMemHostAlloc"))?;
        Ok(HostBuffer(Memory::Pinned { memory, len }))
    }

    /// Floats there are.
    pub fn len(&self) -> usize {
        self.floats().len()
    }

    /// Whether there are none.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// All of them.
    pub fn floats(&self) -> &[f32] {
        match &self.0 {
            Memory::Plain(values) => values,
            // SAFETY: the allocation has so many floats, begins at a page, was zeroed, and is
            // borrowed with this.
            Memory::Pinned { memory, len } => unsafe {
                std::slice::from_raw_parts(memory.at.as_ptr().cast(), *len)
            },
        }
    }

    /// The bytes of the first `n`, to be downloaded to.
    ///
    /// # Panics
    /// If there are fewer.
    pub fn bytes_mut(&mut self, n: usize) -> &mut [u8] {
        assert!(n <= self.len(), "a buffer of fewer floats");
        let at = match &mut self.0 {
            Memory::Plain(values) => values.as_mut_ptr().cast::<u8>(),
            Memory::Pinned { memory, .. } => memory.at.as_ptr(),
        };
        // SAFETY: the bytes of these floats, for which all bits are values, borrowed with this.
        unsafe { std::slice::from_raw_parts_mut(at, 4 * n) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::RefCell;
    use std::rc::Rc;

    /// A device that copies as late as it may: when somebody waits.
    #[derive(Default)]
    struct Lazy {
        memory: Vec<u8>,
        /// Waits so far.
        waits: usize,
    }

    struct Late {
        device: Rc<RefCell<Lazy>>,
        bytes: Vec<u8>,
        sent: Option<(usize, usize)>,
        /// A fault: does not wait.
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
            // a copy that was forgotten still happens, of what is there now
            self.arrive();
            self.sent = Some((to.0 as usize, bytes));
            Ok(())
        }
    }

    /// What arrives when `uploads` pass through `n` buffers of `len` bytes, and how often one was
    /// waited for.
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
