/** The popup of a token: what else it could have been. */

import { byId, make } from "./dom.js";
import { percent } from "./format.js";
import { shownPieces } from "./plain_text.js";
import { state, views } from "./state.js";
import { stripStep } from "./strip.js";
import { probabilityOf } from "./tokens.js";

export const popup = { element: byId("popup"), token: null, isPinned: false };

/** Spaces and line ends made visible. */
function glyphsOf(text) {
  const seen = text.replaceAll(" ", "␣").replaceAll("\n", "↵").replaceAll("\t", "⇥")
    .replaceAll("\r", "␍");
  return seen === "" ? "(no text)" : seen;
}

function showPopup(token, isPinned) {
  const piece = shownPieces.get(token);
  if (!piece) return;
  if (popup.token !== token) {
    popup.token?.classList.remove("shown");
    token.classList.add("shown");
    const listed = piece.tokens.length > 1 ? 2 : Infinity;
    popup.element.replaceChildren(...piece.tokens.map((one) => makeChoice(one, listed)));
    popup.token?.removeAttribute("aria-describedby");
    token.setAttribute("aria-describedby", "popup");
    popup.token = token;
  }
  popup.isPinned = isPinned;
  popup.element.classList.toggle("pinned", isPinned);
  popup.element.hidden = false;
  placePopup(token);
}

export function hidePopup() {
  popup.token?.classList.remove("shown");
  popup.token?.removeAttribute("aria-describedby");
  popup.token = null;
  popup.isPinned = false;
  popup.element.hidden = true;
}

/** Below the token, or above where there is more room, and never outside of the window. */
function placePopup(token) {
  const at = token.getClientRects()[0] ?? token.getBoundingClientRect();
  const { offsetWidth: width, offsetHeight: height, style } = popup.element;
  const below = at.bottom + 8;
  const fitsBelow = below + height <= window.innerHeight - 8;
  const top = fitsBelow || at.top < window.innerHeight / 2 ? below : at.top - height - 8;
  const left = at.left + at.width / 2 - Math.min(width / 2, 64);
  style.top = `${Math.max(8, Math.min(top, window.innerHeight - height - 8))}px`;
  style.left = `${Math.max(8, Math.min(left, window.innerWidth - width - 8))}px`;
}

/** Keeps the popup beside its token while the conversation moves, or closes it. */
export function followToken() {
  if (!popup.token) return;
  const token = popup.token.getBoundingClientRect();
  const scroller = byId("scroller").getBoundingClientRect();
  if (token.height > 0 && token.bottom > scroller.top && token.top < scroller.bottom) {
    placePopup(popup.token);
  } else {
    hidePopup();
  }
}

/** Makes the list of alternatives that a token was chosen from, at most `listed`. */
function makeChoice(token, listed) {
  const choice = make("div", "choice");
  const head = make("div", "choice-head");
  head.append(
    make("bdi", "glyphs", glyphsOf(token.text)),
    make("span", "", percent(probabilityOf(token))),
  );
  const rank = token.alternatives.findIndex(({ text }) => text === token.text);
  const logprob = token.logprob === null ? "−∞" : token.logprob.toFixed(3).replace("-", "−");
  const facts = [`log-probability ${logprob}`];
  if (rank >= 0) facts.push(`rank ${rank + 1}`);
  else if (token.alternatives.length > 0) facts.push(`rank > ${token.alternatives.length}`);
  choice.append(
    head,
    make("div", "choice-facts", facts.join(" · ")),
    makeAlternatives(token, rank, listed),
  );
  return choice;
}

function makeAlternatives(token, rank, listed) {
  const list = make("ul", "alternatives");
  const rows = token.alternatives.map((other, index) => [other, index === rank]).slice(0, listed);
  if (!rows.some(([, isChosen]) => isChosen)) rows.push([token, true]);
  for (const [other, isChosen] of rows) {
    const row = makeAlternative(glyphsOf(other.text), probabilityOf(other));
    row.classList.toggle("chosen", isChosen);
    if (isChosen) row.setAttribute("aria-current", "true");
    list.append(row);
  }
  const rest = 1 - rows.reduce((sum, [other]) => sum + probabilityOf(other), 0);
  if (rest > 0.00005) {
    const row = makeAlternative("", rest);
    row.firstChild.replaceWith(make("span", "", "all others"));
    row.classList.add("others");
    list.append(row);
  }
  return list;
}

