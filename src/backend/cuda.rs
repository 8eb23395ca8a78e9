//! The CUDA backend, as far as it goes: what GPUs there are, and why a model cannot run on one.
//!
//! Kernels, their delivery and their launches are in `octavo_kernels::cuda`; the graph does not reach them yet.

use octavo_kernels::cuda::{Cache, Gpu, GpuInfo, gpus};

/// Why a model cannot run on a GPU.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// No usable GPU.
    #[error("CUDA: {0}")]
    Unavailable(#[from] octavo_kernels::cuda::Error),
    /// A GPU that runs kernels, and a program that has no backend for it yet.
    #[error("CUDA: GPU {ordinal} ({name}) runs Octavo's kernels, but models do not run on GPUs yet; use --device cpu")]
    NoBackend {
        /// Its number.
        ordinal: usize,
        /// Its name.
        name: String,
    },
}

/// Every GPU, and for each why it cannot be used, if so.
///
/// # Errors
/// If there is no driver or no GPU.
pub fn devices() -> Result<Vec<(GpuInfo, Option<Error>)>, Error> {
    let test = |info: GpuInfo| {
        let wrong = Gpu::open(info.ordinal, Cache::of_user()).err();
        (info, wrong.map(Error::from))
    };
    Ok(gpus()?.into_iter().map(test).collect())
}

/// Tries a GPU, by number, and says what keeps a model from running on it.
pub fn refusal(ordinal: usize) -> Error {
    match Gpu::open(ordinal, Cache::of_user()) {
        Ok(gpu) => Error::NoBackend { ordinal, name: gpu.info().name.clone() },
        Err(error) => error.into(),
    }
}
