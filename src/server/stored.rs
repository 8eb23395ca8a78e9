//! Responses that clients can fetch later, or continue by their id: in memory, and in a folder if
//! there is one; the oldest are forgotten first.

mod events;
mod folder;

use std::collections::{HashMap, VecDeque};
use std::io;
use std::path::Path;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

pub(crate) use events::EventLog;
use folder::Folder;
use serde_json::Value;
use sha2::{Digest, Sha256};
use tokio::task::AbortHandle;

use crate::LogSink;

/// Most responses, and most bytes of all of them.
const MAX_RESPONSES: usize = 4096;
const MAX_BYTES: usize = 256 << 20;

/// A stored response. It is kept as JSON text, which takes a fraction of the memory of the values.
#[derive(Clone)]
pub(crate) struct Stored {
    /// List of the items of the conversation before the answer.
    input: Arc<str>,
    /// The response as it was sent last.
    response: Arc<str>,
    /// Whether the answer is still being computed.
    in_progress: bool,
    /// Stops the work on it, if it runs in the background.
    pub(crate) work: Option<AbortHandle>,
    /// Its events, if they can be streamed later.
    pub(crate) events: Option<Arc<EventLog>>,
    /// Hash of the caller's salt: others do not see the response.
    owner: Option<Arc<str>>,
}

/// Returns a hash of a caller's salt, which is an API key and is written to no file.
fn owner(salt: Option<&str>) -> Option<Arc<str>> {
    let digest = Sha256::digest(format!("octavo response {}", salt?));
    let digits: String = digest.iter().map(|byte| format!("{byte:02x}")).collect();
    Some(digits.into())
}

impl Stored {
    pub(crate) fn new(input: &[Value], salt: Option<&str>) -> Stored {
        Stored {
            // values have text as keys, so that nothing can fail
            input: serde_json::to_string(input).unwrap_or_default().into(),
            response: "{}".into(),
            in_progress: false,
            work: None,
            events: None,
            owner: owner(salt),
        }
    }

    /// Returns the same conversation with this response.
    pub(crate) fn with(self, response: &Value) -> Stored {
        Stored {
            response: response.to_string().into(),
            in_progress: response["status"] == "in_progress",
            ..self
        }
    }

    /// Returns the same response with its events.
    pub(crate) fn streamed(self, events: Option<Arc<EventLog>>) -> Stored {
        Stored { events, ..self }
    }

    /// Returns whether the answer is still being computed.
    pub(crate) fn in_progress(&self) -> bool {
        self.in_progress
    }

    /// Returns the response as it was sent last.
    pub(crate) fn response(&self) -> Value {
        value(&self.response)
    }

    /// Returns the items of the conversation before the answer.
    pub(crate) fn input(&self) -> Vec<Value> {
        list(value(&self.input))
    }

    /// Returns the items of the conversation, with those of the answer.
    pub(crate) fn items(&self) -> Vec<Value> {
        let mut items = self.input();
        items.extend(list(self.response()["output"].take()));
        items
    }

    /// Returns its size; while it is in progress, events are not counted.
    fn bytes(&self) -> usize {
        let events = self.events.as_ref().filter(|_| !self.in_progress);
        let events = events.map_or(0, |events| events.bytes());
        self.input.len() + self.response.len() + events
    }
}

fn value(text: &str) -> Value {
    // it was written here
    serde_json::from_str(text).unwrap_or_default()
}

fn list(value: Value) -> Vec<Value> {
    match value {
        Value::Array(list) => list,
        _ => Vec::new(),
    }
}

/// All stored responses, by id.
#[derive(Default)]
pub(crate) struct Responses(Mutex<All>);

#[derive(Default)]
struct All {
    folder: Option<Folder>,
    of_id: HashMap<String, Stored>,
    /// Ids, the oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Responses {
    /// Opens those of a folder, which keeps them from then on.
    ///
    /// # Errors
    /// If the folder cannot be made, read or written.
    pub(crate) fn open(
        path: &Path,
        log: LogSink,
        warn: &mut dyn FnMut(&str),
    ) -> io::Result<Responses> {
        let (folder, found) = Folder::open(path, log, warn)?;
        let mut all = All::default();
        for (id, stored) in found {
            all.insert(&id, stored);
        }
        all.folder = Some(folder);
        Ok(Responses(Mutex::new(all)))
    }

    fn lock(&self) -> MutexGuard<'_, All> {
        // every method leaves them consistent
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response, and forgets the oldest ones as far as limits require.
    pub(crate) fn insert(&self, id: &str, stored: Stored) {
        self.lock().insert(id, stored);
    }

