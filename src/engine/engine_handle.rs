//! Runs a batch on a thread of its own, with handles for other threads. Only callers that want the
//! outcome of a step wait for it, and no step waits for a caller.

mod event_queue;

use std::collections::{HashMap, VecDeque};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::task::{Context, Poll};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use crate::batch::{Batch, BatchError, Event, Request, RequestId, Snapshot};
use event_queue::EventQueue;

/// Idle time after which the scratch memory of steps is freed. Allocating it again costs the next
/// step a few milliseconds.
const IDLE: Duration = Duration::from_secs(1);

/// Error message of requests once a step has panicked.
const FAULT: &str = "a step ended with a fault of the program";

/// Stack size of the thread, on which constraints also follow their grammars. Only the part in use
/// takes memory.
const STACK_BYTES: usize = 64 << 20;

/// A handle to the thread that runs a batch. Clones share the thread; it ends after
/// [`EngineHandle::close`] or when the last handle is dropped.
#[derive(Clone)]
pub struct EngineHandle(Arc<Handle>);

struct Handle {
    shared: Arc<Shared>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

struct Shared {
    inbox: Mutex<Inbox>,
    /// Signaled when the inbox has something new.
    bell: Condvar,
    state: Mutex<State>,
}

#[derive(Default)]
struct Inbox {
    orders: VecDeque<Order>,
    /// Deadline for ending, once [`EngineHandle::close`] was called; no new request is accepted
    /// from then on.
    until: Option<Instant>,
    /// The thread does not read the inbox any more.
    is_shut: bool,
}

enum Order {
    Add(Box<Request>, Arc<EventQueue>),
    Abort(Arc<EventQueue>),
    Run(Box<dyn FnOnce(&mut Batch) + Send>),
}

/// State of the thread that other threads can read.
#[derive(Clone, Default)]
struct State {
    snapshot: Snapshot,
    /// Start of the step in progress.
    step: Option<Instant>,
    /// Error after which no step can be taken.
    broken: Option<String>,
    has_ended: bool,
}

/// Health of the thread.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Health {
    /// It works, or waits for work.
    Well,
    /// It accepts no new requests.
    Closing,
    /// A step panicked, and nothing can go on.
    Broken(String),
}

/// A request was refused: the thread is shutting down, or broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct Unavailable(pub String);

impl EngineHandle {
    /// Starts the thread.
    ///
    /// # Errors
    /// If the system cannot start another thread.
    pub fn spawn(batch: Batch) -> std::io::Result<EngineHandle> {
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
            receivers: HashMap::new(),
            is_scratch_released: false,
        };
        let thread = std::thread::Builder::new()
            .name("steps".to_owned())
            .stack_size(STACK_BYTES);
        let thread = Mutex::new(Some(thread.spawn(|| worker.work())?));
        Ok(EngineHandle(Arc::new(Handle { shared, thread })))
    }

    /// Submits a request. The first of its events says whether it could be added.
    ///
    /// # Errors
    /// If no new requests are accepted.
    pub fn submit(&self, request: Request) -> Result<EventStream, Unavailable> {
        if let Health::Broken(why) = self.health() {
            return Err(Unavailable(why));
        }
        let queue = Arc::new(EventQueue::new());
        let order = Order::Add(Box::new(request), Arc::clone(&queue));
        let mut inbox = lock(&self.0.shared.inbox);
        if inbox.is_shut || inbox.until.is_some() {
            return Err(Unavailable("it is shutting down".to_owned()));
        }
        inbox.orders.push_back(order);
        self.0.shared.bell.notify_one();
        drop(inbox);
        Ok(EventStream {
            queue,
            shared: Arc::clone(&self.0.shared),
        })
    }

    /// Returns the state of the batch after its last step.
    pub fn snapshot(&self) -> Snapshot {
        lock(&self.0.shared.state).snapshot.clone()
    }

    /// Returns how long the step in progress has been running.
    pub fn step_time(&self) -> Option<Duration> {
        lock(&self.0.shared.state).step.map(|start| start.elapsed())
    }

    /// Drops everything from the prefix cache that is not in use.
    pub fn clear_cache(&self) {
        let clear = |batch: &mut Batch| batch.clear_cache();
        self.0.shared.order(Order::Run(Box::new(clear)));
    }

    /// Runs a function on the batch between two steps, and waits for its result.
    ///
    /// # Errors
    /// If the thread ends first.
    pub fn run<T: Send + 'static>(
        &self,
        work: impl FnOnce(&mut Batch) -> T + Send + 'static,
    ) -> Result<T, Unavailable> {
        let (sender, receiver) = std::sync::mpsc::sync_channel(1);
        let send = move |batch: &mut Batch| {
            // whoever asked may have left
            let _ = sender.send(work(batch));
        };
        let gone = || Unavailable("it is shutting down".to_owned());
        let mut inbox = lock(&self.0.shared.inbox);
        if inbox.is_shut {
            return Err(gone());
        }
        inbox.orders.push_back(Order::Run(Box::new(send)));
        self.0.shared.bell.notify_one();
        drop(inbox);
        receiver.recv().map_err(|_| gone())
    }

    /// Returns the health of the thread.
    pub fn health(&self) -> Health {
        let state = lock(&self.0.shared.state);
        match &state.broken {
            Some(why) => Health::Broken(why.clone()),
            None if lock(&self.0.shared.inbox).until.is_some() => Health::Closing,
            None => Health::Well,
        }
    }

    /// Accepts no new requests from now on, and ends the thread once all are done or after
    /// `patience`: unfinished requests then fail.
    pub fn close(&self, patience: Duration) {
        let mut inbox = lock(&self.0.shared.inbox);
        let until = Instant::now() + patience;
        inbox.until = Some(inbox.until.map_or(until, |before| before.min(until)));
        self.0.shared.bell.notify_one();
    }

    /// Returns whether the thread has ended.
    pub fn has_ended(&self) -> bool {
        lock(&self.0.shared.state).has_ended
    }
}

