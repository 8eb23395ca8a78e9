//! `octavo inspect --devices`: reports the CPU and the GPUs, and the reason that one cannot be
//! used.

use octavo_engine::backend::cuda;
use octavo_engine::threads::Threads;
use octavo_kernels::{IsaChoice, LargePages, large_pages};
use serde_json::{Value, json};

use crate::answer::VERSION;
use crate::failure::Failure;

/// Returns the report, as text or as one JSON object.
pub(super) fn render(isa: IsaChoice, threads: &Threads, as_json: bool) -> Result<String, Failure> {
    let isa = isa.resolve()?;
    let gpus = cuda::devices();
    if as_json {
        return Ok(format!("{}\n", object(isa.name(), threads, &gpus)));
    }
    let mut text = format!(
        "cpu    {isa}, {}\nmemory {}\n",
        threads.in_brackets(),
        of_pages(&large_pages())
    );
    match &gpus {
        Err(error) => text += &format!("cuda   none: {error}\n"),
        Ok(all) => {
            for (gpu, wrong) in all {
                let ((major, minor), gib) =
                    (gpu.capability, gpu.memory as f64 / f64::from(1 << 30));
                let state = wrong.as_ref().map_or_else(
                    || "runs the kernels' self-test".to_owned(),
                    ToString::to_string,
                );
                text += &format!(
                    "cuda {} {}, compute capability {major}.{minor}, {} multiprocessors, {gib:.1} \
                     GiB, driver of CUDA {}.{}: {state}\n",
                    gpu.ordinal, gpu.name, gpu.multiprocessors, gpu.driver.0, gpu.driver.1
                );
            }
        }
    }
    Ok(text)
}

/// Describes the memory pages of weights.
fn of_pages(pages: &LargePages) -> String {
    let size = if pages.granted { "large" } else { "small" };
    let setting = pages.setting.as_deref().unwrap_or("unknown");
    format!("weights get {size} pages (the system's setting: {setting})")
}

fn object(
    isa: &str,
    threads: &Threads,
    gpus: &Result<Vec<(octavo_kernels::cuda::GpuInfo, Option<cuda::Error>)>, cuda::Error>,
) -> Value {
    let version = |(major, minor): (i32, i32)| format!("{major}.{minor}");
    let cpu =
        json!({"isa": isa, "threads": threads.count, "threads_reason": threads.reason.to_string()});
    let pages = large_pages();
    let memory = json!({"large_pages": pages.granted, "large_pages_setting": pages.setting});
    let mut object = json!({"version": VERSION, "cpu": cpu, "memory": memory, "gpus": []});
    match gpus {
        Err(error) => object["cuda"] = json!({"why": error.to_string()}),
        Ok(all) => {
            let gpu = |(gpu, wrong): &(octavo_kernels::cuda::GpuInfo, Option<cuda::Error>)| {
                json!({
                    "ordinal": gpu.ordinal, "name": gpu.name,
                    "compute_capability": version(gpu.capability),
                    "multiprocessors": gpu.multiprocessors, "memory": gpu.memory,
                    "driver": version(gpu.driver),
                    "why": wrong.as_ref().map(ToString::to_string),
                })
            };
            object["gpus"] = all.iter().map(gpu).collect();
        }
    }
    object
}
