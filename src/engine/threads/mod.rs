//! Default number of threads, and the reason for it.
//!
//! All threads meet at barriers, so the slowest one decides: a slow core, the second hyperthread of
//! a core or a CPU busy with other work costs more than it adds. The default is therefore one
//! thread for each physical core of the fastest kind among the CPUs that the process may use, and
//! no more than a cgroup's quota allows, rounded up: with a quota of 1.5 CPUs two threads are
//! faster than one.
//!
//! Everything is read below a root folder, so that tests can bring machines of their own.

pub mod cgroup;
pub mod nodes;
#[cfg(test)]
mod tests;

use std::collections::BTreeSet;
use std::fmt;
use std::path::Path;

use cgroup::Quota;

/// More CPUs than any machine has: a list with a larger number is garbage.
const MAX_CPUS: usize = 1 << 16;

/// Returns the default number of threads; [`Machine::threads`] also gives the reason for it.
pub fn default_threads() -> usize {
    Machine::here().threads().count
}

/// A number of threads and the reason for it, displayed as `2 threads: 2 of 8 CPUs allowed`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Threads {
    /// Number of threads, at least 1.
    pub count: usize,
    /// Reason for the number.
    pub reason: Reason,
}

/// Reason for a number of threads.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Reason {
    /// The user asked for this number.
    Requested,
    /// The user asked for more threads than the process has CPUs.
    CappedRequest {
        /// Threads asked for.
        asked: usize,
        /// CPUs that the process may use, of every kind.
        cpus: usize,
    },
    /// Every CPU is a core of the same kind, and all may be used.
    All,
    /// The process may use only some of the CPUs.
    Allowed {
        /// CPUs that it may use.
        cpus: usize,
        /// CPUs online.
        of: usize,
    },
    /// The other cores are slower.
    Performance {
        /// Cores of the fastest kind that the process may use.
        cores: usize,
        /// Slower cores that it may use.
        others: usize,
    },
    /// Several CPUs share one core (hyperthreads).
    Physical {
        /// CPUs that the process may use.
        cpus: usize,
        /// CPUs online.
        of: usize,
    },
    /// A cgroup of the process has this quota.
    Quota(Quota),
    /// The system reports it without a reason.
    System,
}

/// Formats a count: `1 CPU`, `2 CPUs`.
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}

impl fmt::Display for Reason {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Reason::Requested => f.write_str("given"),
            Reason::CappedRequest { asked, cpus } => {
                write!(f, "{asked} given, of {} allowed", counted(*cpus, "CPU"))
            }
            Reason::All => f.write_str("all CPUs"),
            Reason::Allowed { cpus, of } => write!(f, "{cpus} of {} allowed", counted(*of, "CPU")),
            Reason::Performance { cores, others } => {
                write!(f, "performance cores, of {cores} + {others}")
            }
            Reason::Physical { cpus, of } if cpus == of => {
                write!(f, "physical cores, of {}", counted(*cpus, "CPU"))
            }
            Reason::Physical { cpus, of } => write!(
                f,
                "physical cores, of {cpus} of {} allowed",
                counted(*of, "CPU")
            ),
            Reason::Quota(quota) => write!(f, "a quota of {quota}"),
            Reason::System => f.write_str("what the system says"),
        }
    }
}

impl Threads {
    /// Formats it as `2 threads (given)`, for a place inside a sentence.
    pub fn in_brackets(&self) -> String {
        format!("{} ({})", counted(self.count, "thread"), self.reason)
    }
}

impl fmt::Display for Threads {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", counted(self.count, "thread"), self.reason)
    }
}

/// A CPU that the process may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Cpu {
    /// Number of the first CPU of its core.
    core: usize,
    /// Whether it is of the fastest kind.
    fast: bool,
}

/// CPUs of a machine that a process may use, and its quota.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machine {
    /// CPUs online; `None` if only their number is known, from the system.
    online: Option<usize>,
    /// CPUs that the process may use, at least one.
    cpus: Vec<Cpu>,
    quota: Option<Quota>,
}

impl Machine {
    /// Reads what Linux reports of this process in /proc and /sys, or else takes the number of CPUs
    /// that the system reports.
    pub fn here() -> Machine {
        Machine::read(Path::new("/")).unwrap_or_else(|| {
            let n = std::thread::available_parallelism().map_or(1, usize::from);
            let cpus = (0..n).map(|core| Cpu { core, fast: true }).collect();
            Machine {
                online: None,
                cpus,
                quota: None,
            }
        })
    }

    /// As [`Machine::here`], from the `proc` and `sys` in a folder; `None` where they do not list
    /// the CPUs that the process may use. Anything else that is missing or invalid is treated as
    /// absent.
    pub fn read(root: &Path) -> Option<Machine> {
        let online = list_in(&root.join("sys/devices/system/cpu/online"));
        let allowed: Vec<usize> = allowed_cpus(root, online.as_ref())?.into_iter().collect();
        let fast = fast(root, &allowed);
        let cpus = allowed
            .iter()
            .zip(fast)
            .map(|(&cpu, fast)| Cpu {
                core: core(root, cpu),
                fast,
            })
            .collect();
        let quota = cgroup::Group::all(root)
            .iter()
            .filter_map(cgroup::Group::quota)
            .min();
        Some(Machine {
            online: Some(online.map_or(allowed.len(), |online| online.len())),
            cpus,
            quota,
        })
    }

