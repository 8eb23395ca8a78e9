/** A message on the page. */

import { make, makeButton, nameButton } from "./dom.js";
import { samplingOf, shortFacts } from "./facts.js";
import { count, duration } from "./format.js";
import { showImages } from "./images.js";
import { MarkdownView } from "./markdown.js";
import { TextView } from "./plain_text.js";
import { state } from "./state.js";
import { drawStrip } from "./strip.js";
import { showCalls } from "./tools.js";
import { versionsOf } from "./tree.js";

/**
 * An answer's text: as Markdown, or as its tokens where probabilities are asked for and known.
 * A question is shown as it was typed.
 */
class ContentView {
  constructor(parent, isMarkdown) {
    this.parent = parent;
    this.isMarkdown = isMarkdown;
    this.view = null;
    this.shown = {};
  }

  show(text, pieces, isGrowing) {
    const hasTokens = state.settings.probabilities && pieces?.length > 0;
    const last = this.shown;
    const length = hasTokens ? pieces.length : 0;
    if (last.text === text && last.length === length && last.isGrowing === isGrowing) return;
    this.shown = { text, length, isGrowing };
    const isPlain = hasTokens || !this.isMarkdown;
    const View = isPlain ? TextView : MarkdownView;
    if (!(this.view instanceof View)) {
      this.view?.clear();
      this.view = new View(this.parent);
    }
    if (isPlain) this.view.show(text, pieces ?? []);
    else this.view.show(text, isGrowing);
  }
}

/** A message on the page. `update` shows what has changed since the last time. */
export class MessageView {
  constructor(message) {
    this.message = message;
    this.isAnswer = message.role === "assistant";
    this.element = make("article", "message");
    this.element.dataset.role = message.role;
    this.element.setAttribute("aria-label", this.isAnswer ? "Answer" : "You");
    this.body = make("div", "body");
    this.images = make("ul", "images");
    this.images.setAttribute("aria-label", "Attachments");
    if (!this.isAnswer) this.body.append(this.images);
    this.text = new ContentView(this.body, this.isAnswer);
    this.actions = make("div", "actions");
    this.element.append(this.body, this.actions);
    this.addVersions();
    this.copy = makeButton("copy", "copy", "Copy", false);
    this.actions.append(this.copy, makeButton("edit", "edit", "Edit", false));
    if (this.isAnswer) this.addAnswerParts();
  }

  /** Buttons that lead from one version of the message to the next. */
  addVersions() {
    this.versions = make("span", "versions");
    this.versionNumber = make("span", "version");
    const [before, after] = [["version-before", "left", "Version before"],
      ["version-after", "right", "Version after"]].map(([action, icon, label]) =>
      makeButton(action, icon, label, false));
    this.versions.append(before, this.versionNumber, after);
    this.actions.append(this.versions);
  }

  addAnswerParts() {
    this.strip = make("canvas", "strip");
    this.strip.hidden = true;
    this.strip.setAttribute("aria-hidden", "true");
    this.strip.title = "Every token's probability; click to go there";
    this.calls = make("div", "calls");
    this.note = make("div", "note");
    this.failure = make("div", "failure");
    this.failure.setAttribute("role", "alert");
    this.note.hidden = this.failure.hidden = this.calls.hidden = true;
    this.regenerate = makeButton("regenerate", "again", "Regenerate", false);
    this.continue = makeButton("continue", "continue", "Continue", false);
    this.facts = make("span", "facts");
    this.actions.append(this.regenerate, this.continue, this.facts);
    this.body.after(this.strip, this.calls, this.note, this.failure);
  }

