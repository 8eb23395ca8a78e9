//! Models that map texts to vectors or score them, and BERT's WordPiece.

use super::cases::LLAMA;
use super::names::GEMMA;
use super::*;

/// Names of BERT's tensors, those outside of layers without a prefix.
const BERT: &str = "token_embd=embeddings.word_embeddings \
    token_types=embeddings.token_type_embeddings position_embd=embeddings.position_embeddings \
    token_embd_norm=embeddings.LayerNorm attn_q=attention.self.query attn_k=attention.self.key \
    attn_v=attention.self.value attn_output=attention.output.dense \
    attn_output_norm=attention.output.LayerNorm ffn_up=intermediate.dense ffn_down=output.dense \
    layer_output_norm=output.LayerNorm";

const MODERN_BERT: &str = "token_embd=model.embeddings.tok_embeddings \
    token_embd_norm=model.embeddings.norm output_norm=model.final_norm attn_norm=attn_norm \
    attn_qkv=attn.Wqkv attn_output=attn.Wo ffn_norm=mlp_norm ffn_up=mlp.Wi ffn_down=mlp.Wo \
    cls=head.dense cls.norm=head.norm cls.output=classifier";

/// Settings of a ModernBERT, and some more.
fn modern_bert(width: usize, heads: usize, window: usize, more: Value) -> Value {
    let mut config = json!({
        "hidden_size": width, "intermediate_size": 48, "num_hidden_layers": 4,
        "num_attention_heads": heads, "max_position_embeddings": 256, "norm_eps": 1e-5,
        "norm_bias": false, "attention_bias": false, "mlp_bias": false,
        "hidden_activation": "gelu", "global_rope_theta": 160_000.0, "local_rope_theta": 1e4,
        "local_attention": window, "global_attn_every_n_layers": 3,
    });
    for (name, value) in more.as_object().expect("settings") {
        config[name] = value.clone();
    }
    config
}

