/** Editing a message: a question is sent again, an answer gets another version. */

import { fitHeight, make } from "./dom.js";
import { showImages } from "./images.js";

export const isSendKey = (event) =>
  event.key === "Enter" && !event.shiftKey && !event.isComposing;

/** Opens an editor in a message's view; calls back with the new text and attachments. */
export function openEditor(view, onDone) {
  const { message, isAnswer } = view;
  const editor = make("form", "editor");
  const area = make("textarea");
  area.value = message.content;
  area.setAttribute("aria-label", isAnswer ? "Edit answer" : "Edit message");
  const list = make("ul", "images");
  list.setAttribute("aria-label", "Attachments to send again");
  let attached = [...message.images ?? [], ...message.files ?? []];
  const remove = (one) => {
    attached = attached.filter((other) => other !== one);
    showImages(list, attached, remove, area);
  };
  if (!isAnswer) showImages(list, attached, remove, area);
  const close = () => {
    editor.remove();
    view.hideBehind(null);
  };
  editor.append(list, area, makeButtons(isAnswer ? "Save" : "Send", close));
  area.addEventListener("keydown", (event) => {
    if (event.key === "Escape") {
      event.stopPropagation();
      close();
    } else if (isSendKey(event) && (!isAnswer || event.ctrlKey || event.metaKey)) {
      event.preventDefault();
      editor.requestSubmit();
    }
  });
  editor.addEventListener("submit", (event) => {
    event.preventDefault();
    if (area.value.trim() === "" && attached.length === 0) return;
    close();
    onDone(area.value, attached);
  });
  area.addEventListener("input", () => fitHeight(area));
  view.hideBehind(editor);
  fitHeight(area);
  area.focus();
}

function makeButtons(label, onCancel) {
  const buttons = make("div", "editor-buttons");
  const cancel = make("button", "small", "Cancel");
  cancel.type = "button";
  cancel.addEventListener("click", onCancel);
  buttons.append(cancel, make("button", "small strong", label));
  return buttons;
}
