//! A browser: headless Chromium, driven by its WebDriver over HTTP.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use octavo_fixtures::{Lacks, skip};
use serde_json::{Value, json};

use crate::client::Server;

const PATIENCE: Duration = Duration::from_secs(60);

/// Key of element references, fixed by the WebDriver standard.
const ELEMENT: &str = "element-6066-11e4-a52e-4f735466cecf";

/// Script that makes the names of the page's modules global, for the scripts of tests.
const MODULES: &str = "const main = document.querySelector('script[type=module]').src; \
    const names = ['attachments', 'chats', 'conversation', 'database', 'markdown', 'model', \
      'notice', 'state', 'transfer']; \
    return Promise.all(names.map((name) => import(new URL(`${name}.js`, main)))) \
      .then((modules) => { Object.assign(window, ...modules); return state.opened; }) \
      .then(() => true);";

/// A browser with one window.
pub(crate) struct Browser {
    driver: Child,
    port: u16,
    session: String,
}

impl Browser {
    /// Starts a browser; `None` if there is no driver.
    pub(crate) fn start() -> Option<Browser> {
        let mut command = Command::new("chromedriver");
        command
            .arg("--port=0")
            .stdout(Stdio::piped())
            .stderr(Stdio::null());
        let Ok(mut driver) = command.spawn() else {
            skip(Lacks::Browser, "chromedriver is not installed");
            return None;
        };
        let lines = BufReader::new(driver.stdout.take().expect("stdout")).lines();
        let port = lines.map_while(Result::ok).find_map(|line| {
            let (_, rest) = line.split_once("started successfully on port ")?;
            rest.trim_end_matches('.').parse().ok()
        });
        let mut browser = Browser {
            driver,
            port: port.expect("the driver says its port"),
            session: String::new(),
        };
        let args = [
            "--headless=new",
            "--no-sandbox",
            "--disable-dev-shm-usage",
            "--window-size=1280,900",
        ];
        let capabilities = json!({ "capabilities": { "alwaysMatch": {
            "goog:loggingPrefs": { "browser": "ALL" },
            "goog:chromeOptions": { "args": args },
        } } });
        let session = browser.ask("POST", "/session", &capabilities);
        let id = session["sessionId"].as_str().expect("a session");
        browser.session = format!("/session/{id}");
        Some(browser)
    }

    /// Sends a request to the driver; returns the `value`.
    fn ask(&self, method: &str, path: &str, body: &Value) -> Value {
        let path = format!("{}{path}", self.session);
        let mut stream = TcpStream::connect(("127.0.0.1", self.port)).expect("the driver listens");
        stream.set_read_timeout(Some(PATIENCE)).expect("a timeout");
        let body = if body.is_null() {
            String::new()
        } else {
            body.to_string()
        };
        let request = format!(
            "{method} {path} HTTP/1.1\r\nhost: 127.0.0.1\r\nconnection: close\r\n\
             content-length: {}\r\n\r\n{body}",
            body.len()
        );
        stream.write_all(request.as_bytes()).expect("it reads");
        let text = body_of(stream);
        let value: Value = serde_json::from_str(&text).unwrap_or_else(|e| panic!("{e}: {text}"));
        assert!(
            value["value"]["error"].is_null(),
            "{method} {path}: {value}"
        );
        value["value"].clone()
    }

    pub(crate) fn post(&self, path: &str, body: &Value) -> Value {
        self.ask("POST", path, body)
    }

    /// Opens the page, and waits until its chat is open.
    pub(crate) fn open(&self, server: &Server) {
        self.open_at(server, "/");
    }

    /// Opens the page where it is under a path prefix.
    pub(crate) fn open_at(&self, server: &Server, path: &str) {
        let url = format!("http://{}{path}", server.address);
        self.post("/url", &json!({ "url": url }));
        self.run(MODULES);
    }

    /// Sends a command of the DevTools protocol.
    pub(crate) fn devtools(&self, command: &str, params: &Value) {
        let command = json!({ "cmd": command, "params": params });
        self.post("/goog/cdp/execute", &command);
    }

    /// Has the page shown on a screen of this width, in a dark or light theme.
    pub(crate) fn show_on(&self, width: u32, is_dark: bool) {
        let size = json!({ "width": width, "height": 844, "deviceScaleFactor": 1,
            "mobile": width < 500 });
        self.devtools("Emulation.setDeviceMetricsOverride", &size);
        let scheme = if is_dark { "dark" } else { "light" };
        let features = json!([{ "name": "prefers-color-scheme", "value": scheme }]);
        let media = json!({ "features": features });
        self.devtools("Emulation.setEmulatedMedia", &media);
    }

