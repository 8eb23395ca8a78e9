/**
 * Tokens of an answer, and where they are in its text.
 *
 * The server sends text and tokens side by side, and the two need not agree: a character may take
 * several tokens, text may be held back, and special tokens have none. The text is shown as it
 * came; tokens are laid over it where their bytes are found in it, and the rest stays plain.
 * Bytes are kept as strings with one character for each byte, which can be searched.
 */

const SEARCHED_BYTES = 256;
const encoder = new TextEncoder();

export function bytesOfText(text) {
  return bytesOfArray(encoder.encode(text));
}

export function bytesOfArray(array) {
  return Array.from(array, (byte) => String.fromCharCode(byte)).join("");
}

/** A token's text; where it is not whole characters, their bytes are shown as \x.. */
function tokenText(entry) {
  if (!Array.isArray(entry.bytes)) return String(entry.token ?? "");
  const bytes = Uint8Array.from(entry.bytes);
  try {
    return new TextDecoder("utf-8", { fatal: true, ignoreBOM: true }).decode(bytes);
  } catch {
    return entry.bytes.map(shownByte).join("");
  }
}

function shownByte(byte) {
  return byte < 0x80 ? String.fromCharCode(byte) : `\\x${byte.toString(16)}`;
}

/** Null where the server had no number to send: probability 0. */
function logprobOf(entry) {
  return Number.isFinite(entry.logprob) ? Number(entry.logprob.toFixed(4)) : null;
}

export const probabilityOf = ({ logprob }) => (logprob === null ? 0 : Math.exp(logprob));

export function tokenOf(entry) {
  return {
    text: tokenText(entry),
    logprob: logprobOf(entry),
    alternatives: (entry.top_logprobs ?? []).map((other) => ({
      text: tokenText(other),
      logprob: logprobOf(other),
    })),
  };
}

/** One text of an answer, as bytes, and how far tokens have been laid over it. */
export function newTrack(pieces) {
  return { bytes: "", cursor: 0, boundary: 0, length: 0, pieces };
}

const isInsideCharacter = (bytes, at) => (bytes.charCodeAt(at) & 0xc0) === 0x80;

function characterBoundary(bytes, at) {
  while (isInsideCharacter(bytes, at)) at++;
  return at;
}

/** How long UTF-8 bytes are as a JavaScript string. */
function decodedLength(bytes, from, to) {
  let length = 0;
  for (let at = from; at < to; at++) {
    if (!isInsideCharacter(bytes, at)) length += bytes.charCodeAt(at) < 0xf0 ? 1 : 2;
  }
  return length;
}

/** Lays as many waiting tokens over a text as it has bytes for. */
export function placeTokens(track, waiting) {
  while (waiting.length > 0 && track.cursor < track.bytes.length) {
    const { token } = waiting[0];
    const bytes = shownBytes(track, waiting[0].bytes);
    const unplaced = track.bytes.slice(track.cursor);
    if (bytes.length > unplaced.length && bytes.startsWith(unplaced)) return;
    waiting.shift();
    const at = findBytes(track, bytes);
    if (at >= 0) placeToken(track, token, at, bytes.length);
  }
}

/** A text may come without the white space that its first token begins with. */
function shownBytes(track, bytes) {
  if (track.cursor > 0 || track.bytes.startsWith(bytes)) return bytes;
  const trimmed = bytes.replace(/^[ \n]+/, "");
  return track.bytes.startsWith(trimmed) ? trimmed : bytes;
}

/** Where a token is: at the cursor, or a little later if some text had no token; or -1. */
function findBytes(track, bytes) {
  if (bytes === "") return -1;
  if (track.bytes.startsWith(bytes, track.cursor)) return track.cursor;
  return track.bytes.indexOf(bytes, Math.max(track.cursor, track.bytes.length - SEARCHED_BYTES));
}

/**
 * A piece is a part of a text and the tokens that made it. A token that begins inside a character
 * belongs to the piece with that character, and to one of its own if more characters follow.
 */
function placeToken(track, token, at, size) {
  const start = characterBoundary(track.bytes, at);
  const end = characterBoundary(track.bytes, at + size);
  if (start > at) track.pieces.at(-1)?.tokens.push(token);
  const from = track.length + decodedLength(track.bytes, track.boundary, start);
  const to = from + decodedLength(track.bytes, start, end);
  if (to > from) track.pieces.push({ start: from, end: to, tokens: [token] });
  track.cursor = at + size;
  track.boundary = end;
  track.length = to;
}

/** From 0 (sure) to 6 (unlikely): the colours in the style sheet. */
export function surpriseOf(probability) {
  const bounds = [0.95, 0.8, 0.6, 0.4, 0.2, 0.05];
  const surprise = bounds.findIndex((bound) => probability >= bound);
  return surprise < 0 ? bounds.length : surprise;
}

export const pieceProbability = (piece) =>
  piece.tokens.reduce((product, token) => product * probabilityOf(token), 1);
