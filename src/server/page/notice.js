/** A line that is shown for a while, and may offer to do something about what it says. */

import { byId, make } from "./dom.js";

const SHOWN_MS = 10_000;
let timer = 0;

/** Says something for a while; with a label, beside a button that does something about it. */
export function showNotice(text, label, action) {
  hideNotice();
  byId("notice").append(make("span", "", text));
  if (label) {
    const button = make("button", "small", label);
    button.type = "button";
    button.addEventListener("click", () => {
      hideNotice();
      action();
    });
    byId("notice").append(button);
  }
  timer = setTimeout(hideNotice, SHOWN_MS);
}

export function hideNotice() {
  clearTimeout(timer);
  byId("notice").replaceChildren();
}
