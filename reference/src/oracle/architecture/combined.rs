//! More entries like those of `rows.rs`, of architectures that combine parts of others.

use super::super::math::Activation;
use super::super::rope::RopePairs;
use super::families::{DEEPSEEK2, LLAMA, MIXTRAL, NARROW, QWEN2, QWEN3, SIGMOID, UNNAMED_ATTN_OUT};
use super::{
    Architecture, Experts, Gating, Names, QkNorm, Recurrent, Rotated, SharedWidth, Up, WeightsNorm,
    WindowLength, WindowRope, Windows,
};

/// Their differences from their families.
pub(super) const COMBINED: &[Architecture] = &[
    NEMOTRON_H,
    Architecture {
        name: "nemotron_h_moe",
        experts: Some(Experts {
            gating: Gating::Sigmoid,
            keyed_scale: true,
            weights_norm: WeightsNorm::Keyed,
            selection_bias: true,
            latent: true,
            ..NARROW
        }),
        ..NEMOTRON_H
    },
    Architecture {
        name: "minimax-m2",
        qk_norm: QkNorm::Whole,
        experts: Some(Experts {
            required: true,
            keyed_gating: true,
            selection_bias: true,
            ..MIXTRAL
        }),
        ..QWEN2
    },
    Architecture {
        name: "olmoe",
        whole_rotation: true,
        qk_norm: QkNorm::Whole,
        experts: Some(Experts {
            required: true,
            weights_norm: WeightsNorm::Never,
            ..MIXTRAL
        }),
        ..QWEN2
    },
    Architecture {
        name: "mistral4",
        usual_ramp: true,
        ..DEEPSEEK2
    },
    Architecture {
        name: "bailingmoe2",
        qk_norm: QkNorm::Head,
        experts: Some(Experts {
            shared_width: SharedWidth::TimesCount,
            ..SIGMOID
        }),
        names: Names {
            residual: Some("sa_out"),
            ..UNNAMED_ATTN_OUT
        },
        ..QWEN2
    },
    Architecture {
        name: "hunyuan-moe",
        rope_pairs: RopePairs::Halves,
        whole_rotation: true,
        qk_norm: QkNorm::HeadAfterRotation,
        experts: Some(Experts {
            required: true,
            shared_tap: "ffn_mlp",
            shared_width: SharedWidth::Dense,
            ..MIXTRAL
        }),
        names: Names {
            qk_normed: ["Qcur_norm", "Kcur_norm"],
            rotated: [Some("Qcur"), None],
            ..LLAMA.names
        },
        ..LLAMA
    },
    Architecture {
        name: "dots1",
        whole_rotation: true,
        experts: Some(SIGMOID),
        ..QWEN3
    },
    Architecture {
        name: "exaone-moe",
        whole_rotation: true,
        rotated: Rotated::Windowed,
        windows: Some(Windows {
            length: WindowLength::Required,
            period: 4,
            dense_first: false,
            only_of: None,
            rope: WindowRope::Same,
            own_heads: false,
        }),
        experts: Some(Experts {
            shared_width: SharedWidth::Expert,
            ..SIGMOID
        }),
        names: LLAMA.names,
        ..QWEN3
    },
    Architecture {
        name: "deepseek",
        whole_rotation: true,
        experts: Some(Experts {
            keyed_scale: true,
            weights_norm: WeightsNorm::Never,
            ..NARROW
        }),
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "internlm2",
        whole_rotation: true,
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
    Architecture {
        name: "exaone",
        whole_rotation: true,
        ..QWEN2
    },
    Architecture {
        name: "arcee",
        whole_rotation: true,
        up: Up::Plain,
        activation: Activation::ReluSquared,
        ..LLAMA
    },
    Architecture {
        name: "chatglm",
        up: Up::Fused,
        names: UNNAMED_ATTN_OUT,
        ..LLAMA
    },
];

/// Layers of one thing each: Mamba 2, attention, or an ungated block.
const NEMOTRON_H: Architecture = Architecture {
    name: "nemotron_h",
    one_of_both: true,
    recurrent: Some(Recurrent::Mamba2),
    rotated: Rotated::Never,
    up: Up::Plain,
    activation: Activation::ReluSquared,
    names: Names {
        ffn_out: Some("l_out"),
        ..LLAMA.names
    },
    ..LLAMA
};
