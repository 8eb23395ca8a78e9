/** Markdown, block by block: while a text grows, only its last blocks are made anew. */

import { colourCode, frameCode } from "./code.js";
import { make } from "./dom.js";
import { escapeHtml, mathExtensions, showMath } from "./math.js";
import { safeMarkdown } from "./sanitize.js";
import { Marked } from "./vendor/marked.js";

// Tags without attributes that models use inside of texts; all others are shown as they are.
const INLINE_TAG = /^<\/?(?:b|br|em|i|kbd|mark|s|strong|sub|sup|u)\s*\/?>$/i;

const renderer = {
  html({ text, block }) {
    if (INLINE_TAG.test(text.trim())) return text;
    return block ? `<p class="raw-html">${escapeHtml(text.trimEnd())}</p>` : escapeHtml(text);
  },
  // An image would be fetched from elsewhere; a link says where it is.
  image({ href, text }) {
    const name = escapeHtml(text || href);
    return `<a href="${escapeHtml(href)}">${name}</a>`;
  },
  checkbox: ({ checked }) => `<span class="task">${checked ? "☑" : "☐"}</span> `,
};

const marked = new Marked({ gfm: true }, { renderer, extensions: mathExtensions });

/** The blocks of a text: marked's tokens, without the space between them. */
function blocksOf(text) {
  const tokens = marked.lexer(text);
  const links = Object.keys(tokens.links).length;
  return tokens.filter(({ type }) => type !== "space" && type !== "def")
    .map((token) => ({ token, key: `${links}:${token.type}:${token.raw}` }));
}

export class MarkdownView {
  constructor(parent) {
    this.parent = parent;
    this.blocks = [];
  }

  /** Shows a text; the last block of one that still grows gets its colours later. */
  show(text, isGrowing) {
    const blocks = blocksOf(text);
    blocks.forEach((block, index) => {
      const isLast = isGrowing && index === blocks.length - 1;
      const shown = this.blocks[index];
      if (shown?.key === block.key) {
        if (!isLast) this.colour(shown);
        return;
      }
      const element = make("div", "md");
      element.dir = "auto";
      element.append(elementsOf(block.token));
      showMath(element);
      if (shown) shown.element.replaceWith(element);
      else this.parent.append(element);
      this.blocks[index] = { key: block.key, element, isColoured: false };
      if (!isLast) this.colour(this.blocks[index]);
    });
    for (const { element } of this.blocks.splice(blocks.length)) element.remove();
  }

  colour(block) {
    if (block.isColoured) return;
    block.isColoured = true;
    colourCode(block.element);
  }

  clear() {
    for (const { element } of this.blocks.splice(0)) element.remove();
  }
}

/** A block's elements, with what Markdown has no words for: code's head, wide tables' frame. */
function elementsOf(token) {
  const fragment = safeMarkdown(marked.parser([token]));
  for (const pre of fragment.querySelectorAll("pre")) frameCode(pre);
  for (const table of fragment.querySelectorAll("table")) {
    const frame = make("div", "table-frame");
    frame.tabIndex = 0;
    table.replaceWith(frame);
    frame.append(table);
  }
  return fragment;
}
