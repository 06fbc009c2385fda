// Depth × step of gradient size per element, in log colours: the whole run in one picture. Each cell shows the greatest
// value of its steps, because a mean hides the spike that is looked for.

import { batchOf } from "./batch.js";
import { css, logShare, scale } from "./colour.js";
import { h, short, table, tableBeside, whole } from "./dom.js";
import { onResize, prepare, stepAxis } from "./draw.js";
import { ratioPicture } from "./ratio.js";

const KINDS = {
  flow: "gradient that leaves each section",
  weights: "gradients of each section's weights",
  calls: "every backward call",
};
export const MARKS = { fine: "✓", look: "!", bad: "✗" }; // of the doctor's verdicts
const BINS = 1024,
  LEFT = 112,
  RIGHT = 10,
  BOTTOM = 22,
  MOST_RUNS = 3,
  DECADES = 12;

export function heatmap({ model, difference }) {
  const kind = h(
    "select",
    {
      id: "heat-kind",
      onchange: () => {
        chosen = null;
        update();
      },
    },
    Object.entries(KINDS).map(([value, text]) => h("option", { value }, text)),
  );
  const pictures = h("div", { className: "pictures" });
  const readout = h("p", { className: "readout", id: "heat-readout", ariaLive: "polite" });
  const toFlow = h(
    "button",
    {
      type: "button",
      id: "heat-to-flow",
      hidden: true,
      onclick: () => {
        model.at = pointed();
        model.open("flow");
      },
    },
    "see this step call by call",
  );
  const who = h(
    "button",
    { type: "button", id: "heat-to-batch", hidden: true, onclick: () => showBatch() },
    "whose gradient was it?",
  );
  const batch = h("div", { id: "heat-batch", role: "status" });
  const zoomIn = h("button", { type: "button", id: "zoom-in", onclick: () => zoom(0.25) }, "zoom in"),
    zoomOut = h("button", { type: "button", id: "zoom-out", disabled: true, onclick: () => zoom(4) }, "zoom out");
  const low = h("span"),
    high = h("span"),
    bar = h("canvas", { role: "img", ariaLabel: "colours from small to large" });
  const beside = tableBeside("as a table", asTable),
    ratio = ratioPicture({ label: (run, name) => label(run, name) });
  const el = h(
    "section",
    { className: "card", ariaLabel: "Gradient size by depth and step" },
    h("h2", {}, "Gradient size by depth and step"),
    h(
      "p",
      { className: "soft" },
      "The loss is at the top, the input at the bottom; a gradient flows down. Dark is small, bright is large, per element. Click a cell.",
    ),
    h(
      "div",
      { className: "controls" },
      h("label", {}, "show the", kind),
      h("span", { className: "scale" }, low, bar, high),
      zoomIn,
      zoomOut,
    ),
    pictures,
    h("div", { className: "controls" }, readout, toFlow, who),
    batch,
    ratio.el,
    beside,
  );
  let drawn = [],
    range = [1, 1],
    chosen = null,
    asked = 0,
    leaving = [],
    until = Infinity;

  async function update() {
    const mine = (asked += 1),
      what = kind.value;
    const runs = model.shown.slice(0, MOST_RUNS);
    const found = await Promise.all(
      runs.map((run) =>
        run.record
          ? run.zoomed(what, BINS, model.span).catch((error) => ({ error: error.message }))
          : { error: run.recordError },
      ),
    );
    if (mine !== asked) return;
    const step = chosenStep();
    const before = new Map(drawn.map((each) => [each.run, each.canvas]));
    drawn = runs.map((run, index) => ({ run, heat: found[index], canvas: before.get(run) ?? made(run) }));
    if (step !== null)
      chosen = chooseIn(
        drawn.find(({ run }) => run === chosen.run),
        step,
        chosen.line,
      );
    range = extent(drawn.filter(({ heat }) => heat.bins).map(({ heat }) => heat));
    [low.textContent, high.textContent] = range.map(short);
    const kept = [...pictures.children].map((child) => child.dataset.run).join();
    const key = ({ run, heat }) => `${run.number}${heat.bins ? "" : "!"} ${run.doctor?.diagnosis?.kind ?? ""}`;
    if (kept !== drawn.map(key).join()) {
      leaving.forEach((each) => each());
      pictures.replaceChildren(
        ...drawn.map(({ run, heat, canvas }) => {
          const said = run.doctor?.diagnosis,
            verdict = said && h("small", { className: said.verdict }, ` ${MARKS[said.verdict] ?? ""} ${said.kind}`);
          const box = h(
            "div",
            {},
            h("h3", {}, run.name, verdict),
            heat.bins ? canvas : h("p", { className: "soft" }, heat.error ?? "nothing recorded yet"),
          );
          box.dataset.run = key({ run, heat });
          return box;
        }),
      );
      leaving = drawn.filter(({ heat }) => heat.bins).map(({ canvas }) => onResize(canvas, draw));
    }
    draw();
    if (difference.checked && drawn.length > 1) ratio.show(drawn[0], drawn[1]);
    else ratio.hide();
  }

  function made(run) {
    const canvas = h("canvas", { tabIndex: 0, role: "img" });
    const find = (event) => {
      const item = drawn.find((each) => each.run === run),
        box = canvas.getBoundingClientRect(),
        { heat } = item;
      const step = stepAt(heat, (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT));
      const line = Math.floor(((event.clientY - box.top) / (box.height - BOTTOM)) * heat.lines.length);
      return { run, bin: binAt(heat, step), line: Math.min(heat.lines.length - 1, Math.max(0, line)) };
    };
    canvas.addEventListener("click", (event) => {
      chosen = find(event);
      batch.replaceChildren();
      draw();
    });
    canvas.addEventListener("dblclick", () => zoom(0.25));
    canvas.addEventListener("keydown", (event) => {
      if (event.key === "+" || event.key === "-") {
        event.preventDefault();
        zoom(event.key === "+" ? 0.25 : 4);
        return;
      }
      const [across, down] =
        { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [];
      if (across === undefined) return;
      event.preventDefault();
      const { heat } = drawn.find((each) => each.run === run);
      const now = chosen?.run === run ? chosen : { bin: heat.bins - 1, line: 0 };
      chosen = {
        run,
        bin: Math.min(heat.bins - 1, Math.max(0, now.bin + across)),
        line: Math.min(heat.lines.length - 1, Math.max(0, now.line + down)),
      };
      draw();
    });
    return canvas;
  }

  const chosenStep = () => {
    const item = chosen && drawn.find(({ run }) => run === chosen.run);
    return item?.heat.bins > chosen?.bin ? item.heat.steps[chosen.bin] : null;
  };
  const chooseIn = (item, step, line) =>
    item?.heat.bins
      ? { run: item.run, bin: binAt(item.heat, step), line: Math.min(line, item.heat.lines.length - 1) }
      : null;

  // Around the chosen step, or the middle; all runs and all curves together.
  function zoom(factor) {
    const steps = drawn
      .filter(({ heat }) => heat.bins)
      .flatMap(({ heat }) => [heat.steps[0], heat.steps[heat.bins - 1]]);
    if (!steps.length) return;
    const [first, last] = model.span ?? [Math.min(...steps), Math.max(...steps)],
      wide = (last - first) * factor;
    const middle = chosenStep() ?? (first + last) / 2,
      all = model.shown.flatMap((run) => [...(run.curves.steps.step ?? [])]),
      end = Math.max(last, ...all.slice(-1));
    const from = Math.max(1, Math.round(middle - wide / 2)),
      to = Math.round(middle + wide / 2);
    model.span = to - from < 2 ? model.span : from <= 1 && to >= end ? null : [from, to];
    zoomOut.disabled = !model.span;
    model.tell("zoom");
  }

  // A step that was pointed at elsewhere: a spike of a curve.
  function choose(run, step) {
    const item = drawn.find((each) => each.run === run && each.heat.bins);
    if (!item) return;
    chosen = chooseIn(item, step, 0);
    draw();
    showBatch(step);
  }

  async function showBatch(step = chosenStep()) {
    batch.replaceChildren(h("p", { className: "soft" }, "drawing the batch again …"));
    batch.replaceChildren(
      await batchOf(chosen.run, step).catch((error) => h("p", { className: "soft" }, error.message)),
    );
  }

  function draw() {
    paintBar();
    for (const { run, heat, canvas } of drawn) if (heat.bins) paint(run, heat, canvas);
    const item = chosen && drawn.find(({ run, heat }) => run === chosen.run && heat.bins > chosen.bin);
    toFlow.hidden = who.hidden = !item;
    readout.textContent = item ? told(item) : drawn.some(({ heat }) => heat.bins) ? "no cell is chosen" : "";
    beside.refresh();
  }

  function paint(run, heat, canvas) {
    const lines = heat.lines.length;
    canvas.style.height = `${Math.min(420, Math.max(60, lines * Math.min(26, Math.max(5, 330 / lines)))) + BOTTOM}px`;
    const painted = prepare(canvas),
      { context, width, height, ink } = painted;
    const plot = { left: LEFT, top: 0, width: Math.max(10, width - LEFT - RIGHT), height: height - BOTTOM };
    const across = Math.min(2000, Math.round(plot.width)),
      image = new ImageData(across, lines);
    for (let x = 0; x < across; x += 1) {
      const bin = binAt(heat, stepAt(heat, (x + 0.5) / across));
      for (let line = 0; line < lines; line += 1) {
        const value = heat.high(bin, line),
          colour = value > 0 ? scale(logShare(value, ...range)) : [0, 0, 0];
        image.data.set([...colour, 255], 4 * (line * across + x));
      }
    }
    const small = new OffscreenCanvas(across, lines);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, plot.left, plot.top, plot.width, plot.height);
    if (until < heat.steps[heat.bins - 1]) {
      const from = plot.width * Math.min(1, Math.max(0, shareAt(heat, until)));
      context.fillStyle = ink("empty");
      context.fillRect(plot.left + from, plot.top, plot.width - from, plot.height);
    }
    context.fillStyle = ink("soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil((lines * 14) / plot.height));
    heat.lines.forEach((name, line) => {
      if (line % every === 0)
        context.fillText(label(run, name), LEFT - 6, plot.top + ((line + 0.5) * plot.height) / lines, LEFT - 8);
    });
    stepAxis(painted, plot, heat.steps[0], heat.steps[heat.bins - 1]);
    if (chosen?.run === run && chosen.bin < heat.bins) {
      const x = plot.left + plot.width * shareAt(heat, heat.steps[chosen.bin]);
      context.strokeStyle = ink("mark");
      context.lineWidth = 2;
      context.strokeRect(x - 4, (chosen.line * plot.height) / lines + 1, 8, plot.height / lines - 2);
    }
    canvas.setAttribute(
      "aria-label",
      `${run.name}: ${KINDS[kind.value]}, ${lines} lines, ${heat.bins} columns; arrow keys choose a cell, + and − zoom`,
    );
  }

  function paintBar() {
    const { context, width, height } = prepare(bar);
    for (let x = 0; x < width; x += 1) {
      context.fillStyle = css(scale(x / width));
      context.fillRect(x, 0, 1.5, height);
    }
  }

  const label = (run, name) => {
    if (kind.value !== "calls") return name;
    const call = run.record.calls[run.record.results[Number(name)][0]];
    return `${call.call} ${call.op}`;
  };

  function told({ run, heat }) {
    const { bin, line } = chosen,
      least = heat.low(bin, line),
      most = heat.high(bin, line);
    const until = bin + 1 < heat.bins ? heat.steps[bin + 1] - 1 : heat.steps[bin];
    const steps =
      heat.rows[bin + 1] - heat.rows[bin] > 1
        ? `steps ${whole(heat.steps[bin])} to ${whole(until)}`
        : `step ${whole(heat.steps[bin])}`;
    return `${run.name}, ${steps}, ${label(run, heat.lines[line])}: ${least === most ? short(most) : `${short(least)} to ${short(most)}`} per element`;
  }

  function pointed() {
    const { heat } = drawn.find(({ run }) => run === chosen.run),
      name = heat.lines[chosen.line],
      { record } = chosen.run;
    const result =
      kind.value === "calls" ? Number(name) : kind.value === "flow" ? record.flow[name] : record.weights[name]?.[0];
    return { run: chosen.run, row: heat.rows[chosen.bin], call: record.results[result]?.[0] };
  }

  function asTable() {
    const rows = drawn
      .filter(({ heat }) => heat.bins)
      .flatMap(({ run, heat }) =>
        heat.lines.map((name, line) => {
          const at = [0, Math.floor(heat.bins / 2), heat.bins - 1].map((bin) => heat.high(bin, line));
          let peak = 0;
          for (let bin = 1; bin < heat.bins; bin += 1) if (heat.high(bin, line) > heat.high(peak, line)) peak = bin;
          return [run.name, label(run, name), ...at, heat.high(peak, line), whole(heat.steps[peak])];
        }),
      );
    return table(
      `Size per element: ${KINDS[kind.value]}`,
      ["run", "where", "first", "middle", "last", "greatest", "at step"],
      rows,
    );
  }

  // What lies beyond a step is covered: a replay uncovers it.
  const reveal = (step) => {
    if (step !== until) {
      until = step;
      for (const { run, heat, canvas } of drawn) if (heat.bins) paint(run, heat, canvas);
    }
  };
  return {
    el,
    update,
    reveal,
    choose,
    leave: () => {
      leaving.forEach((each) => each());
      ratio.leave();
    },
  };
}

const shareAt = (heat, step) => (step - heat.steps[0] + 0.5) / (heat.steps[heat.bins - 1] - heat.steps[0] + 1);
const stepAt = (heat, share) => heat.steps[0] - 0.5 + share * (heat.steps[heat.bins - 1] - heat.steps[0] + 1);

// The bin whose step is the nearest: recorded steps are not evenly spaced.
function binAt(heat, step) {
  let [low, high] = [0, heat.bins - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (heat.steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - heat.steps[low - 1] < heat.steps[low] - step ? low - 1 : low;
}

function extent(heats) {
  let [low, high] = [Infinity, 0];
  for (const heat of heats) {
    for (let bin = 0; bin < heat.bins; bin += 1) {
      for (let line = 0; line < heat.lines.length; line += 1) {
        const least = heat.low(bin, line),
          most = heat.high(bin, line);
        if (least > 0 && least < low) low = least;
        if (most > high) high = most;
      }
    }
  }
  return high > 0 ? [Math.max(Math.min(low, high), high * 10 ** -DECADES), high] : [1, 1];
}
