/** The open chat on the page: its messages, and changing to another chat or branch. */

import { newName, readChat, saveChat, titleOf, useChat } from "./chats.js";
import { byId } from "./dom.js";
import { showLastFacts } from "./facts.js";
import { restoreImages } from "./images.js";
import { MessageView } from "./message.js";
import { hidePopup } from "./popup.js";
import { putRunAside } from "./run.js";
import { scrollToEnd } from "./scroll.js";
import { emit, state, views } from "./state.js";
import { branchTo, leafBelow, nextId, versionsOf } from "./tree.js";

// Number of messages shown at once; those before them follow while the browser is idle.
const SHOWN_AT_ONCE = 12;
const SHOWN_AT_A_TIME = 8;

let pending = [];
let isShowingPending = false;

/** Brings the page up to date with `state.messages`. */
export function showConversation() {
  const shown = new Set(state.messages);
  for (const [message, view] of views) {
    if (shown.has(message)) continue;
    view.element.remove();
    views.delete(message);
  }
  const parent = byId("messages");
  const fresh = [];
  state.messages.forEach((message, index) => {
    if (!views.has(message)) {
      views.set(message, new MessageView(message));
      fresh.push(message);
    }
    const { element } = views.get(message);
    if (parent.children[index] !== element) {
      parent.insertBefore(element, parent.children[index] ?? null);
    }
  });
  for (const message of fresh.slice(-SHOWN_AT_ONCE)) views.get(message).update();
  pending = [...pending.filter((one) => views.has(one)), ...fresh.slice(0, -SHOWN_AT_ONCE)];
  showPendingSoon();
  byId("welcome").hidden = state.messages.length > 0;
  const title = titleOf({ title: state.chat.title, nodes: state.nodes });
  document.title = state.nodes.length > 0 ? `${title} · Octavo` : "Octavo";
}

const whenIdle = window.requestIdleCallback ?? ((work) => setTimeout(work, 16));

function showPendingSoon() {
  if (isShowingPending || pending.length === 0) return;
  isShowingPending = true;
  whenIdle(() => {
    isShowingPending = false;
    for (const message of pending.splice(-SHOWN_AT_A_TIME)) views.get(message)?.update();
    showPendingSoon();
  });
}

/** Shows all messages anew, for instance with probabilities. */
export function updateAll() {
  for (const view of views.values()) view.update();
}

/** Shows `state.messages` after another chat or branch was chosen. */
export function showOther() {
  hidePopup();
  showConversation();
  updateVersions();
  state.imagesRestored = restoreImages();
  showLastFacts();
  emit("chats");
}

/** Versions and the last message's buttons depend on what is around them. */
function updateVersions() {
  const outside = new Set(pending);
  for (const [message, view] of views) if (!outside.has(message)) view.update();
}

export function chatHasChanged() {
  showOther();
  scrollToEnd();
}

export async function openChat(name) {
  if (name === state.chat.name) return;
  putRunAside();
  const record = await readChat(name);
  if (!record) return;
  useChat(name, record);
  chatHasChanged();
}

export function newChat() {
  putRunAside();
  useChat(newName());
  chatHasChanged();
  byId("input").focus();
}

/** Adds a message behind the last one shown, and shows it as the last. */
export function addMessage(message, parent = state.messages.at(-1)) {
  Object.assign(message, { id: nextId(state.nodes), parent: parent?.id ?? 0, time: Date.now() });
  state.nodes.push(message);
  showBranch(message.id);
}

/** Shows the branch that ends with a message. */
export function showBranch(leaf) {
  state.chat.leaf = leaf;
  state.messages = branchTo(state.nodes, leaf);
  showOther();
}

/** Shows the version before or after a message's, with all that follows it. */
export function showVersion(message, step) {
  putRunAside();
  const versions = versionsOf(state.nodes, message);
  const other = versions[versions.indexOf(message) + step];
  if (!other) return;
  showBranch(leafBelow(state.nodes, other.id));
  saveChat();
  const { element } = views.get(other);
  element.scrollIntoView({ block: "nearest" });
  const buttons = [...element.querySelectorAll(".versions button:enabled")];
  (buttons.at(step < 0 ? 0 : -1) ?? element).focus();
}
