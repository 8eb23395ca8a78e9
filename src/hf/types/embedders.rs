//! Models that map texts to vectors, or score them: BERT, Nomic's BERT and EmbeddingGemma.

use gguf_rs_lite::View;
use serde_json::Value;

use super::super::Error;
use super::super::config::Config;
use super::super::layout::Rule;
use super::super::order::Order;
use super::super::settings::Settings;
use super::dense::{GELU, GEMMA3};
use super::names::LAYER_NORM_EPS;
use super::{Is, Kind, LLAMA, ModelType, key, only};

pub(super) const ALL: &[ModelType] = &[
    ENCODER,
    ModelType {
        when: is_classifier,
        extra: |config, view| {
            bert_keys(config, view)?;
            labels(config, view)
        },
        // the classifier reads what the pooler makes of the first row
        skipped: &["cls.", "embeddings.position_ids"],
        ..ENCODER
    },
    XLM_ROBERTA,
    ModelType {
        when: is_classifier,
        extra: |config, view| {
            xlm_roberta_keys(config, view)?;
            labels(config, view)
        },
        ..XLM_ROBERTA
    },
    // transformers' own settings, with usual names
    ModelType {
        when: |settings| settings.get("hidden_size").is_some(),
        ..NOMIC_BERT
    },
    ModelType {
        attribute_map: &[
            ("n_embd", "hidden_size"),
            ("n_head", "num_attention_heads"),
            ("n_inner", "intermediate_size"),
            ("n_layer", "num_hidden_layers"),
            ("n_positions", "max_position_embeddings"),
            ("rotary_emb_base", "rope_theta"),
        ],
        only: &[
            only("moe_every_n_layers", Is::Number(0.0)),
            only("activation_function", Is::Text("swiglu")),
            only("causal", Is::False(false)),
            only("qkv_proj_bias", Is::False(true)),
            only("mlp_fc1_bias", Is::False(true)),
            only("mlp_fc2_bias", Is::False(true)),
            only("prenorm", Is::False(true)),
            only("use_rms_norm", Is::False(false)),
            only("parallel_block", Is::False(false)),
            only("rotary_emb_fraction", Is::Number(1.0)),
            only("rotary_emb_interleaved", Is::False(false)),
            only("rotary_emb_scale_base", Is::Nothing),
        ],
        ..NOMIC_BERT
    },
    ModelType {
        name: "eurobert",
        arch: "eurobert",
        embeds: true,
        scalings: &[],
        extra: |config, view| {
            sees_all(config, view);
            view.set(&config.key("rope.scaling.type"), "none");
            Ok(())
        },
        awq: false,
        prefix: "model.",
        skipped: &["lm_head."],
        ends: &[("embed_tokens", "token_embd"), ("norm", "output_norm")],
        layers: "layers.",
        ..LLAMA
    },
    MODERN_BERT,
    ModelType {
        when: is_classifier,
        extra: |config, view| {
            modern_bert_keys(config, view)?;
            labels(config, view)
        },
        skipped: &["decoder."],
        ..MODERN_BERT
    },
    ModelType {
        name: "gemma3_text",
        when: is_embedder,
        arch: "gemma-embedding",
        only: &[only("attn_logit_softcapping", Is::Nothing)],
        embeds: true,
        extra: |config, view| {
            super::rules::scores_by_width(config, 62)?;
            sees_all(config, view);
            Ok(())
        },
        awq: false,
        prefix: "model.",
        ends: &[
            ("embed_tokens", "token_embd"),
            ("norm", "output_norm"),
            ("dense_2", "dense_2"),
            ("dense_3", "dense_3"),
        ],
        layers: "layers.",
        ..GEMMA3
    },
];

const ENCODER: ModelType = ModelType {
    name: "bert",
    when: |settings| !is_classifier(settings),
    arch: "bert",
    only: &[
        only("position_embedding_type", Is::Text("absolute")),
        only("is_decoder", Is::False(false)),
        only("add_cross_attention", Is::False(false)),
    ],
    activations: GELU,
    extra: bert_keys,
    // its head, and what is computed from a text's first row, are of no use here
    skipped: &["pooler.", "cls.", "embeddings.position_ids"],
    renamed: &[
        ("LayerNorm.gamma", "LayerNorm.weight"),
        ("LayerNorm.beta", "LayerNorm.bias"),
    ],
    ends: &[
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("embeddings.position_embeddings", "position_embd"),
        ("embeddings.LayerNorm", "token_embd_norm"),
        // of classifiers: BERT's, and XLM-R's
        ("pooler.dense", "cls"),
        ("classifier", "cls.output"),
        ("classifier.dense", "cls"),
        ("classifier.out_proj", "cls.output"),
    ],
    layers: "encoder.layer.",
    modules: &[
        ("attention.self.query", "attn_q"),
        ("attention.self.key", "attn_k"),
        ("attention.self.value", "attn_v"),
        ("attention.output.dense", "attn_output"),
        ("attention.output.LayerNorm", "attn_output_norm"),
        ("intermediate.dense", "ffn_up"),
        ("output.dense", "ffn_down"),
        ("output.LayerNorm", "layer_output_norm"),
    ],
    ..BERT
};

