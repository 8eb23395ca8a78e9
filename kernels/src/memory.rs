//! Memory aligned to cache lines, since a vector load that straddles two costs two, and in large
//! pages, since streams over many small ones wait for address translation: generation gains 5 %.

use memmap2::{MmapMut, MmapRaw};
use std::ops::{Deref, DerefMut};
use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::{Arc, Mutex, PoisonError, Weak};

/// Bytes of a large page. The system aligns mappings of a multiple of this size to it. Under Miri
/// there are none, and every mapped byte takes time.
pub(crate) const LARGE: usize = if cfg!(miri) { 32 << 10 } else { 2 << 20 };
/// Bytes of a mapping shared by many weights.
const SHARED: usize = 32 * LARGE;

/// Bytes a mapping leaves for small allocations made afterwards: a vector that cannot grow ends the
/// program, while a refused mapping is an error that names the requested size.
const HEADROOM: usize = if cfg!(miri) { 0 } else { 16 << 20 };
/// Mappings from this size on check that they leave [`HEADROOM`].
const SMALL: usize = 64 << 10;

/// The system does not have the memory that a computation needs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("no memory for {}", Size(Some(*bytes)))]
pub struct NoMemory {
    /// Size of the refused request.
    pub bytes: usize,
}

/// Checks that the system has this much memory now, plus headroom for small allocations. To be
/// called before operations that cannot fail in an orderly way, such as starting a thread.
///
/// # Errors
/// [`NoMemory`] if it has not.
pub fn room(bytes: usize) -> Result<(), NoMemory> {
    let whole = bytes.checked_add(HEADROOM);
    // mapped and unmapped at once: the system counts it, and allocates no page of it
    whole
        .and_then(|whole| MmapMut::map_anon(whole).ok())
        .map(drop)
        .ok_or(NoMemory { bytes })
}

/// Runs `work`, which prepares or executes a program. A refused buffer ends it immediately.
///
/// Buffers grow deep in the call stack, where nothing else can fail: they unwind to here, past the
/// panic hook, because this is no fault of the program.
///
/// # Errors
/// [`NoMemory`] if a buffer was refused; only the results of `work` are lost.
pub fn with_memory<T>(work: impl FnOnce() -> T) -> Result<T, NoMemory> {
    catch_unwind(AssertUnwindSafe(work)).map_err(|panic| match panic.downcast::<NoMemory>() {
        Ok(refused) => *refused,
        Err(other) => resume_unwind(other),
    })
}

/// Makes all threads take small allocations from one heap, for a long-running process. The
/// allocator makes another one whenever two threads contend, up to eight for each CPU, and each
/// keeps freed memory: a server's memory would grow with the number of such moments. To be called
/// before threads start.
pub fn share_heap() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: takes no pointer, and does not touch existing allocations.
    unsafe {
        libc::mallopt(libc::M_ARENA_MAX, 1);
    }
}

/// Returns freed memory to the system. Without this the allocator keeps most of the peak usage.
pub fn trim() {
    #[cfg(all(target_os = "linux", target_env = "gnu", not(miri)))]
    // SAFETY: takes no pointer, and does not touch memory in use.
    unsafe {
        libc::malloc_trim(0);
    }
}

/// Bytes that the process may lock in memory; `None` if the system sets no limit or reports none.
pub fn lock_limit() -> Option<u64> {
    #[cfg(all(unix, not(miri)))]
    {
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        // SAFETY: `limit` is ours to write.
        let is_known = unsafe { libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) } == 0;
        (is_known && limit.rlim_cur != libc::RLIM_INFINITY).then_some(limit.rlim_cur)
    }
    #[cfg(any(not(unix), miri))]
    None
}

/// Large-page setting of the system, and whether it takes effect.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LargePages {
    /// Its setting: `always`, `madvise` or `never`.
    pub setting: Option<String>,
    /// Whether memory mapped like weights was in a large page when that was tried.
    pub granted: bool,
}

