//! Sizes of models: those of published ones, and tiny ones.

use clap::ValueEnum;
use gguf_rs_lite::{OwnedValue, Writer};
use octavo_lab::quantize::mix;

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(crate) enum Arch {
    Llama,
    Qwen2,
    Qwen3,
}

impl Arch {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Arch::Llama => "llama",
            Arch::Qwen2 => "qwen2",
            Arch::Qwen3 => "qwen3",
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Preset {
    Tiny,
    #[value(name = "0.6b")]
    B0_6,
    #[value(name = "1.7b")]
    B1_7,
    #[value(name = "4b")]
    B4,
    #[value(name = "8b")]
    B8,
}

/// A model's numbers.
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
}

impl Shape {
    pub(super) fn of(arch: Arch, preset: Preset) -> Shape {
        let (n_embd, n_ff, n_layer, n_head, n_head_kv, head_dim, n_vocab) = match preset {
            Preset::Tiny => (256, 768, 4, 4, 2, 64, 1024),
            Preset::B0_6 => (1024, 3072, 28, 16, 8, 128, 151_936),
            Preset::B1_7 => (2048, 6144, 28, 16, 8, 128, 151_936),
            Preset::B4 => (2560, 9728, 36, 32, 8, 128, 151_936),
            Preset::B8 => (4096, 12_288, 36, 32, 8, 128, 151_936),
        };
        // only Qwen3's heads are wider than the model
        let head_dim = if arch == Arch::Qwen3 {
            head_dim
        } else {
            n_embd / n_head
        };
        let tied = preset != Preset::B8 && arch != Arch::Llama;
        Shape {
            arch,
            n_embd,
            n_ff,
            n_layer,
            n_head,
            n_head_kv,
            head_dim,
            n_vocab,
            tied,
        }
    }

    /// Names and dimensions, in the order that llama-quantize's rules go through them.
    pub(super) fn tensors(&self) -> Vec<(String, Vec<u64>)> {
        let [d, ff, vocab, head] =
            [self.n_embd, self.n_ff, self.n_vocab, self.head_dim].map(u64::from);
        let (q, kv) = (
            head * u64::from(self.n_head),
            head * u64::from(self.n_head_kv),
        );
        let mut all = vec![
            ("token_embd".to_owned(), vec![d, vocab]),
            ("output_norm".to_owned(), vec![d]),
        ];
        if !self.tied {
            all.push(("output".to_owned(), vec![d, vocab]));
        }
        let layer: [(&str, &[u64]); 9] = [
            ("attn_norm", &[d]),
            ("attn_q", &[d, q]),
            ("attn_k", &[d, kv]),
            ("attn_v", &[d, kv]),
            ("attn_output", &[q, d]),
            ("ffn_norm", &[d]),
            ("ffn_gate", &[d, ff]),
            ("ffn_up", &[d, ff]),
            ("ffn_down", &[ff, d]),
        ];
        let norms: [(&str, &[u64]); 2] = [("attn_q_norm", &[head]), ("attn_k_norm", &[head])];
        for i in 0..self.n_layer {
            let more: &[(&str, &[u64])] = if self.arch == Arch::Qwen3 {
                &norms
            } else {
                &[]
            };
            all.extend(
                layer
                    .iter()
                    .chain(more)
                    .map(|(name, dims)| (format!("blk.{i}.{name}"), dims.to_vec())),
            );
        }
        let mut all: Vec<_> = all
            .into_iter()
            .map(|(name, dims)| (name + ".weight", dims))
            .collect();
        if self.arch == Arch::Qwen2 {
            for (name, n) in [("attn_q", q), ("attn_k", kv), ("attn_v", kv)] {
                all.extend((0..self.n_layer).map(|i| (format!("blk.{i}.{name}.bias"), vec![n])));
            }
        }
        all.sort_by(|a, b| mix::order(&a.0, &b.0));
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
        let llama = self.arch == Arch::Llama;
        put(
            "attention.layer_norm_rms_epsilon",
            if llama { 1e-5f32 } else { 1e-6 }.into(),
        );
        put("rope.freq_base", if llama { 5e5f32 } else { 1e6 }.into());
        match self.arch {
            Arch::Llama => put("rope.dimension_count", self.head_dim.into()),
            Arch::Qwen2 => {}
            Arch::Qwen3 => {
                put("attention.key_length", self.head_dim.into());
                put("attention.value_length", self.head_dim.into());
            }
        }
        writer.set("general.quantization_version", 2u32);
        if let Some(number) = file_type {
            writer.set("general.file_type", number);
        }
    }
}
