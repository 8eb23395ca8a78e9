//! `cargo xtask model`: a model of a real shape with random weights, for measurements without a
//! trained model.
//!
//! Weights are normal with deviation 1 / sqrt(inputs), so that activations keep their size through
//! the layers. Blocks are quantized normally, but only some thousand of them for each type and
//! deviation; a tensor's blocks are drawn from these. So a file of any type takes little longer
//! than writing it, and little memory.

mod named_tower;
#[cfg(test)]
mod plans;
mod rows;
mod shape;
#[cfg(test)]
mod tests;
mod tower;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use gguf_rs_lite::{
    Gguf, OpenOptions, OwnedValue, RowSource, TensorData, TensorType, View, Writer,
};
use octavo_analysis::quantize::Target;
use octavo_analysis::quantize::mix::{self, Choices, Facts, Mix};
use octavo_hf as hf;

use crate::random::Random;
use named_tower::{NamedTower, TowerName};
use rows::{Drawn, Pools, Vector, vector};
use shape::Preset;
pub(crate) use shape::{Arch, Shape};
use tower::Tower;

/// Write a GGUF file, or an AWQ folder, of a real shape with random weights
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask model --arch qwen3 --preset 0.6b --type Q4_K_M --out model.gguf
  cargo xtask model --arch qwen3 --preset 0.6b --type awq --out model-awq
  cargo xtask model --arch llama --preset tiny --type IQ2_XXS --seed 7 --out tiny.gguf
  cargo xtask model --arch qwen3moe --preset 30b-a3b --layers 6 --type Q4_K_M --out eighth.gguf
  cargo xtask model --arch qwen35 --preset 0.8b --type Q4_K_M --out small.gguf
  cargo xtask model --arch qwen3vl --preset 2b --type Q4_K_M --out 2b.gguf --mmproj mmproj.gguf
  cargo xtask model --arch gpt-oss --preset 20b --layers 3 --type MXFP4_MOE --out eighth.gguf")]
pub(crate) struct ModelArgs {
    /// Architecture of the model
    #[arg(long, default_value = "qwen3")]
    arch: Arch,
    /// Size: that of a published model of the architecture, or a tiny one
    #[arg(long)]
    preset: Preset,
    /// Number of layers, if not the size's own: a few layers run the same kernels as the whole
    /// model
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    layers: Option<u32>,
    /// A target of octavo quantize, with its mix of types; a ggml type, for all matrices; or awq,
    /// for a folder with 4-bit groups of 128
    #[arg(long = "type", value_name = "TYPE")]
    ty: String,
    /// Give all matrices the default type, without the mix
    #[arg(long)]
    pure: bool,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// File or folder to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
    /// Also write the size's vision tower, in F16: for qwen35, qwen3vl and qwen2vl, and for others
    /// with --tower
    #[arg(long, value_name = "FILE")]
    mmproj: Option<PathBuf>,
    /// Vision tower to write, for a text model of the architecture's width
    #[arg(long, requires = "mmproj")]
    tower: Option<TowerName>,
}

/// Tokens before and after an image, in vocabularies of vision models.
const AROUND_IMAGES: [&str; 2] = ["<|vision_start|>", "<|vision_end|>"];