    /// Returns the number of CPUs that the process may use, including hyperthreads and slow ones,
    /// whatever its quota.
    pub fn cpus(&self) -> usize {
        self.cpus.len()
    }

    /// Returns the best number of threads where the user gave none.
    pub fn threads(&self) -> Threads {
        let Some(of) = self.online else {
            return Threads {
                count: self.cpus.len(),
                reason: Reason::System,
            };
        };
        let cores = |fast: bool| {
            let of_kind = self.cpus.iter().filter(|cpu| cpu.fast == fast);
            (
                of_kind.clone().count(),
                of_kind.map(|cpu| cpu.core).collect::<BTreeSet<_>>().len(),
            )
        };
        let (cpus, (fast_cpus, fast_cores), (_, slow_cores)) =
            (self.cpus.len(), cores(true), cores(false));
        // the fastest kind may be one that none of the allowed CPUs is of
        let (count, reason) = match fast_cpus {
            0 if slow_cores < cpus => (slow_cores, Reason::Physical { cpus, of }),
            0 => (cpus, allowed(cpus, of)),
            _ if fast_cpus < cpus => (
                fast_cores,
                Reason::Performance {
                    cores: fast_cores,
                    others: slow_cores,
                },
            ),
            _ if fast_cores < cpus => (fast_cores, Reason::Physical { cpus, of }),
            _ => (cpus, allowed(cpus, of)),
        };
        match self.quota {
            Some(quota) if quota.cpus_rounded_up() < count => Threads {
                count: quota.cpus_rounded_up(),
                reason: Reason::Quota(quota),
            },
            _ => Threads { count, reason },
        }
    }

    /// Returns as many threads as asked for, but no more than there are CPUs: beyond that threads
    /// would share CPUs and wait for each other at barriers.
    pub fn threads_asked(&self, asked: usize) -> Threads {
        let cpus = self.cpus();
        match asked > cpus {
            true => Threads {
                count: cpus,
                reason: Reason::CappedRequest { asked, cpus },
            },
            false => Threads {
                count: asked.max(1),
                reason: Reason::Requested,
            },
        }
    }
}

/// Returns the CPUs that the process may use, at least one; `None` where the `proc` in a folder
/// does not list them.
fn allowed_cpus(root: &Path, online: Option<&BTreeSet<usize>>) -> Option<BTreeSet<usize>> {
    let status = std::fs::read_to_string(root.join("proc/self/status")).ok()?;
    let mut lines = status.lines();
    let allowed = lines.find_map(|line| line.strip_prefix("Cpus_allowed_list:"))?;
    let allowed = list(allowed)?;
    // a mask that was never narrowed has bits for CPUs that do not exist
    let here = |all: &BTreeSet<usize>| allowed.intersection(all).copied().collect();
    let allowed: BTreeSet<usize> = online.map_or(allowed.clone(), here);
    (!allowed.is_empty()).then_some(allowed)
}

fn allowed(cpus: usize, of: usize) -> Reason {
    if cpus < of {
        Reason::Allowed { cpus, of }
    } else {
        Reason::All
    }
}

/// Returns which of these CPUs are of the fastest kind: on Intel's hybrid processors the kernel
/// names the kinds, on Arm it gives each CPU a capacity. Cores within a quarter of the largest
/// capacity count as fast: of four threads, three that wait for the fourth at a barrier lose no
/// more than that one adds.
fn fast(root: &Path, cpus: &[usize]) -> Vec<bool> {
    let kind = |name: &str| list_in(&root.join("sys/devices").join(name).join("cpus"));
    if let (Some(core), Some(_)) = (kind("cpu_core"), kind("cpu_atom")) {
        return cpus.iter().map(|cpu| core.contains(cpu)).collect();
    }
    let capacity = |cpu: &usize| -> Option<u64> {
        let path = root.join(format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"));
        std::fs::read_to_string(path)
            .ok()?
            .trim()
            .parse::<u32>()
            .ok()
            .map(u64::from)
    };
    match cpus.iter().map(capacity).collect::<Option<Vec<u64>>>() {
        Some(all) => {
            let most = all.iter().copied().max().unwrap_or(0);
            all.iter()
                .map(|capacity| 4 * capacity >= 3 * most)
                .collect()
        }
        // one without a capacity makes the others incomparable
        None => vec![true; cpus.len()],
    }
}

/// Returns the first CPU of the core that this one belongs to: itself where the kernel reports
/// nothing sensible.
fn core(root: &Path, cpu: usize) -> usize {
    let topology = root.join(format!("sys/devices/system/cpu/cpu{cpu}/topology"));
    // the second file has the older name
    let siblings = ["core_cpus_list", "thread_siblings_list"]
        .iter()
        .find_map(|name| list_in(&topology.join(name)));
    siblings
        .filter(|all| all.contains(&cpu))
        .and_then(|all| all.first().copied())
        .unwrap_or(cpu)
}

fn list_in(path: &Path) -> Option<BTreeSet<usize>> {
    list(&std::fs::read_to_string(path).ok()?)
}

/// Parses a list of the kernel's, `0-3,8`; `None` if it is empty or invalid.
fn list(text: &str) -> Option<BTreeSet<usize>> {
    let mut all = BTreeSet::new();
    for part in text.trim().split(',') {
        let (first, last) = part.split_once('-').unwrap_or((part, part));
        let (first, last) = (first.parse::<usize>().ok()?, last.parse::<usize>().ok()?);
        if last >= MAX_CPUS || first > last {
            return None;
        }
        all.extend(first..=last);
    }
    Some(all)
}
