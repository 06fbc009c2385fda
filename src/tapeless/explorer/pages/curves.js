// One curve of every run that is shown, or the difference of two, with a cursor by mouse and arrow keys.

import { h, short, tableBeside, table, whole } from "./dom.js";
import { onResize } from "./draw.js";
import { drawLines, nearest, smoothed } from "./linechart.js";

const SMOOTH = 0.9; // of a mean that forgets

function seriesOf(run, name) {
  const { steps, evaluations } = run.curves;
  const points = (values, at) => values.map((y, i) => [at[i], y]).filter(([, y]) => y !== null && y !== undefined);
  const evaluated = (field) =>
    points(
      evaluations.map((each) => each[field]),
      evaluations.map((each) => each.step),
    );
  if (name === "accuracy") return { line: [], dots: evaluated("accuracy"), rings: evaluated("train_accuracy") };
  return {
    line: points(steps[name] ?? [], steps.step ?? []),
    dots: name === "loss" ? evaluated("loss") : [],
    rings: [],
  };
}

// The first minus the second, where both have a value; the second is read between its points.
function differenceOf(first, second) {
  const found = [];
  let at = 0;
  for (const [x, y] of first) {
    while (at + 1 < second.length && second[at + 1][0] < x) at += 1;
    const [a, b] = [second[at], second[at + 1]];
    if (!a || x < a[0] || (!b && x > a[0])) continue;
    found.push([x, y - (b && b[0] > a[0] ? a[1] + ((b[1] - a[1]) * (x - a[0])) / (b[0] - a[0]) : a[1])]);
  }
  return found;
}

// `how`: what the page has chosen for all curves: `difference`, `smooth`, `linear`, each whether it is checked.
export function chart({ model, name, title, what, log, how, pick }) {
  const canvas = h("canvas", { tabIndex: 0, role: "img", id: `chart-${name}` });
  const readout = h("p", { className: "readout", ariaLive: "polite" });
  let drawn = [];
  let made = null;
  let cursor = null;

  const gather = () => {
    const inside = (points) =>
      model.span ? points.filter(([step]) => step >= model.span[0] && step <= model.span[1]) : points;
    const shown = model.shown.map((run) => {
      const { line, dots, rings } = seriesOf(run, name);
      return { run, line: inside(line), dots: inside(dots), rings: inside(rings) };
    });
    if (!how.difference.checked || shown.length < 2) return shown;
    const [first, second] = shown;
    const parts = ["line", "dots", "rings"].map((part) => [part, differenceOf(first[part], second[part])]);
    return [{ run: first.run, label: `${first.run.name} − ${second.run.name}`, ...Object.fromEntries(parts) }];
  };
  const beside = tableBeside("as a table", () => {
    const rows = drawn.flatMap(({ run, label, line, dots }) => [
      ...line.map(([x, y]) => [label ?? run.name, "training", whole(x), y]),
      ...dots.map(([x, y]) => [label ?? run.name, "validation", whole(x), y]),
    ]);
    const stride = Math.ceil(rows.length / 400) || 1;
    const chosen = rows.filter((_, index) => index % stride === 0);
    return table(title, ["run", "of", "step", "value"], chosen);
  });

  function draw() {
    drawn = gather();
    const all = drawn.flatMap(({ line, dots, rings }) => [...line, ...dots, ...rings]);
    canvas.setAttribute(
      "aria-label",
      `${title}: ${all.length} points of ${drawn.length} runs; arrow keys move a cursor, ` +
        "Enter shows the batch of its step",
    );
    const difference = how.difference.checked;
    made = drawLines(canvas, {
      series: drawn.map(({ run, line, dots, rings }) => {
        return { colour: run.colour, points: how.smooth.checked ? smoothed(line, SMOOTH) : line, dots, rings };
      }),
      log: log && !difference && !how.linear.checked && all.every(([, y]) => y > 0),
      bounds: name === "accuracy" && !difference ? [0, 1] : null,
      cursor,
      empty: drawn.some(({ run }) => run.curves.error) ? "nothing to be read" : "nothing recorded yet",
    });
    readout.textContent = made
      ? drawn
          .filter(({ line, dots }) => line.length + dots.length)
          .map(told)
          .join("; ")
      : "";
    beside.refresh();
  }

  function told({ run, label, line, dots }) {
    const source = line.length ? line : dots;
    const [step, value] = source[nearest(source, cursor ?? made.span[1])] ?? [];
    const whose = drawn.length > 1 || label ? `${label ?? run.name}: ` : "";
    return `${whose}${short(value)} at step ${whole(step ?? 0)}`;
  }

  canvas.addEventListener("pointermove", (event) => {
    cursor = made?.back(event.clientX - canvas.getBoundingClientRect().left) ?? null;
    draw();
  });
  canvas.addEventListener("click", () => point());
  canvas.addEventListener("pointerleave", () => {
    cursor = null;
    draw();
  });
  // The point of the first run under the cursor: whose step it was is shown with the heatmap.
  const point = () => {
    const { run, line } = drawn[0] ?? {};
    if (line?.length) pick?.(run, line[nearest(line, cursor ?? made.span[1])][0]);
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") return point();
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !made) return;
    event.preventDefault();
    const [first, last] = made.span;
    cursor = Math.min(last, Math.max(first, (cursor ?? last) + (by * Math.max(1, last - first)) / 50));
    draw();
  });
  const heading = h("h3", {}, title, " ", h("small", { className: "soft" }, what));
  return {
    el: h("div", { className: "chart" }, heading, canvas, readout, beside),
    draw,
    leave: onResize(canvas, draw),
  };
}
