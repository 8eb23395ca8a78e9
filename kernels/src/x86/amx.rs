//! AMX: prompts against quantized weights in bf16, a matrix unit's 16 x 16 products of 32 k at a
//! time.
//!
//! Weights and activations are rounded to bf16 (8 bits of mantissa), products and sums are f32. A
//! panel of weights is converted on the fly to the matrix unit's own layout, which packed strips
//! are one step away from: lanes are rows.
//!
//! ```text
//! panel   per strip and 32 k: [16 pairs of k][16 rows][2]      1 KiB, a "B" tile
//! tile    per 16 tokens and 32 k: [16 tokens][32]              1 KiB, an "A" tile
//! sums    [16 tokens][16 rows] f32, stored to y as they are    a "C" tile
//! ```
//! Stable Rust has no AMX intrinsics: inline assembly. The compiler never allocates tile registers
//! itself.

use super::avx512::Avx512;
use crate::act::Form;
use crate::formats::Format;
use crate::generic::gemm::{KC, Tiles};
use crate::simd::Simd;
use crate::stamp::instantiate;
use crate::table::ActivationForm;
use std::arch::asm;
use std::arch::x86_64::*;
use std::sync::OnceLock;

/// Activations in A tiles. A panel of 256 k is 16 KiB for two strips, and so are 32 tokens: both
/// stay in the first cache while a step of 2 x 2 tiles reads two of each.
pub(crate) static BF16_TILES: ActivationForm = ActivationForm {
    form: Form::Bf16,
    tile: TOKENS,
    slice: KC,
    bytes: 2,
    narrow: false,
    pack: pack_tokens,
};

/// Tokens of an A tile.
const TOKENS: usize = 16;
/// k of a tile.
pub(super) const K: usize = 32;
/// Bytes of a tile.
pub(super) const TILE: usize = 1024;

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

/// Asks the system for the use of tile data: Linux wants that once a process.
#[cfg(target_os = "linux")]
fn permitted() -> bool {
    const ARCH_PRCTL: i64 = 158;
    const ARCH_REQ_XCOMP_PERM: u64 = 0x1023;
    const XFEATURE_XTILEDATA: u64 = 18;
    let mut result = ARCH_PRCTL;
    // SAFETY: a system call that takes numbers only; it overwrites rcx and r11.
    unsafe {
        asm!("syscall", inlateout("rax") result, in("rdi") ARCH_REQ_XCOMP_PERM, in("rsi") XFEATURE_XTILEDATA,
            lateout("rcx") _, lateout("r11") _, options(nostack));
    }
    result == 0
}

#[cfg(not(target_os = "linux"))]
fn permitted() -> bool {
    false
}

/// A product of small integers, which bf16 holds exactly.
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
        x: a.as_ptr().cast(),
        m: 16,
        sums: sums.as_mut_ptr(),
        y: Some((y.as_mut_ptr(), 16)),
        rows: 16,
        soon: [&[]; 2],
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

#[repr(C, align(64))]
struct Configuration {
    palette: u8,
    start_row: u8,
    reserved: [u8; 14],
    row_bytes: [u16; 16],
    rows: [u8; 16],
}

/// Makes all eight tiles of this thread 16 rows of 64 bytes.
///
/// # Safety
/// [`is_available`] said yes, or its self-test is running.
pub(crate) unsafe fn configure() {
    let mut c = Configuration {
        palette: 1,
        start_row: 0,
        reserved: [0; 14],
        row_bytes: [0; 16],
        rows: [0; 16],
    };
    c.row_bytes[..8].fill(64);
    c.rows[..8].fill(16);
    // SAFETY: the instruction exists by the caller's promise and reads 64 bytes.
    unsafe { asm!("ldtilecfg [{}]", in(reg) &c, options(nostack, readonly)) }
}

/// Gives the tiles of this thread back, so that the system need not save them.
///
/// # Safety
/// As [`configure`].
pub(crate) unsafe fn release() {
    // SAFETY: the instruction exists by the caller's promise.
    unsafe { asm!("tilerelease", options(nostack, nomem)) }
}

/// Rounds tokens `t..t + 16` of `x` (`[m][k]`) to A tiles, zeros where there is no token.
///
/// # Safety
/// `x` is `m * k` floats with k a multiple of 32; `tile` has room for `k * 16` bf16; AVX-512 with
/// bf16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn pack_tokens(
    x: *const f32,
    m: usize,
    k: usize,
    t: usize,
    _: usize,
    tile: *mut f32,
) {
    let tile = tile.cast::<u8>();
    for j in 0..TOKENS {
        for i in 0..k / K {
            // SAFETY: token t + j is read only if it exists; tile i of k / 32 has 16 rows of 64
            // bytes.
            unsafe {
                let to = tile.add(i * TILE + j * 64).cast::<__m512i>();
                if t + j < m {
                    let from = x.add((t + j) * k + i * K);
                    let v =
                        _mm512_cvtne2ps_pbh(_mm512_loadu_ps(from.add(16)), _mm512_loadu_ps(from));
                    to.write_unaligned(std::mem::transmute::<__m512bh, __m512i>(v));
                } else {
                    to.write_unaligned(_mm512_setzero_si512());
                }
            }
        }
    }
}

