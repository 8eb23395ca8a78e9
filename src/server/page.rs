//! The web page at `/`: one file, which contacts only its own server.

use std::sync::OnceLock;

use axum::body::Body;
use axum::http::{Response, header};
use base64::Engine as _;
use base64::prelude::BASE64_STANDARD;
use sha2::{Digest, Sha256};

const PAGE: &str = include_str!("page.html");

/// Returns the page, with a content security policy that allows only its own script and style.
pub(crate) fn response() -> Response<Body> {
    static POLICY: OnceLock<String> = OnceLock::new();
    let policy = POLICY.get_or_init(policy);
    let mut response = Response::new(Body::from(PAGE));
    let headers = response.headers_mut();
    let html = header::HeaderValue::from_static("text/html; charset=utf-8");
    headers.insert(header::CONTENT_TYPE, html);
    if let Ok(policy) = policy.parse() {
        headers.insert(header::CONTENT_SECURITY_POLICY, policy);
    }
    let nosniff = header::HeaderValue::from_static("nosniff");
    headers.insert(header::X_CONTENT_TYPE_OPTIONS, nosniff);
    let no_referrer = header::HeaderValue::from_static("no-referrer");
    headers.insert(header::REFERRER_POLICY, no_referrer);
    headers.insert(
        header::CACHE_CONTROL,
        header::HeaderValue::from_static("no-cache"),
    );
    response
}

fn policy() -> String {
    let hash = |tag: &str| {
        let digest = Sha256::digest(between(PAGE, tag).as_bytes());
        format!("'sha256-{}'", BASE64_STANDARD.encode(digest))
    };
    format!(
        "default-src 'none'; connect-src 'self'; img-src data:; base-uri 'none'; \
         form-action 'none'; frame-ancestors 'none'; script-src {}; style-src {}",
        hash("script"),
        hash("style")
    )
}

/// Returns the contents of the only element with this tag.
fn between<'a>(page: &'a str, tag: &str) -> &'a str {
    let open = format!("<{tag}>");
    let close = format!("</{tag}>");
    let after = page.split_once(&open).map_or("", |(_, rest)| rest);
    after.split_once(&close).map_or("", |(inside, _)| inside)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_page_has_one_script_and_one_style_and_asks_nobody() {
        for tag in ["script", "style"] {
            assert_eq!(PAGE.matches(&format!("<{tag}")).count(), 1, "{tag}");
            assert!(!between(PAGE, tag).is_empty(), "{tag}");
        }
        // XML namespace names, which are never fetched
        let page = PAGE.replace("http://www.w3.org/", "");
        // an address starting with a slash would leave the page's path prefix
        for elsewhere in [
            "http://",
            "https://",
            "src=",
            "@import",
            "innerHTML",
            "ask(\"/",
        ] {
            assert!(!page.contains(elsewhere), "{elsewhere}");
        }
    }
}
