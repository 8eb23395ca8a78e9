//! Busy processes end with their parent.

use std::process::{Command, Stdio};
use std::time::{Duration, Instant};

#[test]
fn it_spins_until_its_stdin_ends() {
    let mut child = Command::new(env!("CARGO_BIN_EXE_xtask"))
        .arg("spin")
        .stdin(Stdio::piped())
        .spawn()
        .expect("starts");
    std::thread::sleep(Duration::from_millis(200));
    assert!(
        child.try_wait().expect("asked").is_none(),
        "it ended by itself"
    );
    // as when the pipe's owner is killed
    drop(child.stdin.take());
    let end = Instant::now() + Duration::from_secs(30);
    while child.try_wait().expect("asked").is_none() {
        if Instant::now() > end {
            child.kill().expect("killed");
            panic!("it goes on without its starter");
        }
        std::thread::sleep(Duration::from_millis(10));
    }
}
