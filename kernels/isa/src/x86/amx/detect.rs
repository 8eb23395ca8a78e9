//! Detection of the matrix unit: present, permitted and working.

use super::products::tiles_bf16;
use super::tile::{K, TILE, configure, release};
use octavo_simd::generic::gemm::Tiles;
use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Whether this CPU has AMX with bf16, the system lets this process use it, and a small product
/// comes out right.
pub(crate) fn is_available() -> bool {
    static ANSWER: OnceLock<bool> = OnceLock::new();
    *ANSWER.get_or_init(|| present() && permitted() && works())
}

fn present() -> bool {
    if !is_x86_feature_detected!("avx512f") || !is_x86_feature_detected!("avx512bf16") {
        return false;
    }
    let leaf = __cpuid_count(7, 0).edx;
    let (tile, bf16) = (leaf & 1 << 24 != 0, leaf & 1 << 22 != 0);
    if !tile || !bf16 {
        return false;
    }
    let (low, _high): (u32, u32);
    // SAFETY: CPUs with AVX-512 have xgetbv, and systems that let them show it have enabled it.
    unsafe {
        asm!("xgetbv", in("ecx") 0, out("eax") low, out("edx") _high, options(nomem, nostack))
    }
    // the system saves tile configuration and tile data
    low & (3 << 17) == 3 << 17
}

/// Requests permission to use tile data: Linux requires that once per process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call that takes numbers only; it overwrites rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM,
            in("rsi") XFEATURE_XTILEDATA, lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// Checks a product of small integers, which bf16 holds exactly.
fn works() -> bool {
    let value = |i: usize, j: usize| ((i * 7 + j * 13) % 17) as f32 - 8.0;
    let bits = |x: f32| (x.to_bits() >> 16) as u16;
    let mut a = [0u16; TILE / 2];
    let mut b = [0u16; TILE / 2];
    for i in 0..16 {
        for k in 0..K {
            a[i * K + k] = bits(value(i, k));
            b[k / 2 * K + 2 * i + k % 2] = bits(value(k, i + 3));
        }
    }
    let (mut sums, mut y) = ([0.0; 256], [f32::NAN; 256]);
    let tiles = Tiles {
        panel: b.as_ptr().cast(),
        kc: K,
        k0: 0,
        k: K,
        offset: 0,
        x: a.as_ptr().cast(),
        m: 16,
        sums: sums.as_mut_ptr(),
        y: Some((y.as_mut_ptr(), 16)),
        rows: 16,
        prefetch_next: [&[]; 2],
    };
    // SAFETY: the CPU has AMX and the system's permission was given; all arrays are one tile.
    unsafe {
        configure();
        tiles_bf16::<1>(&tiles);
        release();
    }
    (0..256).all(|at| {
        let (t, r) = (at / 16, at % 16);
        y[at] == (0..K).map(|k| value(t, k) * value(k, r + 3)).sum::<f32>()
    })
}
