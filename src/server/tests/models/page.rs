//! The page of a server with several models.

use std::sync::atomic::Ordering;

use octavo_server::ModelLimits;
use serde_json::json;

use super::support::{demo, serving, states};
use crate::browser::Browser;

/// The Enter key.
const ENTER: &str = "\u{e007}";

#[test]
fn the_page_lets_its_user_choose() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let (a, b) = (demo(), demo());
    let server = serving(&[(&["a"], &a), (&["b"], &b)], ModelLimits::default());
    browser.open(&server);
    browser.wait("return document.querySelector('#models').value === 'a';");
    assert_eq!(
        browser.run("return document.querySelector('#models').hidden;"),
        json!(false)
    );
    browser.run(
        "const list = document.querySelector('#models'); list.value = 'b'; \
         list.dispatchEvent(new Event('change'));",
    );
    browser.wait(
        "return state.model === 'b' \
         && document.querySelector('#greeting').innerText === 'Chat with b';",
    );
    browser.write("#input", &format!("1+1={ENTER}"));
    browser.wait("return state.messages.at(-1)?.role === 'assistant' && !state.run;");
    assert_eq!(states(&server)["b"], "loaded");
    assert_eq!(b.loads.load(Ordering::SeqCst), 1);
}
