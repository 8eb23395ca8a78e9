use super::folded::sum_length;
use super::*;
use crate::formats::{Float, Visitor, packed_types, visit};
use crate::generic::batch::unpack;
use std::marker::PhantomData;

struct BothWays<'a, S> {
    name: &'a str,
    codes: fn(usize) -> u8,
    simd: PhantomData<S>,
}

impl<S: Simd> Visitor for BothWays<'_, S> {
    type Out = ();

    fn blocks<F: Format>(&self) {
        match (F::GROUP, F::MIN) {
            (16, false) => self.compare::<F, 16, false>(),
            (16, true) => self.compare::<F, 16, true>(),
            (_, false) => self.compare::<F, 32, false>(),
            (_, true) => self.compare::<F, 32, true>(),
        }
    }

    fn decoded<F: Format>(&self) {
        self.blocks::<F>();
        self.compare_panels::<F>();
    }

    fn floats<E: Float>(&self) {}
}

impl<S: Simd> BothWays<'_, S> {
    /// Compares the panel of a strip with that of its decoded codes.
    fn compare_panels<F: Format>(&self) {
        let strip: Vec<u8> = (0..KC / F::K * F::BLOCK_BYTES * S::R)
            .map(self.codes)
            .collect();
        let mut panels = [vec![0.0f32; KC * S::R], vec![0.0f32; KC * S::R]];
        let mut decoded = std::mem::MaybeUninit::<Panel>::uninit();
        let [direct, by_codes] = panels.each_mut().map(|panel| panel.as_mut_ptr());
        // SAFETY: the caller asks only for what this CPU has; the strip has KC weights a row, and
        // a panel is no larger than as many floats.
        unsafe {
            panel::<S, F>(strip.as_ptr(), 0, KC, direct);
            unpack::<S, F>(strip.as_ptr(), KC / F::K, decoded.as_mut_ptr(), 0);
            panel_of_codes::<S>(decoded.as_ptr(), KC, F::GROUP, F::OFFSET, by_codes);
        }
        let [direct, by_codes] = panels.map(|panel| panel.into_iter().map(f32::to_bits));
        assert!(direct.eq(by_codes), "{} {:?}", self.name, F::TYPE);
    }

    /// Compares both ways on a slice and the beginning of another one, of two strips of random
    /// codes and scales.
    fn compare<F: Format, const GROUP: usize, const MIN: bool>(&self) {
        let k = KC + F::K.max(32);
        let strips: Vec<u8> = (0..2 * k / F::K * F::BLOCK_BYTES * S::R)
            .map(self.codes)
            .collect();
        for m in [1, 3, 4, 6, 11] {
            // the largest activations of both signs among them
            let value = |i| f32::from(i8::from_ne_bytes([(self.codes)(i)]).max(-127));
            let x: Vec<f32> = (0..m * k).map(value).collect();
            let both = |fold| {
                [false, true].map(|way| {
                    // SAFETY: the caller asks only for what this CPU has.
                    unsafe { multiply::<S, F, GROUP, MIN>(&strips, (&x, m, k), fold, way) }
                })
            };
            let what = (self.name, F::TYPE);
            let [plain, winograd] = both(None);
            assert_eq!(plain, winograd, "{what:?}, {m} tokens");
            if let Some(len) = const { sum_length::<F>() } {
                let [plain, winograd] = both(Some(len));
                assert_eq!(plain, winograd, "{what:?}, {m} tokens, folded");
            }
        }
    }
}

/// The bits of all sums; of panels whose scales are folded, in sums of a number of weights, if that
/// is given.
///
/// # Safety
/// This CPU has the instruction set.
unsafe fn multiply<S: Simd, F: Format, const GROUP: usize, const MIN: bool>(
    strips: &[u8],
    (x, m, k): (&[f32], usize, usize),
    fold: Option<usize>,
    winograd: bool,
) -> Vec<u32> {
    const WIDTH: usize = 6;
    let tiles = m.next_multiple_of(WIDTH);
    let (mut packed, mut panel) = (vec![0.0; tiles * k], vec![0.0; 2 * KC * S::R]);
    let mut sums = vec![0.0; tiles * 2 * S::R];
    let (pack, write): (PackTokens, WritePanel) = match fold {
        None => (pack_tokens::<S>, super::panel::<S, F>),
        Some(_) => (folded::pack_tokens::<S>, folded::panel::<S, F>),
    };
    for t in (0..m).step_by(WIDTH) {
        let width = tile_width(m - t, WIDTH);
        // SAFETY: whole tiles fit.
        unsafe { pack(x.as_ptr(), m, k, t, width, packed.as_mut_ptr().add(t * k)) }
    }
    for k0 in (0..k).step_by(KC) {
        let kc = KC.min(k - k0);
        for (strip, panel) in strips
            .chunks_exact(strips.len() / 2)
            .zip(panel.chunks_exact_mut(kc * S::R))
        {
            // SAFETY: the strip has k weights a row, and the panel room for the slice.
            unsafe { write(strip.as_ptr(), k0, k0 + kc, panel.as_mut_ptr()) };
        }
        let tiles = Tiles {
            panel: panel.as_ptr(),
            kc,
            k0,
            k,
            offset: 0,
            x: packed.as_ptr(),
            m,
            sums: sums.as_mut_ptr(),
            y: None,
            rows: 2 * S::R,
            prefetch_next: [&[]; 2],
        };
        // SAFETY: as `Tiles` says.
        unsafe {
            match (fold, winograd) {
                (None, true) => all_tiles::<S, GROUP, MIN, false, 2, WIDTH, true>(&tiles, GROUP),
                (None, false) => all_tiles::<S, GROUP, MIN, false, 2, WIDTH, false>(&tiles, GROUP),
                (Some(len), true) => all_tiles::<S, GROUP, MIN, true, 2, WIDTH, true>(&tiles, len),
                (Some(len), false) => {
                    all_tiles::<S, GROUP, MIN, true, 2, WIDTH, false>(&tiles, len);
                }
            }
        }
    }
    sums[..m * 2 * S::R]
        .iter()
        .map(|sum| sum.to_bits())
        .collect()
}

/// Functions that pack tokens and write panels.
type PackTokens = unsafe fn(*const f32, usize, usize, usize, usize, *mut f32);
type WritePanel = unsafe fn(*const u8, usize, usize, *mut f32);

/// Checks that Winograd's inner products change no bit, whether or not this CPU prefers them.
pub fn both_ways_agree<S: Simd>(name: &str) {
    if !S::WINOGRAD {
        return;
    }
    let all: [fn(usize) -> u8; 3] = [
        |i| {
            (i as u32 ^ 0x2545)
                .wrapping_mul(0x9e37_79b1)
                .rotate_left(13) as u8
        },
        // the outermost codes of every format
        |i| [0x00, 0xff][i / 7 % 2],
        |i| [0x80, 0x7f][i / 5 % 2],
    ];
    for codes in all {
        for ty in packed_types() {
            let simd = PhantomData;
            visit(ty, &BothWays::<S> { name, codes, simd });
        }
    }
}
