//! The web page at `/`: the files of `src/server/page`, embedded as they are. They contact only
//! their own server, and their policy allows nothing else.
//!
//! All files but two are under a path with their common hash, and may be kept for good by browsers;
//! `/` and the manifest name that path, and are asked for again each time. Every text is also kept
//! compressed, once it was asked for.

use std::collections::BTreeMap;
use std::io::Write;
use std::sync::OnceLock;

use axum::body::{Body, Bytes};
use axum::http::{HeaderMap, HeaderValue, Response, StatusCode, header};
use flate2::Compression;
use flate2::write::GzEncoder;
use sha2::{Digest, Sha256};

use crate::error::ApiError;

/// Name of a file and its contents.
type File = (&'static str, &'static [u8]);

macro_rules! files {
    ($($name:literal)*) => {
        [$(($name, include_bytes!(concat!("page/", $name)))),*]
    };
}

const INDEX: &str = include_str!("page/index.html");
const MANIFEST: &str = include_str!("page/manifest.webmanifest");

const FILES: &[File] = &files! {
    "attachments.js" "base.css" "chats.js" "code.js" "composer.js" "conversation.js" "database.js"
    "dom.js" "editor.js" "facts.js" "format.js" "icon-192.png" "icon-512.png" "icon.svg" "images.js"
    "key.js" "keyboard.js" "layout.css" "lazy.js" "main.js" "markdown.css" "markdown.js" "math.js"
    "message.css" "message.js" "migrate.js" "model.js" "notice.js" "panels.js" "pdf.js"
    "pdf_fonts.js" "pdf_reader.js" "plain_text.js" "pool.js" "popup.js" "request.js" "run.js"
    "sanitize.js" "scroll.js" "server.js" "settings.js" "sidebar.js" "state.js" "storage.js"
    "strip.js" "tabs.js" "tokens.js" "tools.js" "transfer.js" "tree.js" "vendor/Temml.woff2"
    "vendor/highlight.js" "vendor/marked.js" "vendor/purify.js" "vendor/temml.css" "vendor/temml.js"
};

/// Licences of the libraries in `vendor`.
const LICENCES: &[File] = &files! {
    "vendor/highlight.LICENSE" "vendor/marked.LICENSE" "vendor/purify.LICENSE"
    "vendor/temml.LICENSE"
};

/// File that has all licences.
const ALL_LICENCES: &str = "vendor/licenses.txt";

/// Scripts that are loaded only when a message or an attached file needs them.
const LAZY: [&str; 5] = [
    "pdf.js",
    "pdf_fonts.js",
    "pdf_reader.js",
    "vendor/highlight.js",
    "vendor/temml.js",
];

const POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self'; \
    img-src 'self' data: blob:; font-src 'self'; connect-src 'self'; manifest-src 'self'; \
    base-uri 'none'; form-action 'none'; frame-ancestors 'none'; \
    require-trusted-types-for 'script'; trusted-types dompurify octavo";

/// A file as it is sent.
struct Served {
    plain: Bytes,
    gzip: OnceLock<Bytes>,
    kind: &'static str,
    etag: HeaderValue,
}

impl Served {
    fn new(name: &str, bytes: Bytes) -> Served {
        let etag = HeaderValue::try_from(format!("\"{}\"", hash_of([&*bytes])));
        Served {
            plain: bytes,
            gzip: OnceLock::new(),
            kind: kind_of(name),
            etag: etag.unwrap_or_else(|_| HeaderValue::from_static("\"\"")),
        }
    }

    /// Returns the compressed file, or none where that is not smaller.
    fn compressed(&self) -> Option<&Bytes> {
        let gzip = self.gzip.get_or_init(|| {
            let mut encoder = GzEncoder::new(Vec::new(), Compression::best());
            // writing into memory does not fail
            let _ = encoder.write_all(&self.plain);
            encoder.finish().unwrap_or_default().into()
        });
        Some(gzip).filter(|gzip| !gzip.is_empty() && gzip.len() < self.plain.len())
    }

    /// Returns the file, or 304 if the client has it.
    fn response(&self, asked: &HeaderMap, cache: &'static str) -> Response<Body> {
        let mut response = Response::new(Body::empty());
        let headers = response.headers_mut();
        let mut set = |name, value| headers.insert(name, HeaderValue::from_static(value));
        set(header::CONTENT_TYPE, self.kind);
        set(header::CONTENT_SECURITY_POLICY, POLICY);
        set(header::X_CONTENT_TYPE_OPTIONS, "nosniff");
        set(header::REFERRER_POLICY, "no-referrer");
        set(header::CACHE_CONTROL, cache);
        set(header::VARY, "accept-encoding");
        headers.insert(header::ETAG, self.etag.clone());
        if lists(
            asked,
            &header::IF_NONE_MATCH,
            self.etag.to_str().unwrap_or_default(),
        ) {
            *response.status_mut() = StatusCode::NOT_MODIFIED;
            return response;
        }
        let takes_gzip = lists(asked, &header::ACCEPT_ENCODING, "gzip");
        let body = match self.compressed().filter(|_| takes_gzip) {
            Some(gzip) => {
                let gzipped = HeaderValue::from_static("gzip");
                headers.insert(header::CONTENT_ENCODING, gzipped);
                gzip
            }
            None => &self.plain,
        };
        *response.body_mut() = Body::from(body.clone());
        response
    }
}

