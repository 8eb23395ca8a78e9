//! Texts on the page: Markdown, tables, math, code, and what injected markup does, which is
//! nothing.

use std::io::Read;

use octavo_server::Options;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::client::{Server, read, small};

/// Keeps a chat with these messages, and opens it.
pub(crate) fn put(browser: &Browser, messages: &Value) {
    let script = format!(
        "const name = newName(); \
         const chat = soundChat({{ messages: {messages} }}); \
         return putChats([{{ name, ...chat, time: Date.now(), owner: '' }}]) \
           .then(() => openChat(name)).then(() => true);"
    );
    browser.run(&script);
}

/// Opens a chat with one answer.
fn answered(browser: &Browser, text: &str) {
    let messages = json!([
        { "role": "user", "content": "Show it." },
        { "role": "assistant", "content": text, "reasoning": text },
    ]);
    put(browser, &messages);
}

pub(crate) const FORMATTED: &str = r"
# Sorting, *in short*

It costs $5, not $6, and takes $O(n \log n)$ or \(n^2\). A link: [here](https://example.org/a).

| algorithm | worst |
|:--|--:|
| quicksort | $n^2$ |
| mergesort | `n log n` |

$$ \int_0^\infty e^{-x^2}\,dx = \frac{\sqrt{\pi}}{2} $$

```python
def half(x: int) -> float:
    return x / 2  # not an int
```

1. one
2. two
   - nested

- [x] done

> quoted

H<sub>2</sub>O, <em>so</em>.
";

fn has(browser: &Browser, selector: &str, text: &str) {
    let script = format!(
        "return [...document.querySelectorAll('.body {selector}')] \
           .some((one) => one.textContent.includes('{text}'));"
    );
    browser.wait(&script);
}

#[test]
fn markdown_tables_math_and_code_are_formatted() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let loaded = "return performance.getEntriesByType('resource').map(({ name }) => name) \
        .filter((name) => /temml|highlight/.test(name)).length;";
    assert_eq!(browser.run(loaded), json!(0), "nothing needs them yet");
    answered(&browser, FORMATTED);
    for (selector, text) in [
        ("h1", "Sorting, in short"),
        ("h1 em", "in short"),
        ("p", "It costs $5, not $6"),
        ("p math", "log"),
        (".math-inline math msup", "n2"),
        ("td .math-inline math", "n2"),
        ("td[align=right] code", "n log n"),
        (".math-block math mfrac", "π"),
        ("pre .hljs-keyword", "def"),
        ("pre .hljs-comment", "# not an int"),
        ("ol > li", "one"),
        ("ol ul > li", "nested"),
        ("li .task", "☑"),
        ("blockquote", "quoted"),
        ("sub", "2"),
    ] {
        has(&browser, selector, text);
    }
    let link = "const link = document.querySelector('.body a'); \
        return [link.href, link.target, link.rel];";
    assert_eq!(
        browser.run(link),
        json!([
            "https://example.org/a",
            "_blank",
            "noopener noreferrer nofollow"
        ])
    );
    assert_eq!(
        browser.run("return document.querySelector('.body .code-head').dataset.language;"),
        json!("python")
    );
    // the button copies the code and nothing else
    browser.run("navigator.clipboard.writeText = async (text) => { window.copied = text; };");
    browser.click(".body [data-action=copy-code]");
    browser.wait(
        "return window.copied === 'def half(x: int) -> float:\\n    return x / 2  # not an int\\n' \
           || window.copied === 'def half(x: int) -> float:\\n    return x / 2  # not an int';",
    );
    // thoughts are folded, and not even made into elements until they are asked for
    assert_eq!(browser.count(".reasoning .md"), 0);
    browser.click(".thinking summary");
    browser.wait("return document.querySelector('.reasoning h1 em') !== null;");
    assert_eq!(browser.console(), json!([]));
}

