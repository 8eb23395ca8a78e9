/**
 * The text of PDF files, as far as it is written as text: no scans, no encrypted files. Objects are
 * found by reading the file through, so that its table of them is not needed.
 */

import { readFont } from "./pdf_fonts.js";
import { Reader, Ref } from "./pdf_reader.js";

// References to references, and forms within forms, that are followed.
const MAX_DEPTH = 20;
// Forms on all pages together.
const MAX_FORMS = 20_000;
// In thousandths of the font's size: a gap in a line that is a space.
const SPACE = 180;

/** A decompressed stream; what comes before an error in it is kept. */
async function inflate(bytes) {
  const stream = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("deflate"));
  const reader = stream.getReader();
  const parts = [];
  try {
    for (let next = await reader.read(); !next.done; next = await reader.read()) {
      parts.push(next.value);
    }
  } catch {
    // files often have a byte too many, or end too early
  }
  return new Uint8Array(await new Blob(parts).arrayBuffer());
}

const latin1 = (bytes) => {
  let text = "";
  for (let at = 0; at < bytes.length; at += 8192) {
    text += String.fromCharCode(...bytes.subarray(at, at + 8192));
  }
  return text;
};

/** A file's objects by their numbers. */
class Pdf {
  constructor(bytes) {
    this.bytes = bytes;
    this.text = latin1(bytes);
    this.objects = new Map();
    this.forms = 0;
  }

  /** Reads all objects; later ones replace earlier ones of the same number. */
  async readObjects() {
    const begins = /(\d+)\s+\d+\s+obj\b/g;
    for (let found = begins.exec(this.text); found; found = begins.exec(this.text)) {
      const reader = new Reader(this.text, begins.lastIndex);
      const value = reader.value();
      const object = { value, from: 0, to: 0 };
      if (/^\s*stream\r?\n/.test(this.text.slice(reader.at, reader.at + 20))) {
        object.from = this.text.indexOf("\n", this.text.indexOf("stream", reader.at)) + 1;
        object.to = this.endOf(value, object.from);
      }
      this.objects.set(Number(found[1]), object);
      begins.lastIndex = Math.max(reader.at, object.to);
    }
    for (const { value, from, to } of [...this.objects.values()]) {
      if (value?.Type === "/ObjStm") await this.readPacked({ value, from, to });
    }
  }

  /** Where a stream ends: where it says, or else at the next such word. */
  endOf(value, from) {
    const length = this.resolve(value?.Length);
    const isRight = Number.isInteger(length)
      && /^\s*endstream/.test(this.text.slice(from + length, from + length + 20));
    if (isRight) return from + length;
    const end = this.text.indexOf("endstream", from);
    return end < 0 ? this.text.length : end;
  }

  /** Objects that are packed into a stream: their numbers and places, and then they. */
  async readPacked(object) {
    const text = latin1(await this.dataOf(object));
    const head = new Reader(text, 0);
    for (let left = this.resolve(object.value.N); left > 0; left--) {
      const [number, at] = [head.value(), head.value()];
      const value = new Reader(text, this.resolve(object.value.First) + at).value();
      if (!this.objects.has(number)) this.objects.set(number, { value, from: 0, to: 0 });
    }
  }

  object(value) {
    return value instanceof Ref ? this.objects.get(value.number) : undefined;
  }

  resolve(value) {
    let found = value;
    for (let depth = 0; found instanceof Ref && depth < MAX_DEPTH; depth++) {
      found = this.objects.get(found.number)?.value;
    }
    return found;
  }

  /** A stream's bytes; empty ones if they are packed in another way than Deflate. */
  async dataOf(object) {
    if (!object || object.to <= object.from) return new Uint8Array();
    const bytes = this.bytes.subarray(object.from, object.to);
    const filters = [this.resolve(object.value.Filter) ?? []].flat();
    if (filters.length === 0) return bytes;
    return filters.length === 1 && filters[0] === "/FlateDecode"
      ? inflate(bytes) : new Uint8Array();
  }

  async textOf(value) {
    const parts = [];
    for (const one of [Array.isArray(this.resolve(value)) ? this.resolve(value) : value].flat()) {
      parts.push(latin1(await this.dataOf(this.object(one))));
    }
    return parts.join("\n");
  }

  /** All pages in their order, with what they inherit. */
  pages() {
    const values = [...this.objects.values()].map(({ value }) => value);
    const root = values.findLast((value) => value?.Type === "/Catalog");
    const pages = [];
    const seen = new Set();
    const add = (value, inherited) => {
      const node = this.resolve(value);
      if (!node || seen.has(node)) return;
      seen.add(node);
      const resources = node.Resources ?? inherited;
      const kids = this.resolve(node.Kids);
      if (Array.isArray(kids)) for (const kid of kids) add(kid, resources);
      else pages.push({ ...node, Resources: resources });
    };
    add(root?.Pages, null);
    return pages.length > 0 ? pages : values.filter((value) => value?.Type === "/Page");
  }
}

