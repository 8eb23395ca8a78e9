/** Images and text files that wait to be sent. */

import { byId } from "./dom.js";
import { count, short } from "./format.js";
import { imagesOf, makeImage, showImages } from "./images.js";
import { once } from "./lazy.js";
import { showNotice } from "./notice.js";
import { emit, state } from "./state.js";

const IMAGE_TYPES = ["image/png", "image/jpeg", "image/webp", "image/bmp", "image/gif"];

const MAX_FILE = 64 * 2 ** 20;

/** Attachments of the message that is being written. */
export const drafts = { all: [] };

function showDrafts() {
  showImages(byId("drafts"), drafts.all, removeDraft, byId("input"));
  emit("drafts");
}

function removeDraft(one) {
  drafts.all = drafts.all.filter((other) => other !== one);
  showDrafts();
}

/** Takes what is attached away, to be sent. */
export function takeDrafts() {
  const { all } = drafts;
  drafts.all = [];
  showDrafts();
  return all;
}

/** Adds files to the message that is being written, or says why not. */
export async function addFiles(files) {
  const complaints = [];
  for (const file of files) {
    try {
      const draft = file.type.startsWith("image/") ? await readImage(file) : await readText(file);
      drafts.all = [...drafts.all, draft];
      showDrafts();
    } catch (error) {
      complaints.push(error.message);
    }
  }
  if (complaints.length > 0) showNotice(complaints.join(" "));
  byId("input").focus();
}

/** A file as it is: the server, not the browser, scales it, as it would scale it elsewhere. */
async function readImage(file) {
  const name = file.name || "image";
  if (!state.limits?.images) {
    throw new Error("The model of this server takes text only, no images.");
  }
  if (!IMAGE_TYPES.includes(file.type)) {
    throw new Error(`${name} is not a PNG, JPEG, WebP, BMP or GIF image.`);
  }
  const others = [...imagesOf(state.messages), ...drafts.all.filter(({ key }) => key)];
  const { images: most, bodyBytes } = state.limits;
  if (others.length >= most) {
    throw new Error(`A chat can have ${count(most, "image")}.`);
  }
  // In base64, three bytes take four, and the texts of a chat need some room too.
  const size = others.reduce((sum, { url = "" }) => sum + url.length, file.size * 4 / 3);
  if (size > bodyBytes * 0.95) {
    const mib = short(bodyBytes * 0.95 * 3 / 4 / 2 ** 20);
    throw new Error(`${name} is too large: the images of a chat can have ${mib} MiB together.`);
  }
  const url = await dataUrlOf(file);
  const image = { key: crypto.getRandomValues(new Uint32Array(4)).join("-"), name, url };
  try {
    await makeImage(image).decode();
  } catch {
    throw new Error(`${name} cannot be read as an image.`);
  }
  return image;
}

const loadPdf = once(() => import("./pdf.js"));

/** The text of a PDF file. */
async function readPdf(name, bytes) {
  const { textOfPdf } = await loadPdf();
  try {
    return await textOfPdf(new Uint8Array(bytes));
  } catch (error) {
    throw new Error(`${name} ${error.message}.`);
  }
}

function decode(name, bytes) {
  let text = "\0";
  try {
    text = new TextDecoder("utf-8", { fatal: true }).decode(bytes);
  } catch {
    // then it is no text, as one with zeros
  }
  if (text.includes("\0")) {
    throw new Error(`${name} is neither an image nor a PDF file nor a text in UTF-8.`);
  }
  return text;
}

/** Reads any file that is text, by any name, and the text of a PDF file. */
async function readText(file) {
  const name = file.name || "text";
  const checkSize = (size, most) => {
    if (size > most) throw new Error(`${name} is too large: ${short(size / 2 ** 20)} MiB.`);
  };
  checkSize(file.size, MAX_FILE);
  const bytes = await file.arrayBuffer();
  const beginning = new TextDecoder("latin1").decode(bytes.slice(0, 1024));
  const isPdf = beginning.includes("%PDF-");
  const text = isPdf ? await readPdf(name, bytes) : decode(name, bytes);
  checkSize(text.length, (state.limits?.bodyBytes ?? 2 ** 23) / 2);
  return { name, text: text.replaceAll("\r\n", "\n") };
}

function dataUrlOf(file) {
  return new Promise((resolve, reject) => {
    const reader = new FileReader();
    reader.onload = () => resolve(reader.result);
    reader.onerror = () => reject(new Error(`${file.name} cannot be read.`));
    reader.readAsDataURL(file);
  });
}

const hasFiles = (event) => event.dataTransfer?.types.includes("Files") ?? false;

export function listenToFiles() {
  const files = byId("files");
  byId("add").addEventListener("click", () => files.click());
  files.addEventListener("change", () => {
    addFiles([...files.files]);
    // The same file may be chosen again.
    files.value = "";
  });
  document.addEventListener("dragover", (event) => {
    if (!hasFiles(event)) return;
    event.preventDefault();
    byId("write").classList.add("dropping");
  });
  document.addEventListener("dragleave", (event) => {
    if (!event.relatedTarget) byId("write").classList.remove("dropping");
  });
  document.addEventListener("drop", (event) => {
    if (!hasFiles(event)) return;
    // Without this the browser would leave the page and show the file.
    event.preventDefault();
    byId("write").classList.remove("dropping");
    addFiles([...event.dataTransfer.files]);
  });
  document.addEventListener("paste", (event) => {
    const { files: pasted, types } = event.clipboardData;
    // Spreadsheets and text processors add an image of what is copied to its text.
    if (pasted.length === 0 || types.includes("text/plain")) return;
    event.preventDefault();
    addFiles([...pasted]);
  });
  byId("viewer").addEventListener("click", () => byId("viewer").close());
}
