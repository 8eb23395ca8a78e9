/** The list of chats: opening, searching, renaming and removing them. */

import { chats, putChats, removeChat, renameChat, searchChats } from "./chats.js";
import { newChat, openChat } from "./conversation.js";
import { byId, make, makeButton } from "./dom.js";
import { showNotice } from "./notice.js";
import { closeOverlays } from "./panels.js";
import { on, state } from "./state.js";
import { exportAll, exportChat, importFiles } from "./transfer.js";

const SEARCH_AFTER_MS = 150;

let found = null;
let searches = 0;
let timer = 0;

const DAY_MS = 24 * 3600 * 1000;

/** A heading for chats of about the same age. */
function ageOf(time) {
  const midnight = new Date().setHours(0, 0, 0, 0);
  if (time >= midnight) return "Today";
  if (time >= midnight - DAY_MS) return "Yesterday";
  if (time >= midnight - 6 * DAY_MS) return "This week";
  return new Date(time).toLocaleDateString(undefined, { month: "long", year: "numeric" });
}

function showChats() {
  const lines = new Map((found ?? []).map(({ name, line }) => [name, line]));
  const shown = found === null ? chats.list : chats.list.filter(({ name }) => lines.has(name));
  const groups = [];
  let age = null;
  for (const chat of shown) {
    if (ageOf(chat.time) !== age) {
      age = ageOf(chat.time);
      const group = make("section");
      const list = make("ul");
      list.setAttribute("aria-label", age);
      group.append(make("h2", "", age), list);
      groups.push({ group, list });
    }
    groups.at(-1).list.append(makeItem(chat, lines.get(chat.name)));
  }
  byId("chats").replaceChildren(...groups.map(({ group }) => group));
  byId("no-chats").hidden = shown.length > 0;
  byId("no-chats").textContent = chats.isBroken
    ? "This browser keeps no chats: its database is switched off or full."
    : found === null ? "Chats that you begin are kept here, in this browser." : "Nothing found.";
}

function makeItem({ name, title }, line) {
  const item = make("li", "chat-item");
  item.dataset.name = name;
  const open = make("button", "quiet chat-open");
  open.type = "button";
  open.title = title;
  open.append(make("span", "chat-title", title));
  if (line) open.append(make("span", "chat-line", line));
  if (name === state.chat.name) {
    item.classList.add("current");
    open.setAttribute("aria-current", "page");
  }
  const actions = make("span", "chat-actions");
  for (const [action, icon, label] of [["rename", "edit", "Rename"],
    ["export", "save", "Export"], ["remove", "bin", "Delete"]]) {
    actions.append(makeButton(action, icon, `${label} ${title}`, false));
  }
  item.append(open, actions);
  return item;
}

async function doAction(event) {
  const item = event.target.closest(".chat-item");
  const button = event.target.closest("button");
  if (!item || !button) return;
  const { name } = item.dataset;
  const { action } = button.dataset;
  if (action === "rename") rename(item, name);
  else if (action === "export") exportChat(name);
  else if (action === "remove") await remove(name);
  else {
    closeOverlays();
    await openChat(name);
  }
}

async function remove(name) {
  const record = await removeChat(name);
  if (!record) return;
  const wasOpen = state.chat.name === name;
  if (wasOpen) newChat();
  showNotice("The chat was deleted.", "Undo", async () => {
    await putChats([record]);
    if (wasOpen) openChat(name);
  });
}

function rename(item, name) {
  const field = make("input", "chat-rename");
  field.setAttribute("aria-label", "Title");
  field.value = item.querySelector(".chat-title").textContent;
  let hasEnded = false;
  const end = async (isKept) => {
    // taking the field away takes the focus from it
    if (hasEnded) return;
    hasEnded = true;
    if (isKept) await renameChat(name, field.value.trim());
    showChats();
  };
  field.addEventListener("keydown", (event) => {
    if (event.key === "Enter") end(true);
    else if (event.key === "Escape") end(false);
    else return;
    event.stopPropagation();
    event.preventDefault();
  });
  field.addEventListener("blur", () => end(true));
  item.classList.add("renaming");
  item.prepend(field);
  field.select();
}

async function search() {
  const text = byId("search").value.trim();
  const mine = ++searches;
  const result = text === "" ? null : await searchChats(text, () => mine !== searches);
  if (mine !== searches) return;
  found = result;
  showChats();
}

function searchSoon() {
  clearTimeout(timer);
  timer = setTimeout(search, SEARCH_AFTER_MS);
}

export function listenToSidebar() {
  on("chats", () => (byId("search").value.trim() === "" ? showChats() : search()));
  byId("chats").addEventListener("click", doAction);
  byId("search").addEventListener("input", searchSoon);
  byId("search").addEventListener("keydown", (event) => {
    if (event.key !== "Escape" || byId("search").value === "") return;
    event.stopPropagation();
    byId("search").value = "";
    search();
  });
  for (const button of document.querySelectorAll("[data-new-chat]")) {
    button.addEventListener("click", () => {
      closeOverlays();
      newChat();
    });
  }
  byId("export-all").addEventListener("click", exportAll);
  byId("import").addEventListener("click", () => byId("import-files").click());
  byId("import-files").addEventListener("change", async () => {
    const files = [...byId("import-files").files];
    byId("import-files").value = "";
    await importFiles(files);
  });
}
