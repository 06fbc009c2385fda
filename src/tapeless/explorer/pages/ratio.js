// Two runs in one picture: how many times larger the gradients of the first are than those of the second, line by line
// and step by step, where both were recorded.

import { css, ratioColour } from "./colour.js";
import { h, short, table, tableBeside, whole } from "./dom.js";
import { grid, legend } from "./grid.js";

const LEAST = 0.3; // of the scale's end: a factor of two
const SAID =
  "How many times larger the first run's gradients are than the second's at the same step, where both were recorded: " +
  "orange is larger, blue smaller, pale the same.";

export function ratioPicture({ label }) {
  let shown = null;
  const title = h("h3");
  const said = h("p", { className: "soft", id: "ratio-said" });
  const readout = h("p", { className: "readout", id: "ratio-readout", ariaLive: "polite" });
  const scale = legend("colours from smaller, blue, to larger, orange", (share) => css(ratioColour(2 * share - 1)));
  const says = (at, line) => {
    const { steps, lines, value, first } = shown;
    return `step ${whole(steps[at])}, ${label(first.run, lines[line])}: ${times(value(at, line))}`;
  };
  const what = () => {
    if (!shown || el.hidden) return null;
    const { steps, lines, value, most, first } = shown;
    const colour = (at, line) => {
      const ratio = value(at, line);
      return Number.isFinite(ratio) ? ratioColour(ratio / most) : [0, 0, 0];
    };
    return { steps, names: lines.map((name) => label(first.run, name)), colour, says };
  };
  const choose = ({ bin, line }) => {
    readout.textContent = says(bin, line);
  };
  const { canvas, draw: paint, mark, watch } = grid({ id: "ratio", what, choose });
  const beside = tableBeside("as a table", asTable);
  const picture = h("div", {}, h("div", { className: "controls" }, scale.el), canvas, readout, beside);
  const el = h("div", { hidden: true, id: "ratio-of-two" }, title, said, picture);

  // `first` and `second`: a run and its heatmap each.
  function show(first, second) {
    el.hidden = false;
    title.textContent = `${first.run.name} ÷ ${second.run.name}`;
    const why = apart(first, second);
    said.textContent = why ?? SAID;
    picture.hidden = Boolean(why);
    shown = why ? null : compared(first, second);
    if (!shown) return;
    mark(null);
    readout.textContent = "Click a cell.";
    draw();
  }

  // Why there is nothing to compare, in a sentence; null where there is.
  function apart(first, second) {
    for (const { run, heat } of [first, second])
      if (!heat.bins) {
        const why = heat.error ?? "its first step is still to come";
        return `${run.name} has nothing recorded here, so there is nothing to compare: ${why}`;
      }
    const [one, two] = [first, second].map(({ run, heat }) => heat.lines.map((name) => label(run, name)));
    if (one.join("\n") !== two.join("\n")) {
      const have = one.length === two.length ? "lines" : "number of lines";
      return (
        `${first.run.name} and ${second.run.name} do not have the same ${have} (${one.length} and ${two.length}), ` +
        "so there is nothing to divide line by line: compare runs of one model."
      );
    }
    if (common(first.heat, second.heat).length) return null;
    return (
      `${first.run.name} and ${second.run.name} have no recorded step in common here: zoom out, or record both with ` +
      "the same --record N."
    );
  }

  function draw() {
    if (!shown || el.hidden) return;
    const { steps, lines, most } = shown;
    const label = `${title.textContent}: ${lines.length} lines, ${steps.length} steps that both have`;
    canvas.setAttribute("aria-label", `${label}; arrow keys choose a cell`);
    paint();
    scale.draw([`${short(10 ** -most)} ×`, `${short(10 ** most)} ×`]);
    beside.refresh();
  }

  function asTable() {
    const { steps, lines, value, first } = shown;
    const at = [0, Math.floor(steps.length / 2), steps.length - 1];
    const rows = lines.map((name, line) => [label(first.run, name), ...at.map((each) => 10 ** value(each, line))]);
    return table(`${title.textContent}, times`, ["where", ...at.map((each) => `step ${whole(steps[each])}`)], rows);
  }

  const hide = () => {
    el.hidden = true;
    shown = null;
  };
  return { el, show, hide, draw, leave: watch() };
}

const times = (ratio) =>
  Number.isNaN(ratio) ? "zero, or not recorded, in one of them" : `${short(10 ** ratio)} times as large`;

// The steps that both heatmaps have a bin for, as pairs of bins.
function common(first, second) {
  const at = new Map([...second.steps].map((step, bin) => [step, bin]));
  return [...first.steps].flatMap((step, bin) => (at.has(step) ? [[bin, at.get(step)]] : []));
}

function compared(first, second) {
  const pairs = common(first.heat, second.heat);
  const lines = first.heat.lines;
  const value = (at, line) => {
    const [one, other] = [first.heat.high(pairs[at][0], line), second.heat.high(pairs[at][1], line)];
    return one > 0 && other > 0 ? Math.log10(one / other) : NaN;
  };
  let most = LEAST;
  for (let at = 0; at < pairs.length; at += 1)
    for (let line = 0; line < lines.length; line += 1) most = Math.max(most, Math.abs(value(at, line)) || 0);
  return { first, lines, value, most, steps: pairs.map(([bin]) => first.heat.steps[bin]) };
}
