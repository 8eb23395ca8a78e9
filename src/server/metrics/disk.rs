//! Metrics of the prefix cache on disk, of models that have one.

use octavo_engine::{PromptCacheStats, Snapshot};
use prometheus_client::registry::Registry;

use super::{Labels, add_counter, add_gauge};

type Count = fn(&PromptCacheStats) -> u64;

/// Adds the metrics.
pub(super) fn register(registry: &mut Registry, models: &[(Labels, Snapshot)]) {
    let disks = models.iter();
    let disks = disks.filter_map(|(labels, model)| Some((labels.clone(), model.disk.clone()?)));
    let disks: Vec<(Labels, PromptCacheStats)> = disks.collect();
    if disks.is_empty() {
        return;
    }
    let levels: [(&str, &str, Count); 2] = [
        (
            "files",
            "Files of the prompt cache on disk, of all models",
            |disk| disk.files,
        ),
        ("bytes", "Size of these files", |disk| disk.bytes),
    ];
    for (name, help, value) in levels {
        let name = format!("octavo_prompt_cache_{name}");
        add_gauge(registry, &name, help, &disks, |disk| value(disk) as f64);
    }
    let counts: [(&str, &str, Count); 5] = [
        (
            "restored_tokens",
            "Tokens of prompts read from disk",
            |disk| disk.restored_tokens,
        ),
        ("saved_pages", "Pages written to disk", |disk| {
            disk.saved_pages
        }),
        (
            "dropped_pages",
            "Pages for which the disk was too slow or too small",
            |disk| disk.dropped_pages,
        ),
        ("damaged_files", "Damaged files that were removed", |disk| {
            disk.damaged_files
        }),
        (
            "failures",
            "Files that could not be written or removed",
            |disk| disk.failures,
        ),
    ];
    for (name, help, value) in counts {
        let name = format!("octavo_prompt_cache_{name}");
        add_counter(registry, &name, help, &disks, value);
    }
}
