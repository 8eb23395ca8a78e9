/**
 * Markup made safe: everything that becomes elements passes through here. Text from a model may
 * say anything, and so may libraries that turn it into markup.
 */

import "./vendor/purify.js";

const purify = window.DOMPurify;

const MARKDOWN = {
  ALLOWED_TAGS: [
    "a", "b", "blockquote", "br", "code", "del", "div", "em", "h1", "h2", "h3", "h4", "h5", "h6",
    "hr", "i", "kbd", "li", "mark", "ol", "p", "pre", "s", "span", "strong", "sub", "sup", "table",
    "tbody", "td", "th", "thead", "tr", "u", "ul",
  ],
  ALLOWED_ATTR: ["align", "class", "href", "start", "title"],
  ADD_URI_SAFE_ATTR: ["align", "start"],
  ALLOWED_URI_REGEXP: /^(?:https?:\/\/|mailto:)/i,
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const CODE = {
  ALLOWED_TAGS: ["span"],
  ALLOWED_ATTR: ["class"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: false,
  RETURN_DOM_FRAGMENT: true,
};

const MATH = {
  USE_PROFILES: { mathMl: true },
  ADD_ATTR: ["class"],
  FORBID_ATTR: ["href", "id", "style"],
  ALLOW_ARIA_ATTR: false,
  ALLOW_DATA_ATTR: true,
  RETURN_DOM_FRAGMENT: true,
};

// The classes that our own Markdown gives; others could look like parts of the page.
const OWN_CLASS = /^(?:language-[\w+#.-]+|math-inline|math-block|raw-html|task)$/;

let config = null;

purify.addHook("uponSanitizeAttribute", (node, attribute) => {
  if (config !== MARKDOWN || attribute.attrName !== "class") return;
  if (!OWN_CLASS.test(attribute.attrValue)) attribute.keepAttr = false;
});
purify.addHook("afterSanitizeAttributes", (node) => {
  if (config !== MARKDOWN || node.nodeName !== "A") return;
  node.setAttribute("target", "_blank");
  node.setAttribute("rel", "noopener noreferrer nofollow");
});

function sanitize(html, as) {
  config = as;
  return purify.sanitize(html, as);
}

export const safeMarkdown = (html) => sanitize(html, MARKDOWN);
export const safeCode = (html) => sanitize(html, CODE);

// A style attribute of a string would be against the page's policy, and could say anything.
const MATH_STYLES = new Set([
  "border", "border-bottom", "border-collapse", "border-left", "border-right", "border-top",
  "color", "display", "font-family", "font-style", "font-weight", "height", "margin",
  "margin-left", "margin-right", "math-depth", "math-style", "max-width", "min-width", "padding",
  "padding-bottom", "padding-left", "padding-right", "padding-top", "text-align", "vertical-align",
  "width",
]);

/** MathML, with those of its styles that only place and colour things. */
export function safeMath(html) {
  const fragment = sanitize(html.replaceAll(' style="', ' data-style="'), MATH);
  for (const element of fragment.querySelectorAll("[data-style]")) {
    for (const declaration of element.dataset.style.split(";")) {
      const [name, value] = declaration.split(":").map((part) => part.trim());
      const isPlain = value && /^[\w.%# -]+$/.test(value);
      if (MATH_STYLES.has(name) && isPlain) element.style.setProperty(name, value);
    }
    delete element.dataset.style;
  }
  return fragment;
}
