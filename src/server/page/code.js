/** Blocks of code: their head, and their colours by highlight.js, which is loaded when needed. */

import { make, makeButton } from "./dom.js";
import { once } from "./lazy.js";
import { safeCode } from "./sanitize.js";

// Longer code would take longer than a frame.
const MAX_COLOURED = 60_000;

const load = once(() => import("./vendor/highlight.js"));
let highlighter = null;

/** Puts a head with the language and a button around a `pre`. */
export function frameCode(pre) {
  const code = pre.querySelector("code") ?? pre;
  const language = [...code.classList].find((name) => name.startsWith("language-"))?.slice(9);
  const block = make("div", "code-block");
  const head = make("div", "code-head");
  head.dataset.language = language ?? "code";
  head.append(makeButton("copy-code", "copy", "Copy code", false));
  pre.replaceWith(block);
  block.append(head, pre);
  pre.tabIndex = 0;
}

/** Colours the code below an element, at once if the highlighter is there. */
export function colourCode(parent) {
  const codes = [...parent.querySelectorAll("pre > code[class]")];
  if (codes.length === 0) return;
  if (highlighter) {
    codes.forEach(colour);
    return;
  }
  load().then((module) => {
    highlighter = module.default;
    codes.forEach(colour);
  }, (error) => console.warn(error));
}

function colour(code) {
  const language = code.className.replace("language-", "");
  const text = code.textContent;
  if (!highlighter.getLanguage(language) || text.length > MAX_COLOURED) return;
  const { value } = highlighter.highlight(text, { language, ignoreIllegals: true });
  code.replaceChildren(safeCode(value));
}
