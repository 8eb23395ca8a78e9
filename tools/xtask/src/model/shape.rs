//! Model sizes: those of published models, and tiny ones.

use clap::ValueEnum;
use gguf_rs_lite::{OwnedValue, Writer};
use octavo_analysis::quantize::mix;

use super::tower::{self, Tower};

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    Llama,
    Qwen2,
    Qwen3,
    Qwen3moe,
    GptOss,
    Gemma3,
    Qwen35,
    Qwen2vl,
    Qwen3vl,
}

impl Arch {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
            Arch::Qwen3 => "qwen3",
            Arch::Qwen3moe => "qwen3moe",
            Arch::GptOss => "gpt-oss",
            Arch::Gemma3 => "gemma3",
            Arch::Qwen35 => "qwen35",
            Arch::Qwen2vl => "qwen2vl",
            Arch::Qwen3vl => "qwen3vl",
        }
    }

    /// Returns whether Hugging Face folders can be written: Qwen3's shapes fit these.
    pub(super) fn has_folders(self) -> bool {
        matches!(self, Arch::Llama | Arch::Qwen2 | Arch::Qwen3)
    }

    fn norms_heads(self) -> bool {
        matches!(
            self,
            Arch::Qwen3 | Arch::Qwen3moe | Arch::Gemma3 | Arch::Qwen35 | Arch::Qwen3vl
        )
    }

    /// Returns whether it has vision towers.
    pub(super) fn sees(self) -> bool {
        matches!(self, Arch::Qwen2vl | Arch::Qwen3vl | Arch::Qwen35)
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Preset {
    /// Tiny, for any architecture
    Tiny,
    /// Qwen3's, as the next three; also for llama and qwen2
    #[value(name = "0.6b")]
    B0_6,
    #[value(name = "1.7b")]
    B1_7,
    #[value(name = "4b")]
    B4,
    #[value(name = "8b")]
    B8,
    /// qwen3moe
    #[value(name = "30b-a3b")]
    B30A3,
    /// gpt-oss
    #[value(name = "20b")]
    B20,
    /// gemma3, which has a 4b too
    #[value(name = "1b")]
    B1,
    /// qwen35
    #[value(name = "0.8b")]
    B0_8,
    /// qwen3vl, which has a 4b and an 8b too
    #[value(name = "2b")]
    B2,
    /// qwen2vl, as the next one: Qwen 2.5 VL's
    #[value(name = "3b")]
    B3,
    #[value(name = "7b")]
    B7,
}

/// Gated delta nets, in all layers except every fourth.
#[derive(Clone, Copy, Debug)]
pub(crate) struct DeltaNet {
    /// Number of heads, of keys and of values.
    pub(crate) heads: u32,
    /// Values per head.
    pub(crate) dim: u32,
}

/// Kernel size of the delta nets' convolutions, in tokens.
const KERNEL: u32 = 4;
/// Every n-th layer is a full-attention layer.
const INTERVAL: u32 = 4;

/// Experts in every layer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Experts {
    pub(crate) count: u32,
    pub(crate) used: u32,
    /// FFN width of each expert.
    pub(crate) n_ff: u32,
}

fn wrong_preset(arch: Arch) -> String {
    let expected = match arch {
        Arch::Llama | Arch::Qwen2 | Arch::Qwen3 => "tiny, 0.6b, 1.7b, 4b or 8b",
        Arch::Qwen3moe => "tiny or 30b-a3b",
        Arch::GptOss => "tiny or 20b",
        Arch::Gemma3 => "tiny, 1b or 4b",
        Arch::Qwen35 => "tiny or 0.8b",
        Arch::Qwen2vl => "tiny, 3b or 7b",
        Arch::Qwen3vl => "tiny, 2b, 4b or 8b",
    };
    format!("--preset: expected {expected} with --arch {}", arch.name())
}

/// Hyperparameters of a model.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    pub(crate) arch: Arch,
    pub(crate) n_embd: u32,
    pub(crate) n_ff: u32,
    pub(crate) n_layer: u32,
    pub(crate) n_head: u32,
    pub(crate) n_head_kv: u32,
    pub(crate) head_dim: u32,
    pub(crate) n_vocab: u32,
    pub(crate) tied: bool,
    pub(crate) experts: Option<Experts>,
    /// Sliding window size in positions, for architectures with windows.
    pub(crate) window: Option<u32>,
    pub(crate) delta_net: Option<DeltaNet>,
    /// Number of layers to which DeepStack adds a part of the tower's output.
    pub(crate) n_deepstack: u32,
}

