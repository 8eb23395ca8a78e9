//! Scenarios: the load around a measured program, and its fair share of the machine.

use std::path::Path;
use std::process::Command;

use clap::ValueEnum;

use super::quota::QuotaGroup;
use super::spin::Spinners;

/// Scenario; one table row per test.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub(super) enum Scenario {
    /// Nothing else runs
    Quiet,
    /// Beside one busy process
    Busy1,
    /// Beside two
    Busy2,
    /// Beside six
    Busy6,
    /// Niced by 10 beside one busy process for each CPU
    Nice,
    /// With a quota of 1.5 CPUs
    Quota,
    /// Twice the threads
    Twice,
    /// Two runs at once
    Two,
}

impl Scenario {
    pub(super) const ALL: [Scenario; 8] = [
        Scenario::Quiet,
        Scenario::Busy1,
        Scenario::Busy2,
        Scenario::Busy6,
        Scenario::Nice,
        Scenario::Quota,
        Scenario::Twice,
        Scenario::Two,
    ];

    /// Returns the number of busy processes beside the measured program.
    fn spinners(self, cpus: usize) -> usize {
        match self {
            Scenario::Busy1 => 1,
            Scenario::Busy2 => 2,
            Scenario::Busy6 => 6,
            Scenario::Nice => cpus,
            Scenario::Quiet | Scenario::Quota | Scenario::Twice | Scenario::Two => 0,
        }
    }

    /// Returns the number of threads to request from the program, where `threads` are usual.
    pub(super) fn threads(self, threads: usize) -> usize {
        if self == Scenario::Twice {
            2 * threads
        } else {
            threads
        }
    }

    /// Returns the share of the quiet speed that a fair scheduler leaves to the program.
    pub(super) fn fair(self, cpus: usize, threads: usize) -> f64 {
        let (cpus, running) = (cpus as f64, threads as f64);
        // CPUs used on the quiet machine
        let quiet = running.min(cpus);
        let beside = |weight: f64, others: f64| {
            let all = weight * running + others;
            if running + others <= cpus {
                1.0
            } else {
                (cpus * weight * running / all / quiet).min(1.0)
            }
        };
        match self {
            Scenario::Quiet | Scenario::Twice | Scenario::Two => 1.0,
            Scenario::Quota => (1.5 / quiet).min(1.0),
            // Linux's weight of a thread niced by 10, relative to a normal one
            Scenario::Nice => beside(110.0 / 1024.0, self.spinners(cpus as usize) as f64),
            Scenario::Busy1 | Scenario::Busy2 | Scenario::Busy6 => {
                beside(1.0, self.spinners(cpus as usize) as f64)
            }
        }
    }

    /// Sets up the scenario, or reports why that is impossible here.
    pub(super) fn surroundings(self, cpus: usize) -> Result<Surroundings, String> {
        let place = match self {
            Scenario::Nice if cfg!(unix) => LaunchMode::Niced,
            Scenario::Nice => return Err("no nice on this system".to_owned()),
            Scenario::Quota => LaunchMode::Within(QuotaGroup::new(150_000)?),
            Scenario::Two => LaunchMode::Both,
            _ => LaunchMode::Plain,
        };
        Ok(Surroundings {
            place,
            _spinners: Spinners::start(self.spinners(cpus))?,
        })
    }
}

impl std::fmt::Display for Scenario {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.pad(
            self.to_possible_value()
                .expect("none is skipped")
                .get_name(),
        )
    }
}

/// Surroundings of a measurement, until dropped.
pub(super) struct Surroundings {
    pub(super) place: LaunchMode,
    _spinners: Spinners,
}

/// Way of starting the measured program.
#[derive(PartialEq)]
pub(super) enum LaunchMode {
    Plain,
    Niced,
    Within(QuotaGroup),
    /// Two runs at once.
    Both,
}

impl LaunchMode {
    /// Returns a command that runs a program there; its arguments are still to be added.
    pub(super) fn command(&self, program: &Path) -> Command {
        match self {
            LaunchMode::Plain | LaunchMode::Both => Command::new(program),
            LaunchMode::Niced => {
                let mut command = Command::new("nice");
                command.args(["-n", "10"]).arg(program);
                command
            }
            LaunchMode::Within(group) => group.command(program.as_os_str()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fair_shares() {
        let fair =
            |scenario: Scenario, cpus, threads| (100.0 * scenario.fair(cpus, threads)).round();
        let two_of_two = Scenario::ALL.map(|scenario| fair(scenario, 2, 2));
        assert_eq!(
            two_of_two,
            [100.0, 67.0, 50.0, 25.0, 10.0, 75.0, 100.0, 100.0]
        );
        // with spare CPUs no thread waits
        assert_eq!(fair(Scenario::Busy2, 8, 4), 100.0);
        assert_eq!(fair(Scenario::Busy6, 8, 4), 80.0);
        assert_eq!(fair(Scenario::Quota, 8, 1), 100.0);
    }

    #[test]
    fn twice_the_threads_are_asked_for_in_one_scenario() {
        assert_eq!(
            Scenario::ALL.map(|scenario| scenario.threads(2)),
            [2, 2, 2, 2, 2, 2, 4, 2]
        );
    }
}
