//! One thread that works on a batch, and handles to it for everybody else. Nobody waits for a step
//! but those who want its outcome, and no step waits for anybody.

mod mailbox;

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::batch::{Batch, BatchError, Event, Request, RequestId, Snapshot};
use mailbox::Mailbox;

/// After so long without work, memory that only work needs goes back to the system. Having it again
/// costs the next step a few milliseconds.
const REST: Duration = Duration::from_secs(1);

/// Why nothing can be done any more after a panic.
const FAULT: &str = "a step ended with a fault of the program";

/// Room for the thread: constraints of texts follow their rules on it. Only what is used is taken.
const STACK_BYTES: usize = 64 << 20;

/// A handle to the thread that works on a batch. Clones are handles to the same thread; it ends
/// when it is told to by [`Front::close`] or the last of them is gone.
#[derive(Clone)]
pub struct Front(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// Rings when there is something in the inbox.
    bell: Condvar,
    state: Mutex<State>,
}

#[derive(Default)]
struct Inbox {
    orders: VecDeque<Order>,
    /// When to stop working, if at all; nothing new is taken from then on.
    until: Option<Instant>,
    /// The thread has looked in here for the last time.
    is_shut: bool,
}

enum Order {
    Add(Box<Request>, Arc<Mailbox>),
    Abort(Arc<Mailbox>),
    ClearCache,
}

/// What others may know of the thread.
#[derive(Clone, Default)]
struct State {
    snapshot: Snapshot,
    /// Since when the step under way runs.
    step: Option<Instant>,
    /// Why no step can be taken any more.
    broken: Option<String>,
    has_ended: bool,
}

/// How the thread is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works, or waits for work.
    Well,
    /// It takes nothing new.
    Closing,
    /// A step failed in a way that leaves nothing to go on with.
    Broken(String),
}

/// A request is not taken: the thread closes, or is broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

impl Front {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system starts no more threads.
    pub fn spawn(batch: Batch) -> std::io::Result<Front> {
        let state = State {
            snapshot: batch.snapshot(),
            ..State::default()
        };
        let shared = Arc::new(Shared {
            inbox: Mutex::default(),
            bell: Condvar::new(),
            state: Mutex::new(state),
        });
        let worker = Worker {
            batch,
            shared: Arc::clone(&shared),
            mailboxes: HashMap::new(),
            rests: false,
        };
        let thread = std::thread::Builder::new()
            .name("steps".to_owned())
            .stack_size(STACK_BYTES);
        let thread = Mutex::new(Some(thread.spawn(|| worker.work())?));
        Ok(Front(Arc::new(Handle { shared, thread })))
    }

    /// Hands a request over. Whether it can begin is the first thing its events say.
    ///
    /// # Errors
    /// If the thread takes nothing new.
    pub fn submit(&self, request: Request) -> Result<EventStream, Unavailable> {
        if let Health::Broken(why) = self.health() {
            return Err(Unavailable(why));
        }
        let mailbox = Arc::new(Mailbox::new());
        let order = Order::Add(Box::new(request), Arc::clone(&mailbox));
        let mut inbox = lock(&self.0.shared.inbox);
        if inbox.is_shut || inbox.until.is_some() {
            return Err(Unavailable("it is shutting down".to_owned()));
        }
        inbox.orders.push_back(order);
        self.0.shared.bell.notify_one();
        drop(inbox);
        Ok(EventStream {
            mailbox,
            shared: Arc::clone(&self.0.shared),
        })
    }

    /// What the batch was doing after its last step.
    pub fn snapshot(&self) -> Snapshot {
        lock(&self.0.shared.state).snapshot.clone()
    }

    /// How long the step under way has been running.
    pub fn step_time(&self) -> Option<Duration> {
        lock(&self.0.shared.state).step.map(|start| start.elapsed())
    }

    /// Forgets what was kept for later prompts and is not in use.
    pub fn clear_cache(&self) {
        self.0.shared.order(Order::ClearCache);
    }

