//! Norms and activations over rows.

use crate::function::{Function, Xielu};
use crate::simd::{Simd, exp, exp_less_one};

/// `y = x / sqrt(mean(x^2) + eps) * weight`, over `n` values.
///
/// # Safety
/// `x`, `weight` and `y` are `n` floats; `y` may be `x`.
#[inline(always)]
pub unsafe fn rms_norm<S: Simd>(
    x: *const f32,
    weight: *const f32,
    eps: f32,
    n: usize,
    y: *mut f32,
) {
    // SAFETY: as the caller's.
    unsafe { norm_around::<S>(None, x, weight, eps, n, y) }
}

/// `y = (x - mean) / sqrt(mean((x - mean)^2) + eps) * weight`, over `n` values.
///
/// # Safety
/// `x`, `weight` and `y` are `n` floats; `y` may be `x`.
#[inline(always)]
pub unsafe fn layer_norm<S: Simd>(
    x: *const f32,
    weight: *const f32,
    eps: f32,
    n: usize,
    y: *mut f32,
) {
    // SAFETY: all indices are below n, and the rest is as the caller's.
    unsafe {
        let whole = n - n % S::R;
        let mut sums = [S::zero(); 2];
        for i in (0..whole).step_by(S::R) {
            let at = (i / S::R) % 2;
            sums[at] = S::add(S::load(x.add(i)), sums[at]);
        }
        let mut sum = f64::from(S::sum(S::add(sums[0], sums[1])));
        for i in whole..n {
            sum += f64::from(x.add(i).read());
        }
        let mean = (sum / n as f64) as f32;
        // a second pass: the mean of the squares less the square of the mean would cancel
        norm_around::<S>(Some(mean), x, weight, eps, n, y);
    }
}

/// Subtracts the mean, if given, and divides by the root of the mean of squares, times `weight`.
///
/// # Safety
/// `x`, `weight` and `y` are `n` floats; `y` may be `x`.
#[inline(always)]
unsafe fn norm_around<S: Simd>(
    mean: Option<f32>,
    x: *const f32,
    weight: *const f32,
    eps: f32,
    n: usize,
    y: *mut f32,
) {
    // SAFETY: all indices are below n.
    unsafe {
        let several = |i: usize| {
            let v = S::load(x.add(i));
            mean.map_or(v, |mean| S::sub(v, S::set1(mean)))
        };
        let one = |i: usize| x.add(i).read() - mean.unwrap_or(0.0);
        let whole = n - n % S::R;
        let mut squares = [S::zero(); 2];
        for i in (0..whole).step_by(S::R) {
            let v = several(i);
            let at = (i / S::R) % 2;
            squares[at] = S::fma(v, v, squares[at]);
        }
        let mut sum = f64::from(S::sum(S::add(squares[0], squares[1])));
        for i in whole..n {
            sum += f64::from(one(i)).powi(2);
        }
        let scale = (1.0 / (sum / n as f64 + f64::from(eps)).sqrt()) as f32;
        for i in (0..whole).step_by(S::R) {
            let v = S::mul(several(i), S::set1(scale));
            S::store(y.add(i), S::mul(v, S::load(weight.add(i))));
        }
        for i in whole..n {
            y.add(i).write(one(i) * scale * weight.add(i).read());
        }
    }
}

/// Rows of two operands and of a result, each an address and the stride between rows in floats.
pub struct Operands {
    pub a: (*const f32, usize),
    pub b: (*const f32, usize),
    pub y: (*mut f32, usize),
    pub rows: usize,
    /// Values of a row.
    pub n: usize,
}

/// A gated activation, on one vector of the gate and of the up projection. A trait and not a
/// closure: closures are compiled without the caller's target features.
pub trait Activate {
    /// # Safety
    /// The CPU has the instruction set of `S`.
    unsafe fn gated<S: Simd>(gate: S::F, up: S::F) -> S::F;
}

/// `x / (1 + e^-x)`.
pub struct Silu;

impl Activate for Silu {
    #[inline(always)]
    unsafe fn gated<S: Simd>(gate: S::F, up: S::F) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe { S::mul(over_one_and_exp::<S>(gate, S::sub(S::zero(), gate)), up) }
    }
}

