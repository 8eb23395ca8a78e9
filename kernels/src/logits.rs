//! Rows of logits as long as a vocabulary, in f64: maxima and sums of exponentials by blocks. The
//! results have the same bits on every instruction set, so that a seed draws the same tokens.

use octavo_isa::Isa;
use octavo_simd::doubles::exp_of_one;
use octavo_simd::generic::logits::BLOCK;
use octavo_simd::table;

/// Logits of a block; the last one of a row may have fewer.
pub const LOGIT_BLOCK: usize = BLOCK;

/// Sums over one block of logits, with `d` a logit less the largest of the row.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct ExpSums {
    /// Sum of `e^d`.
    pub powers: f64,
    /// Sum of `d e^d`.
    pub products: f64,
}

/// Functions of rows of logits, for one instruction set.
#[derive(Clone, Copy, Debug)]
pub struct LogitKernels(&'static table::LogitKernels);

/// Those of the best instruction set: all have the same results.
impl Default for LogitKernels {
    fn default() -> LogitKernels {
        LogitKernels::of(Isa::best())
    }
}

impl LogitKernels {
    /// Returns those of an instruction set.
    ///
    /// # Panics
    /// If this CPU lacks it.
    pub fn of(isa: Isa) -> LogitKernels {
        LogitKernels(&isa.table().logits)
    }

    /// Replaces `y` by the logits, negative zeros by zeros, and `maxima` by the largest of each
    /// block. Returns whether all are finite; the maxima are only right if so.
    pub fn widen(self, x: &[f32], y: &mut Vec<f64>, maxima: &mut Vec<f64>) -> bool {
        y.resize(x.len(), 0.0);
        maxima.resize(x.len().div_ceil(BLOCK), 0.0);
        // SAFETY: both have the room, and the CPU has the instruction set (`of`).
        unsafe { (self.0.widen)(x.as_ptr(), x.len(), y.as_mut_ptr(), maxima.as_mut_ptr()) }
    }

    /// Replaces `maxima` by the largest logit of each block. None may be NaN.
    pub fn maxima(self, x: &[f64], maxima: &mut Vec<f64>) {
        maxima.resize(x.len().div_ceil(BLOCK), 0.0);
        // SAFETY: it has the room, and the CPU has the instruction set (`of`).
        unsafe { (self.0.maxima)(x.as_ptr(), x.len(), maxima.as_mut_ptr()) }
    }

    /// Returns sums of each block of logits. None may be NaN, nor above `max`.
    pub fn exp_sums(self, x: &[f64], max: f64) -> Vec<ExpSums> {
        // SAFETY: the CPU has the instruction set (`of`).
        unsafe { sums_by(self.0.exp_sums, x, max) }
    }

    /// Returns sums of each block of logits. None may be NaN, nor above `max`.
    pub fn exp_sums_f32(self, x: &[f32], max: f64) -> Vec<ExpSums> {
        // SAFETY: the CPU has the instruction set (`of`).
        unsafe { sums_by(self.0.exp_sums_f32, x, max) }
    }

    /// Replaces each `x` by `e^(x - max)`. None may be NaN, nor above `max`.
    pub fn exps(self, x: &mut [f64], max: f64) {
        let first = x.as_mut_ptr();
        // SAFETY: values are replaced in place, and the CPU has the instruction set (`of`).
        unsafe { (self.0.exps)(first, x.len(), max, first) }
    }
}

/// Collects the sums of each block.
///
/// # Safety
/// The CPU has the instruction set of `kernel`.
unsafe fn sums_by<T>(
    kernel: unsafe fn(*const T, usize, f64, *mut [f64; 2]),
    x: &[T],
    max: f64,
) -> Vec<ExpSums> {
    let mut sums = vec![[0.0; 2]; x.len().div_ceil(BLOCK)];
    // SAFETY: there is one of each block.
    unsafe { kernel(x.as_ptr(), x.len(), max, sums.as_mut_ptr()) };
    let named = |[powers, products]: [f64; 2]| ExpSums { powers, products };
    sums.into_iter().map(named).collect()
}

/// Returns `e^x` for `x` of at most 709, to 2 ulp, as in the sums of [`LogitKernels`]; 0 where it
/// is not a normal number.
pub fn exp_f64(x: f64) -> f64 {
    exp_of_one(x)
}
