//! Plain floats, packed as `[k][R]`.

use super::{Float, FormatInfo, Visitor};
use crate::simd::Simd;
use octavo_quant::TensorType;

macro_rules! float {
    ($name:ident, $bytes:literal bytes, $bits:literal bits, $load:ident) => {
        pub struct $name;

        impl Float for $name {
            const TYPE: TensorType = TensorType::$name;
            const BYTES: usize = $bytes;
            const BITS: usize = $bits;

            #[inline(always)]
            unsafe fn load<S: Simd>(p: *const u8) -> S::F {
                // SAFETY: the caller has R elements at `p`.
                unsafe { S::$load(p.cast()) }
            }
        }
    };
}

float!(F32, 4 bytes, 24 bits, load);
float!(F16, 2 bytes, 11 bits, load_f16);
float!(BF16, 2 bytes, 8 bits, load_bf16);

family!(floats(F32), floats(F16), floats(BF16));
