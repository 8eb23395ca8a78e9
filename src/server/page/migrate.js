/** Chats of older pages, which kept them in web storage. */

import { newName, putChat, soundChat } from "./chats.js";
import { writeChats } from "./database.js";
import { kept } from "./storage.js";

const CONVERSATION_KEYS = "octavo.conversation.";
// One conversation for all tabs was kept here before each had its own.
const OLD_MESSAGES_KEY = "octavo.messages";

/** Moves conversations of older pages to the database; leaves them where that fails. */
export async function moveOldChats() {
  const keys = kept.keys().filter((key) => key.startsWith(CONVERSATION_KEYS));
  for (const key of keys) {
    const record = kept.read(key);
    await move(key, key.slice(CONVERSATION_KEYS.length), record, Number(record?.time) || 0);
  }
  const old = kept.read(OLD_MESSAGES_KEY);
  if (old) await move(OLD_MESSAGES_KEY, newName(), { messages: old }, Date.now());
}

async function move(key, name, old, time) {
  const { title, leaf, nodes } = soundChat(old);
  const record = { name, title, leaf, nodes, time, owner: old?.owner ?? "" };
  try {
    if (nodes.length > 0) {
      await writeChats((shown, bodies) => {
        shown.get(name).onsuccess = ({ target }) => {
          // an older page in another tab may have gone on with what was moved before
          if (!(target.result?.time >= time)) putChat(shown, bodies, record);
        };
      });
    }
    kept.remove(key);
  } catch (error) {
    console.warn(`${key} is not moved to the database: ${error}`);
  }
}
