//! Slurm on this machine: a controller and a node for one test, with ports and files of their own.

use std::net::TcpListener;
use std::process::Child;
use std::time::{Duration, Instant};

use super::*;

/// Maximum time for Slurm's actions, which take it seconds.
const PATIENCE: Duration = Duration::from_secs(90);

/// Programs of Slurm, ended on drop.
struct Slurm {
    config: String,
    programs: Vec<Child>,
}

impl Drop for Slurm {
    fn drop(&mut self) {
        for program in self.programs.iter_mut().rev() {
            // SIGTERM first, because the node's program has others to end
            let id = program.id().to_string();
            let _ = Plain::new("kill").arg(&id).status();
            let end = Instant::now() + Duration::from_secs(5);
            while matches!(program.try_wait(), Ok(None)) && Instant::now() < end {
                std::thread::sleep(Duration::from_millis(20));
            }
            let _ = program.kill();
            let _ = program.wait();
        }
    }
}

fn free_port() -> u16 {
    let bound = TcpListener::bind("127.0.0.1:0").expect("a port");
    bound.local_addr().expect("an address").port()
}

impl Slurm {
    /// Starts it in a folder; `None` if it is not installed or may not run.
    fn start(desk: &Desk) -> Option<Slurm> {
        let installed = ["munged", "slurmctld", "slurmd", "sbatch", "squeue"];
        let is_there = |name: &&str| runs("sh", &["-c", &format!("command -v {name}")], name);
        if let Some(lacking) = installed.iter().find(|name| !is_there(name)) {
            skip(
                Lacks::System,
                format_args!("Slurm's {lacking} is not installed"),
            );
            return None;
        }
        if !runs("sh", &["-c", "[ $(id -u) = 0 ] && echo root"], "root") {
            skip(Lacks::System, "Slurm's node is not root's");
            return None;
        }
        let config = desk.name("slurm.conf");
        let mut slurm = Slurm {
            config,
            programs: Vec::new(),
        };
        slurm.configure(desk);
        let at = |name: &str| desk.name(name);
        slurm.program(
            "munged",
            &[
                "--force",
                "--foreground",
                &format!("--key-file={}", at("munge.key")),
                &format!("--socket={}", at("munge.sock")),
                &format!("--pid-file={}", at("munged.pid")),
                &format!("--log-file={}", at("munged.log")),
                &format!("--seed-file={}", at("munge.seed")),
            ],
        );
        slurm.until("munged answers", || desk.at("munge.sock").exists());
        let config = slurm.config.clone();
        slurm.program("slurmctld", &["-D", "-f", &config]);
        slurm.program("slurmd", &["-D", "-N", "one", "-f", &config]);
        slurm.until("a node is idle", || {
            let info = slurm.run(desk, "sinfo -h -o %T");
            stdout(&info).trim() == "idle"
        });
        Some(slurm)
    }

    fn configure(&self, desk: &Desk) {
        let host = Plain::new("hostname").arg("-s").output().expect("a name");
        let (host, folder) = (stdout(&host), desk.name(""));
        let (controller, node) = (free_port(), free_port());
        let text = format!(
            "ClusterName=test\nSlurmctldHost={host}(127.0.0.1)\nSlurmctldPort={controller}\n\
             SlurmdPort={node}\nAuthType=auth/munge\nAuthInfo=socket={folder}munge.sock\n\
             SlurmUser=root\nSlurmdUser=root\nStateSaveLocation={folder}state\n\
             SlurmdSpoolDir={folder}spool\nSlurmctldPidFile={folder}controller.pid\n\
             SlurmdPidFile={folder}node.pid\nSlurmctldLogFile={folder}controller.log\n\
             SlurmdLogFile={folder}node.log\nProctrackType=proctrack/linuxproc\n\
             TaskPlugin=task/none\nSwitchType=switch/none\nMpiDefault=none\n\
             SelectType=select/cons_tres\nSelectTypeParameters=CR_Core\nReturnToService=2\n\
             SlurmdParameters=config_overrides\nSchedulerParameters=sched_interval=1,\
             bf_interval=1\nNodeName=one NodeHostname={host} NodeAddr=127.0.0.1 CPUs=2\n\
             PartitionName=all Nodes=one Default=YES State=UP\n",
            host = host.trim(),
        );
        std::fs::write(&self.config, text).expect("written");
        for name in ["state", "spool"] {
            std::fs::create_dir(desk.at(name)).expect("made");
        }
        // a secret of this test
        std::fs::write(desk.at("munge.key"), [7; 1024]).expect("written");
        let own = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(desk.at("munge.key"), own).expect("changed");
    }

    fn program(&mut self, name: &str, args: &[&str]) {
        let child = Plain::new(name)
            .args(args)
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn();
        let child = child.unwrap_or_else(|error| panic!("{name}: {error}"));
        self.programs.push(child);
    }

    fn until(&self, what: &str, is_so: impl Fn() -> bool) {
        let end = Instant::now() + PATIENCE;
        while !is_so() {
            assert!(Instant::now() < end, "waited in vain: {what}");
            std::thread::sleep(Duration::from_millis(50));
        }
    }

    /// Runs a shell line as its user.
    fn run(&self, desk: &Desk, line: &str) -> Output {
        run_in(
            desk,
            "bash",
            &["-ec", line],
            &[("SLURM_CONF", &self.config)],
        )
    }

    /// Submits both jobs as the page says, and waits until they end.
    fn submit(&self, desk: &Desk) {
        let output = self.run(desk, &example("slurm-submit"));
        assert!(output.status.success(), "{}", stderr(&output));
        self.until("no job is left", || {
            let jobs = self.run(desk, "squeue -h");
            jobs.status.success() && stdout(&jobs).trim().is_empty()
        });
    }
}

/// The first time one shard is killed and nothing is merged; the second time only that shard is
/// computed.
#[test]
fn an_array_and_a_merge_that_waits_for_it() {
    let desk = site();
    let Some(slurm) = Slurm::start(&desk) else {
        return;
    };
    std::fs::write(desk.at("array.sh"), example("slurm-array")).expect("written");
    std::fs::write(desk.at("merge.sh"), example("slurm-merge")).expect("written");
    let made = |i: u32| {
        let shard = desk.at(&format!("{i}.shard")).metadata();
        shard.ok().map(|shard| shard.modified().expect("a time"))
    };
    slurm.submit(&desk);
    let first: Vec<_> = (1..=8).map(made).collect();
    let missing: Vec<usize> = (0..8).filter(|&i| first[i].is_none()).collect();
    assert_eq!(missing, [2], "one shard was killed");
    assert!(!desk.at("perplexity.txt").exists(), "merged without it");

    slurm.submit(&desk);
    let second: Vec<_> = (1..=8).map(made).collect();
    let changed: Vec<usize> = (0..8).filter(|&i| first[i] != second[i]).collect();
    assert_eq!(changed, [2], "what was there was not done again");
    is_merged(&desk);
}
