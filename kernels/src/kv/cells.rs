//! Storing a key and a value at a position.

use super::codes::{Encode, f8_e4m3, iq4_nl, q4_0, q5_0, q5_1, q8_0};
use super::{GroupPages, HalfPages};
use octavo_simd::kv_layout::{KvType, MAX_HEAD_DIM, PAGE, SCALE_GROUP};

/// Destination of one head's key and value.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Cell {
    /// Layer in the group.
    pub(crate) layer: usize,
    pub(crate) head: usize,
    pub(crate) page: u32,
    /// Position in the page.
    pub(crate) slot: usize,
}

/// Kernel that rounds a number of floats to halves.
type ToF16 = unsafe fn(*const f32, usize, *mut u16);

/// Order of elements in a page of one head.
#[derive(Clone, Copy)]
enum Order {
    /// Keys: value by value, each of all positions.
    Across,
    /// Values: position by position, all elements of each.
    Along,
}

impl GroupPages {
    /// Stores one head's key and value at a position.
    ///
    /// # Safety
    /// No other thread reads or writes this layer, head, page and slot meanwhile. `to_f16` rounds
    /// the given number of floats to halves.
    pub(crate) unsafe fn write(&self, cell: Cell, (k, v): (&[f32], &[f32]), to_f16: ToF16) {
        let s = &self.shape;
        assert!(cell.layer < s.n_layer && cell.head < s.n_head_kv);
        assert!((cell.page as usize) < self.n_pages && cell.slot < PAGE);
        assert!(k.len() == s.head_dim && v.len() == s.head_dim);
        let [keys, values] = &self.halves;
        // SAFETY: the cell is inside both stores by the asserts, and belongs to the caller.
        unsafe {
            keys.write(cell, s.n_head_kv, k, Order::Across, to_f16);
            values.write(cell, s.n_head_kv, v, Order::Along, to_f16);
        }
    }
}

impl HalfPages {
    /// Stores one head's key, or value.
    ///
    /// # Safety
    /// As [`GroupPages::write`], whose asserts hold.
    unsafe fn write(&self, cell: Cell, heads: usize, x: &[f32], order: Order, to_f16: ToF16) {
        let part = (cell.layer * self.layer_pages + cell.page as usize) * heads + cell.head;
        let to = self.start.wrapping_add(part * self.shape.head_bytes());
        let slot = cell.slot;
        // SAFETY: a part has room for the elements, codes and scales of a page's positions, of
        // which those of this one are written.
        unsafe {
            match self.shape.ty {
                KvType::F16 => match order {
                    Order::Across => {
                        let mut halves = [0u16; MAX_HEAD_DIM];
                        to_f16(x.as_ptr(), x.len(), halves.as_mut_ptr());
                        put(halves[..x.len()].iter().copied(), to.cast(), slot, order);
                    }
                    Order::Along => {
                        to_f16(x.as_ptr(), x.len(), to.cast::<u16>().add(slot * x.len()))
                    }
                },
                KvType::Bf16 => {
                    let halves = x.iter().map(|x| half::bf16::from_f32(*x).to_bits());
                    put(halves, to.cast(), slot, order);
                }
                KvType::F32 => put(x.iter().copied(), to.cast(), slot, order),
                KvType::Q8_0 => self.write_codes(to, slot, x, order, q8_0),
                KvType::F8E4M3 => self.write_codes(to, slot, x, order, f8_e4m3),
                KvType::Q4_0 => self.write_codes(to, slot, x, order, q4_0),
                KvType::Q5_0 => self.write_codes(to, slot, x, order, q5_0),
                KvType::Q5_1 => self.write_codes(to, slot, x, order, q5_1),
                KvType::Iq4Nl => self.write_codes(to, slot, x, order, iq4_nl),
            }
        }
    }

    /// Stores one head's key, or value, coded with scales, at a position of a part of the store.
    ///
    /// # Safety
    /// As [`HalfPages::write`].
    unsafe fn write_codes(
        &self,
        to: *mut u8,
        slot: usize,
        x: &[f32],
        order: Order,
        encode: Encode,
    ) {
        let bytes = self.shape.ty.group_bytes().expect("a type of codes");
        let groups = x.len() / SCALE_GROUP;
        let mut codes = [0; SCALE_GROUP];
        // SAFETY: scales, and minima, follow the codes of all of the page's positions.
        unsafe {
            let scales = to.add(PAGE * groups * bytes).cast::<u16>();
            for (g, x) in x.as_chunks().0.iter().enumerate() {
                let [scale, minimum] = encode(x, &mut codes);
                scales.add(g * PAGE + slot).write(scale);
                if self.shape.ty.has_minimum() {
                    scales.add((groups + g) * PAGE + slot).write(minimum);
                }
                // the codes of a group are laid out as elements are
                let (to, row) = match order {
                    Order::Across => (to.add(g * bytes * PAGE), slot),
                    Order::Along => (to.add(g * bytes + slot * groups * bytes), 0),
                };
                put(codes[..bytes].iter().copied(), to, row, order);
            }
        }
    }
}

/// Stores all elements of a position, in a page without scales.
///
/// # Safety
/// A page of them is at `to`, and the position is the caller's.
#[inline]
unsafe fn put<T>(x: impl ExactSizeIterator<Item = T>, to: *mut T, slot: usize, order: Order) {
    let (first, step) = match order {
        Order::Across => (slot, PAGE),
        Order::Along => (slot * x.len(), 1),
    };
    for (i, x) in x.enumerate() {
        // SAFETY: the caller's promise.
        unsafe { to.add(first + i * step).write(x) }
    }
}