/// Requests a large page as weights do, and checks whether it was granted.
pub fn large_pages() -> LargePages {
    let setting = std::fs::read_to_string("/sys/kernel/mm/transparent_hugepage/enabled").ok();
    let chosen = setting.as_deref().and_then(|all| {
        let (_, chosen) = all.split_once('[')?;
        Some(chosen.split_once(']')?.0.to_owned())
    });
    LargePages {
        setting: chosen,
        granted: trial().is_some(),
    }
}

/// Bytes of the first large page of a mapping, if it is one.
fn trial() -> Option<u64> {
    let mut memory = Memory::zeroed(LARGE)?;
    memory.bytes_mut()[0] = 1;
    in_large_pages(memory.as_ptr().addr())
}

/// Bytes in large pages of the mapping that an address lies in, if there are some.
fn in_large_pages(address: usize) -> Option<u64> {
    let maps = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let mut inside = false;
    for line in maps.lines() {
        let range = line.split_once(' ').and_then(|(range, _)| {
            let (start, end) = range.split_once('-')?;
            let number = |hex| usize::from_str_radix(hex, 16).ok();
            Some(number(start)?..number(end)?)
        });
        if let Some(range) = range {
            inside = range.contains(&address);
        } else if let Some(bytes) = line.strip_prefix("AnonHugePages:").filter(|_| inside) {
            let kib: u64 = bytes.split_whitespace().next()?.parse().ok()?;
            return (kib > 0).then_some(kib << 10);
        }
    }
    None
}

/// Bytes for display in an error; `None` on overflow.
pub(crate) struct Size(pub(crate) Option<usize>);

impl std::fmt::Display for Size {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.0 {
            None => f.write_str("more bytes than can be counted"),
            Some(bytes) if bytes < 10 << 20 => write!(f, "{bytes} bytes"),
            Some(bytes) => write!(f, "{} MiB", bytes >> 20),
        }
    }
}

/// Zeroed memory at the start of a page. The system hands pages out as they are first written.
pub(crate) struct Memory {
    /// The mapping, kept for as long as any part of it is used.
    map: Option<Arc<MmapRaw>>,
    /// Offset of this part, which has no other owner.
    at: usize,
    len: usize,
}

impl Memory {
    /// `None` if the system does not have that much memory.
    pub(crate) fn zeroed(bytes: usize) -> Option<Memory> {
        let map = if bytes == 0 {
            None
        } else {
            Some(Arc::new(mapping(bytes)?))
        };
        Some(Memory {
            map,
            at: 0,
            len: bytes,
        })
    }

    /// As [`Memory::zeroed`], for buffers that live as long as their neighbours: together they fill
    /// large pages, which none of them would alone. Freed parts are not reused before the whole
    /// mapping is free.
    pub(crate) fn in_shared_mapping(bytes: usize) -> Option<Memory> {
        static CURRENT: Mutex<(Weak<MmapRaw>, usize)> = Mutex::new((Weak::new(), 0));
        if bytes == 0 || bytes > SHARED / 4 {
            return Memory::zeroed(bytes);
        }
        // two numbers that are written together: a panic elsewhere cannot have left them
        // inconsistent
        let mut current = CURRENT.lock().unwrap_or_else(PoisonError::into_inner);
        let map = match current.0.upgrade() {
            Some(map) if current.1 + bytes <= SHARED => map,
            _ => {
                // where a whole mapping is too much, this part may still have room
                let Some(map) = mapping(SHARED).map(Arc::new) else {
                    drop(current);
                    room(bytes).ok()?;
                    return Memory::zeroed(bytes);
                };
                *current = (Arc::downgrade(&map), 0);
                map
            }
        };
        let at = current.1;
        current.1 = (at + bytes).next_multiple_of(4096);
        Some(Memory {
            map: Some(map),
            at,
            len: bytes,
        })
    }

