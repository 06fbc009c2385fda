// What lessons are made of: a question that is answered before the answer is shown, pictures with a table beside them,
// and what has been done, kept in the browser.

import { css, scale } from "./colour.js";
import { h, short, table, tableBeside } from "./dom.js";
import { onResize, prepare, tooltip } from "./draw.js";
import { drawLines, pointed } from "./linechart.js";

const KEY = "tapeless-learn";
export const COLOURS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9", "#7f7f7f"];

export const progress = {
  read() {
    try {
      return JSON.parse(localStorage.getItem(KEY) ?? "{}") ?? {};
    } catch {
      return {};
    }
  },
  set(id, how) {
    const now = { ...this.read(), [id]: how };
    try {
      localStorage.setItem(KEY, JSON.stringify(now));
    } catch {
      /* it is not kept, and everything else works */
    }
    dispatchEvent(new Event("learned"));
  },
  // All of it, or of some questions alone.
  forget(ids = null) {
    const left = Object.entries(this.read()).filter(([id]) => ids && !ids.includes(id));
    try {
      localStorage.setItem(KEY, JSON.stringify(Object.fromEntries(left)));
    } catch {
      /* nothing was kept */
    }
    dispatchEvent(new Event("learned"));
  },
};

// Numbers that people type: 0.3, .3, 0,3, −0.3, 1e-3. One way to read them, for every field of the pages.
export const typed = (text) => Number(text.trim().replace("−", "-").replace(",", ".") || NaN);
// Numbers are shown with three digits, and a product of two such is good to one percent.
export const near = (found, right, tolerance = 0.012 * Math.abs(right)) => Math.abs(found - right) <= tolerance + 1e-9;

// What a number that is not right was taken for. `slips`: numbers that are often given instead, and what each means.
function hint(given, right, slips) {
  const slip = slips.find(([value]) => value !== null && near(given, value) && Math.abs(value) > 1e-12);
  if (slip) return slip[1];
  if (right && near(given, -right)) return "look at the sign";
  if (right && near(given, 1 / right)) return "that is the ratio upside down";
  const tens = Math.log10(Math.abs(given / right));
  if (right && Math.abs(tens) > 0.9 && Math.abs(tens - Math.round(tens)) < 0.006) return "look at the decimal point";
  return right && Math.sign(given) !== Math.sign(right) ? "look at the sign" : "compute it once more";
}

// The same order for everybody, and none that tells: not the one in which choices are written down.
function order(id, count) {
  let seed = [...id].reduce((sum, letter) => (sum * 31 + letter.charCodeAt(0)) >>> 0, 7);
  const found = Array.from({ length: count }, (_, at) => at);
  for (let at = count - 1; at > 0; at -= 1) {
    seed = (seed * 1664525 + 1013904223) >>> 0;
    const other = seed % (at + 1);
    [found[at], found[other]] = [found[other], found[at]];
  }
  return found;
}

