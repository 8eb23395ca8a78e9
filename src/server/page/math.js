/** TeX in Markdown, shown as MathML by Temml, which is loaded when there is some. */

import { loadScript, loadStyle, once } from "./lazy.js";
import { safeMath } from "./sanitize.js";

const load = once(async () => {
  loadStyle("temml.css");
  await loadScript("temml.js");
});

const escapes = { "&": "&amp;", "<": "&lt;", ">": "&gt;", '"': "&quot;" };

export const escapeHtml = (text) => text.replace(/[&<>"]/g, (one) => escapes[one]);

const BLOCK = /^(?:\$\$([^$]+?)\$\$|\\\[([^]+?)\\\])[ \t]*(?:\n|$)/;
const INLINE = [
  /^\$\$([^$]+?)\$\$/,
  /^\\\((.+?)\\\)/s,
  /^\\\[(.+?)\\\]/s,
  // not "$5 and $6": no space inside, and no digit after
  /^\$(?![\s$])((?:\\.|[^$\\\n])*?)(?<![\s\\])\$(?!\d)/,
];

/** Where TeX may begin in a text; undefined if nowhere. */
function startOf(text, pattern) {
  const at = text.search(pattern);
  return at < 0 ? undefined : at;
}

/** Extensions of marked: TeX becomes elements with its source as their text. */
export const mathExtensions = [
  {
    name: "mathBlock",
    level: "block",
    start: (text) => startOf(text, /\$\$|\\\[/),
    tokenizer(text) {
      const found = BLOCK.exec(text);
      if (!found) return undefined;
      return { type: "mathBlock", raw: found[0], tex: (found[1] ?? found[2]).trim() };
    },
    renderer: ({ tex }) => `<div class="math-block">${escapeHtml(tex)}</div>\n`,
  },
  {
    name: "mathInline",
    level: "inline",
    start: (text) => startOf(text, /\$|\\[([]/),
    tokenizer(text) {
      for (const [index, pattern] of INLINE.entries()) {
        const found = pattern.exec(text);
        const isBlock = index === 0 || index === 2;
        if (found) return { type: "mathInline", raw: found[0], tex: found[1].trim(), isBlock };
      }
      return undefined;
    },
    renderer: ({ tex, isBlock }) =>
      `<span class="${isBlock ? "math-block" : "math-inline"}">${escapeHtml(tex)}</span>`,
  },
];

/** Shows the TeX below an element as formulas, at once if Temml is there. */
export function showMath(parent) {
  const elements = [...parent.querySelectorAll(".math-inline, .math-block")];
  if (elements.length === 0) return;
  if (window.temml) {
    elements.forEach(showFormula);
    return;
  }
  load().then(() => elements.forEach(showFormula), (error) => console.warn(error));
}

/** Shows one formula; invalid TeX stays as it was written. */
function showFormula(element) {
  const tex = element.textContent;
  const displayMode = element.classList.contains("math-block");
  try {
    const html = window.temml.renderToString(tex, { displayMode, throwOnError: true });
    element.replaceChildren(safeMath(html));
    if (displayMode) element.tabIndex = 0;
  } catch {
    element.classList.add("not-tex");
  }
}
