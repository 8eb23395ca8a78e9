//! Software prefetch of data that a generated token reads once: weights, keys and values.

use crate::simd::Simd;

/// How memory is prefetched before it is loaded.
#[derive(Clone, Copy)]
pub struct Prefetch {
    /// Distance in bytes from a load of weights to the prefetched line, at least. Keys and values
    /// are prefetched by pages.
    pub bytes: usize,
    /// Prefetch into the L2 cache, and not into L1.
    second_cache: bool,
}

/// For CPUs without measurements, and for the one where this was the best: a thread of a Xeon reads
/// some 10 GB/s, so 2 KiB are 200 ns, more than its memory takes to answer, and two streams' worth
/// is a twelfth of its L1 cache (48 KiB), so that nothing is evicted before it is read.
const NEAR: Prefetch = Prefetch {
    bytes: 2 << 10,
    second_cache: false,
};

/// For AMD's CPUs. A thread of a Zen 4 (1 MiB of L2 cache, 25 GB/s a thread) gets two streams of
/// narrow matrices (768 to 2,048 weights a row) at 12 to 17 GB/s with [`NEAR`] and at 19 to 31 with
/// this, wide ones at 20 to 24 and at 20 to 27. Distances from 4 to 32 KiB are equally good.
const FAR: Prefetch = Prefetch {
    bytes: 8 << 10,
    second_cache: true,
};

impl Prefetch {
    /// The prefetch distance for this CPU.
    pub fn here() -> Prefetch {
        if is_amd() { FAR } else { NEAR }
    }

    /// Prefetches the line at `p`, which may point anywhere.
    ///
    /// # Safety
    /// As the head of `simd.rs` says.
    #[inline(always)]
    pub unsafe fn line<S: Simd>(self, p: *const u8) {
        // SAFETY: a hint; the instruction set is the caller's promise.
        unsafe {
            if self.second_cache {
                S::prefetch_far(p);
            } else {
                S::prefetch(p);
            }
        }
    }
}

/// Returns whether AMD made this CPU.
#[cfg(all(target_arch = "x86_64", not(miri)))]
pub(crate) fn is_amd() -> bool {
    use std::arch::x86_64::__cpuid;
    use std::sync::OnceLock;
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| {
        let leaf = __cpuid(0);
        let name = [leaf.ebx, leaf.edx, leaf.ecx].map(u32::to_le_bytes);
        name.as_flattened() == b"AuthenticAMD"
    })
}

/// Returns whether AMD made this CPU.
#[cfg(not(all(target_arch = "x86_64", not(miri))))]
pub(crate) fn is_amd() -> bool {
    false
}
