/**
 * Chats that are kept in the browser, under names of their own, as {name, title, time, owner, leaf,
 * nodes}. The owner is the page that wrote it last: a page that finds another owner than itself and
 * the one whose chat it took over, because its tab was duplicated or slept meanwhile, goes on under
 * a new name, so that no tab ever overwrites what another has said.
 */

import { BODIES, CHATS, readChats, writeChats } from "./database.js";
import { firstLine, isText } from "./format.js";
import { forgetImages, imagesOf, keepImages, readImages } from "./images.js";
import { emit, state } from "./state.js";
import { keptForTab, TAB_KEY } from "./storage.js";
import { asBranch, branchTo } from "./tree.js";

/** This page: its name as an owner, and the owner whose chat it took over. */
export const tab = { owner: newName(), heirOf: null, forksOnSave: false };

/** The chats as lists show them, {name, title, time, owner, images}, the newest first. */
export const chats = { list: [], saving: 0, isBroken: false };

export function newName() {
  const numbers = crypto.getRandomValues(new Uint32Array(3));
  return [...numbers].map((number) => number.toString(36)).join("");
}

/** The messages of a record, without what is none. */
export function soundMessages(messages) {
  const sound = Array.isArray(messages) ? messages.filter(isMessage) : [];
  for (const message of sound) {
    const { content, reasoning } = message.pieces ?? {};
    if (!Array.isArray(content) || !Array.isArray(reasoning)) delete message.pieces;
    // Older pages called them pictures.
    const { pictures, images = pictures } = message;
    message.images = listOf(images, (one) => isText(one?.key) && isText(one.name));
    message.files = listOf(message.files, (one) => isText(one?.name) && isText(one.text));
    message.calls = listOf(message.calls, (one) => isText(one?.name) && isText(one.arguments));
    if (message.reasoning !== undefined && !isText(message.reasoning)) delete message.reasoning;
    delete message.pictures;
  }
  return sound;
}

function listOf(value, isSound) {
  return Array.isArray(value) ? value.filter(isSound) : [];
}

function isMessage(value) {
  return ["user", "assistant"].includes(value?.role) && isText(value.content);
}

/** A record with sound messages: older ones are lists without branches. */
export function soundChat(record) {
  const nodes = soundMessages(record?.nodes ?? record?.messages);
  const ids = new Set(nodes.map(({ id }) => id));
  const hasBranches = nodes.every(({ id, parent }) =>
    Number.isInteger(id) && Number.isInteger(parent) && parent < id);
  let leaf = record?.leaf;
  if (!hasBranches || ids.size < nodes.length) leaf = asBranch(nodes);
  else if (!ids.has(leaf)) leaf = nodes.at(-1)?.id ?? 0;
  return { title: isText(record?.title) ? record.title : "", leaf, nodes };
}

/** A chat's name in lists: its own title, or the beginning of its first message. */
export function titleOf({ title, nodes }) {
  if (title) return title;
  const said = nodes.find(({ content }) => content.trim());
  return said ? firstLine(said.content, 80) : "Images";
}

/** Splits a record into what lists show and the rest. */
function partsOf(record) {
  const { name, time, owner, nodes } = record;
  const images = imagesOf(nodes).map(({ key }) => key);
  const shown = { name, title: titleOf(record), time, owner, images };
  const body = {
    ...record,
    nodes: nodes.map((node) => ({
      ...node,
      images: node.images?.map(({ key, name: file }) => ({ key, name: file })),
    })),
  };
  return [shown, body];
}

/** Shows a chat's messages in this tab. */
export function useChat(name, record = null) {
  const { title, leaf, nodes } = soundChat(record);
  state.chat = { name, title, leaf };
  state.nodes = nodes;
  state.messages = branchTo(nodes, leaf);
  tab.heirOf = record?.owner ?? null;
  tab.forksOnSave = false;
  keptForTab.write(TAB_KEY, name);
}

/** The record of a chat; null if it is not there, or nothing is kept. */
export async function readChat(name) {
  try {
    return await readChats(BODIES, (store) => store.get(name)) ?? null;
  } catch {
    return null;
  }
}