impl Shape {
    /// Returns the shape of a published model, or a tiny one.
    ///
    /// # Errors
    /// A preset that the architecture does not have.
    pub(super) fn of(arch: Arch, preset: Preset) -> Result<Shape, String> {
        use Preset::{B0_6, B0_8, B1, B1_7, B2, B3, B4, B7, B8, B20, B30A3, Tiny};
        let (n_embd, n_ff, n_layer, n_head, n_head_kv, head_dim, n_vocab) = match (arch, preset) {
            (Arch::GptOss, Tiny) => (256, 256, 4, 8, 2, 64, 1024),
            // with room for the tokens around images
            (arch, Tiny) if arch.sees() => (256, 768, 4, 4, 2, 64, 1280),
            (_, Tiny) => (256, 768, 4, 4, 2, 64, 1024),
            (Arch::Qwen3moe, B30A3) => (2048, 6144, 48, 32, 4, 128, 151_936),
            (Arch::GptOss, B20) => (2880, 2880, 24, 64, 8, 64, 201_088),
            (Arch::Gemma3, B1) => (1152, 6912, 26, 4, 1, 256, 262_144),
            (Arch::Qwen35, B0_8) => (1024, 3584, 24, 8, 2, 256, 248_320),
            (Arch::Gemma3, B4) => (2560, 10_240, 34, 8, 4, 256, 262_144),
            (Arch::Qwen2vl, B3) => (2048, 11_008, 36, 16, 2, 128, 151_936),
            (Arch::Qwen2vl, B7) => (3584, 18_944, 28, 28, 4, 128, 152_064),
            (Arch::Qwen3vl, B2) => (2048, 6144, 28, 16, 8, 128, 151_936),
            (Arch::Qwen3vl, B4) => (2560, 9728, 36, 32, 8, 128, 151_936),
            (Arch::Qwen3vl, B8) => (4096, 12_288, 36, 32, 8, 128, 151_936),
            _ if !arch.has_folders() => return Err(wrong_preset(arch)),
            (_, B0_6) => (1024, 3072, 28, 16, 8, 128, 151_936),
            (_, B1_7) => (2048, 6144, 28, 16, 8, 128, 151_936),
            (_, B4) => (2560, 9728, 36, 32, 8, 128, 151_936),
            (_, B8) => (4096, 12_288, 36, 32, 8, 128, 151_936),
            _ => return Err(wrong_preset(arch)),
        };
        // LLaMA's and Qwen2's heads together are as wide as the model
        let head_dim = match arch {
            Arch::Llama | Arch::Qwen2 | Arch::Qwen2vl => n_embd / n_head,
            _ => head_dim,
        };
        let experts = |count, used, n_ff| Some(Experts { count, used, n_ff });
        let experts = match (arch, preset) {
            (Arch::Qwen3moe, Tiny) => experts(8, 2, 256),
            (Arch::Qwen3moe, _) => experts(128, 8, 768),
            (Arch::GptOss, Tiny) => experts(8, 2, 256),
            (Arch::GptOss, _) => experts(32, 4, 2880),
            _ => None,
        };
        let window = match (arch, preset) {
            (Arch::GptOss | Arch::Gemma3, Tiny) => Some(16),
            (Arch::GptOss, _) => Some(128),
            (Arch::Gemma3, B1) => Some(512),
            (Arch::Gemma3, _) => Some(1024),
            _ => None,
        };
        let tied = match arch {
            Arch::Qwen2 | Arch::Qwen3 | Arch::Qwen3vl => preset != B8,
            Arch::Qwen2vl => preset != B7,
            Arch::Gemma3 | Arch::Qwen35 => true,
            Arch::Llama | Arch::Qwen3moe | Arch::GptOss => false,
        };
        let delta_net = match (arch, preset) {
            (Arch::Qwen35, Tiny) => Some((4, 32)),
            (Arch::Qwen35, _) => Some((16, 128)),
            _ => None,
        };
        let tower = Tower::of(arch, preset, n_embd);
        Ok(Shape {
            n_deepstack: tower.map_or(0, |tower| tower.n_deepstack()),
            delta_net: delta_net.map(|(heads, dim)| DeltaNet { heads, dim }),
            arch,
            n_embd,
            n_ff,
            n_layer,
            n_head,
            n_head_kv,
            head_dim,
            n_vocab,
            tied,
            experts,
            window,
        })
    }

