//! Fits a model into a GPU's memory: decides on the context, on the size of the KV cache and on
//! what stays on the CPU.
//!
//! Measures that cost no speed come first: sequences share a smaller KV cache, and the context
//! becomes shorter, unless it was asked for. Then the experts of layers go to the CPU, because a
//! token reads a few of them, so that each byte that is freed costs the least. Whole layers go
//! last, for a token reads all of what they have beside experts. The rest is context again.

use std::fs::Metadata;
use std::path::Path;
use std::sync::Arc;

use gguf_rs_lite::Gguf;
use octavo_kernels::PAGE_POSITIONS;
use octavo_kernels::cuda::{self, Device, ModelPart, Needs, RESERVED};
use octavo_model::Model;

use crate::backend::{CpuExperts, Loading, LoadingSink};
use crate::device::Placement;
use crate::engine::{DEFAULT_CONTEXT, Sizes};
use crate::error::Error;
use crate::options::EngineOptions;

/// Reduced contexts are multiples of this number of tokens above the smallest one.
const ROUND: usize = 256;

/// How to fit a model into a GPU's memory. Only what was not asked for changes: neither a context
/// that the options set, unless it is marked as a default, nor the placement if they say where
/// layers or experts are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Fit {
    /// Bytes of the GPU to leave free; at least [`RESERVED`] are.
    pub margin: u64,
    /// Tokens to which a context may be reduced, and no further.
    pub min_ctx: usize,
    /// Whether the context of the options is a default.
    pub ctx_is_default: bool,
    /// Whether the number of KV cache positions of the options is a default.
    pub kv_is_default: bool,
}

impl Default for Fit {
    fn default() -> Self {
        Fit {
            margin: RESERVED,
            min_ctx: DEFAULT_CONTEXT,
            ctx_is_default: false,
            kv_is_default: false,
        }
    }
}

impl Fit {
    /// Leaves room for another model that is loaded later: for its file, and half as much again for
    /// what it needs to run. A folder, or a file that is not there, counts nothing.
    pub fn leave_room_for(&mut self, path: &Path) {
        let file = path.metadata().ok().filter(Metadata::is_file);
        self.leave_room(file.map_or(0, |file| file.len()));
    }

    /// Leaves room for another model with weights of this many bytes, and half as much again for
    /// what it needs to run.
    pub fn leave_room(&mut self, bytes: u64) {
        self.margin = self.margin.saturating_add(bytes.saturating_add(bytes / 2));
    }
}

/// Context, cache and placement of a model on a GPU.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Context of a sequence in tokens.
    pub ctx: usize,
    /// Positions of the KV cache, for all sequences.
    pub kv_positions: usize,
    /// Number of the model's first layers whose experts stay on the CPU.
    pub cpu_experts: usize,
    /// Number of last layers on the GPU.
    pub gpu_layers: usize,
}

/// Limits of a plan.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounds {
    /// The plan that was asked for.
    pub asked: Plan,
    /// Smallest number of positions of the KV cache.
    pub min_kv_positions: usize,
    /// Layers whose experts may go to the CPU, in order.
    pub expert_layers: Vec<usize>,
    /// Smallest number of layers on the GPU.
    pub min_gpu_layers: usize,
}

impl Bounds {
    /// Returns a plan with a KV cache of this many positions.
    fn with_cache(&self, plan: &Plan, kv_positions: usize) -> Plan {
        Plan {
            ctx: self.asked.ctx.min(kv_positions),
            kv_positions,
            ..*plan
        }
    }

    /// Returns the plan that takes the least memory.
    fn least(&self) -> Plan {
        let experts = self.expert_layers.last().map(|layer| layer + 1);
        let plan = Plan {
            cpu_experts: experts.unwrap_or(self.asked.cpu_experts),
            gpu_layers: self.min_gpu_layers,
            ..self.asked
        };
        self.with_cache(&plan, self.min_kv_positions)
    }

    /// Returns the plan with as large a KV cache as fits; the smallest one does.
    fn grown(&self, plan: &Plan, fits: &dyn Fn(&Plan) -> bool) -> Plan {
        if fits(&self.with_cache(plan, self.asked.kv_positions)) {
            return self.with_cache(plan, self.asked.kv_positions);
        }
        let room = self.asked.kv_positions - self.min_kv_positions;
        let at = |n: usize| self.with_cache(plan, self.min_kv_positions + n * ROUND);
        at(last_that(room / ROUND, |n| fits(&at(n))))
    }
}

