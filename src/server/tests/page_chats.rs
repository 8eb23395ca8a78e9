//! Chats on the page: branches, editing and continuing, the list, files, and many of them.

use std::time::{Duration, Instant};

use serde_json::{Value, json};

use crate::browser::Browser;
use crate::client::Server;
use crate::page::{ENDED, ENTER, LISTEN};
use crate::page_text::{FORMATTED, put};

fn say(browser: &Browser, text: &str) {
    browser.write("#input", &format!("{text}{ENTER}"));
    ended(browser);
}

/// Waits until the answer has ended and the chat is kept.
fn ended(browser: &Browser) {
    browser.wait("return state.messages.at(-1)?.role === 'assistant' && !state.run;");
    browser.wait(ENDED);
    browser.wait("return chats.saving === 0;");
}

/// Returns the texts that are shown.
fn shown(browser: &Browser) -> Value {
    browser.run("return state.messages.map(({ content }) => content);")
}

fn versions(browser: &Browser, at: &str) -> Value {
    browser.run(&format!(
        "const version = document.querySelector('{at} .versions'); \
         return version.hidden ? '' : version.textContent;"
    ))
}

const QUESTION: &str = ".message[data-role=user]";
const ANSWER: &str = ".message[data-role=assistant]";

#[test]
fn questions_and_answers_have_versions() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    browser.run(LISTEN);
    say(&browser, "1+1=");
    assert_eq!(versions(&browser, ANSWER), json!(""));
    browser.click(&format!("{ANSWER} [data-action=regenerate]"));
    ended(&browser);
    assert_eq!(versions(&browser, ANSWER), json!("2/2"));
    // an answer that is edited becomes another version, as Markdown again
    browser.click(&format!("{ANSWER} [data-action=edit]"));
    browser.run("document.querySelector('.editor textarea').value = '';");
    browser.write(".editor textarea", "It is **two**.");
    browser.click(".editor .strong");
    browser.wait("return document.querySelector('.body strong')?.textContent === 'two';");
    assert_eq!(versions(&browser, ANSWER), json!("3/3"));
    // what follows belongs to that version, and the model gets it
    say(&browser, "2+2=");
    let asked = browser.run("return window.asked.at(-1).messages.map(({ content }) => content);");
    assert_eq!(asked, json!(["1+1=", "It is **two**.", "2+2="]));
    assert_eq!(browser.count(".message"), 4);
    browser.click(&format!("{ANSWER} [data-action=version-before]"));
    browser.wait("return document.querySelectorAll('.message').length === 2;");
    assert_eq!(versions(&browser, ANSWER), json!("2/3"));
    browser.click(&format!("{ANSWER} [data-action=version-after]"));
    browser.wait("return document.querySelectorAll('.message').length === 4;");
    // another version of the question begins its own branch
    browser.click(&format!("{QUESTION} [data-action=edit]"));
    browser.write(".editor textarea", &format!("3{ENTER}"));
    ended(&browser);
    assert_eq!(browser.count(".message"), 2);
    assert_eq!(shown(&browser)[0], "1+1=3");
    assert_eq!(versions(&browser, QUESTION), json!("2/2"));
    // all of it is there after the page was left, and the branch that was shown is shown again
    browser.click(&format!("{QUESTION} [data-action=version-before]"));
    browser.wait("return document.querySelectorAll('.message').length === 4;");
    browser.wait("return chats.saving === 0;");
    let before = shown(&browser);
    browser.open(&server);
    browser.wait("return document.querySelectorAll('.message').length === 4;");
    assert_eq!(shown(&browser), before);
    assert_eq!(versions(&browser, QUESTION), json!("1/2"));
    // a question that Escape leaves is as it was
    browser.click(&format!("{QUESTION} [data-action=edit]"));
    browser.write(".editor textarea", "xyz\u{e00c}");
    assert_eq!(browser.count(".editor"), 0);
    assert_eq!(shown(&browser), before);
    assert_eq!(browser.console(), json!([]));
}