/// Two vectors of 16 rows, of neighbouring k, to one row of a B tile.
#[inline(always)]
pub(super) unsafe fn pair(even: __m512, odd: __m512) -> __m512i {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        // half a unit in the last place kept, then cut: nearest, ties away from zero
        let half = _mm512_set1_epi32(0x8000);
        let even = _mm512_srli_epi32(_mm512_add_epi32(_mm512_castps_si512(even), half), 16);
        let odd = _mm512_add_epi32(_mm512_castps_si512(odd), half);
        // even | odd & mask
        _mm512_ternarylogic_epi32(even, odd, _mm512_set1_epi32(0xffff_0000_u32 as i32), 0xf8)
    }
}

/// Converts k in `k0..k1` of a packed strip to B tiles.
///
/// # Safety
/// As [`crate::generic::pairs::panel`].
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn panel<F: Format>(strip: *const u8, k0: usize, k1: usize, out: *mut f32) {
    type S = Avx512;
    let mut out = out.cast::<__m512i>();
    // SAFETY: blocks k0 / K .. k1 / K are in the strip, and each group of 32 writes 16 rows of 64
    // bytes.
    unsafe {
        for b in k0 / F::K..k1 / F::K {
            let block = strip.add(b * F::BLOCK_BYTES * S::R);
            let block_scales = F::block_scales::<S>(block);
            for g in 0..F::K / 32 {
                let first =
                    F::scales::<S>(block_scales, block, if F::GROUP == 32 { g } else { 2 * g });
                half::<F>(F::codes::<S, 0>(block, g), first, out);
                let second = if F::GROUP == 32 {
                    first
                } else {
                    F::scales::<S>(block_scales, block, 2 * g + 1)
                };
                half::<F>(F::codes::<S, 1>(block, g), second, out.add(8));
                out = out.add(16);
            }
        }
    }
}

/// Sixteen k of sixteen rows.
#[inline(always)]
unsafe fn half<F: Format>(codes: [__m512i; 4], (scale, min): (__m512, __m512), out: *mut __m512i) {
    // SAFETY: `out` has room for eight vectors by the caller's promise.
    unsafe {
        // A code below the exponent of 256 is the float 256 + code. The multiply-add takes the 256
        // away again.
        let (mask, base) = (
            _mm512_set1_epi32(0x007f_8000),
            _mm512_set1_epi32(0x4380_0000),
        );
        let zero = _mm512_fnmadd_ps(
            scale,
            _mm512_set1_ps((256 + F::OFFSET) as f32),
            _mm512_setzero_ps(),
        );
        let zero = if F::MIN {
            _mm512_sub_ps(zero, min)
        } else {
            zero
        };
        // (shifted & mask) | base
        macro_rules! float {
            ($c:expr) => {
                _mm512_castsi512_ps(_mm512_ternarylogic_epi32($c, mask, base, 0xea))
            };
        }
        for (j, c) in codes.into_iter().enumerate() {
            let w0 = _mm512_fmadd_ps(scale, float!(_mm512_slli_epi32(c, 15)), zero);
            let w1 = _mm512_fmadd_ps(scale, float!(_mm512_slli_epi32(c, 7)), zero);
            let w2 = _mm512_fmadd_ps(scale, float!(_mm512_srli_epi32(c, 1)), zero);
            let w3 = _mm512_fmadd_ps(scale, float!(_mm512_srli_epi32(c, 9)), zero);
            out.add(2 * j).write_unaligned(pair(w0, w1));
            out.add(2 * j + 1).write_unaligned(pair(w2, w3));
        }
    }
}

/// Rounds a panel of floats, `[kc][16]`, to B tiles.
///
/// # Safety
/// `from` is `kc * 16` floats with kc a multiple of 32, `out` has room for as many bf16.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn narrow(from: *const f32, kc: usize, out: *mut f32) {
    for p in 0..kc / 2 {
        // SAFETY: rows 2 p and 2 p + 1 of the panel, row p of the tiles.
        unsafe {
            let (even, odd) = (
                _mm512_loadu_ps(from.add(32 * p)),
                _mm512_loadu_ps(from.add(32 * p + 16)),
            );
            out.cast::<__m512i>()
                .add(p)
                .write_unaligned(pair(even, odd));
        }
    }
}

