//! `octavo gguf extract` and `insert`: tensors to safetensors and NumPy files, and back.

use std::path::{Path, PathBuf};

use clap::Args;
use gguf_rs_lite::{TensorInfo, TensorType};
use octavo_analysis::files::{self, Arrays, Form};

use super::{FileArg, NewFileArgs, PatternArgs, open};
use crate::failure::{Exit, Failure};
use crate::output::Inputs;
use crate::signal;
use crate::terminal::note;
use crate::threads::ThreadsArgs;
use crate::values::Named;

/// Write tensors as a safetensors or NumPy file
///
/// F32, F16, BF16, F64 and integers stay as they are; other types become F32, exactly. Shapes are
/// those of NumPy and PyTorch: rows first.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf extract model.gguf weights.safetensors
  octavo gguf extract model.gguf layer0.safetensors '^blk\\.0\\.'
  octavo gguf extract model.gguf v.npy 'blk\\.3\\.attn_v\\.weight'
  octavo gguf extract model.gguf blocks.safetensors ffn_down --raw")]
pub(super) struct ExtractArgs {
    #[command(flatten)]
    file: FileArg,
    /// Output file: a NumPy file of one tensor if it ends with .npy, else safetensors
    #[arg(value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    #[command(flatten)]
    patterns: PatternArgs,
    /// Type of floats and of quantized tensors: f32, f16 or bf16 (NumPy has no bf16)
    #[arg(long = "type", value_name = "TYPE", value_parser = float_type())]
    #[arg(hide_possible_values = true)]
    ty: Option<TensorType>,
    /// Write the bytes of the blocks instead of values; octavo gguf insert reads them back
    #[arg(long, conflicts_with = "ty")]
    raw: bool,
    #[command(flatten)]
    new: NewFileArgs,
}

/// Put arrays into a model: replace tensors of the same name, or add new ones
///
/// A tensor that is replaced keeps its type: the new values are quantized to it, without an
/// importance matrix. Its shape stays. Blocks that octavo gguf extract --raw wrote are put back as
/// they are.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  octavo gguf insert model.gguf edited.safetensors -o new.gguf
  octavo gguf insert model.gguf blk.3.attn_v.weight=v.npy -o new.gguf --type q8_0")]
pub(super) struct InsertArgs {
    #[command(flatten)]
    file: FileArg,
    /// Arrays: safetensors files, and NumPy files with the names of their tensors
    #[arg(value_name = "FILE.safetensors|NAME=FILE.npy", required = true)]
    arrays: Vec<String>,
    /// Output file
    #[arg(short, long, value_name = "OUT", value_hint = clap::ValueHint::FilePath)]
    output: PathBuf,
    /// Type of all these tensors in the output
    #[arg(long = "type", value_name = "TYPE", value_parser = any_type())]
    #[arg(hide_possible_values = true)]
    ty: Option<TensorType>,
    #[command(flatten)]
    threads: ThreadsArgs,
    #[command(flatten)]
    new: NewFileArgs,
}

fn float_type() -> Named<TensorType> {
    let names = || vec!["f32", "f16", "bf16"];
    Named::new(names, |text| {
        let types = [TensorType::F32, TensorType::F16, TensorType::BF16];
        let of_name = TensorType::from_name(text).filter(|ty| types.contains(ty));
        of_name.ok_or_else(|| "expected f32, f16 or bf16".to_owned())
    })
}

fn any_type() -> Named<TensorType> {
    let names = || {
        let all = TensorType::all().filter(|ty| octavo_quant::can_quantize(*ty));
        all.map(TensorType::name).collect()
    };
    Named::new(names, |text| {
        let of_name = TensorType::from_name(text);
        of_name
            .filter(|ty| octavo_quant::can_quantize(*ty))
            .ok_or_else(|| "expected a type that can be written, such as q8_0".to_owned())
    })
}

fn extension(path: &Path) -> Option<String> {
    Some(path.extension()?.to_string_lossy().to_lowercase())
}

/// Runs `octavo gguf extract`.
pub(super) fn extract(args: &ExtractArgs) -> Result<Exit, Failure> {
    let write = match extension(&args.output).as_deref() {
        Some("npy") => files::extract_one,
        _ => files::extract,
    };
    let path = args.file.path()?;
    let gguf = open(&path)?;
    let inputs = Inputs::default().model(Some(&path));
    args.new.output(&args.output, &inputs).check()?;
    signal::install()?;
    let tensors = gguf.tensors().iter();
    let tensors: Vec<&TensorInfo> = tensors.filter(|t| args.patterns.has(&t.name)).collect();
    let form = match (args.raw, args.ty) {
        (true, _) => Form::Raw,
        (false, Some(ty)) => Form::As(ty),
        (false, None) => Form::Own,
    };
    write(&gguf, &tensors, form, &args.output)?;
    note(&format!(
        "octavo: wrote {} of {} tensors to {}",
        tensors.len(),
        gguf.tensors().len(),
        args.output.display()
    ));
    Ok(Exit::Done)
}

/// Runs `octavo gguf insert`.
pub(super) fn insert(args: &InsertArgs) -> Result<Exit, Failure> {
    let files = args.arrays.iter().map(|text| named(text));
    let files: Vec<(Option<String>, &Path)> = files.collect::<Result<_, _>>()?;
    let path = args.file.path()?;
    let gguf = open(&path)?;
    let arrays = Arrays::open(&files)?;
    let inputs = files.iter().fold(
        Inputs::default().model(Some(&path)),
        |inputs, (_, array)| inputs.file(Some(array)),
    );
    args.new.output(&args.output, &inputs).check()?;
    signal::install()?;
    let threads = args.threads.count();
    let all = files::insert(&gguf, &arrays, args.ty, threads, &args.output)?;
    for one in &all {
        let what = match one.before {
            Some(before) if before == one.after => format!("replaced ({before})"),
            Some(before) => format!("replaced ({before} -> {})", one.after),
            None => format!("added ({})", one.after),
        };
        note(&format!("octavo: {}: {what}", one.name));
    }
    note(&format!("octavo: wrote {}", args.output.display()));
    Ok(Exit::Done)
}

/// Takes an argument apart: a NumPy file comes with its tensor's name.
fn named(text: &str) -> Result<(Option<String>, &Path), Failure> {
    let is = |path: &str, of: &str| extension(Path::new(path)).is_some_and(|e| e == of);
    match text.split_once('=') {
        Some((name, path)) if is(path, "npy") && !name.is_empty() => {
            Ok((Some(name.to_owned()), Path::new(path)))
        }
        _ if is(text, "safetensors") => Ok((None, Path::new(text))),
        _ => Err(Failure::Usage(format!(
            "{text}: expected FILE.safetensors or NAME=FILE.npy"
        ))),
    }
}
