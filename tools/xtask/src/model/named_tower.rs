//! Vision towers that belong to no architecture of text models alone, at published sizes.

use clap::ValueEnum;
use gguf_rs_lite::{OwnedValue, TensorType, Writer};

use super::tower::TowerTensor;

/// A vision tower by its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum TowerName {
    /// SigLIP of 896 pixels: Gemma 3
    Gemma3,
    /// Gemma 4's, 27 blocks
    Gemma4v,
    /// Gemma 4's without blocks
    Gemma4uv,
    /// Mistral Small 3.1's
    Pixtral,
    /// SigLIP of 512 pixels, in tiles: SmolVLM 256M and 500M
    Idefics3,
    /// InternViT of 300M, in tiles of 448 pixels: InternVL 2.5, 3 and 3.5
    Internvl,
    /// SigLIP 2 of 400M, on any size and on tiles of 512 pixels: LFM2-VL 1.6B and 3B
    Lfm2,
    /// CLIP's ViT-L of 336 pixels: LLaVA 1.5 and, in tiles, 1.6
    Llava,
    /// MoonViT: Kimi-VL
    Kimivl,
}

/// A vision tower for text models of a width.
#[derive(Clone, Copy, Debug)]
pub(super) struct NamedTower {
    pub(super) name: TowerName,
    pub(super) n_projected: u32,
}

/// Entries of each axis in Gemma 4's tables of positions.
const POSITIONS: u64 = 10_240;
/// Mean and deviation of ImageNet's pixels.
const IMAGE_NET: [[f32; 3]; 2] = [[0.485, 0.456, 0.406], [0.229, 0.224, 0.225]];
/// Mean and deviation of CLIP's pixels.
const CLIP: [[f32; 3]; 2] = [
    [0.481_454_66, 0.457_827_5, 0.408_210_73],
    [0.268_629_54, 0.261_302_6, 0.275_777_1],
];

impl NamedTower {
    /// Returns the width, the feed-forward width, the numbers of blocks and heads, the side of a
    /// patch in pixels, and that of an image token in patches.
    fn sizes(self) -> [u32; 6] {
        match self.name {
            TowerName::Gemma3 => [1152, 4304, 27, 16, 14, 4],
            TowerName::Gemma4v => [1152, 4304, 27, 16, 16, 3],
            TowerName::Gemma4uv => [1152, 0, 0, 0, 16, 3],
            TowerName::Pixtral => [1024, 4096, 24, 16, 14, 2],
            TowerName::Idefics3 => [768, 3072, 12, 12, 16, 4],
            TowerName::Internvl => [1024, 4096, 24, 16, 14, 2],
            TowerName::Lfm2 => [1152, 4304, 27, 16, 16, 2],
            TowerName::Llava => [1024, 4096, 24, 16, 14, 1],
            TowerName::Kimivl => [1152, 4304, 27, 16, 14, 2],
        }
    }

    /// Returns the side of images in pixels.
    fn image_size(self) -> u32 {
        match self.name {
            TowerName::Gemma3 => 896,
            TowerName::Gemma4v | TowerName::Gemma4uv => 768,
            TowerName::Pixtral => 1540,
            TowerName::Idefics3 => 512,
            TowerName::Internvl => 448,
            TowerName::Lfm2 => 256,
            TowerName::Llava => 336,
            // its table of positions is that of 64 x 64 patches
            TowerName::Kimivl => 896,
        }
    }

    /// Returns whether matrices have biases, and every patch of the square image an entry in the
    /// table of positions.
    fn has_biases(self) -> bool {
        use TowerName::{Gemma3, Idefics3, Internvl, Kimivl, Lfm2, Llava};
        let square = matches!(self.name, Gemma3 | Idefics3 | Internvl | Llava);
        square || matches!(self.name, Lfm2 | Kimivl)
    }

    /// Returns whether a class row follows the patches.
    fn has_class_row(self) -> bool {
        matches!(self.name, TowerName::Internvl | TowerName::Llava)
    }

