//! Rotary tables against values computed elsewhere: Hugging Face's formulas in Python doubles,
//! written out below.

use crate::support::{File, Load, Val, open_shared};
use approx::assert_relative_eq;
use octavo_model::{Model, Pairing, Rope};

/// Asserts that two doubles agree up to a few units in the last place, as equivalent formulas do.
fn close(got: f64, expected: f64) {
    assert_relative_eq!(got, expected, max_relative = 1e-14);
}

fn table(f: &File) -> Rope {
    f.load().unwrap_or_else(|e| panic!("{e}")).ropes.remove(0)
}

#[test]
fn plain_and_linear() {
    let mut f = File::new("qwen3", 1);
    f.set("rope.freq_base", Val::F32(1e6));
    let plain = table(&f);
    assert_eq!(
        (plain.n_rot(), plain.magnitude, plain.pairing),
        (32, 1.0, Pairing::Neox)
    );
    // 1e6^(-2i/32)
    for (i, expected) in [
        (0, 1.0),
        (4, 0.03162277660168379),
        (8, 0.001),
        (15, 2.371373705661655e-6),
    ] {
        close(plain.frequencies[i], expected);
    }
    close(1000.0 * plain.frequencies[8], 1.0);
    for (key, with_type) in [
        ("rope.scaling.factor", true),
        ("rope.scaling.factor", false),
        ("rope.scale_linear", false),
    ] {
        let mut f = f.clone();
        f.set(key, Val::F32(4.0));
        if with_type {
            f.set("rope.scaling.type", "linear");
        }
        let linear = table(&f);
        assert_eq!(linear.magnitude, 1.0);
        for i in 0..16 {
            close(linear.frequencies[i], plain.frequencies[i] / 4.0);
        }
    }
    f.set("rope.scaling.type", "none");
    f.set("rope.scaling.factor", Val::F32(4.0));
    f.set("rope.scaling.attn_factor", Val::F32(0.5));
    assert_eq!(
        (table(&f).frequencies, table(&f).magnitude),
        (plain.frequencies, 0.5)
    );
}

#[test]
fn pairs_and_partial_rotation() {
    let mut f = File::new("qwen3", 1);
    f.set("rope.dimension_count", Val::U32(8));
    let t = table(&f);
    assert_eq!((t.n_rot(), t.pair(0), t.pair(3)), (8, (0, 4), (3, 7)));
    // the series runs over n_rot dimensions, not the head's
    close(t.frequencies[1], 0.1);
    let t = table(&File::new("llama", 1));
    assert_eq!((t.n_rot(), t.pair(0), t.pair(7)), (16, (0, 1), (14, 15)));
    let (cos, sin): (Vec<f32>, Vec<f32>) = t.angles([3; 3]).unzip();
    // cos and sin of 3 and of 3 * 10000^(-1/8), in doubles
    assert_eq!(
        (cos[0], sin[0]),
        (-0.9899924966004454f64 as f32, 0.1411200080598672f64 as f32)
    );
    let angle: f64 = 3.0 * 0.31622776601683794;
    assert_eq!((cos[1], sin[1]), (angle.cos() as f32, angle.sin() as f32));
}

#[test]
fn yarn_of_the_shared_model() {
    let Some(gguf) = open_shared("rnd-qwen3-F32") else {
        return;
    };
    let t = Model::load(&gguf)
        .unwrap_or_else(|e| panic!("{e}"))
        .ropes
        .remove(0);
    assert_eq!(t.n_rot(), 128);
    // base 1e6, factor 4, original context 512: the ramp runs from pair 4 to pair 21
    for (i, expected) in [
        (0, 1.0),
        (1, 0.8058421877614819),
        (4, 0.4216965034285823),
        (5, 0.3248287373253917),
        (10, 0.08491044005069544),
        (15, 0.02019803552161158),
        (20, 0.003922121859303894),
        (21, 0.0026865195708032936),
        (40, 4.445698525097307e-5),
        (63, 3.102344401879299e-7),
    ] {
        close(t.frequencies[i], expected);
    }
    close(t.magnitude, 1.138629436111989);
}

#[test]
fn yarn_with_a_ramp_inside_and_its_own_keys() {
    let mut f = File::new("qwen3", 1);
    f.set("attention.key_length", Val::U32(64));
    f.set("attention.value_length", Val::U32(64));
    for (name, dims) in [
        ("attn_q", [64, 256]),
        ("attn_k", [64, 128]),
        ("attn_v", [64, 128]),
        ("attn_output", [256, 64]),
    ] {
        f.tensor(&format!("blk.0.{name}.weight")).dims = dims.to_vec();
    }
    for name in ["attn_q_norm", "attn_k_norm"] {
        f.tensor(&format!("blk.0.{name}.weight")).dims = vec![64];
    }
    f.set("rope.scaling.type", "yarn");
    f.set("rope.scaling.factor", Val::F32(8.0));
    f.set("rope.scaling.original_context_length", Val::U32(4096));
    let t = table(&f);
    for (i, expected) in [
        (0, 1.0),
        (9, 0.07498942093324558),
        (10, 0.056234132519034905),
        (11, 0.03933130849285815),
        (16, 0.005961538461538462),
        (22, 0.00034197680962286974),
        (23, 0.0001666901790204155),
        (31, 1.666901790204155e-5),
    ] {
        close(t.frequencies[i], expected);
    }
    close(t.magnitude, 1.2079441541679836);
    f.set("rope.scaling.attn_factor", Val::F32(0.5));
    close(table(&f).magnitude, 1.2079441541679836 / 2.0);
    // with both ends moved the ramp disappears: every pair keeps its frequency, the magnitude stays
    f.set("rope.scaling.yarn_beta_fast", Val::F32(1e-6));
    f.set("rope.scaling.yarn_beta_slow", Val::F32(1e-6));
    let m = f.load().unwrap_or_else(|e| panic!("{e}"));
    close(m.ropes[0].frequencies[31], 1.333521432163324e-4);
    assert_eq!(m.warnings().len(), 2, "{:?}", m.warnings());
    // a factor below 1 has no magnitude
    f.set("rope.scaling.factor", Val::F32(0.5));
    close(table(&f).magnitude, 0.5);
}

#[test]
fn rope_freqs_of_the_shared_model() {
    let Some(gguf) = open_shared("rnd-llama-F32") else {
        return;
    };
    let m = Model::load(&gguf).unwrap_or_else(|e| panic!("{e}"));
    assert!(m.structure().rope_freqs);
    // Llama 3's formula on base 5e5, factor 8, low 1, high 4, original context 8192; the file holds
    // f32 divisors
    for (i, expected) in [
        (0, 1.0),
        (12, 0.0072926647372171085),
        (14, 0.0032114459947525913),
        (15, 0.0013718935677611381),
        (16, 0.0005248461609929547),
        (17, 0.00017850781276799638),
        (20, 3.428102195952591e-5),
        (31, 3.7673226901739635e-7),
    ] {
        assert_relative_eq!(
            m.ropes[0].frequencies[i],
            expected,
            max_relative = f32::EPSILON.into()
        );
    }
}
