//! Tests of how long events may stay unread.

use super::*;

/// Lets `time` pass without anything happening to the mailbox.
fn pass(mailbox: &Mailbox, time: Duration) {
    let mut letters = lock(&mailbox.letters);
    letters.unread = letters
        .unread
        .checked_sub(time)
        .expect("the clock is younger");
}

#[test]
fn who_waits_long_for_an_event_has_as_long_as_others_to_take_it() {
    let mailbox = Mailbox::new();
    pass(&mailbox, 2 * UNREAD);
    mailbox.put(Event::Read { done: 1 }, false);
    assert!(!mailbox.is_abandoned(), "the event has just come");
    pass(&mailbox, UNREAD / 2);
    mailbox.put(Event::Read { done: 2 }, false);
    assert!(!mailbox.is_abandoned(), "half of the time is left");
}

#[test]
fn events_that_nobody_takes_are_given_up_however_many_come() {
    let mailbox = Mailbox::new();
    mailbox.put(Event::Read { done: 1 }, false);
    pass(&mailbox, UNREAD / 2);
    mailbox.put(Event::Read { done: 2 }, false);
    pass(&mailbox, UNREAD / 2);
    assert!(
        mailbox.is_abandoned(),
        "the first has been lying here for all of the time"
    );
    assert!(lock(&mailbox.letters).take().is_some());
    mailbox.put(Event::Read { done: 3 }, false);
    assert!(!mailbox.is_abandoned(), "somebody looked");
}