/// Returns whether a header lists a value, and does not refuse it.
fn lists(headers: &HeaderMap, name: &header::HeaderName, wanted: &str) -> bool {
    let values = headers.get_all(name).iter();
    let mut listed = values.filter_map(|value| value.to_str().ok());
    listed.any(|value| {
        value.split(',').any(|one| {
            let (one, quality) = one.split_once(';').unwrap_or((one, ""));
            // proxies that compress make a weak tag of ours
            let one = one.trim().trim_start_matches("W/");
            let quality = quality.trim().trim_start_matches("q=");
            one == wanted && quality.parse() != Ok(0.0)
        })
    })
}

/// Returns the content type of a file.
fn kind_of(name: &str) -> &'static str {
    match name.rsplit_once('.').map_or("", |(_, ending)| ending) {
        "html" => "text/html; charset=utf-8",
        "js" => "text/javascript; charset=utf-8",
        "css" => "text/css; charset=utf-8",
        "svg" => "image/svg+xml",
        "png" => "image/png",
        "woff2" => "font/woff2",
        "webmanifest" => "application/manifest+json",
        _ => "text/plain; charset=utf-8",
    }
}

/// Returns the first half of a SHA-256 hash, in hexadecimal digits.
fn hash_of<'a>(parts: impl IntoIterator<Item = &'a [u8]>) -> String {
    let mut hash = Sha256::new();
    for part in parts {
        hash.update(part.len().to_le_bytes());
        hash.update(part);
    }
    let digest = hash.finalize();
    digest[..16]
        .iter()
        .map(|byte| format!("{byte:02x}"))
        .collect()
}

/// The page's files, ready to be sent.
struct Site {
    /// Common hash of the files, which is a part of their path.
    version: String,
    files: BTreeMap<&'static str, Served>,
    index: Served,
    manifest: Served,
}

fn site() -> &'static Site {
    static SITE: OnceLock<Site> = OnceLock::new();
    SITE.get_or_init(|| {
        let version = hash_of(FILES.iter().map(|(_, bytes)| *bytes));
        let named = |text: &str| text.replace("page/VERSION/", &format!("page/{version}/"));
        let files = FILES
            .iter()
            .map(|(name, bytes)| (*name, Served::new(name, Bytes::from_static(bytes))));
        let mut files: BTreeMap<_, _> = files.collect();
        let licences = Served::new(ALL_LICENCES, licences().into());
        files.insert(ALL_LICENCES, licences);
        let index = named(&INDEX.replace("<!-- MODULES -->\n", &preloads()));
        Site {
            files,
            index: Served::new("index.html", index.into()),
            manifest: Served::new("manifest.webmanifest", named(MANIFEST).into()),
            version,
        }
    })
}

/// Returns the links that have a browser load all modules at once, and not one after the other.
fn preloads() -> String {
    let modules = FILES.iter().map(|(name, _)| *name);
    let modules = modules.filter(|name| name.ends_with(".js") && !LAZY.contains(name));
    let link = |name| format!("<link rel=\"modulepreload\" href=\"page/VERSION/{name}\">\n");
    modules.map(link).collect()
}

/// Returns the licences of all libraries, one after the other.
fn licences() -> String {
    let texts = LICENCES.iter().map(|(name, bytes)| {
        let library = name.trim_start_matches("vendor/");
        let library = library.trim_end_matches(".LICENSE");
        format!("{library}\n\n{}\n", String::from_utf8_lossy(bytes))
    });
    texts.collect::<Vec<_>>().join("\n")
}

/// Returns the page.
pub(crate) fn index(asked: &HeaderMap) -> Response<Body> {
    site().index.response(asked, "no-cache")
}

/// Returns the manifest by which browsers install the page as an app.
pub(crate) fn manifest(asked: &HeaderMap) -> Response<Body> {
    site().manifest.response(asked, "no-cache")
}

