/** A text as it came: its tokens, and its fenced code. */

import { make, makeButton } from "./dom.js";
import { pieceProbability, surpriseOf } from "./tokens.js";

const FENCE = /^\s*(`{3,}|~{3,})([^`]*)$/;

/**
 * Cuts a text into plain text and fenced code. Of each block, `start..bodyStart` and
 * `bodyEnd..end` stay in the page but are not shown: fences, and line ends beside code.
 */
function blocksOf(text) {
  const blocks = [];
  let code = null;
  let plainStart = 0;
  for (let at = 0, next; at < text.length; at = next) {
    next = text.indexOf("\n", at) + 1 || text.length;
    const line = text.slice(at, next).trimEnd();
    if (code) {
      if (!closesFence(line, code.fence)) continue;
      blocks.push({ ...code, bodyEnd: at, end: next });
      code = null;
      plainStart = next;
    } else {
      const [opens, fence, language] = FENCE.exec(line) ?? [];
      if (opens === undefined) continue;
      addPlainBlock(blocks, text, plainStart, at, true);
      code = { kind: "code", fence, language: language.trim(), start: at, bodyStart: next };
    }
  }
  if (code) blocks.push({ ...code, bodyEnd: text.length, end: text.length });
  else addPlainBlock(blocks, text, plainStart, text.length, false);
  return blocks;
}

function closesFence(line, fence) {
  const marks = line.trim();
  return marks.length >= fence.length && marks === fence[0].repeat(marks.length);
}

function addPlainBlock(blocks, text, start, end, codeFollows) {
  if (start === end) return;
  let [bodyStart, bodyEnd] = [start, end];
  if (blocks.length > 0) while (bodyStart < end && text[bodyStart] === "\n") bodyStart++;
  if (codeFollows) while (bodyEnd > bodyStart && text[bodyEnd - 1] === "\n") bodyEnd--;
  blocks.push({ kind: "plain", start, bodyStart, bodyEnd, end });
}

/** A part of a text as runs: tokens, and plain text between them. */
function runsBetween(text, pieces, from, to) {
  const runs = [];
  const add = (start, end, piece) => {
    if (start < end) {
      runs.push({ text: text.slice(start, end), piece, tokens: piece?.tokens.length });
    }
  };
  let at = from;
  for (let index = firstPieceAfter(pieces, from); index < pieces.length; index++) {
    const piece = pieces[index];
    if (piece.start >= to) break;
    const start = Math.max(piece.start, from);
    const end = Math.min(piece.end, to);
    add(at, start, null);
    add(start, end, piece);
    at = end;
  }
  add(at, to, null);
  return runs;
}

function firstPieceAfter(pieces, offset) {
  let [low, high] = [0, pieces.length];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (pieces[middle].end > offset) high = middle;
    else low = middle + 1;
  }
  return low;
}

/** Which piece of which answer an element shows. */
export const shownPieces = new WeakMap();

/** An element whose runs grow at the end; what is already there is left alone. */
class RunsView {
  constructor(parent) {
    this.parent = parent;
    this.runs = [];
  }

  show(runs) {
    let same = 0;
    while (same < runs.length && this.isShown(runs[same], same)) same++;
    while (this.parent.childNodes.length > same) this.parent.lastChild.remove();
    this.parent.append(...runs.slice(same).map(makeRun));
    this.runs = runs;
  }

  isShown(run, index) {
    const shown = this.runs[index];
    return shown?.text === run.text && shown.piece === run.piece && shown.tokens === run.tokens;
  }
}

function makeRun({ text, piece }) {
  if (!piece) return document.createTextNode(text);
  const span = make("span", "token", text);
  span.tabIndex = -1;
  span.dataset.surprise = surpriseOf(pieceProbability(piece));
  const breakAt = text.indexOf("\n");
  if (breakAt >= 0) {
    span.replaceChildren(text.slice(0, breakAt), make("span", "break"), text.slice(breakAt));
  }
  shownPieces.set(span, piece);
  return span;
}

class BlockView {
  constructor(kind) {
    this.kind = kind;
    const body = kind === "code" ? make("code") : make("span");
    const parts = [make("span", "fence"), body, make("span", "fence")];
    if (kind === "code") {
      this.element = make("div", "code-block");
      this.head = make("div", "code-head");
      this.head.append(makeButton("copy-code", "copy", "Copy code", false));
      const pre = make("pre");
      pre.tabIndex = 0;
      pre.append(...parts);
      this.element.append(this.head, pre);
    } else {
      this.element = make("div", "text");
      this.element.dir = "auto";
      this.element.append(...parts);
    }
    this.parts = parts.map((part) => new RunsView(part));
  }

  show(text, pieces, block) {
    const edges = [block.start, block.bodyStart, block.bodyEnd, block.end];
    this.parts.forEach((part, index) => {
      part.show(runsBetween(text, pieces, edges[index], edges[index + 1]));
    });
    if (this.head) this.head.dataset.language = block.language || "code";
  }
}

/** A text with its fenced code, inside one element. */
export class TextView {
  constructor(parent) {
    this.parent = parent;
    this.blocks = [];
  }

  show(text, pieces = []) {
    const blocks = blocksOf(text);
    const changed = this.blocks.findIndex((view, index) => view.kind !== blocks[index]?.kind);
    if (changed >= 0) {
      for (const view of this.blocks.splice(changed)) view.element.remove();
    }
    blocks.forEach((block, index) => {
      if (!this.blocks[index]) {
        this.blocks[index] = new BlockView(block.kind);
        this.parent.append(this.blocks[index].element);
      }
      this.blocks[index].show(text, pieces, block);
    });
  }

  clear() {
    for (const { element } of this.blocks.splice(0)) element.remove();
  }
}