export async function readAllChats() {
  try {
    return await readChats(BODIES, (store) => store.getAll());
  } catch {
    return [];
  }
}

/** Reads the list of chats again. */
export async function listChats() {
  try {
    const all = await readChats(CHATS, (store) => store.getAll());
    chats.list = all.sort((a, b) => b.time - a.time);
  } catch (error) {
    chats.isBroken = true;
    console.warn(`no chats are kept: ${error}`);
  }
  emit("chats");
}

/** Keeps the open chat; returns once it is written. */
export async function saveChat() {
  if (state.nodes.length === 0) return;
  const record = { ...state.chat, owner: tab.owner, time: Date.now(), nodes: [...state.nodes] };
  const isOpen = () => state.chat.name === record.name;
  const { heirOf, forksOnSave } = tab;
  chats.saving++;
  let forkedFrom = null;
  try {
    await writeChats((shown, bodies, transaction) => {
      shown.get(record.name).onsuccess = ({ target }) => {
        const before = target.result;
        const isForeign = before && ![tab.owner, heirOf].includes(before.owner);
        if (isForeign || forksOnSave) {
          forkedFrom = record.name;
          record.name = newName();
        }
        putChat(shown, bodies, record);
        transaction.commit();
      };
    });
    if (forkedFrom !== null && state.chat.name === forkedFrom) {
      state.chat.name = record.name;
      tab.forksOnSave = false;
      keptForTab.write(TAB_KEY, record.name);
    }
    if (isOpen()) tab.heirOf = null;
    emit("saved", record.name);
  } catch (error) {
    chats.isBroken = true;
    console.warn(`the chat is not kept: ${error}`);
  }
  chats.saving--;
  await listChats();
}

export function putChat(shown, bodies, record) {
  const [line, body] = partsOf(record);
  shown.put(line, record.name);
  bodies.put(body, record.name);
}

/** Writes records as they are, such as imported ones, and the images whose data they have. */
export async function putChats(records) {
  keepImages(imagesOf(records.flatMap(({ nodes }) => nodes)));
  await writeChats((shown, bodies) => {
    for (const record of records) putChat(shown, bodies, record);
  });
  await listChats();
}

/** Gives a chat a title; an empty one is the beginning of its first message again. */
export async function renameChat(name, title) {
  const record = await readChat(name);
  if (!record) return;
  if (state.chat.name === name) state.chat.title = title;
  await putChats([{ ...record, title }]);
  emit("saved", name);
}

/** Removes a chat, and the images that no other one has; returns it with its images' data. */
export async function removeChat(name) {
  const record = await readChat(name);
  if (!record) return null;
  const images = imagesOf(record.nodes);
  await readImages(images);
  const others = chats.list.filter((one) => one.name !== name);
  const used = new Set(others.flatMap((one) => one.images));
  await writeChats((shown, bodies) => {
    shown.delete(name);
    bodies.delete(name);
  });
  await forgetImages(images.map(({ key }) => key).filter((key) => !used.has(key)));
  await listChats();
  emit("saved", name);
  return record;
}

/** The chats in which a text occurs, with the line that it occurs in; null as soon as outdated. */
export async function searchChats(text, isOutdated) {
  const wanted = text.toLowerCase();
  const found = [];
  for (const { name, title } of chats.list) {
    if (title.toLowerCase().includes(wanted)) {
      found.push({ name, line: "" });
      continue;
    }
    const record = await readChat(name);
    if (isOutdated()) return null;
    const said = record?.nodes.find(({ content }) => content.toLowerCase().includes(wanted));
    if (said) found.push({ name, line: lineAround(said.content, wanted) });
  }
  return found;
}

/** Some text around the first place of a word. */
function lineAround(text, wanted) {
  const at = text.toLowerCase().indexOf(wanted);
  const from = Math.max(0, at - 24);
  const part = text.slice(from, at + wanted.length + 40).replace(/\s+/g, " ");
  return (from > 0 ? "…" : "") + part;
}
