//! Folders with vision encoders are the small files that they were made of.

use octavo_vision::Tower;

use super::*;

#[test]
fn encoders_of_folders_are_their_files() {
    let Some(folders) = folders() else {
        return;
    };
    let image = shared("vision/images/wide.png").expect("it is there");
    let image = image.display().to_string();
    for (what, both) in folders {
        let view = both
            .open()
            .unwrap_or_else(|error| panic!("{what}: {error}"));
        same_tensors(&view, &both.tower, what);
        for (key, value) in both.tower.keys() {
            // the converter derives it from all tensors, and a folder has another name
            if !["general.file_type", "general.name"].contains(&key) {
                assert_eq!(
                    view.get(key).map(shown),
                    Some(shown(value)),
                    "{what}: {key}"
                );
            }
        }
        Tower::load(&view).unwrap_or_else(|error| panic!("{what}: {error}"));
        // the folder's text model has nothing of the vision encoder
        hf::check(&hf::open(&both.folder, &OpenOptions::default()).expect("read")).expect("text");
        let (model, tower) = (
            both.dir.path().join("a.gguf"),
            both.dir.path().join("b.gguf"),
        );
        let args = [&both.folder, &model, &tower].map(|path| path.display().to_string());
        crate::cli::good(&["convert", &args[0], &args[1], "--mmproj", &args[2]]);
        same_tensors(&open(&tower), &both.tower, what);
        let dump = both.dir.path().join("logits.gguf").display().to_string();
        let logits = |model: &str, tower: &str| {
            let prompt = ["-p", "What is in <__media__>?", "--dump", &dump, "--force"];
            let see = ["logits", model, "--mmproj", tower, "--image", &image];
            crate::cli::good(&[&see[..], &prompt[..]].concat());
            let dumped = open(Path::new(&dump));
            let logits = dumped.tensor("logits").expect("dumped");
            dumped.data(logits).to_vec()
        };
        // a folder is its own vision encoder
        let same = logits(&args[0], &args[0]) == logits(&args[1], &args[2]);
        assert!(same, "{what}: other logits");
    }
}

/// Types, and names as other versions of transformers write them: the tensors are the same.
#[test]
fn names_of_other_versions_mean_the_same() {
    for (model_type, from, to) in [
        ("gemma3", "vision_tower.vision_model.", "vision_tower."),
        ("gemma3", "vision_tower.", "model.vision_tower."),
        ("internvl", "model.vision_tower.", "vision_tower."),
        (
            "internvl",
            "model.multi_modal_projector.",
            "multi_modal_projector.",
        ),
        ("mistral3", "vision_tower.", "model.vision_tower."),
        ("mistral3", "language_model.model.", "model.language_model."),
    ] {
        let Some(both) = both_of(model_type) else {
            return;
        };
        rename(&both.folder, |name| Some(name.replacen(from, to, 1)));
        let view = both.open().unwrap_or_else(|error| panic!("{to}: {error}"));
        same_tensors(&view, &both.tower, to);
        let text = hf::open(&both.folder, &OpenOptions::default()).expect("read");
        hf::check(&text).expect("a text model");
    }
}

/// Settings that real folders leave out are those of transformers.
#[test]
fn settings_that_are_left_out_are_those_of_transformers() {
    let left_out = json!({ "vision_config": { "model_type": "pixtral" } });
    for (model_type, [width, feed_forward, blocks, heads, patch, side]) in [
        ("gemma3", [768, 3072, 12, 12, 16, 224]),
        ("smolvlm", [1152, 3072, 12, 16, 32, 224]),
        ("internvl", [1024, 4096, 24, 16, 14, 448]),
        ("mistral3", [1024, 4096, 24, 16, 16, 1024]),
    ] {
        let Some(both) = both_of(model_type) else {
            return;
        };
        both.change("config.json", |c| {
            c["vision_config"] = left_out["vision_config"].clone()
        });
        both.change("preprocessor_config.json", |c| {
            c["image_seq_length"] = json!(49)
        });
        let view = both
            .open()
            .unwrap_or_else(|error| panic!("{model_type}: {error}"));
        for (key, expected) in [
            ("embedding_length", width),
            ("feed_forward_length", feed_forward),
            ("block_count", blocks),
            ("attention.head_count", heads),
            ("patch_size", patch),
            ("image_size", side),
        ] {
            let found = view.u32(&format!("clip.vision.{key}")).expect("a number");
            assert_eq!(found, Some(expected), "{model_type}: {key}");
        }
    }
}

