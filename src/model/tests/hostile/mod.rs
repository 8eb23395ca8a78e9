//! Files that are wrong in one way each give a clean one-line error that names the key or tensor,
//! never a panic.

mod architectures;
mod latent;
mod numbers;
mod recurrent;
mod sizes;
mod tensors;

use crate::support::{File, Load, Val};
use gguf_rs_lite::TensorType;
use octavo_model::Model;

/// Name, change made to a valid file, and parts the error message must contain.
type Row = (&'static str, fn(&mut File), &'static [&'static str]);

fn check(arch: &'static str, rows: &[Row]) {
    for row in rows {
        broken(File::new(arch, 2), row);
    }
}

/// Alters a file and checks the error message.
fn broken(mut f: File, (name, break_it, expected): &Row) {
    break_it(&mut f);
    let e = f.error();
    for part in *expected {
        assert!(e.contains(part), "{name}: {e:?} does not say {part:?}");
    }
    assert!(
        e.starts_with("mem.gguf: ") && !e.contains('\n'),
        "{name}: {e:?}"
    );
}

#[test]
fn what_is_not_implemented_is_refused_by_name() {
    check(
        "llama",
        &[
            (
                "experts that nobody uses",
                |f| f.set("expert_count", Val::U32(8)),
                &["missing key llama.expert_used_count"],
            ),
            (
                "clamp",
                |f| f.set("attention.clamp_kqv", Val::F32(8.0)),
                &["llama.attention.clamp_kqv = 8"],
            ),
            (
                "softcap",
                |f| f.set("final_logit_softcapping", Val::F32(30.0)),
                &["final_logit_softcapping = 30"],
            ),
            (
                "log mul",
                |f| f.set("rope.scaling.yarn_log_multiplier", Val::F32(0.1)),
                &["yarn_log_multiplier = 0.1"],
            ),
            (
                "ext factor",
                |f| f.set("rope.scaling.yarn_ext_factor", Val::F32(1.0)),
                &["yarn_ext_factor = 1", "none"],
            ),
            (
                "nextn",
                |f| f.set("nextn_predict_layers", Val::U32(1)),
                &["llama.nextn_predict_layers = 1"],
            ),
        ],
    );
}

#[test]
fn architectures() {
    check(
        "llama",
        &[
            (
                "none",
                |f| f.unset("general.architecture"),
                &["missing key general.architecture", "llama, qwen3", "qwen3,"],
            ),
            (
                "unknown",
                |f| f.set("general.architecture", "gpt5"),
                &["\"gpt5\"", "supported: gpt2, gpt-oss, gptneox and 84 more"],
            ),
            (
                "a number",
                |f| f.set("general.architecture", Val::U32(1)),
                &["general.architecture", "a string", "got 1"],
            ),
            (
                "keys of another",
                |f| f.set("general.architecture", "qwen2"),
                &["missing key qwen2.context_length"],
            ),
        ],
    );
}

/// Loading returns a result, never a panic, whichever single key or tensor is dropped or altered.
#[test]
fn no_single_change_panics() {
    for arch in ["llama", "qwen2", "qwen3"] {
        let optional = bend_everything(&File::new(arch, 2));
        let may_be_missing = |name: &String| name == "output.weight" || name.ends_with(".bias");
        assert!(optional.iter().all(may_be_missing), "{optional:?}");
        assert!(optional.contains(&"output.weight".to_owned()));
    }
}

/// Drops and alters every key and tensor of a file, one at a time; returns the tensors that are
/// optional.
fn bend_everything(good: &File) -> Vec<String> {
    let mut optional = Vec::new();
    let values = [
        Val::U32(0),
        Val::U32(1),
        Val::U32(3),
        Val::U32(u32::MAX),
        Val::U64(u64::MAX),
        Val::I32(i32::MIN),
        Val::F32(f32::NAN),
        Val::F32(f32::MIN_POSITIVE),
        Val::F32(f32::MAX),
        Val::F64(f64::MAX),
        Val::Bool(true),
        "".into(),
        "\u{1F600}\n".into(),
        Vec::<u32>::new().into(),
        vec![f32::INFINITY; 2].into(),
        vec![String::new()].into(),
    ];
    for i in 0..good.kv.len() {
        let mut f = good.clone();
        f.kv.remove(i);
        let _ = f.load().map(|m| m.structure());
        for v in &values {
            let mut f = good.clone();
            f.kv[i].1 = v.clone();
            let _ = Model::load(&f.gguf()).map(|m| m.structure());
        }
    }
    for i in 0..good.tensors.len() {
        let mut f = good.clone();
        let dropped = f.tensors.remove(i);
        if f.load().is_ok() {
            optional.push(dropped.name);
        }
        for dims in [
            vec![32],
            vec![32, 1, 1, 1],
            vec![0, 5],
            vec![64, 0],
            vec![32, 32],
        ] {
            for ty in [
                TensorType::F32,
                TensorType::F16,
                TensorType::Q8_0,
                TensorType::I8,
            ] {
                let mut f = good.clone();
                f.tensors[i].dims = dims.clone();
                f.tensors[i].ty = ty;
                let _ = f.load().map(|m| m.structure());
            }
        }
    }
    optional
}