// Predict, then reveal. `right` is the index of a choice, or a number. An answer that took a second try, or was looked
// up, is done but not predicted.
export function predict({ id, ask, choices = null, right, tolerance = undefined, slips = [], say, keepOrder = false }) {
  const verdict = h("p", { role: "status" });
  const answer = h("div", { className: "answer", hidden: true }, say);
  let tries = 0;
  const done = (good, words) => {
    verdict.className = good ? "fine" : "bad";
    verdict.textContent = words;
    if (good) {
      progress.set(id, progress.read()[id] ?? (tries ? "done" : "right"));
      answer.hidden = false;
    }
    tries += 1;
  };
  const show = () => {
    answer.hidden = false;
    tries += 1;
    progress.set(id, progress.read()[id] ?? "seen");
  };
  const reveal = h("button", { type: "button", className: "quiet reveal", onclick: show }, "show me");
  let form;
  if (choices) {
    const buttons = (keepOrder ? choices.map((_, at) => at) : order(id, choices.length)).map((index) => {
      const judge = () => done(index === right, `${index === right ? "✓" : "✗ not that:"} ${choices[index]}`);
      return h("button", { type: "button", onclick: judge }, choices[index]);
    });
    form = h("div", { className: "choices", role: "group", ariaLabel: ask }, buttons, reveal);
  } else {
    const field = h("input", { inputMode: "decimal", size: 9, ariaLabel: ask, autocomplete: "off" });
    const judge = (event) => {
      event.preventDefault();
      const given = typed(field.value);
      if (Number.isNaN(given)) {
        verdict.className = "bad";
        verdict.textContent = "write a number, such as −0.25";
      } else if (near(given, right, tolerance)) done(true, `✓ ${short(right)}`);
      else done(false, `✗ ${field.value} is not it: ${hint(given, right, slips)}`);
    };
    const check = h("button", { type: "submit" }, "check");
    form = h("form", { className: "choices", onsubmit: judge }, field, check, reveal);
  }
  const box = h("div", { className: "predict" }, h("p", {}, h("b", {}, "Predict. "), ask), form, verdict, answer);
  box.dataset.predict = id;
  return box;
}

// Bars to both sides of zero, each with its name.
export function bars({ title, rows, mark = -1 }) {
  const canvas = h("canvas", { role: "img", className: "bars" }),
    beside = tableBeside("as a table", () => table(title, ["", "value"], rows));
  const tall = 17;
  canvas.style.height = `${rows.length * tall + 6}px`;
  const draw = () => {
    const { context, width, ink } = prepare(canvas),
      most = Math.max(1e-300, ...rows.map(([, value]) => Math.abs(value)));
    const low = Math.min(0, ...rows.map(([, value]) => value)),
      left = 92,
      room = Math.max(20, width - left - 76),
      beneath = low < 0 ? 54 : 0,
      long = (room - beneath) * (low < 0 ? 0.5 : 1),
      zero = left + beneath + (low < 0 ? long : 0);
    context.textBaseline = "middle";
    rows.forEach(([name, value], index) => {
      const y = index * tall + 3,
        end = zero + (long * value) / most;
      context.fillStyle = ink("soft");
      context.textAlign = "right";
      context.fillText(name, left - 8, y + tall / 2, left - 10);
      context.fillStyle = index === mark ? ink("fine") : value < 0 ? "#d55e00" : "#0072b2";
      context.fillRect(Math.min(zero, end), y + 2, Math.max(1, Math.abs(end - zero)), tall - 4);
      context.fillStyle = ink("ink");
      context.textAlign = value < 0 ? "right" : "left";
      context.fillText(short(value), end + (value < 0 ? -5 : 5), y + tall / 2);
    });
    const [least, greatest] = [Math.min, Math.max].map((pick) => short(pick(...rows.map(([, value]) => value))));
    canvas.setAttribute("aria-label", `${title}: ${rows.length} numbers from ${least} to ${greatest}`);
  };
  tooltip(canvas, (x, y) => {
    const [name, value] = rows[Math.floor((y - 3) / tall)] ?? [];
    return name === undefined ? "" : `${name}: ${short(value)}`;
  });
  return picture(title, canvas, beside, draw);
}

// Lines over a common axis.
export function lines({ title, series, log = false, across = "step", logAcross = false, high = 210 }) {
  const canvas = h("canvas", { role: "img" });
  canvas.style.height = `${high}px`;
  const rows = series.flatMap(({ name, points }) => points.map(([x, y]) => [name, short(x), y]));
  const beside = tableBeside("as a table", () => table(title, ["", across, "value"], rows));
  const coloured = series.map((each, index) => ({ ...each, colour: COLOURS[index % COLOURS.length] }));
  const keys = coloured.map(({ name, colour }) => {
    const mark = h("i");
    mark.style.background = colour;
    return h("span", {}, mark, name);
  });
  let made = null;
  const draw = () => {
    made = drawLines(canvas, { series: coloured, log, logAcross });
    const ends = series.map(({ name, points }) => `${name} from ${short(points[0][1])} to ${short(points.at(-1)[1])}`);
    canvas.setAttribute("aria-label", `${title}, against ${across}: ${ends.join("; ")}`);
  };
  tooltip(canvas, (x) => (made ? pointed(series, made.back(x)) : ""));
  return picture(title, canvas, h("div", {}, h("div", { className: "kinds" }, keys), beside), draw);
}