#[test]
fn an_answer_is_continued_and_settings_are_sent() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    browser.run(LISTEN);
    browser.wait("return state.model !== null;");
    // empty fields show the server's own values
    let defaults = "return ['temperature', 'top_k', 'top_p', 'min_p', 'repeat_penalty'] \
        .map((name) => document.querySelector(`[data-field=${name}]`).placeholder);";
    let props = server.get("/props").json();
    let params = &props["default_generation_settings"]["params"];
    let expected = ["temperature", "top_k", "top_p", "min_p", "repeat_penalty"].map(|name| {
        let value = params[name].as_f64().expect("a number");
        // the server's values are 32-bit floats
        let rounded = (value * 1e6).round() / 1e6;
        format!("{rounded}")
    });
    assert_eq!(browser.run(defaults), json!(expected));
    browser.run(
        "const field = document.querySelector('[data-field=max_tokens]'); field.value = 2; \
         field.dispatchEvent(new Event('input', { bubbles: true }));",
    );
    say(&browser, "Count: 1, 2, 3, 4, 5, 6, 7");
    assert_eq!(browser.run("return window.asked[0].max_tokens;"), json!(2));
    let before = shown(&browser)[1].as_str().expect("a text").to_owned();
    browser.click("[data-action=continue]");
    browser.wait("return window.asked.length === 2;");
    ended(&browser);
    // the request ends with the answer as it was, and its continuation is behind that
    let last = browser.run("return window.asked[1].messages.at(-1);");
    assert_eq!(last, json!({ "role": "assistant", "content": before }));
    let after = shown(&browser)[1].as_str().expect("a text").to_owned();
    assert!(after.starts_with(&before), "{before:?} {after:?}");
    assert_eq!(browser.count(".message"), 2);
    // the settings of an answer are shown with its figures
    let title = browser.run("return document.querySelector('.facts').title;");
    assert!(
        title
            .as_str()
            .is_some_and(|text| text.contains("max tokens: 2")),
        "{title}"
    );
}

#[test]
fn one_of_several_models_can_be_chosen() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    browser.wait("return state.model !== null;");
    assert_eq!(
        browser.run("return document.querySelector('#models').hidden;"),
        json!(true),
        "one model is no choice"
    );
    browser.run(LISTEN);
    // as a server with two models lists them
    browser.run(
        "const list = JSON.stringify({ data: [{ id: 'small' }, { id: 'large' }] }); \
         window.fetch = new Proxy(window.fetch, { apply(fetch, self, [url, init]) { \
           return url === 'v1/models' ? Promise.resolve(new Response(list)) \
             : fetch.call(self, url, init); } }); \
         return loadModels().then(() => true);",
    );
    let chosen = "return document.querySelector('#models').value;";
    assert_eq!(browser.run(chosen), json!("small"));
    browser.write("#models", "large");
    say(&browser, "1+1=");
    assert_eq!(browser.run("return window.asked[0].model;"), json!("large"));
    // the choice is kept, as long as there is that model
    let kept = "return JSON.parse(localStorage.getItem('octavo.settings')).model;";
    assert_eq!(browser.run(kept), json!("large"));
    browser.open(&server);
    browser.wait("return state.model === 'octavo';");
}

#[test]
fn tools_are_offered_calls_shown_and_results_sent() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    browser.run(LISTEN);
    browser.run(
        "window.set = (text) => { const area = document.querySelector('#tools'); \
           area.value = text; area.dispatchEvent(new Event('input', { bubbles: true })); \
           return document.querySelector('#tools-problem').textContent; };",
    );
    assert_ne!(browser.run("return set('{');"), json!(""));
    assert_ne!(browser.run("return set('[1]');"), json!(""));
    let tools = r#"[{"type": "function", "function": {"name": "add"}}]"#;
    assert_eq!(browser.run(&format!("return set('{tools}');")), json!(""));
    let messages = json!([
        { "role": "user", "content": "1+1=" },
        { "role": "assistant", "content": "", "reasoning": "I add.",
          "calls": [{ "id": "call_1", "name": "add", "arguments": "{\"a\":1,\"b\":1}" }] },
    ]);
    put(&browser, &messages);
    browser.wait("return document.querySelector('.call-name')?.textContent === 'add';");
    assert_eq!(
        browser.run("return document.querySelector('.call pre').textContent;"),
        json!("{\n  \"a\": 1,\n  \"b\": 1\n}")
    );
    browser.write(".result-form textarea", "2");
    browser.click(".result-form button");
    browser.wait("return window.asked.length === 1;");
    ended(&browser);
    let sent = browser.run("return window.asked[0];");
    assert_eq!(sent["tools"][0]["function"]["name"], "add");
    assert_eq!(
        sent["messages"][1]["tool_calls"][0],
        json!({ "id": "call_1", "type": "function",
            "function": { "name": "add", "arguments": "{\"a\":1,\"b\":1}" } })
    );
    assert_eq!(
        sent["messages"][2],
        json!({ "role": "tool", "tool_call_id": "call_1", "content": "2" })
    );
}