const XLM_ROBERTA: ModelType = ModelType {
    name: "xlm-roberta",
    extra: xlm_roberta_keys,
    prefix: "roberta.",
    // its head for masked tokens
    skipped: &["pooler.", "lm_head.", "embeddings.position_ids"],
    order: positions_after_padding,
    ..ENCODER
};

const NOMIC_BERT: ModelType = ModelType {
    name: "nomic_bert",
    arch: "nomic-bert",
    rope: true,
    extra: nomic_bert_keys,
    ends: &[
        ("embeddings.word_embeddings", "token_embd"),
        ("embeddings.token_type_embeddings", "token_types"),
        ("emb_ln", "token_embd_norm"),
    ],
    layers: "encoder.layers.",
    modules: &[
        ("attn.Wqkv", "attn_qkv"),
        ("attn.out_proj", "attn_output"),
        ("norm1", "attn_output_norm"),
        ("mlp.fc12", "ffn_gate"),
        ("mlp.fc11", "ffn_up"),
        ("mlp.fc2", "ffn_down"),
        ("norm2", "layer_output_norm"),
    ],
    ..BERT
};

const MODERN_BERT: ModelType = ModelType {
    name: "modernbert",
    when: |settings| !is_classifier(settings),
    arch: "modern-bert",
    pre: &["olmo"],
    attribute_map: &[("global_rope_theta", "rope_theta")],
    defaults: &[
        ("norm_eps", 1e-5),
        ("global_rope_theta", 160_000.0),
        ("local_attention", 128.0),
    ],
    keys: &[
        LAYER_NORM_EPS,
        key(
            "attention.sliding_window",
            &["local_attention"],
            Kind::Count,
        ),
        key(
            "attention.sliding_window_pattern",
            &["global_attn_every_n_layers"],
            Kind::Count,
        )
        .optional(),
        key("rope.freq_base_swa", LOCAL_BASE, Kind::Number).optional(),
    ],
    only: &[
        only("norm_bias", Is::False(false)),
        only("attention_bias", Is::False(false)),
        only("mlp_bias", Is::False(false)),
    ],
    activations: MODERN_BERT_ACTIVATIONS,
    rope: true,
    extra: modern_bert_keys,
    prefix: "model.",
    // its heads for masked tokens and classes
    skipped: &["head.", "decoder.", "classifier."],
    ends: &[
        ("embeddings.tok_embeddings", "token_embd"),
        ("embeddings.norm", "token_embd_norm"),
        ("final_norm", "output_norm"),
        ("head.dense", "cls"),
        ("head.norm", "cls.norm"),
        ("classifier", "cls.output"),
    ],
    layers: "layers.",
    modules: &[
        ("attn_norm", "attn_norm"),
        ("attn.Wqkv", "attn_qkv"),
        ("attn.Wo", "attn_output"),
        ("mlp_norm", "ffn_norm"),
        ("mlp.Wi", "ffn_up"),
        ("mlp.Wo", "ffn_down"),
    ],
    ..BERT
};

/// Base of the RoPE frequencies of layers with a window.
const LOCAL_BASE: &[&str] = &[super::names::SLIDING_BASE, "local_rope_theta"];

/// GELU, and SiLU in some models of the same type.
const MODERN_BERT_ACTIVATIONS: &[&str] = &["gelu", "gelu_pytorch_tanh", "silu"];

/// Sets the keys of attention, of the activation, and of the row that a classifier scores.
fn modern_bert_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    sees_all(config, view);
    view.set(&config.key("rope.scaling.type"), "none");
    if config.string("hidden_activation")?.as_deref() == Some("silu") {
        view.set(&config.key("hidden_activation"), "silu");
    }
    match config.string("classifier_pooling")?.as_deref() {
        _ if !is_classifier(config) => {}
        // the default of transformers
        None | Some("cls") => {
            view.set(&config.key("classifier.pooling_type"), 2u32);
        }
        Some("mean") => {
            view.set(&config.key("classifier.pooling_type"), 1u32);
        }
        Some(other) => return Err(config.bad("classifier_pooling", "cls or mean", other)),
    }
    Ok(())
}

