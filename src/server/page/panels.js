/** The list of chats at the left and the settings at the right: beside the chat, or over it. */

import { byId } from "./dom.js";
import { emit, saveSettings, state } from "./state.js";

const root = document.documentElement.dataset;

/** Where each panel has room beside the conversation, as in the style sheet. */
const panels = {
  sidebar: { id: "sidebar", wide: window.matchMedia("(min-width: 56rem)") },
  panel: { id: "settings", wide: window.matchMedia("(min-width: 80rem)") },
};

const isOpen = (name) => root[name] === "open";
const isOverlay = (name) => !panels[name].wide.matches;

export const isPanelOpen = () => isOpen("panel");

/** Opens or closes a panel; over the conversation, it takes the focus from what is behind. */
function open(name, opens) {
  root[name] = opens ? "open" : "closed";
  const toggle = byId(`${name}-toggle`);
  toggle.setAttribute("aria-expanded", String(opens));
  const overlay = Object.keys(panels).find((one) => isOpen(one) && isOverlay(one));
  document.querySelector("main").inert = overlay !== undefined;
  document.querySelector(".bar").inert = overlay !== undefined;
  for (const [one, { id }] of Object.entries(panels)) {
    byId(id).inert = overlay !== undefined && one !== overlay;
  }
  if (opens && isOverlay(name)) byId(`${name}-close`).focus();
  else if (!opens && byId(panels[name].id).contains(document.activeElement)) toggle.focus();
  if (name === "panel" && opens) emit("panel");
}

export function togglePanel(name) {
  const opens = !isOpen(name);
  open(name, opens);
  if (!opens) byId(`${name}-toggle`).focus();
  if (isOverlay(name)) return;
  state.settings[name] = opens;
  saveSettings();
}

/** Opens a panel if it is closed. */
export function showPanel(name) {
  if (!isOpen(name)) togglePanel(name);
}

/** Closes what lies over the conversation; returns whether something did. */
export function closeOverlays() {
  const over = Object.keys(panels).filter((name) => isOpen(name) && isOverlay(name));
  for (const name of over) open(name, false);
  return over.length > 0;
}

export function listenToPanels() {
  for (const [name, { wide }] of Object.entries(panels)) {
    byId(`${name}-toggle`).addEventListener("click", () => togglePanel(name));
    byId(`${name}-close`).addEventListener("click", () => togglePanel(name));
    wide.addEventListener("change", () => open(name, wide.matches && state.settings[name]));
    open(name, wide.matches && state.settings[name]);
  }
  byId("backdrop").addEventListener("click", closeOverlays);
}