    pub(crate) fn len(&self) -> usize {
        self.len
    }

    /// Locks it in memory, so that none of it is swapped out.
    pub(crate) fn lock(&self) -> std::io::Result<()> {
        if self.len == 0 {
            return Ok(());
        }
        #[cfg(all(unix, not(miri)))]
        {
            // SAFETY: these bytes are in the map; unmapping unlocks them.
            let refused = unsafe { libc::mlock(self.as_ptr().cast(), self.len) } != 0;
            if refused {
                return Err(std::io::Error::last_os_error());
            }
            Ok(())
        }
        #[cfg(any(not(unix), miri))]
        Err(std::io::ErrorKind::Unsupported.into())
    }

    /// The mapping, to keep the memory alive.
    pub(crate) fn keep(&self) -> Option<Arc<MmapRaw>> {
        self.map.clone()
    }

    pub(crate) fn as_ptr(&self) -> *const u8 {
        self.map
            .as_ref()
            .map_or(std::ptr::null(), |m| m.as_ptr().wrapping_add(self.at))
    }

    pub(crate) fn as_mut_ptr(&mut self) -> *mut u8 {
        self.map.as_ref().map_or(std::ptr::null_mut(), |m| {
            m.as_mut_ptr().wrapping_add(self.at)
        })
    }

    pub(crate) fn bytes(&self) -> &[u8] {
        if self.len == 0 {
            return &[];
        }
        // SAFETY: `len` initialised bytes from `at` on are in the map, and no other thread writes
        // this part of it.
        unsafe { std::slice::from_raw_parts(self.as_ptr(), self.len) }
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        if self.len == 0 {
            return &mut [];
        }
        // SAFETY: as in `bytes`, and this part is borrowed from its only owner.
        unsafe { std::slice::from_raw_parts_mut(self.as_mut_ptr(), self.len) }
    }
}

/// A mapping of `bytes` or a little more.
fn mapping(bytes: usize) -> Option<MmapRaw> {
    let whole = if bytes >= LARGE {
        bytes.checked_next_multiple_of(LARGE)?
    } else {
        bytes
    };
    let map = MmapMut::map_anon(whole).ok()?;
    if bytes >= SMALL {
        room(0).ok()?;
    }
    #[cfg(all(target_os = "linux", not(miri)))]
    if bytes >= LARGE {
        // only a hint
        let _ = map.advise(memmap2::Advice::HugePage);
    }
    Some(map.into())
}

/// Floats that grow and never shrink; their contents are lost when they grow.
#[derive(Default)]
pub(crate) struct Floats(Option<Memory>);

impl Floats {
    /// Makes room for `len` floats.
    ///
    /// # Panics
    /// If there is no memory, with [`NoMemory`], which [`with_memory`] takes.
    pub(crate) fn grow(&mut self, len: usize) {
        if self.len() < len {
            // frees the old ones first, so that both are never allocated together
            self.0 = None;
            let memory = len.checked_mul(4).and_then(Memory::zeroed);
            let refused = || {
                resume_unwind(Box::new(NoMemory {
                    bytes: len.saturating_mul(4),
                }))
            };
            self.0 = Some(memory.unwrap_or_else(refused));
        }
    }
}

impl Floats {
    /// The same memory, as bytes.
    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.0.as_mut().map_or(&mut [], Memory::bytes_mut)
    }
}

impl Deref for Floats {
    type Target = [f32];

    fn deref(&self) -> &[f32] {
        let Some(m) = self.0.as_ref().filter(|m| m.len() > 0) else {
            return &[];
        };
        // SAFETY: that many initialised floats, aligned, borrowed from their owner.
        unsafe { std::slice::from_raw_parts(m.as_ptr().cast(), m.len() / 4) }
    }
}