function makeAlternative(text, probability) {
  const row = make("li", "alternative");
  const bar = make("span", "likelihood");
  bar.style.width = `${Math.min(100, probability * 100)}%`;
  row.append(make("bdi", "glyphs", text), make("span", "", percent(probability)), bar);
  return row;
}

export function watchTokens() {
  const messages = byId("messages");
  const tokenAt = (event) => event.target.closest?.(".token");
  messages.addEventListener("pointerover", (event) => {
    if (event.pointerType === "touch" || popup.isPinned) return;
    const token = tokenAt(event);
    if (token) showPopup(token, false);
    else if (!event.target.closest?.(".strip")) hidePopup();
  });
  messages.addEventListener("pointerleave", () => {
    if (!popup.isPinned) hidePopup();
  });
  messages.addEventListener("focusin", (event) => {
    const token = tokenAt(event);
    if (token) showPopup(token, popup.isPinned);
  });
  messages.addEventListener("focusout", (event) => {
    // A click into a pinned popup takes the focus to nowhere and closes nothing.
    if (!popup.isPinned || event.relatedTarget) hidePopup();
  });
  messages.addEventListener("keydown", (event) => {
    if (tokenAt(event)) moveBetweenTokens(event);
  });
  // A click pins the popup, so that it can be read and its text marked; another one lets it go.
  document.addEventListener("click", (event) => {
    if (popup.element.contains(event.target)) return;
    const token = tokenAt(event);
    const wasPinned = popup.isPinned && popup.token === token;
    if (token && !wasPinned) showPopup(token, true);
    else if (popup.isPinned) hidePopup();
  });
  messages.addEventListener("pointermove", pointAtStrip);
  messages.addEventListener("click", pointAtStrip);
}

/** Arrow keys, Home and End go from token to token; Shift goes to the next unsure one. */
function moveBetweenTokens(event) {
  const steps = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity };
  const step = steps[event.key];
  if (step === undefined || event.ctrlKey || event.altKey || event.metaKey) return;
  event.preventDefault();
  const tokens = shownTokensOf(event.target.closest(".message"));
  const here = tokens.indexOf(event.target);
  let there = Math.max(0, Math.min(tokens.length - 1, here + step));
  if (event.shiftKey && Number.isFinite(step)) {
    const isSure = (token) => Number(token.dataset.surprise) < 3;
    while (tokens[there + step] && isSure(tokens[there])) there += step;
  }
  event.target.tabIndex = -1;
  tokens[there].tabIndex = 0;
  tokens[there].focus();
  tokens[there].scrollIntoView({ block: "nearest" });
  showPopup(tokens[there], popup.isPinned);
}

function shownTokensOf(message) {
  const tokens = message.querySelectorAll(".token");
  return Array.from(tokens).filter((token) => token.getClientRects().length > 0);
}

/** The strip of an answer shows the token under the pointer, and a click scrolls there. */
function pointAtStrip(event) {
  const strip = event.target.closest?.(".strip");
  if (!strip || (popup.isPinned && event.type !== "click")) return;
  const message = strip.closest(".message");
  const body = message.querySelector(".body");
  const pieces = state.messages.find((one) => views.get(one)?.element === message).pieces.content;
  const { left, width } = strip.getBoundingClientRect();
  const index = Math.floor((event.clientX - left) / stripStep(width, pieces));
  const piece = pieces[Math.max(0, Math.min(pieces.length - 1, index))];
  const token = shownTokensOf(body).find((one) => shownPieces.get(one) === piece);
  if (!token) return;
  if (event.type === "click") token.scrollIntoView({ block: "center" });
  showPopup(token, false);
}
