//! Tensors of a vision encoder, renamed and changed by the lists of its family.

use super::super::Error;
use super::super::files::bad;
use super::super::layout::{Layout, stays_f32};
use super::super::order::{HeadOrder, Order};
use super::super::rows::{Change, Plain};
use super::{Edit, Found, Names, Tower, is_patches};

impl Tower {
    /// Adds every tensor.
    pub(super) fn tensors(&mut self) -> Result<(), Error> {
        let family = self.family;
        (family.tensors)(self)?;
        for block in 0..self.blocks {
            let (from, to) = (
                format!("{}{block}.", family.blocks),
                format!("v.blk.{block}."),
            );
            if let Some(qkv) = family.qkv {
                self.thirds(&format!("{from}{qkv}"), &to)?;
            }
            self.modules(&from, &to, family.block)?;
        }
        self.modules("", "", family.modules)?;
        match self.sources.first_key_value() {
            Some((_, found)) => {
                let expected = "a tensor of this kind of vision tower";
                Err(found.bad(expected, "a name that is none's"))
            }
            None => Ok(()),
        }
    }

    /// Adds the modules of a list, with what stands before their names in the folder and in GGUF.
    pub(super) fn modules(&mut self, from: &str, to: &str, list: Names) -> Result<(), Error> {
        for (module, name) in list {
            self.module(&format!("{from}{module}"), &format!("{to}{name}"))?;
        }
        Ok(())
    }

    /// Adds the weight and the bias of a module, if it has them, or the only tensor of this name.
    pub(super) fn module(&mut self, module: &str, name: &str) -> Result<(), Error> {
        if let Some(found) = self.sources.remove(module) {
            return self.whole(&found, name);
        }
        for part in ["weight", "bias"] {
            if let Some(found) = self.sources.remove(&format!("{module}.{part}")) {
                self.whole(&found, &format!("{name}.{part}"))?;
            }
        }
        Ok(())
    }

    /// Adds a tensor, without dimensions before its rows that mean nothing.
    fn whole(&mut self, found: &Found, name: &str) -> Result<(), Error> {
        let shape = &found.source.shape;
        let ones = shape.iter().take_while(|n| **n == 1).count();
        let shape = &shape[ones.min(shape.len().saturating_sub(1))..];
        self.part(found, name, shape, Order::Same)
    }

    /// Adds queries, keys and values, which are one module in the folder, if it is there.
    fn thirds(&mut self, module: &str, block: &str) -> Result<(), Error> {
        for part in ["weight", "bias"] {
            let Some(found) = self.sources.remove(&format!("{module}.{part}")) else {
                continue;
            };
            let rows = found.source.shape.first().copied().unwrap_or(0);
            if !rows.is_multiple_of(3) {
                return Err(found.refused("rows of queries, keys and values, as many of each"));
            }
            let mut shape = found.source.shape.clone();
            shape.iter_mut().take(1).for_each(|n| *n = rows / 3);
            for (i, name) in ["q", "k", "v"].into_iter().enumerate() {
                let order = Order::Cut {
                    of: rows,
                    take: rows / 3,
                    start: i * (rows / 3),
                    step: 1,
                };
                let to = format!("{block}attn_{name}.{part}");
                self.part(&found, &to, &shape, order)?;
            }
        }
        Ok(())
    }

    /// Adds a tensor made of some rows of another.
    pub(super) fn part(
        &mut self,
        found: &Found,
        name: &str,
        shape: &[usize],
        order: Order,
    ) -> Result<(), Error> {
        let source = &found.source;
        if shape.is_empty() || shape.contains(&0) {
            return Err(found.refused("dimensions, none of them 0"));
        }
        let edit = (self.family.edit)(name);
        let order = match edit {
            Edit::Heads => self.head_order(found, shape)?,
            _ => order,
        };
        let plain = Plain::of(&found.name, source)?;
        let to = match self.family.fixed(name) {
            Some(to) => Some(to),
            // the converter writes no BF16 kernels
            None if is_patches(name) => (plain == Plain::Bf16).then_some(Plain::F32),
            None => stays_f32(name, shape.len()).then_some(Plain::F32),
        };
        let mut layout = Layout::of_rows(plain, &source.shape, shape, order, to);
        if let Edit::Plus(more) = edit {
            (layout.change, layout.to) = (Change::Plus(more), Some(to.unwrap_or(Plain::F32)));
        }
        if self.places.insert(name.to_owned(), source.place).is_some() {
            let expected = format!("one tensor only that becomes {name}");
            return Err(bad(&found.name, source, expected, "another one"));
        }
        layout.declare(&mut self.view, name, &[source])
    }

    /// Returns the order of rows that belong to heads.
    fn head_order(&self, found: &Found, shape: &[usize]) -> Result<Order, Error> {
        let heads = self.count(self.family.heads)?;
        let head_dim = shape[0] / heads;
        match head_dim > 0 && head_dim.is_multiple_of(2) && shape[0].is_multiple_of(heads) {
            true => Ok(Order::Heads(HeadOrder { head_dim })),
            false => {
                let expected = format!("rows of {heads} heads, an even number of each");
                Err(found.refused(expected))
            }
        }
    }
}