/// `gelu(x)`, see [`Function::Gelu`].
pub struct Gelu;

impl Activate for Gelu {
    #[inline(always)]
    unsafe fn gated<S: Simd>(gate: S::F, up: S::F) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe { S::mul(gelu::<S>(gate), up) }
    }
}

/// See [`Activation::SwigluOai`](crate::function::Activation::SwigluOai).
pub struct SwigluOai;

impl Activate for SwigluOai {
    #[inline(always)]
    unsafe fn gated<S: Simd>(gate: S::F, up: S::F) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe {
            let gate = S::min(S::set1(7.0), gate);
            let up = S::max(S::set1(-7.0), S::min(S::set1(7.0), up));
            let glu = over_one_and_exp::<S>(gate, S::mul(S::set1(-1.702), gate));
            S::mul(glu, S::add(up, S::set1(1.0)))
        }
    }
}

/// `x / (1 + e^z)`.
#[inline(always)]
unsafe fn over_one_and_exp<S: Simd>(x: S::F, z: S::F) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe { S::div(x, S::add(S::set1(1.0), exp::<S>(z))) }
}

/// `x / 2 * (1 + tanh(z))` is `x / (1 + e^-2z)`, with `z = sqrt(2 / pi) (x + 0.044715 x^3)`.
#[inline(always)]
unsafe fn gelu<S: Simd>(x: S::F) -> S::F {
    const MINUS_2_ROOT_2_OVER_PI: f32 = -1.595_769_2;
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let square = S::mul(x, x);
        let factor = S::fma(square, S::set1(0.044_715), S::set1(1.0));
        let z = S::mul(S::mul(x, factor), S::set1(MINUS_2_ROOT_2_OVER_PI));
        over_one_and_exp::<S>(x, z)
    }
}

/// `y = act(gate) * up` in every row.
///
/// # Safety
/// As the fields of [`Operands`] say; `y` may be one of the others.
#[inline(always)]
pub unsafe fn gate<S: Simd, A: Activate>(p: &Operands) {
    for r in 0..p.rows {
        // SAFETY: the caller's rows.
        unsafe {
            gate_row::<S, A>(
                p.a.0.add(r * p.a.1),
                p.b.0.add(r * p.b.1),
                p.n,
                p.y.0.add(r * p.y.1),
            )
        }
    }
}

/// A binary operation on vectors.
pub trait Combine {
    /// # Safety
    /// The CPU has the instruction set of `S`.
    unsafe fn both<S: Simd>(a: S::F, b: S::F) -> S::F;
}

/// `a + b`.
pub struct Sum;

impl Combine for Sum {
    #[inline(always)]
    unsafe fn both<S: Simd>(a: S::F, b: S::F) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe { S::add(a, b) }
    }
}

/// `a b`.
pub struct Product;

impl Combine for Product {
    #[inline(always)]
    unsafe fn both<S: Simd>(a: S::F, b: S::F) -> S::F {
        // SAFETY: no pointers; the instruction set is the caller's promise.
        unsafe { S::mul(a, b) }
    }
}

/// Combines values of `a` and `b`, in every row.
///
/// # Safety
/// As [`gate`].
#[inline(always)]
pub unsafe fn combine<S: Simd, C: Combine>(p: &Operands) {
    for r in 0..p.rows {
        // SAFETY: the caller's rows.
        unsafe {
            combine_row::<S, C>(
                p.a.0.add(r * p.a.1),
                p.b.0.add(r * p.b.1),
                p.n,
                p.y.0.add(r * p.y.1),
            )
        }
    }
}