    /// Returns every tensor; matrices and patch kernels in F16, as llama.cpp's converter writes
    /// them.
    pub(super) fn tensors(self) -> Vec<TowerTensor> {
        let (d, p) = (u64::from(self.sizes()[0]), u64::from(self.sizes()[4]));
        let mut all = Vec::new();
        let mut put = |name: &str, dims: &[u64]| {
            let ty = match dims.len() == 1 || name.contains("position_embd") {
                true => TensorType::F32,
                false => TensorType::F16,
            };
            all.push(TowerTensor {
                name: name.to_owned(),
                dims: dims.to_vec(),
                ty,
            });
        };
        if self.name != TowerName::Gemma4uv {
            put("v.patch_embd.weight", &[p, p, 3, d]);
        }
        for l in 0..self.sizes()[2] {
            self.put_block(&mut |name, dims| put(&format!("v.blk.{l}.{name}"), dims));
        }
        if self.has_biases() {
            let has_class = self.has_class_row();
            let side = u64::from(self.image_size()) / p;
            if self.name != TowerName::Llava {
                put("v.patch_embd.bias", &[d]);
            }
            put(
                "v.position_embd.weight",
                &[d, side * side + u64::from(has_class)],
            );
            match has_class {
                true => put("v.class_embd", &[d]),
                false => put_layer_norm("v.post_ln", d, &mut put),
            }
        }
        self.put_projector(&mut put);
        all
    }

    fn put_block(self, put: &mut dyn FnMut(&str, &[u64])) {
        let [d, ff, _, heads, ..] = self.sizes().map(u64::from);
        let vectors = [
            ("ln1", d),
            ("ln2", d),
            ("attn_q", d),
            ("attn_k", d),
            ("attn_v", d),
            ("attn_out", d),
            ("ffn_up", ff),
            ("ffn_down", d),
        ];
        for (part, n) in &vectors[..2] {
            put(&format!("{part}.weight"), &[*n]);
        }
        for (part, _) in &vectors[2..6] {
            put(&format!("{part}.weight"), &[d, d]);
        }
        put("ffn_up.weight", &[d, ff]);
        put("ffn_down.weight", &[ff, d]);
        match self.has_biases() {
            true => vectors
                .iter()
                .for_each(|(part, n)| put(&format!("{part}.bias"), &[*n])),
            false => put("ffn_gate.weight", &[d, ff]),
        }
        if self.name == TowerName::Internvl {
            put("ls1.weight", &[d]);
            put("ls2.weight", &[d]);
        }
        if self.name == TowerName::Gemma4v {
            for part in ["attn_q_norm", "attn_k_norm"] {
                put(&format!("{part}.weight"), &[d / heads]);
            }
            for part in ["attn_post_norm", "ffn_post_norm"] {
                put(&format!("{part}.weight"), &[d]);
            }
        }
    }