impl Drop for Handle {
    fn drop(&mut self) {
        lock(&self.shared.inbox).until = Some(Instant::now());
        self.shared.bell.notify_one();
        if let Some(thread) = lock(&self.thread).take() {
            // a panic of the thread has already been reported
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

/// The events of one request. Dropping it aborts the request.
pub struct EventStream {
    queue: Arc<EventQueue>,
    shared: Arc<Shared>,
}

impl EventStream {
    /// Polls for the next event; `None` after the last. For `async` callers.
    pub fn poll_next(&mut self, context: &mut Context<'_>) -> Poll<Option<Event>> {
        let mut state = lock(&self.queue.state);
        match state.take() {
            Some(event) => Poll::Ready(Some(event)),
            None if state.has_ended => Poll::Ready(None),
            None => {
                state.waker = Some(context.waker().clone());
                Poll::Pending
            }
        }
    }

    /// Waits for the next event; `None` after the last.
    pub fn wait_next(&mut self) -> Option<Event> {
        loop {
            if let Poll::Ready(event) = self.wait_next_for(Duration::MAX) {
                return event;
            }
        }
    }

    /// Waits for the next event as [`EventStream::wait_next`] does, but no longer than `patience`;
    /// pending if none came in that time.
    pub fn wait_next_for(&mut self, patience: Duration) -> Poll<Option<Event>> {
        let start = Instant::now();
        let mut state = lock(&self.queue.state);
        loop {
            if let Some(event) = state.take() {
                return Poll::Ready(Some(event));
            }
            if state.has_ended {
                return Poll::Ready(None);
            }
            let Some(left) = patience.checked_sub(start.elapsed()) else {
                return Poll::Pending;
            };
            let rung = self.queue.arrival.wait_timeout(state, left);
            (state, _) = rung.unwrap_or_else(PoisonError::into_inner);
        }
    }

    /// Keeps the request however long its events stay unread: for callers that may pause, and drop
    /// the stream when they want no more.
    #[must_use]
    pub fn patient(self) -> EventStream {
        lock(&self.queue.state).is_patient = true;
        self
    }
}

impl Drop for EventStream {
    fn drop(&mut self) {
        if !lock(&self.queue.state).has_ended {
            self.shared.order(Order::Abort(Arc::clone(&self.queue)));
        }
    }
}

/// State owned by the thread.
struct Worker {
    batch: Batch,
    shared: Arc<Shared>,
    receivers: HashMap<RequestId, Receiver>,
    /// Scratch memory was freed, and there has been no work since.
    is_scratch_released: bool,
}

/// Event queue of a request, and how many of its texts have not ended.
struct Receiver {
    queue: Arc<EventQueue>,
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

    /// Follows all orders, and waits for more while there is no work; returns false if the thread
    /// is to end.
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
                self.warm_prefixes();
                inbox = lock(&shared.inbox);
                continue;
            }
            inbox = self.wait(&shared, inbox);
        }
    }

