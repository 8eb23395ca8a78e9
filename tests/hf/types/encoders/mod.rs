//! Vision encoders other than Qwen's, in folders made of the small files by hand: the same as these
//! files, and refused by name.

mod folders;
mod refused;

use super::cases::LLAMA;
use super::towers::{Both, colours, fuse_thirds};
use super::*;

/// A vision encoder's file, and its names in a folder.
struct Encoder {
    file: &'static str,
    /// Text model and settings.
    case: &'static Case,
    /// Settings of the preprocessor beside colours.
    preprocessor: fn() -> Value,
    /// GGUF's names and Hugging Face's; a dash marks those of tensors.
    names: &'static [&'static str],
    blocks: &'static str,
    /// Change of the file's tensors to those of a folder, before they are renamed.
    change: fn(&mut BTreeMap<String, Tensor>),
}

const SIGLIP: &str = "ln1=layer_norm1 ln2=layer_norm2 attn_q=self_attn.q_proj \
    attn_k=self_attn.k_proj attn_v=self_attn.v_proj attn_out=self_attn.out_proj ffn_up=mlp.fc1 \
    ffn_down=mlp.fc2";

/// Settings that the four encoders have in common.
fn vision(more: Value) -> Value {
    let mut all = json!({ "hidden_size": 32, "intermediate_size": 80, "num_hidden_layers": 2,
        "num_attention_heads": 2, "patch_size": 8, "image_size": 64, "num_channels": 3,
        "layer_norm_eps": 1e-6 });
    let (Value::Object(all_of), Value::Object(more)) = (&mut all, more) else {
        panic!("objects");
    };
    all_of.extend(more);
    all
}

/// Settings that the four text models have in common.
fn text(more: Value) -> Value {
    let mut all = json!({ "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
        "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
        "rms_norm_eps": 1e-6, "hidden_act": "silu", "tie_word_embeddings": true,
        "vocab_size": 0 });
    let (Value::Object(all_of), Value::Object(more)) = (&mut all, more) else {
        panic!("objects");
    };
    all_of.extend(more);
    all
}

