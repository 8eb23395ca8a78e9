/** Begins the page: its modules meet here. */

import { listenToFiles } from "./attachments.js";
import { chats, listChats, newName, readChat, saveChat, useChat } from "./chats.js";
import { listenToInput, showRunning } from "./composer.js";
import { chatHasChanged, openChat, showOther, updateAll } from "./conversation.js";
import { byId } from "./dom.js";
import { isText } from "./format.js";
import { listenToKey } from "./key.js";
import { listenToKeys } from "./keyboard.js";
import { moveOldChats } from "./migrate.js";
import { listenToModels, loadModels } from "./model.js";
import { listenToPanels } from "./panels.js";
import { drawPool, pool, startPool } from "./pool.js";
import { hidePopup, watchTokens } from "./popup.js";
import { stayAtEnd, watchScrolling } from "./scroll.js";
import { listenToSettings } from "./settings.js";
import { listenToSidebar } from "./sidebar.js";
import { on, restoreSettings, state, views } from "./state.js";
import { keptForTab, TAB_KEY } from "./storage.js";
import { drawStrip } from "./strip.js";
import { meetOtherTabs } from "./tabs.js";

function redrawCharts() {
  for (const view of views.values()) {
    if (view.strip) drawStrip(view.strip, view.message.pieces?.content ?? []);
  }
  if (pool.shown) drawPool(pool.shown);
}

function listenToWindow() {
  document.addEventListener("visibilitychange", () => {
    if (!document.hidden) startPool();
  });
  window.addEventListener("pagehide", () => {
    if (state.run) saveChat();
  });
}

/** Opens the tab's own chat, which it has had before it was loaded anew. */
async function openOwnChat() {
  await moveOldChats();
  await listChats();
  const name = keptForTab.read(TAB_KEY);
  const record = isText(name) ? await readChat(name) : null;
  useChat(record ? name : newName(), record);
  chatHasChanged();
}

/** A browser that was closed and is opened again goes on where it was. */
function openLatest(isAlone) {
  const [latest] = chats.list;
  if (isAlone && latest && state.messages.length === 0 && !state.run) openChat(latest.name);
}

async function start() {
  restoreSettings();
  listenToInput();
  listenToFiles();
  listenToSettings();
  listenToSidebar();
  listenToPanels();
  listenToKey();
  listenToKeys();
  listenToModels();
  listenToWindow();
  watchTokens();
  watchScrolling(redrawCharts);
  on("theme", redrawCharts);
  on("panel", startPool);
  on("chat", () => {
    showOther();
    stayAtEnd();
  });
  on("probabilities", () => {
    hidePopup();
    updateAll();
  });
  on("key", () => {
    loadModels();
    startPool();
  });
  showRunning();
  loadModels();
  startPool();
  state.opened = openOwnChat();
  await state.opened;
  // On a phone the focus would open the keyboard over the page.
  if (!window.matchMedia("(pointer: coarse)").matches) byId("input").focus();
  meetOtherTabs(openLatest);
}

start();