pub(super) const CASES: &[Case] = &[
    Case {
        file: "bert",
        model_type: "bert",
        config: || {
            json!({
                "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "max_position_embeddings": 512, "layer_norm_eps": 1e-12,
                "hidden_act": "gelu", "position_embedding_type": "absolute", "type_vocab_size": 2,
            })
        },
        names: &[
            "token_embd=bert.embeddings.word_embeddings \
            token_types=bert.embeddings.token_type_embeddings \
            position_embd=bert.embeddings.position_embeddings \
            token_embd_norm=bert.embeddings.LayerNorm",
            BERT,
        ],
        layers: "bert.encoder.layer.",
        pooling: "cls_token",
        ..LLAMA
    },
    Case {
        file: "../../feat/embed/models/e5",
        model_type: "xlm-roberta",
        config: || {
            json!({
                "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2,
                "num_attention_heads": 4, "max_position_embeddings": 98, "layer_norm_eps": 1e-5,
                "hidden_act": "gelu", "type_vocab_size": 1, "pad_token_id": 1,
            })
        },
        names: &[BERT],
        layers: "encoder.layer.",
        // two rows that no token has come first
        change: |file| {
            let positions = file.get_mut("position_embd.weight").expect("there");
            positions.shape[0] += 2;
            positions.values.splice(0..0, [9.0; 64]);
        },
        pooling: "mean_tokens",
        ..LLAMA
    },
    Case {
        file: "../../feat/embed/models/bge-reranker",
        model_type: "xlm-roberta",
        config: || {
            json!({
                "architectures": ["XLMRobertaForSequenceClassification"],
                "hidden_size": 36, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 3, "max_position_embeddings": 226, "layer_norm_eps": 1e-5,
                "hidden_act": "gelu", "type_vocab_size": 1, "pad_token_id": 1,
            })
        },
        names: &[BERT, "cls=classifier.dense cls.output=classifier.out_proj"],
        layers: "encoder.layer.",
        change: |file| {
            let positions = file.get_mut("position_embd.weight").expect("there");
            positions.shape[0] += 2;
            positions.values.splice(0..0, [9.0; 72]);
        },
        ..LLAMA
    },
    Case {
        file: "../../feat/embed/models/cross-encoder",
        model_type: "bert",
        config: || {
            json!({
                "architectures": ["BertForSequenceClassification"],
                "hidden_size": 36, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 3, "max_position_embeddings": 192, "layer_norm_eps": 1e-5,
                "hidden_act": "gelu", "type_vocab_size": 2, "id2label": { "0": "LABEL_0" },
            })
        },
        names: &[BERT, "cls.output=classifier"],
        layers: "encoder.layer.",
        ..LLAMA
    },
    Case {
        file: "../../feat/embed/models/eurobert",
        model_type: "eurobert",
        config: || {
            json!({
                "hidden_size": 36, "intermediate_size": 48, "num_hidden_layers": 2,
                "num_attention_heads": 3, "num_key_value_heads": 1, "rms_norm_eps": 1e-5,
                "max_position_embeddings": 256, "rope_theta": 250_000.0, "hidden_act": "silu",
            })
        },
        names: &[
            "token_embd=model.embed_tokens output_norm=model.norm attn_norm=input_layernorm \
            attn_q=self_attn.q_proj attn_k=self_attn.k_proj attn_v=self_attn.v_proj \
            attn_output=self_attn.o_proj ffn_norm=post_attention_layernorm \
            ffn_gate=mlp.gate_proj ffn_up=mlp.up_proj ffn_down=mlp.down_proj",
        ],
        layers: "model.layers.",
        pooling: "mean_tokens",
        ..LLAMA
    },
    Case {
        file: "../../feat/embed/models/modern-bert",
        model_type: "modernbert",
        config: || modern_bert(36, 3, 16, json!({})),
        names: &[MODERN_BERT],
        layers: "model.layers.",
        pooling: "cls_token",
        ..LLAMA
    },
    Case {
        file: "../../feat/embed/models/modern-bert-reranker",
        model_type: "modernbert",
        config: || {
            let names = ["ModernBertForSequenceClassification"];
            modern_bert(
                32,
                2,
                20,
                json!({ "architectures": names, "classifier_pooling": "mean" }),
            )
        },
        names: &[MODERN_BERT],
        layers: "model.layers.",
        ..LLAMA
    },
    Case {
        file: "nomic-bert",
        model_type: "nomic_bert",
        config: || {
            json!({
                "n_embd": 64, "n_inner": 64, "n_layer": 2, "n_head": 4, "n_positions": 512,
                "layer_norm_epsilon": 1e-12, "activation_function": "swiglu", "causal": false,
                "qkv_proj_bias": false, "mlp_fc1_bias": false, "mlp_fc2_bias": false,
                "prenorm": false, "rotary_emb_fraction": 1.0, "rotary_emb_base": 1000,
                "rotary_emb_interleaved": false, "rotary_emb_scale_base": null,
                "type_vocab_size": 2,
            })
        },
        names: &["token_embd=embeddings.word_embeddings \
            token_types=embeddings.token_type_embeddings token_embd_norm=emb_ln \
            attn_qkv=attn.Wqkv attn_output=attn.out_proj attn_output_norm=norm1 \
            ffn_gate=mlp.fc12 ffn_up=mlp.fc11 ffn_down=mlp.fc2 layer_output_norm=norm2"],
        layers: "encoder.layers.",
        pooling: "mean_tokens",
        ..LLAMA
    },
    Case {
        file: "gemma-embedding",
        model_type: "gemma3_text",
        config: || {
            json!({
                "architectures": ["Gemma3TextModel"],
                "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 7,
                "num_attention_heads": 4, "num_key_value_heads": 2,
                "max_position_embeddings": 512, "head_dim": 16, "query_pre_attn_scalar": 16,
                "sliding_window": 24, "hidden_activation": "gelu_pytorch_tanh", "vocab_size": 0,
                "rope_theta": 1e6, "use_bidirectional_attention": true,
            })
        },
        names: &["token_embd=embed_tokens output_norm=norm", GEMMA],
        layers: "layers.",
        plus_one: true,
        pooling: "mean_tokens",
        ..LLAMA
    },
];

