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
    browser.wait(
        "return state.messages.at(-1)?.role === 'assistant' && !state.run && chats.saving === 0;",
    );
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
    // after one is closed, a new tab does not take the other's conversation, and lists both
    browser.look_at(&second);
    browser.close_tab();
    browser.look_at(&first);
    browser.open_tab();
    browser.open(&server);
    std::thread::sleep(std::time::Duration::from_millis(400));
    assert_eq!(browser.run(SAID), json!(""));
    assert_eq!(browser.count(".chat-item"), 2);
    browser.click(".chat-open[title='2+2=']");
    has_said(&browser, "2+2=,4+4=");
    assert_eq!(browser.console(), json!([]));
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

#[test]
fn two_tabs_with_the_same_chat_agree() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let first = browser.tab();
    say(&browser, "1+1=");
    let second = browser.open_tab();
    browser.open(&server);
    browser.wait("return document.querySelectorAll('.chat-open').length === 1;");
    browser.click(".chat-open");
    has_said(&browser, "1+1=");
    say(&browser, "7+7=");
    // the first shows what the second has said, and the second what the first says then
    browser.look_at(&first);
    has_said(&browser, "1+1=,7+7=");
    say(&browser, "8+8=");
    browser.look_at(&second);
    has_said(&browser, "1+1=,7+7=,8+8=");
    // it is one chat still, and a new title is known to both
    assert_eq!(browser.count(".chat-item"), 1);
    browser.run("return renameChat(state.chat.name, 'Sums').then(() => true);");
    browser.look_at(&first);
    browser.wait("return document.querySelector('.chat-title').textContent === 'Sums';");
    // a chat that one removes is gone from the other
    browser.click("[data-action=remove]");
    browser.look_at(&second);
    browser.wait("return document.querySelectorAll('.chat-item').length === 0;");
    browser.wait("return state.messages.length === 0;");
}

#[test]
fn chats_of_older_pages_are_moved() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    // as pages kept them in web storage, and the first ones one for all tabs
    browser.run(
        "localStorage.setItem('octavo.conversation.abc', JSON.stringify({ owner: 'x', time: 1000, \
           messages: [{ role: 'user', content: 'old question' }, { role: 'assistant', \
             content: 'old answer', pieces: { content: [], reasoning: [] } }] })); \
         localStorage.setItem('octavo.messages', JSON.stringify([ \
           { role: 'user', content: 'oldest question', pictures: [] }, { content: 'nothing' }])); \
         localStorage.setItem('octavo.settings', JSON.stringify({ system: 'Be kind.', \
           colour: true, theme: 'dark', fields: { top_k: '7' } })); \
         sessionStorage.setItem('octavo.tab', JSON.stringify('abc'));",
    );
    browser.open(&server);
    has_said(&browser, "old question");
    assert_eq!(
        browser.run("return state.messages.map(({ id, parent }) => [id, parent]);"),
        json!([[1, 0], [2, 1]])
    );
    assert_eq!(
        browser.run("return chats.list.map(({ title }) => title);"),
        json!(["oldest question", "old question"])
    );
    let left = "return Object.keys(localStorage).filter((key) => key !== 'octavo.settings');";
    assert_eq!(browser.run(left), json!([]));
    // settings stay, but probabilities are shown only if asked for
    let settings = "return [state.settings.system, state.settings.theme, \
        state.settings.fields.top_k, state.settings.probabilities];";
    assert_eq!(
        browser.run(settings),
        json!(["Be kind.", "dark", "7", false])
    );
    assert_eq!(browser.console(), json!([]));
}
