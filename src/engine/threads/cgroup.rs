//! Linux's limits on CPU time: quotas of control groups, in both versions of the interface.

use std::cmp::Ordering;
use std::fmt;
use std::path::{Component, Path, PathBuf};

/// Time of CPUs in each period of time: less of it than threads could use stops all of them until
/// the next period.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    /// Microseconds of CPU time, above 0.
    time: u64,
    /// In so many microseconds, above 0.
    period: u64,
}

impl Quota {
    /// None if one of them is 0.
    pub fn new(time: u64, period: u64) -> Option<Quota> {
        (time > 0 && period > 0).then_some(Quota { time, period })
    }

    /// How many CPUs have no less time than this.
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
        // the kernel takes no less than a thousandth
        let cpus = format!("{:.3}", self.time as f64 / self.period as f64);
        let cpus = cpus.trim_end_matches('0').trim_end_matches('.');
        write!(f, "{cpus} CPU{}", if cpus == "1" { "" } else { "s" })
    }
}

/// Which interface.
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
    /// Which files it has.
    pub version: Version,
    /// Where the hierarchy begins: no group above can be seen.
    pub mount: PathBuf,
    /// The group's own folder, in `mount` or equal to it.
    pub folder: PathBuf,
}

impl Group {
    /// The groups of this process as the `proc` in a folder names them: one of each version at
    /// most, most often one.
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
        // what is mounted may be a part of the hierarchy; a group outside of it cannot be looked up
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

    /// The smallest quota of this group and those above it.
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

/// The quota that one group's folder states.
fn quota_in(version: Version, folder: &Path) -> Option<Quota> {
    let read = |name: &str| std::fs::read_to_string(folder.join(name)).ok();
    let number = |text: &str| text.trim().parse::<u64>().ok();
    match version {
        // -1 is no quota, and no number here
        Version::V1 => Quota::new(
            number(&read("cpu.cfs_quota_us")?)?,
            number(&read("cpu.cfs_period_us")?)?,
        ),
        // "max 100000" is none
        Version::V2 => {
            let text = read("cpu.max")?;
            let (time, period) = text.trim().split_once(' ')?;
            Quota::new(number(time)?, number(period)?)
        }
    }
}

/// Of a line of mountinfo that mounts this version's hierarchy: which part of it, and where.
fn mount_of(version: Version, line: &str) -> Option<(String, String)> {
    let (place, what) = line.split_once(" - ")?;
    let (mut place, mut what) = (place.split(' ').skip(3), what.split(' '));
    let (kind, options) = (what.next()?, what.nth(1)?);
    let ours = match version {
        Version::V1 => kind == "cgroup" && options.split(',').any(|name| name == "cpu"),
        Version::V2 => kind == "cgroup2",
    };
    // spaces and the like stand there as octal numbers
    let plain = |text: &str| {
        text.replace("\\040", " ")
            .replace("\\011", "\t")
            .replace("\\012", "\n")
            .replace("\\134", "\\")
    };
    ours.then_some((plain(place.next()?), plain(place.next()?)))
}

/// An absolute path of the machine in the folder that stands for its root.
fn below(root: &Path, path: &str) -> PathBuf {
    root.join(path.trim_start_matches('/'))
}
