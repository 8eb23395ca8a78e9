/** Staying at the end of the conversation, unless the reader has scrolled up. */

import { byId } from "./dom.js";
import { followToken } from "./popup.js";

let isAtEnd = true;

export function watchScrolling(onResize) {
  const scroller = byId("scroller");
  let lastTop = 0;
  let lastHeight = 0;
  scroller.addEventListener("scroll", () => {
    // Even a little way up is meant; downwards, nearly at the end is enough. What becomes smaller
    // moves the place, too, but is not meant.
    const isUpwards = scroller.scrollTop < lastTop && scroller.scrollHeight >= lastHeight;
    const left = scroller.scrollHeight - scroller.scrollTop - scroller.clientHeight;
    isAtEnd = left < (isUpwards ? 1 : 40);
    lastTop = scroller.scrollTop;
    lastHeight = scroller.scrollHeight;
    byId("latest").hidden = isAtEnd;
    followToken();
  });
  byId("latest").addEventListener("click", scrollToEnd);
  new ResizeObserver(() => {
    stayAtEnd();
    onResize();
    followToken();
  }).observe(scroller);
  new ResizeObserver(stayAtEnd).observe(byId("messages"));
}

export function scrollToEnd() {
  isAtEnd = true;
  stayAtEnd();
}

export function stayAtEnd() {
  if (isAtEnd) byId("scroller").scrollTop = byId("scroller").scrollHeight;
}