/// Writes `modules.json` and the settings of pooling, as sentence-transformers does.
pub(super) fn with_pooling(kind: &str, folder: &Path) {
    let pooling = folder.join("1_Pooling");
    std::fs::create_dir(&pooling).expect("made");
    let modules = json!([
        { "idx": 0, "path": "", "type": "sentence_transformers.models.Transformer" },
        { "idx": 1, "path": "1_Pooling", "type": "sentence_transformers.models.Pooling" },
        { "idx": 2, "path": "2_Normalize", "type": "sentence_transformers.models.Normalize" },
    ]);
    std::fs::write(folder.join("modules.json"), modules.to_string()).expect("written");
    let settings = ["cls_token", "mean_tokens", "max_tokens"].map(|name| {
        let flag = json!(name == kind);
        (format!("pooling_mode_{name}"), flag)
    });
    let settings: serde_json::Map<String, Value> = settings.into_iter().collect();
    std::fs::write(pooling.join("config.json"), json!(settings).to_string()).expect("written");
}

/// Writes the vocabulary of a WordPiece model as transformers does; returns its size.
pub(super) fn wordpiece(model: &Gguf, folder: &Path) -> usize {
    let tokens = texts(model);
    let special = |text: &str| text.starts_with('[') && text.ends_with(']');
    let vocab: serde_json::Map<String, Value> = tokens
        .iter()
        .zip(0..)
        .map(|(text, id)| (text.clone(), json!(id)))
        .collect();
    assert_eq!(vocab.len(), tokens.len());
    let added: Vec<Value> = tokens
        .iter()
        .enumerate()
        .filter(|(_, text)| special(text))
        .map(|(id, text)| json!({ "id": id, "content": text, "special": true }))
        .collect();
    let tokenizer = json!({
        "added_tokens": added,
        "normalizer": { "type": "BertNormalizer", "clean_text": true,
            "handle_chinese_chars": true, "strip_accents": null, "lowercase": true },
        "pre_tokenizer": { "type": "BertPreTokenizer" },
        "post_processor": { "type": "TemplateProcessing", "single": [
            { "SpecialToken": { "id": "[CLS]", "type_id": 0 } },
            { "Sequence": { "id": "A", "type_id": 0 } },
            { "SpecialToken": { "id": "[SEP]", "type_id": 0 } },
        ] },
        "model": { "type": "WordPiece", "unk_token": "[UNK]", "vocab": vocab,
            "continuing_subword_prefix": "##", "max_input_chars_per_word": 100 },
    });
    std::fs::create_dir_all(folder).expect("made");
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    tokens.len()
}

/// Writes the vocabulary of a Unigram model as transformers does; returns its size.
pub(super) fn unigram(model: &Gguf, folder: &Path) -> usize {
    let array = |key: &str| {
        let array = model.array(&format!("tokenizer.ggml.{key}"));
        array.expect("an array").expect("there")
    };
    let tokens = array("tokens").strings().expect("strings");
    let tokens = tokens.map(|token| String::from_utf8_lossy(token).into_owned());
    let tokens: Vec<String> = tokens.collect();
    let scores: Vec<f32> = array("scores").f32s().expect("floats").collect();
    let types: Vec<i32> = array("token_type").i32s().expect("types").collect();
    let map: Vec<u8> = array("precompiled_charsmap")
        .u8s()
        .expect("bytes")
        .collect();
    let vocab: Vec<Value> = tokens.iter().zip(&scores).map(|pair| json!(pair)).collect();
    let added: Vec<Value> = tokens
        .iter()
        .zip(types)
        .enumerate()
        .filter(|(_, (_, ty))| matches!(ty, 2..=4))
        .map(|(id, (text, ty))| json!({ "id": id, "content": text, "special": ty != 4 }))
        .collect();
    let tokenizer = json!({
        "added_tokens": added,
        "normalizer": { "type": "Sequence", "normalizers": [
            { "type": "Precompiled", "precompiled_charsmap": base64(&map) },
            { "type": "Replace", "pattern": { "Regex": " {2,}" }, "content": " " },
        ] },
        "pre_tokenizer": { "type": "Sequence", "pretokenizers": [
            { "type": "WhitespaceSplit" },
            { "type": "Metaspace", "replacement": "\u{2581}", "prepend_scheme": "always" },
        ] },
        "post_processor": { "type": "TemplateProcessing", "single": [
            { "SpecialToken": { "id": "<s>", "type_id": 0 } },
            { "Sequence": { "id": "A", "type_id": 0 } },
            { "SpecialToken": { "id": "</s>", "type_id": 0 } },
        ] },
        "model": { "type": "Unigram", "unk_id": 3, "vocab": vocab, "byte_fallback": false },
    });
    std::fs::create_dir_all(folder).expect("made");
    std::fs::write(folder.join("tokenizer.json"), tokenizer.to_string()).expect("written");
    tokens.len()
}