/// Runs all tokens over `MS` strips, 32 tokens at a time.
///
/// # Safety
/// As the fields of [`Tiles`] say; `y` rows may not be touched by anyone else; tiles are
/// configured.
#[target_feature(enable = "avx2,fma,f16c,avx512f,avx512bw,avx512vl,avx512dq,avx512vnni,avx512bf16")]
pub(crate) unsafe fn tiles_bf16<const MS: usize>(a: &Tiles<'_>) {
    let steps = a.kc / K;
    let mut t = 0;
    while t < a.m {
        let left = (a.m - t).min(32);
        let blocks = left.div_ceil(TOKENS);
        // SAFETY: blocks of tokens and the sums are padded to 16 tokens, strips to 16 rows; sums
        // that do not fill their tiles go to the output through the scratch.
        unsafe {
            a.ask::<Avx512>(t, left);
            let x = a.x.cast::<u8>().add(t * a.k * 2 + a.k0 / K * TILE);
            let sums = (a.sums.add(t * MS * 16), MS * 16);
            let y = a.y.filter(|_| a.is_last()).map(|(y, n)| (y.add(t * n), n));
            let whole = left == blocks * TOKENS && a.rows >= MS * 16;
            let to = y.filter(|_| whole).unwrap_or(sums);
            let from = (a.k0 > 0).then_some(sums);
            multiply(
                (blocks, MS),
                (x, a.k / K * TILE),
                (a.panel.cast(), steps * TILE),
                steps,
                from,
                to,
            );
            if let Some((y, n)) = y.filter(|_| !whole) {
                let rows = a.rows.min(MS * 16);
                for j in 0..left {
                    std::ptr::copy_nonoverlapping(sums.0.add(j * sums.1), y.add(j * n), rows);
                }
            }
        }
        t += 32;
    }
}

/// `blocks` x `strips` tiles of sums (1 or 2 each) over `steps` tiles of k (1 or more), added to
/// those at `from`, written to `to`: each an address and the floats from one row to the next.
///
/// # Safety
/// The second block of tokens is `x.1` bytes after the first, the second strip `panel.1` bytes.
#[inline(always)]
pub(super) unsafe fn multiply(
    (blocks, strips): (usize, usize),
    x: (*const u8, usize),
    panel: (*const u8, usize),
    steps: usize,
    from: Option<(*mut f32, usize)>,
    to: (*mut f32, usize),
) {
    let (x0, x1, w0, w1) = (
        x.0,
        x.0.wrapping_add(x.1),
        panel.0,
        panel.0.wrapping_add(panel.1),
    );
    macro_rules! run {
        ([$($load:literal),*], [$($zero:literal),*], [$($step:literal),*], [$($store:literal),*]) => {
            // SAFETY: tiles are configured and addresses cover what they say by the caller's
            // promise; every register written is declared.
            unsafe {
                if let Some((from, n)) = from {
                    asm!($($load),*, c = in(reg) from, d = in(reg) from.wrapping_add(16 * n), l = in(reg) 4 * n,
                        out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, readonly));
                } else {
                    asm!($($zero),*, out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, nomem));
                }
                asm!(
                    "2:",
                    $($step),*,
                    "add {a}, 1024", "add {b}, 1024", "add {e}, 1024", "add {f}, 1024",
                    "dec {k}", "jnz 2b",
                    a = inout(reg) x0 => _, e = inout(reg) x1 => _, b = inout(reg) w0 => _, f = inout(reg) w1 => _,
                    k = inout(reg) steps => _, s = in(reg) 64usize,
                    out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _,
                    out("tmm4") _, out("tmm5") _, out("tmm6") _, out("tmm7") _, options(nostack, readonly));
                let (to, n) = to;
                asm!($($store),*, c = in(reg) to, d = in(reg) to.wrapping_add(16 * n), l = in(reg) 4 * n,
                    options(nostack));
            }
        };
    }
    match (blocks, strips) {
        (1, 1) => run!(
            ["tileloadd tmm0, [{c}+{l}*1]", "/* {d} */"],
            ["tilezero tmm0"],
            [
                "tileloadd tmm4, [{a}+{s}*1]",
                "tileloadd tmm6, [{b}+{s}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6"
            ],
            ["tilestored [{c}+{l}*1], tmm0", "/* {d} */"]
        ),
        (1, _) => run!(
            [
                "tileloadd tmm0, [{c}+{l}*1]",
                "tileloadd tmm1, [{c}+{l}*1+64]",
                "/* {d} */"
            ],
            ["tilezero tmm0", "tilezero tmm1"],
            [
                "tileloadd tmm4, [{a}+{s}*1]",
                "tileloadd tmm6, [{b}+{s}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{f}+{s}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7"
            ],
            [
                "tilestored [{c}+{l}*1], tmm0",
                "tilestored [{c}+{l}*1+64], tmm1",
                "/* {d} */"
            ]
        ),
        (_, 1) => run!(
            ["tileloadd tmm0, [{c}+{l}*1]", "tileloadd tmm2, [{d}+{l}*1]"],
            ["tilezero tmm0", "tilezero tmm2"],
            [
                "tileloadd tmm4, [{a}+{s}*1]",
                "tileloadd tmm6, [{b}+{s}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm5, [{e}+{s}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6"
            ],
            [
                "tilestored [{c}+{l}*1], tmm0",
                "tilestored [{d}+{l}*1], tmm2"
            ]
        ),
        _ => run!(
            [
                "tileloadd tmm0, [{c}+{l}*1]",
                "tileloadd tmm1, [{c}+{l}*1+64]",
                "tileloadd tmm2, [{d}+{l}*1]",
                "tileloadd tmm3, [{d}+{l}*1+64]"
            ],
            [
                "tilezero tmm0",
                "tilezero tmm1",
                "tilezero tmm2",
                "tilezero tmm3"
            ],
            [
                "tileloadd tmm4, [{a}+{s}*1]",
                "tileloadd tmm6, [{b}+{s}*1]",
                "tdpbf16ps tmm0, tmm4, tmm6",
                "tileloadd tmm7, [{f}+{s}*1]",
                "tdpbf16ps tmm1, tmm4, tmm7",
                "tileloadd tmm5, [{e}+{s}*1]",
                "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7"
            ],
            [
                "tilestored [{c}+{l}*1], tmm0",
                "tilestored [{c}+{l}*1+64], tmm1",
                "tilestored [{d}+{l}*1], tmm2",
                "tilestored [{d}+{l}*1+64], tmm3"
            ]
        ),
    }
}

