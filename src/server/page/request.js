/** The body of a request, from the conversation and the settings. */

import { state } from "./state.js";
import { offeredTools } from "./tools.js";

/**
 * The messages to send. A question that got no answer is left out: many templates want the two to
 * alternate.
 */
export function messagesToSend(shown) {
  return shown.filter((message, index) => {
    if (message.role === "assistant") return hasAnswer(message);
    const next = shown[index + 1];
    return !next || next.role === "user" || hasAnswer(next);
  });
}

const hasAnswer = ({ content, calls = [] }) =>
  content !== "" || calls.some(({ result }) => result !== undefined);

export function requestBody(messages) {
  const system = state.settings.system.trim();
  const { tools } = offeredTools();
  return {
    ...(state.model && { model: state.model }),
    messages: [
      ...(system ? [{ role: "system", content: state.settings.system }] : []),
      ...messages.flatMap(sentAs),
    ],
    ...(tools.length > 0 && { tools }),
    ...samplingFields(),
    stream: true,
    stream_options: { include_usage: true },
    ...(state.settings.probabilities && { logprobs: true, top_logprobs: 5 }),
  };
}

/** A message as the server takes it; calls with results are followed by these. */
function sentAs(message) {
  const calls = (message.calls ?? []).filter(({ result }) => result !== undefined);
  const content = contentOf(message);
  if (calls.length === 0) return [{ role: message.role, content }];
  return [
    {
      role: message.role,
      content,
      tool_calls: calls.map((call) => ({
        id: call.id,
        type: "function",
        function: { name: call.name, arguments: call.arguments },
      })),
    },
    ...calls.map(({ id, result }) => ({ role: "tool", tool_call_id: id, content: result })),
  ];
}

/** A message's text, behind its files; or its images and then its text. */
function contentOf({ content, images = [], files = [] }) {
  const text = [...files.map(fileAsText), content].filter((part) => part !== "").join("\n\n");
  const seen = images.filter(({ url }) => url);
  if (seen.length === 0) return text;
  return [
    ...seen.map(({ url }) => ({ type: "image_url", image_url: { url } })),
    ...(text ? [{ type: "text", text }] : []),
  ];
}

/** A file between fences that are longer than any in it. */
function fileAsText({ name, text }) {
  const longest = Math.max(2, ...Array.from(text.matchAll(/`{3,}/g), ([run]) => run.length));
  const fence = "`".repeat(longest + 1);
  return `File ${name}:\n${fence}\n${text.trimEnd()}\n${fence}`;
}

/** The sampling fields that are filled in and valid. */
export function samplingFields() {
  const fields = {};
  for (const input of document.querySelectorAll("[data-field]")) {
    if (input.value !== "" && input.validity.valid) {
      fields[input.dataset.field] = Number(input.value);
    }
  }
  return fields;
}
