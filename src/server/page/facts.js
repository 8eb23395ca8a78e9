/** Figures of an answer: the server's where it sent them, else by this page's own clock. */

import { byId, make } from "./dom.js";
import { count, duration, short } from "./format.js";
import { state } from "./state.js";

export function factsOf({ clock, generated, usage, timings, message, settings }) {
  const elapsed = clock.last - clock.first;
  const ownSpeed = generated > 1 && elapsed > 0 ? ((generated - 1) / elapsed) * 1000 : null;
  const serverSpeed = timings?.predicted_ms > 0
    ? (timings.predicted_n / timings.predicted_ms) * 1000 : null;
  return {
    firstMs: clock.first === null ? null : clock.first - clock.start,
    generated: usage?.completion_tokens ?? timings?.predicted_n ?? generated,
    speed: serverSpeed ?? ownSpeed,
    prompt: usage?.prompt_tokens ?? null,
    cached: usage?.prompt_tokens_details?.cached_tokens ?? timings?.cache_n ?? null,
    promptSpeed: timings?.prompt_ms > 0 ? (timings.prompt_n / timings.prompt_ms) * 1000 : null,
    perplexity: perplexityOf(message.pieces?.content ?? []),
    thinkingMs: message.reasoning ? (clock.contentFirst ?? clock.last) - clock.first : null,
    settings,
  };
}

function perplexityOf(pieces) {
  // A token inside of two characters belongs to two pieces.
  const tokens = new Set(pieces.flatMap((piece) => piece.tokens));
  let sum = 0;
  for (const { logprob } of tokens) sum += logprob ?? -30;
  return tokens.size > 0 ? Math.exp(-sum / tokens.size) : null;
}

/** The figures that stay below an answer. */
export function shortFacts(facts) {
  if (!facts?.generated) return "";
  const parts = [count(facts.generated, "token")];
  if (facts.speed) parts.push(`${short(facts.speed)}/s`);
  if (facts.perplexity && state.settings.probabilities) {
    parts.push(`perplexity ${short(facts.perplexity)}`);
  }
  return parts.join(" · ");
}

/** How an answer was sampled: the model and the fields that its request had. */
export function samplingOf(facts) {
  const all = Object.entries(facts?.settings ?? {});
  return all.map(([name, value]) => `${name.replaceAll("_", " ")}: ${value}`).join("\n");
}

export function showFacts(facts) {
  const shown = [];
  if (facts.speed) shown.push([short(facts.speed), "tokens/s"]);
  if (facts.generated) shown.push([facts.generated, facts.generated === 1 ? "token" : "tokens"]);
  if (facts.firstMs !== null) shown.push([duration(facts.firstMs), "to first token"]);
  if (facts.prompt !== null) {
    const cached = facts.cached === null ? "" : ` (${facts.cached} cached)`;
    const speed = facts.promptSpeed ? `, ${short(facts.promptSpeed)}/s` : "";
    shown.push([facts.prompt, `prompt tokens${cached}`, speed]);
  }
  byId("stats").replaceChildren(...shown.map(([value, label, detail]) => {
    const fact = make("span");
    fact.append(make("b", "", String(value)), ` ${label}`, make("span", "wide", detail));
    return fact;
  }));
}

export function showLastFacts() {
  const facts = state.messages.at(-1)?.facts;
  if (facts) showFacts(facts);
  else byId("stats").replaceChildren();
}

/** Shows live figures of the answer that is being written. */
export function showLiveFacts() {
  const { run } = state;
  if (run.clock.first !== null) {
    showFacts(factsOf(run));
    return;
  }
  const waited = duration(performance.now() - run.clock.start);
  byId("stats").replaceChildren(make("span", "", `reading the prompt: ${waited}`));
}