#[test]
fn chats_are_listed_searched_renamed_exported_and_imported() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    for (question, answer) in [
        ("About apples", "Red."),
        ("About pears", "Green as *grass*."),
    ] {
        let messages = json!([
            { "role": "user", "content": question },
            { "role": "assistant", "content": answer },
        ]);
        put(&browser, &messages);
    }
    let titles = "return [...document.querySelectorAll('.chat-title')] \
        .map((title) => title.textContent);";
    assert_eq!(browser.run(titles), json!(["About pears", "About apples"]));
    assert_eq!(
        browser.run("return document.title;"),
        json!("About pears · Octavo")
    );
    // by keyboard, in titles and texts
    browser.press("\u{e009}k");
    browser.write("#search", "GRASS");
    browser.wait("return document.querySelectorAll('.chat-item').length === 1;");
    assert_eq!(
        browser.run("return document.querySelector('.chat-line').textContent;"),
        json!("Green as *grass*.")
    );
    browser.write("#search", "x");
    browser.wait("return document.querySelectorAll('.chat-item').length === 0;");
    browser.write("#search", "\u{e00c}");
    browser.wait("return document.querySelectorAll('.chat-item').length === 2;");
    // a title of one's own
    browser.click(".current [data-action=rename]");
    browser.write(
        ".chat-rename",
        "\u{e009}a\u{e000}Fruit & <b>more</b>\u{e007}",
    );
    browser.wait("return document.querySelector('.chat-title').textContent.startsWith('Fruit');");
    assert_eq!(
        browser.run(titles),
        json!(["Fruit & <b>more</b>", "About apples"])
    );
    exported_and_imported(&browser);
    assert_eq!(browser.console(), json!([]));
}

/// Exports all chats, deletes one, and imports the file twice.
fn exported_and_imported(browser: &Browser) {
    browser.run(
        "URL.createObjectURL = (blob) => { window.saved = blob; return 'data:,'; }; \
         HTMLAnchorElement.prototype.click = function () { window.savedAs = this.download; };",
    );
    browser.click("#export-all");
    browser.wait("return window.savedAs?.endsWith('.json');");
    browser.run("return saved.text().then((text) => { window.file = text; return true; });");
    let file = browser.run("return JSON.parse(file);");
    assert_eq!(file["format"], "octavo.chats");
    assert_eq!(file["chats"].as_array().map(Vec::len), Some(2));
    // one chat as Markdown
    browser.click(".current [data-action=export]");
    browser.wait("return document.querySelector('#notice button') !== null;");
    browser.click("#notice button");
    browser.wait("return window.savedAs?.endsWith('.md');");
    browser.run("return saved.text().then((text) => { window.markdown = text; return true; });");
    assert_eq!(
        browser.run("return markdown;"),
        json!("# Fruit & <b>more</b>\n\n## You\n\nAbout pears\n\n## Answer\n\nGreen as *grass*.\n")
    );
    browser.click(".current [data-action=remove]");
    browser.wait("return document.querySelectorAll('.chat-item').length === 1;");
    // the one that is gone comes back under its name, the one that is there gets a copy
    let import = |text: &str, name: &str| {
        browser.run(&format!(
            "return importFiles([new File([{text}], '{name}')]).then(() => true);"
        ));
    };
    import("file", "all.json");
    browser.wait("return document.querySelectorAll('.chat-item').length === 3;");
    browser.wait("return document.querySelector('#notice').innerText.includes('2 chats');");
    // a request's messages are a chat too; what is none is refused in a line
    import(
        "JSON.stringify({ messages: [{ role: 'user', content: 'From a request' }] })",
        "request.json",
    );
    browser.wait("return document.querySelectorAll('.chat-item').length === 4;");
    for text in [
        "'{'",
        "'[]'",
        "'{\"format\":\"octavo.chats\",\"chats\":[{}]}'",
        "'null'",
    ] {
        import(text, "bad.json");
        browser.wait(
            "return document.querySelector('#notice').innerText.includes('bad.json has no chats');",
        );
    }
    assert_eq!(browser.count(".chat-item"), 4);
}

