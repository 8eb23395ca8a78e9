//! Responses that clients can fetch later, or continue by their id: in memory, the oldest forgotten
//! first.

use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use serde_json::Value;
use tokio::task::AbortHandle;

/// Most responses, and most bytes of JSON in all of them.
const MAX_RESPONSES: usize = 4096;
const MAX_BYTES: usize = 256 << 20;

/// A stored response.
#[derive(Clone)]
pub(crate) struct Stored {
    /// Items of the conversation before the answer. Responses that continue others share them.
    pub(crate) input: Vec<Arc<Value>>,
    /// The response as it was sent last.
    pub(crate) response: Value,
    /// Stops the work on it, if it runs in the background.
    pub(crate) work: Option<AbortHandle>,
    /// Salt of the caller: others do not see it.
    salt: Option<String>,
    bytes: usize,
}

impl Stored {
    pub(crate) fn new(input: Vec<Arc<Value>>, response: Value, salt: Option<&str>) -> Stored {
        Stored {
            bytes: 0,
            input,
            response,
            work: None,
            salt: salt.map(str::to_owned),
        }
    }

    /// Returns the same conversation with this response.
    pub(crate) fn with(self, response: Value) -> Stored {
        Stored { response, ..self }
    }

    /// Returns the items of the conversation, with those of the answer.
    pub(crate) fn items(&self) -> Vec<Arc<Value>> {
        let output = self.response["output"].as_array();
        let output = output.into_iter().flatten().cloned().map(Arc::new);
        self.input.iter().cloned().chain(output).collect()
    }
}

/// All stored responses, by id.
#[derive(Default)]
pub(crate) struct Responses(Mutex<All>);

#[derive(Default)]
struct All {
    of_id: HashMap<String, Stored>,
    /// Ids, the oldest first.
    order: VecDeque<String>,
    bytes: usize,
}

impl Responses {
    fn lock(&self) -> MutexGuard<'_, All> {
        // every method leaves them consistent
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Stores a response, and forgets the oldest ones as far as limits require.
    pub(crate) fn insert(&self, id: &str, mut stored: Stored) {
        // items are counted once for each response, even if they are shared
        let of_items = stored.input.iter().map(|item| size(item));
        stored.bytes = size(&stored.response) + of_items.sum::<usize>();
        let mut all = self.lock();
        all.remove(id);
        all.bytes += stored.bytes;
        all.of_id.insert(id.to_owned(), stored);
        all.order.push_back(id.to_owned());
        while all.order.len() > MAX_RESPONSES || (all.bytes > MAX_BYTES && all.order.len() > 1) {
            let Some(oldest) = all.order.front().cloned() else {
                break;
            };
            all.remove(&oldest);
        }
    }

    /// Returns a response of this caller.
    pub(crate) fn get(&self, id: &str, salt: Option<&str>) -> Option<Stored> {
        let all = self.lock();
        let stored = all.of_id.get(id)?;
        (stored.salt.as_deref() == salt).then(|| stored.clone())
    }

    /// Replaces a response that is still stored, and whose work has ended.
    pub(crate) fn finish(&self, id: &str, response: Value) {
        let ended = self.lock().of_id.get(id).cloned();
        if let Some(stored) = ended {
            let stored = Stored {
                response,
                work: None,
                ..stored
            };
            self.insert(id, stored);
        }
    }

    /// Says how the work on a response can be stopped, unless it has ended already.
    pub(crate) fn runs(&self, id: &str, work: AbortHandle) {
        let mut all = self.lock();
        let stored = all.of_id.get_mut(id);
        if let Some(stored) = stored.filter(|stored| stored.response["status"] == "in_progress") {
            stored.work = Some(work);
        }
    }

    /// Forgets a response of this caller, and stops the work on it; returns whether there was one.
    pub(crate) fn remove(&self, id: &str, salt: Option<&str>) -> bool {
        let mut all = self.lock();
        let is_own = |stored: &Stored| stored.salt.as_deref() == salt;
        all.of_id.get(id).is_some_and(is_own) && all.remove(id)
    }
}

impl All {
    fn remove(&mut self, id: &str) -> bool {
        let Some(stored) = self.of_id.remove(id) else {
            return false;
        };
        if let Some(work) = stored.work {
            work.abort();
        }
        self.bytes -= stored.bytes;
        self.order.retain(|own| own != id);
        true
    }
}

/// Bytes that a value takes as JSON, about.
fn size(value: &Value) -> usize {
    match value {
        Value::String(text) => text.len() + 2,
        Value::Array(list) => list.iter().map(size).sum::<usize>() + 2,
        Value::Object(object) => {
            let fields = object
                .iter()
                .map(|(name, value)| name.len() + size(value) + 4);
            fields.sum::<usize>() + 2
        }
        Value::Null | Value::Bool(_) | Value::Number(_) => 8,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn the_oldest_are_forgotten_first_and_callers_see_their_own() {
        let responses = Responses::default();
        for i in 0..=MAX_RESPONSES {
            let stored = Stored::new(Vec::new(), json!({ "i": i }), Some("a"));
            responses.insert(&i.to_string(), stored);
        }
        assert!(responses.get("0", Some("a")).is_none());
        assert!(responses.get("1", Some("a")).is_some());
        assert!(responses.get("1", None).is_none());
        assert!(!responses.remove("1", Some("b")));
        assert!(responses.remove("1", Some("a")));
        let large = Arc::new(json!("x".repeat(MAX_BYTES / 2)));
        for id in ["x", "y", "z"] {
            let stored = Stored::new(vec![Arc::clone(&large)], json!({}), None);
            responses.insert(id, stored);
        }
        assert!(responses.get("2", Some("a")).is_none());
        let left = ["x", "y", "z"].map(|id| responses.get(id, None).is_some());
        assert_eq!(left, [false, false, true]);
        let all = responses.lock();
        assert_eq!(all.of_id.len(), all.order.len());
        let bytes = all.of_id.values().map(|stored| stored.bytes);
        assert_eq!(all.bytes, bytes.sum::<usize>());
    }
}
