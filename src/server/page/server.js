/** Requests to the server, and its errors. */

import { keptForTab, API_KEY } from "./storage.js";

export class ServerError extends Error {
  constructor(message, status = 0, retryAfter = 0) {
    super(message);
    this.status = status;
    this.retryAfter = retryAfter;
  }
}

/** Sends a request to a path of this server, with the key if there is one. */
export function ask(path, options = {}) {
  const key = keptForTab.read(API_KEY);
  const headers = { ...options.headers };
  if (key) headers.Authorization = `Bearer ${key}`;
  return fetch(path, { cache: "no-store", ...options, headers });
}

/** A route about one model, with these fields in its query. */
export function aboutModel(path, model, fields = {}) {
  const query = new URLSearchParams({ ...(model && { model }), ...fields });
  return `${path}?${query}`;
}

export async function errorOf(response) {
  let message = "";
  try {
    const { error } = await response.json();
    message = typeof error === "string" ? error : error.message;
  } catch {
    // Not every proxy answers in JSON; the status has to do then.
  }
  message ||= `The server answered ${response.status} ${response.statusText}`.trim() + ".";
  return new ServerError(message, response.status, Number(response.headers.get("Retry-After")));
}

/** The data of server-sent events, however the network cut their bytes. */
export async function* readEvents(stream) {
  const reader = stream.getReader();
  const decoder = new TextDecoder();
  let rest = "";
  let data = [];
  for (let ended = false; !ended; ) {
    const { value, done } = await reader.read();
    ended = done;
    rest += done ? decoder.decode() + "\n\n" : decoder.decode(value, { stream: true });
    // A carriage return at the very end may be half of a line's end.
    const lines = rest.split(/\r\n|\n|\r(?!$)/);
    rest = lines.pop();
    for (const line of lines) {
      if (line.startsWith("data:")) data.push(line.slice(line[5] === " " ? 6 : 5));
      if (line !== "" || data.length === 0) continue;
      yield data.join("\n");
      data = [];
    }
  }
}
