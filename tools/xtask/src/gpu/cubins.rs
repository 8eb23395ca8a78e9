//! Kernels compiled before there is a GPU, as a user's cache would have them.

use std::path::Path;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;

use octavo_kernels::cuda::{Cache, Module};
use octavo_quant::TensorType;

/// The GPU that plans are made for.
const ARCH: &str = "sm_90a";
/// Weight types of the models of plans; those of other legs are compiled where they run.
const TYPES: [TensorType; 3] = [TensorType::Q4_K, TensorType::Q6_K, TensorType::Q8_0];
/// Values of a head of these models.
const HEAD_DIM: usize = 128;

/// Whether models of plans have kernels of a module.
fn is_packed(module: &Module) -> bool {
    match module {
        Module::Embed(ty)
        | Module::Gemv(ty)
        | Module::FloatGemv(ty)
        | Module::Imma(ty, _)
        | Module::Gemm(ty)
        | Module::WideGemm(ty, _) => TYPES.contains(ty),
        Module::ExpertGemv(_) | Module::ExpertImma(..) => false,
        Module::Attention(dim, _) => *dim == HEAD_DIM,
        _ => true,
    }
}

/// Compiles them into a folder that stands for `$XDG_CACHE_HOME`, on all CPUs.
///
/// # Errors
/// If one does not compile, or cannot be written.
pub(super) fn compile(cache: &Path) -> Result<(), String> {
    let nvrtc = crate::nvrtc::newest(Path::new("target/nvrtc"))?;
    let cache = Cache::new(cache.join("octavo").join("kernels"));
    let modules: Vec<Module> = Module::all().into_iter().filter(is_packed).collect();
    let (next, bytes) = (AtomicUsize::new(0), AtomicUsize::new(0));
    let work = || -> Result<(), String> {
        while let Some(module) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
            let path = cache.path(*module, &nvrtc.key(ARCH));
            let compile = || nvrtc.compile(*module, ARCH).map(|compiled| compiled.cubin);
            let kept = Cache::get(&path, compile, |image| Ok(image.len()));
            let (n, _) = kept.map_err(|error| error.to_string())?;
            if !Cache::has(&path) {
                return Err(format!("{}: cannot be written", path.display()));
            }
            bytes.fetch_add(n, Ordering::Relaxed);
        }
        Ok(())
    };
    let threads = thread::available_parallelism().map_or(1, usize::from);
    thread::scope(|scope| {
        let threads: Vec<_> = (0..threads).map(|_| scope.spawn(work)).collect();
        let join = |thread: thread::ScopedJoinHandle<'_, Result<(), String>>| {
            let panicked = |_| Err("a thread that compiles kernels panicked".to_owned());
            thread.join().unwrap_or_else(panicked)
        };
        threads
            .into_iter()
            .map(join)
            .collect::<Result<Vec<()>, String>>()
    })?;
    println!(
        "{} modules for {ARCH}: {} KiB of code",
        modules.len(),
        bytes.load(Ordering::Relaxed) >> 10
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_a_token_needs_is_packed() {
        let packed: Vec<Module> = Module::all().into_iter().filter(is_packed).collect();
        for module in [
            Module::Rows,
            Module::Activations,
            Module::Gemv(TensorType::Q4_K),
            Module::WideGemm(TensorType::Q6_K, 1),
            Module::Attention(HEAD_DIM, 1),
        ] {
            assert!(packed.contains(&module), "{module}");
        }
        assert!(packed.len() < Module::all().len() / 3);
    }
}
