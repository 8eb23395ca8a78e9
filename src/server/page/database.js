/**
 * The browser's databases: images in one, chats in the other. They may be switched off or full;
 * then everything lasts until the page is left.
 */

// Databases of older pages have this name.
export const IMAGE_STORE = "pictures";
// The line of each chat in lists, and its messages.
export const CHATS = "chats";
export const BODIES = "bodies";

const stores = { octavo: [IMAGE_STORE], "octavo.chats": [CHATS, BODIES] };
const opened = new Map();

function open(name) {
  if (!opened.has(name)) {
    opened.set(name, new Promise((resolve, reject) => {
      const request = indexedDB.open(name, 1);
      request.onupgradeneeded = () => {
        for (const store of stores[name]) request.result.createObjectStore(store);
      };
      request.onsuccess = () => resolve(request.result);
      request.onerror = () => reject(request.error);
    }));
  }
  return opened.get(name);
}

/** The answer to a request to the images' database; undefined if it cannot answer. */
export async function askDatabase(mode, request) {
  try {
    const database = await open("octavo");
    const asked = request(database.transaction(IMAGE_STORE, mode).objectStore(IMAGE_STORE));
    return await answerOf(asked);
  } catch {
    return undefined;
  }
}

function answerOf(request) {
  return new Promise((resolve, reject) => {
    request.onsuccess = () => resolve(request.result);
    request.onerror = () => reject(request.error);
  });
}

/** The answer to one reading request to a store of chats. */
export async function readChats(store, request) {
  const database = await open("octavo.chats");
  return answerOf(request(database.transaction(store).objectStore(store)));
}

/**
 * Runs `work` with both stores of chats in one transaction, and waits until it is written: what
 * `work` reads there does not change before it has written.
 */
export async function writeChats(work) {
  const database = await open("octavo.chats");
  const transaction = database.transaction([CHATS, BODIES], "readwrite");
  const written = new Promise((resolve, reject) => {
    transaction.oncomplete = () => resolve();
    transaction.onerror = transaction.onabort = () => reject(transaction.error);
  });
  work(transaction.objectStore(CHATS), transaction.objectStore(BODIES), transaction);
  await written;
}
