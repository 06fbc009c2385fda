// Depth × step of gradient size per element, in log colours: the whole run in one picture. Each cell shows the greatest
// value of its steps, because a mean hides the spike that is looked for.

import { batchOf } from "./batch.js";
import { css, logShare, scale } from "./colour.js";
import { h, short, table, tableBeside, whole } from "./dom.js";
import { binAt, grid, legend } from "./grid.js";
import { here, keep, link } from "./place.js";
import { ratioPicture } from "./ratio.js";

const KINDS = {
  flow: "gradient that leaves each section",
  weights: "gradients of each section's weights",
  calls: "every backward call",
};
export const MARKS = { fine: "✓", look: "!", bad: "✗" }; // of the doctor's verdicts
const BINS = 1024;
const DECADES = 12;
const SAID =
  "A column is a recorded step, a line a section, as in every list of calls: the input at the top, the loss at the " +
  "bottom, from where the gradient goes up. Dark is small, bright is large (RMS per element). Click a cell.";

export function heatmap({ model, difference }) {
  const options = Object.entries(KINDS).map(([value, text]) => h("option", { value }, text));
  const kind = h("select", { id: "heat-kind", onchange: () => other() }, options);
  if (KINDS[here().chosen.show]) kind.value = here().chosen.show;
  const pictures = h("div", { className: "pictures" });
  const readout = h("p", { className: "readout", id: "heat-readout", ariaLive: "polite" });
  const toFlow = h("a", { id: "heat-to-flow", className: "button", hidden: true }, "see this step call by call");
  const button = (id, text, onclick) => h("button", { type: "button", id, onclick }, text);
  const who = button("heat-to-batch", "whose gradient was it?", () => showBatch());
  const batch = h("div", { id: "heat-batch", role: "status" });
  const zoomIn = button("zoom-in", "zoom in", () => zoom(0.25));
  const zoomOut = button("zoom-out", "zoom out", () => zoom(4));
  const colours = legend("colours from small to large", (share) => css(scale(share)));
  const beside = tableBeside("as a table", asTable);
  const ratio = ratioPicture({ label: (run, name) => label(run, name) });
  const el = h(
    "section",
    { className: "card", ariaLabel: "Gradient size by depth and step" },
    h("h2", {}, "Gradient size by depth and step"),
    h("p", { className: "soft" }, SAID),
    h("div", { className: "controls" }, h("label", {}, "show the", kind), colours.el, zoomIn, zoomOut),
    pictures,
    h("div", { className: "controls" }, readout, toFlow, who),
    batch,
    ratio.el,
    beside,
  );
  who.hidden = zoomOut.disabled = true;
  let drawn = [];
  /** @type {any[]} */
  let range = [1, 1];
  let chosen = null; // a run, a step and the name of a line
  let asked = 0;
  let leaving = [];
  let until = Infinity;
  const { chosen: given } = here();
  if (given.run && given.step)
    chosen = { run: model.runs[Number(given.run)], step: Number(given.step), name: given.section ?? null };

  const heatOf = async (run) => {
    if (!run.record) return { error: run.recordError };
    return run.zoomed(kind.value, BINS, model.span).catch((error) => ({ error: error.message }));
  };

  async function update() {
    const mine = (asked += 1);
    const runs = model.shown;
    const found = await Promise.all(runs.map(heatOf));
    if (mine !== asked) return;
    const before = new Map(drawn.map((each) => [each.run, each.grid]));
    drawn = runs.map((run, index) => ({ run, heat: found[index], grid: before.get(run) ?? made(run) }));
    range = extent(drawn.filter(({ heat }) => heat.bins).map(({ heat }) => heat));
    const kept = [...pictures.children].map((child) => child.dataset.run).join();
    const key = ({ run, heat }) => `${run.number}${heat.bins ? "" : "!"} ${run.doctor?.diagnosis?.kind ?? ""}`;
    if (kept !== drawn.map(key).join()) {
      leaving.forEach((each) => each());
      pictures.replaceChildren(...drawn.map((item) => boxOf(item, key(item))));
      leaving = drawn.filter(({ heat }) => heat.bins).map((item) => item.grid.watch());
    }
    draw();
    if (difference.checked && drawn.length > 1) ratio.show(drawn[0], drawn[1]);
    else ratio.hide();
  }

  function boxOf({ run, heat, grid: { canvas } }, key) {
    const said = run.doctor?.diagnosis;
    const verdict = said && h("small", { className: said.verdict }, ` ${MARKS[said.verdict] ?? ""} ${said.kind}`);
    const instead = h("p", { className: "soft" }, heat.error ?? "nothing recorded yet");
    const box = h("div", {}, h("h3", {}, run.name, verdict), heat.bins ? canvas : instead);
    box.dataset.run = key;
    return box;
  }

  function made(run) {
    const what = () => {
      const heat = drawn.find((each) => each.run === run)?.heat;
      if (!heat?.bins) return null;
      const colour = (bin, line) => {
        const value = heat.high(bin, line);
        return value > 0 ? scale(logShare(value, range[0], range[1])) : [0, 0, 0];
      };
      const names = heat.lines.map((name) => label(run, name));
      return { steps: heat.steps, names, colour, says: (bin, line) => told(run, heat, bin, line), until };
    };
    const choose = ({ bin, line }) => {
      const { heat } = drawn.find((each) => each.run === run);
      chosen = { run, step: heat.steps[bin], name: heat.lines[line] };
      keep({ run: run.number, step: chosen.step, section: chosen.name });
      batch.replaceChildren();
      draw();
    };
    return grid({ what, choose, zoom });
  }

  // Where the chosen step and line are among those that are drawn now.
  function pointed() {
    const item = chosen && drawn.find(({ run, heat }) => run === chosen.run && heat.bins);
    if (!item) return null;
    const line = Math.max(0, item.heat.lines.indexOf(chosen.name));
    return { ...item, bin: binAt(item.heat.steps, chosen.step), line };
  }

  function other() {
    chosen = null;
    keep({ show: kind.value, run: null, step: null, section: null });
    update();
  }

  // Around the chosen step, or the middle; all runs and all curves together.
  function zoom(factor) {
    const steps = drawn.filter(({ heat }) => heat.bins).flatMap(({ heat }) => [heat.steps[0], heat.steps.at(-1)]);
    if (!steps.length) return;
    const [first, last] = model.span ?? [Math.min(...steps), Math.max(...steps)];
    const wide = (last - first) * factor;
    const middle = chosen?.step ?? (first + last) / 2;
    const end = Math.max(last, ...model.shown.map((run) => run.curves.steps.step?.at(-1) ?? 0));
    const from = Math.max(1, Math.round(middle - wide / 2));
    const to = Math.round(middle + wide / 2);
    model.span = to - from < 2 ? model.span : from <= 1 && to >= end ? null : [from, to];
    zoomOut.disabled = !model.span;
    model.tell("zoom");
  }

  // A step that was pointed at elsewhere: a spike of a curve, a sentence of the doctor.
  function choose(run, step, name = null) {
    const item = drawn.find((each) => each.run === run && each.heat.bins);
    if (!item) return;
    chosen = { run, step, name: name ?? item.heat.lines[0] };
    keep({ run: run.number, step, section: chosen.name });
    draw();
    showBatch(step);
  }

  async function showBatch(step = chosen.step) {
    const say = (text) => batch.replaceChildren(h("p", { className: "soft" }, text));
    say("drawing the batch again …");
    await batchOf(chosen.run, step).then(
      (found) => batch.replaceChildren(found),
      (error) => say(error.message),
    );
  }

  function draw() {
    colours.draw([short(range[0]), `${range[2] ? "≥ " : ""}${short(range[1])}`]);
    const item = pointed();
    for (const each of drawn) {
      if (!each.heat.bins) continue;
      each.grid.mark(item?.run === each.run ? item : null);
      const { run, heat, grid } = each;
      const lines = `${run.name}: ${KINDS[kind.value]}, ${heat.lines.length} lines, ${heat.bins} columns up to step `;
      grid.canvas.setAttribute("aria-label", `${lines}${whole(heat.steps.at(-1))}; arrow keys choose a cell`);
    }
    toFlow.hidden = who.hidden = !item;
    if (item) {
      const { run, heat, bin, line } = item;
      const call = callOf(run, heat.lines[line]);
      toFlow.href = link("flow", { run: run.number, step: heat.steps[bin], ...(call === undefined ? {} : { call }) });
      readout.textContent = told(run, heat, bin, line);
    } else readout.textContent = drawn.some(({ heat }) => heat.bins) ? "no cell is chosen" : "";
    beside.refresh();
  }

  // The call that a line is about.
  function callOf({ record }, name) {
    if (kind.value === "calls") return Number(name);
    const result = kind.value === "flow" ? record.flow[name] : record.weights[name]?.[0];
    return record.results[result]?.[0];
  }

  const label = (run, name) => (kind.value === "calls" ? `${name} ${run.record.calls[Number(name)].op}` : name);

  function told(run, heat, bin, line) {
    const [least, most] = [heat.low(bin, line), heat.high(bin, line)];
    const until = bin + 1 < heat.bins ? heat.steps[bin + 1] - 1 : heat.steps[bin];
    const many = heat.rows[bin + 1] - heat.rows[bin] > 1;
    const steps = many ? `steps ${whole(heat.steps[bin])} to ${whole(until)}` : `step ${whole(heat.steps[bin])}`;
    const size = least === most ? short(most) : `${short(least)} to ${short(most)}`;
    return `${run.name}, ${steps}, ${label(run, heat.lines[line])}: ${size} per element`;
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
    const headings = ["run", "where", "first", "middle", "last", "greatest", "at step"];
    return table(`Size per element: ${KINDS[kind.value]}`, headings, rows);
  }

  // What lies beyond a step is covered: a replay uncovers it.
  const reveal = (step) => {
    if (step === until) return;
    until = step;
    for (const { heat, grid } of drawn) if (heat.bins) grid.draw();
  };
  const leave = () => {
    leaving.forEach((each) => each());
    ratio.leave();
  };
  return { el, update, reveal, choose, leave };
}

// The ends of the scale. An explosion ends in the brightest colour, and takes no colour from what was before it.
function extent(heats) {
  const found = [];
  for (const heat of heats)
    for (let bin = 0; bin < heat.bins; bin += 1)
      for (let line = 0; line < heat.lines.length; line += 1)
        for (const value of [heat.low(bin, line), heat.high(bin, line)]) if (value > 0) found.push(value);
  if (!found.length) return [1, 1];
  found.sort((a, b) => a - b);
  const high = Math.min(found.at(-1), found[found.length >> 1] * 10 ** (DECADES / 2));
  return [Math.max(found[0], high * 10 ** -DECADES), high, found.at(-1) > high];
}