    /// Returns a response of this caller.
    pub(crate) fn get(&self, id: &str, salt: Option<&str>) -> Option<Stored> {
        let all = self.lock();
        let stored = all.of_id.get(id)?;
        (stored.owner == owner(salt)).then(|| stored.clone())
    }

    /// Ends the work on a response that is still stored, and returns the response as it is stored
    /// then. The first end stays: a response that was cancelled is not completed later, nor the
    /// other way round, though both may happen at the same time.
    pub(crate) fn finish(&self, id: &str, response: &Value) -> Option<Value> {
        let mut all = self.lock();
        let stored = all.of_id.get_mut(id)?;
        // forgetting the old one must not stop what stores the new one
        stored.work = None;
        if stored.in_progress {
            let ended = stored.clone().with(response);
            all.insert(id, ended);
        }
        all.of_id.get(id).map(Stored::response)
    }

    /// Says how the work on a response can be stopped, unless it has ended already.
    pub(crate) fn runs(&self, id: &str, work: AbortHandle) {
        let mut all = self.lock();
        let stored = all.of_id.get_mut(id);
        if let Some(stored) = stored.filter(|stored| stored.in_progress) {
            stored.work = Some(work);
        }
    }

    /// Forgets a response of this caller, and stops the work on it; returns whether there was one.
    pub(crate) fn remove(&self, id: &str, salt: Option<&str>) -> bool {
        let mut all = self.lock();
        let is_own = |stored: &Stored| stored.owner == owner(salt);
        all.of_id.get(id).is_some_and(is_own) && all.remove(id)
    }
}

impl All {
    fn insert(&mut self, id: &str, stored: Stored) {
        self.forget(id);
        if let Some(folder) = &self.folder {
            folder.write(id, &stored);
        }
        self.bytes += stored.bytes();
        self.of_id.insert(id.to_owned(), stored);
        self.order.push_back(id.to_owned());
        while self.order.len() > MAX_RESPONSES || (self.bytes > MAX_BYTES && self.order.len() > 1) {
            let Some(oldest) = self.order.front().cloned() else {
                break;
            };
            self.remove(&oldest);
        }
    }

    fn remove(&mut self, id: &str) -> bool {
        let is_there = self.forget(id);
        if let Some(folder) = self.folder.as_ref().filter(|_| is_there) {
            folder.remove(id);
        }
        is_there
    }

    /// Forgets a response, but for its file.
    fn forget(&mut self, id: &str) -> bool {
        let Some(stored) = self.of_id.remove(id) else {
            return false;
        };
        if let Some(work) = &stored.work {
            work.abort();
        }
        if let Some(events) = &stored.events {
            // their size is not to change any more
            events.end();
        }
        self.bytes -= stored.bytes();
        self.order.retain(|own| own != id);
        true
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_first_end_of_a_response_stays() {
        let responses = Responses::default();
        let in_status = |status: &str| json!({ "status": status });
        let begun = Stored::new(&[], None).with(&in_status("in_progress"));
        responses.insert("a", begun);
        for later in ["cancelled", "completed"] {
            let stored = responses.finish("a", &in_status(later));
            assert_eq!(stored, Some(in_status("cancelled")));
        }
        assert_eq!(responses.finish("b", &in_status("completed")), None);
    }

    #[test]
    fn the_oldest_are_forgotten_first_and_callers_see_their_own() {
        let responses = Responses::default();
        for i in 0..=MAX_RESPONSES {
            let stored = Stored::new(&[], Some("a")).with(&json!({ "i": i }));
            responses.insert(&i.to_string(), stored);
        }
        assert!(responses.get("0", Some("a")).is_none());
        assert!(responses.get("1", Some("a")).is_some());
        assert!(responses.get("1", None).is_none());
        assert!(!responses.remove("1", Some("b")));
        assert!(responses.remove("1", Some("a")));
        let large = json!("x".repeat(MAX_BYTES / 2));
        for id in ["x", "y", "z"] {
            let stored = Stored::new(std::slice::from_ref(&large), None);
            responses.insert(id, stored);
        }
        assert!(responses.get("2", Some("a")).is_none());
        let left = ["x", "y", "z"].map(|id| responses.get(id, None).is_some());
        assert_eq!(left, [false, false, true]);
        let all = responses.lock();
        assert_eq!(all.of_id.len(), all.order.len());
        let bytes = all.of_id.values().map(Stored::bytes);
        assert_eq!(all.bytes, bytes.sum::<usize>());
    }
}
