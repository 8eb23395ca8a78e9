//! Runs the library's calls with the interpreter released, so that other Python threads run and
//! Ctrl-C works.

use std::panic::{AssertUnwindSafe, catch_unwind, resume_unwind};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{RecvTimeoutError, sync_channel};
use std::thread;
use std::time::Duration;

use pyo3::exceptions::PyRuntimeError;
use pyo3::prelude::*;

use crate::error::Failure;

/// Time between two looks for signals.
pub(crate) const TICK: Duration = Duration::from_millis(50);

/// Stack of a call's thread. Only the part in use takes memory.
const STACK_BYTES: usize = 64 << 20;

/// Request to end a call early.
pub(crate) type Stop = Arc<AtomicBool>;

/// Runs `work` on a thread of its own and waits for it. A signal's handler runs meanwhile; if it
/// raises, as Ctrl-C's does, `work` is asked to stop and its result is dropped.
pub(crate) fn run<T: Send + 'static>(
    py: Python<'_>,
    work: impl FnOnce(&Stop) -> Result<T, Failure> + Send + 'static,
) -> PyResult<T> {
    let stop = Stop::default();
    let (send, mut receive) = sync_channel(1);
    let asked = Arc::clone(&stop);
    let thread = thread::Builder::new()
        .name("octavo call".to_owned())
        .stack_size(STACK_BYTES);
    let started = thread.spawn(move || {
        let result = catch_unwind(AssertUnwindSafe(|| work(&asked)));
        // after a signal the result is not waited for
        let _ = send.send(result);
    });
    started.map_err(|error| Failure::from(error).into_py(py))?;
    loop {
        let waited;
        (receive, waited) = py.detach(move || {
            let waited = receive.recv_timeout(TICK);
            (receive, waited)
        });
        match waited {
            Ok(Ok(result)) => return result.map_err(|failure| failure.into_py(py)),
            Ok(Err(panic)) => resume_unwind(panic),
            Err(RecvTimeoutError::Disconnected) => {
                return Err(PyRuntimeError::new_err("the call's thread has ended"));
            }
            Err(RecvTimeoutError::Timeout) => {
                if let Err(raised) = py.check_signals() {
                    stop.store(true, Ordering::Relaxed);
                    return Err(raised);
                }
            }
        }
    }
}
