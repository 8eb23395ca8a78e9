//! Tests features without goldens by models that differ in form but must give equal numbers.

use crate::model::Model;
use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures as fixtures;
use octavo_reference::metrics::nmse;
use octavo_reference::{Oracle, Tap};

const TOKENS: &[u32] = &[5, 17, 200, 3, 3, 90, 41, 7];

/// Returns a changed model's logits, for contexts of `n_ctx` positions.
fn logits_in(model: Model, n_ctx: Option<usize>) -> Vec<f64> {
    tapped(model, n_ctx, &mut |_, _, _, _| {}).unwrap()
}

fn logits(model: Model) -> Vec<f64> {
    logits_in(model, None)
}

fn tapped(
    model: Model,
    n_ctx: Option<usize>,
    tap: &mut Tap<'_>,
) -> Result<Vec<f64>, octavo_reference::Error> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("m.gguf");
    model.write(&path);
    let gguf = Gguf::open(&path, &OpenOptions::default()).unwrap();
    let oracle = Oracle::open_for(&gguf, n_ctx).unwrap();
    oracle.forward_tapped(TOKENS, tap)
}

/// Reads the F32 model of a name and changes it; `None` without the shared folder.
fn changed(name: &str, change: impl FnOnce(&mut Model)) -> Option<Model> {
    let path = fixtures::shared("arch")?.join(format!("models/{name}-F32.gguf"));
    let mut model = Model::read(path.to_str().unwrap());
    change(&mut model);
    Some(model)
}

/// Asserts that `a` and `b` are equal up to rounding, and that `other` differs.
#[track_caller]
fn assert_equal(a: &[f64], b: &[f64], other: &[f64]) {
    let (error, effect) = (nmse_of(a, b), nmse_of(a, other));
    assert!(error < 1e-12, "NMSE {error:e}");
    assert!(effect > 1e-6, "NMSE {effect:e} of what should differ");
}

fn nmse_of(a: &[f64], b: &[f64]) -> f64 {
    let b: Vec<f32> = b.iter().map(|&x| x as f32).collect();
    nmse(a, &b).unwrap()
}

#[test]
fn no_rotation_is_one_of_endless_wave_length() {
    let base = |change: fn(&mut Model)| changed("granite", change).map(logits);
    let Some(plain) = base(|_| {}) else { return };
    let not_finetuned = base(|m| m.set("granite.rope.scaling.finetuned", false)).unwrap();
    let slow = base(|m| {
        let divisors = (vec![8], vec![1e30; 8]);
        m.tensors.insert("rope_freqs.weight".into(), divisors);
    });
    assert_equal(&not_finetuned, &slow.unwrap(), &plain);
}

#[test]
fn short_factors_are_for_contexts_up_to_the_original_length() {
    let base = |n_ctx, change: fn(&mut Model)| Some(logits_in(changed("phi3", change)?, n_ctx));
    let Some(long) = base(Some(1025), |_| {}) else {
        return;
    };
    let short = base(Some(1024), |_| {}).unwrap();
    let only_short = base(Some(1025), |m| {
        let short = m.tensors["rope_factors_short.weight"].clone();
        m.tensors.insert("rope_factors_long.weight".into(), short);
    });
    assert_equal(&short, &only_short.unwrap(), &long);
    let trained = base(None, |_| {}).unwrap();
    assert_eq!(
        trained, long,
        "a file's own context length is beyond the original one"
    );
}

#[test]
fn factors_by_length_divide_as_fixed_ones_do() {
    let base = |change: fn(&mut Model)| changed("minicpm", change).map(logits);
    let Some(plain) = base(|_| {}) else { return };
    fn factors() -> (Vec<u64>, Vec<f32>) {
        (vec![8], (1..9).map(|i| 1.0 + i as f32).collect())
    }
    let fixed = base(|m| {
        m.tensors.insert("rope_freqs.weight".into(), factors());
    });
    let by_length = base(|m| {
        m.set("minicpm.rope.scaling.type", "longrope");
        m.set("minicpm.rope.scaling.original_context_length", 256u32);
        m.tensors
            .insert("rope_factors_long.weight".into(), factors());
        m.add_bias("rope_factors_short.weight", 8);
    });
    assert_equal(&fixed.unwrap(), &by_length.unwrap(), &plain);
}