/// Ways to have a browser run a script, to fetch something, or to look like a part of the page.
const HOSTILE: &str = r#"
<img src=x onerror="window.broken = 1"><script>window.broken = 2</script>
[a](javascript:window.broken=3) [b](data:text/html,<script>window.broken=4</script>)
![p](https://evil.invalid/x.png) ![q](javascript:window.broken=5) [v](vbscript:x)
[t](https://ok.invalid "a\" onmouseover=\"window.broken=6")
<https://ok.invalid/"onclick="window.broken=7>

<svg onload="window.broken=8"><a xlink:href="javascript:window.broken=9"><text>x</text></a></svg>

<iframe srcdoc="<script>parent.broken=10</script>"></iframe><style>body{display:none}</style>

<b onclick="window.broken=11" style="position:fixed">bold</b> <b>plain</b>

<math><mtext><table><mglyph><style><img src=x onerror=window.broken=12></style></mglyph></table>

$\href{javascript:window.broken=13}{x}$ $\text{<img src=x onerror=window.broken=14>}$
$\unicode{x}$ $\color{red}x$ $\includegraphics{https://evil.invalid/a.png}$ $\class{message}{y}$
$$\style{position:fixed;background:url(https://evil.invalid/a)}{x}$$ $\id{main}{y}$

```html" onmouseover="window.broken=15
<img src=x onerror=window.broken=16>
```

```js
"</span><img src=x onerror=window.broken=17>"
```

<div class="message" id="input"><form action=https://evil.invalid><button>go</button></form></div>
"#;

#[test]
fn injected_markup_does_nothing() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let messages = json!([
        { "role": "user", "content": HOSTILE, "files": [{ "name": HOSTILE, "text": HOSTILE }] },
        { "role": "assistant", "content": HOSTILE, "reasoning": HOSTILE, "note": HOSTILE,
          "calls": [{ "id": "a", "name": HOSTILE, "arguments": HOSTILE, "result": HOSTILE }],
          "failure": { "text": HOSTILE } },
    ]);
    put(&browser, &messages);
    browser.click(".thinking summary");
    browser.wait("return document.querySelector('.reasoning .hljs-string') !== null;");
    browser.wait("return document.querySelector('.body .math-inline math') !== null;");
    // what would load has failed, and what waits for the pointer has it
    browser.run(
        "for (const one of document.querySelectorAll('#messages *')) { \
           one.dispatchEvent(new MouseEvent('mouseover')); }",
    );
    std::thread::sleep(std::time::Duration::from_millis(300));
    assert_eq!(
        browser.run("return window.broken === undefined;"),
        json!(true)
    );
    for selector in [
        "img",
        "svg:not(.icon)",
        "iframe",
        "style",
        "script",
        "object",
        "input",
    ] {
        assert_eq!(
            browser.count(&format!("#messages {selector}")),
            0,
            "{selector}"
        );
    }
    assert_eq!(
        browser.count("#messages .md form, #messages .md .message"),
        0
    );
    let attributes = "return [...document.querySelectorAll('#messages *')] \
        .flatMap((one) => [...one.attributes]) \
        .filter(({ name, value }) => /^on|^id$/.test(name) || /script:|url\\(|fixed/.test(value)) \
        .filter(({ name }) => !/^(aria-label|title|data-language)$/.test(name)) \
        .map(({ name, value }) => `${name}=${value}`);";
    assert_eq!(browser.run(attributes), json!([]));
    let addresses = "return [...new Set([...document.querySelectorAll('#messages .md a[href]')] \
        .map((link) => new URL(link.href).protocol))];";
    assert_eq!(browser.run(addresses), json!(["https:"]));
    // no request has left for another host, and none was stopped by the policy
    let asked = "return performance.getEntriesByType('resource') \
        .filter(({ name }) => new URL(name).origin !== location.origin).length;";
    assert_eq!(browser.run(asked), json!(0));
    assert_eq!(browser.console(), json!([]));
    // the browser itself makes no markup from strings, and adds no other script
    let refused = "return [\
        () => { document.body.innerHTML = '<b>x</b>'; }, \
        () => { document.createElement('script').src = 'page/x.js'; }, \
        () => trustedTypes.createPolicy('mine', {}), \
      ].map((attempt) => { try { attempt(); return 'done'; } catch { return 'refused'; } });";
    assert_eq!(
        browser.run(refused),
        json!(["refused", "refused", "refused"])
    );
}

#[test]
fn the_page_comes_compressed_and_is_kept() {
    let server = Server::usual();
    let page = server.get("/").text;
    let (_, rest) = page.split_once("src=\"page/").expect("a script");
    let (version, _) = rest.split_once('/').expect("a version");
    let path = format!("/page/{version}/main.js");
    let plain = server.get(&path);
    assert_eq!(plain.status, 200);
    let head = plain.head.to_ascii_lowercase();
    for line in [
        "content-type: text/javascript; charset=utf-8",
        "cache-control: public, max-age=31536000, immutable",
        "x-content-type-options: nosniff",
        "vary: accept-encoding",
    ] {
        assert!(head.contains(line), "{line}: {head}");
    }
    assert!(!head.contains("content-encoding"), "{head}");
    let gzipped = bytes_of(&server, &path, "accept-encoding: gzip, br\r\n");
    let head = String::from_utf8_lossy(&gzipped[..gzipped.len().min(2000)]).to_ascii_lowercase();
    assert!(head.contains("content-encoding: gzip"), "{head}");
    assert!(gzipped.len() < plain.head.len() + plain.text.len());
    let etag = page_etag(&server.get("/").head);
    let again = read(server.send("GET", "/", &format!("if-none-match: {etag}\r\n"), b""));
    assert_eq!((again.status, again.text.as_str()), (304, ""));
    // another version's files are not there, nor is what is no file of the page
    for path in [
        "/page/0/main.js",
        &format!("/page/{version}/index.html"),
        &format!("/page/{version}/../page.rs"),
        &format!("/page/{version}/vendor"),
    ] {
        assert_eq!(server.get(path).status, 404, "{path}");
    }
    // installed as an app, it begins where it was installed, and its icons are there
    let manifest = server.get("/manifest.webmanifest").json();
    assert_eq!(manifest["start_url"], "./");
    for icon in manifest["icons"].as_array().expect("icons") {
        let path = icon["src"].as_str().expect("a path");
        let answer = bytes_of(&server, &format!("/{path}"), "");
        assert!(answer.starts_with(b"HTTP/1.1 200"), "{path}");
    }
    assert!(
        server
            .get(&format!("/page/{version}/vendor/licenses.txt"))
            .text
            .contains("MIT")
    );
    // no key is needed for any of it
    let options = Options {
        keys: vec!["secret".to_owned()],
        ..Options::default()
    };
    let locked = Server::new(small(), options);
    for path in ["/", "/manifest.webmanifest", &path] {
        assert_eq!(locked.get(path).status, 200, "{path}");
    }
    assert_eq!(locked.get("/v1/models").status, 401);
}

/// Returns a response with its head.
fn bytes_of(server: &Server, path: &str, headers: &str) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut stream = server.send("GET", path, headers, b"");
    stream.read_to_end(&mut bytes).expect("the answer");
    bytes
}

fn page_etag(head: &str) -> String {
    let line = head.lines().find_map(|line| line.strip_prefix("Etag: "));
    line.expect("a tag").to_owned()
}

#[test]
fn the_first_load_is_small_and_works_behind_a_prefix() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let options = Options {
        prefix: "/octavo".to_owned(),
        ..Options::default()
    };
    let server = Server::new(small(), options);
    browser.open_at(&server, "/octavo/");
    browser.wait("return state.model !== null;");
    let size = browser.run(
        "return [...performance.getEntriesByType('navigation'), \
           ...performance.getEntriesByType('resource')] \
           .reduce((sum, { encodedBodySize }) => sum + encodedBodySize, 0);",
    );
    let size = size.as_u64().expect("a number");
    assert!((20_000..300_000).contains(&size), "{size} bytes");
    answered(&browser, FORMATTED);
    browser.wait("return document.querySelector('.body .math-inline math') !== null;");
    assert_eq!(browser.console(), json!([]));
}

#[test]
fn the_text_of_pdf_files_is_read() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    answered(
        &browser,
        "First *words* of it, \u{e9}t\u{e9}.\n\n1. one\n2. two",
    );
    browser.wait("return document.querySelector('.body em') !== null;");
    // the browser prints its own page, with fonts that it cuts down and names by numbers
    let printed = browser.post("/print", &json!({ "shrinkToFit": true }));
    browser.run(&format!(
        "const bytes = Uint8Array.from(atob({printed}), (one) => one.charCodeAt(0)); \
         return addFiles([new File([bytes], 'page.pdf')]).then(() => true);"
    ));
    let text = browser.run("return drafts.all[0]?.text;");
    let text = text.as_str().expect("a text");
    for expected in ["First words of it, \u{e9}t\u{e9}.\n", "one\n", "two\n"] {
        assert!(text.contains(expected), "{expected:?}: {text:?}");
    }
    // files that end early, or are no PDF file behind their first line, are refused in a line
    browser.run(&format!(
        "const bytes = Uint8Array.from(atob({printed}), (one) => one.charCodeAt(0)); \
         const files = [bytes.subarray(0, 300), ...['<<', '[[[(', '1 0 obj <</Type /Catalog \
           /Pages 1 0 R /Kids [1 0 R]>> endobj', '1 0 obj 1 0 R endobj trailer <</Encrypt 1>>'] \
           .map((text) => `%PDF-1.7 ${{text}}`)]; \
         return addFiles(files.map((one, at) => new File([one], `${{at}}.pdf`))) \
           .then(() => true);"
    ));
    browser.wait(
        "const said = document.querySelector('#notice').innerText; \
         return [0, 1, 2, 3].every((at) => said.includes(`${at}.pdf has no text`)) \
           && said.includes('4.pdf is encrypted');",
    );
    assert_eq!(browser.run("return drafts.all.length;"), json!(1));
    assert_eq!(browser.console(), json!([]));
}

#[test]
fn a_growing_answer_is_made_anew_only_at_its_end() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    // every block but the last stays the element that it was, while a text comes letter by letter
    let replaced = browser.run(&format!(
        "const text = {}; \
         const parent = document.createElement('div'); \
         const view = new MarkdownView(parent); \
         let replaced = 0; \
         for (let end = 1; end <= text.length; end++) {{ \
           const before = [...parent.children].slice(0, -1); \
           view.show(text.slice(0, end), end < text.length); \
           replaced += before.filter((one, at) => parent.children[at] !== one).length; \
         }} \
         return [replaced, parent.children.length];",
        json!("# One\n\nTwo *three*.\n\n- a\n- b\n\n```js\nx\n```\n\nFour, $x$ and `y`.\n")
    ));
    assert_eq!(replaced, json!([0, 5]));
}
