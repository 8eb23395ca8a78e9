/** Libraries that are loaded only when a message needs them. */

const here = new URL("./", import.meta.url).href;

// The page's policy lets a script be added by address only through this.
const policy = window.trustedTypes?.createPolicy("octavo", {
  createScriptURL: (url) => {
    if (!url.startsWith(`${here}vendor/`)) throw new TypeError(`${url} is not the page's own`);
    return url;
  },
});

/** Loads a classic script of the page's own. */
export function loadScript(name) {
  return new Promise((resolve, reject) => {
    const script = document.createElement("script");
    const url = `${here}vendor/${name}`;
    script.src = policy ? policy.createScriptURL(url) : url;
    script.addEventListener("load", () => resolve());
    script.addEventListener("error", () => reject(new Error(`${name} cannot be loaded`)));
    document.head.append(script);
  });
}

export function loadStyle(name) {
  const link = document.createElement("link");
  link.rel = "stylesheet";
  link.href = `${here}vendor/${name}`;
  document.head.append(link);
}

/**
 * Makes a function that loads something once. It returns a promise of it; a load that failed is
 * tried again the next time.
 */
export function once(load) {
  let promise = null;
  return () => {
    promise ??= load().catch((error) => {
      promise = null;
      throw error;
    });
    return promise;
  };
}
