//! Plans for models that are a few numbers, so that every rule shows alone.

use super::*;

const MIB: u64 = 1 << 20;

/// A model of 10 layers, of which all but the first have experts; a position takes 1 KiB a layer.
struct Sizes {
    dense: u64,
    experts: u64,
}

/// Layers of a mixture: 20 MiB and experts of 100.
const MIXTURE: Sizes = Sizes {
    dense: 20 * MIB,
    experts: 100 * MIB,
};

const DENSE: Sizes = Sizes {
    dense: 100 * MIB,
    experts: 0,
};

const N_LAYER: usize = 10;
/// Bytes beside the layers.
const REST: u64 = 50 * MIB;

impl Sizes {
    fn needs(&self, plan: &Plan) -> u64 {
        let layers = N_LAYER - plan.gpu_layers..N_LAYER;
        let with_experts = layers.clone().filter(|l| *l > 0 && *l >= plan.cpu_experts);
        let kv = (plan.kv_positions as u64) << 10;
        let tables = plan.ctx as u64;
        let each = layers.len() as u64 * (self.dense + kv);
        REST + tables + each + with_experts.count() as u64 * self.experts
    }

    /// Bounds of one sequence of 40,960 tokens, if nothing was asked for.
    fn bounds(&self) -> Bounds {
        Bounds {
            asked: Plan {
                ctx: 40_960,
                kv_positions: 40_960,
                cpu_experts: 0,
                gpu_layers: N_LAYER,
            },
            min_kv_positions: 4096,
            expert_layers: (1..N_LAYER).filter(|_| self.experts > 0).collect(),
            min_gpu_layers: 1,
        }
    }

    /// Plans, and checks that the plan fits, and that nothing that costs less would.
    fn plan(&self, bounds: &Bounds, free: u64) -> Result<Plan, Plan> {
        let planned = plan(bounds, free, &|plan| self.needs(plan));
        let Ok(found) = planned else {
            return planned;
        };
        assert!(self.needs(&found) <= free, "{found:?} in {free}");
        let over = |plan: Plan| assert!(self.needs(&plan) > free, "{plan:?} fits too");
        if found.kv_positions < bounds.asked.kv_positions {
            let more = found.kv_positions + ROUND;
            over(bounds.with_cache(&found, more.min(bounds.asked.kv_positions)));
        }
        let small = |plan| bounds.with_cache(&plan, bounds.min_kv_positions);
        if found.gpu_layers < N_LAYER {
            let gpu_layers = found.gpu_layers + 1;
            over(small(Plan {
                gpu_layers,
                ..found
            }));
            let all = bounds.expert_layers.last().map_or(0, |last| last + 1);
            assert_eq!(found.cpu_experts, all, "experts go first");
        } else if let Some(cpu_experts) = found.cpu_experts.checked_sub(1) {
            over(small(Plan {
                cpu_experts,
                ..found
            }));
        }
        planned
    }
}

#[test]
fn what_fits_stays_as_it_was_asked_for() {
    for sizes in [MIXTURE, DENSE] {
        let bounds = sizes.bounds();
        let needs = sizes.needs(&bounds.asked);
        assert_eq!(sizes.plan(&bounds, needs), Ok(bounds.asked));
        let less = sizes.plan(&bounds, needs - 1).expect("a smaller context");
        assert_eq!(less.ctx, 40_960 - ROUND);
        assert_eq!((less.cpu_experts, less.gpu_layers), (0, N_LAYER));
    }
}

/// With less and less memory, the context goes first, then experts, then layers, one after the
/// other, until nothing fits.
#[test]
fn what_costs_the_least_speed_goes_first() {
    for sizes in [MIXTURE, DENSE] {
        let bounds = sizes.bounds();
        let (mut free, mut last) = (sizes.needs(&bounds.asked), bounds.asked);
        let mut seen = [0, 0];
        while let Ok(plan) = sizes.plan(&bounds, free) {
            assert!(plan.cpu_experts >= last.cpu_experts && plan.gpu_layers <= last.gpu_layers);
            let stays = plan.cpu_experts == last.cpu_experts && plan.gpu_layers == last.gpu_layers;
            assert!(plan.ctx <= last.ctx || !stays, "{plan:?} after {last:?}");
            assert_eq!(plan.ctx, plan.kv_positions, "a single sequence");
            assert!(plan.ctx >= 4096);
            seen = [
                seen[0].max(plan.cpu_experts),
                seen[1].max(N_LAYER - plan.gpu_layers),
            ];
            (last, free) = (plan, free - MIB);
        }
        let experts = if sizes.experts > 0 { N_LAYER } else { 0 };
        assert_eq!(seen, [experts, N_LAYER - 1], "all steps are taken");
        assert_eq!(
            plan(&bounds, free, &|p| sizes.needs(p)),
            Err(bounds.least())
        );
    }
}

/// Memory that is left when a layer's experts go is context again.
#[test]
fn what_is_left_is_context() {
    let bounds = MIXTURE.bounds();
    let small = bounds.with_cache(&bounds.asked, 4096);
    let plan = MIXTURE.plan(&bounds, MIXTURE.needs(&small) - 1);
    let plan = plan.expect("one layer's experts less");
    // the first layer has none
    assert_eq!((plan.cpu_experts, plan.gpu_layers), (2, N_LAYER));
    assert_eq!(plan.ctx, 4096 + (100 * 1024 / N_LAYER - 1) / ROUND * ROUND);
}

#[test]
fn what_was_asked_for_stays() {
    let of = |sizes: &Sizes, change: &dyn Fn(&mut Bounds)| {
        let mut bounds = sizes.bounds();
        change(&mut bounds);
        let free = sizes.needs(&bounds.asked) - 1;
        sizes.plan(&bounds, free)
    };
    // the context
    let fixed = |bounds: &mut Bounds| bounds.min_kv_positions = bounds.asked.kv_positions;
    let plan = of(&MIXTURE, &fixed).expect("fewer experts");
    assert_eq!((plan.ctx, plan.cpu_experts), (40_960, 2));
    let plan = of(&DENSE, &fixed).expect("fewer layers");
    assert_eq!((plan.ctx, plan.gpu_layers), (40_960, N_LAYER - 1));
    // where layers are
    let placed = |bounds: &mut Bounds| {
        bounds.expert_layers.clear();
        bounds.min_gpu_layers = N_LAYER;
    };
    let plan = of(&MIXTURE, &placed).expect("a smaller context");
    assert_eq!((plan.ctx, plan.cpu_experts), (40_960 - ROUND, 0));
    let both = |bounds: &mut Bounds| {
        fixed(bounds);
        placed(bounds);
    };
    assert_eq!(of(&MIXTURE, &both), Err(MIXTURE.bounds().asked));
}

/// Sequences share a smaller cache before the context of any becomes shorter.
#[test]
fn the_cache_of_several_sequences_shrinks_first() {
    let mut bounds = DENSE.bounds();
    bounds.asked.kv_positions = 4 * 40_960;
    let needs = |positions| DENSE.needs(&bounds.with_cache(&bounds.asked, positions));
    for positions in [100_096, 40_960] {
        let plan = DENSE.plan(&bounds, needs(positions)).expect("it fits");
        assert_eq!((plan.kv_positions, plan.ctx), (positions, 40_960));
    }
    let plan = DENSE.plan(&bounds, needs(8192)).expect("it fits");
    assert_eq!((plan.kv_positions, plan.ctx), (8192, 8192));
}
