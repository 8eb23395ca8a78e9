//! Tensor parallel ranks whose GPUs communicate by NCCL: gathers are enqueued on the GPU's stream
//! and captured like launches.

use std::ffi::{CStr, c_char};
use std::sync::{Arc, Mutex, PoisonError};

use cudarc::driver::CudaStream;
use cudarc::nccl::result::{self, NcclError};
use cudarc::nccl::sys;

use super::{DeviceCollective, Gather};
use crate::cuda::gpus::{driver_error, guarded_of};
use crate::cuda::pinned::bind_in_the_end;
use crate::cuda::{Device, Error, Gpu, Ptr};
use crate::ranks::Collective;

/// RopePosition the panic about a missing function of the library into an error.
fn guarded<T>(f: impl FnOnce() -> Result<T, Error>) -> Result<T, Error> {
    guarded_of("NCCL", f)
}

/// Bytes of NCCL's unique id of a group of ranks.
const ID: usize = 128;

/// One of several ranks, connected by NCCL.
#[derive(Debug)]
pub struct Nccl {
    ranks: usize,
    rank: usize,
    communicator: Mutex<Communicator>,
}

/// NCCL's communicator.
#[derive(Debug)]
struct Communicator {
    handle: sys::ncclComm_t,
    /// The GPU's stream, on which everything is enqueued.
    stream: Arc<CudaStream>,
}

// SAFETY: a communicator belongs to its GPU and not to a thread; each use binds that GPU's context
// and holds a lock.
unsafe impl Send for Communicator {}

impl Nccl {
    /// Checks that the library is present: a rank without it must not let others wait in
    /// [`Nccl::join`].
    ///
    /// # Errors
    /// [`Error::Library`] if it is not.
    pub fn find() -> Result<(), Error> {
        // SAFETY: opens the library, which runs NVIDIA's initialization code.
        match unsafe { sys::is_culib_present() } {
            true => Ok(()),
            false => Err(Error::Library {
                library: "NCCL".to_owned(),
                message: "libnccl.so was not found".to_owned(),
            }),
        }
    }

    /// Joins a GPU with those of the other ranks, which must call this at the same time, each with
    /// another GPU. Waits for all of them.
    ///
    /// # Errors
    /// [`Error::Driver`] if NCCL cannot connect them.
    pub fn join(gpu: &Gpu, ranks: &dyn Collective) -> Result<Nccl, Error> {
        Nccl::find()?;
        let (n, rank) = (ranks.ranks(), ranks.rank());
        let named = match rank {
            0 => guarded(|| result::get_uniqueid().map_err(failed("ncclGetUniqueId"))),
            _ => Ok(sys::ncclUniqueId { internal: [0; ID] }),
        };
        // broadcast even without an id: the others wait for it
        let mut words = match &named {
            Ok(id) if rank == 0 => words(&id.internal),
            _ => Vec::new(),
        };
        ranks.broadcast(&mut words);
        let id = named?;
        let id = match (rank, bytes(&words)) {
            (0, _) => id,
            (_, Some(internal)) => sys::ncclUniqueId { internal },
            (_, None) => return Err(error("ncclGetUniqueId", "rank 0 failed".to_owned())),
        };
        let stream = gpu.stream().clone();
        stream
            .context()
            .bind_to_thread()
            .map_err(driver_error("cuCtxSetCurrent"))?;
        let number = |n: usize| i32::try_from(n).expect("ranks are few");
        let mut handle = std::ptr::null_mut();
        guarded(|| {
            // SAFETY: the context of this rank's GPU is bound, and one handle is written.
            unsafe { result::comm_init_rank(&raw mut handle, number(n), id, number(rank)) }
                .map_err(failed("ncclCommInitRank"))
        })?;
        Ok(Nccl {
            ranks: n,
            rank,
            communicator: Mutex::new(Communicator { handle, stream }),
        })
    }
}

/// Widens bytes to words for sending.
fn words(bytes: &[c_char; ID]) -> Vec<u32> {
    bytes.iter().map(|byte| u32::from(*byte as u8)).collect()
}