    /// Computes a chunk of a finished text as a prompt while no request needs the device, so that
    /// the next turn of the conversation finds it in the prefix cache.
    fn warm_prefixes(&mut self) {
        self.is_scratch_released = false;
        let read = catch_unwind(AssertUnwindSafe(|| self.batch.warm_prefixes()));
        // a failing device fails again in a step of a request, which reports it
        if read.is_err() {
            lock(&self.shared.state).broken = Some(FAULT.to_owned());
        }
        self.publish();
    }

    /// Waits until something may be in the inbox; frees scratch memory after a while without
    /// anything.
    fn wait<'a>(
        &mut self,
        shared: &'a Shared,
        inbox: MutexGuard<'a, Inbox>,
    ) -> MutexGuard<'a, Inbox> {
        if self.is_scratch_released {
            let rung = shared.bell.wait(inbox);
            return rung.unwrap_or_else(PoisonError::into_inner);
        }
        let rung = shared.bell.wait_timeout(inbox, IDLE);
        let (inbox, waited) = rung.unwrap_or_else(PoisonError::into_inner);
        if !waited.timed_out() {
            return inbox;
        }
        drop(inbox);
        self.batch.release_scratch();
        self.is_scratch_released = true;
        lock(&shared.inbox)
    }

    fn follow(&mut self, order: Order) {
        match order {
            Order::Add(request, queue) => self.add(*request, queue),
            Order::Abort(queue) => {
                let of = |receiver: &Receiver| Arc::ptr_eq(&receiver.queue, &queue);
                let found = self.receivers.iter().find(|(_, receiver)| of(receiver));
                if let Some(id) = found.map(|(&id, _)| id) {
                    self.batch.abort(id);
                    self.receivers.remove(&id);
                }
            }
            Order::Run(work) => work(&mut self.batch),
        }
    }

    fn add(&mut self, request: Request, queue: Arc<EventQueue>) {
        let open = request.n;
        match self.batch.add(request) {
            Ok(id) => {
                self.receivers.insert(id, Receiver { queue, open });
            }
            Err(error) => queue.put(Event::Failed(error), true),
        }
    }

    fn step(&mut self) {
        self.is_scratch_released = false;
        lock(&self.shared.state).step = Some(Instant::now());
        let Worker {
            batch, receivers, ..
        } = self;
        let mut sink = |id, event| deliver(receivers, id, event);
        // a panic in a step must not take down the rest of the program
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
            batch, receivers, ..
        } = self;
        batch.fail_all(why, &mut |id, event| deliver(receivers, id, event));
        let orders = std::mem::take(&mut lock(&self.shared.inbox).orders);
        for order in orders {
            if let Order::Add(_, queue) = order {
                queue.put(Event::Failed(BatchError::Step(why.to_owned())), true);
            }
        }
    }

    fn drop_abandoned(&mut self) {
        let batch = &mut self.batch;
        self.receivers.retain(|&id, receiver| {
            let is_abandoned = receiver.queue.is_abandoned();
            if is_abandoned {
                batch.abort(id);
                let error = BatchError::Step("nobody took its events".to_owned());
                receiver.queue.put(Event::Failed(error), true);
            }
            !is_abandoned
        });
    }

    fn publish(&mut self) {
        let snapshot = self.batch.snapshot();
        lock(&self.shared.state).snapshot = snapshot;
    }
}

fn deliver(receivers: &mut HashMap<RequestId, Receiver>, id: RequestId, event: Event) {
    let Some(receiver) = receivers.get_mut(&id) else {
        return;
    };
    let is_last = match &event {
        Event::Failed(_) | Event::Embedded { .. } | Event::Beams { .. } => true,
        Event::Finished { .. } => {
            receiver.open -= 1;
            receiver.open == 0
        }
        Event::Started { .. } | Event::Read { .. } | Event::Prompt(_) | Event::Delta { .. } => {
            false
        }
    };
    receiver.queue.put(event, is_last);
    if is_last {
        receivers.remove(&id);
    }
}

/// Locks a mutex, even a poisoned one: the data is consistent between any two statements here, so a
/// panic elsewhere does no harm.
fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
