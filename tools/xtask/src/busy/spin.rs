//! Processes that keep a CPU busy.

use std::io::Read as _;
use std::process::{Child, Command, Stdio};
use std::time::Duration;

/// Spins until stdin ends. Stdin is a pipe from the parent process, so the process ends with its
/// parent, however that ends.
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

/// Busy processes, until dropped.
pub(super) struct Spinners(Vec<Child>);

impl Spinners {
    /// Starts `n` busy processes, and waits until they spin.
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
            // fails only if the process has already ended, which is fine
            let _ = child.kill();
        }
        for child in &mut self.0 {
            let _ = child.wait();
        }
    }
}