    /// Returns the lines of the browser's console since the last call.
    pub(crate) fn console(&self) -> Value {
        self.post("/se/log", &json!({ "type": "browser" }))
    }

    /// Opens another tab and switches to it; returns its handle.
    pub(crate) fn open_tab(&self) -> String {
        let tab = self.post("/window/new", &json!({ "type": "tab" }));
        let name = tab["handle"].as_str().expect("a name").to_owned();
        self.look_at(&name);
        name
    }

    /// Returns the handle of the current tab.
    pub(crate) fn tab(&self) -> String {
        let name = self.ask("GET", "/window", &Value::Null);
        name.as_str().expect("a name").to_owned()
    }

    pub(crate) fn look_at(&self, tab: &str) {
        self.post("/window", &json!({ "handle": tab }));
    }

    /// Closes the current tab.
    pub(crate) fn close_tab(&self) {
        self.ask("DELETE", "/window", &Value::Null);
    }

    pub(crate) fn run(&self, script: &str) -> Value {
        self.post("/execute/sync", &json!({ "script": script, "args": [] }))
    }

    /// Waits until a script returns true.
    pub(crate) fn wait(&self, script: &str) {
        let start = Instant::now();
        while self.run(script) != json!(true) {
            assert!(
                start.elapsed() < PATIENCE,
                "{script}: {}",
                self.run("return document.body.innerText")
            );
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn element(&self, selector: &str) -> String {
        let query = json!({ "using": "css selector", "value": selector });
        let found = self.post("/element", &query);
        found[ELEMENT].as_str().expect("an element").to_owned()
    }

    /// Has the keys of a text pressed, wherever the focus is. `\u{e009}` is the control key, which
    /// is held until the end.
    pub(crate) fn press(&self, keys: &str) {
        let down = keys
            .chars()
            .map(|key| json!({ "type": "keyDown", "value": key }));
        let up = keys
            .chars()
            .rev()
            .map(|key| json!({ "type": "keyUp", "value": key }));
        let actions: Vec<Value> = down.chain(up).collect();
        let keyboard = json!({ "type": "key", "id": "keyboard", "actions": actions });
        self.post("/actions", &json!({ "actions": [keyboard] }));
    }

    pub(crate) fn write(&self, selector: &str, text: &str) {
        let element = self.element(selector);
        self.post(
            &format!("/element/{element}/value"),
            &json!({ "text": text }),
        );
    }

    pub(crate) fn click(&self, selector: &str) {
        let element = self.element(selector);
        self.post(&format!("/element/{element}/click"), &json!({}));
    }

    pub(crate) fn resize(&self, width: u32) {
        self.post("/window/rect", &json!({ "width": width, "height": 800 }));
    }

    /// Returns the number of matching elements.
    pub(crate) fn count(&self, selector: &str) -> u64 {
        let script = format!("return document.querySelectorAll('{selector}').length;");
        self.run(&script).as_u64().expect("a number")
    }
}

impl Drop for Browser {
    fn drop(&mut self) {
        // the driver ends the browser too, unless it is already gone
        if let Ok(mut stream) = TcpStream::connect(("127.0.0.1", self.port)) {
            let end = format!(
                "DELETE {} HTTP/1.1\r\nhost: 127.0.0.1\r\n\r\n",
                self.session
            );
            let _ = stream.write_all(end.as_bytes());
            let _ = stream.set_read_timeout(Some(Duration::from_secs(5)));
            let _ = stream.read(&mut [0; 64]);
        }
        let _ = self.driver.kill();
        let _ = self.driver.wait();
    }
}

/// Reads the body of a response; the driver leaves the connection open.
fn body_of(stream: TcpStream) -> String {
    let mut reader = BufReader::new(stream);
    let mut length = 0;
    loop {
        let mut line = String::new();
        reader.read_line(&mut line).expect("an answer");
        if let Some(n) = line.to_ascii_lowercase().strip_prefix("content-length:") {
            length = n.trim().parse().expect("a number");
        }
        if line.trim().is_empty() {
            break;
        }
    }
    let mut body = vec![0; length];
    reader.read_exact(&mut body).expect("the body");
    String::from_utf8(body).expect("text")
}
