// A picture of lines against steps, each cell a colour: the loss at the bottom, as in every list of calls. What was not
// recorded stays empty.

import { h, whole } from "./dom.js";
import { onResize, prepare, stepAxis, tooltip } from "./draw.js";

const LEFT = 112;
const RIGHT = 10;
const BOTTOM = 22;
const WIDE = 9; // pixels of a column: where all have as many, they stand side by side
const BREAK = 7; // and where steps between two were not recorded

// The index of the step that is the nearest: recorded steps are not evenly spaced.
export function binAt(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}

// Where every recorded step stands, from and to which pixel of a width. Few steps stand side by side, however far apart
// they are, with an empty strip where some between them were not recorded; many stand where they are in the training,
// and reach half the usual distance to the next.
export function columnsOf(steps, width) {
  const count = steps.length;
  const distances = Array.from({ length: count - 1 }, (_, at) => steps[at + 1] - steps[at]);
  const usual = [...distances].sort((a, b) => a - b)[distances.length >> 1] ?? 1;
  if (count * WIDE <= width) {
    const strips = distances.map((each) => (each > Math.max(1, 1.5 * usual) ? BREAK : each > 1 ? 1 : 0));
    const wide = (width - strips.reduce((sum, each) => sum + each, 0)) / count;
    let left = 0;
    const bars = Array.from(steps, (_, at) => {
      const bar = [left, left + wide];
      left += wide + (strips[at] ?? 0);
      return bar;
    });
    return { bars, even: true };
  }
  const all = steps.at(-1) - steps[0] + 1;
  const x = (step) => (width * (step - steps[0] + 0.5)) / all;
  const half = Math.max(0.5, (width * usual) / all / 2);
  const middle = (at) => (x(steps[at]) + x(steps[at + 1])) / 2;
  const bars = Array.from(steps, (step, at) => [
    Math.max(x(step) - half, at ? middle(at - 1) : 0),
    Math.min(x(step) + half, at < count - 1 ? middle(at) : width),
  ]);
  return { bars, even: false };
}

