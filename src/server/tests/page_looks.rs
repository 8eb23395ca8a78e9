//! The page on wide and narrow screens, light and dark, by keyboard, and for everyone (axe).

use std::path::PathBuf;

use octavo_fixtures::{Lacks, skip};
use serde_json::json;

use crate::browser::Browser;
use crate::client::Server;
use crate::page_text::{FORMATTED, put};

/// The control and shift keys.
const CONTROL: char = '\u{e009}';
const SHIFT: char = '\u{e008}';
const ESCAPE: &str = "\u{e00c}";

fn put_all_kinds(browser: &Browser) {
    let messages = json!([
        { "role": "user", "content": "Show it.", "files": [{ "name": "a.txt", "text": "a" }] },
        { "role": "assistant", "content": FORMATTED, "reasoning": "*Hm.*", "note": "Edited.",
          "calls": [{ "id": "a", "name": "add", "arguments": "{}", "result": "2" }],
          "facts": { "generated": 3, "speed": 5, "firstMs": 3, "prompt": 9, "cached": 0,
            "thinkingMs": 1200 } },
        { "role": "user", "content": "Again." },
        { "role": "assistant", "content": "", "failure": { "text": "The server is busy." } },
    ]);
    put(browser, &messages);
    browser.wait("return document.querySelector('.body .math-block math') !== null;");
    browser.wait("return document.querySelector('.body .hljs-keyword') !== null;");
}

#[test]
fn panels_lie_beside_the_chat_or_over_it() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    put_all_kinds(&browser);
    let fits = "return document.documentElement.scrollWidth <= window.innerWidth \
        && document.querySelector('#scroller').scrollWidth \
          <= document.querySelector('#scroller').clientWidth;";
    let is_seen = |id: &str| {
        browser.run(&format!(
            "return document.querySelector('{id}').getClientRects().length > 0;"
        )) == json!(true)
    };
    for (width, is_dark) in [
        (1280, false),
        (1280, true),
        (390, false),
        (390, true),
        (320, true),
    ] {
        browser.show_on(width, is_dark);
        browser.open(&server);
        assert_eq!(browser.run(fits), json!(true), "{width}");
        let paper = "return getComputedStyle(document.body).backgroundColor;";
        let expected = if is_dark {
            "rgb(23, 25, 27)"
        } else {
            "rgb(251, 250, 247)"
        };
        assert_eq!(browser.run(paper), json!(expected));
        let is_wide = width > 1000;
        assert_eq!(is_seen("#sidebar"), is_wide, "{width}");
        assert!(!is_seen("#settings"), "{width}");
        browser.click("#panel-toggle");
        assert!(is_seen("#settings"), "{width}");
        assert_eq!(browser.run(fits), json!(true), "{width}, with settings");
        let is_inert = "return document.querySelector('main').inert;";
        assert_eq!(browser.run(is_inert), json!(!is_wide), "{width}");
        if is_wide {
            browser.click("#panel-close");
        } else {
            browser.press(ESCAPE);
            browser.click("#sidebar-toggle");
            assert!(is_seen("#sidebar"), "{width}");
            browser.press(ESCAPE);
            assert!(!is_seen("#sidebar"), "{width}");
        }
        assert!(!is_seen("#settings"), "{width}");
        assert_eq!(browser.run(is_inert), json!(false), "{width}");
    }
    assert_eq!(browser.console(), json!([]));
}

#[test]
fn everything_can_be_done_by_keyboard() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let focus = "return document.activeElement.id;";
    assert_eq!(browser.run(focus), json!("input"));
    let control = |keys: &str| browser.press(&format!("{CONTROL}{keys}"));
    // a new line is no end
    browser.write("#input", "1+");
    browser.press(&format!("{SHIFT}\u{e007}"));
    browser.write("#input", "1=");
    assert_eq!(
        browser.run("return document.querySelector('#input').value;"),
        json!("1+\n1=")
    );
    browser.press("\u{e007}");
    browser.wait("return state.messages.length === 2 && !state.run;");
    // up edits the last question, and Escape leaves the editor
    browser.run("document.querySelector('#input').focus();");
    browser.press("\u{e013}");
    browser.wait("return document.activeElement.closest('.editor') !== null;");
    browser.press(ESCAPE);
    assert_eq!(browser.count(".editor"), 0);
    control("k");
    assert_eq!(browser.run(focus), json!("search"));
    control("b");
    assert_eq!(
        browser.run("return document.documentElement.dataset.sidebar;"),
        json!("closed")
    );
    control("b");
    control(",");
    assert_eq!(
        browser.run("return document.documentElement.dataset.panel;"),
        json!("open")
    );
    control(",");
    control("/");
    browser.wait("return document.querySelector('#shortcuts').open;");
    browser.press(ESCAPE);
    browser.wait("return !document.querySelector('#shortcuts').open;");
    control(&format!("{SHIFT}O"));
    browser.wait("return state.messages.length === 0;");
    assert_eq!(browser.run(focus), json!("input"));
    assert_eq!(browser.count(".chat-item"), 1, "the chat before is kept");
}

/// Returns the text of axe-core, which finds what keeps people out of a page.
fn axe() -> Option<String> {
    let path = std::env::var_os("OCTAVO_AXE").map(PathBuf::from);
    let Some(path) = path else {
        skip(
            Lacks::Browser,
            "OCTAVO_AXE names no axe.min.js (tools/get_axe.sh)",
        );
        return None;
    };
    let text = std::fs::read_to_string(&path);
    Some(text.unwrap_or_else(|error| panic!("{}: {error}", path.display())))
}

#[test]
fn axe_finds_nothing_wrong_with_the_page() {
    let Some(axe) = axe() else {
        return;
    };
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let check = |place: &str| {
        browser.run(&format!("{axe}; window.axe ??= axe;"));
        let found = browser.run(
            "return axe.run().then(({ violations }) => violations.map(({ id, nodes }) => \
               `${id}: ${nodes.map(({ html }) => html.slice(0, 200)).join(' ')}`));",
        );
        assert_eq!(found, json!([]), "{place}");
    };
    for (width, is_dark) in [(1280, false), (1280, true), (390, false), (390, true)] {
        let place = format!("{width} pixels, dark: {is_dark}");
        browser.show_on(width, is_dark);
        browser.run("newChat();");
        check(&format!("{place}, empty"));
        put_all_kinds(&browser);
        check(&format!("{place}, a chat"));
        browser.click("#panel-toggle");
        browser.run("document.querySelector('.more').open = true;");
        browser.wait("return !document.querySelector('#pool').hidden;");
        check(&format!("{place}, settings"));
        browser.click("#panel-close");
        browser.run("document.querySelector('#sidebar-toggle').click();");
        check(&format!("{place}, chats"));
        browser.press(ESCAPE);
        browser.press(&format!("{CONTROL}/"));
        check(&format!("{place}, keys"));
        browser.press(ESCAPE);
        browser.run("document.querySelector('.message [data-action=edit]').click();");
        check(&format!("{place}, editing"));
    }
    // an answer with its probabilities, which are coloured
    browser.run("newChat();");
    browser.click("#probabilities");
    browser.write("#input", "1+1=\u{e007}");
    browser.wait("return state.messages.length === 2 && !state.run;");
    browser.click(".token");
    check("probabilities");
}
