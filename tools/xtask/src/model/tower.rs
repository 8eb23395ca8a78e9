//! Vision towers: those of published models, and tiny ones.

use gguf_rs_lite::{OwnedValue, TensorType, Writer};

use super::shape::{Arch, Preset, Shape};

/// Patches merged into one row for the text model.
const MERGED: u64 = 4;

/// Kind of a tower's blocks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    /// Qwen 3 VL and 3.5: layer norms, a table of position embeddings, DeepStack outputs of some
    /// blocks.
    Three {
        /// Patches along a side of the position table.
        side: u32,
        deepstack: &'static [u32],
    },
    /// Qwen 2.5 VL: RMS norms, gated FFN, window attention except in every n-th block.
    Two { whole_every: u32 },
}

/// Hyperparameters of a tower.
#[derive(Clone, Copy, Debug)]
pub(super) struct Tower {
    kind: Kind,
    n_embd: u32,
    n_ff: u32,
    n_block: u32,
    n_head: u32,
    patch: u32,
    /// Embedding width of the text model.
    n_projected: u32,
}

/// A tensor of a tower.
pub(super) struct TowerTensor {
    pub(super) name: String,
    pub(super) dims: Vec<u64>,
    pub(super) ty: TensorType,
}

impl Tower {
    /// Returns the tower of a published model, or a tiny one; `None` for text-only models.
    pub(super) fn of(arch: Arch, preset: Preset, n_projected: u32) -> Option<Tower> {
        let kind = match (arch, preset) {
            (Arch::Qwen3vl, Preset::Tiny) => Kind::Three {
                side: 8,
                deepstack: &[0],
            },
            (Arch::Qwen3vl, Preset::B8) => Kind::Three {
                side: 48,
                deepstack: &[8, 16, 24],
            },
            (Arch::Qwen3vl, _) => Kind::Three {
                side: 48,
                deepstack: &[5, 11, 17],
            },
            (Arch::Qwen35, preset) => Kind::Three {
                side: if preset == Preset::Tiny { 8 } else { 48 },
                deepstack: &[],
            },
            (Arch::Qwen2vl, Preset::Tiny) => Kind::Two { whole_every: 2 },
            (Arch::Qwen2vl, _) => Kind::Two { whole_every: 8 },
            _ => return None,
        };
        let (n_embd, n_ff, n_block, n_head) = match (arch, preset) {
            (_, Preset::Tiny) => (128, 256, 2, 2),
            (Arch::Qwen2vl, _) => (1280, 3420, 32, 16),
            (Arch::Qwen35, _) => (768, 3072, 12, 12),
            (_, Preset::B8) => (1152, 4304, 27, 16),
            _ => (1024, 4096, 24, 16),
        };
        Some(Tower {
            kind,
            n_embd,
            n_ff,
            n_block,
            n_head,
            patch: if arch == Arch::Qwen2vl { 14 } else { 16 },
            n_projected,
        })
    }

    /// Returns the number of DeepStack parts in an image row, beside the embedding.
    pub(super) fn n_deepstack(&self) -> u32 {
        match self.kind {
            Kind::Three { deepstack, .. } => deepstack.len() as u32,
            Kind::Two { .. } => 0,
        }
    }

    /// Returns every tensor; matrices and patch kernels in F16, as llama.cpp's converter writes
    /// them.
    pub(super) fn tensors(&self) -> Vec<TowerTensor> {
        let [d, ff, e, p] = [self.n_embd, self.n_ff, self.n_projected, self.patch].map(u64::from);
        let merged = MERGED * d;
        let mut all = List {
            biases: matches!(self.kind, Kind::Three { .. }),
            tensors: Vec::new(),
        };
        for name in ["v.patch_embd.weight", "v.patch_embd.weight.1"] {
            all.put(name.to_owned(), vec![p, p, 3, d], TensorType::F16);
        }
        if let Kind::Three { side, .. } = self.kind {
            all.vector("v.patch_embd.bias".to_owned(), d);
            let side = u64::from(side);
            let name = "v.position_embd.weight".to_owned();
            all.put(name, vec![d, side * side], TensorType::F32);
        }
        for i in 0..self.n_block {
            let name = |tensor: &str| format!("v.blk.{i}.{tensor}");
            all.norm(&name("ln1"), d);
            match self.kind {
                Kind::Three { .. } => all.affine(&name("attn_qkv"), 3 * d, d),
                Kind::Two { .. } => {
                    for part in ["attn_q", "attn_k", "attn_v"] {
                        all.affine(&name(part), d, d);
                    }
                    all.affine(&name("ffn_gate"), ff, d);
                }
            }
            all.affine(&name("attn_out"), d, d);
            all.norm(&name("ln2"), d);
            all.affine(&name("ffn_up"), ff, d);
            all.affine(&name("ffn_down"), d, ff);
            if let Kind::Three { deepstack, .. } = self.kind
                && deepstack.contains(&i)
            {
                let name = |tensor: &str| format!("v.deepstack.{i}.{tensor}");
                all.norm(&name("norm"), merged);
                all.affine(&name("fc1"), merged, merged);
                all.affine(&name("fc2"), e, merged);
            }
        }
        all.norm("v.post_ln", d);
        all.affine("mm.0", merged, merged);
        all.affine("mm.2", e, merged);
        all.tensors
    }

