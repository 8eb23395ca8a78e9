//! Access control: API keys, and the web pages that may use a server without one.

use std::net::IpAddr;

use axum::http::{HeaderMap, header};
use subtle::ConstantTimeEq;

use crate::Options;
use crate::error::ApiError;
use crate::listen::hosts;
use crate::logging::shown;

/// Header in which OpenAI's packages name the helper that wrote a request.
const HELPER: &str = "x-stainless-helper-method";

/// Client of a request.
#[derive(Clone, Debug, Default)]
pub(crate) struct Caller {
    /// API key, if there are several: each has its own prefix cache.
    key: Option<String>,
    /// Whether a helper wrote the request's schemas, which makes all of them strict unasked.
    has_helper: bool,
}

impl Caller {
    /// Returns the salt that separates this caller's cached prompts from others'.
    pub(crate) fn salt(&self) -> Option<&str> {
        self.key.as_deref()
    }

    /// Returns whether a helper of OpenAI's packages generated the request's schemas from types. It
    /// always sets `strict`, so the flag is not the user's wish.
    pub(crate) fn has_helper(&self) -> bool {
        self.has_helper
    }
}

/// Checks a key.
///
/// # Errors
/// If there are keys and none of them was given.
pub(crate) fn caller(options: &Options, headers: &HeaderMap) -> Result<Caller, ApiError> {
    let helper = headers.get(HELPER).and_then(|value| value.to_str().ok());
    let has_helper =
        helper.is_some_and(|helper| helper.ends_with(".parse") || helper.ends_with(".stream"));
    if options.keys.is_empty() {
        return Ok(Caller {
            key: None,
            has_helper,
        });
    }
    let key = match headers.get(header::AUTHORIZATION) {
        Some(value) => bearer(value.to_str().unwrap_or_default()),
        None => headers
            .get("x-api-key")
            .and_then(|value| value.to_str().ok()),
    };
    let Some(key) = key else {
        return Err(ApiError::unauthorized(
            "an API key is needed: Authorization: Bearer KEY",
        ));
    };
    // compare with all keys, even after a match, and each in constant time
    let fits = |known: &&String| bool::from(known.as_bytes().ct_eq(key.as_bytes()));
    let fitting: Vec<&String> = options.keys.iter().filter(fits).collect();
    match fitting.first() {
        None => Err(ApiError::unauthorized("the API key is not valid")),
        Some(key) => Ok(Caller {
            key: (options.keys.len() > 1).then(|| (*key).clone()),
            has_helper,
        }),
    }
}

/// Returns the key after `Bearer`, whose case does not matter.
fn bearer(value: &str) -> Option<&str> {
    let (scheme, key) = value.split_once(' ')?;
    scheme.eq_ignore_ascii_case("bearer").then(|| key.trim())
}

/// Without a key, anything in a browser on this machine could use the server, including the page of
/// any site: only the server's own page may, and only under a host name of this machine.
///
/// # Errors
/// If the request comes from another site's page, or under a host name that anyone could own.
pub(crate) fn check_origin(options: &Options, headers: &HeaderMap) -> Result<(), ApiError> {
    let host = headers
        .get(header::HOST)
        .and_then(|host| host.to_str().ok());
    if let Some(origin) = headers.get(header::ORIGIN) {
        let origin = origin.to_str().unwrap_or_default();
        let is_own = origin.split_once("://").map(|(_, rest)| rest) == host;
        if !is_own && !is_allowed(options, origin) {
            let message = format!(
                "pages of {} may not use this server: expected the server's own page, or a site \
                 that its options allow (cors-origin)",
                shown(origin)
            );
            return Err(ApiError::forbidden(message));
        }
    }
    if !options.keys.is_empty() || !options.is_local {
        return Ok(());
    }
    let Some(host) = host else {
        return Ok(());
    };
    let name = name_of(host);
    let is_address = name.parse::<IpAddr>().is_ok();
    let allowed = ["localhost"].into_iter().chain(hosts(&options.host));
    let mut allowed = allowed.chain(options.allowed_hosts.iter().map(String::as_str));
    if is_address || allowed.any(|own| own == "*" || own.eq_ignore_ascii_case(name)) {
        return Ok(());
    }
    Err(ApiError::forbidden(format!(
        "host {}: expected an address of this machine, localhost, or a name that the server's \
         options allow (allow-host)",
        shown(host)
    )))
}

/// Returns whether the options allow pages of an origin.
pub(crate) fn is_allowed(options: &Options, origin: &str) -> bool {
    let host = origin.split_once("://").map_or("", |(_, host)| host);
    let name = name_of(host);
    let is_here = name == "localhost" || name.parse::<IpAddr>().is_ok_and(|ip| ip.is_loopback());
    let allows = |allowed: &String| match allowed.as_str() {
        "*" => true,
        "localhost" => is_here,
        allowed => allowed == origin,
    };
    options.origins.iter().any(allows)
}

/// Strips port and brackets from a host.
fn name_of(host: &str) -> &str {
    if let Some(rest) = host.strip_prefix('[') {
        return rest.split_once(']').map_or("", |(name, _)| name);
    }
    match host.rsplit_once(':') {
        Some((name, port)) if port.bytes().all(|byte| byte.is_ascii_digit()) => name,
        _ => host,
    }
}
