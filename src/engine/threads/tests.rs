//! Tests with machines made of files.

use std::path::Path;

use tempfile::TempDir;

use super::{Machine, list, nodes};

/// Creates a machine's folder with these files; its CPUs are `online`, the process may use
/// `allowed`.
fn machine(online: &str, allowed: &str, files: &[(&str, &str)]) -> TempDir {
    let root = tempfile::tempdir().expect("a folder");
    let status = format!(
        "Name:\toctavo\nCpus_allowed:\tff\nCpus_allowed_list:\t{allowed}\nMems_allowed_list:\t0\n"
    );
    write(root.path(), "proc/self/status", &status);
    write(
        root.path(),
        "sys/devices/system/cpu/online",
        &format!("{online}\n"),
    );
    for (path, text) in files {
        write(root.path(), path, text);
    }
    root
}

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().expect("a folder")).expect("made");
    std::fs::write(path, text).expect("written");
}

fn decided(root: &TempDir) -> String {
    Machine::read(root.path())
        .expect("CPUs are listed")
        .threads()
        .to_string()
}

/// Gives each core two CPUs, `n` apart.
fn siblings(root: &TempDir, n: usize, name: &str) {
    for cpu in 0..2 * n {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/{name}");
        write(
            root.path(),
            &path,
            &format!("{},{}\n", cpu % n, cpu % n + n),
        );
    }
}

#[test]
fn lists_of_cpus() {
    let of = |text: &str| list(text).map(|all| all.into_iter().collect::<Vec<_>>());
    assert_eq!(of(" 0-3,8\n"), Some(vec![0, 1, 2, 3, 8]));
    assert_eq!(of("5"), Some(vec![5]));
    for garbage in [
        "",
        "x",
        "1-",
        "3-1",
        "0-18446744073709551615",
        "1,,2",
        "-1",
        "0-65536",
        "0:2",
    ] {
        assert_eq!(of(garbage), None, "{garbage}");
    }
}

#[test]
fn affinity() {
    assert_eq!(decided(&machine("0-7", "0-7", &[])), "8 threads: all CPUs");
    assert_eq!(
        decided(&machine("0-7", "1,6", &[])),
        "2 threads: 2 of 8 CPUs allowed"
    );
    assert_eq!(
        decided(&machine("0-1", "0", &[])),
        "1 thread: 1 of 2 CPUs allowed"
    );
    // the mask has bits for CPUs that could be plugged in
    assert_eq!(
        decided(&machine("0-3", "0-127", &[])),
        "4 threads: all CPUs"
    );
    // nothing is known of the CPUs online
    let root = machine("?", "2-3", &[]);
    assert_eq!(decided(&root), "2 threads: all CPUs");
}

#[test]
fn quotas_of_version_2() {
    let mounts = "25 23 0:22 / /sys/fs/cgroup rw,nosuid shared:4 - cgroup2 cgroup2 rw,nsdelegate\n";
    let with = |groups: &str, quotas: &[(&str, &str)]| {
        let files = [
            ("proc/self/cgroup", groups),
            ("proc/self/mountinfo", mounts),
        ];
        decided(&machine("0-7", "0-7", &[&files, quotas].concat()))
    };
    let own = "sys/fs/cgroup/a/b/cpu.max";
    assert_eq!(
        with("0::/a/b\n", &[(own, "200000 100000\n")]),
        "2 threads: a quota of 2 CPUs"
    );
    assert_eq!(
        with("0::/a/b\n", &[(own, "150000 100000\n")]),
        "2 threads: a quota of 1.5 CPUs"
    );
    assert_eq!(
        with("0::/a/b\n", &[(own, "50000 100000\n")]),
        "1 thread: a quota of 0.5 CPUs"
    );
    assert_eq!(
        with("0::/a/b\n", &[(own, "max 100000\n")]),
        "8 threads: all CPUs"
    );
    assert_eq!(
        with("0::/a/b\n", &[(own, "2000000 100000\n")]),
        "8 threads: all CPUs"
    );
    // groups above count, the smallest quota decides
    let above = ("sys/fs/cgroup/a/cpu.max", "300000 100000");
    assert_eq!(
        with("0::/a/b\n", &[(own, "max 100000"), above]),
        "3 threads: a quota of 3 CPUs"
    );
    assert_eq!(
        with("0::/a/b\n", &[(own, "40000 10000"), above]),
        "3 threads: a quota of 3 CPUs"
    );
    assert_eq!(
        with("0::/a/b\n", &[(own, "10000 10000"), above]),
        "1 thread: a quota of 1 CPU"
    );
    // a container sees its own group as the root, and other groups do not matter
    let root = ("sys/fs/cgroup/cpu.max", "250000 100000");
    assert_eq!(
        with("0::/\n", &[root, above]),
        "3 threads: a quota of 2.5 CPUs"
    );
    // a group outside of the mount: only the top of the mount is known
    assert_eq!(
        with("0::/../c\n", &[root, ("sys/fs/c/cpu.max", "1 1")]),
        "3 threads: a quota of 2.5 CPUs"
    );
    // a quota of more CPUs than are allowed has no effect
    let files = [
        ("proc/self/cgroup", "0::/\n"),
        ("proc/self/mountinfo", mounts),
        ("sys/fs/cgroup/cpu.max", "4 2"),
    ];
    assert_eq!(
        decided(&machine("0-7", "1-2", &files)),
        "2 threads: 2 of 8 CPUs allowed"
    );
}

