/** Keys for the whole page. */

import { newChat } from "./conversation.js";
import { byId } from "./dom.js";
import { closeOverlays, showPanel, togglePanel } from "./panels.js";
import { hidePopup, popup } from "./popup.js";
import { stop } from "./run.js";
import { state } from "./state.js";

/** Escape closes what is open; if nothing is, it stops the answer. */
function onEscape() {
  // The browser closes dialogs by itself.
  if (document.querySelector("dialog[open]")) return;
  if (popup.isPinned) hidePopup();
  else if (closeOverlays()) return;
  else if (state.run) stop();
  else hidePopup();
}

function search() {
  showPanel("sidebar");
  byId("search").focus();
  byId("search").select();
}

/** With Control, or Command on a Mac. */
const shortcuts = {
  k: search,
  b: () => togglePanel("sidebar"),
  ",": () => togglePanel("panel"),
  "/": () => byId("shortcuts").showModal(),
};

function onKey(event) {
  if (event.isComposing) return;
  if (event.key === "Escape") {
    onEscape();
    return;
  }
  if (event.altKey || event.ctrlKey === event.metaKey) return;
  const isNew = event.shiftKey && event.key.toLowerCase() === "o";
  const action = isNew ? newChat : event.shiftKey ? null : shortcuts[event.key];
  if (!action) return;
  event.preventDefault();
  action();
}

export function listenToKeys() {
  document.addEventListener("keydown", onKey);
  byId("shortcuts-open").addEventListener("click", () => byId("shortcuts").showModal());
  byId("shortcuts").addEventListener("click", (event) => {
    if (event.target === byId("shortcuts")) byId("shortcuts").close();
  });
}