    pub(super) fn set_keys(&self, writer: &mut Writer<'_>) {
        let (projector, feature, mean, std): (&str, &str, [f32; 3], [f32; 3]) = match self.kind {
            Kind::Three { .. } => ("qwen3vl_merger", "use_gelu", [0.5; 3], [0.5; 3]),
            Kind::Two { .. } => (
                "qwen2.5vl_merger",
                "use_silu",
                [0.481_454_66, 0.457_827_5, 0.408_210_73],
                [0.268_629_54, 0.261_302_6, 0.275_777_1],
            ),
        };
        writer
            .set("general.architecture", "clip")
            .set("general.type", "mmproj")
            .set("general.name", format!("random {projector}"))
            // llama.cpp's `MOSTLY_F16`
            .set("general.file_type", 1u32);
        let mut put = |name: &str, value: OwnedValue| {
            writer.set(&format!("clip.{name}"), value);
        };
        put("has_vision_encoder", true.into());
        put("projector_type", projector.into());
        put(feature, true.into());
        put("vision.embedding_length", self.n_embd.into());
        put("vision.feed_forward_length", self.n_ff.into());
        put("vision.block_count", self.n_block.into());
        put("vision.attention.head_count", self.n_head.into());
        put("vision.attention.layer_norm_epsilon", 1e-6f32.into());
        put("vision.projection_dim", self.n_projected.into());
        put("vision.patch_size", self.patch.into());
        put("vision.image_mean", mean.to_vec().into());
        put("vision.image_std", std.to_vec().into());
        match self.kind {
            Kind::Three { side, deepstack } => {
                let has = |i: u32| deepstack.contains(&i);
                let blocks: Vec<bool> = (0..self.n_block).map(has).collect();
                put("vision.image_size", (side * self.patch).into());
                put("vision.spatial_merge_size", 2u32.into());
                put("vision.is_deepstack_layers", blocks.into());
            }
            Kind::Two { whole_every } => {
                put("vision.image_size", 560u32.into());
                put("vision.n_wa_pattern", whole_every.into());
            }
        }
    }
}

/// Sets the additional keys of a vision model's text model.
pub(super) fn set_text_keys(shape: &Shape, put: &mut dyn FnMut(&str, OwnedValue)) {
    // pairs for time, height, width, none, out of a real head's 64
    let of_64: [u32; 4] = match shape.arch {
        Arch::Qwen2vl => [16, 24, 24, 0],
        _ => [24, 20, 20, 0],
    };
    let pairs = shape.head_dim / 2;
    let sections = of_64.map(|n| (n * pairs / 64) as i32);
    put("rope.dimension_sections", sections.to_vec().into());
    if shape.arch == Arch::Qwen3vl {
        put("n_deepstack_layers", shape.n_deepstack.into());
    }
}

/// Tensors being listed.
struct List {
    /// Whether norms have biases.
    biases: bool,
    tensors: Vec<TowerTensor>,
}

impl List {
    fn put(&mut self, name: String, dims: Vec<u64>, ty: TensorType) {
        self.tensors.push(TowerTensor { name, dims, ty });
    }

    fn vector(&mut self, name: String, n: u64) {
        self.put(name, vec![n], TensorType::F32);
    }

    fn norm(&mut self, name: &str, n: u64) {
        self.vector(format!("{name}.weight"), n);
        if self.biases {
            self.vector(format!("{name}.bias"), n);
        }
    }

    fn affine(&mut self, name: &str, rows: u64, cols: u64) {
        self.put(format!("{name}.weight"), vec![cols, rows], TensorType::F16);
        self.vector(format!("{name}.bias"), rows);
    }
}