fn base64(bytes: &[u8]) -> String {
    const DIGITS: &[u8; 64] = b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";
    let mut out = String::new();
    for three in bytes.chunks(3) {
        let byte = |i: usize| u32::from(three.get(i).copied().unwrap_or(0));
        let all = byte(0) << 16 | byte(1) << 8 | byte(2);
        for digit in 0..4 {
            let six = all >> (18 - 6 * digit) & 63;
            let is_there = digit <= three.len();
            out.push(if is_there {
                DIGITS[six as usize].into()
            } else {
                '='
            });
        }
    }
    out
}

/// Returns the tokens of a WordPiece model as BERT's vocabularies have them.
fn texts(model: &Gguf) -> Vec<String> {
    let tokens = model.array("tokenizer.ggml.tokens").expect("an array");
    let tokens = tokens.expect("there");
    let text = |token: &[u8]| String::from_utf8_lossy(token).into_owned();
    let plain = |token: String| match token.strip_prefix('\u{2581}') {
        Some(word) => word.to_owned(),
        None if token.starts_with('[') && token.len() > 2 => token,
        None => format!("##{token}"),
    };
    let all = tokens.strings().expect("strings");
    all.map(|token| plain(text(token))).collect()
}

/// A list of tokens in place of `tokenizer.json` gives the same file.
#[test]
fn a_list_of_tokens_is_enough() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let case = case("bert");
    let dir = TempDir::new().expect("a folder");
    let model = case.model(&models);
    let folder = folder(case, &model, &dir);
    let whole = hf::open(&folder, &OpenOptions::default()).expect("a folder");
    std::fs::remove_file(folder.join("tokenizer.json")).expect("there");
    let list = texts(&model).join("\n");
    std::fs::write(folder.join("vocab.txt"), list).expect("written");
    let listed = hf::open(&folder, &OpenOptions::default()).expect("a folder");
    for key in ["tokens", "token_type", "unknown_token_id", "bos_token_id"] {
        let key = format!("tokenizer.ggml.{key}");
        let shown = |gguf: &Gguf| gguf.get(&key).map(shown);
        assert_eq!(shown(&whole), shown(&listed), "{key}");
    }
    let [a, b] = [&whole, &listed].map(|g| Tokenizer::from_gguf(g).expect("a tokenizer"));
    let encode = |t: &Tokenizer| t.encode(TEXT.as_bytes(), EncodeOptions::PROMPT);
    assert_eq!(encode(&a).expect("tokens"), encode(&b).expect("tokens"));
}