/// Settings that all BERTs share.
const BERT: ModelType = ModelType {
    embeds: true,
    rope: false,
    keys: &[LAYER_NORM_EPS],
    scalings: &[],
    awq: false,
    prefix: "bert.",
    biases: &[],
    ..LLAMA
};

fn sees_all(config: &Config, view: &mut View) {
    view.set(&config.key("attention.causal"), false);
}

/// Sets the keys of attention and of token types, all of which texts have the first of.
fn bert_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    let types = config.optional_count("type_vocab_size")?.unwrap_or(1);
    let types = u32::try_from(types).unwrap_or(u32::MAX);
    view.set("tokenizer.ggml.token_type_count", types);
    sees_all(config, view);
    Ok(())
}

/// Returns whether the model has a classifier, as rerankers do.
fn is_classifier(settings: &Settings) -> bool {
    let names = settings.get("architectures").and_then(|v| v.as_array());
    let is_named = |name: &Value| {
        let name = name.as_str().unwrap_or_default();
        name.ends_with("ForSequenceClassification")
    };
    names.is_some_and(|names| names.iter().any(is_named))
}

/// Sets the names of the classifier's values, if there are any.
fn labels(config: &Config, view: &mut View) -> Result<(), Error> {
    const LABELS: &str = "id2label";
    let Some(labels) = config.get(LABELS).filter(|labels| !labels.is_null()) else {
        return Ok(());
    };
    let by_id = labels.as_object().map(|labels| {
        let by_id = |id: usize| labels.get(&id.to_string())?.as_str().map(str::to_owned);
        (0..labels.len())
            .map(by_id)
            .collect::<Option<Vec<String>>>()
    });
    let Some(names) = by_id.flatten() else {
        return Err(config.bad(LABELS, "a name for each of 0, 1, 2, ...", labels));
    };
    if !names.is_empty() {
        view.set(&config.key("classifier.output_labels"), names);
    }
    Ok(())
}

/// Returns the number of rows of positions that no token has: positions are counted from the one
/// after the padding token's id.
fn unused_positions(config: &Config) -> Result<usize, Error> {
    Ok(config.whole("pad_token_id")?.unwrap_or(1).saturating_add(1))
}

/// Sets the keys of BERT, and the number of positions that tokens can have.
fn xlm_roberta_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    const POSITIONS: &str = "max_position_embeddings";
    let (all, unused) = (config.count(POSITIONS)?, unused_positions(config)?);
    let Some(context) = all.checked_sub(unused).filter(|n| *n > 0) else {
        return Err(config.bad(POSITIONS, format!("more than {unused}"), all));
    };
    let context = u32::try_from(context).unwrap_or(u32::MAX);
    view.set(&config.key("context_length"), context);
    bert_keys(config, view)
}

/// Leaves out the rows of positions that no token has.
fn positions_after_padding(config: &Config, name: &str) -> Result<Rule, Error> {
    if name != "position_embd" {
        return Ok(Rule::Same);
    }
    let from = config.count("max_position_embeddings")?;
    let start = unused_positions(config)?;
    let take = from.saturating_sub(start).max(1);
    let order = Order::Cut {
        of: from,
        take,
        start,
        step: 1,
    };
    Ok(Rule::Rows {
        order,
        from,
        left: take,
    })
}

/// Sets the same, and the length of the texts that the model was trained with.
fn nomic_bert_keys(config: &Config, view: &mut View) -> Result<(), Error> {
    let positions = config.count("max_position_embeddings")?;
    let trained = config.optional_count("max_trained_positions")?;
    let context = positions.min(trained.unwrap_or(2048));
    let context = u32::try_from(context).unwrap_or(u32::MAX);
    view.set(&config.key("context_length"), context);
    bert_keys(config, view)
}

/// Returns whether the settings are those of EmbeddingGemma, not of Gemma 3, which shares the name
/// of its type.
fn is_embedder(settings: &Settings) -> bool {
    let flag = settings.get("use_bidirectional_attention");
    let names = settings.get("architectures").and_then(|v| v.as_array());
    let is_named = names.is_some_and(|names| names.iter().any(|name| name == "Gemma3TextModel"));
    is_named || flag.is_some_and(|flag| *flag == true)
}
