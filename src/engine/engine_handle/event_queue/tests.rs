//! Tests of how long events may stay unread.

use super::*;

/// Lets `time` pass without anything happening to the queue.
fn pass(queue: &EventQueue, time: Duration) {
    let mut state = lock(&queue.state);
    state.unread = state
        .unread
        .checked_sub(time)
        .expect("the clock is younger");
}

#[test]
fn who_waits_long_for_an_event_has_as_long_as_others_to_take_it() {
    let queue = EventQueue::new();
    pass(&queue, 2 * UNREAD);
    queue.put(Event::Read { done: 1 }, false);
    assert!(!queue.is_abandoned(), "the event has just come");
    pass(&queue, UNREAD / 2);
    queue.put(Event::Read { done: 2 }, false);
    assert!(!queue.is_abandoned(), "half of the time is left");
}

#[test]
fn events_that_nobody_takes_are_given_up_however_many_come() {
    let queue = EventQueue::new();
    queue.put(Event::Read { done: 1 }, false);
    pass(&queue, UNREAD / 2);
    queue.put(Event::Read { done: 2 }, false);
    pass(&queue, UNREAD / 2);
    assert!(
        queue.is_abandoned(),
        "the first has been lying here for all of the time"
    );
    assert!(lock(&queue.state).take().is_some());
    queue.put(Event::Read { done: 3 }, false);
    assert!(!queue.is_abandoned(), "somebody looked");
}

#[test]
fn a_patient_caller_may_leave_events_unread_for_any_time() {
    let queue = EventQueue::new();
    lock(&queue.state).is_patient = true;
    queue.put(Event::Read { done: 1 }, false);
    pass(&queue, 2 * UNREAD);
    assert!(!queue.is_abandoned());
}
