//! `cargo xtask model`: a model of a real shape with random weights, for measurements where no
//! trained one is at hand.
//!
//! Weights are normal with deviation 1 / sqrt(inputs), so that activations keep their size through
//! the layers. Blocks are quantized as any others, but only some thousand of them for each type and
//! deviation; a tensor is drawn from those block by block. So a file of any type takes hardly
//! longer than writing it, and little memory.

mod rows;
mod shape;

use std::path::{Path, PathBuf};
use std::sync::Arc;

use clap::Args;
use gguf_rs_lite::{
    Gguf, OpenOptions, OwnedValue, RowSource, TensorData, TensorType, View, Writer,
};
use octavo_engine::hf;
use octavo_lab::quantize::Target;
use octavo_lab::quantize::mix::{self, Choices, Facts, Mix};

use crate::random::Random;
use rows::{Drawn, Pools, Vector, vector};
use shape::Preset;
pub(crate) use shape::{Arch, Shape};

/// Write a GGUF file, or an AWQ folder, of a real shape with random weights
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  cargo xtask model --arch qwen3 --preset 0.6b --type Q4_K_M --out model.gguf
  cargo xtask model --arch qwen3 --preset 0.6b --type awq --out model-awq
  cargo xtask model --arch llama --preset tiny --type IQ2_XXS --seed 7 --out tiny.gguf
  cargo xtask model --arch qwen3moe --preset 30b-a3b --layers 6 --type Q4_K_M --out eighth.gguf
  cargo xtask model --arch qwen35 --preset 0.8b --type Q4_K_M --out small.gguf
  cargo xtask model --arch gpt-oss --preset 20b --layers 3 --type MXFP4_MOE --out eighth.gguf")]
pub(crate) struct ModelArgs {
    /// Architecture
    #[arg(long, default_value = "qwen3")]
    arch: Arch,
    /// Size: that of a published model of the architecture, or a tiny one
    #[arg(long)]
    preset: Preset,
    /// So many layers instead of the size's own: a part of a large model does what all of it does
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=1024))]
    layers: Option<u32>,
    /// A name that octavo quantize takes, with its mix of types; a type of ggml, for all matrices;
    /// or awq, for a folder with 4-bit groups of 128
    #[arg(long = "type", value_name = "TYPE")]
    ty: String,
    /// All matrices get the type's default, none of its mix
    #[arg(long)]
    pure: bool,
    /// Seed of the weights
    #[arg(long, value_name = "N", default_value_t = 0)]
    seed: u64,
    /// The file or folder to write
    #[arg(long, value_name = "FILE")]
    out: PathBuf,
}

/// The demo model's tokenizer, its vocabulary filled up with tokens that no text becomes.
fn set_tokenizer(writer: &mut Writer<'_>, n_vocab: u32) -> Result<(), String> {
    let demo = Gguf::from_bytes(octavo_engine::demo_model(), "demo", &OpenOptions::default());
    let demo = demo.map_err(|error| error.to_string())?;
    for (key, value) in demo.keys().filter(|(key, _)| key.starts_with("tokenizer.")) {
        let mut value = OwnedValue::from(value);
        if let OwnedValue::Array(array) = &mut value {
            match (key, array) {
                ("tokenizer.ggml.tokens", gguf_rs_lite::OwnedArray::Str(tokens)) => {
                    tokens.extend(
                        (tokens.len() as u32..n_vocab).map(|id| format!("[PAD{id}]").into_bytes()),
                    );
                }
                // 5: unused
                ("tokenizer.ggml.token_type", gguf_rs_lite::OwnedArray::I32(types)) => {
                    types.resize(n_vocab as usize, 5);
                }
                _ => {}
            }
        }
        writer.set(key, value);
    }
    Ok(())
}

/// Which type each tensor gets.
enum Types {
    Mix(Target, Choices),
    One(TensorType),
    /// What lies outside of layers is F16 in such folders.
    Awq,
}

impl Types {
    fn parse(name: &str, pure: bool) -> Result<Types, String> {
        // requires_importance of the mixes asks for it; the weights drawn here matter alike
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

    /// The type of each tensor, in order.
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
            let wanted = match (&mut mix, self) {
                (Some(mix), _) => mix.wanted(name, dims).map_err(|error| error.to_string())?,
                (None, Types::Awq) if dims.len() == 2 && name.starts_with("blk.") => {
                    return Ok(TensorType::AWQ_G128);
                }
                (None, Types::Awq) if dims.len() == 2 => return Ok(TensorType::F16),
                (None, Types::One(ty)) if mix::is_quantizable(&facts.architecture, name, dims) => {
                    Some(*ty)
                }
                _ => None,
            };
            let wanted = wanted.unwrap_or(TensorType::F32);
            mix::fallback(wanted, dims[0])
                .ok_or_else(|| format!("{name}: {wanted} does not fit rows of {}", dims[0]))
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
    let tensors = shape.tensors();
    let mut writer = Writer::new();
    shape.set_keys(&mut writer, types.file_type());
    set_tokenizer(&mut writer, shape.n_vocab)?;
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
    let mega = weights as f64 / 1e6;
    let bytes = match std::fs::metadata(&args.out).map_err(|error| error.to_string())? {
        file if file.is_file() => file.len(),
        _ => std::fs::metadata(args.out.join("model.safetensors"))
            .map_err(|error| error.to_string())?
            .len(),
    };
    let mib = bytes as f64 / f64::from(1 << 20);
    println!(
        "{}: {} {}, {mega:.1} M weights, {mib:.1} MiB",
        args.out.display(),
        args.arch.name(),
        args.ty
    );
    Ok(())
}

/// A tensor's name, dimensions and type.
type Planned<'a> = (&'a String, &'a Vec<u64>, TensorType);

/// Writes a model of any shape; `change` may set keys anew.
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
    set_tokenizer(&mut writer, shape.n_vocab)?;
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
        let pool = pools.get(ty, dims[0], seed)?;
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

#[cfg(test)]
mod tests {
    use super::*;
    use clap::ValueEnum;
    use octavo_engine::{Engine, EngineOptions, ModelSource};
    use octavo_lab::bench::{self, Test};

