//! Requests to the hub and to servers of files: retried where that may help, and refused with the
//! reason.

use std::io::Read;
use std::thread;
use std::time::Duration;

use reqwest::StatusCode;
use reqwest::blocking::{self, Response};
use reqwest::header::{
    AUTHORIZATION, ETAG, HeaderMap, IF_NONE_MATCH, IF_RANGE, RANGE, RETRY_AFTER,
};
use serde::Deserialize;

use crate::Error;
use crate::segments::Connections;

/// Longest wait that a server may ask for, in seconds.
const LONGEST_WAIT: u64 = 120;

/// Longest answer that is read as a text, in bytes: a page of a listing has some 100 KB.
const LONGEST_TEXT: u64 = 64 << 20;

/// How failed requests are repeated.
#[derive(Clone, Copy, Debug)]
pub struct Retries {
    /// Attempts without any progress before a request has failed.
    pub attempts: u32,
    /// Wait after the first failure; it doubles with each.
    pub wait: Duration,
    /// Time without a byte after which a connection has failed.
    pub idle: Duration,
}

impl Default for Retries {
    fn default() -> Self {
        Retries {
            attempts: 5,
            wait: Duration::from_secs(1),
            idle: Duration::from_secs(30),
        }
    }
}

impl Retries {
    /// Waits after a number of failures.
    pub(crate) fn pause(&self, failures: u32) {
        thread::sleep(self.wait * 2u32.saturating_pow(failures.saturating_sub(1)).min(32));
    }
}

/// A part of a file.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct ByteRange<'a> {
    /// First byte.
    pub(crate) from: u64,
    /// Byte after the last one; `None` for all that follow.
    pub(crate) to: Option<u64>,
    /// ETag of the file that it must be a part of.
    pub(crate) etag: Option<&'a str>,
}

/// A client of the hub.
pub(crate) struct Client {
    http: blocking::Client,
    /// Address of the hub, without a slash at its end.
    pub(crate) endpoint: String,
    pub(crate) token: Option<String>,
    pub(crate) retries: Retries,
    pub(crate) connections: Connections,
}

/// A subject of requests, for messages.
#[derive(Clone, Copy)]
pub(crate) enum Subject<'a> {
    /// A repository, and the revision that is asked for.
    Repository(&'a str, &'a str),
    /// A file at an address.
    File,
}

#[derive(Deserialize)]
struct Refusal {
    error: String,
}

impl Client {
    pub(crate) fn new(
        endpoint: &str,
        token: Option<String>,
        retries: Retries,
    ) -> Result<Client, Error> {
        let mut http = blocking::Client::builder()
            .user_agent(concat!("octavo/", env!("CARGO_PKG_VERSION")))
            .connect_timeout(Duration::from_secs(10))
            // of every read: a blocking client's timeout begins anew with each
            .timeout(retries.idle);
        if is_on_this_machine(endpoint) {
            http = http.no_proxy();
        }
        let http = http.build();
        let endpoint = endpoint.trim_end_matches('/').to_owned();
        Ok(Client {
            http: http.map_err(|error| Error::Connection {
                url: endpoint.clone(),
                reason: reason(&error),
                attempts: 0,
            })?,
            endpoint,
            token,
            retries,
            connections: Connections::default(),
        })
    }

    /// Requests a part of what is at an address; repeats requests that may succeed later.
    ///
    /// # Errors
    /// If there is no answer, or not success. An answer of 416 (nothing from there on) is handed
    /// over.
    pub(crate) fn get(
        &self,
        url: &str,
        part: ByteRange<'_>,
        subject: Subject<'_>,
    ) -> Result<Response, Error> {
        let mut failures = 0;
        loop {
            let last = failures + 1 >= self.retries.attempts;
            match self.send(url, part) {
                Ok(answer)
                    if answer.status().is_success()
                        || answer.status() == StatusCode::RANGE_NOT_SATISFIABLE =>
                {
                    return Ok(answer);
                }
                Ok(answer) if answer.status() == StatusCode::TOO_MANY_REQUESTS => {
                    let seconds = seconds_to_wait(answer.headers()).unwrap_or(1 << failures);
                    if last || seconds > LONGEST_WAIT {
                        let url = url.to_owned();
                        return Err(Error::TooMany { url, seconds });
                    }
                    thread::sleep(Duration::from_secs(seconds));
                }
                Ok(answer) if answer.status().is_server_error() && !last => {
                    self.retries.pause(failures + 1);
                }
                Ok(answer) => return Err(self.refusal(url, answer, subject)),
                Err(error) if last || error.is_builder() => {
                    return Err(Error::Connection {
                        url: url.to_owned(),
                        reason: reason(&error),
                        attempts: failures + 1,
                    });
                }
                Err(_) => self.retries.pause(failures + 1),
            }
            failures += 1;
        }
    }

    /// Requests a JSON document of the hub.
    ///
    /// # Errors
    /// As [`Client::get`], and if it is not what the interface says.
    pub(crate) fn json<T: for<'de> Deserialize<'de>>(
        &self,
        url: &str,
        subject: Subject<'_>,
    ) -> Result<(T, Option<String>), Error> {
        let answer = self.get(url, ByteRange::default(), subject)?;
        let next = next_page(answer.headers());
        let mut text = Vec::new();
        let read = answer.take(LONGEST_TEXT).read_to_end(&mut text);
        read.map_err(|error| Error::Connection {
            url: url.to_owned(),
            reason: error.to_string(),
            attempts: 1,
        })?;
        let document = serde_json::from_slice(&text).map_err(|_| Error::Answer {
            url: url.to_owned(),
            expected: "a JSON document of the hub's interface",
        })?;
        Ok((document, next))
    }

