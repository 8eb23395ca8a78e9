//! The forward pass of a model, operation by operation.

mod names;
mod section;

use std::fmt::Write;

use gguf_rs_lite::Gguf;
use octavo_model::Model;
use octavo_model::outline::{Group, Operation, Outline};
use octavo_vision::Tower;
use serde::Serialize;

use super::structure;
use crate::answer::VERSION;
use crate::failure::Failure;
use crate::wording::one_line;
use section::Section;

/// The forward pass as JSON.
#[derive(Serialize)]
struct Report<'a> {
    version: u32,
    file: &'a str,
    architecture: &'static str,
    #[serde(skip_serializing_if = "Option::is_none")]
    embeddings: Option<&'a [Operation]>,
    layers: Vec<LayerReport<'a>>,
    /// Layers that are equal but for the types of their weights and constant factors.
    #[serde(skip_serializing_if = "Option::is_none")]
    groups: Option<Vec<Vec<usize>>>,
    #[serde(skip_serializing_if = "Option::is_none")]
    head: Option<&'a [Operation]>,
}

#[derive(Serialize)]
struct LayerReport<'a> {
    layer: usize,
    operations: &'a [Operation],
}

/// Returns the whole forward pass, or one layer of it.
pub(super) fn render(gguf: &Gguf, layer: Option<usize>, json: bool) -> Result<String, Failure> {
    let (outline, architecture) = if Tower::is_in(gguf) {
        let tower = Tower::load(gguf)?;
        (Outline::of(&tower), tower.hparams.projector.name())
    } else {
        let model = Model::load(gguf)?;
        (Outline::of_model(&model), model.hparams.arch.name())
    };
    let n = outline.layers.len();
    if let Some(layer) = layer.filter(|layer| *layer >= n) {
        return Err(Failure::Usage(format!(
            "--layer {layer}: expected a layer of {}: 0 to {}",
            gguf.name(),
            n.saturating_sub(1)
        )));
    }
    if json {
        return Ok(as_json(gguf, &outline, architecture, layer)?);
    }
    let mut out = String::new();
    // writing to a String cannot fail
    let _ = match layer {
        Some(layer) => one_layer(&mut out, &outline, layer),
        None => {
            out = format!("{}: {architecture}, {n} layers\n\n", one_line(gguf.name()));
            whole(&mut out, &outline)
        }
    };
    Ok(out)
}

fn as_json(
    gguf: &Gguf,
    outline: &Outline,
    architecture: &'static str,
    layer: Option<usize>,
) -> Result<String, serde_json::Error> {
    let is_whole = layer.is_none();
    let layers = match layer {
        Some(layer) => layer..layer + 1,
        None => 0..outline.layers.len(),
    };
    let layers = layers.map(|layer| LayerReport {
        layer,
        operations: &outline.layers[layer],
    });
    let groups = || outline.groups().into_iter().map(|group| group.layers);
    let report = Report {
        version: VERSION,
        file: gguf.name(),
        architecture,
        embeddings: is_whole.then_some(&outline.embeddings),
        layers: layers.collect(),
        groups: is_whole.then(|| groups().collect()),
        head: is_whole.then_some(&outline.head),
    };
    // of a value, every number would be widened to f64
    Ok(format!("{}\n", serde_json::to_string(&report)?))
}

fn one_layer(out: &mut String, outline: &Outline, layer: usize) -> std::fmt::Result {
    let operations = outline.layers[layer].as_slice();
    Section::new(outline, operations, &[layer]).write(out, &format!("layer {layer}"))
}

fn whole(out: &mut String, outline: &Outline) -> std::fmt::Result {
    Section::new(outline, &outline.embeddings, &[]).write(out, "embeddings")?;
    for group in outline.groups() {
        writeln!(out)?;
        match group.layers[..] {
            [layer] => one_layer(out, outline, layer)?,
            _ => equal_layers(out, outline, &group)?,
        }
    }
    if outline.head.is_empty() {
        return Ok(());
    }
    writeln!(out)?;
    Section::new(outline, &outline.head, &[]).write(out, "head")
}

fn equal_layers(out: &mut String, outline: &Outline, group: &Group<'_>) -> std::fmt::Result {
    let layers = structure::layers(&group.layers, outline.layers.len());
    let title = format!("{layers} (N is the layer's number, inpL its input)");
    Section::of_group(outline, group).write(out, &title)
}
