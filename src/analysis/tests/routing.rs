//! Expert choices under `diff`: a near tie is distinguished from a fault, and with the same routing
//! its consequences do not hide a fault.

use std::sync::Arc;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_analysis::diff::{
    BackendExecution, Cause, Comparison, Error, Execution, Fault, Input, Options, OracleExecution,
    Rounding, Routing, TapAction, TapOut, TapOutSink, Target, Verdict, compare, compare_with,
};
use octavo_engine::backend::cpu;
use octavo_fixtures::shared;
use octavo_kernels::{Isa, KvType, TopGroups};
use octavo_model::{Model, Op, OwnedTap};

const TOKENS: [u32; 9] = [5, 200, 17, 90, 33, 2, 61, 77, 8];

/// Position of the near tie.
const POSITION: usize = 4;
const LAYER: usize = 1;

/// Relative gap between the scores of two nearly tied experts: less than that between the values of
/// two correct computations.
const TIE: f64 = 2e-7;

/// MoE models with all kinds of routers: by probabilities, by scores with biases, in groups, beside
/// recurrent layers.
const MIXTURES: [&str; 5] = [
    "qwen3moe-F32",
    "gpt-oss-F32",
    "deepseek2-F32",
    "qwen35moe-F32",
    "mixtral-F32",
];

fn open(name: &str) -> Option<Arc<Gguf>> {
    let path = shared(&format!("arch/models/{name}.gguf"))?;
    let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a model");
    Some(Arc::new(gguf))
}

fn engine(gguf: &Arc<Gguf>, isa: Isa) -> BackendExecution {
    let options = cpu::Options {
        isa,
        threads: 2,
        pool: None,
        kv_type: KvType::F32.both(),
        n_pages: 1,
        n_states: 1,
        prompt_bits: octavo_kernels::PromptBits::default(),
        repack: true,
        lock: false,
        weights: None,
        adapters: Vec::new(),
    };
    let model = Model::load(gguf).expect("a model");
    BackendExecution::cpu(gguf.clone(), model, &options, &mut |_, _| {}).expect("it is prepared")
}

fn oracle(gguf: &Arc<Gguf>, fault: Box<Fault>) -> OracleExecution {
    OracleExecution::with_fault(gguf.clone(), fault).expect("a model")
}

/// Another execution with some tensors changed, before they are reported and the pass continues.
struct Changed {
    of: Box<dyn Execution>,
    change: Box<Fault>,
}

impl Execution for Changed {
    fn describe(&self) -> String {
        self.of.describe()
    }

    fn gguf(&self) -> &Arc<Gguf> {
        self.of.gguf()
    }

    fn target(&self) -> &Target {
        self.of.target()
    }

    fn rounding(&self) -> Rounding {
        self.of.rounding()
    }

    fn run(&mut self, input: Input<'_>, sink: &mut TapOutSink<'_>) -> Result<(), Error> {
        let change = &mut self.change;
        self.of.run(input, &mut |mut shown: TapOut| {
            let mut values: Vec<f64> = shown.data.iter().map(|x| f64::from(*x)).collect();
            change(&shown.tap, shown.width, &mut values);
            shown.data = values.iter().map(|x| *x as f32).collect();
            let changed = shown.data.clone();
            match sink(shown) {
                TapAction::Continue => TapAction::Replace(changed),
                other => other,
            }
        })
    }
}

fn run(a: &mut dyn Execution, b: &mut dyn Execution, same_routing: bool) -> Comparison {
    let options = Options { same_routing };
    compare_with(a, b, (&TOKENS[..]).into(), options, &mut |_, _| {}).expect("both run")
}

fn routing(c: &Comparison) -> &Routing {
    c.routing.as_ref().expect("a mixture")
}

/// Returns the names of the tensors outside their bounds.
fn outside(c: &Comparison) -> Vec<&str> {
    let outside = c.taps.iter().filter(|tap| tap.outside);
    outside.map(|tap| tap.name.as_str()).collect()
}

/// Router of a layer.
#[derive(Clone)]
struct Router {
    /// Name of the tensor with the scores.
    by: String,
    used: usize,
    groups: Option<TopGroups>,
}

impl Router {
    fn of(gguf: &Arc<Gguf>) -> Router {
        let graph = Model::load(gguf).expect("a model").graph;
        let named = |name: &str| {
            let mut taps = graph.taps();
            let found = taps.find(|(tap, _)| tap.name == name && tap.layer == Some(LAYER));
            found.map(|(_, node)| *node)
        };
        let scores = ["ffn_moe_probs_biased", "ffn_moe_probs"];
        let by = scores.into_iter().find(|name| named(name).is_some());
        let top = named("ffn_moe_topk").expect("a choice");
        let Op::TopK { n, groups, .. } = top.op else {
            panic!("{:?}", top.op)
        };
        Router {
            by: by.expect("scores").to_owned(),
            used: n,
            groups,
        }
    }

