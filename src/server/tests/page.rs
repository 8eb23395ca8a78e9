//! The page in a browser.

use octavo_engine::EngineOptions;
use octavo_server::Options;
use serde_json::{Value, json};

use crate::browser::Browser;
use crate::client::{Server, small};
use crate::images::{asked, image, image_path, seeing, text};

/// The Enter key.
pub(crate) const ENTER: &str = "\u{e007}";

pub(crate) const ENDED: &str = "const stop = document.querySelector('#stop'); \
    return stop.hidden || getComputedStyle(stop).display === 'none';";

#[test]
fn the_page_chats_stops_and_shows_probabilities() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    browser.wait("return document.querySelector('#model').textContent.includes('octavo');");
    browser.run(LISTEN);
    browser.click("#probabilities");

    browser.write("#input", &format!("1+1={ENTER}"));
    browser.wait("return document.querySelectorAll('.message[data-role=assistant]').length === 1;");
    browser.wait(ENDED);
    let answer = browser
        .run("return document.querySelector('.message[data-role=assistant] .body').textContent;");
    assert!(
        answer.as_str().is_some_and(|text| text.contains('2')),
        "{answer}"
    );
    let tokens = browser.run("return document.querySelectorAll('.token').length;");
    assert!(
        tokens.as_u64() > Some(0),
        "every token can be asked how probable it was"
    );
    browser.click(".token");
    browser.wait("return document.querySelector('#popup').innerText.includes('%');");
    assert_eq!(
        browser.run("return window.asked[0].top_logprobs;"),
        json!(5)
    );

    // without them, the answer is shown as Markdown, and a request does not ask for them
    browser.click("#probabilities");
    assert_eq!(browser.count(".token"), 0);
    assert_eq!(browser.count(".message .md"), 1);

    // typed HTML is shown as text
    let script = "<script>window.broken = true</script><img src=x onerror='window.broken = true'>";
    browser.write("#input", &format!("{script}{ENTER}"));
    browser.wait(ENDED);
    assert_eq!(
        browser.run("return window.broken === undefined;"),
        json!(true)
    );
    assert_eq!(
        browser.run("return document.querySelectorAll('#messages img').length;"),
        json!(0)
    );
    browser.wait("return window.asked.length === 2;");
    assert_eq!(
        browser.run("return window.asked[1].logprobs === undefined;"),
        json!(true)
    );
}

#[test]
fn stop_ends_the_work_on_the_server_too() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let engine = EngineOptions {
        ctx: Some(50_000),
        ..small()
    };
    let server = Server::new(engine, Options::default());
    browser.open(&server);
    // this answer ends only at the context length: longer than a browser needs
    browser.run(
        "window.fetch = new Proxy(window.fetch, { apply(fetch, self, [url, init]) { \
           if (init && init.body) { \
             init.body = JSON.stringify({ ...JSON.parse(init.body), ignore_eos: true }); } \
           const answer = fetch.call(self, url, init); \
           if (init && init.body) { answer.then(() => { window.answered = true; }); } \
           return answer; } });",
    );
    // the small model would finish before a driver could click; a request that the server has not
    // got yet would not count as aborted
    browser.run(
        "const stop = document.querySelector('#stop'); \
         setInterval(() => { \
           if (window.answered && stop.offsetParent !== null) stop.click(); }, 1);",
    );
    browser.write("#input", &format!("1+1={ENTER}"));
    let note = "const note = document.querySelector('.message:last-child .note'); \
        return note !== null && note.textContent.includes('Stopped');";
    browser.wait(note);
    server.idle();
    let metrics = server.get("/metrics").text;
    let aborted = |line: &&str| line.starts_with("octavo_requests_aborted_total");
    let line = metrics.lines().find(aborted).expect("a count");
    assert!(line.ends_with(" 1"), "{line}");
}

#[test]
fn nothing_is_wider_than_the_window_and_nothing_is_complained_of() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    browser.write(
        "#input",
        &format!("What is 3+4? What is 3+4? What is 3+4?{ENTER}"),
    );
    browser.wait(ENDED);
    fits(&browser, &[1280, 768, 500]);
    assert_eq!(browser.console(), json!([]));
}

