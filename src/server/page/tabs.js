/** Several tabs: which chat each has open, and what has changed in one of them. */

import { chats, listChats, readChat, tab, useChat } from "./chats.js";
import { isText } from "./format.js";
import { emit, on, state } from "./state.js";
import { TAB_KEY } from "./storage.js";

// How long another tab may take to say which chat it has open.
const PATIENCE_MS = 150;

const others = new Set();
let channel = null;
let isMeeting = false;

/** Asks the other tabs what they have open; calls back with whether this one is alone. */
export function meetOtherTabs(whenMet) {
  if (typeof BroadcastChannel === "undefined") {
    whenMet(true);
    return;
  }
  isMeeting = true;
  channel = new BroadcastChannel(TAB_KEY);
  channel.onmessage = ({ data }) => {
    if (data === "who") tell();
    else if (data?.owner === tab.owner) return;
    else if (isText(data?.is)) meet(data);
    else if (isText(data?.saved)) follow(data.saved);
  };
  on("saved", (saved) => channel.postMessage({ saved, owner: tab.owner }));
  channel.postMessage("who");
  setTimeout(() => {
    isMeeting = false;
    whenMet(others.size === 0);
  }, PATIENCE_MS);
}

function tell() {
  channel.postMessage({ is: state.chat.name, owner: tab.owner, isMeeting });
}

/** A tab that begins as a copy of another one goes its own way with the next message. */
function meet(other) {
  others.add(other.is);
  if (!isMeeting || other.is !== state.chat.name) return;
  // of two that begin together, one keeps the chat
  if (!other.isMeeting || tab.owner > other.owner) tab.forksOnSave = true;
}

/** The message that is shown already, unless the other tab has changed it. */
function knownOr(node) {
  const known = state.nodes.find(({ id }) => id === node.id);
  const isSame = known && ["parent", "content", "reasoning", "note"]
    .every((part) => known[part] === node[part])
    && JSON.stringify(known.calls) === JSON.stringify(node.calls);
  return isSame ? known : node;
}

/** Shows what another tab has written, if it is the open chat and nothing is happening here. */
async function follow(name) {
  await listChats();
  if (name !== state.chat.name || state.run || chats.saving > 0) return;
  if (document.querySelector(".editor")) return;
  const record = await readChat(name);
  if (name !== state.chat.name || state.run || chats.saving > 0) return;
  if (record) record.nodes = record.nodes.map(knownOr);
  const { forksOnSave } = tab;
  useChat(record ? name : state.chat.name, record);
  tab.forksOnSave = forksOnSave;
  emit("chat");
}