    /// Returns the experts that may be chosen, best first.
    fn order(&self, row: &[f64]) -> Vec<usize> {
        let descending = |mut order: Vec<usize>, of: &[f64]| {
            order.sort_by(|i, j| of[*j].total_cmp(&of[*i]));
            order
        };
        let mut experts: Vec<usize> = (0..row.len()).collect();
        if let Some(TopGroups { count, used }) = self.groups {
            let size = row.len() / count;
            let best_two = |group: &[f64]| {
                let order = descending((0..size).collect(), group);
                group[order[0]] + group[order[1]]
            };
            let scores: Vec<f64> = row.chunks(size).map(best_two).collect();
            let kept = &descending((0..count).collect(), &scores)[..used];
            experts.retain(|expert| kept.contains(&(expert / size)));
        }
        descending(experts, row)
    }

    /// Ties the last chosen expert with the next one, so that `ahead` decides which of the two is
    /// chosen.
    fn tie(&self, ahead: f64) -> impl FnMut(&OwnedTap, usize, &mut [f64]) + Send + use<> {
        let router = self.clone();
        move |tap, width, x| {
            if tap.name != router.by || tap.layer != Some(LAYER) {
                return;
            }
            let row = &mut x[POSITION * width..(POSITION + 1) * width];
            let (order, used) = (router.order(row), router.used);
            // the experts above are not close to a tie
            for (place, at) in order[..used].iter().enumerate() {
                row[*at] += (used - place) as f64;
            }
            let (last, next) = (order[used - 1], order[used]);
            row[next] = row[last] * (1.0 + ahead);
        }
    }
}

#[test]
fn a_near_tie_is_no_divergence_and_with_the_same_routing_nothing_follows_from_it() {
    for name in MIXTURES {
        let Some(gguf) = open(name) else { return };
        let router = Router::of(&gguf);
        let tied = |ahead: f64| router.tie(ahead);
        let on_engine = |ahead: f64| Changed {
            of: Box::new(engine(&gguf, Isa::Scalar)),
            change: Box::new(tied(ahead)),
        };
        let mut first = oracle(&gguf, Box::new(tied(-TIE)));
        let mut of_oracle = oracle(&gguf, Box::new(tied(TIE)));
        let mut of_engine = on_engine(TIE);
        let others: [&mut dyn Execution; 2] = [&mut of_oracle, &mut of_engine];
        for other in others {
            let what = format!("{name}: {}", other.describe());
            let free = run(&mut first, other, false);
            assert_eq!(
                free.verdict,
                Verdict::Within,
                "{what}: {:?}",
                free.first_divergence
            );
            let choice = routing(&free).first.clone().expect("another choice");
            assert_eq!(
                (choice.name.as_str(), choice.position, choice.cause),
                (&*format!("ffn_moe_topk-{LAYER}"), POSITION, Cause::NearTie),
                "{what}"
            );
            // every other difference may follow from it
            let others = routing(&free).differing - 1;
            assert_eq!(routing(&free).following, others, "{what}");
            let of = |c: &Comparison, name: &str| {
                let tap = c.taps.iter().find(|tap| tap.name == name);
                tap.unwrap_or_else(|| panic!("{what}: {name}")).max_abs
            };
            let behind = format!("ffn_moe_out-{LAYER}");

            let forced = run(&mut first, other, true);
            assert_eq!(
                forced.verdict,
                Verdict::Within,
                "{what}: {:?}",
                forced.first_divergence
            );
            assert!(routing(&forced).same_routing && !routing(&free).same_routing);
            assert_eq!(routing(&forced).first, Some(choice), "{what}");
            assert_eq!(routing(&forced).differing, 1, "{what}");
            let (apart, together) = (of(&free, &behind), of(&forced, &behind));
            assert!(
                together < 1e-3 * apart,
                "{what}: {together:e}, free {apart:e}"
            );
        }
    }
}

/// Without any tie: the choices of the first, whatever they are, replace those of the second.
#[test]
fn another_choice_without_a_tie_is_the_divergence_and_all_behind_it_agrees() {
    for name in MIXTURES {
        let Some(gguf) = open(name) else { return };
        let turned = || -> Box<Fault> {
            Box::new(|tap, width, ids| {
                if tap.name == "ffn_moe_topk" && tap.layer == Some(LAYER) {
                    ids.chunks_exact_mut(width).for_each(|ids| ids.reverse());
                }
            })
        };
        for isa in Isa::available() {
            let (mut a, mut b) = (oracle(&gguf, turned()), engine(&gguf, isa));
            let c = run(&mut a, &mut b, true);
            let what = format!("{name} {isa}");
            assert_eq!(c.verdict, Verdict::Diverged, "{what}");
            assert_eq!(outside(&c), [format!("ffn_moe_topk-{LAYER}")], "{what}");
            let routing = routing(&c);
            assert_eq!(
                (routing.differing, routing.layers.len()),
                (TOKENS.len(), 1),
                "{what}"
            );
            assert_eq!(routing.reordered, TOKENS.len(), "{what}");
            assert!(routing.unexplained > 0, "{what}");
        }
        // also seen if each continues with its own choice
        let (mut a, mut b) = (oracle(&gguf, turned()), engine(&gguf, Isa::Scalar));
        let c = run(&mut a, &mut b, false);
        let first = c.first_divergence.expect("a tensor").name;
        assert_eq!(first, format!("ffn_moe_topk-{LAYER}"), "{name}");
        // and with the executions swapped
        let (mut a, mut b) = (engine(&gguf, Isa::Scalar), oracle(&gguf, turned()));
        let c = run(&mut a, &mut b, true);
        assert_eq!(outside(&c), [format!("ffn_moe_topk-{LAYER}")], "{name}");
        assert_eq!(
            c.first_divergence.expect("a tensor").name,
            format!("ffn_moe_topk-{LAYER}")
        );
    }
}