/// Checks that the page is not wider than windows of these widths.
fn fits(browser: &Browser, widths: &[u32]) {
    for width in widths {
        browser.resize(*width);
        let fits = "return document.documentElement.scrollWidth <= window.innerWidth;";
        assert_eq!(browser.run(fits), json!(true), "{width} pixels");
    }
}

/// Script that records the page's requests in `window.asked`.
pub(crate) const LISTEN: &str = "window.asked = []; \
    window.fetch = new Proxy(window.fetch, { apply(fetch, self, [url, init]) { \
      if (init && init.body) window.asked.push(JSON.parse(init.body)); \
      return fetch.call(self, url, init); } });";

/// Returns the last user message that the page has sent.
fn sent(browser: &Browser) -> Value {
    browser.run(
        "const users = window.asked.at(-1).messages.filter(({ role }) => role === 'user'); \
         return users.at(-1).content;",
    )
}

fn choose(browser: &Browser, name: &str) {
    let before = browser.count("#drafts .image");
    let path = image_path(name).display().to_string();
    browser.write("#files", &path);
    browser.wait(&format!(
        "return document.querySelectorAll('#drafts .image').length === {};",
        before + 1
    ));
}

/// Passes files to the page as a drop or paste event.
fn hand(browser: &Browser, event: &str, files: &str) {
    let made = match event {
        "drop" => "new DragEvent('drop', { dataTransfer: data, bubbles: true, cancelable: true })",
        _ => {
            "new ClipboardEvent('paste', { clipboardData: data, bubbles: true, cancelable: true })"
        }
    };
    browser.run(&format!(
        "const data = new DataTransfer(); \
         for (const [name, type, bytes] of {files}) {{ \
           data.items.add(new File([Uint8Array.from(bytes)], name, {{ type }})); }} \
         document.querySelector('#input').dispatchEvent({made});"
    ));
}

fn notice(browser: &Browser, expected: &str) {
    browser.wait(&format!(
        "return document.querySelector('#notice').innerText.includes('{expected}');"
    ));
}

/// Chooses three images, and removes them again.
fn choose_and_remove(browser: &Browser) {
    for name in ["wide", "photo", "tall"] {
        choose(browser, name);
    }
    // the second is removed by its button, the first by a key
    browser.click("#drafts .image:nth-child(2) .remove");
    assert_eq!(browser.count("#drafts .image"), 2);
    let focus = "return document.activeElement.getAttribute('aria-label');";
    assert_eq!(browser.run(focus), json!("Remove tall.png"));
    browser.write("#drafts .image:nth-child(1) .remove", "\u{e017}");
    assert_eq!(browser.count("#drafts .image"), 1);
    browser.write("#drafts .image:nth-child(1) .remove", "\u{e017}");
    assert_eq!(
        browser.run("return document.activeElement.id;"),
        json!("input")
    );
}

