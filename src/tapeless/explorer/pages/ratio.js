// Two runs in one picture: how many times larger the gradients of the first are than those of the second, line by line
// and step by step, where both were recorded.

import { css, ratioColour } from "./colour.js";
import { h, short, table, tableBeside, whole } from "./dom.js";
import { onResize, prepare, stepAxis } from "./draw.js";

const LEFT = 112,
  RIGHT = 10,
  BOTTOM = 22,
  LEAST = 0.3; // of the scale's end: a factor of two

export function ratioPicture({ label }) {
  let shown = null,
    chosen = null;
  const canvas = h("canvas", {
    id: "ratio",
    tabIndex: 0,
    role: "img",
    ariaLabel: "two runs, one divided by the other",
  });
  const title = h("h3"),
    said = h("p", { className: "soft", id: "ratio-said" }),
    readout = h("p", { className: "readout", id: "ratio-readout", ariaLive: "polite" });
  const low = h("span"),
    high = h("span"),
    bar = h("canvas", { role: "img", ariaLabel: "colours from smaller, blue, to larger, orange" });
  const beside = tableBeside("as a table", asTable);
  const picture = h(
    "div",
    {},
    h("div", { className: "controls" }, h("span", { className: "scale" }, low, bar, high)),
    canvas,
    readout,
    beside,
  );
  const el = h("div", { hidden: true, id: "ratio-of-two" }, title, said, picture);

  // `first` and `second`: a run and its heatmap each.
  function show(first, second) {
    el.hidden = false;
    title.textContent = `${first.run.name} ÷ ${second.run.name}`;
    const why = apart(first, second);
    said.textContent =
      why ??
      "How many times larger the first run's gradients are than the second's at the same step, where both were recorded: orange is larger, blue smaller, pale the same.";
    picture.hidden = Boolean(why);
    shown = why ? null : compared(first, second);
    if (!shown) return;
    chosen = null;
    [low.textContent, high.textContent] = [`${short(10 ** -shown.most)} ×`, `${short(10 ** shown.most)} ×`];
    draw();
  }

  // Why there is nothing to compare, in a sentence; null where there is.
  function apart(first, second) {
    for (const { run, heat } of [first, second])
      if (!heat.bins)
        return `${run.name} has nothing recorded here, so there is nothing to compare: ${heat.error ?? "its first step is still to come"}`;
    const names = [first, second].map(({ run, heat }) => heat.lines.map((name) => label(run, name)).join("\n"));
    if (names[0] !== names[1])
      return `${first.run.name} and ${second.run.name} do not have the same ${first.heat.lines.length === second.heat.lines.length ? "lines" : "number of lines"} (${first.heat.lines.length} and ${second.heat.lines.length}), so there is nothing to divide line by line: compare runs of one model.`;
    return common(first.heat, second.heat).length
      ? null
      : `${first.run.name} and ${second.run.name} have no recorded step in common here: zoom out, or record both with the same --record N.`;
  }

  function draw() {
    if (!shown || el.hidden) return;
    const { steps, lines, value, most, first } = shown,
      count = lines.length;
    canvas.style.height = `${Math.min(420, Math.max(60, count * Math.min(26, Math.max(5, 330 / count)))) + BOTTOM}px`;
    const painted = prepare(canvas),
      { context, width, height, ink } = painted,
      plot = { left: LEFT, top: 0, width: Math.max(10, width - LEFT - RIGHT), height: height - BOTTOM };
    const across = Math.min(2000, Math.round(plot.width)),
      image = new ImageData(across, count);
    for (let x = 0; x < across; x += 1) {
      const at = nearest(steps, stepAt(steps, (x + 0.5) / across));
      for (let line = 0; line < count; line += 1) {
        const ratio = value(at, line);
        image.data.set(
          [...(Number.isFinite(ratio) ? ratioColour(ratio / most) : [0, 0, 0]), 255],
          4 * (line * across + x),
        );
      }
    }
    const small = new OffscreenCanvas(across, count);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, plot.left, plot.top, plot.width, plot.height);
    context.fillStyle = ink("soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    const every = Math.max(1, Math.ceil((count * 14) / plot.height));
    lines.forEach((name, line) => {
      if (line % every === 0)
        context.fillText(label(first.run, name), LEFT - 6, plot.top + ((line + 0.5) * plot.height) / count, LEFT - 8);
    });
    stepAxis(painted, plot, steps[0], steps.at(-1));
    if (chosen) {
      context.strokeStyle = ink("mark");
      context.lineWidth = 2;
      context.strokeRect(
        plot.left + plot.width * shareOf(steps, chosen.at) - 4,
        (chosen.line * plot.height) / count + 1,
        8,
        plot.height / count - 2,
      );
    }
    canvas.setAttribute(
      "aria-label",
      `${title.textContent}: ${count} lines, ${steps.length} steps that both have; arrow keys choose a cell`,
    );
    readout.textContent = chosen
      ? `step ${whole(steps[chosen.at])}, ${label(first.run, lines[chosen.line])}: ${times(value(chosen.at, chosen.line))}`
      : "Click a cell.";
    const scale = prepare(bar);
    for (let x = 0; x < scale.width; x += 1) {
      scale.context.fillStyle = css(ratioColour((2 * x) / scale.width - 1));
      scale.context.fillRect(x, 0, 1.5, scale.height);
    }
    beside.refresh();
  }

  canvas.addEventListener("click", (event) => {
    if (!shown) return;
    const box = canvas.getBoundingClientRect(),
      line = Math.floor(((event.clientY - box.top) / (box.height - BOTTOM)) * shown.lines.length);
    chosen = {
      at: nearest(shown.steps, stepAt(shown.steps, (event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT))),
      line: Math.min(shown.lines.length - 1, Math.max(0, line)),
    };
    draw();
  });
  canvas.addEventListener("keydown", (event) => {
    const [across, down] =
      { ArrowLeft: [-1, 0], ArrowRight: [1, 0], ArrowUp: [0, -1], ArrowDown: [0, 1] }[event.key] ?? [];
    if (across === undefined || !shown) return;
    event.preventDefault();
    const now = chosen ?? { at: shown.steps.length - 1, line: 0 };
    chosen = {
      at: Math.min(shown.steps.length - 1, Math.max(0, now.at + across)),
      line: Math.min(shown.lines.length - 1, Math.max(0, now.line + down)),
    };
    draw();
  });

  function asTable() {
    const { steps, lines, value, first } = shown,
      at = [0, Math.floor(steps.length / 2), steps.length - 1];
    return table(
      `${title.textContent}, times`,
      ["where", ...at.map((each) => `step ${whole(steps[each])}`)],
      lines.map((name, line) => [label(first.run, name), ...at.map((each) => 10 ** value(each, line))]),
    );
  }

  const leave = onResize(canvas, draw);
  return {
    el,
    show,
    hide: () => {
      el.hidden = true;
      shown = null;
    },
    draw,
    leave,
  };
}

