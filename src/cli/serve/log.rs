//! The server's log on stderr: a line for each request, and warnings.

use std::sync::mpsc::{SyncSender, TrySendError, sync_channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant, SystemTime};

use clap::Args;
use octavo_server::{LogEvent, LogSink, RequestRecord};
use serde_json::{Map, Value, json};

use crate::failure::Failure;
use crate::terminal::{self, Level};

/// Maximum number of lines that wait to be written. More are dropped, so that a slow reader of
/// stderr does not slow down answers.
const WAITING: usize = 1024;

/// Maximum time to write the last lines, because the reader of stderr may have stopped.
const FAREWELL: Duration = Duration::from_secs(1);

/// Options of the request log.
#[derive(Clone, Debug, Args)]
#[command(next_help_heading = "Logging")]
pub(super) struct LogArgs {
    /// Format of the log on stderr, one line per request
    #[arg(long, value_name = "FORMAT", value_enum, default_value_t = LogFormat::Text)]
    log_format: LogFormat,
}

/// Formats of the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq, clap::ValueEnum)]
enum LogFormat {
    /// For people
    Text,
    /// A JSON object a line
    Json,
}

/// Returns the lowest level at which a record is written: -q keeps only requests that fail by a
/// fault of the server, -v adds health probes and the page's files.
fn level(event: &LogEvent<'_>) -> Level {
    match event {
        LogEvent::Request(record) if record.status >= 500 => Level::Quiet,
        LogEvent::Request(record) if record.is_probe => Level::Verbose,
        LogEvent::Request(_) | LogEvent::Warning { .. } => Level::Usual,
    }
}

impl LogArgs {
    /// Starts the thread that writes lines to stderr.
    pub(super) fn start(&self) -> Result<Log, Failure> {
        let (sender, receiver) = sync_channel::<(Level, String)>(WAITING);
        let write = move || {
            for (level, line) in receiver {
                terminal::tell_timed(level, &line);
            }
        };
        let thread = std::thread::Builder::new().name("log".to_owned());
        let thread = thread.spawn(write);
        let thread = thread.map_err(|error| Failure::Machine(format!("a thread: {error}")))?;
        Ok(Log {
            sender: Arc::new(Mutex::new(Some(sender))),
            thread,
        })
    }

    /// Returns a sink that formats the server's events and queues their lines.
    pub(super) fn sink(&self, log: &Log) -> LogSink {
        let sender = Arc::clone(&log.sender);
        let args = self.clone();
        let dropped = Mutex::new(0u64);
        LogSink::new(move |event| {
            let line = match args.log_format {
                LogFormat::Text => text(SystemTime::now(), &event),
                LogFormat::Json => json(SystemTime::now(), &event).to_string(),
            };
            let sender = sender.lock().unwrap_or_else(PoisonError::into_inner);
            if let Some(sender) = sender.as_ref() {
                let mut dropped = dropped.lock().unwrap_or_else(PoisonError::into_inner);
                match sender.try_send((level(&event), line)) {
                    Ok(()) if *dropped > 0 => {
                        let line =
                            format!("octavo: warning: {dropped} lines of the log are missing");
                        if sender.try_send((Level::Usual, line)).is_ok() {
                            *dropped = 0;
                        }
                    }
                    Ok(()) => {}
                    Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => *dropped += 1,
                }
            }
        })
    }
}

/// Queue of lines to write, each with its level.
type Lines = SyncSender<(Level, String)>;

/// Thread that writes the log; dropping this waits until all is written, at most [`FAREWELL`].
pub(super) struct Log {
    sender: Arc<Mutex<Option<Lines>>>,
    thread: JoinHandle<()>,
}