    /// Returns whether an address is the hub's own: only there the token is shown.
    fn is_own(&self, url: &str) -> bool {
        let rest = url.strip_prefix(&self.endpoint);
        rest.is_some_and(|rest| rest.is_empty() || rest.starts_with('/'))
    }

    /// Returns whether the file at an address still has this ETag.
    ///
    /// # Errors
    /// If there is no answer, or not success.
    pub(crate) fn is_unchanged(&self, url: &str, etag: &str) -> Result<bool, Error> {
        let answer = self.request(url).header(IF_NONE_MATCH, etag).send();
        let answer = answer.map_err(|error| Error::Connection {
            url: url.to_owned(),
            reason: reason(&error),
            attempts: 1,
        })?;
        match answer.status() {
            StatusCode::NOT_MODIFIED => Ok(true),
            status if status.is_success() => Ok(etag_of(answer.headers()).as_deref() == Some(etag)),
            _ => Err(self.refusal(url, answer, Subject::File)),
        }
    }

    /// Begins a request, with the token if the address is the hub's.
    fn request(&self, url: &str) -> blocking::RequestBuilder {
        let request = self.http.get(url);
        match self.token.as_ref().filter(|_| self.is_own(url)) {
            Some(token) => request.header(AUTHORIZATION, format!("Bearer {token}")),
            None => request,
        }
    }

    fn send(&self, url: &str, part: ByteRange<'_>) -> Result<Response, reqwest::Error> {
        let mut request = self.request(url);
        let ByteRange { from, to, etag } = part;
        if from > 0 || to.is_some() {
            let last = to.map_or_else(String::new, |to| (to - 1).to_string());
            request = request.header(RANGE, format!("bytes={from}-{last}"));
            if let Some(etag) = etag {
                request = request.header(IF_RANGE, etag);
            }
        }
        request.send()
    }

    /// Says why a request was refused.
    fn refusal(&self, url: &str, answer: Response, subject: Subject<'_>) -> Error {
        let status = answer.status();
        let header = |name: &str| {
            let value = answer.headers().get(name)?;
            Some(value.to_str().ok()?.to_owned())
        };
        let code = header("x-error-code").unwrap_or_default();
        let said = header("x-error-message");
        if let Subject::Repository(repo, revision) = subject {
            let repo = repo.to_owned();
            let is_refused = matches!(status.as_u16(), 401 | 403);
            match &*code {
                "GatedRepo" => {
                    let page = format!("{}/{repo}", self.endpoint);
                    return Error::Gated { repo, page };
                }
                "RevisionNotFound" => {
                    let revision = revision.to_owned();
                    return Error::NoRevision { repo, revision };
                }
                "RepoNotFound" => return Error::NoRepository { repo },
                _ if is_refused && self.token.is_some() => return Error::Token { repo },
                _ if is_refused || status == StatusCode::NOT_FOUND => {
                    return Error::NoRepository { repo };
                }
                _ => {}
            }
        }
        let url = url.to_owned();
        if status == StatusCode::NOT_FOUND {
            return Error::NotFound { url };
        }
        let mut text = String::new();
        // a refusal without words is one too
        let _ = answer.take(4096).read_to_string(&mut text);
        let said = said.or_else(|| Some(serde_json::from_str::<Refusal>(&text).ok()?.error));
        Error::Status {
            url,
            status: status.as_u16(),
            message: said.unwrap_or_default(),
        }
    }
}

/// Returns the ETag of an answer, unless it is a weak one, which promises no equal bytes.
pub(crate) fn etag_of(headers: &HeaderMap) -> Option<String> {
    let etag = headers.get(ETAG)?.to_str().ok()?;
    (etag.starts_with('"')).then(|| etag.to_owned())
}

/// Returns whether a hub runs on this machine, which no proxy knows.
fn is_on_this_machine(endpoint: &str) -> bool {
    let host = endpoint
        .split_once("://")
        .map_or(endpoint, |(_, rest)| rest);
    ["127.", "localhost", "[::1]"]
        .iter()
        .any(|name| host.starts_with(name))
}

/// Returns how many seconds a server asks to wait.
fn seconds_to_wait(headers: &HeaderMap) -> Option<u64> {
    headers.get(RETRY_AFTER)?.to_str().ok()?.trim().parse().ok()
}

/// Returns the address of the next page of a listing.
fn next_page(headers: &HeaderMap) -> Option<String> {
    let links = headers.get("link")?.to_str().ok()?;
    let next = links
        .split(',')
        .find(|link| link.contains("rel=\"next\""))?;
    let (_, rest) = next.split_once('<')?;
    Some(rest.split_once('>')?.0.to_owned())
}

fn reason(error: &reqwest::Error) -> String {
    match error.is_timeout() {
        true => "no answer in time".to_owned(),
        false => innermost(error),
    }
}

/// Returns the innermost reason of an error: the outer ones repeat the address.
pub(crate) fn innermost(error: &dyn std::error::Error) -> String {
    error.source().map_or_else(|| error.to_string(), innermost)
}
