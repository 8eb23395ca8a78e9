/** The strip below an answer: every token as a narrow bar, so that unsure places are seen. */

import { byId, prepareCanvas } from "./dom.js";
import { state } from "./state.js";
import { pieceProbability, surpriseOf } from "./tokens.js";

const MAX_BAR = 10;

export const stripStep = (width, pieces) => Math.min(MAX_BAR, width / pieces.length);

export function drawStrip(canvas, pieces) {
  canvas.hidden = pieces.length < 2 || !state.settings.probabilities;
  if (canvas.hidden) return;
  const colours = scaleColours();
  const [context, width, height] = prepareCanvas(canvas);
  const step = stripStep(width, pieces);
  pieces.forEach((piece, index) => {
    const [left, right] = [Math.floor(index * step), Math.floor((index + 1) * step)];
    context.fillStyle = colours[surpriseOf(pieceProbability(piece))];
    context.fillRect(left, 0, Math.max(right - left, 1), height);
  });
}

/** The colours as they are in the present theme, taken from the legend. */
function scaleColours() {
  return Array.from(byId("scale").children, (part) => getComputedStyle(part).backgroundColor);
}