    /// How it is.
    pub fn health(&self) -> Health {
        let state = lock(&self.0.shared.state);
        match &state.broken {
            Some(why) => Health::Broken(why.clone()),
            None if lock(&self.0.shared.inbox).until.is_some() => Health::Closing,
            None => Health::Well,
        }
    }

    /// Takes nothing new from now on, and ends the thread when all is done or after so long: what
    /// is not done then fails.
    pub fn close(&self, patience: Duration) {
        let mut inbox = lock(&self.0.shared.inbox);
        let until = Instant::now() + patience;
        inbox.until = Some(inbox.until.map_or(until, |before| before.min(until)));
        self.0.shared.bell.notify_one();
    }

    /// Whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.0.shared.state).has_ended
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.shared.inbox).until = Some(Instant::now());
        self.shared.bell.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // a panic of its own has been reported where it happened
            let _ = thread.join();
        }
    }
}

impl Shared {
    fn order(&self, order: Order) {
        lock(&self.inbox).orders.push_back(order);
        self.bell.notify_one();
    }
}

/// The events of one request. Dropping it ends the request.
pub struct EventStream {
    mailbox: Arc<Mailbox>,
    shared: Arc<Shared>,
}

impl EventStream {
    /// The next event; `None` after the last. For `async` callers.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut letters = lock(&self.mailbox.letters);
        match letters.take() {
            Some(event) => Poll::Ready(Some(event)),
            None if letters.has_ended => Poll::Ready(None),
            None => {
                letters.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// The next event, waited for; `None` after the last.
    pub fn wait_next(&mut self) -> Option<Event> {
        let mut letters = lock(&self.mailbox.letters);
        loop {
            if let Some(event) = letters.take() {
                return Some(event);
            }
            if letters.has_ended {
                return None;
            }
            let rung = self.mailbox.arrival.wait(letters);
            letters = rung.unwrap_or_else(PoisonError::into_inner);
        }
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if !lock(&self.mailbox.letters).has_ended {
            self.shared.order(Order::Abort(Arc::clone(&self.mailbox)));
        }
    }
}

/// What the thread owns.
struct Worker {
    batch: Batch,
    shared: Arc<Shared>,
    mailboxes: HashMap<RequestId, Receiver>,
    /// Nothing was done since memory was given back.
    rests: bool,
}

/// Who listens to a request, and how many of its texts have not ended.
struct Receiver {
    mailbox: Arc<Mailbox>,
    open: usize,
}

impl Worker {
    fn work(mut self) {
        while self.obey() {
            self.step();
            self.drop_abandoned();
            self.publish();
        }
        lock(&self.shared.inbox).is_shut = true;
        self.fail_all("it is shutting down");
        self.publish();
        lock(&self.shared.state).has_ended = true;
    }

    /// Does what was ordered, and waits for orders where there is nothing else to do; false if that
    /// is all.
    fn obey(&mut self) -> bool {
        let shared = Arc::clone(&self.shared);
        let mut inbox = lock(&shared.inbox);
        loop {
            let orders = std::mem::take(&mut inbox.orders);
            let closing = inbox.until;
            if !orders.is_empty() {
                drop(inbox);
                orders.into_iter().for_each(|order| self.follow(order));
                self.publish();
                inbox = lock(&shared.inbox);
                continue;
            }
            if let Some(until) = closing
                && (self.batch.is_empty() || Instant::now() >= until)
            {
                return false;
            }
            if !self.batch.is_empty() {
                return true;
            }
            if self.batch.has_finished_texts() {
                drop(inbox);
                self.read_again();
                inbox = lock(&shared.inbox);
                continue;
            }
            inbox = self.wait(&shared, inbox);
        }
    }

    /// Nobody asks for anything: a piece of a finished text is read for whoever goes on with it.
    fn read_again(&mut self) {
        self.rests = false;
        let read = catch_unwind(AssertUnwindSafe(|| self.batch.read_again()));
        // a device that fails does so again in a step that somebody waits for, and is told of
        if read.is_err() {
            lock(&self.shared.state).broken = Some(FAULT.to_owned());
        }
        self.publish();
    }

    /// Waits until something may be in the inbox; after a while in vain, gives memory back.
    fn wait<'a>(
        &mut self,
        shared: &'a Shared,
        inbox: MutexGuard<'a, Inbox>,
    ) -> MutexGuard<'a, Inbox> {
        if self.rests {
            let rung = shared.bell.wait(inbox);
            return rung.unwrap_or_else(PoisonError::into_inner);
        }
        let rung = shared.bell.wait_timeout(inbox, REST);
        let (inbox, waited) = rung.unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            return inbox;
        }
        drop(inbox);
        self.batch.rest();
        self.rests = true;
        lock(&shared.inbox)
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Add(request, mailbox) => self.add(*request, mailbox),
            Order::Abort(mailbox) => {
                let of = |receiver: &Receiver| Arc::ptr_eq(&receiver.mailbox, &mailbox);
                let found = self.mailboxes.iter().find(|(_, receiver)| of(receiver));
                if let Some(id) = found.map(|(&id, _)| id) {
                    self.batch.abort(id);
                    self.mailboxes.remove(&id);
                }
            }
            Order::ClearCache => self.batch.clear_cache(),
        }
    }

    fn add(&mut self, request: Request, mailbox: Arc<Mailbox>) {
        let open = request.n;
        match self.batch.add(request) {
            Ok(id) => {
                self.mailboxes.insert(id, Receiver { mailbox, open });
            }
            Err(error) => mailbox.put(Event::Failed(error), true),
        }
    }

    fn step(&mut self) {
        self.rests = false;
        lock(&self.shared.state).step = Some(Instant::now());
        let Worker {
            batch, mailboxes, ..
        } = self;
        let mut sink = |id, event| deliver(mailboxes, id, event);
        // a fault of the program must not take those down who have nothing to do with it
        let stepped = catch_unwind(AssertUnwindSafe(|| batch.step(&mut sink)));
        let (why, is_broken) = match stepped {
            Ok(Ok(())) => (None, false),
            Ok(Err(error)) => (Some(error.to_string()), false),
            Err(_) => (Some(FAULT.to_owned()), true),
        };
        let mut state = lock(&self.shared.state);
        state.step = None;
        if let Some(why) = why {
            state.broken = is_broken.then(|| why.clone());
            drop(state);
            self.fail_all(&why);
        }
    }

    fn fail_all(&mut self, why: &str) {
        let Worker {
            batch, mailboxes, ..
        } = self;
        batch.fail_all(why, &mut |id, event| deliver(mailboxes, id, event));
        let orders = std::mem::take(&mut lock(&self.shared.inbox).orders);
        for order in orders {
            if let Order::Add(_, mailbox) = order {
                mailbox.put(Event::Failed(BatchError::Step(why.to_owned())), true);
            }
        }
    }

    fn drop_abandoned(&mut self) {
        let batch = &mut self.batch;
        self.mailboxes.retain(|&id, receiver| {
            let is_abandoned = receiver.mailbox.is_abandoned();
            if is_abandoned {
                batch.abort(id);
                let error = BatchError::Step("nobody took its events".to_owned());
                receiver.mailbox.put(Event::Failed(error), true);
            }
            !is_abandoned
        });
    }

    fn publish(&mut self) {
        let snapshot = self.batch.snapshot();
        lock(&self.shared.state).snapshot = snapshot;
    }
}

fn deliver(mailboxes: &mut HashMap<RequestId, Receiver>, id: RequestId, event: Event) {
    let Some(receiver) = mailboxes.get_mut(&id) else {
        return;
    };
    let is_last = match &event {
        Event::Failed(_) | Event::Embedded { .. } | Event::Found { .. } => true,
        Event::Finished { .. } => {
            receiver.open -= 1;
            receiver.open == 0
        }
        Event::Started { .. } | Event::Read { .. } | Event::Prompt(_) | Event::Delta { .. } => {
            false
        }
    };
    receiver.mailbox.put(event, is_last);
    if is_last {
        mailboxes.remove(&id);
    }
}

/// What is behind a lock is in order between any two statements here, so a panic elsewhere spoils
/// nothing.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
