/** The API key, which is kept until the tab is closed. */

import { byId } from "./dom.js";
import { emit } from "./state.js";
import { API_KEY, keptForTab } from "./storage.js";

export function askForKey() {
  byId("key-form").hidden = false;
  byId("key").focus();
}

function useKey(event) {
  event.preventDefault();
  const key = byId("key").value.trim();
  if (key === "") return;
  keptForTab.write(API_KEY, key);
  byId("key").value = "";
  byId("key-form").hidden = true;
  byId("forget-key").hidden = false;
  byId("input").focus();
  emit("key", true);
}

function forgetKey() {
  keptForTab.write(API_KEY, null);
  byId("forget-key").hidden = true;
  emit("key", false);
}

export function listenToKey() {
  byId("key-form").addEventListener("submit", useKey);
  byId("forget-key").addEventListener("click", forgetKey);
  byId("forget-key").hidden = !keptForTab.read(API_KEY);
}