#[test]
fn quotas_of_version_1() {
    let v1 = |quota: &str, period: &str, folder: &str, groups: &str, mounts: &str| {
        let (quota_file, period_file) = (
            format!("{folder}/cpu.cfs_quota_us"),
            format!("{folder}/cpu.cfs_period_us"),
        );
        let files = [
            ("proc/self/cgroup", groups),
            ("proc/self/mountinfo", mounts),
            (&quota_file, quota),
        ];
        decided(&machine(
            "0-7",
            "0-7",
            &[&files[..], &[(&period_file, period)]].concat(),
        ))
    };
    let mount = "33 31 0:29 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct\n\
                 34 31 0:30 / /sys/fs/cgroup/cpuset rw - cgroup cgroup rw,cpuset\n";
    let (groups, folder) = (
        "5:cpuset:/x\n4:cpu,cpuacct:/a\n0::/\n",
        "sys/fs/cgroup/cpu,cpuacct/a",
    );
    assert_eq!(
        v1("150000\n", "100000\n", folder, groups, mount),
        "2 threads: a quota of 1.5 CPUs"
    );
    assert_eq!(
        v1("-1\n", "100000\n", folder, groups, mount),
        "8 threads: all CPUs"
    );
    assert_eq!(
        v1(
            "100000",
            "100000",
            "sys/fs/cgroup/cpu,cpuacct",
            groups,
            mount
        ),
        "1 thread: a quota of 1 CPU"
    );
    assert_eq!(
        v1("1000", "1000", "sys/fs/cgroup/cpuset/x", groups, mount),
        "8 threads: all CPUs"
    );
    // Docker without cgroup namespaces mounts the container's own group, and names it as the host
    // does
    let docker = "33 31 0:29 /docker/1 /my\\040groups rw - cgroup cgroup rw,cpu\n";
    assert_eq!(
        v1("50000", "20000", "my groups", "4:cpu:/docker/1\n", docker),
        "3 threads: a quota of 2.5 CPUs"
    );
    // without mountinfo, the usual paths
    assert_eq!(
        v1("50000", "20000", "sys/fs/cgroup/cpu/a", "4:cpu:/a\n", ""),
        "3 threads: a quota of 2.5 CPUs"
    );
}

#[test]
fn several_cpus_of_a_core() {
    for name in ["core_cpus_list", "thread_siblings_list"] {
        let root = machine("0-7", "0-7", &[]);
        siblings(&root, 4, name);
        assert_eq!(decided(&root), "4 threads: physical cores, of 8 CPUs");
    }
    // one of each pair, or both
    for (allowed, expected) in [
        ("0,5", "2 threads: 2 of 8 CPUs allowed"),
        ("1,5", "1 thread: physical cores, of 2 of 8 CPUs allowed"),
        ("0,4-6", "3 threads: physical cores, of 4 of 8 CPUs allowed"),
    ] {
        let root = machine("0-7", allowed, &[]);
        siblings(&root, 4, "core_cpus_list");
        assert_eq!(decided(&root), expected);
    }
}

