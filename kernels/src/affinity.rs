//! CPU affinity of threads.

use std::io;

/// Pins the calling thread to these CPUs, and the threads that it starts from now on. Pages they
/// touch first are then allocated on their own NUMA node.
///
/// # Errors
/// If the system refuses, or has no such call.
#[cfg(target_os = "linux")]
pub fn stay_on(cpus: &[usize]) -> io::Result<()> {
    /// Bits of a word of the system's mask.
    const BITS: usize = libc::c_ulong::BITS as usize;
    let words = cpus.iter().max().map_or(0, |last| last / BITS + 1);
    let mut mask: Vec<libc::c_ulong> = vec![0; words];
    for cpu in cpus {
        mask[cpu / BITS] |= 1 << (cpu % BITS);
    }
    let bytes = size_of_val(&mask[..]);
    // SAFETY: the mask has `bytes` bytes, which the call reads; 0 is the calling thread.
    let result = unsafe { libc::sched_setaffinity(0, bytes, mask.as_ptr().cast()) };
    match result {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

/// As above, for systems without such a call.
///
/// # Errors
/// Always.
#[cfg(not(target_os = "linux"))]
pub fn stay_on(_: &[usize]) -> io::Result<()> {
    Err(io::ErrorKind::Unsupported.into())
}
