//! Keys that some mixtures of experts cannot do without.

use super::check;
use crate::support::Val;

#[test]
fn routers_and_shared_experts_are_stated() {
    check(
        "minimax-m2",
        &[
            (
                "no function of the router",
                |f| f.unset("expert_gating_func"),
                &["missing key minimax-m2.expert_gating_func"],
            ),
            (
                "a function of number 0",
                |f| f.set("expert_gating_func", Val::U32(0)),
                &["minimax-m2.expert_gating_func", "from 1", "got 0"],
            ),
            (
                "no bias to choose by",
                |f| f.remove("blk.1.exp_probs_b.bias"),
                &["blk.1.exp_probs_b.bias"],
            ),
            (
                "norms of single heads",
                |f| f.tensor("blk.0.attn_k_norm.weight").dims = vec![16],
                &["blk.0.attn_k_norm.weight", "[32]", "[16]"],
            ),
        ],
    );
    check(
        "bailingmoe2",
        &[
            (
                "no number of shared experts",
                |f| f.unset("expert_shared_count"),
                &["missing key bailingmoe2.expert_shared_count"],
            ),
            (
                "more shared experts than fit",
                |f| f.set("expert_shared_count", Val::U32(1000)),
                &["ffn_gate_shexp.weight", "12000"],
            ),
            (
                "shared experts of no count",
                |f| f.set("expert_shared_count", Val::U32(u32::MAX)),
                &["bailingmoe2.expert_shared_count", "got 4294967295"],
            ),
            (
                "more dense layers than layers",
                |f| f.set("leading_dense_block_count", Val::U32(3)),
                &["bailingmoe2.leading_dense_block_count", "got 3"],
            ),
        ],
    );
    check(
        "exaone-moe",
        &[
            (
                "no window",
                |f| f.unset("attention.sliding_window"),
                &["missing key exaone-moe.attention.sliding_window"],
            ),
            (
                "a shared expert of another width",
                |f| f.set("expert_shared_feed_forward_length", Val::U32(32)),
                &["ffn_gate_shexp.weight", "32"],
            ),
        ],
    );
}

#[test]
fn layers_of_one_thing() {
    check(
        "nemotron_h_moe",
        &[
            (
                "experts of no width",
                |f| f.set("expert_feed_forward_length", vec![24u32, 0]),
                &[
                    "nemotron_h_moe.expert_feed_forward_length",
                    "from 1",
                    "got 0",
                ],
            ),
            (
                "a latent width that the tensors do not have",
                |f| f.set("moe_latent_size", Val::U32(24)),
                &["blk.1.ffn_latent_down.weight", "24"],
            ),
            (
                "no latent width",
                |f| f.unset("moe_latent_size"),
                &["blk.1.ffn_up_exps.weight", "64"],
            ),
            (
                "a layer that is none of them",
                |f| f.set("feed_forward_length", vec![0u32, 0]),
                &[
                    "nemotron_h_moe.expert_feed_forward_length",
                    "from 1",
                    "got 0",
                ],
            ),
            (
                "a width for each of other layers",
                |f| f.set("feed_forward_length", vec![0u32, 24, 0]),
                &[
                    "nemotron_h_moe.feed_forward_length",
                    "layer (2)",
                    "array of 3",
                ],
            ),
            (
                "no epsilon",
                |f| {
                    f.unset("attention.layer_norm_epsilon");
                    f.unset("attention.layer_norm_rms_epsilon");
                },
                &["missing key nemotron_h_moe.attention.layer_norm_epsilon"],
            ),
        ],
    );
}