// A loss over a plane, in log colours, and the path that the weights took through it.
export function plane({ title, x, y, losses, path, steps, onPath }) {
  const canvas = h("canvas", { role: "img" }),
    beside = tableBeside("as a table", () =>
      table(
        title,
        ["update", "along", "across", "loss"],
        path.map(([a, b], index) => [String(steps[index]), a, b, onPath[index]]),
      ),
    );
  canvas.style.height = "340px";
  const draw = () => {
    const { context, width, height, ink } = prepare(canvas),
      flat = losses.flat().map((each) => Math.log10(each)),
      low = Math.min(...flat),
      high = Math.max(...flat);
    const image = new ImageData(x.length, y.length);
    losses.forEach((row, across) =>
      row.forEach((loss, along) =>
        image.data.set(
          [...scale((Math.log10(loss) - low) / (high - low)), 255],
          4 * ((y.length - 1 - across) * x.length + along),
        ),
      ),
    );
    const small = new OffscreenCanvas(x.length, y.length);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = true;
    context.drawImage(small, 0, 0, width, height);
    const place = ([a, b]) => [(width * (a - x[0])) / (x.at(-1) - x[0]), height * (1 - (b - y[0]) / (y.at(-1) - y[0]))];
    context.lineWidth = 4;
    for (const [colour, wide] of [
      ["#ffffff", 4],
      ["#b3261e", 2],
    ]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.beginPath();
      path.forEach((each, index) => (index ? context.lineTo(...place(each)) : context.moveTo(...place(each))));
      context.stroke();
    }
    path.forEach((each, index) => {
      const [px, py] = place(each);
      context.fillStyle = "#ffffff";
      context.beginPath();
      context.arc(px, py, index === 0 || index === path.length - 1 ? 6 : 3, 0, 7);
      context.fill();
      context.strokeStyle = "#1d2327";
      context.lineWidth = 1;
      context.stroke();
    });
    context.font = "bold 13px system-ui, sans-serif";
    for (const [index, words] of [
      [0, `before: ${short(onPath[0])}`],
      [path.length - 1, `after: ${short(onPath.at(-1))}`],
    ]) {
      const [px, py] = place(path[index]),
        wide = context.measureText(words).width + 10,
        left = Math.min(width - wide - 2, Math.max(2, px - wide / 2));
      context.fillStyle = ink("card");
      context.fillRect(left, py + 10, wide, 20);
      context.fillStyle = ink("ink");
      context.textBaseline = "middle";
      context.fillText(words, left + 5, py + 20);
    }
    canvas.setAttribute(
      "aria-label",
      `${title}: losses from ${short(Math.min(...losses.flat()))} to ` +
        `${short(Math.max(...losses.flat()))}, the path from ${short(onPath[0])} down to ` +
        `${short(onPath.at(-1))}`,
    );
  };
  const ends = [Math.min(...losses.flat()), Math.max(...losses.flat())],
    strip = h("i", { className: "strip" });
  const stops = Array.from({ length: 9 }, (_, at) => css(scale(at / 8)));
  strip.style.background = `linear-gradient(to right, ${stops.join(", ")})`;
  return picture(
    title,
    canvas,
    h("div", {}, h("p", { className: "scale" }, `loss ${short(ends[0])}`, strip, short(ends[1])), beside),
    draw,
  );
}

function picture(title, canvas, beneath, draw) {
  const el = h("figure", {}, h("figcaption", {}, title), canvas, beneath);
  onResize(canvas, () => {
    if (canvas.isConnected) draw();
  });
  return el;
}