/// Returns the last of 0 to `n` for which `fits` holds, which it does up to there; 0 if none.
fn last_that(n: usize, fits: impl Fn(usize) -> bool) -> usize {
    let (mut fitting, mut above) = (0, n + 1);
    while above - fitting > 1 {
        let middle = fitting + (above - fitting) / 2;
        match fits(middle) {
            true => fitting = middle,
            false => above = middle,
        }
    }
    fitting
}

/// Plans for `free` bytes, where `needs` tells the bytes that a plan takes on the GPU: fewer with a
/// smaller cache, fewer layers, and more experts on the CPU. Returns the plan asked for if it fits.
///
/// # Errors
/// The plan that takes the least, if that is too much.
pub fn plan(bounds: &Bounds, free: u64, needs: &dyn Fn(&Plan) -> u64) -> Result<Plan, Plan> {
    let fits = |plan: &Plan| needs(plan) <= free;
    let asked = &bounds.asked;
    if fits(asked) {
        return Ok(*asked);
    }
    let small = bounds.with_cache(asked, bounds.min_kv_positions);
    if fits(&small) {
        return Ok(bounds.grown(&small, &fits));
    }
    let layers = &bounds.expert_layers;
    let without = |n: usize| Plan {
        cpu_experts: layers[layers.len() - 1 - n] + 1,
        ..small
    };
    if !layers.is_empty() && fits(&without(0)) {
        let n = last_that(layers.len() - 1, |n| fits(&without(n)));
        return Ok(bounds.grown(&without(n), &fits));
    }
    let least = bounds.least();
    if !fits(&least) {
        return Err(least);
    }
    let with = |n: usize| Plan {
        gpu_layers: bounds.min_gpu_layers + n,
        ..least
    };
    let more = asked.gpu_layers.saturating_sub(bounds.min_gpu_layers);
    Ok(bounds.grown(&with(last_that(more, |n| fits(&with(n)))), &fits))
}

/// A model, and how it is asked to run.
struct Asked<'a> {
    gguf: &'a Arc<Gguf>,
    model: &'a Model,
    options: &'a EngineOptions,
}

