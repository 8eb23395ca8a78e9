//! The report as JSON; the command's help describes its layout.

use serde_json::{Map, Value, json};

use octavo_analysis::facts::Facts;

use crate::answer::VERSION;

/// Returns the report as one object.
pub(super) fn render(report: &Facts<'_>, tensors: bool) -> Result<Value, serde_json::Error> {
    let mut object = Map::new();
    for key in &report.keys {
        object.insert(
            key.name.clone(),
            json!({"value": key.value, "source": key.source}),
        );
    }
    let gguf = report.gguf;
    let parts: Vec<&str> = gguf.part_names().collect();
    let mut octavo = json!({
        "version": VERSION,
        "file": {
            "name": gguf.name(),
            "parts": parts,
            "version": gguf.version(),
            "alignment": gguf.alignment(),
            "bytes": gguf.file_bytes(),
            "tensor_bytes": report.tensor_bytes(),
            "tensors": gguf.tensors().len(),
            "elements": report.elements(),
        },
        "isa": report.isa.name(),
        "threads": report.threads.count,
        "threads_reason": report.threads.reason.to_string(),
        "types": report.types,
        "memory": report.memory,
        "chat_template": report.chat_template,
        "warnings": report.warnings,
        "refusals": report.refusals,
    });
    if let Some(model) = &report.model {
        octavo["structure"] = serde_json::to_value(model.structure())?;
    }
    if let Some(tower) = &report.tower {
        let h = &tower.hparams;
        octavo["structure"] = json!({
            "architecture": h.projector.name(),
            "layers": h.n_block,
            "width": h.n_embd,
            "feed_forward": h.n_ff,
            "heads": h.n_head,
            "head_dim": h.head_dim(),
            "activation": h.feature.name(),
            "patch": h.patch,
            "image_token": h.unit(),
            // the former name of `image_token`, for one version
            "cell": h.unit(),
            "window_tokens": h.windows.map(|windows| windows.side),
            // the former name of `window_tokens`, for one version
            "window_cells": h.windows.map(|windows| windows.side),
            "deepstack_blocks": h.deepstack,
            "text_width": h.n_projected,
            "row_width": tower.width(),
        });
    }
    if let Some(t) = &report.tokenizer {
        octavo["tokenizer"] = json!({
            "model": t.model_name(), "pre": t.pre_name(), "tokens": t.n_vocab(),
                "bos": t.bos(), "eos": t.eos(),
            "eog": t.eog_ids(), "add_bos": t.add_bos(),
        });
    }
    if tensors {
        let list = gguf.tensors().iter().map(|t| {
            json!({
                "name": t.name, "type": t.ty.name(), "shape": t.dims,
                    "bytes": t.bytes, "part": t.part,
                "kernel": report.kernel(t),
            })
        });
        octavo["tensors"] = list.collect();
    }
    object.insert("octavo".to_owned(), octavo);
    Ok(Value::Object(object))
}
