//! Inverse of the conversion: transformers' weights of a GGUF file.

use super::*;

type Tensors = BTreeMap<String, Tensor>;

/// Returns the folder's tensors.
pub(super) fn tensors(case: &Case, file: Tensors) -> Tensors {
    let mut all = Tensors::new();
    let mut file = file;
    file.retain(|name, _| {
        !case.dropped.contains(&name.as_str()) && !case.settings.contains(&name.as_str())
    });
    join(case, &mut file);
    (case.change)(&mut file);
    if case.plain_norm.starts_with("ssm") {
        delta::folders(case, &mut file);
    }
    for (name, mut tensor) in file {
        if case.adds_one(&name) {
            tensor.values.iter_mut().for_each(|v| *v -= 1.0);
        }
        if case.turned && (name.contains("attn_q.") || name.contains("attn_k.")) {
            tensor = turned_back(&tensor, case.head_dim);
        }
        if case.model_type == "falcon" && name.contains("attn_qkv.") {
            tensor = grouped(&tensor, case.head_dim);
        }
        let to = named(case, &name);
        match to.contains("{}") {
            true => {
                let len = tensor.shape[1..].iter().product();
                for (e, values) in tensor.values.chunks(len).enumerate() {
                    let expert = Tensor {
                        shape: tensor.shape[1..].to_vec(),
                        values: values.to_vec(),
                    };
                    all.insert(to.replace("{}", &e.to_string()), expert);
                }
            }
            false => {
                if to.ends_with("moe_statics.e_score_correction_bias") {
                    tensor.shape.insert(0, 1);
                }
                if to.ends_with("shared_expert_gate.weight") {
                    tensor.shape.insert(0, 1);
                }
                all.insert(to, tensor);
            }
        }
    }
    all
}

/// Returns Hugging Face's name; `{}` stands for an expert's number.
fn named(case: &Case, name: &str) -> String {
    let (stem, suffix) = name.rsplit_once('.').expect("a suffix");
    let find = |stem: &str| {
        let pairs = case.names.iter().flat_map(|names| names.split_whitespace());
        let mut pairs = pairs.filter_map(|p| p.split_once('='));
        let found = pairs.find(|p| p.0 == stem);
        found
            .unwrap_or_else(|| panic!("{}: no name for {name}", case.file))
            .1
    };
    let in_layer = |name: &str| -> Option<(usize, String)> {
        let (layer, rest) = name.strip_prefix("blk.")?.split_once('.')?;
        Some((layer.parse().ok()?, rest.to_owned()))
    };
    // some tensors have no suffix
    if let Some((layer, rest)) = in_layer(name).filter(|n| !n.1.contains('.')) {
        let tensor = find(&rest).strip_prefix('-').expect("a tensor");
        return format!("{}{layer}.{tensor}", case.layers);
    }
    let (module, layer) = match in_layer(stem) {
        Some((_, rest)) if rest.starts_with("nextn.") && case.ahead.is_some() => {
            (find(&rest), String::new())
        }
        Some((layer, rest)) if Some(layer) == case.ahead => {
            (find(&rest), "mtp.layers.0.".to_owned())
        }
        Some((layer, rest)) => (find(&rest), format!("{}{layer}.", case.layers)),
        None => (find(stem), String::new()),
    };
    if (module, suffix) == ("router.proj", "scale") {
        return format!("{layer}router.scale");
    }
    // a name with a dash in front is that of a tensor
    match module.strip_prefix('-') {
        Some(tensor) if suffix == "bias" && !tensor.ends_with("_bias") => {
            format!("{layer}{tensor}_bias")
        }
        Some(tensor) => format!("{layer}{tensor}"),
        None => format!("{layer}{module}.{suffix}"),
    }
}

/// Permutes the rows of heads back: in GGUF neighbours are rotated together, here the first half
/// with the second.
pub(super) fn turned_back(t: &Tensor, head_dim: usize) -> Tensor {
    let width = t.values.len() / t.shape[0];
    let mut values = vec![0.0; t.values.len()];
    for (row, from) in t.values.chunks(width).enumerate() {
        let (head, at) = (row / head_dim, row % head_dim);
        let to = head * head_dim + at % 2 * (head_dim / 2) + at / 2;
        values[to * width..][..width].copy_from_slice(from);
    }
    Tensor {
        shape: t.shape.clone(),
        values,
    }
}

/// Fuses four query heads and two KV heads as Falcon does: two queries, their key, their value.
fn grouped(t: &Tensor, head_dim: usize) -> Tensor {
    let head: Vec<&[f32]> = t.values.chunks(head_dim * t.shape[1]).collect();
    let values = [0, 1, 4, 6, 2, 3, 5, 7].map(|h| head[h].to_vec()).concat();
    Tensor {
        shape: t.shape.clone(),
        values,
    }
}

