// What lessons are made of: a question that is answered before the answer is shown, pictures with a table beside them, and
// what has been done, kept in the browser.

import { css, scale } from "./colour.js";
import { h, short, table, tableBeside } from "./dom.js";
import { onResize, prepare, stepAxis, valueAxis } from "./draw.js";

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
  forget() {
    try {
      localStorage.removeItem(KEY);
    } catch {
      /* nothing was kept */
    }
    dispatchEvent(new Event("learned"));
  },
};

// Numbers that people type: 0.3, .3, −0.3, 1e-3.
const typed = (text) => Number(text.trim().replace("−", "-").replace(",", ".") || NaN);
// Numbers are shown with three digits, and a product of two such is good to one percent.
export const near = (found, right, tolerance = 0.012 * Math.abs(right)) => Math.abs(found - right) <= tolerance + 1e-9;

// Predict, then reveal. `right` is the index of a choice, or a number.
export function predict({ id, ask, choices, right, tolerance, say }) {
  const verdict = h("p", { role: "status" }),
    answer = h("div", { hidden: true }, say);
  const done = (good, words) => {
    verdict.className = good ? "fine" : "bad";
    verdict.textContent = words;
    if (good) {
      answer.hidden = false;
      progress.set(id, "right");
    }
  };
  const reveal = h(
    "button",
    {
      type: "button",
      className: "quiet",
      onclick: () => {
        answer.hidden = false;
        progress.set(id, progress.read()[id] ?? "seen");
      },
    },
    "show me",
  );
  let form;
  if (choices) {
    form = h(
      "div",
      { className: "choices", role: "group", ariaLabel: ask },
      choices.map((text, index) =>
        h(
          "button",
          {
            type: "button",
            onclick: () => done(index === right, index === right ? `✓ ${text}` : `✗ not that: ${text}`),
          },
          text,
        ),
      ),
      reveal,
    );
  } else {
    const field = h("input", { inputMode: "decimal", size: 9, ariaLabel: ask, autocomplete: "off" });
    form = h(
      "form",
      {
        className: "choices",
        onsubmit: (event) => {
          event.preventDefault();
          const given = typed(field.value);
          if (Number.isNaN(given)) done(false, "write a number, such as −0.25");
          else
            done(
              near(given, right, tolerance),
              near(given, right, tolerance)
                ? `✓ ${short(right)}`
                : `✗ ${field.value} is not it: ${Math.sign(given) !== Math.sign(right) && right !== 0 ? "look at the sign" : "compute it once more"}`,
            );
        },
      },
      field,
      h("button", { type: "submit" }, "check"),
      reveal,
    );
  }
  const box = h("div", { className: "predict" }, h("p", {}, h("b", {}, "Predict. "), ask), form, verdict, answer);
  box.dataset.predict = id;
  return box;
}

// Bars to both sides of zero, each with its name.
export function bars({ title, rows, mark }) {
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
    canvas.setAttribute(
      "aria-label",
      `${title}: ${rows.length} numbers from ${short(Math.min(...rows.map(([, value]) => value)))} to ${short(Math.max(...rows.map(([, value]) => value)))}`,
    );
  };
  return picture(title, canvas, beside, draw);
}

// Lines over a common axis.
export function lines({ title, series, log, across = "step", logAcross = false, high = 210 }) {
  const canvas = h("canvas", { role: "img" });
  canvas.style.height = `${high}px`;
  const all = series.flatMap(({ points }) => points).filter(([, y]) => !log || y > 0);
  const beside = tableBeside("as a table", () =>
    table(
      title,
      ["", across, "value"],
      series.flatMap(({ name, points }) => points.map(([x, y]) => [name, short(x), y])),
    ),
  );
  const key = h(
    "div",
    { className: "kinds" },
    series.map(({ name }, index) => {
      const mark = h("i");
      mark.style.background = COLOURS[index % COLOURS.length];
      return h("span", {}, mark, name);
    }),
  );
  const draw = () => {
    const painted = prepare(canvas),
      { context, width, height } = painted,
      plot = { left: 58, top: 8, width: width - 70, height: height - 30 };
    const scaled = (y) => (log ? Math.log10(y) : y),
      wide = (x) => (logAcross ? Math.log10(x) : x);
    let [low, top] = [Math.min(...all.map(([, y]) => scaled(y))), Math.max(...all.map(([, y]) => scaled(y)))];
    const pad = (top - low) * 0.06 || 0.5,
      from = Math.min(...all.map(([x]) => wide(x))),
      to = Math.max(...all.map(([x]) => wide(x)));
    [low, top] = [low - pad, top + pad];
    valueAxis(painted, plot, low, top, Boolean(log));
    if (logAcross) {
      context.textAlign = "center";
      context.fillStyle = painted.ink("soft");
      for (let power = Math.ceil(from); power <= to; power += Math.ceil((to - from) / 6))
        context.fillText(short(10 ** power), plot.left + (plot.width * (power - from)) / (to - from), height - 8);
    } else stepAxis(painted, plot, from, to);
    series.forEach(({ points }, index) => {
      context.strokeStyle = context.fillStyle = COLOURS[index % COLOURS.length];
      context.lineWidth = 1.8;
      context.beginPath();
      points
        .filter(([, y]) => !log || y > 0)
        .forEach(([x, y], place) => {
          const at = [
            plot.left + (plot.width * (wide(x) - from)) / (to - from || 1),
            plot.top + plot.height * (1 - (scaled(y) - low) / (top - low)),
          ];
          if (place) context.lineTo(...at);
          else context.moveTo(...at);
        });
      context.stroke();
    });
    canvas.setAttribute(
      "aria-label",
      `${title}, against ${across}: ${series.map(({ name, points }) => `${name} from ${short(points[0][1])} to ${short(points.at(-1)[1])}`).join("; ")}`,
    );
  };
  return picture(title, canvas, h("div", {}, key, beside), draw);
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
      `${title}: losses from ${short(Math.min(...losses.flat()))} to ${short(Math.max(...losses.flat()))}, the path from ${short(onPath[0])} down to ${short(onPath.at(-1))}`,
    );
  };
  const ends = [Math.min(...losses.flat()), Math.max(...losses.flat())],
    strip = h("i", { className: "strip" });
  strip.style.background = `linear-gradient(to right, ${Array.from({ length: 9 }, (_, at) => css(scale(at / 8))).join(", ")})`;
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
