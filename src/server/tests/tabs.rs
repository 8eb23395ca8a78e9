//! The page in several tabs of one browser: each has its own conversation, and none is lost.

use serde_json::json;

use crate::browser::Browser;
use crate::client::Server;

const ENTER: &str = "\u{e007}";

/// Script that returns the user messages of the current tab.
const SAID: &str = "return state.messages.filter(({ role }) => role === 'user') \
    .map(({ content }) => content).join();";

fn say(browser: &Browser, text: &str) {
    browser.write("#input", &format!("{text}{ENTER}"));
    browser.wait("return state.messages.at(-1)?.role === 'assistant' && !state.run;");
}

fn has_said(browser: &Browser, expected: &str) {
    browser.wait(&format!("{} === '{expected}';", SAID.trim_end_matches(';')));
}

#[test]
fn two_tabs_lose_no_conversation() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let first = browser.tab();
    say(&browser, "1+1=");
    let second = browser.open_tab();
    browser.open(&server);
    // the new tab starts empty, because the first still has its conversation
    browser.wait("return document.readyState === 'complete' && !document.hidden;");
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(browser.run(SAID), json!(""));
    say(&browser, "2+2=");
    browser.look_at(&first);
    say(&browser, "3+3=");
    browser.look_at(&second);
    say(&browser, "4+4=");
    // both survive a reload, in either order
    browser.open(&server);
    has_said(&browser, "2+2=,4+4=");
    browser.look_at(&first);
    browser.open(&server);
    has_said(&browser, "1+1=,3+3=");
    // after one is closed, a new tab does not take the other's conversation, and offers the free
    // one
    browser.look_at(&second);
    browser.close_tab();
    browser.look_at(&first);
    browser.open_tab();
    browser.open(&server);
    browser.wait("return document.querySelectorAll('#earlier button').length === 1;");
    browser.click("#earlier button");
    has_said(&browser, "2+2=,4+4=");
    assert_eq!(
        browser.post("/se/log", &json!({ "type": "browser" })),
        json!([])
    );
}

#[test]
fn a_tab_that_is_a_copy_goes_its_own_way() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let first = browser.tab();
    say(&browser, "1+1=");
    // like duplicating a tab: the copy has the whole session storage
    let name = browser.run("return sessionStorage.getItem('octavo.tab');");
    let copy = browser.open_tab();
    browser.open(&server);
    browser.run(&format!(
        "sessionStorage.setItem('octavo.tab', {});",
        json!(name.as_str().expect("a name"))
    ));
    browser.open(&server);
    has_said(&browser, "1+1=");
    say(&browser, "5+5=");
    browser.look_at(&first);
    say(&browser, "6+6=");
    browser.open(&server);
    has_said(&browser, "1+1=,6+6=");
    browser.look_at(&copy);
    browser.open(&server);
    has_said(&browser, "1+1=,5+5=");
}