    /// Passes the projector's tensors, and those of patches where a tower has no blocks.
    fn put_projector(self, put: &mut dyn FnMut(&str, &[u64])) {
        let [d, .., p, merge] = self.sizes().map(u64::from);
        let e = u64::from(self.n_projected);
        match self.name {
            TowerName::Gemma3 => {
                put("mm.soft_emb_norm.weight", &[d]);
                put("mm.input_projection.weight", &[e, d]);
            }
            TowerName::Gemma4v => {
                put("v.position_embd.weight", &[d, POSITIONS, 2]);
                put("mm.input_projection.weight", &[d, e]);
            }
            TowerName::Gemma4uv => {
                let values = 3 * (p * merge).pow(2);
                for (norm, n) in [(1, values), (2, d), (3, d)] {
                    put_layer_norm(&format!("v.patch_norm.{norm}"), n, put);
                }
                put("v.patch_embd.weight", &[values, d]);
                put("v.patch_embd.bias", &[d]);
                put("v.position_embd.weight", &[d, POSITIONS, 2]);
                put("mm.input_projection.weight", &[d, e]);
            }
            TowerName::Pixtral => {
                put("v.pre_ln.weight", &[d]);
                put("mm.input_norm.weight", &[d]);
                put("mm.patch_merger.weight", &[d * merge * merge, d]);
                put("mm.1.weight", &[d, e]);
                put("mm.2.weight", &[e, e]);
                put("v.token_embd.img_break", &[e]);
            }
            TowerName::Idefics3 => put("mm.model.fc.weight", &[d * merge * merge, e]),
            TowerName::Lfm2 | TowerName::Kimivl => {
                let merged = d * merge * merge;
                let [inner, normed] = match self.name {
                    TowerName::Lfm2 => [2560, merged],
                    _ => [merged, d],
                };
                put_layer_norm("mm.input_norm", normed, put);
                for (part, [from, to]) in [(1, [merged, inner]), (2, [inner, e])] {
                    put(&format!("mm.{part}.weight"), &[from, to]);
                    put(&format!("mm.{part}.bias"), &[to]);
                }
            }
            TowerName::Llava => {
                put_layer_norm("v.pre_ln", d, put);
                for (part, from) in [(0, d), (2, e)] {
                    put(&format!("mm.{part}.weight"), &[from, e]);
                    put(&format!("mm.{part}.bias"), &[e]);
                }
            }
            TowerName::Internvl => {
                let merged = d * merge * merge;
                put_layer_norm("mm.model.mlp.0", merged, put);
                for (part, n) in [(1, merged), (3, e)] {
                    put(&format!("mm.model.mlp.{part}.weight"), &[n, e]);
                    put(&format!("mm.model.mlp.{part}.bias"), &[e]);
                }
            }
        }
    }

    pub(super) fn set_keys(self, writer: &mut Writer<'_>) {
        let [d, ff, blocks, heads, patch, merge] = self.sizes();
        let (projector, feature, [mean, std], eps) = match self.name {
            TowerName::Gemma3 => ("gemma3", Some("use_gelu"), [[0.5; 3]; 2], 1e-6f32),
            TowerName::Gemma4v => ("gemma4v", None, [[0.0; 3], [1.0; 3]], 1e-6),
            TowerName::Gemma4uv => ("gemma4uv", None, [[0.0; 3], [1.0; 3]], 1e-6),
            TowerName::Pixtral => ("pixtral", Some("use_silu"), CLIP, 1e-5),
            TowerName::Idefics3 => ("idefics3", Some("use_gelu"), [[0.5; 3]; 2], 1e-5),
            TowerName::Internvl => ("internvl", Some("use_gelu"), IMAGE_NET, 1e-6),
            TowerName::Lfm2 => ("lfm2", Some("use_gelu"), [[0.5; 3]; 2], 1e-6),
            // quick GELU
            TowerName::Llava => ("mlp", None, CLIP, 1e-5),
            TowerName::Kimivl => ("kimivl", Some("use_gelu"), [[0.5; 3]; 2], 1e-5),
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
        if let Some(feature) = feature {
            put(feature, true.into());
        }
        put("vision.embedding_length", d.into());
        put("vision.feed_forward_length", ff.into());
        put("vision.block_count", blocks.into());
        put("vision.attention.head_count", heads.into());
        put("vision.attention.layer_norm_epsilon", eps.into());
        put("vision.projection_dim", self.n_projected.into());
        put("vision.image_size", self.image_size().into());
        put("vision.patch_size", patch.into());
        put("vision.image_mean", mean.to_vec().into());
        put("vision.image_std", std.to_vec().into());
        match self.name {
            TowerName::Pixtral => put("vision.spatial_merge_size", merge.into()),
            _ => put("vision.projector.scale_factor", merge.into()),
        }
        if self.name == TowerName::Idefics3 {
            put("vision.preproc_image_size", 2048u32.into());
        }
    }
}

/// Passes the tensors of a layer norm.
fn put_layer_norm(name: &str, n: u64, put: &mut dyn FnMut(&str, &[u64])) {
    put(&format!("{name}.weight"), &[n]);
    put(&format!("{name}.bias"), &[n]);
}
