//! Launches of matrix products, and of the kernels that convert their inputs.

use super::launches::{LaunchContext, List, Ready, small};
use crate::cuda::launch::Form;
use crate::cuda::pack::UNIT;
use crate::cuda::params::{Arrange, Gemm, Gemv, GemvPart, Matrix};
use crate::cuda::{Ptr, launch};
use crate::program::Slot;
use octavo_simd::function::Activation;

/// Maximum number of matrices per launch of `gemv`.
const GEMV_PARTS: usize = 3;

/// A product: its weight, its addend, and its output.
#[derive(Clone, Copy)]
pub(super) struct Product {
    pub(super) w: usize,
    pub(super) add: Ptr,
    pub(super) out: Ptr,
}

impl Product {
    /// Creates a product without an addend.
    pub(super) fn alone(w: usize, out: Ptr) -> Product {
        Product {
            w,
            add: Ptr::NULL,
            out,
        }
    }
}

/// A gate product and an up product of one input, with activation and output.
pub(super) struct Gated {
    pub(super) gate: usize,
    pub(super) up: usize,
    pub(super) act: Activation,
    pub(super) out: Slot,
    /// Form in which all readers want the result, if it is the same.
    pub(super) form: Option<Form>,
}

impl LaunchContext<'_> {
    /// Converts rows to an input form of products, after a norm if its weight and epsilon are
    /// given.
    pub(super) fn arrange(&self, x: Slot, form: Form, norm: Option<(Ptr, f32)>, list: &mut List) {
        self.arrange_as((self.rows(x), self.width(x)), x, form, norm, list);
    }

    /// As [`LaunchContext::arrange`], viewing a slot's values as rows of another width.
    pub(super) fn arrange_as(
        &self,
        (rows, cols): (usize, usize),
        x: Slot,
        form: Form,
        norm: Option<(Ptr, f32)>,
        list: &mut List,
    ) {
        if rows == 0 {
            return;
        }
        let (weight, eps) = norm.unwrap_or((Ptr::NULL, 0.0));
        let p = Arrange {
            x: self.slot(x),
            weight,
            out: self.at(self.plan.activations),
            scales: self.at(self.plan.scales),
            rows: small(rows),
            cols: small(cols),
            units: small(cols.div_ceil(UNIT)),
            eps,
        };
        list.launches.push(if norm.is_some() {
            launch::normed_activations(form, &p)
        } else {
            launch::activations(form, &p)
        });
    }

    /// Returns the address of an input in a form of products, converting it first if necessary.
    pub(super) fn input(&self, x: Slot, form: Form, list: &mut List) -> Ptr {
        if let Some(ready) = list.ready.filter(|r| (r.slot, r.form) == (x, form)) {
            return ready.at;
        }
        self.arrange(x, form, None, list);
        let at = self.at(self.plan.activations);
        list.ready = Some(Ready {
            slot: x,
            form,
            at,
            new: false,
        });
        at
    }

    /// Adds products of one input; in decode, up to `GEMV_PARTS` matrices of the same type share a
    /// launch.
    pub(super) fn products(&self, x: Slot, products: &[Product], list: &mut List) {
        if self.rows(x) == 0 {
            return;
        }
        if !self.shape.generated {
            return products
                .iter()
                .for_each(|product| self.gemm(x, product, list));
        }
        let mut left = products.to_vec();
        while let Some(first) = left.first() {
            let ty = self.stored(first.w);
            let (together, others): (Vec<_>, Vec<_>) =
                left.into_iter().partition(|p| self.stored(p.w) == ty);
            left = others;
            for together in together.chunks(GEMV_PARTS) {
                self.gemv(x, together, None, list);
            }
        }
    }

    fn gemm(&self, x: Slot, &Product { w, add, out }: &Product, list: &mut List) {
        let (ty, w) = self.matrix(self.plan.weights[w]);
        let (input, scales) = (
            self.input(x, self.form(ty), list),
            self.at(self.plan.scales),
        );
        let p = Gemm {
            w,
            x: input,
            scales,
            add,
            out,
            tokens: small(self.rows(x)),
            unused: 0,
        };
        let gemm = if self.wide {
            launch::wide_gemm
        } else {
            launch::gemm
        };
        list.launches.push(gemm(ty, &p, self.multiprocessors));
    }

    /// Adds the gate and up products of one input, with the activation, in the form for its
    /// readers.
    pub(super) fn gated(&self, x: Slot, gated: &Gated, list: &mut List) {
        if self.rows(x) == 0 {
            return;
        }
        let to = self.slot(gated.out);
        let pair = [gated.gate, gated.up].map(|w| Product::alone(w, to));
        // a separate buffer: while some blocks write it, others still read their input
        let integers = self.at(self.plan.gated);
        let form = gated.form.filter(|form| *form == Form::Integers);
        let integers_to = form.map_or(Ptr::NULL, |_| integers);
        self.gemv(x, &pair, Some((gated.act, integers_to)), list);
        if let Some(form) = form {
            list.ready = Some(Ready {
                slot: gated.out,
                form,
                at: integers,
                new: true,
            });
        }
    }

    /// Adds launches of `gemv` or `imma` for any number of rows, with weights of one type. `gated`:
    /// the two products are gate and up, and the integer form goes to the pointer, unless it is
    /// null.
    fn gemv(
        &self,
        x: Slot,
        products: &[Product],
        gated: Option<(Activation, Ptr)>,
        list: &mut List,
    ) {
        let (rows, ty) = (self.rows(x), self.stored(products[0].w));
        let form = self.form(ty);
        let input = self.input(x, form, list);
        let matrices: Vec<Matrix> = products
            .iter()
            .map(|p| self.matrix(self.plan.weights[p.w]).1)
            .collect();
        let has_imma = self.imma && form == Form::Integers;
        let most = match form {
            Form::Integers if has_imma => launch::IMMA_COLUMNS,
            Form::Integers => launch::GEMV_COLUMNS,
            _ => launch::FLOAT_COLUMNS,
        };
        for first in (0..rows).step_by(most) {
            let columns = most.min(rows - first);
            let mut parts = [GemvPart::default(); GEMV_PARTS];
            for ((part, w), p) in parts.iter_mut().zip(&matrices).zip(products) {
                let further = |at: Ptr| at.or_offset(4 * u64::from(w.rows) * first as u64);
                *part = GemvPart {
                    w: *w,
                    add: further(p.add),
                    out: further(p.out),
                };
            }
            let before =
                |form: Form, cols: u32| launch::activation_bytes(form, first, cols as usize) as u64;
            let integers = gated
                .map_or(Ptr::NULL, |(_, integers)| integers)
                .or_offset(before(Form::Integers, matrices[0].rows));
            let p = Gemv {
                parts,
                x: input.offset(before(form, matrices[0].cols)),
                integers,
                columns: small(columns),
                gated: gated.map_or(0, |(act, _)| launch::gate_of_gemv(act)),
                ..Gemv::default()
            };
            let multiply = match has_imma && columns >= launch::IMMA_FROM {
                true => launch::imma,
                false => launch::gemv,
            };
            list.launches.push(multiply(ty, &p, self.multiprocessors));
        }
    }
}