/// Writes the demo model's tokenizer, its vocabulary filled up with unused tokens; for a vision
/// model, the first of these are the tokens around images.
fn set_tokenizer(writer: &mut Writer<'_>, shape: &Shape) -> Result<(), String> {
    let n_vocab = shape.n_vocab;
    let around = match shape.arch.sees() {
        true => &AROUND_IMAGES[..],
        false => &[],
    };
    let demo = Gguf::from_bytes(octavo_engine::demo_model(), "demo", &OpenOptions::default());
    let demo = demo.map_err(|error| error.to_string())?;
    for (key, value) in demo.keys().filter(|(key, _)| key.starts_with("tokenizer.")) {
        let mut value = OwnedValue::from(value);
        if let OwnedValue::Array(array) = &mut value {
            match (key, array) {
                ("tokenizer.ggml.tokens", gguf_rs_lite::OwnedArray::Str(tokens)) => {
                    tokens.extend(around.iter().map(|token| token.as_bytes().to_vec()));
                    tokens.extend(
                        (tokens.len() as u32..n_vocab).map(|id| format!("[PAD{id}]").into_bytes()),
                    );
                }
                // 3: control, 5: unused
                ("tokenizer.ggml.token_type", gguf_rs_lite::OwnedArray::I32(types)) => {
                    types.extend(around.iter().map(|_| 3));
                    types.resize(n_vocab as usize, 5);
                }
                _ => {}
            }
        }
        writer.set(key, value);
    }
    Ok(())
}

/// Assignment of types to tensors.
enum Types {
    Mix(Target, Choices),
    One(TensorType),
    /// AWQ; tensors outside of layers are F16 in such folders.
    Awq,
}

impl Types {
    fn parse(name: &str, pure: bool) -> Result<Types, String> {
        // some mixes require importance weights; the random weights are all equally important
        let choices = Choices {
            pure,
            has_importance: true,
            ..Choices::default()
        };
        if name.eq_ignore_ascii_case("awq") {
            return Ok(Types::Awq);
        }
        match name.parse::<Target>() {
            Ok(Target::COPY) => {
                Err("COPY: expected a type, there is no file to copy from".to_owned())
            }
            Ok(target) => Ok(Types::Mix(target, choices)),
            Err(unknown) => {
                let usable = |ty: &TensorType| {
                    octavo_quant::can_quantize(*ty) && octavo_quant::can_dequantize(*ty)
                };
                let ty = TensorType::from_name(name).filter(usable);
                ty.map(Types::One)
                    .ok_or_else(|| format!("{unknown}, or a type of ggml that holds floats"))
            }
        }
    }

    /// Returns the type of each tensor, in order.
    fn of(&self, shape: &Shape, tensors: &[(String, Vec<u64>)]) -> Result<Vec<TensorType>, String> {
        let facts = Facts {
            architecture: shape.arch.name().to_owned(),
            n_layer: shape.n_layer,
            n_head: shape.n_head,
            n_head_kv: shape.n_head_kv,
            n_expert: shape.experts.map_or(0, |experts| experts.count),
        };
        let mut mix = match self {
            Types::Mix(target, choices) => Some(Mix::new(
                &facts,
                *target,
                choices,
                tensors.iter().map(|(name, _)| name.as_str()),
            )),
            Types::One(_) | Types::Awq => None,
        };
        let one = |(name, dims): &(String, Vec<u64>)| {
            let ty = match (&mut mix, self) {
                (Some(mix), _) => mix
                    .next_type(name, dims)
                    .map_err(|error| error.to_string())?,
                (None, Types::Awq) if dims.len() == 2 && name.starts_with("blk.") => {
                    return Ok(TensorType::AWQ_G128);
                }
                (None, Types::Awq) if dims.len() == 2 => return Ok(TensorType::F16),
                (None, Types::One(ty)) if mix::is_quantizable(&facts.architecture, name, dims) => {
                    Some(*ty)
                }
                _ => None,
            };
            let ty = ty.unwrap_or(TensorType::F32);
            mix::fallback(ty, dims[0])
                .ok_or_else(|| format!("{name}: {ty} does not fit rows of {}", dims[0]))
        };
        tensors.iter().map(one).collect()
    }

    fn file_type(&self) -> Option<u32> {
        match self {
            Types::Mix(target, _) => Some(target.file_type()),
            Types::One(_) | Types::Awq => None,
        }
    }
}

/// Layers of a model of one type: enough that the time of its output matrix does not decide.
const TYPE_LAYERS: u32 = 6;