const GEMMA3: Case = Case {
    file: "../../vision2/gemma3/gemma3-a-text-F32",
    model_type: "gemma3",
    config: || {
        let text = json!({ "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 7,
            "num_attention_heads": 2, "num_key_value_heads": 1, "max_position_embeddings": 512,
            "head_dim": 16, "query_pre_attn_scalar": 16, "sliding_window": 24,
            "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 0 });
        let vision = vision(json!({ "image_size": 96, "num_hidden_layers": 3,
            "model_type": "siglip_vision_model", "hidden_act": "gelu_pytorch_tanh" }));
        json!({ "text_config": text, "vision_config": vision, "mm_tokens_per_image": 9 })
    },
    names: &[names::WRAPPED_GEMMA],
    layers: "language_model.model.layers.",
    plus_one: true,
    ..LLAMA
};

const IDEFICS3: Case = Case {
    file: "../../vision2/idefics3/idefics3-a-text-F32",
    model_type: "idefics3",
    config: || {
        let text = text(
            json!({ "model_type": "llama", "head_dim": 32, "rms_norm_eps": 1e-5,
            "rope_theta": 1e5 }),
        );
        let vision = vision(json!({ "model_type": "idefics3_vision",
            "hidden_act": "gelu_pytorch_tanh" }));
        json!({ "text_config": text, "vision_config": vision, "scale_factor": 4 })
    },
    names: &[
        "token_embd=model.text_model.embed_tokens output_norm=model.text_model.norm",
        names::LLAMA,
    ],
    layers: "model.text_model.layers.",
    head_dim: 32,
    turned: true,
    ..LLAMA
};

const SMOLVLM: Case = Case {
    model_type: "smolvlm",
    ..IDEFICS3
};

/// Returns the settings of InternVL that both of its types have.
fn internvl(section: &str, act: &str) -> Value {
    let text = text(json!({ "model_type": "qwen2", "rope_theta": 1e6 }));
    let vision = vision(json!({ "hidden_act": act, "norm_type": "layer_norm" }));
    json!({ section: text, "vision_config": vision, "downsample_ratio": 0.25,
        "min_dynamic_patch": 1, "max_dynamic_patch": 4 })
}

const INTERNVL: Case = Case {
    file: "../../vision2/internvl/internvl-a-text-F32",
    model_type: "internvl",
    config: || {
        let mut all = internvl("text_config", "gelu");
        all["vision_config"]["image_size"] = json!([64, 64]);
        all["vision_config"]["patch_size"] = json!([8, 8]);
        all["vision_feature_layer"] = json!(-1);
        all
    },
    names: &[
        "token_embd=language_model.model.embed_tokens output_norm=language_model.model.norm",
        names::LLAMA,
    ],
    layers: "language_model.model.layers.",
    ..LLAMA
};

const INTERNVL_CHAT: Case = Case {
    model_type: "internvl_chat",
    config: || {
        let mut all = internvl("llm_config", "gelu");
        all["select_layer"] = json!(-1);
        all["ps_version"] = json!("v2");
        all
    },
    ..INTERNVL
};

const MISTRAL3: Case = Case {
    file: "../../vision2/pixtral/pixtral-a-text-F32",
    model_type: "mistral3",
    config: || {
        let text = text(
            json!({ "model_type": "ministral3", "head_dim": 32, "rms_norm_eps": 1e-5,
            "tie_word_embeddings": false, "rope_parameters": { "rope_theta": 1e6,
            "rope_type": "yarn", "factor": 4.0, "mscale": 1.0, "mscale_all_dim": 1.0,
            "llama_4_scaling_beta": 0.3, "original_max_position_embeddings": 16 } }),
        );
        let mut vision = vision(json!({ "model_type": "pixtral", "hidden_act": "silu",
            "num_hidden_layers": 3, "image_size": 1540, "head_dim": 16,
            "rope_theta": 1e4 }));
        // it is no setting of this encoder
        vision
            .as_object_mut()
            .expect("settings")
            .remove("layer_norm_eps");
        json!({ "text_config": text, "vision_config": vision, "spatial_merge_size": 2,
            "projector_hidden_act": "gelu", "vision_feature_layer": -1 })
    },
    names: &[
        "token_embd=language_model.model.embed_tokens output_norm=language_model.model.norm \
            output=language_model.lm_head",
        names::LLAMA,
    ],
    layers: "language_model.model.layers.",
    head_dim: 32,
    turned: true,
    ..LLAMA
};

/// The text models.
pub(super) const CASES: &[Case] = &[GEMMA3, IDEFICS3, SMOLVLM, INTERNVL, INTERNVL_CHAT, MISTRAL3];

const ENCODERS: &[Encoder] = &[
    Encoder {
        file: "vision2/gemma3/gemma3-a-mmproj-F32.gguf",
        case: &GEMMA3,
        preprocessor: || json!({ "image_seq_length": 9 }),
        names: &[
            SIGLIP,
            "v.patch_embd=vision_tower.vision_model.embeddings.patch_embedding \
                v.position_embd=vision_tower.vision_model.embeddings.position_embedding \
                v.post_ln=vision_tower.vision_model.post_layernorm \
                mm.soft_emb_norm=multi_modal_projector.mm_soft_emb_norm \
                mm.input_projection=-multi_modal_projector.mm_input_projection_weight",
        ],
        blocks: "vision_tower.vision_model.encoder.layers.",
        change: |file| {
            let norm = file.get_mut("mm.soft_emb_norm.weight").expect("there");
            norm.values.iter_mut().for_each(|v| *v -= 1.0);
        },
    },
    IDEFICS,
    Encoder {
        case: &SMOLVLM,
        ..IDEFICS
    },
    Encoder {
        file: "vision2/internvl/internvl-a-mmproj-F32.gguf",
        case: &INTERNVL,
        preprocessor: || json!({}),
        names: &[
            "ln1=layernorm_before ln2=layernorm_after attn_q=attention.q_proj \
                attn_k=attention.k_proj attn_v=attention.v_proj \
                attn_out=attention.projection_layer ffn_up=mlp.fc1 ffn_down=mlp.fc2 \
                ls1=-lambda_1 ls2=-lambda_2",
            "v.patch_embd=model.vision_tower.embeddings.patch_embeddings.projection \
                v.position_embd=-model.vision_tower.embeddings.position_embeddings \
                v=-model.vision_tower.embeddings.cls_token \
                mm.model.mlp.0=model.multi_modal_projector.layer_norm \
                mm.model.mlp.1=model.multi_modal_projector.linear_1 \
                mm.model.mlp.3=model.multi_modal_projector.linear_2",
        ],
        blocks: "model.vision_tower.encoder.layer.",
        change: |file| ones(file, &["v.class_embd", "v.position_embd.weight"]),
    },
    Encoder {
        file: "vision2/internvl/internvl-a-mmproj-F32.gguf",
        case: &INTERNVL_CHAT,
        preprocessor: || json!({}),
        names: &[
            "ln1=norm1 ln2=norm2 attn_qkv=attn.qkv attn_out=attn.proj ffn_up=mlp.fc1 \
                ffn_down=mlp.fc2 ls1=-ls1 ls2=-ls2",
            "v.patch_embd=vision_model.embeddings.patch_embedding \
                v.position_embd=-vision_model.embeddings.position_embedding \
                v=-vision_model.embeddings.class_embedding \
                mm.model.mlp.0=mlp1.0 mm.model.mlp.1=mlp1.1 mm.model.mlp.3=mlp1.3",
        ],
        blocks: "vision_model.encoder.layers.",
        change: |file| {
            ones(file, &["v.class_embd", "v.position_embd.weight"]);
            fuse_thirds(file);
        },
    },
    Encoder {
        file: "vision2/pixtral/pixtral-a-mmproj-F32.gguf",
        case: &MISTRAL3,
        preprocessor: || json!({}),
        names: &[
            "ln1=attention_norm ln2=ffn_norm attn_q=attention.q_proj attn_k=attention.k_proj \
                attn_v=attention.v_proj attn_out=attention.o_proj ffn_up=feed_forward.up_proj \
                ffn_gate=feed_forward.gate_proj ffn_down=feed_forward.down_proj",
            "v.patch_embd=vision_tower.patch_conv v.pre_ln=vision_tower.ln_pre \
                mm.input_norm=multi_modal_projector.norm \
                mm.patch_merger=multi_modal_projector.patch_merger.merging_layer \
                mm.1=multi_modal_projector.linear_1 mm.2=multi_modal_projector.linear_2",
        ],
        blocks: "vision_tower.transformer.layers.",
        change: |file| {
            // it is a row of the text model's embedding
            file.remove("v.token_embd.img_break").expect("there");
            for (name, tensor) in file.iter_mut() {
                if name.contains("attn_q.") || name.contains("attn_k.") {
                    *tensor = inverse::turned_back(tensor, 16);
                }
            }
        },
    },
];

const IDEFICS: Encoder = Encoder {
    file: "vision2/idefics3/idefics3-a-mmproj-F32.gguf",
    case: &IDEFICS3,
    preprocessor: || json!({ "size": { "longest_edge": 160 } }),
    names: &[
        SIGLIP,
        "v.patch_embd=model.vision_model.embeddings.patch_embedding \
            v.position_embd=model.vision_model.embeddings.position_embedding \
            v.post_ln=model.vision_model.post_layernorm \
            mm.model.fc=model.connector.modality_projection.proj",
    ],
    blocks: "model.vision_model.encoder.layers.",
    change: |_| {},
};

/// Adds dimensions that mean nothing: a class row and positions are of a batch of 1.
fn ones(file: &mut BTreeMap<String, Tensor>, names: &[&str]) {
    for name in names {
        let tensor = file.get_mut(*name).expect("there");
        while tensor.shape.len() < 3 {
            tensor.shape.insert(0, 1);
        }
    }
}

impl Encoder {
    /// Returns its folder's tensors.
    fn tensors(&self, tower: &Gguf) -> BTreeMap<String, Tensor> {
        let mut file = numbers(tower);
        (self.change)(&mut file);
        let pairs = self.names.iter().flat_map(|names| names.split_whitespace());
        let names: BTreeMap<&str, &str> = pairs.filter_map(|pair| pair.split_once('=')).collect();
        let renamed = file.into_iter().map(|(name, tensor)| {
            let (stem, suffix) = name.rsplit_once('.').expect("a suffix");
            let (before, part) = match stem.strip_prefix("v.blk.") {
                Some(rest) => {
                    let (block, part) = rest.split_once('.').expect("a block");
                    (format!("{}{block}.", self.blocks), part)
                }
                None => (String::new(), stem),
            };
            let to = names
                .get(part)
                .unwrap_or_else(|| panic!("no name for {name}"));
            let to = match to.strip_prefix('-') {
                Some(tensor) => format!("{before}{tensor}"),
                None => format!("{before}{to}.{suffix}"),
            };
            (to, tensor)
        });
        renamed.collect()
    }

    /// Returns the file with numbers that folders can have: a norm less one and more one is
    /// rounded, and the end of lines is the text model's row.
    fn expected(&self, tower: &Gguf, text: &Gguf) -> Gguf {
        let mut writer = Writer::new();
        for (key, value) in tower.keys() {
            writer.set(key, value);
        }
        for t in tower.tensors() {
            let data = match t.name.as_str() {
                "mm.soft_emb_norm.weight" => {
                    let values = &numbers(tower)[&t.name].values;
                    bytes(&values.iter().map(|v| (v - 1.0) + 1.0).collect::<Vec<f32>>())
                }
                "v.token_embd.img_break" => {
                    let tokenizer = Tokenizer::from_gguf(text).expect("a tokenizer");
                    let mut ids = 0..tokenizer.n_vocab() as u32;
                    let id = ids.find(|id| tokenizer.token_text(*id) == b"[IMG_BREAK]");
                    let embedding = &numbers(text)["token_embd.weight"];
                    let width = embedding.shape[1];
                    bytes(&embedding.values[id.expect("a token") as usize * width..][..width])
                }
                _ => tower.data(t).to_vec(),
            };
            writer.tensor(&t.name, &t.dims, t.ty, data);
        }
        let mut bytes = Vec::new();
        writer.write_to(&mut bytes).expect("written");
        Gguf::from_bytes(bytes, self.case.model_type, &OpenOptions::default()).expect("sound")
    }
}

/// Creates a folder of a text model and its vision encoder; `None` if the shared folder is absent.
fn both(encoder: &Encoder, dtype: safetensors::Dtype) -> Option<Both> {
    let models = shared("arch/models")?;
    let tower = open(&shared(encoder.file)?);
    let dir = TempDir::new().expect("a folder");
    let text = encoder.case.model(&models);
    let folder = folder(encoder.case, &text, &dir);
    let mut all = inverse::tensors(encoder.case, numbers(&text));
    all.extend(encoder.tensors(&tower));
    save_as(dtype, &all, &folder);
    let mut settings = (encoder.preprocessor)();
    for (key, value) in colours(&tower).as_object().expect("settings") {
        settings[key] = value.clone();
    }
    let path = folder.join("preprocessor_config.json");
    std::fs::write(path, settings.to_string()).expect("written");
    let tower = encoder.expected(&tower, &text);
    Some(Both { dir, folder, tower })
}

/// Creates the folder of a type in F32.
fn both_of(model_type: &str) -> Option<Both> {
    let mut encoders = ENCODERS.iter();
    let encoder = encoders.find(|encoder| encoder.case.model_type == model_type);
    both(encoder.expect("an encoder"), safetensors::Dtype::F32)
}

/// Renames tensors of a folder, or drops those without a new name.
fn rename(folder: &Path, to: impl Fn(&str) -> Option<String>) {
    let path = folder.join("model.safetensors");
    let bytes = std::fs::read(&path).expect("there");
    let file = safetensors::SafeTensors::deserialize(&bytes).expect("sound");
    let all = file.tensors().into_iter();
    let renamed: Vec<_> = all.filter_map(|(name, t)| Some((to(&name)?, t))).collect();
    let bytes = safetensors::serialize(renamed, None).expect("written");
    std::fs::write(&path, bytes).expect("written");
}

/// Creates the folders of all encoders, with their names.
pub(super) fn folders() -> Option<Vec<(&'static str, Both)>> {
    let of = |encoder: &Encoder| {
        let both = both(encoder, safetensors::Dtype::F32)?;
        Some((encoder.case.model_type, both))
    };
    ENCODERS.iter().map(of).collect()
}