#[test]
fn many_long_chats_open_without_a_stutter() {
    let Some(browser) = Browser::start() else {
        return;
    };
    let server = Server::usual();
    browser.open(&server);
    let fill = format!(
        "const text = {}; \
         const chat = (at) => {{ \
           const messages = []; \
           for (let turn = 0; turn < 100; turn++) {{ \
             messages.push({{ role: 'user', content: `Question ${{turn}} of chat ${{at}}` }}); \
             messages.push({{ role: 'assistant', content: turn % 5 === 0 ? text \
               : `Answer ${{turn}} of chat ${{at}}. ` + 'Some **words**, `code`. '.repeat(40) }}); \
           }} \
           return {{ name: newName(), ...soundChat({{ messages }}), owner: '', \
             time: Date.now() - at * 1000 }}; \
         }}; \
         return putChats(Array.from({{ length: 20 }}, (_, at) => chat(at))).then(() => true);",
        json!(FORMATTED)
    );
    browser.run(&fill);
    browser.run("sessionStorage.clear();");
    let start = Instant::now();
    browser.open(&server);
    browser.wait("return document.querySelectorAll('.message').length === 200;");
    browser.wait("return document.querySelector('.message:last-child .md') !== null;");
    let opening = start.elapsed();
    // the first chat, its end in view
    browser.wait(
        "const scroller = document.querySelector('#scroller'); \
         return scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight < 2;",
    );
    let switched = browser.run(
        "window.longest = 0; \
         new PerformanceObserver((list) => { for (const { duration } of list.getEntries()) \
           window.longest = Math.max(window.longest, duration); }).observe({ type: 'longtask' }); \
         const frame = () => new Promise((resolve) => requestAnimationFrame(resolve)); \
         const open = async (at) => { \
           const start = performance.now(); \
           document.querySelectorAll('.chat-open')[at].click(); \
           while (!document.querySelector('.message:last-child .md')?.textContent \
             .includes(`of chat ${at}.`)) await frame(); \
           return performance.now() - start; \
         }; \
         return (async () => { \
           let worst = 0; \
           for (let at = 1; at < 20; at++) worst = Math.max(worst, await open(at)); \
           return worst; \
         })();",
    );
    let switched = switched.as_f64().expect("a number");
    // all messages are there soon after, and no task has held the page up for long
    browser.wait(
        "return [...document.querySelectorAll('.message[data-role=assistant] .body')] \
           .every((body) => body.querySelector('.md'));",
    );
    let longest = browser
        .run("return window.longest;")
        .as_f64()
        .expect("a number");
    let found = Instant::now();
    browser.write("#search", "Answer 99 of chat 13.");
    browser.wait("return document.querySelectorAll('.chat-item').length === 1;");
    eprintln!(
        "open {opening:?}, switch {switched:.0} ms, longest task {longest:.0} ms, search {:?}",
        found.elapsed()
    );
    // on two busy cores; on idle ones a tenth
    assert!(opening < Duration::from_secs(8), "{opening:?}");
    assert!(switched < 1500.0, "{switched} ms");
    assert!(longest < 1000.0, "{longest} ms");
}
