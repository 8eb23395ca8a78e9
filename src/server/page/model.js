/** The server's models, its default settings and limits. */

import { byId, make } from "./dom.js";
import { askForKey } from "./key.js";
import { aboutModel, ask, errorOf } from "./server.js";
import { emit, saveSettings, state } from "./state.js";

const PATIENCE_MS = 5000;
let timer = 0;

/** Shows the models' names; a server that is not ready yet is asked again. */
export async function loadModels() {
  clearTimeout(timer);
  try {
    const response = await ask("v1/models");
    if (!response.ok) throw await errorOf(response);
    const { data } = await response.json();
    state.models = (data ?? []).map(({ id }) => id);
    state.model = chosenOf(data ?? []);
    state.limits = await loadProps();
    showModels(state.model ?? "no model");
  } catch (error) {
    const names = { 401: "locked", 503: "busy" };
    showModels(names[error.status] ?? "not reachable");
    if (error.status === 401) askForKey();
    else timer = setTimeout(loadModels, PATIENCE_MS);
  }
  emit("models");
}

/** The model chosen before, else one that is loaded, else the first. */
function chosenOf(models) {
  const { model } = state.settings;
  if (models.some(({ id }) => id === model)) return model;
  const loaded = models.find(({ status }) => status?.value === "loaded");
  return (loaded ?? models[0])?.id ?? null;
}

async function loadProps() {
  const response = await ask(aboutModel("props", state.model));
  if (!response.ok) throw await errorOf(response);
  const { modalities, limits, default_generation_settings: defaults } = await response.json();
  showDefaults(defaults.params);
  return { images: modalities.vision ? limits.images : 0, bodyBytes: limits.body_bytes };
}

/** Shows in empty fields what the server takes where a request says nothing. */
function showDefaults(params) {
  for (const input of document.querySelectorAll("[data-field]")) {
    const value = params[input.dataset.field];
    const isValue = typeof value === "number" && (value >= 0 || Number(input.min) < 0);
    if (isValue) input.placeholder = Number(value.toPrecision(6));
  }
}

/** One model is a name; of several, one can be chosen. */
function showModels(name) {
  const hasChoice = state.models.length > 1;
  byId("model").hidden = hasChoice;
  byId("model").textContent = name;
  byId("model").title = name;
  byId("models").hidden = !hasChoice;
  byId("models").replaceChildren(...state.models.map((id) => new Option(id, id)));
  byId("models").value = name;
  const words = [make("span", "", "Chat with "), make("b", "", name)];
  byId("greeting").replaceChildren(...(state.model ? words : ["Chat with a model"]));
}

export function listenToModels() {
  byId("models").addEventListener("change", () => {
    state.model = state.settings.model = byId("models").value;
    saveSettings();
    loadModels();
  });
}