impl Drop for Log {
    fn drop(&mut self) {
        let mut sender = self.sender.lock().unwrap_or_else(PoisonError::into_inner);
        drop(sender.take());
        drop(sender);
        let start = Instant::now();
        let has_ended = || self.thread.is_finished();
        while !has_ended() && start.elapsed() < FAREWELL {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

fn milliseconds(time: Duration) -> f64 {
    (time.as_secs_f64() * 1e4).round() / 10.0
}

/// Formats an event as a line for people.
fn text(now: SystemTime, event: &LogEvent<'_>) -> String {
    let time = humantime::format_rfc3339_millis(now);
    match event {
        LogEvent::Warning { request, text } => {
            let of = request.map_or(String::new(), |id| format!(" id={id}"));
            format!("{time} warning: {text}{of}")
        }
        LogEvent::Request(record) => {
            let RequestRecord {
                id,
                method,
                route,
                status,
                ..
            } = record;
            let mut line = format!("{time} {method} {route} {status}");
            if record.prompt_tokens > 0 {
                let (prompt, cached) = (record.prompt_tokens, record.cached_tokens);
                let generated = record.generated_tokens;
                line += &format!(" prompt={prompt} cached={cached} generated={generated}");
            }
            if let Some(first) = record.first_token {
                line += &format!(" first={}ms", milliseconds(first));
            }
            line += &format!(" total={}ms id={id}", milliseconds(record.duration));
            if !record.is_whole {
                line += " (the client left)";
            }
            if let Some(error) = &record.error {
                line += &format!(" error: {error}");
            }
            line
        }
    }
}

/// Formats an event as a JSON object.
fn json(now: SystemTime, event: &LogEvent<'_>) -> Value {
    let mut object = Map::new();
    let time = humantime::format_rfc3339_millis(now).to_string();
    object.insert("time".to_owned(), json!(time));
    let mut put = |name: &str, value: Value| object.insert(name.to_owned(), value);
    match event {
        LogEvent::Warning { request, text } => {
            put("event", json!("warning"));
            put("request_id", json!(request));
            put("message", json!(text));
        }
        LogEvent::Request(record) => {
            put("event", json!("request"));
            put("request_id", json!(record.id));
            put("method", json!(record.method));
            put("route", json!(record.route));
            put("status", json!(record.status));
            put("prompt_tokens", json!(record.prompt_tokens));
            put("cached_tokens", json!(record.cached_tokens));
            put("generated_tokens", json!(record.generated_tokens));
            put(
                "first_token_ms",
                json!(record.first_token.map(milliseconds)),
            );
            put("duration_ms", json!(milliseconds(record.duration)));
            put("complete", json!(record.is_whole));
            put("error", json!(record.error));
        }
    }
    Value::Object(object)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn record() -> RequestRecord {
        RequestRecord {
            id: "abc".to_owned(),
            method: "POST".to_owned(),
            route: "/v1/completions".to_owned(),
            status: 200,
            prompt_tokens: 7,
            cached_tokens: 3,
            generated_tokens: 2,
            first_token: Some(Duration::from_micros(12_340)),
            duration: Duration::from_millis(50),
            is_whole: true,
            error: None,
            is_probe: false,
        }
    }

    #[test]
    fn a_request_is_a_line() {
        let line = text(SystemTime::UNIX_EPOCH, &LogEvent::Request(&record()));
        assert_eq!(
            line,
            "1970-01-01T00:00:00.000Z POST /v1/completions 200 prompt=7 cached=3 generated=2 \
             first=12.3ms total=50ms id=abc"
        );
        let object = json(SystemTime::UNIX_EPOCH, &LogEvent::Request(&record()));
        assert_eq!(object["cached_tokens"], 3);
        assert_eq!(object["first_token_ms"], 12.3);
        assert_eq!(object["complete"], true);
    }

    #[test]
    fn quiet_keeps_faults_and_verbose_adds_probes() {
        let probe = RequestRecord {
            is_probe: true,
            ..record()
        };
        let fault = RequestRecord {
            status: 503,
            ..probe.clone()
        };
        let levels = [&record(), &probe, &fault].map(|record| level(&LogEvent::Request(record)));
        assert_eq!(levels, [Level::Usual, Level::Verbose, Level::Quiet]);
    }
}
