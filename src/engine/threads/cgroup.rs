//! Linux's limits on CPU time: quotas of control groups, in both versions of the interface.

use std::cmp::Ordering;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// CPU time that a control group may use in each period: if that is less than its threads could
/// use, all of them stop until the next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Microseconds of CPU time, above 0.
    time: u64,
    /// Length of a period in microseconds, above 0.
    period: u64,
}

impl Quota {
    /// Creates a quota; `None` if one of the two is 0.
    pub fn new(time: u64, period: u64) -> Option<Quota> {
        (time > 0 && period > 0).then_some(Quota { time, period })
    }

    /// Returns the smallest number of CPUs that have no less time than this.
    pub fn cpus_rounded_up(&self) -> usize {
        usize::try_from(self.time.div_ceil(self.period)).unwrap_or(usize::MAX)
    }
}

impl Ord for Quota {
    fn cmp(&self, other: &Quota) -> Ordering {
        let product = |a: u64, b: u64| u128::from(a) * u128::from(b);
        product(self.time, other.period).cmp(&product(other.time, self.period))
    }
}

impl PartialOrd for Quota {
    fn partial_cmp(&self, other: &Quota) -> Option<Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Quota {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // the kernel takes no less than a thousandth of a CPU
        let cpus = format!("{:.3}", self.time as f64 / self.period as f64);
        let cpus = cpus.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{cpus} CPU{}", if cpus == "1" { "" } else { "s" })
    }
}

/// Version of the cgroup interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Version {
    /// `cpu.cfs_quota_us` and `cpu.cfs_period_us`.
    V1,
    /// `cpu.max`.
    V2,
}

/// A control group of the process that may limit its CPU time.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Group {
    /// Version, which says which files it has.
    pub version: Version,
    /// Mount point of the hierarchy: no group above it can be seen.
    pub mount: PathBuf,
    /// Folder of the group, in `mount` or equal to it.
    pub folder: PathBuf,
}

impl Group {
    /// Returns the groups of this process as the `proc` in a folder names them: at most one of each
    /// version, most often one.
    pub fn all(root: &Path) -> Vec<Group> {
        let groups = std::fs::read_to_string(root.join("proc/self/cgroup")).unwrap_or_default();
        let mounts = std::fs::read_to_string(root.join("proc/self/mountinfo")).unwrap_or_default();
        [Version::V1, Version::V2]
            .into_iter()
            .filter_map(|version| Group::find(root, version, &groups, &mounts))
            .collect()
    }

    fn find(root: &Path, version: Version, groups: &str, mounts: &str) -> Option<Group> {
        let path = groups.lines().find_map(|line| {
            // "4:cpu,cpuacct:/docker/1234", "0::/user.slice"
            let (_, named) = line.split_once(':')?;
            let (controllers, path) = named.split_once(':')?;
            let ours = match version {
                Version::V1 => controllers.split(',').any(|name| name == "cpu"),
                Version::V2 => controllers.is_empty(),
            };
            ours.then_some(path)
        })?;
        let usual = || {
            let place = if version == Version::V1 {
                "/sys/fs/cgroup/cpu"
            } else {
                "/sys/fs/cgroup"
            };
            ("/".to_owned(), place.to_owned())
        };
        let (top, mount) = mounts
            .lines()
            .find_map(|line| mount_of(version, line))
            .unwrap_or_else(usual);
        let mount = below(root, &mount);
        // the mount may be a part of the hierarchy; a group outside of it cannot be looked up
        let inside = Path::new(path).strip_prefix(&top).ok();
        let inside = inside.filter(|path| {
            path.components()
                .all(|part| matches!(part, Component::Normal(_)))
        });
        let folder = inside.map_or_else(|| mount.clone(), |path| mount.join(path));
        Some(Group {
            version,
            mount,
            folder,
        })
    }

    /// Returns the smallest quota of this group and those above it.
    pub fn quota(&self) -> Option<Quota> {
        let folders = self
            .folder
            .ancestors()
            .take_while(|folder| folder.starts_with(&self.mount));
        folders
            .filter_map(|folder| quota_in(self.version, folder))
            .min()
    }
}

/// Reads the quota from the folder of one group.
fn quota_in(version: Version, folder: &Path) -> Option<Quota> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match version {
        // -1 means no quota, and does not parse here
        Version::V1 => Quota::new(
            number(&read("cpu.cfs_quota_us")?)?,
            number(&read("cpu.cfs_period_us")?)?,
        ),
        // "max 100000" means no quota
        Version::V2 => {
            let text = read("cpu.max")?;
            let (time, period) = text.trim().split_once(' ')?;
            Quota::new(number(time)?, number(period)?)
        }
    }
}

/// Parses a line of mountinfo; if it mounts this version's hierarchy, returns which part of it, and
/// the mount point.
fn mount_of(version: Version, line: &str) -> Option<(String, String)> {
    let (place, what) = line.split_once(" - ")?;
    let (mut place, mut what) = (place.split(' ').skip(3), what.split(' '));
    let (kind, options) = (what.next()?, what.nth(1)?);
    let ours = match version {
        Version::V1 => kind == "cgroup" && options.split(',').any(|name| name == "cpu"),
        Version::V2 => kind == "cgroup2",
    };
    // spaces and the like are written as octal numbers
    let plain = |text: &str| {
        text.replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\")
    };
    ours.then_some((plain(place.next()?), plain(place.next()?)))
}

/// Returns the path below the root folder for an absolute path of the machine.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
