/** Numbers as text. */

/** Three significant digits, at most one decimal from 10 on: 0.53, 4.21, 42.1, 421. */
export function short(number) {
  if (!Number.isFinite(number)) return "–";
  return number.toFixed(number < 10 ? 2 : number < 100 ? 1 : 0);
}

export function duration(ms) {
  return ms < 1000 ? `${Math.round(ms)} ms` : `${short(ms / 1000)} s`;
}

export function percent(probability) {
  const value = probability * 100;
  if (value > 99.95 && value < 100) return "> 99.9\u202f%";
  if (value > 0 && value < 0.01) return "< 0.01\u202f%";
  return `${value.toFixed(value < 10 ? 2 : 1)}\u202f%`;
}

/** "1 token", "2 tokens" */
export const count = (number, noun) => `${number} ${noun}${number === 1 ? "" : "s"}`;

export const isText = (value) => typeof value === "string";

/** The first line with text in it, cut at a length. */
export function firstLine(text, length) {
  const line = text.trim().split("\n")[0].trim();
  return line.length > length ? `${line.slice(0, length - 1).trimEnd()}…` : line;
}
