/** The notation of PDF files: numbers, names, strings, lists, dictionaries and operators. */

/** A reference to an object. */
export class Ref {
  constructor(number) {
    this.number = number;
  }
}

const isSpace = (one) => one === " " || one === "\n" || one === "\r" || one === "\t"
  || one === "\f" || one === "\0";

const isDelimiter = (one) => "()<>[]{}/%".includes(one);

const escapes = { n: "\n", r: "\r", t: "\t", b: "\b", f: "\f" };

/**
 * Reads values from a text. A name is a string that begins with a slash, a string of the file has
 * one character for each byte, and a dictionary is an object without a prototype.
 */
export class Reader {
  constructor(text, at) {
    this.text = text;
    this.at = at;
  }

  skipSpace() {
    for (;;) {
      while (this.at < this.text.length && isSpace(this.text[this.at])) this.at++;
      if (this.text[this.at] !== "%") return;
      while (this.at < this.text.length && !"\r\n".includes(this.text[this.at])) this.at++;
    }
  }

  /** The next value, or undefined at the end and at what is none. */
  value() {
    return this.token()?.value;
  }

  /** The next {value} or {operator}; undefined at the end. */
  token() {
    this.skipSpace();
    const first = this.text[this.at];
    if (first === undefined) return undefined;
    if (first === "/") return { value: `/${this.name()}` };
    if (first === "(") return { value: this.literal() };
    if (first === "[") return { value: this.list() };
    if (first === "<") {
      return { value: this.text[this.at + 1] === "<" ? this.dictionary() : this.hex() };
    }
    if (isDelimiter(first)) {
      this.at++;
      return { operator: first };
    }
    return this.word();
  }

  /** The characters up to the next space or delimiter. */
  plain() {
    const from = this.at;
    while (this.at < this.text.length) {
      const one = this.text[this.at];
      if (isSpace(one) || isDelimiter(one)) break;
      this.at++;
    }
    return this.text.slice(from, this.at);
  }

  name() {
    this.at++;
    return this.plain().replace(/#([0-9a-f]{2})/gi, (_, hex) =>
      String.fromCharCode(parseInt(hex, 16)));
  }

  /** A number, a reference, a constant or an operator. */
  word() {
    const word = this.plain();
    if (word === "true" || word === "false") return { value: word === "true" };
    if (word === "null") return { value: null };
    if (!/^[+-]?(\d+\.?\d*|\.\d+)$/.test(word)) return { operator: word };
    const rest = /^\s+\d+\s+R(?![\w])/.exec(this.text.slice(this.at, this.at + 24));
    if (!rest || !/^\d+$/.test(word)) return { value: Number(word) };
    this.at += rest[0].length;
    return { value: new Ref(Number(word)) };
  }

  /** A string in parentheses, which may be nested. */
  literal() {
    let made = "";
    let open = 1;
    for (this.at++; this.at < this.text.length; this.at++) {
      const one = this.text[this.at];
      if (one === "(") open++;
      else if (one === ")" && --open === 0) break;
      made += one === "\\" ? this.escaped() : one;
    }
    this.at++;
    return made;
  }

  escaped() {
    const octal = /^[0-7]{1,3}/.exec(this.text.slice(this.at + 1, this.at + 4));
    if (octal) {
      this.at += octal[0].length;
      return String.fromCharCode(parseInt(octal[0], 8) & 0xff);
    }
    const one = this.text[++this.at];
    if (one === "\r" && this.text[this.at + 1] === "\n") this.at++;
    return one === "\r" || one === "\n" ? "" : escapes[one] ?? one ?? "";
  }

  hex() {
    const end = this.text.indexOf(">", this.at);
    const to = end < 0 ? this.text.length : end;
    const digits = this.text.slice(this.at + 1, to).replace(/[^0-9a-f]/gi, "");
    this.at = to + 1;
    return digits.replace(/..?/g, (pair) =>
      String.fromCharCode(parseInt(pair.padEnd(2, "0"), 16)));
  }

  list() {
    this.at++;
    const values = [];
    while (this.isInside("]")) {
      const token = this.token();
      if (token && !token.operator) values.push(token.value);
    }
    return values;
  }

  dictionary() {
    this.at += 2;
    const made = Object.create(null);
    while (this.isInside(">>")) {
      const key = this.token()?.value;
      if (typeof key !== "string" || this.text.startsWith(">>", this.at)) continue;
      made[key.slice(1)] = this.token()?.value;
    }
    return made;
  }

  /** Whether a list goes on; steps over its end. */
  isInside(end) {
    this.skipSpace();
    if (this.at >= this.text.length) return false;
    if (!this.text.startsWith(end, this.at)) return true;
    this.at += end.length;
    return false;
  }

  /** Steps over the bytes of an image among operators. */
  skipImage() {
    const end = /\sEI\s/.exec(this.text.slice(this.at));
    this.at = end ? this.at + end.index + end[0].length : this.text.length;
  }
}