#[test]
fn a_second_falcon_norm_is_that_of_attention() {
    let base = |change: fn(&mut Model)| changed("falcon", change).map(logits);
    let Some(plain) = base(|_| {}) else { return };
    let copy_norm = |m: &mut Model, factor: f32| {
        for il in 0..2 {
            for part in ["weight", "bias"] {
                let (dims, values) = m.tensors[&format!("blk.{il}.attn_norm.{part}")].clone();
                let values = values.iter().map(|x| x * factor).collect();
                let name = format!("blk.{il}.attn_norm_2.{part}");
                m.tensors.insert(name, (dims, values));
            }
        }
    };
    let same = changed("falcon", |m| copy_norm(m, 1.0))
        .map(logits)
        .unwrap();
    let other = changed("falcon", |m| copy_norm(m, 2.0))
        .map(logits)
        .unwrap();
    assert_equal(&plain, &same, &other);
}

#[test]
fn one_tensor_may_hold_gate_and_up_of_all_experts() {
    let Some(plain) = changed("mixtral", |_| {}).map(logits) else {
        return;
    };
    let merge = |m: &mut Model, parts: [&str; 2]| {
        for il in 0..2 {
            let [gate, up] = ["gate", "up"].map(|part| {
                let name = format!("blk.{il}.ffn_{part}_exps.weight");
                m.tensors.remove(&name).unwrap()
            });
            let (first, second) = match parts {
                ["gate", "up"] => (&gate.1, &up.1),
                _ => (&up.1, &gate.1),
            };
            let each = 64 * 24;
            let experts = first.chunks(each).zip(second.chunks(each));
            let values = experts.flat_map(|(a, b)| [a, b].concat()).collect();
            let name = format!("blk.{il}.ffn_gate_up_exps.weight");
            m.tensors.insert(name, (vec![64, 48, 6], values));
        }
    };
    let merged = |parts| changed("mixtral", |m| merge(m, parts)).map(logits).unwrap();
    assert_equal(&plain, &merged(["gate", "up"]), &merged(["up", "gate"]));
}

#[test]
fn groups_of_experts_bound_the_choice() {
    let groups = |used: u32| {
        let model = changed("mixtral", |m| {
            m.set("llama.expert_group_count", 3u32);
            m.set("llama.expert_group_used_count", used);
        });
        let mut chosen = Vec::new();
        let logits = tapped(model?, None, &mut |name, _, _, x| {
            if name == "ffn_moe_topk" {
                chosen.extend_from_slice(x);
            }
        });
        Some((logits.unwrap(), chosen))
    };
    let Some(plain) = changed("mixtral", |_| {}).map(logits) else {
        return;
    };
    let (one, chosen) = groups(1).unwrap();
    assert_equal(&plain, &groups(3).unwrap().0, &one);
    let same_group = |pair: &[f64]| pair[0] as usize / 2 == pair[1] as usize / 2;
    assert!(chosen.chunks(2).all(same_group), "{chosen:?}");
}

#[test]
fn a_tap_may_choose_the_experts() {
    let force = |experts: Option<[f64; 2]>| {
        let model = changed("gpt-oss", |_| {})?;
        Some(tapped(model, None, &mut |name, _, _, x| {
            if let ("ffn_moe_topk", Some(experts)) = (name, experts) {
                x.chunks_mut(2)
                    .for_each(|row| row.copy_from_slice(&experts));
            }
        }))
    };
    let Some(free) = force(None) else { return };
    let forced = force(Some([1.0, 4.0])).unwrap().unwrap();
    let swapped = force(Some([4.0, 1.0])).unwrap().unwrap();
    assert_equal(&forced, &swapped, &free.unwrap());
    for (wrong, got) in [(6.0, "6"), (-1.0, "-1"), (0.5, "0.5"), (f64::NAN, "NaN")] {
        let message = force(Some([0.0, wrong])).unwrap().unwrap_err().to_string();
        assert_eq!(
            message,
            format!("ffn_moe_topk-0: expected experts below 6, got {got}")
        );
    }
}