/// Multiply-adds of one turn of [`busy`].
pub(crate) const BUSY: usize = 4 * 16 * 16 * K;

/// Keeps the unit busy, reading no memory.
///
/// # Safety
/// Tiles are configured.
pub(crate) unsafe fn busy(turns: usize) {
    for _ in 0..turns {
        // SAFETY: the caller's promise; every register written is declared.
        unsafe {
            asm!("tdpbf16ps tmm0, tmm4, tmm6", "tdpbf16ps tmm1, tmm4, tmm7", "tdpbf16ps tmm2, tmm5, tmm6",
                "tdpbf16ps tmm3, tmm5, tmm7",
                out("tmm0") _, out("tmm1") _, out("tmm2") _, out("tmm3") _, options(nostack, nomem));
        }
    }
}

/// Quantized prompts in bf16 on the matrix unit.
macro_rules! by_tiles {
    (kernels $($rest:tt)*) => {};
    (prompt $format:ident) => {
        PromptKernels {
            activations: &$crate::x86::amx::BF16_TILES,
            panel: $crate::x86::amx::panel::<$format>,
            tiles: [
                $crate::x86::amx::tiles_bf16::<1>,
                $crate::x86::amx::tiles_bf16::<2>,
            ],
        }
    };
    (rows) => {
        UnpackedKernels {
            activations: &$crate::x86::amx::BF16_TILES,
            convert: Some($crate::x86::amx::narrow),
            tiles: [
                $crate::x86::amx::tiles_bf16::<1>,
                $crate::x86::amx::tiles_bf16::<2>,
            ],
        }
    };
    (attention) => {
        Some($crate::table::MatrixUnit {
            takes: $crate::x86::amx_attention::takes,
            scratch: $crate::x86::amx_attention::scratch_bytes,
            attend: |ty| match ty {
                KvType::F16 => $crate::x86::amx_attention::attend::<F16>,
                KvType::F32 => $crate::x86::amx_attention::attend::<F32>,
                KvType::Bf16 => $crate::x86::amx_attention::attend::<BF16>,
                KvType::Q8_0 => $crate::x86::amx_attention::attend::<attention::Q8>,
            },
            busy: ($crate::x86::amx::busy, $crate::x86::amx::BUSY),
        })
    };
    (enter) => {
        $crate::x86::amx::configure
    };
    (leave) => {
        $crate::x86::amx::release
    };
}

instantiate!(kernels, Avx512, floats 12, queries [8, 4, 2, 1], prompts by_tiles,
    features ["avx2", "fma", "f16c", "avx512f", "avx512bw", "avx512vl", "avx512dq", "avx512vnni"],
    and is_available);
