//! Plans the conversion of Hugging Face folders to GGUF files.

use gguf_rs_lite::{Gguf, TensorInfo, TensorType};
use octavo_hf as hf;
use octavo_vision::Tower;

use super::mix::Choices;
use super::plan::change_to;
use super::{Error, Options, Plan, Target};

/// Returns the type that a tensor gets: `to` for matrices, its own for vectors and whatever else
/// llama.cpp's converter stores in one type. Q4_1 applies to AWQ groups only; other matrices are
/// then unchanged, as without a `to`. MXFP4 blocks are always unchanged.
fn target_type(gguf: &Gguf, tensor: &TensorInfo, to: Option<TensorType>) -> TensorType {
    if hf::has_fixed_type(gguf, tensor) {
        return tensor.ty;
    }
    if hf::is_patches(&tensor.name) {
        return match to {
            None | Some(TensorType::Q4_1) => tensor.ty,
            Some(TensorType::F16) => TensorType::F16,
            Some(_) => TensorType::F32,
        };
    }
    match to.unwrap_or(TensorType::Q4_1) {
        _ if tensor.ty == TensorType::MXFP4 => tensor.ty,
        TensorType::Q4_1 if !TensorType::AWQ.contains(&tensor.ty) => tensor.ty,
        to => to,
    }
}

impl<'a> Plan<'a> {
    /// Plans the conversion of the folder `gguf` to a GGUF file: AWQ groups become Q4_1 blocks,
    /// unless `to` is F16, BF16 or F32, which all matrices then get. Everything else is unchanged.
    ///
    /// # Errors
    /// Anything that would keep the file from being loaded ([`hf::check`], [`Tower::load`]), and
    /// rows that do not fit the type.
    pub fn of_folder(
        gguf: &'a Gguf,
        to: Option<TensorType>,
        threads: usize,
    ) -> Result<Plan<'a>, Error> {
        if Tower::is_in(gguf) {
            Tower::load(gguf).map_err(|error| hf::Error::Model {
                error: error.to_string(),
            })?;
        } else {
            hf::check(gguf)?;
        }
        let changes = gguf
            .tensors()
            .iter()
            .map(|t| change_to(t, target_type(gguf, t, to), |_| false))
            .collect::<Result<Vec<_>, _>>()?;
        let groups = changes.iter().any(|c| c.to == TensorType::Q4_1);
        // tensors of the same type in every file do not count
        let says = |t: &TensorInfo| !hf::is_patches(&t.name) && !hf::has_fixed_type(gguf, t);
        let most = changes
            .iter()
            .filter(|c| says(&c.tensor))
            .max_by_key(|c| c.tensor.bytes)
            .map_or(TensorType::F32, |c| c.to);
        let ty = if groups { TensorType::Q4_1 } else { most };
        let file_type = Target::all()
            .find(|t| t.default_type() == ty)
            .map(Target::file_type);
        let options = Options {
            target: Target::COPY,
            choices: Choices::default(),
            allow_requantize: true,
            threads,
            keep_split: false,
        };
        Ok(Plan {
            gguf,
            importance: None,
            options,
            changes,
            file_type,
            from_folder: true,
        })
    }
}
