/** Images of messages: kept in the browser's database under keys that messages name. */

import { askDatabase } from "./database.js";
import { make, makeIcon, byId } from "./dom.js";
import { isText } from "./format.js";
import { state, views } from "./state.js";

export const imagesOf = (messages) => messages.flatMap(({ images }) => images ?? []);

export function keepImages(images) {
  for (const { key, url } of images) {
    if (url) askDatabase("readwrite", (store) => store.put(url, key));
  }
}

/** Reads the data URLs of images. */
export async function readImages(images) {
  await Promise.all(images.map(async (image) => {
    if (image.url) return;
    const url = await askDatabase("readonly", (store) => store.get(image.key));
    if (isText(url) && url.startsWith("data:image/")) image.url = url;
  }));
}

/** Reads the images of the open chat, and shows them. */
export async function restoreImages() {
  const messages = state.nodes.filter(({ images }) => images?.length > 0);
  if (messages.length === 0) return;
  await readImages(imagesOf(messages));
  for (const message of messages) views.get(message)?.update();
}

export async function forgetImages(keys) {
  for (const key of keys) await askDatabase("readwrite", (store) => store.delete(key));
}

/**
 * Shows images as a list. Where they may be removed, each has a button for it, and the focus goes
 * from a removed one to the next, or to `after` if none is left.
 */
export function showImages(list, images, onRemove, after) {
  const items = [...list.children];
  const focused = items.findIndex((item) => item.contains(document.activeElement));
  list.replaceChildren(...images.map((image) => makeImageItem(image, onRemove)));
  if (focused < 0 || !onRemove) return;
  const buttons = list.querySelectorAll(".remove");
  (buttons[Math.min(focused, buttons.length - 1)] ?? after).focus();
}

function makeImageItem(image, onRemove) {
  const item = make("li", "image");
  if (image.url) {
    const open = make("button", "open");
    open.type = "button";
    open.title = image.name;
    open.append(makeImage(image));
    open.addEventListener("click", () => viewImage(image));
    item.append(open);
  } else if (isText(image.text)) {
    item.append(makeFile(image));
  } else {
    item.append(make("span", "lost", `${image.name} is kept no longer.`));
  }
  if (onRemove) item.append(makeRemove(item, image, onRemove));
  return item;
}

/** A text file, which opens in place. */
function makeFile({ name, text }) {
  const file = make("details", "file");
  const summary = make("summary");
  summary.append(makeIcon("file"), make("span", "file-name", name));
  const pre = make("pre", "", text.slice(0, 20_000));
  pre.tabIndex = 0;
  file.append(summary, pre);
  return file;
}

function makeRemove(item, image, onRemove) {
  const remove = make("button", "remove");
  remove.type = "button";
  remove.setAttribute("aria-label", `Remove ${image.name}`);
  remove.title = "Remove";
  remove.append(makeIcon("close"));
  remove.addEventListener("click", () => onRemove(image));
  item.addEventListener("keydown", (event) => {
    if (["Delete", "Backspace"].includes(event.key)) onRemove(image);
  });
  return remove;
}

export function makeImage({ url, name }) {
  const image = make("img");
  image.alt = name;
  image.src = url;
  return image;
}

function viewImage(image) {
  byId("viewer").replaceChildren(makeImage(image));
  byId("viewer").showModal();
}
