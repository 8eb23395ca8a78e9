//! The thread that writes pages to disk, behind the steps that computed them.

use std::io;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;

use super::Counts;
use super::file::SavedPage;
use super::folder::{Folder, store};

/// Bytes that may wait for the disk when more are added.
const MAX_WAITING: usize = 64 << 20;

/// Handle to the thread; dropping it waits until all is written.
pub(super) struct Writer {
    sender: Option<Sender<Vec<SavedPage>>>,
    /// Bytes that wait.
    waiting: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

fn bytes(pages: &[SavedPage]) -> usize {
    pages.iter().map(|page| page.bytes.len()).sum()
}

impl Writer {
    /// Starts the thread.
    pub(super) fn start(folder: Arc<Mutex<Folder>>, counts: Arc<Counts>) -> io::Result<Writer> {
        let (sender, receiver) = channel::<Vec<SavedPage>>();
        let waiting = Arc::new(AtomicUsize::new(0));
        let left = Arc::clone(&waiting);
        let write = move || {
            for pages in receiver {
                store(&folder, &counts, &pages);
                left.fetch_sub(bytes(&pages), Ordering::Relaxed);
            }
        };
        let thread = std::thread::Builder::new().name("prompt cache".to_owned());
        Ok(Writer {
            sender: Some(sender),
            waiting,
            thread: Some(thread.spawn(write)?),
        })
    }

    pub(super) fn has_room(&self) -> bool {
        self.waiting.load(Ordering::Relaxed) < MAX_WAITING
    }

    pub(super) fn write(&self, pages: Vec<SavedPage>) {
        self.waiting.fetch_add(bytes(&pages), Ordering::Relaxed);
        if let Some(sender) = &self.sender {
            // the thread ends with its sender, or by a panic, which has been reported
            let _ = sender.send(pages);
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        drop(self.sender.take());
        if let Some(thread) = self.thread.take() {
            // a panic of the thread has been reported
            let _ = thread.join();
        }
    }
}