#[inline(always)]
unsafe fn gate_row<S: Simd, A: Activate>(gate: *const f32, up: *const f32, n: usize, y: *mut f32) {
    // SAFETY: all indices are below n; the tail goes through whole local vectors.
    unsafe {
        let whole = n - n % S::R;
        for i in (0..whole).step_by(S::R) {
            S::store(
                y.add(i),
                A::gated::<S>(S::load(gate.add(i)), S::load(up.add(i))),
            );
        }
        if whole < n {
            let (mut g, mut u) = ([0f32; 16], [0f32; 16]);
            for i in whole..n {
                (g[i - whole], u[i - whole]) = (gate.add(i).read(), up.add(i).read());
            }
            S::store(
                g.as_mut_ptr(),
                A::gated::<S>(S::load(g.as_ptr()), S::load(u.as_ptr())),
            );
            for i in whole..n {
                y.add(i).write(g[i - whole]);
            }
        }
    }
}

#[inline(always)]
unsafe fn combine_row<S: Simd, C: Combine>(a: *const f32, b: *const f32, n: usize, y: *mut f32) {
    // SAFETY: all indices are below n; the tail goes through whole local vectors.
    unsafe {
        let whole = n - n % S::R;
        for i in (0..whole).step_by(S::R) {
            S::store(y.add(i), C::both::<S>(S::load(a.add(i)), S::load(b.add(i))));
        }
        if whole < n {
            let (mut one, mut other) = ([0f32; 16], [0f32; 16]);
            std::ptr::copy_nonoverlapping(a.add(whole), one.as_mut_ptr(), n - whole);
            std::ptr::copy_nonoverlapping(b.add(whole), other.as_mut_ptr(), n - whole);
            let both = C::both::<S>(S::load(one.as_ptr()), S::load(other.as_ptr()));
            S::store(one.as_mut_ptr(), both);
            std::ptr::copy_nonoverlapping(one.as_ptr(), y.add(whole), n - whole);
        }
    }
}

/// `y = f(x)`, for `n` values.
///
/// # Safety
/// `x` and `y` are `n` floats; `y` may be `x`.
#[inline(always)]
pub unsafe fn unary<S: Simd>(f: Function, x: *const f32, n: usize, y: *mut f32) {
    // SAFETY: all indices are below n; the tail goes through a whole local vector.
    unsafe {
        let whole = n - n % S::R;
        for i in (0..whole).step_by(S::R) {
            S::store(y.add(i), function::<S>(f, S::load(x.add(i))));
        }
        if whole < n {
            let mut tail = [0f32; 16];
            std::ptr::copy_nonoverlapping(x.add(whole), tail.as_mut_ptr(), n - whole);
            S::store(tail.as_mut_ptr(), function::<S>(f, S::load(tail.as_ptr())));
            std::ptr::copy_nonoverlapping(tail.as_ptr(), y.add(whole), n - whole);
        }
    }
}

#[inline(always)]
unsafe fn function<S: Simd>(f: Function, x: S::F) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        match f {
            Function::SoftCap(cap) => soft_cap::<S>(cap, x),
            Function::Scale(factor) => S::mul(S::set1(factor), x),
            Function::Clamp(low, high) => S::max(S::set1(low), S::min(S::set1(high), x)),
            Function::Gelu => gelu::<S>(x),
            Function::SquaredRelu => {
                let x = S::max(S::zero(), x);
                S::mul(x, x)
            }
            Function::Sigmoid => over_one_and_exp::<S>(S::set1(1.0), S::sub(S::zero(), x)),
            Function::Silu => over_one_and_exp::<S>(x, S::sub(S::zero(), x)),
            Function::Softplus => softplus::<S>(x),
            Function::Exp => exp::<S>(x),
            Function::Xielu(by) => xielu::<S>(&by, x),
        }
    }
}

/// See [`Xielu`], one vector. There is no comparison: `is_above` is 1 above 0 and otherwise 0, and
/// only between the smallest normal numbers and 0 something between.
#[inline(always)]
unsafe fn xielu<S: Simd>(by: &Xielu, x: S::F) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let (above, below) = (S::max(S::zero(), x), S::min(S::zero(), x));
        let scaled = S::mul(S::set1(f32::MAX), x);
        let is_above = S::max(S::zero(), S::min(S::set1(1.0), scaled));
        let curve = S::sub(exp_less_one::<S>(S::min(S::set1(by.least), below)), below);
        let curve = S::mul(curve, S::sub(S::set1(1.0), is_above));
        let square = S::mul(S::mul(S::set1(by.positive), above), above);
        let curved = S::fma(S::set1(by.negative), curve, square);
        S::fma(S::set1(by.linear), x, curved)
    }
}