/// Two products after pooling, each in a folder of its own.
#[test]
fn products_after_pooling_come_along() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let case = case_of("gemma-embedding");
    let dir = TempDir::new().expect("a folder");
    let folder = folder(case, &case.model(&models), &dir);
    let path = folder.join("modules.json");
    let modules = std::fs::read(&path).expect("there");
    let mut modules: Value = serde_json::from_slice(&modules).expect("JSON");
    for (name, [out, input]) in [("2_Dense", [96, 64]), ("3_Dense", [64, 96])] {
        let more = json!({ "path": name, "type": "sentence_transformers.models.Dense" });
        modules.as_array_mut().expect("a list").push(more);
        let at = folder.join(name);
        std::fs::create_dir(&at).expect("made");
        let settings = json!({ "in_features": input, "out_features": out, "bias": false,
            "activation_function": "torch.nn.modules.linear.Identity" });
        std::fs::write(at.join("config.json"), settings.to_string()).expect("written");
        let values = (0..out * input).map(|i| (i % 7) as f32 - 3.0).collect();
        let shape = vec![out, input];
        let weight = Tensor { shape, values };
        let tensors = BTreeMap::from([("linear.weight".to_owned(), weight)]);
        save(&tensors, &at);
    }
    std::fs::write(&path, modules.to_string()).expect("written");
    let view = hf::open(&folder, &OpenOptions::default()).expect("a folder");
    let dims = |name: &str| view.tensor(name).expect("there").dims.clone();
    assert_eq!(dims("dense_2.weight"), [64, 96]);
    assert_eq!(dims("dense_3.weight"), [96, 64]);
    hf::check(&view).expect("a model");
    assert_eq!(embedding(&folder).len(), 64);

    // one alone has no place in llama.cpp's graph
    modules.as_array_mut().expect("a list").pop();
    std::fs::write(&path, modules.to_string()).expect("written");
    let opened = hf::open(&folder, &OpenOptions::default());
    let error = opened.map(drop).expect_err("one product").to_string();
    assert!(error.contains("2 Dense modules, or none"), "{error}");
}

/// Modules and vocabularies without a counterpart in llama.cpp are refused by name.
#[test]
fn other_modules_are_refused_by_name() {
    let Some(models) = shared("arch/models") else {
        return;
    };
    let case = case("bert");
    let dir = TempDir::new().expect("a folder");
    let folder = folder(case, &case.model(&models), &dir);
    let refusal = |path: &str, contents: Value| {
        let path = folder.join(path);
        let before = std::fs::read(&path).expect("there");
        std::fs::write(&path, contents.to_string()).expect("written");
        let opened = hf::open(&folder, &OpenOptions::default());
        let error = opened.map(drop).expect_err("another module").to_string();
        assert!(!error.contains('\n'), "{error}");
        std::fs::write(&path, before).expect("written");
        error
    };
    let module = |class: &str, path: &str| json!([{ "type": class, "path": path }]);
    for (contents, part) in [
        (module("models.WordWeights", "1"), "WordWeights"),
        (module("models.Dense", "2_Dense"), "no Dense module"),
        (
            module("models.Pooling", "../1_Pooling"),
            "inside of the model's",
        ),
        (module("models.Pooling", "none"), "none/config.json"),
        (json!({}), "a list of modules"),
    ] {
        let error = refusal("modules.json", contents);
        assert!(error.contains(part), "{error}");
    }
    for (contents, got) in [
        (
            json!({ "pooling_mode_max_tokens": true }),
            "pooling_mode_max_tokens",
        ),
        (
            json!({ "pooling_mode_cls_token": true, "pooling_mode_mean_tokens": true }),
            "pooling_mode_cls_token, pooling_mode_mean_tokens",
        ),
        (json!({ "pooling_mode": "max" }), "max"),
        (json!({}), "none"),
    ] {
        let error = refusal("1_Pooling/config.json", contents);
        let expected = format!("expected mean, cls or lasttoken, got {got}");
        assert!(error.contains(&expected), "{error}");
    }
    let tokenizer = std::fs::read(folder.join("tokenizer.json")).expect("there");
    let parsed: Value = serde_json::from_slice(&tokenizer).expect("JSON");
    for (key, contents) in [
        ("normalizer", json!({ "type": "Lowercase" })),
        ("pre_tokenizer", json!({ "type": "Whitespace" })),
    ] {
        let mut changed = parsed.clone();
        changed[key] = contents;
        let error = refusal("tokenizer.json", changed);
        assert!(error.contains(key), "{error}");
    }
}

/// Computes the vector of a text.
pub(super) fn embedding(path: &Path) -> Vec<f32> {
    let isa = Isa::available().into_iter().last().expect("one");
    load(path, isa, true).embed(TEXT).expect("a vector")
}