/// Converts received words to bytes; `None` if the number is wrong.
fn bytes(words: &[u32]) -> Option<[c_char; ID]> {
    let bytes: Vec<c_char> = words.iter().map(|word| *word as u8 as c_char).collect();
    bytes.try_into().ok()
}

fn error(call: &'static str, message: String) -> Error {
    Error::Driver { call, message }
}

/// Creates the error of a failed call with NCCL's message.
fn failed(call: &'static str) -> impl Fn(NcclError) -> Error {
    move |NcclError(code)| {
        // SAFETY: returns a static text for any code.
        let text = unsafe { sys::ncclGetErrorString(code) };
        let message = match text.is_null() {
            true => format!("{code:?}"),
            // SAFETY: a static null-terminated text.
            false => unsafe { CStr::from_ptr(text) }
                .to_string_lossy()
                .into_owned(),
        };
        error(call, message)
    }
}

impl Communicator {
    /// Enqueues an all-gather.
    ///
    /// # Safety
    /// As [`DeviceCollective::all_gather`].
    unsafe fn gather(&self, rank: usize, gather: &Gather) -> Result<(), Error> {
        let mine = address(gather.mine);
        let float = sys::ncclDataType_t::ncclFloat32;
        let stream = self.stream.cu_stream().cast();
        if gather.lens.iter().all(|len| *len == gather.lens[rank]) {
            let (all, n) = (address(gather.all), gather.lens[rank]);
            // SAFETY: guaranteed by the caller; the communicator and the stream are alive.
            return unsafe { result::all_gather(mine, all, n, float, self.handle, stream) }
                .map_err(failed("ncclAllGather"))
                .map(drop);
        }
        // parts of different lengths: each rank broadcasts its own, all in one group
        result::group_start().map_err(failed("ncclGroupStart"))?;
        let mut sent = Ok(());
        let mut to = gather.all;
        for (root, len) in (0..).zip(&gather.lens) {
            let all = address(to);
            to = to.offset(4 * *len as u64);
            if *len > 0 && sent.is_ok() {
                // SAFETY: as above; NCCL ignores the send buffer except on the root.
                let one =
                    unsafe { result::broadcast(mine, all, *len, float, root, self.handle, stream) };
                sent = one.map(drop).map_err(failed("ncclBroadcast"));
            }
        }
        // end the group even after an error: an open one would absorb all later calls
        let ended = result::group_end().map_err(failed("ncclGroupEnd"));
        sent.and(ended.map(drop))
    }
}

fn address(at: Ptr) -> *mut std::ffi::c_void {
    at.0 as *mut std::ffi::c_void
}

impl Drop for Communicator {
    fn drop(&mut self) {
        if !bind_in_the_end(self.stream.context()) {
            return;
        }
        // SAFETY: created once, destroyed once; an error cannot be reported any more. A panicking
        // rank aborts instead of waiting for the others.
        let _ = unsafe {
            match std::thread::panicking() {
                true => result::comm_abort(self.handle),
                false => result::comm_destroy(self.handle),
            }
        };
    }
}

impl DeviceCollective for Nccl {
    fn ranks(&self) -> usize {
        self.ranks
    }

    fn rank(&self) -> usize {
        self.rank
    }

    fn is_enqueued(&self) -> bool {
        true
    }

    unsafe fn all_gather(&self, _: &mut dyn Device, gather: &Gather) -> Result<(), Error> {
        let communicator = self.communicator.lock();
        let communicator = communicator.unwrap_or_else(PoisonError::into_inner);
        communicator
            .stream
            .context()
            .bind_to_thread()
            .map_err(driver_error("cuCtxSetCurrent"))?;
        // SAFETY: guaranteed by the caller.
        guarded(|| unsafe { communicator.gather(self.rank, gather) })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_of_groups_arrive_as_they_were_sent() {
        let mut id = [0; ID];
        for (i, byte) in id.iter_mut().enumerate() {
            *byte = (i * 37) as u8 as c_char;
        }
        assert_eq!(bytes(&words(&id)), Some(id));
        // rank 0 has no id
        assert_eq!(bytes(&[]), None);
    }

    #[test]
    fn a_library_that_is_missing_is_one_line() {
        if let Err(error) = Nccl::find() {
            assert_eq!(error.to_string(), "NCCL: libnccl.so was not found");
        }
    }
}
