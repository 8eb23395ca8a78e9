//! The outline of a forward pass names every weight that the graph reads, as often as it reads it.

use std::collections::BTreeMap;

use gguf_rs_lite::{Gguf, OpenOptions};
use octavo_fixtures::workspace_root;
use octavo_model::outline::{Operation, Outline, Setting};
use octavo_model::{Model, Op};

use crate::support::{File, Load, shared};

type Counts = BTreeMap<String, usize>;

/// Counts the weights that the nodes of a graph read, by name.
fn read_by_graph(model: &Model) -> Counts {
    let tensors = &model.weights.tensors;
    let vector = |id: octavo_model::VecId| &tensors.vectors[id.0 as usize].name;
    let divisors = model.weights.rope_divisors;
    let divisors = [divisors.all, divisors.short, divisors.long];
    let mut counts = Counts::new();
    for node in &model.graph.nodes {
        let matrix = match node.op {
            Op::Embed { table, .. } | Op::EmbedPositions { table } => Some(table),
            Op::MatMul { w, .. } | Op::ExpertMatMul { w, .. } => Some(w),
            _ => None,
        };
        let angles = match node.op {
            Op::Rope { rope, .. } if model.hparams.ropes[rope].divided => &divisors[..],
            _ => &[],
        };
        let names = matrix.iter().map(|id| &tensors.matrix(*id).name);
        let names = names.chain(node.op.vector().map(|id| vector(*id)));
        for name in names.chain(angles.iter().flatten().map(|id| vector(*id))) {
            *counts.entry(name.clone()).or_default() += 1;
        }
    }
    counts
}

fn named_by_outline(outline: &Outline) -> Counts {
    let mut counts = Counts::new();
    for weight in outline.operations().flat_map(|op| &op.weights) {
        *counts.entry(weight.name.clone()).or_default() += 1;
    }
    counts
}

/// Returns whether a tensor becomes a number of the graph when it is bound, or is not read for
/// logits at all.
fn is_not_an_operand(name: &str, model: &Model) -> bool {
    let layer = name
        .strip_prefix("blk.")
        .and_then(|rest| rest.split('.').next());
    let is_behind = layer
        .and_then(|layer| layer.parse::<usize>().ok())
        .is_some_and(|layer| layer >= model.hparams.n_layer());
    is_behind
        || name.ends_with(".scale")
        || name.ends_with(".input_scale")
        || name.ends_with("layer_output_scale.weight")
        // the first layer of RWKV 7 has these without a use
        || name.starts_with("blk.0.time_mix_v")
}

fn check(gguf: &Gguf, model: &Model) {
    let (file, outline) = (gguf.name(), Outline::of_model(model));
    let named = named_by_outline(&outline);
    assert_eq!(named, read_by_graph(model), "{file}");
    for tensor in gguf.tensors() {
        assert!(
            named.contains_key(&tensor.name) || is_not_an_operand(&tensor.name, model),
            "{file}: no operation reads {}",
            tensor.name
        );
    }
    let weights = outline.operations().flat_map(|op| &op.weights);
    // a matrix is made of this vector
    let is_made = |name: &str| name.ends_with("time_mix_r_k.weight");
    for weight in weights.filter(|weight| weight.ty.is_some() && !is_made(&weight.name)) {
        let tensor = gguf.tensor(&weight.name).expect("its name is the file's");
        assert_eq!(weight.ty, Some(tensor.ty.name()), "{file}: {}", weight.name);
        let numbers: usize = weight.shape.iter().product();
        // of the types of tokens, text has the first
        let is_part = weight.first_row.is_some() || weight.name == "token_types.weight";
        let all = tensor.dims.iter().product::<u64>() as usize;
        assert!(
            numbers == all || is_part && numbers < all,
            "{file}: {}: {:?} of {:?}",
            weight.name,
            weight.shape,
            tensor.dims
        );
    }
    // the sections are the nodes of the graph, each once and in order
    let values: Vec<u32> = outline.operations().map(|op| op.value).collect();
    let nodes: Vec<u32> = model.graph.nodes.iter().map(|node| node.out.0).collect();
    assert_eq!(values, nodes, "{file}");
    for (l, layer) in outline.layers.iter().enumerate() {
        let strays = layer
            .iter()
            .filter_map(|op| op.name?.layer)
            .find(|of| *of != l);
        assert_eq!(strays, None, "{file}: layer {l}");
        let foreign = |op: &&Operation| {
            let prefix = format!("blk.{l}.");
            let of_layers = op.weights.iter().filter(|w| w.name.starts_with("blk."));
            of_layers.filter(|w| !w.name.starts_with(&prefix)).count() > 0
        };
        assert!(!layer.iter().any(|op| foreign(&op)), "{file}: layer {l}");
    }
    let mut grouped: Vec<usize> = outline
        .groups()
        .into_iter()
        .flat_map(|g| g.layers)
        .collect();
    grouped.sort_unstable();
    assert!(grouped.into_iter().eq(0..model.hparams.n_layer()), "{file}");
}