/// A fault after a near tie: without the same routing, the tie could explain all of it.
#[test]
fn a_fault_behind_the_router_is_found_with_the_same_routing_only() {
    for name in ["qwen3moe-F32", "deepseek2-F32"] {
        let Some(gguf) = open(name) else { return };
        let router = Router::of(&gguf);
        let mut first = oracle(&gguf, Box::new(router.tie(-TIE)));
        let mut tied = router.tie(TIE);
        let fault: Box<Fault> = Box::new(move |tap, width, x| {
            tied(tap, width, x);
            if tap.name == "ffn_moe_up" && tap.layer == Some(LAYER) {
                x[POSITION * width] *= 1.01;
            }
        });
        let mut other = oracle(&gguf, fault);
        let free = run(&mut first, &mut other, false);
        assert_eq!(
            free.verdict,
            Verdict::Within,
            "{name}: {:?}",
            free.first_divergence
        );
        let forced = run(&mut first, &mut other, true);
        let at = forced.first_divergence.expect("it is found");
        assert_eq!(
            (at.name, at.position, at.channel),
            (format!("ffn_moe_up-{LAYER}"), POSITION, 0),
            "{name}"
        );
    }
}

/// The scores that select experts are not the weights of their outputs.
#[test]
fn a_bias_of_the_router_in_the_weights_is_found_with_the_same_routing() {
    for name in ["glm4moe-F32", "deepseek2-F32"] {
        let Some(gguf) = open(name) else { return };
        let (mut biased, mut chosen) = (Vec::new(), Vec::new());
        let fault: Box<Fault> = Box::new(move |tap, width, x| match tap.name.as_str() {
            "ffn_moe_probs_biased" => biased = x.to_vec(),
            "ffn_moe_topk" => chosen = x.to_vec(),
            "ffn_moe_weights" => {
                let experts = biased.len() / (x.len() / width);
                for (i, weight) in x.iter_mut().enumerate() {
                    *weight = biased[i / width * experts + chosen[i] as usize];
                }
            }
            _ => {}
        });
        let (mut a, mut b) = (engine(&gguf, Isa::best()), oracle(&gguf, fault));
        let c = run(&mut a, &mut b, true);
        let first = c.first_divergence.as_ref().map(|tap| tap.name.as_str());
        assert_eq!(first, Some("ffn_moe_weights-1"), "{name}");
        assert_eq!(routing(&c).unexplained, 0, "{name}");
    }
}

#[test]
fn a_model_without_experts_has_no_routing() {
    let Some(gguf) = open("gemma-F32") else {
        return;
    };
    let (mut a, mut b) = (engine(&gguf, Isa::Scalar), engine(&gguf, Isa::best()));
    let c = run(&mut a, &mut b, true);
    assert!(c.routing.is_none());
    assert_eq!(c.verdict, Verdict::Within);
}

/// The second waits for choices that never come, if the first fails.
#[test]
fn an_execution_that_fails_holds_nobody_up() {
    let Some(gguf) = open("qwen3moe-F32") else {
        return;
    };
    let nowhere = || -> Box<Fault> {
        Box::new(|tap, _, ids| {
            if tap.name == "ffn_moe_topk" && tap.layer == Some(LAYER) {
                ids.fill(1e6);
            }
        })
    };
    let options = Options { same_routing: true };
    let (mut a, mut b) = (
        oracle(&gguf, nowhere()),
        oracle(&gguf, Box::new(|_, _, _| {})),
    );
    let failed = compare_with(
        &mut a,
        &mut b,
        (&TOKENS[..]).into(),
        options,
        &mut |_, _| {},
    );
    assert!(failed.is_err(), "experts that do not exist");
    let failed = compare(&mut b, &mut a, (&TOKENS[..]).into(), &mut |_, _| {});
    assert!(failed.is_err(), "experts that do not exist");
    // the second's choices are replaced by the first's
    let c = compare_with(
        &mut b,
        &mut a,
        (&TOKENS[..]).into(),
        options,
        &mut |_, _| {},
    )
    .expect("it runs");
    assert_eq!(outside(&c), [format!("ffn_moe_topk-{LAYER}")]);
}