/// Every weight type that [`write_named`] knows.
pub(crate) const ALL_TYPES: [&str; 28] = [
    "F32", "F16", "BF16", "Q8_0", "Q4_0", "Q4_1", "Q5_0", "Q5_1", "Q2_K", "Q3_K", "Q4_K", "Q5_K",
    "Q6_K", "IQ1_S", "IQ1_M", "IQ2_XXS", "IQ2_XS", "IQ2_S", "IQ3_XXS", "IQ3_S", "IQ4_NL", "IQ4_XS",
    "TQ1_0", "TQ2_0", "Q1_0", "Q2_0", "MXFP4", "NVFP4",
];

/// Writes a model to measure with: of a weight type, which all matrices of some layers of Qwen3
/// 0.6B have, or `experts`, two layers of Qwen3 30B A3B.
pub(crate) fn write_named(name: &str, out: &Path) -> Result<(), String> {
    let (arch, preset, layers, ty) = match name {
        "experts" => (Arch::Qwen3moe, Preset::B30A3, 2, "Q4_K_M"),
        ty => (Arch::Qwen3, Preset::B0_6, TYPE_LAYERS, ty),
    };
    run(&ModelArgs {
        arch,
        preset,
        layers: Some(layers),
        ty: ty.to_owned(),
        pure: name == ty,
        seed: 0,
        out: out.to_owned(),
        mmproj: None,
        tower: None,
    })
}

/// Runs the task.
pub(crate) fn run(args: &ModelArgs) -> Result<(), String> {
    let mut shape = Shape::of(args.arch, args.preset)?;
    shape.n_layer = args.layers.unwrap_or(shape.n_layer);
    let types = Types::parse(&args.ty, args.pure)?;
    if matches!(types, Types::Awq) && !args.arch.has_folders() {
        let name = args.arch.name();
        return Err(format!(
            "awq: expected --arch llama, qwen2 or qwen3, got {name}"
        ));
    }
    let tower = Tower::of(args.arch, args.preset, shape.n_embd);
    let n_projected = shape.n_embd;
    let named = args.tower.map(|name| NamedTower { name, n_projected });
    if args.mmproj.is_some() && tower.is_none() && named.is_none() {
        let name = args.arch.name();
        return Err(format!(
            "--mmproj: expected --tower, or --arch qwen35, qwen3vl or qwen2vl, got {name}"
        ));
    }
    let tensors = shape.tensors();
    let mut writer = Writer::new();
    shape.set_keys(&mut writer, types.file_type());
    set_tokenizer(&mut writer, &shape)?;
    let weights: u64 = tensors
        .iter()
        .map(|(_, dims)| dims.iter().product::<u64>())
        .sum();
    let all: Vec<_> = tensors
        .iter()
        .zip(types.of(&shape, &tensors)?)
        .map(|((name, dims), ty)| (name, dims, ty))
        .collect();
    match types {
        Types::Awq => write_folder(args, writer, &all)?,
        _ => write_file(&args.out, args.seed, writer, &all)?,
    }
    let written = match args.out.is_dir() {
        true => &args.out.join("model.safetensors"),
        false => &args.out,
    };
    let what = format!("{} {}", args.arch.name(), args.ty);
    say_written(&args.out, written, &what, weights)?;
    let mut writer = Writer::new();
    match (&args.mmproj, named, tower) {
        (Some(out), Some(named), _) => {
            named.set_keys(&mut writer);
            write_tower(out, args.seed, writer, &named.tensors())
        }
        (Some(out), None, Some(tower)) => {
            tower.set_keys(&mut writer);
            write_tower(out, args.seed, writer, &tower.tensors())
        }
        _ => Ok(()),
    }
}

/// Prints one line about a file, or about a folder and its weights file.
fn say_written(out: &Path, weights: &Path, what: &str, n: u64) -> Result<(), String> {
    let bytes = std::fs::metadata(weights).map_err(|error| error.to_string())?;
    let mib = bytes.len() as f64 / f64::from(1 << 20);
    let mega = n as f64 / 1e6;
    println!(
        "{}: {what}, {mega:.1} M weights, {mib:.1} MiB",
        out.display()
    );
    Ok(())
}

