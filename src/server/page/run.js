/** One answer: it is asked for, comes token by token, and ends. */

import { saveChat } from "./chats.js";
import { addMessage, showConversation } from "./conversation.js";
import { factsOf, showFacts } from "./facts.js";
import { askForKey } from "./key.js";
import { messagesToSend, requestBody, samplingFields } from "./request.js";
import { scrollToEnd, stayAtEnd } from "./scroll.js";
import { ask, errorOf, readEvents, ServerError } from "./server.js";
import { emit, state, views } from "./state.js";
import { takeCall } from "./tools.js";
import {
  bytesOfArray, bytesOfText, newTrack, placeTokens, tokenOf,
} from "./tokens.js";

// An answer that is being written is kept this often.
const KEPT_EVERY_MS = 3000;

/** A run that writes into a message, behind what is already in it. */
function newRun(message) {
  message.pieces ??= { content: [], reasoning: [] };
  delete message.note;
  delete message.failure;
  return {
    message,
    controller: new AbortController(),
    waiting: [],
    tracks: {
      content: trackBehind(message.content, message.pieces.content),
      reasoning: trackBehind(message.reasoning ?? "", message.pieces.reasoning),
    },
    clock: { start: performance.now(), first: null, last: null, contentFirst: null },
    generated: 0,
    usage: null,
    timings: null,
    finish: null,
    isDrawing: false,
    hasTokens: state.settings.probabilities,
    keptAt: performance.now(),
    settings: { ...(state.model && { model: state.model }), ...samplingFields() },
  };
}

function trackBehind(text, pieces) {
  const bytes = bytesOfText(text);
  const { length } = bytes;
  return { ...newTrack(pieces), bytes, cursor: length, boundary: length, length: text.length };
}

/** Asks for an answer to the conversation as it is, and shows it as it comes. */
export async function answer() {
  const message = { role: "assistant", content: "", reasoning: "" };
  const messages = messagesToSend(state.messages);
  const run = newRun(message);
  state.run = run;
  addMessage(message);
  await follow(run, messages);
}

/** Asks for more of the last answer. */
export async function continueAnswer(message) {
  if (state.run) return;
  const run = newRun(message);
  state.run = run;
  await follow(run, messagesToSend(state.messages));
}

async function follow(run, messages) {
  showConversation();
  drawRun(run);
  emit("run");
  scrollToEnd();
  try {
    await state.imagesRestored;
    await streamAnswer(run, requestBody(messages));
    noteFinish(run);
  } catch (error) {
    noteFailure(run, error);
    run.controller.abort();
  }
  endRun(run);
}

async function streamAnswer(run, body) {
  const response = await ask("v1/chat/completions", {
    method: "POST",
    headers: { "Content-Type": "application/json", Accept: "text/event-stream" },
    body: JSON.stringify(body),
    signal: run.controller.signal,
  });
  if (!response.ok) throw await errorOf(response);
  for await (const data of readEvents(response.body)) {
    if (data === "[DONE]") return;
    takeChunk(run, JSON.parse(data));
  }
  if (!run.finish) throw new ServerError("The connection ended before the answer did.");
}

function takeChunk(run, chunk) {
  if (chunk.error) throw new ServerError(chunk.error.message ?? String(chunk.error));
  run.id ??= chunk.id;
  run.usage = chunk.usage ?? run.usage;
  run.timings = chunk.timings ?? run.timings;
  const choice = chunk.choices?.[0];
  if (!choice) return;
  run.finish = choice.finish_reason ?? run.finish;
  const tokens = choice.logprobs?.content ?? [];
  for (const entry of tokens) {
    const bytes = Array.isArray(entry.bytes)
      ? bytesOfArray(entry.bytes) : bytesOfText(entry.token ?? "");
    run.waiting.push({ token: tokenOf(entry), bytes });
  }
  const { content, reasoning_content: reasoning, tool_calls: calls } = choice.delta ?? {};
  const hasText = content || reasoning || calls?.length > 0;
  run.generated += tokens.length || (hasText ? 1 : 0);
  if (tokens.length || hasText) markTime(run, content);
  takeText(run, "reasoning", reasoning);
  takeText(run, "content", content);
  for (const call of calls ?? []) takeCall(run.message, call);
  drawSoon(run);
}

function takeText(run, kind, text) {
  if (!text) return;
  run.message[kind] = (run.message[kind] ?? "") + text;
  if (!run.hasTokens) return;
  run.tracks[kind].bytes += bytesOfText(text);
  placeTokens(run.tracks[kind], run.waiting);
}

function markTime(run, content) {
  const now = performance.now();
  run.clock.first ??= now;
  run.clock.last = now;
  if (content) run.clock.contentFirst ??= now;
}

/** Draws at most once for each frame of the screen. */
function drawSoon(run) {
  if (run.isDrawing) return;
  run.isDrawing = true;
  requestAnimationFrame(() => {
    run.isDrawing = false;
    if (state.run !== run) return;
    drawRun(run);
    if (performance.now() - run.keptAt < KEPT_EVERY_MS) return;
    run.keptAt = performance.now();
    saveChat();
  });
}

function drawRun(run) {
  views.get(run.message)?.update();
  stayAtEnd();
}

function noteFinish(run) {
  if (run.finish === "length") run.message.note = "The answer reached its limit of tokens.";
  if (run.finish === "content_filter") run.message.note = "The server withheld the rest.";
}

function noteFailure(run, error) {
  const { message } = run;
  if (error.name === "AbortError") {
    message.note = message.content ? "Stopped." : "Stopped before the first word.";
  } else if (error.status === 401) {
    message.failure = { text: "The server asks for an API key.", status: 401 };
    if (state.run === run) askForKey();
  } else if (error.status === 503) {
    const retryAt = error.retryAfter > 0 ? Date.now() + error.retryAfter * 1000 : 0;
    message.failure = { text: `The server is busy: ${error.message}`, retryAt };
  } else if (error instanceof ServerError) {
    message.failure = { text: error.message };
  } else if (error instanceof SyntaxError) {
    message.failure = { text: "The server sent something that is not JSON." };
  } else {
    message.failure = { text: "The server cannot be reached, or the connection broke." };
  }
}

/** Ends a run whose stream has ended; one that was put aside has nothing to show. */
function endRun(run) {
  if (run.message.pieces?.content.length === 0 && run.message.pieces.reasoning.length === 0) {
    delete run.message.pieces;
  }
  run.message.facts = factsOf(run);
  if (state.run !== run) return;
  state.run = null;
  drawRun(run);
  emit("run");
  showFacts(run.message.facts);
  saveChat();
}

export function stop() {
  state.run?.controller.abort();
}

/** Ends the present answer without another word about it: the conversation changes. */
export function putRunAside() {
  const { run } = state;
  if (!run) return;
  state.run = null;
  run.message.note = "Stopped.";
  run.message.facts = factsOf(run);
  run.controller.abort();
  views.get(run.message)?.update();
  emit("run");
  saveChat();
}