/// Types of tensors that are the same in every file: patch kernels of SigLIP, Gemma 3's projector.
#[test]
fn fixed_types_are_the_converters() {
    use safetensors::Dtype;
    let (f32, f16, bf16) = (TensorType::F32, TensorType::F16, TensorType::BF16);
    for (model_type, name, [in_f32, in_f16, in_bf16]) in [
        ("gemma3", "v.patch_embd.weight", [f32, f32, f32]),
        ("gemma3", "mm.input_projection.weight", [f16, f16, f16]),
        ("gemma3", "mm.soft_emb_norm.weight", [f32, f32, f32]),
        ("gemma3", "v.blk.0.attn_q.weight", [f32, f16, bf16]),
        ("idefics3", "v.patch_embd.weight", [f32, f32, f32]),
        ("idefics3", "mm.model.fc.weight", [f32, f16, bf16]),
        ("internvl", "v.patch_embd.weight", [f32, f16, f32]),
        ("internvl", "v.class_embd", [f32, f32, f32]),
        ("internvl", "v.blk.0.ls1.weight", [f32, f32, f32]),
        ("mistral3", "mm.patch_merger.weight", [f32, f16, f32]),
        ("mistral3", "v.token_embd.img_break", [f32, f32, f32]),
    ] {
        let encoder = ENCODERS.iter().find(|e| e.case.model_type == model_type);
        for dtype in [Dtype::F32, Dtype::F16, Dtype::BF16] {
            let Some(both) = both(encoder.expect("an encoder"), dtype) else {
                return;
            };
            let view = both.open().expect("read");
            for (to, expected) in [(f32, in_f32), (f16, in_f16), (bf16, in_bf16)] {
                let path = both.dir.path().join("mmproj.gguf");
                convert(&view, Some(to), &path, 1);
                let written = open(&path);
                let found = written.tensor(name).expect("there").ty;
                assert_eq!(
                    found, expected,
                    "{model_type}: {name} of {dtype:?} as {to:?}"
                );
            }
        }
    }
}

/// Pixtral 12B: LLaVA around a Mistral, and no merger of patches.
#[test]
fn llava_with_pixtral_has_no_merger() {
    let Some(both) = both_of("mistral3") else {
        return;
    };
    both.change("config.json", |c| {
        c["model_type"] = json!("llava");
        c["vision_feature_select_strategy"] = json!("full");
        c["spatial_merge_size"].take();
        c["text_config"]["model_type"] = json!("mistral");
        c["text_config"]["rope_parameters"].take();
        c["text_config"]["rope_theta"] = json!(1e9);
    });
    let is_merger = |name: &str| name.contains("patch_merger") || name.contains("projector.norm");
    rename(&both.folder, |name| {
        (!is_merger(name)).then(|| name.to_owned())
    });
    let view = both.open().expect("read");
    assert!(view.get("clip.vision.spatial_merge_size").is_none());
    assert_eq!(view.tensors().len(), both.tower.tensors().len() - 2);
    assert_eq!(Tower::load(&view).expect("a tower").hparams.merge, 1);
    let text = hf::open(&both.folder, &OpenOptions::default()).expect("read");
    assert_eq!(
        text.str("general.architecture").expect("a string"),
        Some("llama")
    );
    hf::check(&text).expect("a text model");
}
