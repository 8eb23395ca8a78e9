//! Launches of fused operations: those groups of `fuse.rs` that have kernels.

use super::launches::{LaunchContext, List, Ready, kernels_of, small};
use super::products::{Gated, Product};
use crate::cuda::launch::Form;
use crate::cuda::params::{HeadGroup, Heads};
use crate::cuda::{Ptr, launch};
use crate::fuse::{self, Chain, Group, Kind};
use crate::program::Slot;

impl LaunchContext<'_> {
    /// Adds the launches of a group that begins with operation `at`; adds none and returns `false`
    /// if there is no kernel for it here.
    pub(super) fn fused(&self, at: usize, group: &Group, list: &mut List) -> bool {
        match group.kind {
            Kind::AddInto { x, w, to, out } => self.add_into(x, w, to, out, list),
            // selected rows keep their order: if all are selected, nothing changes
            Kind::AddSelected { x, w, to, out } if self.shape.rows == self.shape.outputs => {
                self.add_into(x, w, to, out, list);
            }
            Kind::Gated {
                x,
                gate,
                up,
                act,
                out,
                ref readers,
            } if self.shape.generated && self.stored(gate) == self.stored(up) => {
                let form = readers.as_ref().and_then(|readers| self.one_form(readers));
                let gated = Gated {
                    gate,
                    up,
                    act,
                    out,
                    form,
                };
                self.gated(x, &gated, list);
            }
            Kind::NormInto {
                x,
                eps,
                out,
                ref readers,
            } => {
                let Some(form) = self.one_form(readers) else {
                    return false;
                };
                let weight = self.at(self.plan.vectors[&at]);
                self.arrange(x, form, Some((weight, eps)), list);
                list.ready = Some(Ready {
                    slot: out,
                    form,
                    at: self.at(self.plan.activations),
                    new: true,
                });
            }
            Kind::AttentionInto {
                ref attend,
                ref readers,
            } if self.shape.generated
                && self.program.cache(attend.cache).head_dim.is_multiple_of(32)
                && self.one_form(readers) == Some(Form::Integers) =>
            {
                let integers = self.at(self.plan.activations);
                list.launches
                    .extend(self.attention(at, attend, Some(integers)));
                list.ready = Some(Ready {
                    slot: attend.out,
                    form: Form::Integers,
                    at: integers,
                    new: true,
                });
            }
            Kind::Heads(ref heads) => self.heads(heads, list),
            Kind::AddSelected { .. } | Kind::Gated { .. } | Kind::AttentionInto { .. } => {
                return false;
            }
        }
        true
    }

    /// Returns the input form of all products with these matrices, if it is the same.
    fn one_form(&self, readers: &[usize]) -> Option<Form> {
        let mut forms = readers.iter().map(|w| self.form(self.stored(*w)));
        let first = forms.next()?;
        forms.all(|form| form == first).then_some(first)
    }

    fn add_into(&self, x: Slot, w: usize, to: Slot, out: Slot, list: &mut List) {
        let product = Product {
            w,
            add: self.slot(to),
            out: self.slot(out),
        };
        self.products(x, &[product], list);
    }

    fn heads(&self, heads: &fuse::Heads, list: &mut List) {
        let fuse::Heads {
            x,
            q,
            k,
            v,
            cache,
            rope,
        } = heads;
        let kv = self.program.cache(*cache);
        // the products have a buffer of their own: slots of one chain may be reused by another
        let rows = self.rows(*x);
        let mut room = self.at(self.plan.heads);
        let mut group = |chain: &Chain| {
            let width = self.width(chain.out);
            let x = room;
            room = room.offset((4 * rows * width) as u64);
            let vector =
                |op: Option<usize>| op.map_or(Ptr::NULL, |op| self.at(self.plan.vectors[&op]));
            HeadGroup {
                x,
                bias: vector(chain.bias),
                norm: vector(chain.norm.map(|norm| norm.at)),
                n: small(width / kv.head_dim),
                eps: chain.norm.map_or(0.0, |norm| norm.eps),
            }
        };
        let groups = [group(q), group(k), group(v)];
        let products =
            [(q, 0), (k, 1), (v, 2)].map(|(chain, i)| Product::alone(chain.w, groups[i].x));
        self.products(*x, &products, list);
        if rows == 0 {
            return;
        }
        let (pages_k, pages_v) = self.pages(*cache);
        let p = Heads {
            q: groups[0],
            k: groups[1],
            v: groups[2],
            out: self.slot(q.out),
            pages_k,
            pages_v,
            rotation: self.rotation(*rope),
            paging: self.record.paging(cache.group),
            head_dim: small(kv.head_dim),
            unused: 0,
        };
        list.launches.push(launch::heads(kernels_of(kv), &p));
    }
}