/** Writes the text of a page line by line, as its operators place it. */
class TextWriter {
  constructor(pdf) {
    this.pdf = pdf;
    this.text = "";
    // the beginning of the line, the pen behind the last text, and a unit of text
    this.x = 0;
    this.y = 0;
    this.pen = 0;
    this.scale = 1;
    this.size = 1;
    this.leading = 0;
    this.font = null;
  }

  /** Begins another line; in the same line, a gap is a space. */
  moveTo(x, y) {
    if (Math.abs(y - this.y) > 1) this.newLine();
    // without widths, the place of the pen is unknown
    else if (!(Math.abs(x - this.pen) < SPACE * this.unit())) this.space();
    [this.x, this.y, this.pen] = [x, y, x];
  }

  unit() {
    return (Math.abs(this.size * this.scale) || 1) / 1000;
  }

  space() {
    if (this.text !== "" && !/\s$/.test(this.text)) this.text += " ";
  }

  newLine() {
    if (this.text !== "" && !this.text.endsWith("\n")) this.text += "\n";
  }

  async run(content, resources, depth) {
    const { pdf } = this;
    const fonts = pdf.resolve(pdf.resolve(resources)?.Font) ?? {};
    const forms = pdf.resolve(pdf.resolve(resources)?.XObject) ?? {};
    const reader = new Reader(content, 0);
    let given = [];
    for (let token = reader.token(); token !== undefined; token = reader.token()) {
      if (!token.operator) {
        given.push(token.value);
        continue;
      }
      const { operator } = token;
      const name = String(given[0]).slice(1);
      if (operator === "Tf") await this.useFont(fonts[name], given[1]);
      else if (operator === "Do" && depth < MAX_DEPTH && pdf.forms++ < MAX_FORMS) {
        const form = pdf.object(forms[name]);
        if (form?.value?.Subtype === "/Form") {
          const inner = latin1(await pdf.dataOf(form));
          await this.run(inner, form.value.Resources ?? resources, depth + 1);
        }
      } else if (operator === "ID") reader.skipImage();
      else this.write(operator, given);
      given = [];
    }
  }

  async useFont(value, size) {
    const { pdf } = this;
    this.size = size;
    this.font = null;
    const font = pdf.resolve(value);
    if (!font) return;
    if (!font.read) {
      const unicode = font.ToUnicode ? await pdf.textOf(font.ToUnicode) : "";
      font.read = readFont(font, unicode, (one) => pdf.resolve(one));
    }
    this.font = font.read;
  }

  show(bytes) {
    if (!this.font || typeof bytes !== "string") return;
    this.text += this.font.decode(bytes);
    this.pen += this.font.widthOf(bytes) * this.unit();
  }

  write(operator, given) {
    const last = given.at(-1);
    const nextLine = () => this.moveTo(this.x, this.y - (this.leading || this.size) * this.scale);
    if (operator === "BT") this.scale = 1;
    else if (operator === "Tm") {
      this.scale = Math.hypot(given[2], given[3]) || 1;
      this.moveTo(given[4], given[5]);
    } else if (operator === "Td" || operator === "TD") {
      if (operator === "TD") this.leading = -last;
      this.moveTo(this.x + given[0] * this.scale, this.y + last * this.scale);
    } else if (operator === "TL") this.leading = last;
    else if (operator === "T*") nextLine();
    else if (operator === "Tj") this.show(last);
    else if (operator === "'" || operator === '"') {
      nextLine();
      this.show(last);
    } else if (operator === "TJ" && Array.isArray(last)) this.showSpaced(last);
  }

  /** Shows texts with numbers between them, which move the pen back. */
  showSpaced(parts) {
    for (const part of parts) {
      if (typeof part !== "number") {
        this.show(part);
        continue;
      }
      if (part < -SPACE) this.space();
      this.pen -= part * this.unit();
    }
  }
}

/** The text of a PDF file, pages apart by an empty line. */
export async function textOfPdf(bytes) {
  const pdf = new Pdf(bytes);
  if (/\/Encrypt\b/.test(pdf.text)) throw new Error("is encrypted");
  await pdf.readObjects();
  const pages = [];
  for (const page of pdf.pages()) {
    const writer = new TextWriter(pdf);
    await writer.run(await pdf.textOf(page.Contents), page.Resources, 0);
    pages.push(writer.text.replace(/[ \t]+\n/g, "\n").trim());
  }
  const text = pages.filter((page) => page !== "").join("\n\n");
  if (text === "") throw new Error("has no text that can be read");
  return text;
}