fn write_tower(
    out: &Path,
    seed: u64,
    writer: Writer<'_>,
    tensors: &[tower::TowerTensor],
) -> Result<(), String> {
    let all: Vec<_> = tensors
        .iter()
        .map(|tensor| (&tensor.name, &tensor.dims, tensor.ty))
        .collect();
    write_file(out, seed, writer, &all)?;
    let count = |tensor: &tower::TowerTensor| tensor.dims.iter().product::<u64>();
    let weights = tensors.iter().map(count).sum();
    say_written(out, out, "vision tower F16", weights)
}

/// A tensor's name, dimensions and type.
type Planned<'a> = (&'a String, &'a Vec<u64>, TensorType);

/// Writes a model of any shape; `change` may override keys.
pub(crate) fn write_shape(
    shape: &Shape,
    ty: &str,
    (out, seed): (&Path, u64),
    change: impl FnOnce(&mut Writer<'_>),
) -> Result<(), String> {
    let types = Types::parse(ty, false)?;
    let tensors = shape.tensors();
    let mut writer = Writer::new();
    shape.set_keys(&mut writer, types.file_type());
    set_tokenizer(&mut writer, shape)?;
    change(&mut writer);
    let types = types.of(shape, &tensors)?;
    let all: Vec<_> = tensors
        .iter()
        .zip(types)
        .map(|((name, dims), ty)| (name, dims, ty))
        .collect();
    write_file(out, seed, writer, &all)
}

fn write_file(
    out: &Path,
    seed: u64,
    mut writer: Writer<'_>,
    tensors: &[Planned<'_>],
) -> Result<(), String> {
    let mut pools = Pools::default();
    for &(name, dims, ty) in tensors {
        let (n, random) = (dims.iter().product::<u64>(), Random::new(seed, name));
        if dims.len() == 1 {
            writer.tensor(name, dims, ty, vector(name, n, random));
            continue;
        }
        // a kernel's result is a sum over all its pixels
        let inputs = match dims[..] {
            [w, h, colours, _] => w * h * colours,
            _ => dims[0],
        };
        let pool = pools.get(ty, inputs, seed)?;
        assert!(
            n.is_multiple_of(pool.group as u64),
            "{name}: presets have whole groups"
        );
        writer.tensor(
            name,
            dims,
            ty,
            TensorData::stream(move |out| pool.draw(n, random, out)),
        );
    }
    writer
        .write_file(out)
        .map(drop)
        .map_err(|error| error.to_string())
}

fn write_folder(args: &ModelArgs, keys: Writer<'_>, tensors: &[Planned<'_>]) -> Result<(), String> {
    let text = |error: gguf_rs_lite::Error| error.to_string();
    let mut head = Vec::new();
    keys.write_to(&mut head).map_err(text)?;
    let keys = Gguf::from_bytes(head, "keys", &OpenOptions::default()).map_err(text)?;
    let mut view = View::new(&args.out);
    for (key, value) in keys.keys() {
        view.set(key, value);
    }
    let mut pools = Pools::default();
    for &(name, dims, ty) in tensors {
        let rows: Arc<dyn RowSource> = if dims.len() == 1 {
            Arc::new(Vector(vector(name, dims[0], Random::new(args.seed, name))))
        } else {
            let row_bytes = ty
                .row_bytes(dims[0])
                .ok_or_else(|| format!("{name}: presets have whole groups"))?
                as usize;
            let pool = pools.get(ty, dims[0], args.seed)?;
            Arc::new(Drawn {
                pool,
                seed: args.seed,
                name: name.clone(),
                cols: dims[0],
                row_bytes,
            })
        };
        view.made(name, dims, ty, "random weights", rows)
            .map_err(text)?;
    }
    hf::write(&view.open().map_err(text)?, &args.out).map_err(|error| error.to_string())
}