/// `ln(1 + e^x)`, one vector: `max(x, 0) + ln(1 + t)` with `t = e^-|x|` in (0, 1], and `ln(1 + t) =
/// 2 artanh(s)` with `s = t / (2 + t)`, at most 1/3, whose series is at 2^-26 after nine terms.
#[inline(always)]
unsafe fn softplus<S: Simd>(x: S::F) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        let less = S::sub(S::zero(), S::max(S::sub(S::zero(), x), x));
        let t = exp::<S>(less);
        let s = S::div(t, S::add(S::set1(2.0), t));
        let square = S::mul(s, s);
        let mut sum = S::set1(1.0 / 17.0);
        for odd in [15.0, 13.0, 11.0, 9.0, 7.0, 5.0, 3.0, 1.0] {
            sum = S::fma(sum, square, S::set1(1.0 / odd));
        }
        S::fma(S::add(s, s), sum, S::max(S::zero(), x))
    }
}

/// `cap * tanh(x / cap)`, one vector.
///
/// # Safety
/// The CPU has the instruction set of `S`.
#[inline(always)]
pub unsafe fn soft_cap<S: Simd>(cap: f32, x: S::F) -> S::F {
    // SAFETY: no pointers; the instruction set is the caller's promise.
    unsafe {
        // tanh(z) = (e^2z - 1) / (e^2z + 1), which is 1 in f32 from z = 9.1 on; doubling is exact
        let z = S::div(x, S::set1(cap));
        let z2 = S::max(S::set1(-20.0), S::min(S::set1(20.0), S::add(z, z)));
        let e = exp_less_one::<S>(z2);
        S::mul(S::set1(cap), S::div(e, S::add(e, S::set1(2.0))))
    }
}

/// Rotates values `i` and `i + n` by angle `i`: `y` differs from `x` in the first `2 n`.
///
/// # Safety
/// `cos` and `sin` are `n` floats, `x` and `y` are `2 n` and do not overlap.
#[inline(always)]
pub unsafe fn rotate<S: Simd>(
    x: *const f32,
    cos: *const f32,
    sin: *const f32,
    n: usize,
    y: *mut f32,
) {
    // SAFETY: all indices are below 2 n.
    unsafe {
        let whole = n - n % S::R;
        for i in (0..whole).step_by(S::R) {
            let (a, b) = (S::load(x.add(i)), S::load(x.add(n + i)));
            let (c, s) = (S::load(cos.add(i)), S::load(sin.add(i)));
            S::store(y.add(i), S::sub(S::mul(a, c), S::mul(b, s)));
            S::store(y.add(n + i), S::add(S::mul(a, s), S::mul(b, c)));
        }
        for i in whole..n {
            let (a, b) = (x.add(i).read(), x.add(n + i).read());
            let (c, s) = (cos.add(i).read(), sin.add(i).read());
            y.add(i).write(a * c - b * s);
            y.add(n + i).write(a * s + b * c);
        }
    }
}

/// Rounds `n` floats to IEEE halves.
///
/// # Safety
/// `x` is `n` floats, `y` has room for `n` halves.
#[inline(always)]
pub unsafe fn to_f16<S: Simd>(x: *const f32, n: usize, y: *mut u16) {
    // SAFETY: all indices are below n; the tail goes through whole local vectors.
    unsafe {
        let whole = n - n % S::R;
        for i in (0..whole).step_by(S::R) {
            S::store_f16(y.add(i), S::load(x.add(i)));
        }
        if whole < n {
            let (mut from, mut to) = ([0f32; 16], [0u16; 16]);
            std::ptr::copy_nonoverlapping(x.add(whole), from.as_mut_ptr(), n - whole);
            S::store_f16(to.as_mut_ptr(), S::load(from.as_ptr()));
            std::ptr::copy_nonoverlapping(to.as_ptr(), y.add(whole), n - whole);
        }
    }
}