/// A machine with 8 fast cores of two CPUs each, then 16 slow ones.
fn hybrid(allowed: &str) -> TempDir {
    let kinds = [
        ("sys/devices/cpu_core/cpus", "0-15\n"),
        ("sys/devices/cpu_atom/cpus", "16-31\n"),
    ];
    let root = machine("0-31", allowed, &kinds);
    for cpu in 0..16 {
        let path = format!("sys/devices/system/cpu/cpu{cpu}/topology/core_cpus_list");
        write(
            root.path(),
            &path,
            &format!("{}-{}\n", cpu / 2 * 2, cpu / 2 * 2 + 1),
        );
    }
    root
}

#[test]
fn intels_two_kinds_of_cores() {
    for (allowed, expected) in [
        ("0-31", "8 threads: performance cores, of 8 + 16"),
        ("0-3,20-21", "2 threads: performance cores, of 2 + 2"),
        (
            "0-15",
            "8 threads: physical cores, of 16 of 32 CPUs allowed",
        ),
        ("16-19", "4 threads: 4 of 32 CPUs allowed"),
    ] {
        assert_eq!(decided(&hybrid(allowed)), expected);
    }
    // a kind without CPUs does not count
    let root = machine(
        "0-3",
        "0-3",
        &[
            ("sys/devices/cpu_core/cpus", "0-1"),
            ("sys/devices/cpu_atom/cpus", "\n"),
        ],
    );
    assert_eq!(decided(&root), "4 threads: all CPUs");
}

#[test]
fn arms_capacities() {
    let of = |capacities: &[&str], allowed: &str| {
        let root = machine(&format!("0-{}", capacities.len() - 1), allowed, &[]);
        for (cpu, capacity) in capacities.iter().enumerate() {
            write(
                root.path(),
                &format!("sys/devices/system/cpu/cpu{cpu}/cpu_capacity"),
                capacity,
            );
        }
        decided(&root)
    };
    let three = ["290\n", "290", "290", "290", "870", "870", "870", "1024"];
    assert_eq!(of(&three, "0-7"), "4 threads: performance cores, of 4 + 4");
    assert_eq!(of(&three, "0-3"), "4 threads: 4 of 8 CPUs allowed");
    assert_eq!(of(&three, "2-5"), "2 threads: performance cores, of 2 + 2");
    assert_eq!(
        of(&["768", "767", "1024", "1024"], "0-3"),
        "3 threads: performance cores, of 3 + 1"
    );
    assert_eq!(of(&["1024"; 4], "0-3"), "4 threads: all CPUs");
    assert_eq!(
        of(&["300", "x", "1024", "1024"], "0-3"),
        "4 threads: all CPUs"
    );
}

#[test]
fn a_quota_comes_after_cores() {
    let root = hybrid("0-31");
    write(root.path(), "proc/self/cgroup", "0::/\n");
    write(root.path(), "sys/fs/cgroup/cpu.max", "350000 100000\n");
    assert_eq!(decided(&root), "4 threads: a quota of 3.5 CPUs");
    write(root.path(), "sys/fs/cgroup/cpu.max", "800000 100000\n");
    assert_eq!(decided(&root), "8 threads: performance cores, of 8 + 16");
}

#[test]
fn no_more_than_the_cpus_are_given() {
    let root = hybrid("0-3,20");
    write(root.path(), "proc/self/cgroup", "0::/\n");
    write(root.path(), "sys/fs/cgroup/cpu.max", "100000 100000\n");
    let machine = Machine::read(root.path()).expect("CPUs are listed");
    let requested = |n| machine.threads_asked(n).to_string();
    // hyperthreads, slow cores and CPUs beyond the quota may be asked for
    assert_eq!(requested(1), "1 thread: given");
    assert_eq!(requested(5), "5 threads: given");
    assert_eq!(requested(6), "5 threads: 6 given, of 5 CPUs allowed");
    assert_eq!(
        machine.threads_asked(6).in_brackets(),
        "5 threads (6 given, of 5 CPUs allowed)"
    );
}