impl Asked<'_> {
    fn bounds(&self, fit: &Fit) -> Result<Bounds, Error> {
        let options = self.options;
        let sizes = Sizes::of(self.model, options)?;
        let (ctx, n_layer) = (sizes.n_ctx, self.model.hparams.n_layer());
        let kv_positions = options.kv_positions;
        let kv_positions = kv_positions.unwrap_or(sizes.limits.n_pages * PAGE_POSITIONS);
        let ctx_is_default = fit.ctx_is_default || options.ctx.is_none();
        let kv_is_default = fit.kv_is_default || options.kv_positions.is_none();
        let min_kv_positions = match (kv_is_default, ctx_is_default) {
            (true, true) => ctx.min(fit.min_ctx.max(1)),
            (true, false) => ctx,
            (false, _) => kv_positions,
        };
        let is_free = options.gpu_layers.is_none() && options.cpu_experts.is_empty();
        let graph = &self.model.graph;
        let has_experts = |layer: &usize| is_free && graph.expert_nodes(*layer).is_some();
        let gpu_layers = options.gpu_layers.map_or(n_layer, |n| n.min(n_layer));
        let is_divisible = is_free && self.model.is_divisible() && n_layer > 1;
        Ok(Bounds {
            asked: Plan {
                ctx,
                kv_positions,
                cpu_experts: 0,
                gpu_layers,
            },
            min_kv_positions: min_kv_positions.min(kv_positions),
            expert_layers: (0..n_layer).filter(has_experts).collect(),
            min_gpu_layers: if is_divisible { 1 } else { gpu_layers },
        })
    }

    /// Returns the options of a plan.
    fn with(&self, plan: &Plan) -> EngineOptions {
        let options = self.options;
        let experts = CpuExperts {
            first: plan.cpu_experts,
            tensors: Vec::new(),
        };
        let all = plan.gpu_layers >= self.model.hparams.n_layer();
        EngineOptions {
            ctx: Some(plan.ctx),
            kv_positions: Some(plan.kv_positions),
            gpu_layers: match all {
                true => options.gpu_layers,
                false => Some(plan.gpu_layers),
            },
            cpu_experts: match options.cpu_experts.is_empty() {
                true => experts,
                false => options.cpu_experts.clone(),
            },
            ..options.clone()
        }
    }

    fn placement(&self, plan: &Plan) -> Result<Placement, Error> {
        let options = self.with(plan);
        let sizes = Sizes::of(self.model, &options)?;
        Placement::new(&options, &sizes.limits)
    }

    fn needs(&self, plan: &Plan) -> Result<Needs, Error> {
        self.placement(plan)?.needs(self.gguf, self.model)
    }

    /// Plans for `free` bytes.
    ///
    /// # Errors
    /// As [`plan`], inside; outside, for what a GPU does not support.
    fn plan(&self, bounds: &Bounds, free: u64) -> Result<Result<Plan, Plan>, Error> {
        // whether a GPU supports a model does not depend on the plan
        if self.needs(&bounds.asked)?.total() <= free {
            return Ok(Ok(bounds.asked));
        }
        let needs = |plan: &Plan| self.needs(plan).map_or(u64::MAX, |needs| needs.total());
        Ok(plan(bounds, free, &needs))
    }

    fn too_large(&self, device: String, least: &Plan, free: u64) -> Result<Error, Error> {
        let placement = self.placement(least)?;
        let n_layer = self.model.hparams.n_layer();
        Ok(Error::Cuda(cuda::Error::TooLarge {
            device,
            part: (least.gpu_layers < n_layer).then_some(ModelPart::Last(least.gpu_layers)),
            needs: placement.needs(self.gguf, self.model)?,
            free,
            fitting: Box::new(placement.fitting(self.gguf, self.model, free)),
        }))
    }

    /// Says what a plan changes, and why.
    fn changes(&self, asked: &Plan, plan: &Plan, free: u64) -> Result<String, Error> {
        let n_layer = self.model.hparams.n_layer();
        let mut changes = Vec::new();
        if plan.ctx != asked.ctx {
            let of = asked.ctx;
            changes.push(format!("a context of {} instead of {of} tokens", plan.ctx));
        } else if plan.kv_positions != asked.kv_positions {
            let (positions, of) = (plan.kv_positions, asked.kv_positions);
            changes.push(format!(
                "a KV cache of {positions} instead of {of} positions"
            ));
        }
        if plan.gpu_layers != asked.gpu_layers {
            let n = n_layer - plan.gpu_layers;
            changes.push(format!("{n} of {n_layer} layers on the CPU"));
        }
        if plan.cpu_experts > 0 {
            let layers = match plan.cpu_experts {
                1 => "layer".to_owned(),
                n => format!("{n} layers"),
            };
            changes.push(format!("the experts of the first {layers} on the CPU"));
        }
        let needed = self.needs(asked)?.total().div_ceil(1 << 20);
        let (free, changes) = (free >> 20, changes.join(", and "));
        Ok(format!(
            "the model would take {needed} MiB, and {free} are free; so it gets {changes}"
        ))
    }
}

/// Plans how to run a model on a GPU with `free` bytes, beside those that are always kept back.
///
/// # Errors
/// [`cuda::Error::TooLarge`] if even the least does not fit, and for what a GPU does not support.
pub fn plan_for(
    gguf: &Arc<Gguf>,
    model: &Model,
    options: &EngineOptions,
    free: u64,
) -> Result<Plan, Error> {
    let asked = Asked {
        gguf,
        model,
        options,
    };
    let bounds = asked.bounds(&options.fit.unwrap_or_default())?;
    match asked.plan(&bounds, free)? {
        Ok(plan) => Ok(plan),
        Err(least) => Err(asked.too_large("GPU".to_owned(), &least, free)?),
    }
}

/// Returns the options with which a model fits into a device's free memory: the given ones if it
/// does, or others that are told to `sink`.
///
/// # Errors
/// [`cuda::Error::TooLarge`] if even the least does not fit, and for what a GPU does not support.
pub(crate) fn fitted(
    device: &dyn Device,
    (gguf, model): (&Arc<Gguf>, &Model),
    options: &EngineOptions,
    sink: &mut LoadingSink<'_>,
) -> Result<EngineOptions, Error> {
    let Some(fit) = &options.fit else {
        return Ok(options.clone());
    };
    let asked = Asked {
        gguf,
        model,
        options,
    };
    let free = device.free_bytes()?;
    let free = free.saturating_sub(fit.margin.saturating_sub(RESERVED));
    let bounds = asked.bounds(fit)?;
    match asked.plan(&bounds, free)? {
        Ok(plan) if plan == bounds.asked => Ok(options.clone()),
        Ok(plan) => {
            let changes = asked.changes(&bounds.asked, &plan, free)?;
            sink(Loading::Note(&format!("{}: {changes}", device.describe())));
            Ok(asked.with(&plan))
        }
        Err(least) => Err(asked.too_large(device.describe(), &least, free)?),
    }
}

#[cfg(test)]
mod tests;
