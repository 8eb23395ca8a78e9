/** Elements, icons and buttons. */

export const byId = (id) => document.getElementById(id);

/** Makes an element with a class and a text: text from a model must never become markup. */
export function make(name, className = "", text = "") {
  const made = document.createElement(name);
  if (className) made.className = className;
  if (text) made.textContent = text;
  return made;
}

export function makeIcon(name) {
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  const use = document.createElementNS("http://www.w3.org/2000/svg", "use");
  svg.setAttribute("class", "icon");
  svg.setAttribute("aria-hidden", "true");
  use.setAttribute("href", `#icon-${name}`);
  svg.append(use);
  return svg;
}

/** Makes a button with an icon; the label is its accessible name, or also its text. */
export function makeButton(action, icon, label, labelIsVisible = true) {
  const button = make("button", labelIsVisible ? "quiet small" : "quiet small square");
  button.type = "button";
  button.dataset.action = action;
  button.append(makeIcon(icon));
  if (labelIsVisible) button.append(label);
  else nameButton(button, label);
  return button;
}

export function nameButton(button, label) {
  button.setAttribute("aria-label", label);
  button.title = label;
}

export function setIcon(button, name) {
  button.querySelector("use").setAttribute("href", `#icon-${name}`);
}

/** Grows a text area with its text. */
export function fitHeight(area) {
  area.style.height = "auto";
  area.style.height = `${area.scrollHeight + area.offsetHeight - area.clientHeight}px`;
}

export async function copyText(text) {
  try {
    await navigator.clipboard.writeText(text);
  } catch {
    // The clipboard interface is absent where the page came over plain HTTP.
    const area = make("textarea", "unseen");
    area.value = text;
    document.body.append(area);
    area.select();
    document.execCommand("copy");
    area.remove();
  }
}

/** Has the browser save a text as a file. */
export function saveFile(name, type, text) {
  const link = make("a");
  link.href = URL.createObjectURL(new Blob([text], { type }));
  link.download = name;
  link.click();
  setTimeout(() => URL.revokeObjectURL(link.href), 10_000);
}

/** A canvas in the size that it has on this screen, emptied: its context, width and height. */
export function prepareCanvas(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = window.devicePixelRatio || 1;
  canvas.width = Math.max(1, Math.round(width * ratio));
  canvas.height = Math.max(1, Math.round(height * ratio));
  const context = canvas.getContext("2d");
  context.scale(ratio, ratio);
  return [context, width, height];
}
