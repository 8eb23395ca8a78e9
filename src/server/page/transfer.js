/** Chats as files: exported as JSON or Markdown, and imported again. */

import { chats, newName, putChats, readAllChats, readChat, soundChat, titleOf } from "./chats.js";
import { saveFile } from "./dom.js";
import { count } from "./format.js";
import { imagesOf, readImages } from "./images.js";
import { showNotice } from "./notice.js";
import { branchTo } from "./tree.js";

const FORMAT = "octavo.chats";
const VERSION = 1;

const day = () => new Date().toISOString().slice(0, 10);

/** A file's name from a title. */
const fileName = (title) =>
  title.replace(/[^\p{L}\p{N}]+/gu, "-").replace(/^-+|-+$/g, "").slice(0, 60) || "chat";

/** Records with the data of their images, without what only this browser needs. */
async function exported(records) {
  for (const { nodes } of records) await readImages(imagesOf(nodes));
  return records.map(({ name, title, time, leaf, nodes }) => ({ name, title, time, leaf, nodes }));
}

async function exportRecords(records, name) {
  const file = { format: FORMAT, version: VERSION, chats: await exported(records) };
  saveFile(name, "application/json", JSON.stringify(file));
}

export async function exportAll() {
  const records = await readAllChats();
  if (records.length === 0) showNotice("There are no chats yet.");
  else await exportRecords(records, `octavo-chats-${day()}.json`);
}

/** Exports a chat as JSON, which can be imported, and offers the text that is shown of it. */
export async function exportChat(name) {
  const record = await readChat(name);
  if (!record) return;
  const title = titleOf(record);
  await exportRecords([record], `${fileName(title)}.json`);
  showNotice("The chat was saved as JSON.", "Also as Markdown", () =>
    saveFile(`${fileName(title)}.md`, "text/markdown", markdownOf(record)));
}

export function markdownOf(record) {
  const parts = branchTo(record.nodes, record.leaf).map(({ role, content, images, files }) => {
    const attached = [...images ?? [], ...files ?? []].map(({ name }) => `*${name}*\n\n`);
    return `## ${role === "user" ? "You" : "Answer"}\n\n${attached.join("")}${content}\n`;
  });
  return `# ${titleOf(record)}\n\n${parts.join("\n")}`;
}

/** The records of a file: ours, or a list of messages such as requests have. */
function recordsOf(json) {
  if (json?.format === FORMAT && Array.isArray(json.chats)) return json.chats;
  const messages = Array.isArray(json) ? json : json?.messages;
  return Array.isArray(messages) ? [{ messages }] : [];
}

/** Adds the chats of files to the kept ones; those that are there already get another name. */
export async function importFiles(files) {
  const taken = new Set(chats.list.map(({ name }) => name));
  const records = [];
  const complaints = [];
  for (const file of files) {
    try {
      const read = recordsOf(JSON.parse(await file.text()));
      const sound = read.map((record) => imported(record, taken))
        .filter(({ nodes }) => nodes.length > 0);
      if (sound.length === 0) throw new Error("no chats");
      records.push(...sound);
    } catch {
      complaints.push(`${file.name} has no chats that can be read.`);
    }
  }
  try {
    await putChats(records);
    if (records.length > 0) complaints.unshift(`${count(records.length, "chat")} imported.`);
  } catch (error) {
    complaints.unshift(`The chats cannot be kept: ${error.message}`);
  }
  showNotice(complaints.join(" "));
}

function imported(record, taken) {
  const { title, leaf, nodes } = soundChat(record);
  for (const image of imagesOf(nodes)) {
    // an image of ours is data, and nothing that would be fetched
    if (!String(image.url).startsWith("data:image/")) delete image.url;
  }
  const isFree = typeof record.name === "string" && record.name && !taken.has(record.name);
  const name = isFree ? record.name : newName();
  taken.add(name);
  return { name, title, leaf, nodes, time: Number(record.time) || Date.now(), owner: "" };
}
