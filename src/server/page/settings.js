/** The settings: sampling, system prompt, tools, colours. */

import { byId, setIcon } from "./dom.js";
import { emit, saveSettings, state } from "./state.js";
import { offeredTools } from "./tools.js";

const THEMES = ["system", "light", "dark"];

function showTheme() {
  const { theme } = state.settings;
  document.documentElement.dataset.theme = theme;
  const label = `Theme: ${theme === "system" ? "as the system" : theme}`;
  byId("theme").setAttribute("aria-label", label);
  byId("theme").title = label;
  setIcon(byId("theme"), theme);
  emit("theme");
}

function nextTheme() {
  state.settings.theme = THEMES[(THEMES.indexOf(state.settings.theme) + 1) % THEMES.length];
  showTheme();
  saveSettings();
}

function showProbabilities() {
  const { probabilities } = state.settings;
  byId("probabilities").checked = probabilities;
  byId("messages").classList.toggle("coloured", probabilities);
  byId("legend").hidden = !probabilities;
  emit("probabilities");
}

function showSettings() {
  byId("system").value = state.settings.system;
  byId("tools").value = state.settings.tools;
  for (const input of document.querySelectorAll("[data-field]")) {
    input.value = state.settings.fields[input.dataset.field] ?? "";
  }
  showProblem();
}

function showProblem() {
  const { problem } = offeredTools();
  byId("tools-problem").textContent = problem;
  byId("tools").setAttribute("aria-invalid", String(problem !== ""));
}

function takeSettings() {
  state.settings.system = byId("system").value;
  state.settings.tools = byId("tools").value;
  for (const input of document.querySelectorAll("[data-field]")) {
    state.settings.fields[input.dataset.field] = input.value;
  }
  saveSettings();
  showProblem();
}

function resetSettings() {
  Object.assign(state.settings, { system: "", tools: "", fields: {} });
  showSettings();
  saveSettings();
}

function makeLegend() {
  for (let surprise = 0; surprise < 7; surprise++) {
    const part = document.createElement("i");
    part.style.background = `var(--p${surprise})`;
    byId("scale").append(part);
  }
}

export function listenToSettings() {
  makeLegend();
  showSettings();
  showTheme();
  showProbabilities();
  byId("theme").addEventListener("click", nextTheme);
  byId("settings").addEventListener("input", takeSettings);
  byId("reset").addEventListener("click", resetSettings);
  byId("probabilities").addEventListener("change", () => {
    state.settings.probabilities = byId("probabilities").checked;
    saveSettings();
    showProbabilities();
  });
  window.matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () =>
    emit("theme"));
}