#[test]
fn every_weight_is_named_as_often_as_the_graph_reads_it() {
    for arch in ["llama", "qwen2", "qwen3"] {
        let file = File::new(arch, 3).gguf();
        check(&file, &Model::load(&file).expect(arch));
    }
    let mixture = File::mixture().gguf();
    check(&mixture, &Model::load(&mixture).expect("a mixture"));
    for committed in [
        "src/engine/demo/tiny-qwen3-Q4_K_M.gguf",
        "reference/models/rnd-llama-Q4_K_M.gguf",
        "reference/models/rnd-qwen2-Q6_K.gguf",
    ] {
        let path = workspace_root().join(committed);
        let file = Gguf::open(&path, &OpenOptions::default()).expect(committed);
        check(&file, &Model::load(&file).expect(committed));
    }
}

#[test]
fn the_same_holds_for_the_shared_models_of_every_architecture() {
    let mut checked = 0;
    for folder in ["models", "arch/models", "arch2/models"] {
        let Some(folder) = shared(folder) else {
            return;
        };
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let Ok(gguf) = Gguf::open(&path, &OpenOptions::default()) else {
                continue;
            };
            // some are there to be refused
            let Ok(model) = Model::load(&gguf) else {
                continue;
            };
            check(&gguf, &model);
            checked += 1;
        }
    }
    assert!(checked > 80, "only {checked} models were looked at");
}

/// Returns the outline of a shared model.
fn shared_outline(model: &str) -> Option<Outline> {
    let path = shared(&format!("arch/models/{model}.gguf"))?;
    let gguf = Gguf::open(&path, &OpenOptions::default()).expect("a shared model");
    Some(Outline::of_model(&Model::load(&gguf).expect(model)))
}

#[test]
fn layers_with_and_without_windows_are_in_different_groups() {
    let Some(outline) = shared_outline("gemma3-F32") else {
        return;
    };
    let groups = outline.groups();
    let found: Vec<(Vec<usize>, bool)> = groups
        .iter()
        .map(|group| {
            let mut all = group.operations.iter().flatten();
            let has_window = all.any(|op| op.parameter("window").is_some());
            (group.layers.clone(), has_window)
        })
        .collect();
    let n = outline.layers.len();
    let global = |layer: &usize| (layer + 1).is_multiple_of(6);
    let [with, without]: [Vec<usize>; 2] =
        [false, true].map(|is| (0..n).filter(|l| global(l) == is).collect());
    assert_eq!(found, [(with, true), (without, false)]);
}

#[test]
fn a_layers_own_part_does_not_tell_it_apart() {
    let Some(outline) = shared_outline("gemma4-F32") else {
        return;
    };
    assert!(outline.groups().len() < outline.layers.len());
}

#[test]
fn rows_are_divided_as_their_readers_see_them() {
    let model = File::new("qwen3", 1).load().expect("valid");
    let outline = Outline::of_model(&model);
    let parts = |name: &str| {
        let mut all = outline.operations();
        let named = all.find(|op| op.name.is_some_and(|tap| tap.to_string() == name));
        let op = named.unwrap_or_else(|| panic!("no {name}"));
        [op.parts, op.width / op.parts]
    };
    assert_eq!(parts("Qcur-0"), [4, 32]);
    assert_eq!(parts("Vcur-0"), [2, 32]);
    assert_eq!(parts("kqv_out-0"), [4, 32]);
    assert_eq!(parts("attn_norm-0"), [1, 64]);
    assert_eq!(parts("ffn_gate-0"), [1, 96]);
    let rope = outline.layers[0].iter().find(|op| op.op == "rope");
    let base = rope.and_then(|op| op.parameter("base"));
    assert_eq!(base, Some(&Setting::Number(10000.0)));
}