/// Returns a file of the page.
///
/// # Errors
/// If there is no such file, or the version is another program's.
pub(crate) fn file(
    version: &str,
    name: &str,
    asked: &HeaderMap,
) -> Result<Response<Body>, ApiError> {
    let site = site();
    let file = site.files.get(name).filter(|_| version == site.version);
    let file = file.ok_or_else(|| ApiError::not_found("there is no such file of the page"))?;
    Ok(file.response(asked, "public, max-age=31536000, immutable"))
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;
    use std::path::Path;

    use super::*;

    /// Returns the names of all files of a folder and those below it.
    fn found(folder: &Path, before: &str, names: &mut BTreeSet<String>) {
        for entry in std::fs::read_dir(folder).expect("a readable folder") {
            let entry = entry.expect("a readable folder");
            let name = format!("{before}{}", entry.file_name().to_string_lossy());
            match entry.path().is_dir() {
                true => found(&entry.path(), &format!("{name}/"), names),
                false => drop(names.insert(name)),
            }
        }
    }

    #[test]
    fn every_file_is_embedded() {
        let folder = Path::new(env!("CARGO_MANIFEST_DIR")).join("page");
        let mut names = BTreeSet::new();
        found(&folder, "", &mut names);
        let embedded = FILES.iter().chain(LICENCES).map(|(name, _)| *name);
        let embedded = embedded.chain(["index.html", "manifest.webmanifest"]);
        let embedded: BTreeSet<String> = embedded.map(str::to_owned).collect();
        assert_eq!(embedded, names);
        // every library comes with its licence
        for name in &names {
            let library = name
                .strip_prefix("vendor/")
                .filter(|_| name.ends_with(".js"));
            let licence = library.map(|name| name.replace(".js", ".LICENSE"));
            let has_licence = |licence| embedded.contains(&format!("vendor/{licence}"));
            assert!(licence.is_none_or(has_licence), "{name}");
        }
    }

    #[test]
    fn our_own_files_ask_nobody_else_and_make_no_markup() {
        let own = FILES
            .iter()
            .filter(|(name, _)| !name.starts_with("vendor/"));
        let texts = own.filter_map(|(name, bytes)| Some((*name, str::from_utf8(bytes).ok()?)));
        for (name, text) in texts.chain([("index.html", INDEX), ("manifest", MANIFEST)]) {
            // XML namespace names, which are never fetched
            let text = text.replace("http://www.w3.org/", "");
            // an address starting with a slash would leave the page's path prefix
            for elsewhere in [
                "http://",
                "https://",
                "@import",
                "innerHTML",
                "outerHTML",
                "insertAdjacentHTML",
                "document.write",
                "ask(\"/",
                "src=\"/",
                "href=\"/",
                " style=\"",
                " onclick=",
            ] {
                // the addresses that links may have, and styles that are taken apart
                let is_known =
                    name == "sanitize.js" && (elsewhere == "https://" || elsewhere == " style=\"");
                assert!(is_known || !text.contains(elsewhere), "{name}: {elsewhere}");
            }
        }
        assert_eq!(INDEX.matches("<script").count(), 1);
        assert_eq!(INDEX.matches("<style").count(), 0);
    }

    #[test]
    fn the_first_load_is_small() {
        let site = site();
        let size = |name: &str, served: &Served| {
            let gzip = served.compressed().map_or(served.plain.len(), Bytes::len);
            eprintln!("{name}: {} bytes, {gzip} compressed", served.plain.len());
            gzip
        };
        let is_first = |name: &str| {
            let is_code = name.ends_with(".js") || name.ends_with(".css");
            is_code && !LAZY.contains(&name) && name != "vendor/temml.css"
        };
        let all = site
            .files
            .iter()
            .map(|(name, served)| (name, size(name, served)));
        let (mut first, mut rest) = (size("index.html", &site.index), 0);
        for (name, bytes) in all {
            match is_first(name) {
                true => first += bytes,
                false => rest += bytes,
            }
        }
        eprintln!("first load: {first} bytes, later: {rest}");
        assert!(first < 100_000, "{first}");
        assert!(first + rest < 220_000, "{rest}");
    }

    #[test]
    fn encodings_and_tags_are_compared() {
        let headers = |name: header::HeaderName, value: &'static str| {
            HeaderMap::from_iter([(name, HeaderValue::from_static(value))])
        };
        let accepts = |value| {
            let headers = headers(header::ACCEPT_ENCODING, value);
            lists(&headers, &header::ACCEPT_ENCODING, "gzip")
        };
        assert!(accepts("gzip") && accepts("br, gzip;q=0.5") && accepts("deflate,gzip"));
        assert!(!accepts("br") && !accepts("gzip;q=0") && !accepts("x-gzip"));
        let etag = site().index.etag.to_str().expect("digits").to_owned();
        let asked = HeaderMap::from_iter([(
            header::IF_NONE_MATCH,
            HeaderValue::try_from(format!("\"a\", W/{etag}")).expect("it is valid"),
        )]);
        assert_eq!(index(&asked).status(), StatusCode::NOT_MODIFIED);
        assert_eq!(index(&HeaderMap::new()).status(), StatusCode::OK);
        assert!(file(&site().version, "main.js", &asked).is_ok());
        assert!(file(&site().version, "../page.rs", &asked).is_err());
        assert!(file("0", "main.js", &asked).is_err());
    }
}