#[test]
fn garbage_says_nothing() {
    let files = [
        (
            "proc/self/cgroup",
            "::::\n0\n7:cpu\n4:cpu:relative/path\n0::\n\n",
        ),
        (
            "proc/self/mountinfo",
            "- - -\n1 2 - cgroup2\n1 2 3 - cgroup2 x\n1 2 3 / - cgroup x rw,cpu\n - cgroup2 a b\n",
        ),
        ("sys/fs/cgroup/cpu.max", "99999999999999999999999 1\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_quota_us", "100000\n"),
        ("sys/fs/cgroup/cpu/cpu.cfs_period_us", "0\n"),
        ("sys/devices/cpu_core/cpus", "?"),
        ("sys/devices/cpu_atom/cpus", "3-1"),
        ("sys/devices/system/cpu/cpu0/topology/core_cpus_list", "2-3"),
        (
            "sys/devices/system/cpu/cpu1/topology/core_cpus_list",
            "0-99999999999",
        ),
        ("sys/devices/system/cpu/cpu0/cpu_capacity", "-1"),
        ("sys/devices/system/cpu/cpu1/cpu_capacity", "4294967296"),
    ];
    assert_eq!(
        decided(&machine("0-1", "0-1", &files)),
        "2 threads: all CPUs"
    );
    for max in ["", "max", "1", "0 100000", "100000 0", "a b", "1 2 3"] {
        let files = [
            ("proc/self/cgroup", "0::/\n"),
            ("sys/fs/cgroup/cpu.max", max),
        ];
        assert_eq!(
            decided(&machine("0-1", "0-1", &files)),
            "2 threads: all CPUs",
            "{max}"
        );
    }
    // without a list of CPUs nothing is known, and the system's number is taken
    for allowed in ["", "none", "9-2"] {
        assert_eq!(Machine::read(machine("0-1", allowed, &[]).path()), None);
    }
    assert_eq!(Machine::read(machine("0-1", "4-5", &[]).path()), None);
    assert_eq!(Machine::read(Path::new("/nonexistent")), None);
}

#[test]
fn this_machine_has_threads() {
    let machine = Machine::here();
    let threads = machine.threads();
    assert!((1..=machine.cpus()).contains(&threads.count), "{threads}");
    assert_eq!(crate::default_threads(), threads.count);
}

#[test]
fn nodes_are_those_with_cpus_that_may_be_used() {
    let of = |allowed: &str, lists: &[(usize, &str)]| {
        let root = machine("0-7", allowed, &[]);
        for (node, list) in lists {
            let path = format!("sys/devices/system/node/node{node}/cpulist");
            write(root.path(), &path, &format!("{list}\n"));
        }
        nodes::read(root.path())
    };
    // node 10 comes after node 2, and a node may have memory alone
    let three = [(10, "4-7"), (2, "0-3"), (3, "")];
    assert_eq!(of("0-7", &three), [vec![0, 1, 2, 3], vec![4, 5, 6, 7]]);
    assert_eq!(of("2-5", &three), [[2, 3], [4, 5]]);
    assert_eq!(of("1,6", &three), [[1], [6]]);
    assert_eq!(of("4-7", &three), [[4, 5, 6, 7]]);
    // a kernel without nodes, and nodes that do not have all CPUs
    assert_eq!(of("0-2", &[]), [[0, 1, 2]]);
    assert_eq!(of("0-2", &[(0, "0-1")]), [[0, 1, 2]]);
    assert_eq!(nodes::read(Path::new("/nonexistent")), [[0; 0]; 0]);
}

#[test]
fn cpus_are_divided_node_after_node() {
    let nodes = [vec![0, 1, 2, 3], vec![4, 5, 6, 7]];
    let groups = |n| nodes::divided(&nodes, n);
    assert_eq!(groups(1), Some(vec![vec![0, 1, 2, 3, 4, 5, 6, 7]]));
    assert_eq!(groups(2), Some(nodes.to_vec()));
    let three = vec![vec![0, 1], vec![2, 3, 4], vec![5, 6, 7]];
    assert_eq!(groups(3), Some(three));
    assert_eq!(groups(8).map(|groups| groups.len()), Some(8));
    assert_eq!([groups(0), groups(9)], [None, None]);
}
