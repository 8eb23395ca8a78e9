/** The state that modules share. */

import { kept, SETTINGS_KEY } from "./storage.js";

/**
 * A message is {id, parent, role, content, time}: `parent` is the id of the message before it, 0 if
 * there is none. A question may have
 * images      a list of {key, name, url}: where the data URL is kept, the file's name, and the data
 *             URL, undefined if it is kept no longer
 * files       a list of {name, text}
 * and an answer
 * reasoning   what the model thought before it answered
 * calls       a list of {id, name, arguments, result}: the tools that it called
 * pieces      {content, reasoning}: which parts of the two texts are which tokens (`placeToken`)
 * facts       figures of this answer (`factsOf`)
 * note        why it ended, where that is worth a line
 * failure     {text, retryAt}: what went wrong
 */
export const state = {
  // The open chat: {name, title, leaf}, `leaf` being the id of the last message that is shown.
  chat: { name: "", title: "", leaf: 0 },
  // All messages of the open chat, in all its branches.
  nodes: [],
  // The messages that are shown: the branch that ends at the leaf.
  messages: [],
  settings: {
    system: "", tools: "", fields: {}, probabilities: false, theme: "system", panel: false,
    sidebar: true, model: "",
  },
  model: null,
  models: [],
  // Limits of requests: {images, bodyBytes}; `images` is 0 if the model takes text only.
  limits: null,
  run: null,
  // Resolve once the tab's own chat is open, and once its images have been read.
  opened: null,
  imagesRestored: null,
};

/** The view of each message that is shown. */
export const views = new Map();

export function restoreSettings() {
  const settings = kept.read(SETTINGS_KEY) ?? {};
  for (const [name, preset] of Object.entries(state.settings)) {
    const isOfItsKind = typeof settings[name] === typeof preset && settings[name] !== null;
    if (isOfItsKind) state.settings[name] = settings[name];
  }
}

export function saveSettings() {
  kept.write(SETTINGS_KEY, state.settings);
}

const listeners = new Map();

/** Calls a function whenever something of this name happens. */
export function on(event, listener) {
  if (!listeners.has(event)) listeners.set(event, []);
  listeners.get(event).push(listener);
}

/**
 * Tells everyone who listens. Modules that would import each other in a circle meet here. Events:
 * `chat` another chat or branch is shown; `chats` the list of chats has changed; `run` an answer
 * has begun or ended; `models` the server's models are known; `theme` colours have changed;
 * `probabilities` they are shown or hidden.
 */
export function emit(event, detail) {
  for (const listener of listeners.get(event) ?? []) listener(detail);
}
