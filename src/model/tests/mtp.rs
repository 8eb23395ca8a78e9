//! MTP layers as models of their own: what they bind, and files that lack a part of them.

use gguf_rs_lite::{Gguf, OpenOptions, OwnedValue};
use octavo_model::{Error, Model, is_mtp_only, mtp_layer};

use crate::support::{File, shared};

pub(crate) fn open(name: &str) -> Option<Gguf> {
    let path = shared(&format!("feat/mtp/models/{name}.gguf"))?;
    Some(Gguf::open(&path, &OpenOptions::default()).expect("a shared model"))
}

/// Loads the layer of a file without some tensors and with other keys.
fn load(file: &Gguf, without: &[&str], keys: &[(&str, u32)]) -> Result<Model, Error> {
    let named = |name: &str| (!without.contains(&name)).then(|| name.to_owned());
    let keys = keys
        .iter()
        .map(|(key, n)| ((*key).to_owned(), OwnedValue::from(*n)));
    let file = file.clone().with_names(named).expect("fewer tensors");
    let file = file.with_keys(keys).expect("other keys");
    Model::load(&mtp_layer(&file)?)
}

fn error(file: &Gguf, without: &[&str], keys: &[(&str, u32)]) -> String {
    let loaded = load(file, without, keys).map(drop);
    loaded.expect_err("the layer loads").to_string()
}

#[test]
fn layers_are_models_of_one_layer() {
    for name in [
        "qwen35-mtp-F32",
        "mtp-qwen35-F32",
        "qwen35moe-mtp-F32",
        "glm4moe-mtp-F32",
        "deepseek2-mtp-F32",
    ] {
        let Some(file) = open(name) else { return };
        assert_eq!(is_mtp_only(&file), name.starts_with("mtp-"));
        if let Err(error) = Model::load(&file) {
            let error = error.to_string();
            assert!(
                is_mtp_only(&file) && error.contains("only an MTP layer"),
                "{error}"
            );
        }
        let model = load(&file, &[], &[]).unwrap_or_else(|e| panic!("{e}"));
        assert!(model.is_mtp() && model.graph.states.is_empty(), "{name}");
        assert_eq!(model.graph.n_layer, 1);
        assert_eq!(model.graph.input, model.hparams.n_embd());
        assert_eq!(model.graph.kept, Some(model.graph.hidden));
    }
}

#[test]
fn missing_tensors_are_named_by_the_layer() {
    let Some(file) = open("qwen35-mtp-F32") else {
        return;
    };
    let own = |name: &str| name.strip_prefix("blk.4.").map(str::to_owned);
    let names = file.tensors().iter().map(|tensor| tensor.name.clone());
    for (name, rest) in names.filter_map(|name| Some((name.clone(), own(&name)?))) {
        let without = [&name[..]];
        match &rest[..] {
            // the model's own norm takes its place
            "nextn.shared_head_norm.weight" => assert!(load(&file, &without, &[]).is_ok()),
            "nextn.eh_proj.weight" => {
                let error = error(&file, &without, &[]);
                assert!(
                    error.contains("without the tensors of its MTP layer"),
                    "{error}"
                );
            }
            rest => {
                let error = error(&file, &without, &[]);
                assert!(
                    error.contains(&format!("missing tensor blk.0.{rest}")),
                    "{error}"
                );
            }
        }
    }
    let error = error(&file, &["token_embd.weight"], &[]);
    assert!(
        error.contains("missing tensor token_embd.weight"),
        "{error}"
    );
    // the embedding is the head too, where there is no other
    assert!(load(&file, &["output.weight"], &[]).is_ok());
}

#[test]
fn heads_and_embeddings_of_the_layer_come_first() {
    let Some(file) = open("qwen35moe-mtp-F32") else {
        return;
    };
    let own = ["nextn.embed_tokens.weight", "nextn.shared_head_head.weight"];
    let tensor = |name: &str| {
        let tensor = file
            .tensors()
            .iter()
            .find(|tensor| tensor.name.ends_with(name));
        file.data(tensor.expect("in this file")).to_vec()
    };
    let layer = mtp_layer(&file).expect("it has one");
    let bytes = |name: &str| layer.data(layer.tensor(name).expect("named so")).to_vec();
    assert!(bytes("token_embd.weight") == tensor(own[0]));
    assert!(bytes("output.weight") == tensor(own[1]));
    // without either of both heads, that is the model's embedding, not the layer's
    let block = file
        .tensors()
        .iter()
        .find(|tensor| tensor.name.ends_with(own[1]));
    let head = block.expect("in this file").name.clone();
    let named = |name: &str| (name != head && name != "output.weight").then(|| name.to_owned());
    let tied = file.clone().with_names(named).expect("fewer tensors");
    let layer = mtp_layer(&tied).expect("it has one");
    let head = layer.tensor("output.weight").expect("the embedding");
    assert!(layer.data(head) == tensor("token_embd.weight"));
}

#[test]
fn odd_keys_are_errors() {
    let Some(file) = open("qwen35-mtp-F32") else {
        return;
    };
    const BLOCKS: &str = "qwen35.block_count";
    const LAYERS: &str = "qwen35.nextn_predict_layers";
    for (keys, expected) in [
        (&[(LAYERS, 0)][..], "a model of qwen35 without MTP layers"),
        (&[(LAYERS, 6)], "a model of qwen35 without MTP layers"),
        (
            &[(LAYERS, u32::MAX)],
            "a model of qwen35 without MTP layers",
        ),
        (&[(LAYERS, 2)], "without the tensors of its MTP layer"),
        (&[(BLOCKS, 0)], "a model of qwen35 without MTP layers"),
        (
            &[(BLOCKS, u32::MAX)],
            "without the tensors of its MTP layer",
        ),
        (
            &[("qwen35.embedding_length", 64)],
            "tensor token_embd.weight",
        ),
    ] {
        let error = error(&file, &[], keys);
        assert!(error.contains(expected), "{keys:?}: {error}");
    }
    let llama = File::new("llama", 1).gguf();
    let error = mtp_layer(&llama)
        .map(drop)
        .expect_err("no layer")
        .to_string();
    assert!(
        error.contains("whose MTP layers are not supported"),
        "{error}"
    );
}