  update() {
    const { message } = this;
    const isStreaming = state.run?.message === message;
    this.text.show(message.content, message.pieces?.content, isStreaming);
    this.copy.hidden = message.content === "";
    this.showVersions();
    if (!this.isAnswer) {
      this.showAttachments();
      return;
    }
    this.showReasoning(isStreaming);
    this.element.classList.toggle("streaming", isStreaming);
    this.element.classList.toggle("waiting", isStreaming && message.content === ""
      && !message.reasoning && !message.calls?.length);
    // Screen readers wait for the whole answer instead of reading it word by word.
    if (isStreaming) this.body.setAttribute("aria-live", "polite");
    this.body.setAttribute("aria-busy", String(isStreaming));
    this.note.textContent = message.note ?? "";
    this.note.hidden = !message.note;
    showCalls(this.calls, message, isStreaming);
    this.showFailure();
    const isLast = state.messages.at(-1) === message;
    this.continue.hidden = !isLast || message.content === "" || message.calls?.length > 0;
    nameButton(this.regenerate, message.failure ? "Try again" : "Regenerate");
    this.facts.textContent = isStreaming ? "" : shortFacts(message.facts);
    this.facts.title = samplingOf(message.facts);
    this.makeTokensReachable();
    drawStrip(this.strip, message.pieces?.content ?? []);
  }

  /** Shows images and files, once more only if an image has been read meanwhile. */
  showAttachments() {
    const attached = [...this.message.images ?? [], ...this.message.files ?? []];
    const known = attached.filter(({ url, text }) => url ?? text).length;
    const key = `${known} of ${attached.length}`;
    if (this.images.dataset.shown === key) return;
    this.images.dataset.shown = key;
    showImages(this.images, attached);
  }

  showVersions() {
    const versions = versionsOf(state.nodes, this.message);
    this.versions.hidden = versions.length < 2;
    const at = versions.indexOf(this.message);
    this.versionNumber.textContent = `${at + 1}/${versions.length}`;
    const [before, after] = this.versions.querySelectorAll("button");
    before.disabled = at === 0;
    after.disabled = at === versions.length - 1;
  }

  showReasoning(isStreaming) {
    const { message } = this;
    if (!message.reasoning) return;
    if (!this.thinking) {
      this.thinking = make("details", "thinking");
      this.summary = make("summary");
      const text = make("div", "reasoning");
      this.reasoning = new ContentView(text, true);
      this.thinking.append(this.summary, text);
      this.thinking.addEventListener("toggle", () => this.showThoughts());
      this.body.before(this.thinking);
    }
    const isThinking = isStreaming && message.content === "";
    const took = message.facts?.thinkingMs;
    this.summary.textContent = isThinking ? "Thinking…"
      : took ? `Thought for ${duration(took)}` : "Thoughts";
    this.summary.classList.toggle("is-thinking", isThinking);
    this.showThoughts();
  }

  /** Thoughts that are folded are not made into elements. */
  showThoughts() {
    const { message } = this;
    if (!this.thinking.open) return;
    const isGrowing = state.run?.message === message && message.content === "";
    this.reasoning.show(message.reasoning, message.pieces?.reasoning, isGrowing);
  }

  showFailure() {
    const { failure } = this.message;
    this.failure.hidden = !failure;
    if (!failure) return;
    const seconds = Math.ceil((failure.retryAt - Date.now()) / 1000);
    const text = failure.text + (seconds > 0 ? ` Try again in ${count(seconds, "second")}.` : "");
    if (this.failure.textContent !== text) this.failure.textContent = text;
    if (seconds > 0) setTimeout(() => this.showFailure(), 250);
  }

  /** One token of a message is in the tab order; arrow keys lead to the others. */
  makeTokensReachable() {
    if (!state.settings.probabilities) return;
    if (this.element.querySelector('.token[tabindex="0"]')) return;
    const first = this.body.querySelector(".token");
    if (first) first.tabIndex = 0;
  }

  /** Puts an editor where the message is, or back to the message. */
  hideBehind(editor) {
    const isHidden = editor !== null;
    this.body.hidden = this.actions.hidden = isHidden;
    this.element.classList.toggle("editing", isHidden);
    if (isHidden) this.element.append(editor);
    else this.actions.querySelector('[data-action="edit"]').focus();
  }
}
