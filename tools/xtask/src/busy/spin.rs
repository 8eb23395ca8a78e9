//! Processes that do nothing but keep a CPU busy.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Spins until stdin ends: it is a pipe whose other end is held by whoever started this, so that it
/// ends with them however they end.
pub(crate) fn spin() -> Result<(), String> {
    std::thread::spawn(|| {
        let mut byte = [0];
        while matches!(std::io::stdin().read(&mut byte), Ok(1..)) {}
        std::process::exit(0);
    });
    loop {
        std::hint::spin_loop();
    }
}

/// Some of them, for as long as this lives.
pub(super) struct Spinners(Vec<Child>);

impl Spinners {
    /// Starts them, and waits until they are at it.
    pub(super) fn start(n: usize) -> Result<Spinners, String> {
        let this = std::env::current_exe().map_err(|error| error.to_string())?;
        let mut all = Spinners(Vec::new());
        for _ in 0..n {
            let child = Command::new(&this)
                .arg("spin")
                .stdin(Stdio::piped())
                .stdout(Stdio::null())
                .spawn();
            all.0
                .push(child.map_err(|error| format!("cannot start {}: {error}", this.display()))?);
        }
        std::thread::sleep(Duration::from_millis(if n > 0 { 300 } else { 0 }));
        Ok(all)
    }
}

impl Drop for Spinners {
    fn drop(&mut self) {
        for child in &mut self.0 {
            // fails only for one that has ended, which is as well
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