impl DerefMut for Floats {
    fn deref_mut(&mut self) -> &mut [f32] {
        let Some(m) = self.0.as_mut().filter(|m| m.len() > 0) else {
            return &mut [];
        };
        let len = m.len() / 4;
        // SAFETY: that many initialised floats, aligned, borrowed from their only owner.
        unsafe { std::slice::from_raw_parts_mut(m.as_mut_ptr().cast(), len) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn memory_is_zero_aligned_and_refused_when_there_is_none() {
        for bytes in [0, 1, 63, 64, 65, 1 << 20] {
            let mut m = Memory::zeroed(bytes).expect("a megabyte at most");
            assert!(m.as_ptr().addr().is_multiple_of(64) && m.len() == bytes);
            assert!(m.bytes_mut().iter().all(|b| *b == 0));
            m.bytes_mut().fill(1);
        }
        assert!(
            Memory::zeroed(usize::MAX).is_none() && Memory::zeroed(isize::MAX as usize).is_none()
        );
    }

    #[test]
    fn a_large_page_is_seen_where_the_system_gives_it() {
        let pages = large_pages();
        if pages.setting.as_deref() == Some("never") {
            assert!(!pages.granted, "{pages:?}");
        }
        let small = [0u8; 64];
        assert_eq!(
            in_large_pages(small.as_ptr().addr()),
            None,
            "a stack has none"
        );
    }

    #[cfg(all(unix, not(miri)))]
    #[test]
    fn memory_is_locked_or_refused_by_the_limit() {
        assert!(Memory::zeroed(0).is_some_and(|m| m.lock().is_ok()));
        let memory = Memory::in_shared_mapping(100_000).expect("memory");
        let refused = memory.lock().is_err();
        let limit = lock_limit();
        assert!(
            !refused || limit.is_some_and(|limit| limit < 1 << 30),
            "{limit:?}"
        );
    }

    #[test]
    fn parts_of_a_shared_mapping_are_apart_and_their_own() {
        let sizes = [
            1,
            4096,
            0,
            3 << 20,
            100,
            SHARED / 4,
            SHARED / 4 + 1,
            SHARED / 4,
            SHARED / 4,
            SHARED / 4,
        ];
        let mut parts: Vec<Memory> = sizes
            .iter()
            .map(|n| Memory::in_shared_mapping(*n).expect("memory"))
            .collect();
        for (i, part) in parts.iter_mut().enumerate() {
            assert!(part.as_ptr().addr().is_multiple_of(4096) && part.len() == sizes[i]);
            assert!(part.bytes().iter().all(|b| *b == 0), "{i} is not zero");
            part.bytes_mut().fill(i as u8 + 1);
        }
        // the neighbours' mapping stays while one of them exists
        parts.truncate(2);
        parts.push(Memory::in_shared_mapping(1000).expect("memory"));
        parts[2].bytes_mut().fill(3);
        assert!(
            parts
                .iter()
                .enumerate()
                .all(|(i, part)| part.bytes().iter().all(|b| *b == i as u8 + 1))
        );
    }

    #[test]
    fn a_buffer_without_memory_is_an_error_and_other_panics_go_on() {
        let mut kept = Floats::default();
        assert_eq!(with_memory(|| kept.grow(4)), Ok(()));
        let refused = with_memory(|| kept.grow(usize::MAX / 8)).expect_err("more than there is");
        assert_eq!(refused.bytes, usize::MAX / 8 * 4);
        assert!(
            refused.to_string().starts_with("no memory for ")
                && refused.to_string().ends_with(" MiB")
        );
        assert!(kept.is_empty());
        kept.grow(3);
        assert_eq!(kept.len(), 3, "it may grow again");
        let other =
            catch_unwind(|| with_memory(|| assert!(std::hint::black_box(false), "planted")));
        assert!(other.is_err());
    }

    #[test]
    fn floats_only_grow() {
        let mut f = Floats::default();
        assert!(f.is_empty());
        f.grow(3);
        f[2] = 1.0;
        f.grow(2);
        assert_eq!(f[..], [0.0, 0.0, 1.0]);
    }
}
