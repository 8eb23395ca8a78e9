/** The server's KV cache: a cell for each page. */

import { byId, make, prepareCanvas } from "./dom.js";
import { count } from "./format.js";
import { isPanelOpen } from "./panels.js";
import { aboutModel, ask } from "./server.js";
import { state } from "./state.js";

const POOL_PERIOD_MS = 500;
const POOL_PATIENCE_MS = 5000;
const POOL_MAX_CELLS = 1500;
const POOL_HUES = [204, 28, 140, 330, 52, 268, 175, 0];

export const pool = { timer: 0, isAsking: false, isRefused: false, shown: null, hues: new Map() };

/** Asks now and then twice a second, while somebody can see the answer. */
export async function startPool() {
  clearTimeout(pool.timer);
  pool.isRefused = false;
  if (!pool.isAsking) await pollPool();
}

async function pollPool() {
  if (document.hidden || !isPanelOpen() || pool.isRefused) return;
  pool.isAsking = true;
  const answered = await askForPool();
  pool.isAsking = false;
  if (!answered) hidePool();
  pool.timer = setTimeout(pollPool, answered ? POOL_PERIOD_MS : POOL_PATIENCE_MS);
}

async function askForPool() {
  let slots = null;
  try {
    // A model that is not loaded has no pool, and is not loaded for it.
    const path = aboutModel("cache", state.model, { autoload: false });
    const response = await ask(path, { signal: AbortSignal.timeout(POOL_PATIENCE_MS) });
    pool.isRefused = [401, 403, 404, 405, 501].includes(response.status);
    if (response.ok) slots = await response.json();
  } catch {
    // the server is away; it is asked again later
    return false;
  }
  if (!(slots?.pages_total > 0)) return false;
  showPool(slots);
  return true;
}

function hidePool() {
  pool.shown = null;
  byId("pool").hidden = true;
}

function showPool(slots) {
  byId("pool").hidden = false;
  pool.shown = slots;
  const used = slots.pages_total - slots.pages_free - slots.pages_cached;
  byId("pool-used").textContent = used;
  byId("pool-cached").textContent = slots.pages_cached;
  byId("pool-free").textContent = slots.pages_free;
  byId("pool-chart").setAttribute("aria-label", `KV cache of ${slots.pages_total} pages: `
    + `${used} in use, ${slots.pages_cached} cached, ${slots.pages_free} free`);
  chooseHues(slots.requests ?? []);
  drawPool(slots);
  byId("pool-requests").replaceChildren(...(slots.requests ?? []).map(makePoolRequest));
}

/** A request keeps its colour as long as it is there; a new one takes the first free one. */
function chooseHues(requests) {
  const present = new Set(requests.map(({ id }) => id));
  for (const id of pool.hues.keys()) if (!present.has(id)) pool.hues.delete(id);
  for (const id of present) {
    if (pool.hues.has(id)) continue;
    const taken = new Set(pool.hues.values());
    pool.hues.set(id, POOL_HUES.find((hue) => !taken.has(hue)) ?? POOL_HUES[pool.hues.size % 8]);
  }
}

const poolColour = (id) => `hsl(${pool.hues.get(id)} 58% 55%)`;

function makePoolRequest(request) {
  const row = make("li");
  const swatch = make("i", "swatch");
  swatch.style.background = poolColour(request.id);
  const isOwn = state.run?.id !== undefined && state.run.id === request.id;
  const name = isOwn ? "this answer" : String(request.id);
  const what = request.state === "running"
    ? `${request.generated} written, ${count(request.pages, "page")}` : request.state;
  row.append(swatch, make("span", "who", name), make("span", "what", what));
  row.title = `${request.id}: ${request.state}, ${request.prompt_tokens} prompt tokens, `
    + `${request.generated} generated, ${request.tokens} tokens in ${count(request.pages, "page")}`;
  return row;
}

/** The colour of each page, as parts of the pool: requests, other pages in use, cached, free. */
function poolParts(slots) {
  const parts = [];
  let used = slots.pages_total - slots.pages_free - slots.pages_cached;
  for (const { id, pages } of slots.requests ?? []) {
    // Requests may share pages, so that theirs can be more than those in use.
    const own = Math.min(pages, used);
    parts.push([own, poolColour(id)]);
    used -= own;
  }
  const colourOf = (name) => getComputedStyle(byId(`swatch-${name}`)).backgroundColor;
  parts.push([used, getComputedStyle(byId("pool-chart")).color]);
  parts.push([slots.pages_cached, colourOf("cached")], [slots.pages_free, colourOf("free")]);
  return parts;
}

/** One cell for each page; in a large pool, for several. */
export function drawPool(slots) {
  const canvas = byId("pool-chart");
  const [context, width, height] = prepareCanvas(canvas);
  const pagesPerCell = Math.ceil(slots.pages_total / POOL_MAX_CELLS);
  const cells = Math.ceil(slots.pages_total / pagesPerCell);
  const step = cellStep(cells, width, height);
  const columns = Math.floor(width / step);
  const gap = step > 6 ? 2 : 1;
  const parts = poolParts(slots);
  let [part, end] = [0, parts[0][0]];
  for (let cell = 0; cell < cells; cell++) {
    while (cell * pagesPerCell >= end && part + 1 < parts.length) end += parts[++part][0];
    context.fillStyle = parts[part][1];
    const [x, y] = [(cell % columns) * step, Math.floor(cell / columns) * step];
    context.fillRect(x, y, step - gap, step - gap);
  }
}

/** The largest distance between cells with which all of them fit. */
function cellStep(cells, width, height) {
  for (let step = 16; step > 2; step--) {
    if (Math.floor(width / step) * Math.floor(height / step) >= cells) return step;
  }
  return 2;
}
