/** Tools: their definitions from the settings, calls in answers, and results that readers give. */

import { fitHeight, make, makeIcon } from "./dom.js";
import { emit, state } from "./state.js";

/** The functions that requests offer; an error's text if the setting is not a list of them. */
export function offeredTools() {
  const text = state.settings.tools.trim();
  if (text === "") return { tools: [], problem: "" };
  try {
    const tools = JSON.parse(text);
    const isTool = (tool) => tool?.type === "function" && tool.function?.name;
    if (Array.isArray(tools) && tools.every(isTool)) return { tools, problem: "" };
    return { tools: [], problem: 'Expected a list of {"type": "function", "function": {…}}.' };
  } catch (error) {
    return { tools: [], problem: `This is not JSON: ${error.message}` };
  }
}

/** Adds a piece of a call to an answer's calls. */
export function takeCall(message, { index, id, function: called }) {
  message.calls ??= [];
  message.calls[index] ??= { id: id ?? `call_${index}`, name: "", arguments: "" };
  const call = message.calls[index];
  call.name += called?.name ?? "";
  call.arguments += called?.arguments ?? "";
}

/** A call's arguments as they are best read. */
function prettyArguments(text) {
  try {
    return JSON.stringify(JSON.parse(text), null, 2);
  } catch {
    return text;
  }
}

/** The calls that each element shows. */
const shown = new WeakMap();

/** Shows an answer's calls; the last answer's have a field for their result. */
export function showCalls(parent, message, isStreaming) {
  const calls = message.calls ?? [];
  parent.hidden = calls.length === 0;
  const isOpen = !isStreaming && state.messages.at(-1) === message;
  const key = JSON.stringify([calls, isOpen]);
  if (calls.length === 0 || shown.get(parent) === key) return;
  shown.set(parent, key);
  parent.replaceChildren(...calls.map(makeCall));
  if (isOpen) parent.append(makeResultForm(parent, message));
}

function makeCall(call) {
  const block = make("details", "call");
  block.open = true;
  const summary = make("summary");
  summary.append(makeIcon("tool"), make("span", "call-name", call.name));
  const pre = make("pre", "", prettyArguments(call.arguments));
  pre.tabIndex = 0;
  block.append(summary, pre);
  if (call.result !== undefined) {
    const result = make("pre", "result", call.result);
    result.tabIndex = 0;
    block.append(make("div", "call-label", "Result"), result);
  }
  return block;
}

function makeResultForm(parent, message) {
  const form = make("form", "result-form");
  const areas = message.calls.map((call) => {
    const label = make("label", "", `Result of ${call.name}`);
    const area = make("textarea");
    area.value = call.result ?? "";
    area.rows = 2;
    area.addEventListener("input", () => fitHeight(area));
    label.append(area);
    form.append(label);
    return area;
  });
  form.append(make("button", "small strong", "Send results"));
  form.addEventListener("submit", (event) => {
    event.preventDefault();
    if (state.run) return;
    message.calls.forEach((call, index) => {
      call.result = areas[index].value;
    });
    emit("results", message);
  });
  return form;
}
