/** Where the reader writes, and the buttons of messages. */

import { addFiles, drafts, takeDrafts } from "./attachments.js";
import { saveChat } from "./chats.js";
import { addMessage, showVersion } from "./conversation.js";
import { byId, copyText, fitHeight, setIcon } from "./dom.js";
import { isSendKey, openEditor } from "./editor.js";
import { showLiveFacts } from "./facts.js";
import { keepImages } from "./images.js";
import { hideNotice } from "./notice.js";
import { answer, continueAnswer, putRunAside, stop } from "./run.js";
import { on, state, views } from "./state.js";

// A longer text that is pasted becomes a file.
const LONG_PASTE = 8000;

const hasSomethingToSend = () => byId("input").value.trim() !== "" || drafts.all.length > 0;

function allowSending() {
  byId("send").disabled = !hasSomethingToSend();
}

/** A question with its attachments, which are images and files. */
function questionOf(content, attached) {
  const images = attached.filter(({ key }) => key);
  const files = attached.filter(({ key }) => !key);
  return { role: "user", content, images, files };
}

/** Sends a question behind a message; without one, behind the last that is shown. */
async function ask(content, attached, parent) {
  await state.opened;
  if (state.run) return;
  hideNotice();
  const question = questionOf(content, attached);
  keepImages(question.images);
  addMessage(question, parent);
  saveChat();
  answer();
}

function sendInput() {
  const input = byId("input");
  if (state.run || !hasSomethingToSend()) return;
  const text = input.value;
  input.value = "";
  fitHeight(input);
  ask(text, takeDrafts());
}

const messageBefore = (message) => state.nodes.find(({ id }) => id === message.parent) ?? null;

/** Another answer to the same question. */
function regenerate(message) {
  putRunAside();
  const before = state.messages.indexOf(message);
  if (message.content === "" && !message.calls?.length) {
    // nothing was said, so that there is nothing to keep
    state.nodes.splice(state.nodes.indexOf(message), 1);
  }
  state.messages = state.messages.slice(0, before);
  answer();
}

function editMessage(message) {
  openEditor(views.get(message), (content, attached) => {
    putRunAside();
    if (message.role === "user") {
      ask(content, attached, messageBefore(message));
      return;
    }
    const { role, reasoning, calls } = message;
    if (content === message.content) return;
    addMessage({ role, content, reasoning, calls, note: "Edited." }, messageBefore(message));
    saveChat();
  });
}

async function copyFrom(button, text) {
  await copyText(text);
  setIcon(button, "done");
  setTimeout(() => setIcon(button, "copy"), 1500);
}

function doAction(button) {
  const element = button.closest(".message");
  const message = state.messages.find((one) => views.get(one)?.element === element);
  if (!message) return;
  const code = button.closest(".code-block")?.querySelector("code");
  const actions = {
    copy: () => copyFrom(button, message.content),
    "copy-code": () => copyFrom(button, code.textContent),
    edit: () => editMessage(message),
    regenerate: () => regenerate(message),
    continue: () => continueAnswer(message),
    "version-before": () => showVersion(message, -1),
    "version-after": () => showVersion(message, 1),
  };
  actions[button.dataset.action]();
}

let factsTimer = 0;

/** Shows Send or Stop, and live figures while an answer is written. */
export function showRunning() {
  const isRunning = state.run !== null;
  const hadFocus = document.activeElement === byId("stop");
  byId("send").hidden = isRunning;
  byId("stop").hidden = !isRunning;
  if (hadFocus && !isRunning) byId("input").focus();
  allowSending();
  clearInterval(factsTimer);
  if (isRunning) factsTimer = setInterval(showLiveFacts, 100);
}

/** Repeats the last question once there is a key for it. */
function tryAgainWithKey(hasKey) {
  const last = state.messages.at(-1);
  if (hasKey && last?.failure?.status === 401) regenerate(last);
}

/** A long text that is pasted becomes a file, which is easier to look at. */
function takePaste(event) {
  const text = event.clipboardData.getData("text/plain");
  if (text.length < LONG_PASTE) return;
  event.preventDefault();
  addFiles([new File([text], "pasted.txt", { type: "text/plain" })]);
}

export function listenToInput() {
  const input = byId("input");
  input.addEventListener("input", () => {
    fitHeight(input);
    allowSending();
  });
  input.addEventListener("paste", takePaste);
  input.addEventListener("keydown", (event) => {
    if (event.key === "ArrowUp" && input.value === "" && !state.run) {
      const last = state.messages.findLast(({ role }) => role === "user");
      if (last) editMessage(last);
      event.preventDefault();
    } else if (isSendKey(event)) {
      event.preventDefault();
      sendInput();
    }
  });
  byId("write").addEventListener("submit", (event) => {
    event.preventDefault();
    sendInput();
  });
  byId("stop").addEventListener("click", stop);
  byId("messages").addEventListener("click", (event) => {
    const button = event.target.closest("[data-action]");
    if (button) doAction(button);
  });
  for (const starter of document.querySelectorAll("[data-starter]")) {
    starter.addEventListener("click", () => ask(starter.textContent, []));
  }
  on("run", showRunning);
  on("drafts", allowSending);
  on("key", tryAgainWithKey);
  on("results", () => answer());
}