    /// Returns names and dimensions, in the order in which llama-quantize's rules process them.
    pub(super) fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let [d, ff, vocab, head] =
            [self.n_embd, self.n_ff, self.n_vocab, self.head_dim].map(u64::from);
        let (q, kv) = (
            head * u64::from(self.n_head),
            head * u64::from(self.n_head_kv),
        );
        let mut all = vec![
            ("token_embd.weight".to_owned(), vec![d, vocab]),
            ("output_norm.weight".to_owned(), vec![d]),
        ];
        if !self.tied {
            all.push(("output.weight".to_owned(), vec![d, vocab]));
        }
        // each query comes with a gate
        let of_query = if self.arch == Arch::Qwen35 { 2 } else { 1 };
        let mut attention: Vec<(&str, Vec<u64>)> = vec![
            ("attn_q.weight", vec![d, of_query * q]),
            ("attn_k.weight", vec![d, kv]),
            ("attn_v.weight", vec![d, kv]),
            ("attn_output.weight", vec![q, d]),
        ];
        if self.arch.norms_heads() {
            attention.push(("attn_q_norm.weight", vec![head]));
            attention.push(("attn_k_norm.weight", vec![head]));
        }
        let mut layer: Vec<(&str, Vec<u64>)> = vec![("attn_norm.weight", vec![d])];
        layer.push(match self.arch {
            Arch::GptOss | Arch::Qwen35 => ("post_attention_norm.weight", vec![d]),
            _ => ("ffn_norm.weight", vec![d]),
        });
        if self.arch == Arch::Gemma3 {
            layer.push(("post_attention_norm.weight", vec![d]));
            layer.push(("post_ffw_norm.weight", vec![d]));
        }
        if matches!(self.arch, Arch::Qwen2 | Arch::Qwen2vl | Arch::GptOss) {
            layer.push(("attn_q.bias", vec![q]));
            layer.push(("attn_k.bias", vec![kv]));
            layer.push(("attn_v.bias", vec![kv]));
        }
        if self.arch == Arch::GptOss {
            layer.push(("attn_output.bias", vec![d]));
            layer.push(("attn_sinks.weight", vec![u64::from(self.n_head)]));
        }
        match self.experts {
            Some(experts) => layer.extend(self.expert_tensors(experts)),
            None => layer.extend([
                ("ffn_gate.weight", vec![d, ff]),
                ("ffn_up.weight", vec![d, ff]),
                ("ffn_down.weight", vec![ff, d]),
            ]),
        }
        for i in 0..self.n_layer {
            let named = |(name, dims): &(&str, Vec<u64>)| (format!("blk.{i}.{name}"), dims.clone());
            all.extend(layer.iter().map(named));
            match self.delta_net.filter(|_| !(i + 1).is_multiple_of(INTERVAL)) {
                Some(delta_net) => all.extend(self.delta_tensors(delta_net).iter().map(named)),
                None => all.extend(attention.iter().map(named)),
            }
        }
        all.sort_by(|a, b| mix::order(&a.0, &b.0));
        all
    }

    fn delta_tensors(&self, delta_net: DeltaNet) -> Vec<(&'static str, Vec<u64>)> {
        let [d, n, dim] = [self.n_embd, delta_net.heads, delta_net.dim].map(u64::from);
        let inner = n * dim;
        vec![
            ("attn_qkv.weight", vec![d, 3 * inner]),
            ("attn_gate.weight", vec![d, inner]),
            ("ssm_conv1d.weight", vec![KERNEL.into(), 3 * inner]),
            ("ssm_dt.bias", vec![n]),
            ("ssm_a", vec![n]),
            ("ssm_alpha.weight", vec![d, n]),
            ("ssm_beta.weight", vec![d, n]),
            ("ssm_norm.weight", vec![dim]),
            ("ssm_out.weight", vec![inner, d]),
        ]
    }

    fn expert_tensors(&self, experts: Experts) -> Vec<(&'static str, Vec<u64>)> {
        let [d, n, ff] = [self.n_embd, experts.count, experts.n_ff].map(u64::from);
        let mut all = vec![
            ("ffn_gate_inp.weight", vec![d, n]),
            ("ffn_gate_exps.weight", vec![d, ff, n]),
            ("ffn_up_exps.weight", vec![d, ff, n]),
            ("ffn_down_exps.weight", vec![ff, d, n]),
        ];
        if self.arch == Arch::GptOss {
            all.extend([
                ("ffn_gate_inp.bias", vec![n]),
                ("ffn_gate_exps.bias", vec![ff, n]),
                ("ffn_up_exps.bias", vec![ff, n]),
                ("ffn_down_exps.bias", vec![d, n]),
            ]);
        }
        all
    }

    pub(super) fn set_keys(&self, writer: &mut Writer<'_>, file_type: Option<u32>) {
        let arch = self.arch.name();
        writer
            .set("general.architecture", arch)
            .set("general.name", format!("random {arch}"));
        let mut put = |name: &str, value: OwnedValue| {
            writer.set(&format!("{arch}.{name}"), value);
        };
        put("context_length", 40_960u32.into());
        put("embedding_length", self.n_embd.into());
        put("block_count", self.n_layer.into());
        put("feed_forward_length", self.n_ff.into());
        put("attention.head_count", self.n_head.into());
        put("attention.head_count_kv", self.n_head_kv.into());
        let (eps, base) = match self.arch {
            Arch::Llama => (1e-5f32, 5e5f32),
            Arch::GptOss => (1e-5, 1.5e5),
            Arch::Qwen2 | Arch::Qwen3 | Arch::Qwen3moe | Arch::Gemma3 => (1e-6, 1e6),
            Arch::Qwen2vl => (1e-6, 1e6),
            Arch::Qwen3vl => (1e-6, 5e6),
            Arch::Qwen35 => (1e-6, 1e7),
        };
        put("attention.layer_norm_rms_epsilon", eps.into());
        put("rope.freq_base", base.into());
        match self.arch {
            Arch::Llama => put("rope.dimension_count", self.head_dim.into()),
            Arch::Qwen2 | Arch::Qwen2vl => {}
            Arch::Qwen3
            | Arch::Qwen3moe
            | Arch::GptOss
            | Arch::Gemma3
            | Arch::Qwen35
            | Arch::Qwen3vl => {
                put("attention.key_length", self.head_dim.into());
                put("attention.value_length", self.head_dim.into());
            }
        }
        if let Some(experts) = self.experts {
            put("expert_count", experts.count.into());
            put("expert_used_count", experts.used.into());
            put("expert_feed_forward_length", experts.n_ff.into());
        }
        if let Some(DeltaNet { heads, dim }) = self.delta_net {
            put("ssm.conv_kernel", KERNEL.into());
            put("ssm.inner_size", (heads * dim).into());
            put("ssm.state_size", dim.into());
            put("ssm.time_step_rank", heads.into());
            put("ssm.group_count", heads.into());
            put("full_attention_interval", INTERVAL.into());
            // a quarter of each head is rotated
            let pairs = self.head_dim / 8;
            let third = pairs.div_ceil(3);
            put("rope.dimension_count", (2 * pairs).into());
            let sections = [third, third, pairs - 2 * third, 0].map(|n| n as i32);
            put("rope.dimension_sections", sections.to_vec().into());
        }
        if self.arch.sees() && self.delta_net.is_none() {
            tower::set_text_keys(self, &mut put);
        }
        if let Some(window) = self.window {
            put("attention.sliding_window", window.into());
        }
        if self.arch == Arch::GptOss {
            put("rope.scaling.type", "yarn".into());
            put("rope.scaling.factor", 32f32.into());
            put("rope.scaling.original_context_length", 4096u32.into());
        }
        writer.set("general.quantization_version", 2u32);
        if let Some(number) = file_type {
            writer.set("general.file_type", number);
        }
    }
}