/// Joins gate and up matrices into one tensor.
fn join(case: &Case, file: &mut Tensors) {
    for (gate, up, to, interleaved) in case.joined {
        for suffix in ["weight", "bias"] {
            for layer in 0..8 {
                let name = |part: &str| format!("blk.{layer}.{part}.{suffix}");
                let Some(gate) = file.remove(&name(gate)) else {
                    continue;
                };
                let up = file.remove(&name(up)).expect("both");
                file.insert(name(to), both(&gate, &up, *interleaved, suffix == "bias"));
            }
        }
    }
    if matches!(case.model_type, "gpt_oss" | "qwen3_vl_moe") {
        for (_, t) in file.iter_mut().filter(|(_, t)| t.shape.len() == 3) {
            *t = transposed(t);
        }
    }
}

fn both(gate: &Tensor, up: &Tensor, interleaved: bool, bias: bool) -> Tensor {
    let is_matrix = gate.shape.len() == 2 && !bias;
    let experts = if is_matrix { 1 } else { gate.shape[0] };
    let width = if bias {
        1
    } else {
        *gate.shape.last().expect("one")
    };
    let per_expert = |t: &Tensor, e: usize| -> Vec<f32> {
        let len = t.values.len() / experts;
        t.values[e * len..][..len].to_vec()
    };
    let mut values = Vec::new();
    for e in 0..experts {
        let (gate, up) = (per_expert(gate, e), per_expert(up, e));
        if interleaved {
            for (g, u) in gate.chunks(width).zip(up.chunks(width)) {
                values.extend_from_slice(g);
                values.extend_from_slice(u);
            }
        } else {
            values.extend(gate);
            values.extend(up);
        }
    }
    let mut shape = gate.shape.clone();
    shape[if is_matrix { 0 } else { 1 }] *= 2;
    Tensor { shape, values }
}

fn transposed(t: &Tensor) -> Tensor {
    let (rows, cols) = (t.shape[1], t.shape[2]);
    let values = t
        .values
        .chunks(rows * cols)
        .flat_map(|m| (0..cols).flat_map(move |c| (0..rows).map(move |r| m[r * cols + c])));
    Tensor {
        shape: vec![t.shape[0], cols, rows],
        values: values.collect(),
    }
}

/// Replaces experts' matrices in the folder by the codes and scales of a file's blocks.
pub(super) fn with_blocks(model: &Gguf, folder: &Path) {
    let path = folder.join("model.safetensors");
    let old = std::fs::read(&path).expect("there");
    let old = safetensors::SafeTensors::deserialize(&old).expect("sound");
    let mut all: BTreeMap<String, (safetensors::Dtype, Vec<usize>, Vec<u8>)> = old
        .tensors()
        .into_iter()
        .filter(|(name, t)| !(name.contains("experts") && t.shape().len() == 3))
        .map(|(name, t)| (name, (t.dtype(), t.shape().to_vec(), t.data().to_vec())))
        .collect();
    for layer in 0..2 {
        let of = |part: &str| {
            let t = model.tensor(&format!("blk.{layer}.ffn_{part}_exps.weight"));
            let t = t.expect("there");
            let blocks: Vec<[u8; 17]> = model.data(t).as_chunks().0.to_vec();
            let dims: Vec<usize> = t.dims.iter().rev().map(|d| *d as usize).collect();
            (dims[0], dims[1], dims[2] / 32, blocks)
        };
        let (experts, rows, n, gate) = of("gate");
        let up = of("up").3;
        let pairs = gate.chunks(n).zip(up.chunks(n));
        let gate_up: Vec<[u8; 17]> = pairs.flat_map(|(g, u)| [g, u].concat()).collect();
        let (_, down_rows, down_n, down) = of("down");
        for (name, rows, n, blocks) in [
            ("gate_up_proj", 2 * rows, n, gate_up),
            ("down_proj", down_rows, down_n, down),
        ] {
            let at = format!("model.layers.{layer}.mlp.experts.{name}");
            // neighbours share a byte
            let code = |b: &[u8; 17], k: usize| b[1 + k % 16] >> (k / 16 * 4) & 15;
            let codes = blocks
                .iter()
                .flat_map(|b| (0..16).map(move |j| code(b, 2 * j) | code(b, 2 * j + 1) << 4));
            let codes = codes.collect();
            let scales = blocks.iter().map(|b| b[0]).collect();
            let u8s = safetensors::Dtype::U8;
            all.insert(
                format!("{at}_blocks"),
                (u8s, vec![experts, rows, n, 16], codes),
            );
            all.insert(
                format!("{at}_scales"),
                (u8s, vec![experts, rows, n], scales),
            );
        }
    }
    let views = all.iter().map(|(name, (ty, shape, bytes))| {
        let view = safetensors::tensor::TensorView::new(*ty, shape.clone(), bytes);
        (name.as_str(), view.expect("as many bytes"))
    });
    safetensors::serialize_to_file(views, None, &path).expect("written");
}