    fn made(dir: &tempfile::TempDir, arch: Arch, ty: &str, seed: u64) -> Result<PathBuf, String> {
        let out = dir.path().join(format!("{}-{ty}-{seed}.gguf", arch.name()));
        run(&ModelArgs {
            arch,
            preset: Preset::Tiny,
            layers: None,
            ty: ty.to_owned(),
            pure: false,
            seed,
            out: out.clone(),
        })?;
        Ok(out)
    }

    /// The hash of a few tokens generated; the logits were finite.
    fn generated(path: &std::path::Path) -> String {
        let options = EngineOptions {
            threads: Some(1),
            ctx: Some(64),
            ..EngineOptions::default()
        };
        let source = ModelSource::Path(path.to_owned());
        let engine = Engine::load(&source, &options, &mut |_| {}).unwrap_or_else(|e| panic!("{e}"));
        assert_eq!(engine.warnings(), <[String; 0]>::default());
        let tests = Test::all(&[], &[12], &[8], &[1]);
        let samples = bench::run(&mut engine.session(), tests[0], 1, &mut |_, _| {});
        samples
            .unwrap_or_else(|e| panic!("{}: {e}", path.display()))
            .token_hash
    }

    #[test]
    fn every_architecture_loads_runs_and_is_deterministic() {
        let dir = tempfile::tempdir().expect("a folder");
        for &arch in Arch::value_variants() {
            let one = made(&dir, arch, "Q4_K_M", 1).expect("written");
            let bytes = std::fs::read(&one).expect("there");
            let hash = generated(&one);
            assert_eq!(
                std::fs::read(made(&dir, arch, "Q4_K_M", 1).expect("written")).expect("there"),
                bytes
            );
            assert_eq!(generated(&one), hash);
            let other = made(&dir, arch, "Q4_K_M", 2).expect("written");
            assert_ne!(std::fs::read(&other).expect("there"), bytes);
            assert_ne!(generated(&other), hash, "{}", arch.name());
        }
    }

    #[test]
    fn every_type_can_be_had_and_weights_have_their_deviation() {
        let dir = tempfile::tempdir().expect("a folder");
        let names = Target::all()
            .map(Target::name)
            .chain(["MXFP4", "NVFP4"])
            .filter(|name| *name != "COPY");
        for name in names {
            let path = made(&dir, Arch::Qwen3, name, 0).unwrap_or_else(|e| panic!("{name}: {e}"));
            generated(&path);
            let gguf = Gguf::open(&path, &OpenOptions::default()).expect("sound");
            let t = gguf.tensor("blk.0.ffn_gate.weight").expect("there");
            let mut x = vec![0f32; t.n_elements() as usize];
            octavo_quant::dequantize(t.ty, gguf.data(t), &mut x).expect("whole blocks");
            let variance = x.iter().map(|v| f64::from(*v).powi(2)).sum::<f64>() / x.len() as f64;
            // two bits lose some of it
            let deviation = (variance * 256.0).sqrt();
            assert!((0.7..1.2).contains(&deviation), "{name}: {deviation}");
        }
        for name in ["COPY", "Q9", "I32"] {
            assert!(made(&dir, Arch::Qwen3, name, 0).is_err(), "{name}");
        }
    }

    #[test]
    fn presets_are_published_shapes() {
        let count = |arch, preset| {
            let tensors = Shape::of(arch, preset).expect("it has it").tensors();
            tensors
                .iter()
                .map(|(_, dims)| dims.iter().product::<u64>())
                .sum::<u64>()
        };
        // as published: 0.6B and 1.7B, 4B; 8B has an output of its own
        let sizes = [Preset::B0_6, Preset::B1_7, Preset::B4, Preset::B8];
        let counts = sizes.map(|preset| count(Arch::Qwen3, preset));
        assert_eq!(
            counts,
            [596_049_920, 1_720_574_976, 4_022_468_096, 8_190_735_360]
        );
        assert_eq!(count(Arch::Qwen3moe, Preset::B30A3), 30_532_122_624);
        assert_eq!(count(Arch::GptOss, Preset::B20), 20_914_757_184);
        assert_eq!(count(Arch::Gemma3, Preset::B1), 999_885_952);
        // as its name says, to the digit that it has
        let small = count(Arch::Qwen35, Preset::B0_8) as f64;
        assert!((small / 1e9 - 0.75).abs() < 0.05, "{small}");
        // without 64 tokens that pictures become
        assert_eq!(count(Arch::Gemma3, Preset::B4), 3_880_099_328);
        for arch in [Arch::Qwen3moe, Arch::GptOss, Arch::Gemma3] {
            assert!(Shape::of(arch, Preset::B8).is_err(), "{}", arch.name());
        }
    }
}
