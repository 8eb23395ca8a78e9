/** From the codes of a PDF file's fonts to characters. */

import { Reader } from "./pdf_reader.js";

/** Names of glyphs that are not their characters, as far as texts have them often. */
const GLYPHS = {
  space: " ", exclam: "!", quotedbl: '"', numbersign: "#", dollar: "$", percent: "%",
  ampersand: "&", quotesingle: "'", parenleft: "(", parenright: ")", asterisk: "*", plus: "+",
  comma: ",", hyphen: "-", period: ".", slash: "/", colon: ":", semicolon: ";", less: "<",
  equal: "=", greater: ">", question: "?", at: "@", bracketleft: "[", backslash: "\\",
  bracketright: "]", asciicircum: "^", underscore: "_", grave: "`", braceleft: "{", bar: "|",
  braceright: "}", asciitilde: "~", quoteleft: "‘", quoteright: "’", quotedblleft: "“",
  quotedblright: "”", endash: "–", emdash: "—", bullet: "•", ellipsis: "…", minus: "−",
  ff: "ff", fi: "fi", fl: "fl", ffi: "ffi", ffl: "ffl", zero: "0", one: "1", two: "2",
  three: "3", four: "4", five: "5", six: "6", seven: "7", eight: "8", nine: "9",
  germandbls: "ß", adieresis: "ä", odieresis: "ö", udieresis: "ü", Adieresis: "Ä",
  Odieresis: "Ö", Udieresis: "Ü", eacute: "é", egrave: "è", agrave: "à", ccedilla: "ç",
  aring: "å", ae: "æ", oslash: "ø", ntilde: "ñ", degree: "°", multiply: "×", section: "§",
};

const windows = new TextDecoder("windows-1252");

/** UTF-16 bytes, as maps to Unicode have them. */
function utf16(text) {
  let made = "";
  for (let at = 0; at + 1 < text.length; at += 2) {
    made += String.fromCharCode((text.charCodeAt(at) << 8) | text.charCodeAt(at + 1));
  }
  return made;
}

const numberOf = (text) => [...text].reduce((sum, one) => sum * 256 + one.charCodeAt(0), 0);

/** A map to Unicode: characters by code, and how many bytes a code has. */
function readMap(text) {
  const map = new Map();
  let size = 0;
  const reader = new Reader(text, 0);
  let given = [];
  for (let token = reader.token(); token !== undefined; token = reader.token()) {
    if (!token.operator) {
      given.push(token.value);
      continue;
    }
    if (token.operator === "endcodespacerange") size = given[0]?.length ?? 0;
    if (token.operator === "endbfchar") {
      for (let at = 0; at + 1 < given.length; at += 2) {
        map.set(numberOf(given[at]), utf16(given[at + 1]));
      }
    }
    if (token.operator === "endbfrange") addRanges(map, given);
    given = [];
  }
  return { map, size };
}

function addRanges(map, given) {
  for (let at = 0; at + 2 < given.length; at += 3) {
    const [from, to] = [numberOf(given[at]), numberOf(given[at + 1])];
    const target = given[at + 2];
    for (let code = from; code <= Math.min(to, from + 0xffff); code++) {
      if (Array.isArray(target)) map.set(code, utf16(target[code - from] ?? ""));
      else map.set(code, shifted(utf16(target), code - from));
    }
  }
}

/** A text whose last character is so many further. */
function shifted(text, by) {
  return text.slice(0, -1) + String.fromCharCode(text.charCodeAt(text.length - 1) + by);
}

/** The characters of a font's codes that have other glyphs than their encoding says. */
function differencesOf(font, resolve) {
  const map = new Map();
  const all = resolve(resolve(font.Encoding)?.Differences);
  let code = 0;
  for (const one of Array.isArray(all) ? all : []) {
    if (typeof one === "number") {
      code = one;
      continue;
    }
    const name = String(one).slice(1);
    const unicode = /^uni([0-9A-F]{4})$/.exec(name);
    const character = unicode ? String.fromCharCode(parseInt(unicode[1], 16)) : GLYPHS[name];
    map.set(code++, character ?? (name.length === 1 ? name : ""));
  }
  return map;
}

/** The widths of codes in thousandths of the font's size; an absent one may be given. */
function widthsOf(font, resolve) {
  const widths = new Map();
  const inner = resolve(resolve(font.DescendantFonts)?.[0]);
  const lists = resolve(inner?.W);
  const numbers = Array.isArray(lists) ? lists.map(resolve) : [];
  for (let at = 0; at + 1 < numbers.length; ) {
    const [first, second] = [numbers[at], numbers[at + 1]];
    if (Array.isArray(second)) {
      second.forEach((width, index) => widths.set(first + index, resolve(width)));
      at += 2;
    } else {
      const last = Math.min(second, first + 0xffff);
      for (let code = first; code <= last; code++) widths.set(code, numbers[at + 2]);
      at += 3;
    }
  }
  const simple = resolve(font.Widths);
  if (Array.isArray(simple)) {
    simple.forEach((width, index) => widths.set(font.FirstChar + index, resolve(width)));
  }
  return { widths, preset: inner ? inner.DW ?? 1000 : NaN };
}

/** Reads a font: how a string's bytes become text, and how wide they are. */
export function readFont(font, toUnicode, resolve) {
  const { map, size } = readMap(toUnicode);
  const isComposite = font.Subtype === "/Type0";
  const step = size || (isComposite ? 2 : 1);
  const differences = differencesOf(font, resolve);
  const { widths, preset } = widthsOf(font, resolve);
  const codesOf = (bytes) => {
    const codes = [];
    for (let at = 0; at < bytes.length; at += step) codes.push(bytes.slice(at, at + step));
    return codes.map(numberOf);
  };
  const plain = (code) => (isComposite ? "" : windows.decode(Uint8Array.of(code)));
  return {
    decode: (bytes) =>
      codesOf(bytes).map((code) => map.get(code) ?? differences.get(code) ?? plain(code)).join(""),
    widthOf: (bytes) =>
      codesOf(bytes).reduce((sum, code) => sum + (widths.get(code) ?? preset), 0),
  };
}