#[test]
fn images_are_sent_kept_and_removed() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let Some(server) = seeing(Options::default()) else {
        return;
    };
    browser.open(&server);
    browser.wait("return state.limits?.images > 0;");
    browser.run(LISTEN);
    browser.run(
        "const set = (name, value) => { const input = document.querySelector( \
           `[data-field=${name}]`); input.value = value; \
           input.dispatchEvent(new Event('input', { bubbles: true })); }; \
         set('temperature', 0); set('max_tokens', 8);",
    );
    choose_and_remove(&browser);

    // the file is sent unchanged, and the answer is that of any other client
    choose(&browser, "wide");
    let parts = vec![image("wide"), text("What is this?")];
    browser.write("#input", &format!("What is this?{ENTER}"));
    browser.wait(ENDED);
    assert_eq!(sent(&browser), json!(parts));
    let other = server.post("/v1/chat/completions", &asked(parts.clone()));
    assert_eq!(
        browser.run("return state.messages.at(-1).content;"),
        other.json()["choices"][0]["message"]["content"],
    );
    assert_eq!(browser.count("#drafts .image"), 0);

    // also after leaving the page: the image is still there
    browser.click("[data-action=regenerate]");
    browser.wait(ENDED);
    assert_eq!(sent(&browser), json!(parts));
    browser.open(&server);
    browser.wait("return document.querySelector('.message .image img') !== null;");
    browser.run(LISTEN);
    browser.click("[data-action=edit]");
    browser.write(".editor textarea", &format!(" And this?{ENTER}"));
    browser.wait(ENDED);
    let edited = vec![image("wide"), text("What is this? And this?")];
    assert_eq!(sent(&browser), json!(edited));

    // the image viewer, which Escape closes
    browser.click(".message .image .open");
    browser.wait("return document.querySelector('#viewer').open;");
    browser.write("#viewer", "\u{e00c}");
    browser.wait("return !document.querySelector('#viewer').open;");

    // without the image, only the text is sent, as a string
    browser.click("[data-action=edit]");
    browser.click(".editor .remove");
    browser.write(".editor textarea", ENTER);
    browser.wait(ENDED);
    assert_eq!(sent(&browser), json!("What is this? And this?"));

    // a chat that is deleted takes its images with it, once that cannot be undone
    let left = "return askDatabase('readonly', (store) => store.getAllKeys()) \
        .then((keys) => keys.length);";
    browser.wait("return chats.saving === 0;");
    assert_eq!(browser.run(left), json!(1));
    browser.click("[data-action=remove]");
    browser.wait("return state.messages.length === 0;");
    notice(&browser, "The chat was deleted.");
    assert_eq!(browser.run(left), json!(0));
    browser.click("#notice button");
    browser.wait("return state.messages.length === 2;");
    browser.wait(&left.replace("keys.length", "keys.length === 1"));
    // it is shown in the version of the question that has it
    browser.click("[data-action=version-before]");
    browser.wait("return document.querySelector('.message .image img') !== null;");
    browser.click("[data-action=remove]");
    browser.wait("return state.messages.length === 0;");
    browser.open(&server);
    browser.wait(&left.replace("keys.length", "keys.length === 0"));
    assert_eq!(browser.console(), json!([]));
}

#[test]
fn images_that_cannot_be_sent_are_refused_in_a_line() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let options = Options {
        max_body: 64 << 10,
        ..Options::default()
    };
    let Some(server) = seeing(options) else {
        return;
    };
    browser.open(&server);
    browser.wait("return state.limits?.images > 0;");
    for (event, files, expected) in [
        (
            "drop",
            "[['a.tiff', 'image/tiff', [1]]]",
            "a.tiff is not a PNG",
        ),
        (
            "drop",
            "[['a.png', 'image/png', [1, 2]]]",
            "a.png cannot be read",
        ),
        (
            "paste",
            "[['b.bin', 'text/plain', [255, 254]]]",
            "b.bin is neither",
        ),
        (
            "drop",
            "[['c.pdf', 'application/pdf', [37, 80, 68, 70, 45]]]",
            "c.pdf has no text",
        ),
        (
            "paste",
            "[['large.png', 'image/png', new Array(50000).fill(1)]]",
            "large.png is too large",
        ),
    ] {
        hand(&browser, event, files);
        notice(&browser, expected);
    }
    assert_eq!(browser.count("#drafts .image"), 0);
    // a valid image is accepted beside an invalid one
    let good = std::fs::read(image_path("wide")).expect("it is there");
    let files = format!("[['a.tiff', 'image/tiff', [1]], ['wide.png', 'image/png', {good:?}]]");
    browser.run("hideNotice();");
    hand(&browser, "drop", &files);
    notice(&browser, "a.tiff is not a PNG");
    assert_eq!(browser.count("#drafts .image"), 1);
    fits(&browser, &[1280, 500]);
}

#[test]
fn a_model_of_texts_takes_no_images() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    browser.wait("return state.model !== null;");
    hand(&browser, "drop", "[['a.png', 'image/png', [1]]]");
    notice(&browser, "takes text only");
    assert_eq!(browser.count("#drafts .image"), 0);
    // a text file is put before the question, between fences that are longer than its own
    browser.run(LISTEN);
    let fenced: Vec<u8> = b"a\r\n```\n".to_vec();
    let files = format!("[['a.md', 'text/markdown', {fenced:?}]]");
    hand(&browser, "drop", &files);
    browser.wait("return document.querySelectorAll('#drafts .file').length === 1;");
    browser.write("#input", &format!("Why?{ENTER}"));
    browser.wait(ENDED);
    assert_eq!(
        sent(&browser),
        json!("File a.md:\n````\na\n```\n````\n\nWhy?")
    );
    assert_eq!(browser.count("#messages .file"), 1);
}
