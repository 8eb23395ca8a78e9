//! Compiles modules in threads of their own, while their owner does something else.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::{Arc, mpsc};
use std::thread::{self, JoinHandle};

use super::{Error, Module};

/// An image of a module, or `None` if it is in the cache already.
type Built = Result<Option<Vec<u8>>, Error>;

/// Modules that are being compiled, or that nobody has taken yet.
#[derive(Default)]
pub(super) struct Builds {
    pending: HashSet<Module>,
    done: HashMap<Module, Built>,
    threads: Vec<Threads>,
}

/// Threads that share a list of modules.
struct Threads {
    results: mpsc::Receiver<(Module, Built)>,
    /// Index of the module to compile next.
    next: Arc<AtomicUsize>,
    handles: Vec<JoinHandle<()>>,
}

impl Builds {
    /// Starts up to `threads` threads that run `build` on these modules, in their order, except
    /// those that were started already.
    pub(super) fn start(
        &mut self,
        mut modules: Vec<Module>,
        threads: usize,
        build: impl Fn(Module) -> Built + Clone + Send + 'static,
    ) {
        modules.retain(|module| self.pending.insert(*module));
        if modules.is_empty() {
            return;
        }
        let (modules, next) = (Arc::new(modules), Arc::new(AtomicUsize::new(0)));
        let (sender, results) = mpsc::channel();
        let handle = |_| {
            let (sender, build) = (sender.clone(), build.clone());
            let (modules, next) = (modules.clone(), next.clone());
            thread::spawn(move || {
                while let Some(module) = modules.get(next.fetch_add(1, Ordering::Relaxed)) {
                    // the receiver is gone once nobody wants modules any more
                    if sender.send((*module, build(*module))).is_err() {
                        return;
                    }
                }
            })
        };
        let handles = (0..threads.clamp(1, modules.len())).map(handle);
        let handles = handles.collect();
        self.threads.push(Threads {
            results,
            next,
            handles,
        });
    }

    /// Waits for a module and takes it; `None` if it was not started, or was taken.
    pub(super) fn take(&mut self, module: Module) -> Option<Built> {
        if !self.pending.remove(&module) {
            return None;
        }
        for threads in &self.threads {
            while !self.done.contains_key(&module) {
                match threads.results.recv() {
                    Ok((other, built)) => drop(self.done.insert(other, built)),
                    // all of these are done
                    Err(_) => break,
                }
            }
        }
        let built = self.done.remove(&module);
        Some(built.unwrap_or_else(|| {
            Err(Error::Compile {
                module: module.to_string(),
                compiler: "the thread that compiled it".to_owned(),
                log: "it ended before it was done".to_owned(),
            })
        }))
    }
}

impl Drop for Builds {
    /// Waits for the modules that threads are at; others are not begun.
    fn drop(&mut self) {
        for Threads { next, handles, .. } in &mut self.threads {
            next.store(usize::MAX / 2, Ordering::Relaxed);
            for handle in handles.drain(..) {
                // a panic was reported to whoever waited for the module
                let _ = handle.join();
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::Barrier;
    use std::sync::atomic::AtomicBool;

    fn image(module: Module) -> Built {
        Ok(Some(module.to_string().into_bytes()))
    }

    /// Each of four modules waits for the three others to be in the making.
    #[test]
    fn modules_are_built_together() {
        let modules: Vec<Module> = Module::Kv(1).parts().into_iter().take(4).collect();
        let mut builds = Builds::default();
        let together = Arc::new(Barrier::new(4));
        let build = move |module| {
            together.wait();
            image(module)
        };
        builds.start(modules.clone(), 4, build);
        for module in modules.into_iter().rev() {
            let built = builds
                .take(module)
                .expect("it was started")
                .expect("it is built");
            assert_eq!(built, Some(module.to_string().into_bytes()));
            assert!(builds.take(module).is_none());
        }
        assert!(builds.take(Module::Rows).is_none(), "it was not started");
    }

    /// One that fails, and one whose thread panics, are errors that name the module; the others are
    /// there all the same.
    #[test]
    fn errors_are_those_of_their_modules() {
        let [bad, panics] = [Module::Kv(2), Module::Kv(3)];
        let modules = [Module::Rows, bad, Module::Probe, panics];
        for n_threads in [2, 4] {
            let mut builds = Builds::default();
            builds.start(modules.to_vec(), n_threads, move |module| {
                assert!(module != panics, "a panic that is wanted");
                match module == bad {
                    true => Err(Error::Compile {
                        module: module.to_string(),
                        compiler: "a compiler".to_owned(),
                        log: "no".to_owned(),
                    }),
                    false => image(module),
                }
            });
            let mut take = |module| builds.take(module).expect("it was started");
            let line = |built: Built| built.expect_err("it fails").to_string();
            assert!(line(take(panics)).starts_with("kv.cu -DPART=3: the thread that compiled it"));
            assert_eq!(
                line(take(bad)),
                "kv.cu -DPART=2: a compiler does not compile it: no"
            );
            for good in [Module::Rows, Module::Probe] {
                assert!(take(good).is_ok());
            }
        }
    }

    /// Dropping ends the list: no further module is begun.
    #[test]
    fn dropping_waits_for_what_is_begun_and_begins_no_more() {
        let (begun, done) = (
            Arc::new(AtomicUsize::new(0)),
            Arc::new(AtomicBool::new(false)),
        );
        let (sender, receiver) = mpsc::channel();
        let mut builds = Builds::default();
        let (of_thread, is_done) = (begun.clone(), done.clone());
        builds.start(vec![Module::Rows, Module::Probe], 1, move |module| {
            of_thread.fetch_add(1, Ordering::Relaxed);
            sender.send(()).expect("the test is there");
            thread::sleep(std::time::Duration::from_millis(50));
            is_done.store(true, Ordering::Relaxed);
            image(module)
        });
        receiver.recv().expect("one is begun");
        drop(builds);
        assert!(done.load(Ordering::Relaxed));
        assert_eq!(begun.load(Ordering::Relaxed), 1);
    }
}