const times = (ratio) =>
  Number.isNaN(ratio) ? "zero, or not recorded, in one of them" : `${short(10 ** ratio)} times as large`;

// The steps that both heatmaps have a bin for, as pairs of bins.
function common(first, second) {
  const at = new Map([...second.steps].map((step, bin) => [step, bin]));
  return [...first.steps].flatMap((step, bin) => (at.has(step) ? [[bin, at.get(step)]] : []));
}

function compared(first, second) {
  const pairs = common(first.heat, second.heat),
    lines = first.heat.lines;
  const value = (at, line) => {
    const [one, other] = [first.heat.high(pairs[at][0], line), second.heat.high(pairs[at][1], line)];
    return one > 0 && other > 0 ? Math.log10(one / other) : NaN;
  };
  let most = LEAST;
  for (let at = 0; at < pairs.length; at += 1)
    for (let line = 0; line < lines.length; line += 1) most = Math.max(most, Math.abs(value(at, line)) || 0);
  return { first, lines, value, most, steps: pairs.map(([bin]) => first.heat.steps[bin]) };
}

const stepAt = (steps, share) => steps[0] - 0.5 + share * (steps.at(-1) - steps[0] + 1);
const shareOf = (steps, at) => (steps[at] - steps[0] + 0.5) / (steps.at(-1) - steps[0] + 1);

function nearest(steps, step) {
  let [low, high] = [0, steps.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (steps[middle] < step) low = middle + 1;
    else high = middle;
  }
  return low > 0 && step - steps[low - 1] < steps[low] - step ? low - 1 : low;
}