// `what()`: the steps, the names of the lines from the loss up, the colour of a cell, what a cell says, and from which
// step on it is covered. `choose(bin, line)` is called when a cell is chosen.
export function grid({ id = null, what, choose, zoom = null }) {
  const canvas = h("canvas", { id, tabIndex: 0, role: "img" });
  let chosen = null;
  let laid = { bars: [], even: false };

  const across = () => {
    const { width, height } = canvas.getBoundingClientRect();
    return { left: LEFT, top: 0, width: Math.max(10, width - LEFT - RIGHT), height: height - BOTTOM };
  };

  function draw() {
    const now = what();
    if (!now) return;
    const { steps, names, colour, until = Infinity } = now;
    const count = names.length;
    canvas.style.height = `${Math.min(420, Math.max(60, count * Math.min(26, Math.max(5, 330 / count)))) + BOTTOM}px`;
    const painted = prepare(canvas);
    const { context, ink } = painted;
    const plot = across();
    const { bars, even } = (laid = columnsOf(steps, plot.width));
    const image = new ImageData(steps.length, count);
    for (let bin = 0; bin < steps.length && steps[bin] <= until; bin += 1)
      for (let line = 0; line < count; line += 1)
        image.data.set([...colour(bin, line), 255], 4 * ((count - 1 - line) * steps.length + bin));
    const small = new OffscreenCanvas(steps.length, count);
    small.getContext("2d").putImageData(image, 0, 0);
    context.fillStyle = ink("empty");
    context.fillRect(plot.left, plot.top, plot.width, plot.height);
    context.imageSmoothingEnabled = false;
    bars.forEach(([left, right], bin) => {
      const wide = Math.max(1, right - left);
      context.drawImage(small, bin, 0, 1, count, plot.left + left, plot.top, wide, plot.height);
    });
    context.fillStyle = ink("soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil((count * 14) / plot.height));
    names.forEach((name, line) => {
      const y = plot.top + ((count - line - 0.5) * plot.height) / count;
      if (line % every === 0) context.fillText(name, LEFT - 6, Math.max(6, y), LEFT - 8);
    });
    if (even) columnAxis(painted, plot, steps, bars);
    else stepAxis(painted, plot, steps[0], steps.at(-1));
    if (chosen) {
      const [left, right] = bars[chosen.bin];
      const x = plot.left + (left + right) / 2;
      const wide = Math.max(8, right - left);
      const size = plot.height / count;
      context.strokeStyle = ink("mark");
      context.lineWidth = 2;
      context.strokeRect(x - wide / 2, (count - 1 - chosen.line) * size + 1, wide, size - 2);
    }
  }

  function at(x, y) {
    const { names } = what();
    const plot = across();
    const line = names.length - 1 - Math.floor((y / plot.height) * names.length);
    const middles = laid.bars.map(([left, right]) => (left + right) / 2);
    const bin = binAt(middles, x - LEFT);
    const [left, right] = laid.bars[bin];
    const inside = x - LEFT >= left - 0.5 && x - LEFT <= right + 0.5;
    return { bin, line: Math.min(names.length - 1, Math.max(0, line)), inside };
  }

  const pick = (cell) => {
    chosen = cell;
    draw();
    choose(cell);
  };
  canvas.addEventListener("click", (event) => {
    const box = canvas.getBoundingClientRect();
    if (what()) pick(at(event.clientX - box.left, event.clientY - box.top));
  });
  canvas.addEventListener("dblclick", () => zoom?.(0.25));
  canvas.addEventListener("keydown", (event) => {
    if (zoom && (event.key === "+" || event.key === "-")) {
      event.preventDefault();
      return zoom(event.key === "+" ? 0.25 : 4);
    }
    const [along, up] =
      { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, 1], ArrowDown: [0, -1] }[event.key] ?? [];
    if (along === undefined || !what()) return;
    event.preventDefault();
    const { steps, names } = what();
    const now = chosen ?? { bin: steps.length - 1, line: 0 };
    const within = (value, length) => Math.min(length - 1, Math.max(0, value));
    pick({ bin: within(now.bin + along, steps.length), line: within(now.line + up, names.length) });
  });
  tooltip(canvas, (x, y) => {
    const now = what();
    if (!now || x < LEFT || y > across().height) return "";
    const { bin, line, inside } = at(x, y);
    if (!inside) return `not recorded; the nearest step that was is ${whole(now.steps[bin])}`;
    return now.says(bin, line);
  });
  const mark = (cell) => {
    chosen = cell;
    draw();
  };
  return { canvas, draw, mark, watch: () => onResize(canvas, draw) };
}

// The steps of columns that stand side by side, as many as there is room for.
function columnAxis({ context, ink }, plot, steps, bars) {
  context.fillStyle = ink("soft");
  context.textAlign = "center";
  context.textBaseline = "top";
  let free = 0;
  steps.forEach((step, at) => {
    const text = whole(step);
    const half = context.measureText(text).width / 2;
    const middle = (bars[at][0] + bars[at][1]) / 2;
    const x = Math.min(plot.width + RIGHT - half, middle);
    if (x - half < free) return;
    free = x + half + 8;
    context.fillText(text, plot.left + x, plot.top + plot.height + 4);
  });
  context.textAlign = "left";
}

// A bar of colours from one end of a scale to the other, the ends in words beside it.
export function legend(label, colour, gaps = true) {
  const [low, bar, high] = [h("span"), h("canvas", { role: "img", ariaLabel: label }), h("span")];
  const draw = (ends) => {
    [low.textContent, high.textContent] = ends;
    const { context, width, height } = prepare(bar);
    for (let x = 0; x < width; x += 1) {
      context.fillStyle = colour(x / width);
      context.fillRect(x, 0, 1.5, height);
    }
  };
  const gap = h("span", { className: "gap" }, h("i"), "not recorded");
  return { el: h("span", { className: "scale" }, low, bar, high, gaps && gap), draw };
}
