/** Web storage: settings, and the chat that this tab has open. */

/** Web storage that may be switched off or full, or hold something else; then memory has to do. */
function guardedStorage(name) {
  const memory = new Map();
  return {
    read(key) {
      if (memory.has(key)) return memory.get(key);
      try {
        return JSON.parse(window[name].getItem(key));
      } catch {
        return null;
      }
    },
    write(key, value) {
      memory.set(key, value);
      try {
        window[name].setItem(key, JSON.stringify(value));
        return true;
      } catch {
        return false;
      }
    },
    remove(key) {
      memory.delete(key);
      try {
        window[name].removeItem(key);
      } catch {
        // there is nothing then
      }
    },
    keys() {
      try {
        return Object.keys(window[name]);
      } catch {
        return [];
      }
    },
  };
}

export const kept = guardedStorage("localStorage");
export const keptForTab = guardedStorage("sessionStorage");

export const SETTINGS_KEY = "octavo.settings";
export const TAB_KEY = "octavo.tab";
export const API_KEY = "octavo.key";
