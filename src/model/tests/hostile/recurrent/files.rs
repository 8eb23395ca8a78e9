//! A small valid file of each architecture with recurrent layers.

use crate::support::{File, Val};

const SIZES: [(&str, u32); 5] = [
    ("ssm.conv_kernel", 4),
    ("ssm.inner_size", 64),
    ("ssm.state_size", 16),
    ("ssm.time_step_rank", 4),
    ("ssm.group_count", 2),
];

fn remove(f: &mut File, l: usize, names: &[&str]) {
    for name in names {
        f.remove(&format!("blk.{l}.{name}.weight"));
    }
}

fn add(f: &mut File, l: usize, tensors: &[(&str, &[u32])]) {
    for (name, dims) in tensors {
        f.add(&format!("blk.{l}.{name}"), dims);
    }
}

const ATTENTION: [&str; 4] = ["attn_q", "attn_k", "attn_v", "attn_output"];

/// Returns a file with a delta net in the first of two layers.
fn qwen(arch: &'static str) -> File {
    let mut f = File::new(arch, 2);
    f.set("full_attention_interval", Val::U32(2));
    SIZES.iter().for_each(|(key, n)| f.set(key, Val::U32(*n)));
    remove(&mut f, 0, &ATTENTION);
    remove(&mut f, 1, &["attn_q"]);
    for l in 0..2 {
        remove(&mut f, l, &["ffn_norm"]);
        add(&mut f, l, &[("post_attention_norm.weight", &[64])]);
    }
    let own: [(&str, &[u32]); 5] = [
        ("ssm_conv1d.weight", &[4, 128]),
        ("ssm_dt.bias", &[4]),
        ("ssm_a", &[4]),
        ("ssm_norm.weight", &[16]),
        ("ssm_out.weight", &[64, 64]),
    ];
    add(&mut f, 0, &own);
    let attention: [(&str, &[u32]); 3] = [
        ("attn_q.weight", &[64, 128]),
        ("attn_q_norm.weight", &[16]),
        ("attn_k_norm.weight", &[16]),
    ];
    add(&mut f, 1, &attention);
    f
}

/// Adds Mamba 2 to the given layers.
fn mamba(f: &mut File, layers: &[usize]) {
    SIZES.iter().for_each(|(key, n)| f.set(key, Val::U32(*n)));
    for l in layers {
        let own: [(&str, &[u32]); 8] = [
            ("ssm_in.weight", &[64, 196]),
            ("ssm_conv1d.weight", &[4, 128]),
            ("ssm_conv1d.bias", &[128]),
            ("ssm_dt.bias", &[4]),
            ("ssm_a", &[1, 4]),
            ("ssm_d", &[1, 4]),
            ("ssm_norm.weight", &[32, 2]),
            ("ssm_out.weight", &[64, 64]),
        ];
        add(f, *l, &own);
    }
}

/// Returns a valid file of an architecture.
pub(super) fn valid(arch: &'static str) -> File {
    match arch {
        "qwen35" => qwen35(arch),
        "qwen3next" => qwen3next(arch),
        "mamba2" => mamba2(arch),
        "falcon-h1" => falcon_h1(arch),
        "granitehybrid" => granite_hybrid(arch),
        "lfm2" => lfm2(arch),
        other => panic!("{other}"),
    }
}

fn qwen35(arch: &'static str) -> File {
    let mut f = qwen(arch);
    f.set("rope.dimension_sections", vec![3u32, 3, 2, 0]);
    let own: [(&str, &[u32]); 4] = [
        ("attn_qkv.weight", &[64, 128]),
        ("attn_gate.weight", &[64, 64]),
        ("ssm_alpha.weight", &[64, 4]),
        ("ssm_beta.weight", &[64, 4]),
    ];
    add(&mut f, 0, &own);
    f
}

fn qwen3next(arch: &'static str) -> File {
    let mut f = qwen(arch);
    let own: [(&str, &[u32]); 2] = [("ssm_in.weight", &[64, 192]), ("ssm_ba.weight", &[64, 8])];
    add(&mut f, 0, &own);
    f.set("expert_count", Val::U32(6));
    f.set("expert_used_count", Val::U32(2));
    f.set("expert_feed_forward_length", Val::U32(24));
    f.set("expert_shared_feed_forward_length", Val::U32(24));
    for l in 0..2 {
        remove(&mut f, l, &["ffn_gate", "ffn_up", "ffn_down"]);
        let experts: [(&str, &[u32]); 7] = [
            ("ffn_gate_inp.weight", &[64, 6]),
            ("ffn_gate_up_exps.weight", &[64, 48, 6]),
            ("ffn_down_exps.weight", &[24, 64, 6]),
            ("ffn_gate_inp_shexp.weight", &[64]),
            ("ffn_gate_shexp.weight", &[64, 24]),
            ("ffn_up_shexp.weight", &[64, 24]),
            ("ffn_down_shexp.weight", &[24, 64]),
        ];
        add(&mut f, l, &experts);
    }
    f
}

fn mamba2(arch: &'static str) -> File {
    let mut f = File::new(arch, 2);
    mamba(&mut f, &[0, 1]);
    f.set("attention.head_count", Val::U32(0));
    f.unset("attention.head_count_kv");
    f.set("feed_forward_length", Val::U32(0));
    for l in 0..2 {
        remove(&mut f, l, &ATTENTION);
        remove(&mut f, l, &["ffn_norm", "ffn_gate", "ffn_up", "ffn_down"]);
    }
    f
}

fn falcon_h1(arch: &'static str) -> File {
    let mut f = File::new(arch, 2);
    mamba(&mut f, &[0, 1]);
    for l in 0..2 {
        remove(&mut f, l, &["ffn_norm"]);
        add(&mut f, l, &[("ffn_norm", &[64])]);
    }
    f
}

fn granite_hybrid(arch: &'static str) -> File {
    let mut f = File::new(arch, 2);
    mamba(&mut f, &[0]);
    remove(&mut f, 0, &ATTENTION);
    f.set("attention.head_count_kv", vec![0u32, 2]);
    f.set("logit_scale", Val::F32(3.0));
    f
}

fn lfm2(arch: &'static str) -> File {
    let mut f = File::new(arch, 2);
    f.set("attention.head_count_kv", vec![0u32, 2]);
    f.set("shortconv.l_cache", Val::U32(3));
    remove(&mut f, 0, &ATTENTION);
    let own: [(&str, &[u32]); 3] = [
        ("shortconv.conv.weight", &[3, 64]),
        ("shortconv.in_proj.weight", &[64, 192]),
        ("shortconv.out_proj.weight", &[64, 64]),
    ];
    add(&mut f, 0, &own);
    let norms: [(&str, &[u32]); 2] = [("attn_q_norm.weight", &[16]), ("attn_k_norm.weight", &[16])];
    add(&mut f, 1, &norms);
    f.remove("output_norm.weight");
    f.add("token_embd_norm.weight", &[64]);
    f
}
