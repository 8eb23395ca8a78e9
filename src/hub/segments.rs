//! Several connections for one file. Its segments are received side by side and handed on in order,
//! so that the file on disk is always its own beginning.

use std::collections::VecDeque;
use std::io::Read;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::mpsc::{RecvTimeoutError, SyncSender, sync_channel};
use std::thread;
use std::time::Duration;

use reqwest::StatusCode;

use crate::client::{ByteRange, Client, Subject, innermost};
use crate::download::{Buffers, Ended, Piece, reason};

/// Number of segments that a file must have left for several connections.
const LEAST: u64 = 4;

/// Time between two reports of progress.
const REPORT: Duration = Duration::from_millis(100);

/// Connections of one download.
///
/// A segment that is cut is received again from its beginning. So a slow connection, which needs
/// long for one, stays alone.
#[derive(Clone, Copy, Debug)]
pub struct Connections {
    /// Number of connections at once.
    pub at_once: usize,
    /// Length in bytes of a segment, which one connection receives at a time.
    pub segment: u64,
    /// Longest time for the first segment, if others are to follow.
    pub fast: Duration,
}

impl Default for Connections {
    fn default() -> Self {
        Connections {
            at_once: 4,
            segment: 8 << 20,
            fast: Duration::from_secs(1),
        }
    }
}

/// The rest of a file, in segments.
pub(crate) struct Segments<'a> {
    pub(crate) client: &'a Client,
    pub(crate) url: &'a str,
    pub(crate) etag: Option<&'a str>,
    /// Size of the file in bytes.
    pub(crate) size: u64,
}

impl Segments<'_> {
    /// Returns whether several connections are worth it: `received` bytes came in this time, and
    /// `done` of the file are there.
    pub(crate) fn pays(&self, received: u64, done: u64, time: Duration) -> bool {
        let Connections {
            at_once,
            segment,
            fast,
        } = self.client.connections;
        let left = self.size.saturating_sub(done);
        at_once > 1 && received >= segment && time <= fast && left >= LEAST * segment
    }

    /// Receives the file from a byte on, and sends it in order.
    pub(crate) fn receive(
        &self,
        from: u64,
        send: &SyncSender<Piece>,
        buffers: &Buffers,
        progress: &mut dyn FnMut(u64, Option<u64>),
    ) -> Ended {
        let Connections {
            at_once, segment, ..
        } = self.client.connections;
        let received = AtomicU64::new(from);
        thread::scope(|scope| {
            let mut next = from;
            let mut ahead = VecDeque::new();
            loop {
                while ahead.len() < at_once && next < self.size {
                    let to = (next + segment).min(self.size);
                    let (give, take) = sync_channel(1);
                    let (begin, received) = (next, &received);
                    scope.spawn(move || {
                        // the receiver is gone if an earlier segment has failed
                        let _ = give.send(self.segment(begin..to, received, buffers));
                    });
                    ahead.push_back(take);
                    next = to;
                }
                let Some(first) = ahead.pop_front() else {
                    return Ended::Whole;
                };
                let bytes = loop {
                    match first.recv_timeout(REPORT) {
                        Ok(bytes) => break bytes,
                        Err(RecvTimeoutError::Timeout) => {}
                        Err(RecvTimeoutError::Disconnected) => {
                            unreachable!("each thread sends its segment")
                        }
                    }
                    progress(received.load(Ordering::Relaxed), Some(self.size));
                };
                match bytes.map(|piece| send.send(piece)) {
                    Ok(Ok(())) => progress(received.load(Ordering::Relaxed), Some(self.size)),
                    // the writer has failed and says why
                    Ok(Err(_)) => return Ended::Whole,
                    Err(reason) => return Ended::Cut(reason),
                }
            }
        })
    }

    /// Receives one segment.
    fn segment(
        &self,
        bytes: Range<u64>,
        received: &AtomicU64,
        buffers: &Buffers,
    ) -> Result<Piece, String> {
        let part = ByteRange {
            from: bytes.start,
            to: Some(bytes.end),
            etag: self.etag,
        };
        let answer = self.client.get(self.url, part, Subject::File);
        let mut answer = answer.map_err(|error| innermost(&error))?;
        if answer.status() != StatusCode::PARTIAL_CONTENT {
            return Err("the file has changed meanwhile".to_owned());
        }
        let length = usize::try_from(bytes.end - bytes.start).expect("a segment fits memory");
        let mut buffer = buffers.take(length);
        let mut n = 0;
        while n < length {
            match answer.read(&mut buffer[n..]) {
                Ok(0) => return Err("the connection ended early".to_owned()),
                Ok(more) => {
                    n += more;
                    received.fetch_add(more as u64, Ordering::Relaxed);
                }
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => {}
                Err(error) => return Err(reason(&error)),
            }
        }
        Ok((buffer, n))
    }
}
