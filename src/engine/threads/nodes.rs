//! NUMA nodes: CPUs with memory of their own, which other CPUs reach more slowly.

use std::collections::BTreeSet;
use std::path::Path;

use super::{allowed_cpus, list_in};

/// Returns the CPUs of each NUMA node that the process may use, without empty nodes; all of them as
/// one node where Linux reports no nodes, and none where it does not list the CPUs.
pub fn here() -> Vec<Vec<usize>> {
    read(Path::new("/"))
}

/// As [`here`], from the `proc` and `sys` in a folder.
pub fn read(root: &Path) -> Vec<Vec<usize>> {
    let online = list_in(&root.join("sys/devices/system/cpu/online"));
    let Some(allowed) = allowed_cpus(root, online.as_ref()) else {
        return Vec::new();
    };
    let folder = root.join("sys/devices/system/node");
    let mut numbers: Vec<usize> = std::fs::read_dir(&folder)
        .into_iter()
        .flatten()
        .filter_map(|entry| {
            let name = entry.ok()?.file_name();
            name.to_str()?.strip_prefix("node")?.parse().ok()
        })
        .collect();
    numbers.sort_unstable();
    let cpus = |node: usize| list_in(&folder.join(format!("node{node}/cpulist")));
    let nodes: Vec<Vec<usize>> = numbers
        .into_iter()
        .filter_map(cpus)
        .map(|cpus| cpus.intersection(&allowed).copied().collect())
        .filter(|cpus: &Vec<usize>| !cpus.is_empty())
        .collect();
    let known: BTreeSet<usize> = nodes.iter().flatten().copied().collect();
    match known == allowed {
        true => nodes,
        false => vec![allowed.into_iter().collect()],
    }
}

/// Divides the CPUs into this many groups of neighbours, as equal as can be, node after node;
/// `None` if there are fewer CPUs.
pub fn divided(nodes: &[Vec<usize>], groups: usize) -> Option<Vec<Vec<usize>>> {
    let all = nodes.concat();
    if groups == 0 || all.len() < groups {
        return None;
    }
    let at = |group: usize| all.len() * group / groups;
    let groups = (0..groups).map(|group| all[at(group)..at(group + 1)].to_vec());
    Some(groups.collect())
}
