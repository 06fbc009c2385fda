// One curve of every run that is shown, or the difference of two, with a cursor by mouse and arrow keys.

import { h, short, tableBeside, table, whole } from "./dom.js";
import { onResize, prepare, stepAxis, valueAxis } from "./draw.js";

const PLOT = { left: 58, top: 8, right: 10, bottom: 22 };

function seriesOf(run, name) {
  const { steps, evaluations } = run.curves;
  const points = (values, at) => values.map((y, i) => [at[i], y]).filter(([, y]) => y !== null && y !== undefined);
  const evaluated = (field) =>
    evaluations
      .filter((each) => each[field] !== null && each[field] !== undefined)
      .map((each) => [each.step, each[field]]);
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

export function chart({ model, name, title, what, log, difference, pick }) {
  const canvas = h("canvas", { tabIndex: 0, role: "img", id: `chart-${name}` });
  const readout = h("p", { className: "readout", ariaLive: "polite" });
  let drawn = [],
    span = [1, 1],
    cursor = null;

  const gather = () => {
    const inside = (points) =>
      model.span ? points.filter(([step]) => step >= model.span[0] && step <= model.span[1]) : points;
    const shown = model.shown
      .map((run) => ({ run, ...seriesOf(run, name) }))
      .map((each) => ({ run: each.run, line: inside(each.line), dots: inside(each.dots), rings: inside(each.rings) }));
    if (!difference.checked || shown.length < 2) return shown;
    const [first, second] = shown;
    return [
      {
        run: first.run,
        label: `${first.run.name} − ${second.run.name}`,
        line: differenceOf(first.line, second.line),
        dots: differenceOf(first.dots, second.dots),
        rings: differenceOf(first.rings, second.rings),
      },
    ];
  };
  const beside = tableBeside("as a table", () => {
    const rows = drawn.flatMap(({ run, label, line, dots }) => [
      ...line.map(([x, y]) => [label ?? run.name, "trained on", whole(x), y]),
      ...dots.map(([x, y]) => [label ?? run.name, "held out", whole(x), y]),
    ]);
    const stride = Math.ceil(rows.length / 400) || 1;
    return table(
      title,
      ["run", "of", "step", "value"],
      rows.filter((_, index) => index % stride === 0),
    );
  });

  function draw() {
    drawn = gather();
    const painted = prepare(canvas),
      { context, width, height, ink } = painted;
    const plot = {
      left: PLOT.left,
      top: PLOT.top,
      width: width - PLOT.left - PLOT.right,
      height: height - PLOT.top - PLOT.bottom,
    };
    const all = drawn.flatMap(({ line, dots, rings }) => [...line, ...dots, ...rings]);
    canvas.setAttribute(
      "aria-label",
      `${title}: ${all.length} points of ${drawn.length} runs; arrow keys move a cursor, Enter shows the batch of its step`,
    );
    if (!all.length) {
      context.fillStyle = ink("soft");
      context.fillText(
        drawn.some(({ run }) => run.curves.error) ? "nothing to be read" : "nothing recorded yet",
        plot.left,
        height / 2,
      );
      readout.textContent = "";
      beside.refresh();
      return;
    }
    const positive = all.every(([, y]) => y > 0),
      logarithmic = log && positive && !difference.checked;
    const scaled = (y) => (logarithmic ? Math.log10(y) : y);
    let [low, high] = extent(all.map(([, y]) => scaled(y)));
    if (name === "accuracy" && !difference.checked) [low, high] = [0, 1];
    const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
    [low, high] = [low - pad, high + pad];
    span = extent(all.map(([x]) => x));
    valueAxis(painted, plot, low, high, logarithmic);
    stepAxis(painted, plot, ...span);
    const x = (step) => plot.left + (plot.width * (step - span[0])) / Math.max(1, span[1] - span[0]);
    const y = (value) => plot.top + plot.height * (1 - (scaled(value) - low) / (high - low));
    for (const { run, line, dots, rings } of drawn) {
      context.strokeStyle = context.fillStyle = run.colour;
      context.lineWidth = 1.4;
      context.beginPath();
      line.forEach(([step, value], index) =>
        index ? context.lineTo(x(step), y(value)) : context.moveTo(x(step), y(value)),
      );
      context.stroke();
      for (const [step, value] of dots) {
        context.beginPath();
        context.arc(x(step), y(value), 2.6, 0, 7);
        context.fill();
      }
      for (const [step, value] of rings) {
        context.beginPath();
        context.arc(x(step), y(value), 4, 0, 7);
        context.stroke();
      }
    }
    if (cursor !== null) {
      context.strokeStyle = ink("soft");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(x(cursor), plot.top);
      context.lineTo(x(cursor), plot.top + plot.height);
      context.stroke();
    }
    readout.textContent = drawn
      .map(({ run, label, line, dots }) => {
        const source = line.length ? line : dots;
        const [step, value] = source[nearest(source, cursor ?? span[1])] ?? [];
        return `${drawn.length > 1 || label ? `${label ?? run.name}: ` : ""}${short(value)} at step ${whole(step ?? 0)}`;
      })
      .join("; ");
    beside.refresh();
  }

  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const share = (event.clientX - box.left - PLOT.left) / Math.max(1, box.width - PLOT.left - PLOT.right);
    cursor = span[0] + Math.min(1, Math.max(0, share)) * (span[1] - span[0]);
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
    if (line?.length) pick?.(run, line[nearest(line, cursor ?? span[1])][0]);
  };
  canvas.addEventListener("keydown", (event) => {
    if (event.key === "Enter") {
      point();
      return;
    }
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by) return;
    event.preventDefault();
    cursor = Math.min(span[1], Math.max(span[0], (cursor ?? span[1]) + (by * Math.max(1, span[1] - span[0])) / 50));
    draw();
  });
  const el = h(
    "div",
    { className: "chart" },
    h("h3", {}, title, " ", h("small", { className: "soft" }, what)),
    canvas,
    readout,
    beside,
  );
  return { el, draw, leave: onResize(canvas, draw) };
}

function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const each of values) {
    if (each < low) low = each;
    if (each > high) high = each;
  }
  return [low, high];
}

function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1]?.[0] < points[low]?.[0] - x ? low - 1 : low;
}
