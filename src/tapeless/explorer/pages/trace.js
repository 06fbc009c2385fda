// One number of the model, followed through one update: which tokens its gradient is the sum of, that the sum is right,
// what the optimizer makes of it, and which tokens it pushes up and down.

import { json, numbers } from "./api.js";
import { css, faint, sided, SIGNS } from "./colour.js";
import { h, percent, short, table, tableBeside, whole } from "./dom.js";
import { onResize, prepare, tooltip, valueAxis } from "./draw.js";
import { here, keep } from "./place.js";

const LABEL = 100; // pixels of a label, written at a slant
const PICTURE =
  "Every pixel is one number of this weight: orange was moved up (or has a positive gradient), blue down, bright is " +
  "far. Click one, or go with the arrow keys.";
const LEFT = 62,
  RIGHT = 8,
  TOP = 8,
  LABELS = 104,
  BAR = 34,
  MOST_BARS = 30,
  MOST_SEQUENCES = 8,
  SHORT_TEXT = 16;

export function render({ model, el }) {
  let overview = null,
    found = null,
    drawn = null,
    chosen = 0,
    asked = 0;
  const run = () => model.runs[Number(runs.value)];
  const option = (value, text, selected = false) => h("option", { value, selected }, text);
  let given = here().chosen; // what the address asks for, until it is shown
  const wanted = Number(given.run ?? 0);
  const runs = h(
    "select",
    { id: "trace-run", onchange: () => open() },
    model.runs.map((each, index) => option(index, each.name, index === wanted)),
  );
  const step = h("select", { id: "trace-step", onchange: () => open(step.value) });
  const weight = h("select", {
    id: "trace-weight",
    onchange: () => {
      [row.value, column.value] = [0, 0];
      pick();
    },
  });
  const place = (id) =>
    h("input", {
      type: "number",
      min: 0,
      step: 1,
      id,
      value: 0,
      onchange: () => choose(Math.floor(Number(row.value)) || 0, Math.floor(Number(column.value)) || 0),
    });
  const row = place("trace-row"),
    column = place("trace-column");
  const what = h(
    "select",
    { id: "trace-what", onchange: loadPicture },
    option("update", "how far it was moved"),
    option("gradient", "its gradient"),
  );
  const go = (which, text) =>
    h("button", { type: "button", id: `trace-largest-${which}`, onclick: () => jump(which) }, text);
  const said = h("p", { id: "trace-said", role: "status" });
  const headline = h("p", { id: "trace-headline", className: "headline", ariaLive: "polite" });
  const picture = h("canvas", {
    id: "trace-picture",
    className: "weight-picture",
    tabIndex: 0,
    role: "img",
    ariaLabel: "the weight, element by element",
  });
  const sum = h("canvas", {
    id: "trace-sum",
    className: "waterfall",
    tabIndex: 0,
    role: "img",
    ariaLabel: "the contributions, one after the other",
  });
  const withEarlier = h("input", { type: "checkbox", id: "trace-earlier", checked: true, onchange: () => draw() });
  const earlierToo = h(
    "label",
    {},
    withEarlier,
    "with what earlier steps add (the optimizer remembers their gradients)",
  );
  const told = h("p", { className: "readout", id: "trace-term", ariaLive: "polite" });
  const equation = h("p", { id: "trace-equation", className: "equation" });
  const sequences = h("div", { id: "trace-sequences", className: "sequences" });
  const digits = h("div", { id: "trace-digits" });
  const lines = h("div", { id: "trace-lines" });
  const words = h("div", { id: "trace-words" });
  const terms = tableBeside("every contribution as a table", termTable);
  const largest = tableBeside("as a table: the largest of every weight", () =>
    table(
      "Weights of this update",
      ["weight", "shape", "gradient norm", "moved at most"],
      overview.weights.map((each) => [each.name, each.shape.join("×"), each.gradient, each.moved]),
    ),
  );
  const result = h(
    "div",
    { className: "trace", id: "trace-result", hidden: true },
    h(
      "section",
      { className: "card wide", ariaLabel: "Gradient as a sum" },
      h("h2", {}, "1. Where its gradient comes from"),
      h("p", { className: "soft", id: "trace-rule" }),
      h("div", { className: "controls" }, earlierToo),
      sum,
      told,
      equation,
      terms,
      h("h3", {}, "The texts that count most"),
      sequences,
    ),
    h(
      "section",
      { className: "card", ariaLabel: "Proof" },
      h("h2", {}, "2. Is it right?"),
      h(
        "p",
        { className: "soft" },
        "The complex step moves this one weight by 10⁻³⁰·i and looks at the loss. It knows no backward pass at all.",
      ),
      digits,
    ),
    h(
      "section",
      { className: "card", ariaLabel: "Optimizer" },
      h("h2", {}, "3. What the optimizer makes of it"),
      lines,
    ),
    h("section", { className: "card tall", ariaLabel: "Words" }, h("h2", {}, "4. Which tokens it pushes"), words),
  );
  el.append(
    h(
      "section",
      { className: "card", ariaLabel: "Which weight" },
      h("h2", {}, "Trace a weight: why did this one number change?"),
      h(
        "div",
        { className: "controls" },
        h("label", {}, "run", runs),
        h("label", {}, "update", step),
        go("update", "the largest update"),
        go("gradient", "the largest gradient"),
      ),
      h(
        "div",
        { className: "controls" },
        h("label", {}, "weight", weight),
        h("label", {}, "row", row),
        h("label", {}, "column", column),
        h("label", {}, "picture of", what),
      ),
      said,
      picture,
      h("p", { className: "soft" }, PICTURE),
      largest,
      headline,
    ),
    result,
  );

  const fail = (error) => {
    said.textContent = error.message;
    said.className = "error";
    result.hidden = true;
    headline.textContent = "";
  };

  async function open(at) {
    const mine = (asked += 1);
    said.textContent = "making the update again …";
    said.className = "soft";
    try {
      const answer = await json(run().path(at === undefined ? "trace" : `trace?step=${at}`));
      if (mine !== asked) return;
      if (answer.error) throw new Error(answer.error);
      overview = answer;
      step.replaceChildren(
        ...answer.steps.map((each) =>
          option(each, `${whole(each + 1)}${each === 0 ? ", from the first weights" : ""}`, each === answer.step),
        ),
      );
      weight.replaceChildren(
        ...answer.weights.map((each, index) => option(index, `${each.name} ${each.shape.join("×")}`)),
      );
      said.className = "";
      const clipped = answer.scale < 1 ? `, clipped to ${short(answer.clip)}` : "";
      said.textContent =
        `Update ${whole(answer.update)} made again, as the run made it: loss ${short(answer.loss)}, ` +
        `${answer.optimizer}, learning rate ${short(answer.lr)}, gradient norm ${short(answer.norm)}${clipped}; ` +
        `${whole(answer.words.length)} texts.`;
      largest.refresh();
      if (Number(given.weight) < answer.weights.length) {
        [weight.value, row.value, column.value] = [given.weight, given.row ?? 0, given.column ?? 0];
        await loadPicture();
        look();
      } else jump("update");
      given = {};
    } catch (error) {
      if (mine === asked) fail(error);
    }
  }

  function jump(which) {
    if (!overview) return;
    const at = overview.largest[which];
    [weight.value, row.value, column.value, what.value] = [at.weight, at.row, at.column, which];
    loadPicture();
    look();
  }

  // Another weight: at its own largest element, which its picture knows.
  async function pick() {
    await loadPicture();
    if (!drawn) return;
    let best = 0;
    drawn.values.forEach((value, at) => {
      if (Math.abs(value) > Math.abs(drawn.values[best])) best = at;
    });
    [row.value, column.value] = [Math.floor(best / drawn.columns) * drawn.down, (best % drawn.columns) * drawn.across];
    paintPicture();
    look();
  }

  async function loadPicture() {
    const query = new URLSearchParams({ step: overview.step, weight: weight.value, what: what.value });
    try {
      const [head, values] = await numbers(run().path(`picture?${query}`), Float64Array);
      drawn = { ...head, values };
      row.max = head.shape[0] - 1;
      column.max = head.shape[1] - 1;
      paintPicture();
    } catch (error) {
      fail(error);
    }
  }

  async function look() {
    const mine = (asked += 1),
      query = new URLSearchParams({ step: overview.step, weight: weight.value, row: row.value, column: column.value });
    try {
      const answer = await json(run().path(`element?${query}`));
      if (mine !== asked) return;
      if (answer.error) throw new Error(answer.error);
      found = answer;
      chosen = 0;
      const { weight, row, column } = answer;
      keep({ run: runs.value, after: overview.step, weight, row, column });
      show();
      digits.replaceChildren(h("p", { className: "soft" }, "computing in complex numbers …"));
      const proof = await json(run().path(`digits?${query}`));
      if (mine === asked)
        digits.replaceChildren(
          ...(proof.error ? [h("p", { className: "soft" }, proof.error)] : digitRows(proof, overview)),
        );
    } catch (error) {
      if (mine === asked) fail(error);
    }
  }

  function show() {
    result.hidden = false;
    said.className = "";
    const change = found.after - found.before;
    const first = found.terms[0];
    headline.replaceChildren(
      h("code", {}, `${found.name}[${found.index.join(", ")}]`),
      change === 0 ? " stayed where it was: " : ` went ${change > 0 ? "up" : "down"} from `,
      h("strong", {}, full(found.before)),
      ...(change === 0 ? [] : [" to ", h("strong", {}, full(found.after))]),
      ". ",
      ...(change && found.moved ? movedBy(found.moved) : []),
      first
        ? `In this batch ${whole(found.count)} tokens had a say, above all “${wordOf(first)}” in `
        : "No token of this update reaches it.",
      first ? quoted(first) : "",
    );
    const rules = found.parts.map((part) => `Call ${part.call}, ${part.title}, adds up ${part.formula}`).join("; ");
    document.getElementById("trace-rule").textContent = rules
      ? `${rules}: one term for each token. Each bar begins where the one before ended; orange adds, blue takes away.`
      : "No call of this update reaches it.";
    earlierToo.hidden = found.earlier === null;
    equation.replaceChildren(...equationOf(found));
    sequences.replaceChildren(...topSequences());
    lines.replaceChildren(...lineRows(found));
    words.replaceChildren(...wordRows(found, overview));
    terms.refresh();
    draw();
    paintPicture();
  }

  // What moved it: this batch, earlier steps that the optimizer remembers, weight decay; each with its part of all that
  // pushed, be it for or against.
  function movedBy({ batch, earlier, decay }) {
    const all = Math.abs(batch) + Math.abs(earlier) + Math.abs(decay) || 1;
    const part = (value) => `${signed(value)} (${percent(Math.abs(value) / all)})`;
    const against = batch * (found.after - found.before) < 0 ? ", against the move" : "";
    const rest = decay ? `, weight decay ${part(decay)}` : "";
    return [
      "Of this, ",
      h("strong", { id: "trace-batch" }, `this batch: ${part(batch)}${against}`),
      `; earlier steps: ${part(earlier)}${rest}. `,
    ];
  }

  const wordOf = (term) => overview.words[term.sequence][term.position];
  const textOf = (sequence) => overview.words[sequence].join("");
  const quoted = (term) => {
    const all = overview.words[term.sequence],
      from = Math.max(0, term.position - 12),
      to = Math.min(all.length, term.position + 13);
    return h(
      "q",
      {},
      `${from ? "…" : ""}${all.slice(from, term.position).join("")}`,
      h("mark", {}, all[term.position]),
      `${all.slice(term.position + 1, to).join("")}${to < all.length ? "…" : ""}`,
    );
  };
  // A text that is short stands for itself; where several of its tokens have a say, the token stands before it.
  const label = (term) => {
    const text = textOf(term.sequence);
    if (text.length > SHORT_TEXT)
      return overview.words[term.sequence].slice(Math.max(0, term.position - 1), term.position + 1).join("");
    return found.terms.every((each) => each.position === term.position) ? text : `${wordOf(term)} · ${text}`;
  };

  // What earlier steps add, the bars that fit, all others together, then the whole: what the optimizer follows, or,
  // where it remembers nothing, the gradient.
  function bars(width) {
    const fit = Math.max(4, Math.min(MOST_BARS, Math.floor((width - LEFT - RIGHT) / BAR) - 2));
    const alone = found.terms.slice(0, fit);
    const before = withEarlier.checked ? found.earlier : null;
    let at = before ?? 0;
    /** @type {any[]} */
    const made = before === null ? [] : [{ from: 0, to: before, label: "earlier steps", earlier: true }];
    for (const term of alone) made.push({ from: at, to: (at += term.share), label: label(term), term });
    const end = (before ?? 0) + found.total;
    if (found.count > alone.length)
      made.push({ from: at, to: end, label: `${whole(found.count - alone.length)} others` });
    made.push({ from: 0, to: end, label: before === null ? "the gradient" : "what moves it", total: true });
    return made;
  }

  function draw() {
    if (!found || result.hidden) return;
    const painted = prepare(sum),
      { context, width, height, ink } = painted,
      all = bars(width);
    const plot = { left: LEFT, top: TOP, width: width - LEFT - RIGHT, height: height - TOP - LABELS };
    const ends = all.flatMap(({ from, to }) => [from, to]),
      low = Math.min(0, ...ends),
      high = Math.max(0, ...ends),
      margin = (high - low || 1) * 0.04;
    const y = (value) => plot.top + plot.height * (1 - (value - low + margin) / (high - low + 2 * margin)),
      wide = plot.width / all.length;
    valueAxis(painted, plot, low - margin, high + margin, false);
    context.strokeStyle = ink("soft");
    context.beginPath();
    context.moveTo(plot.left, Math.round(y(0)) + 0.5);
    context.lineTo(plot.left + plot.width, Math.round(y(0)) + 0.5);
    context.stroke();
    chosen = Math.min(chosen, all.length - 1);
    all.forEach((bar, at) => {
      const x = plot.left + at * wide,
        top = Math.min(y(bar.from), y(bar.to)),
        high = Math.max(1.5, Math.abs(y(bar.from) - y(bar.to)));
      context.fillStyle = bar.total ? ink("ink") : css(SIGNS[bar.to >= bar.from ? 1 : 0]);
      context.fillRect(x + wide * 0.12, top, wide * 0.76, high);
      if (at < all.length - 1) {
        context.strokeStyle = ink("soft");
        context.setLineDash([2, 2]);
        context.beginPath();
        context.moveTo(x + wide * 0.88, y(bar.to));
        context.lineTo(x + wide * 1.12, y(bar.to));
        context.stroke();
        context.setLineDash([]);
      }
      if (at === chosen) {
        context.strokeStyle = ink("mark");
        context.lineWidth = 2;
        context.strokeRect(x + wide * 0.06, top - 3, wide * 0.88, high + 6);
        context.lineWidth = 1;
      }
      context.save();
      context.translate(x + wide * 0.62, plot.top + plot.height + 8);
      context.rotate(-Math.PI / 3);
      context.textAlign = "right";
      context.textBaseline = "middle";
      context.fillStyle = at === chosen ? ink("ink") : ink("soft");
      context.fillText(bar.label.slice(0, 19), 0, 0, LABEL);
      context.restore();
    });
    sum.setAttribute(
      "aria-label",
      `${whole(found.count)} contributions that add up to ${full(found.total)}; arrow keys go ` +
        "through them, the largest first",
    );
    const bar = all[chosen];
    const { term } = bar;
    const number = chosen + (all[0].earlier ? 0 : 1);
    told.replaceChildren(
      ...(term
        ? [`${number}. `, quoted(term), ": ", factorsOf(term), ` = ${full(term.share)}; so far ${full(bar.to)}`]
        : bar.earlier
          ? [`What the optimizer remembers of earlier steps counts as a gradient of ${full(bar.to)}`]
          : bar.total
            ? [`All together: ${full(bar.to)}`]
            : [`${bar.label} together: ${full(bar.to - bar.from)}`]),
    );
  }

  const factorsOf = (term) => {
    const { factors } = found.parts[term.part];
    return factors.map((name, at) => `${name} ${full(term.factors[at])}`).join(" × ");
  };

  function termTable() {
    let at = 0;
    return table(
      `Contributions to the gradient of ${found.name}[${found.index.join(", ")}], the largest first`,
      ["text", "token", "position", "factors", "share", "so far"],
      found.terms
        .map((term) => {
          at += term.share;
          return [
            textOf(term.sequence).slice(0, 60),
            wordOf(term),
            String(term.position + 1),
            factorsOf(term),
            full(term.share),
            full(at),
          ];
        })
        .concat(
          found.rest.count
            ? [[`${whole(found.rest.count)} others`, "", "", "", full(found.rest.share), full(found.total)]]
            : [],
        ),
    );
  }

  function topSequences() {
    const sizes = found.shares.map((row, index) => [
      index,
      row.reduce((total, value) => total + Math.abs(value), 0),
      row.reduce((total, value) => total + value, 0),
    ]);
    const shown = sizes
        .filter(([, size]) => size > 0)
        .sort((a, b) => Math.abs(b[2]) - Math.abs(a[2]))
        .slice(0, MOST_SEQUENCES),
      most = Math.max(...found.shares.flat().map(Math.abs)) || 1;
    return shown.map(([index, , total]) => {
      const answer = overview.targets[index].length === 1 ? ` → ${overview.targets[index][0] ?? ""}` : "";
      return h(
        "p",
        {},
        h("span", { className: "n" }, signed(total)),
        h(
          "span",
          { className: "text" },
          overview.words[index].map((word, at) => {
            const share = found.shares[index][at],
              chip = h("span", { className: "token", title: `${word}: ${signed(share)}` }, word);
            chip.style.boxShadow =
              `inset 0 -${Math.round((14 * Math.abs(share)) / most)}px ` + `${faint(SIGNS[share >= 0 ? 1 : 0])}`;
            return chip;
          }),
          h("span", { className: "soft" }, answer),
        ),
      );
    });
  }

  function paintPicture() {
    if (!drawn) return;
    const { lines: high, columns: across, values } = drawn,
      most = values.reduce((large, value) => Math.max(large, Math.abs(value)), 0) || 1;
    picture.style.height = `${Math.min(230, Math.max(34, high * 3))}px`;
    const { context, width, height, ink } = prepare(picture),
      image = new ImageData(across, high);
    values.forEach((value, at) => image.data.set([...sided(value / most), 255], 4 * at));
    const small = new OffscreenCanvas(across, high);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, 0, 0, width, height);
    const x = (Math.floor(Number(column.value) / drawn.across) + 0.5) * (width / across),
      y = (Math.floor(Number(row.value) / drawn.down) + 0.5) * (height / high);
    for (const [colour, wide] of [
      [ink("card"), 4],
      [ink("mark"), 2],
    ]) {
      context.strokeStyle = colour;
      context.lineWidth = wide;
      context.strokeRect(x - 6, y - 6, 12, 12);
    }
    picture.setAttribute(
      "aria-label",
      `${overview.weights[Number(weight.value)].name}, ${drawn.shape.join("×")}: ` +
        `${what.value === "update" ? "how far each element was moved" : "the gradient of each element"}, at most ` +
        `${short(most)}; arrow keys choose an element`,
    );
  }

  function choose(down, across) {
    if (!drawn) return;
    row.value = Math.min(drawn.shape[0] - 1, Math.max(0, down));
    column.value = Math.min(drawn.shape[1] - 1, Math.max(0, across));
    paintPicture();
    look();
  }

  const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  tooltip(picture, (x, y, box) => {
    if (!drawn) return "";
    const line = Math.min(drawn.lines - 1, Math.floor((y / box.height) * drawn.lines));
    const at = Math.min(drawn.columns - 1, Math.floor((x / box.width) * drawn.columns));
    const value = drawn.values[line * drawn.columns + at];
    return `[${line * drawn.down}, ${at * drawn.across}]: ${signed(value)}`;
  });
  tooltip(sum, (x, y, box) => {
    const all = found ? bars(box.width) : [];
    const bar = all[Math.floor(((x - LEFT) / (box.width - LEFT - RIGHT)) * all.length)];
    return bar ? `${bar.label}: ${signed(bar.to - bar.from)}` : "";
  });
  picture.addEventListener("click", (event) => {
    if (!drawn) return;
    const box = picture.getBoundingClientRect();
    choose(
      Math.floor(((event.clientY - box.top) / box.height) * drawn.lines) * drawn.down,
      Math.floor(((event.clientX - box.left) / box.width) * drawn.columns) * drawn.across,
    );
  });
  picture.addEventListener("keydown", (event) => {
    const [down, across] = ARROWS[event.key] ?? [];
    if (down === undefined || !drawn) return;
    event.preventDefault();
    choose(Number(row.value) + down, Number(column.value) + across);
  });
  sum.addEventListener("click", (event) => {
    if (!found) return;
    const box = sum.getBoundingClientRect(),
      all = bars(box.width);
    chosen = Math.min(
      all.length - 1,
      Math.max(0, Math.floor(((event.clientX - box.left - LEFT) / (box.width - LEFT - RIGHT)) * all.length)),
    );
    draw();
  });
  sum.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !found) return;
    event.preventDefault();
    chosen = Math.max(0, chosen + by);
    draw();
  });
  const again = () => {
    draw();
    paintPicture();
  };
  const leaving = [onResize(sum, draw), onResize(picture, paintPicture)];
  addEventListener("theme", again);
  if (model.runs.length) open(given.after);
  return () => {
    asked += 1;
    leaving.forEach((each) => each());
    removeEventListener("theme", again);
  };
}

// Numbers in one style, be they written here or by the engine: a minus that cannot be overlooked, no zeros in an
// exponent.
const styled = (text) => text.replaceAll("-", "−").replace(/e([+−])0+(?=\d)/g, "e$1");
const full = (value) => {
  const six = Number(value.toPrecision(6));
  return Number.isFinite(value)
    ? styled(six !== 0 && Math.abs(six) < 1e-4 ? six.toExponential() : String(six))
    : short(value);
};
const signed = (value) => `${value >= 0 ? "+" : "−"}${styled(short(Math.abs(value)))}`;

function equationOf(found) {
  const shown = found.terms.slice(0, 3),
    rest = found.count - shown.length;
  const written = shown
    .map((term, at) => (at === 0 ? full(term.share) : `${term.share < 0 ? "−" : "+"} ${full(Math.abs(term.share))}`))
    .join(" ");
  return [
    `${written}${rest > 0 ? ` + … (${whole(rest)} more)` : ""} = `,
    h("strong", { id: "trace-total" }, full(found.total)),
    ", and the engine’s own gradient is ",
    h("strong", { id: "trace-gradient" }, full(found.gradient)),
    ".",
  ];
}

// The digits to which a number agrees with the complex step are marked, so that the eye need not compare them.
function digitRows(proof, overview) {
  const rows = [
    ["complex step", proof.complex_step, 17],
    ["the backward, in float64", proof.backward, proof.agree.backward],
    [`the backward, as it trained (${overview.precision})`, proof.engine, proof.agree.engine],
  ];
  const row = ([name, value, agree]) => {
    const same = value.search(/\d/) + agree + (agree > 1 ? 1 : 0); // the point stands among them
    const cut = Math.min(value.indexOf("e"), agree ? same : 0);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, name),
      h("td", {}, h("mark", {}, styled(value.slice(0, cut))), styled(value.slice(cut))),
      h("td", { className: "soft" }, agree >= 17 ? "all" : `${agree} digits`),
    );
  };
  const caption = "Digits to which each agrees with the complex step, by their relative difference, are marked";
  return [h("table", { className: "digits" }, h("caption", {}, caption), h("tbody", {}, rows.map(row)))];
}

function lineRows(found) {
  if (!found.lines.length)
    return [
      h(
        "p",
        {},
        `${found.optimizer} steps this weight together with others, not by itself: it went from ` +
          `${full(found.before)} to ${full(found.after)}.`,
      ),
    ];
  return [
    h(
      "div",
      { className: "scroll whole", tabIndex: 0, role: "group", ariaLabel: "The optimizer's arithmetic" },
      h(
        "table",
        { className: "lines" },
        h("caption", {}, `${found.optimizer}, for this one number; w is the weight, w′ what it becomes`),
        h(
          "tbody",
          {},
          found.lines.map((line) =>
            h(
              "tr",
              {},
              h("th", { scope: "row" }, line.name),
              h("td", {}, `= ${line.formula}`),
              h("td", { className: "soft" }, `= ${styled(line.numbers)}`),
              h("td", { className: "n" }, `= ${full(line.value)}`),
            ),
          ),
        ),
      ),
    ),
    h(
      "p",
      {},
      "The engine has ",
      h("strong", { id: "trace-after" }, full(found.after)),
      found.lines.length ? `; these lines come to ${full(found.computed)}.` : ".",
    ),
  ];
}

function wordRows(found, overview) {
  const { push } = found;
  if (!push) return [h("p", { className: "soft" }, found.push_error)];
  const most = Math.max(...[...push.up, ...push.down].map((each) => Math.abs(each.alone))) || 1;
  const before = overview.words[push.sequence].slice(Math.max(0, push.position - 12), push.position + 1).join("");
  const one = (each) => {
    const bar = h("i", { className: "push" });
    bar.style.width = `${Math.max(2, (70 * Math.abs(each.alone)) / most)}px`;
    bar.style.background = css(SIGNS[each.alone >= 0 ? 1 : 0]);
    return h(
      "tr",
      {},
      h("th", { scope: "row" }, h("span", { className: "token" }, each.word), each.target ? " ✓" : ""),
      h("td", {}, bar),
      h("td", { className: "n" }, `${signed(100 * each.alone)} %`),
      h("td", { className: "n" }, percent(each.before)),
      h("td", { className: "n" }, percent(each.update)),
    );
  };
  return [
    h(
      "p",
      {},
      "After ",
      h("q", {}, before),
      push.target === null ? "" : [" the right token is ", h("span", { className: "token" }, push.target), "."],
      " By this one weight’s move alone:",
    ),
    h(
      "div",
      { className: "scroll whole", tabIndex: 0, role: "group", ariaLabel: "Words that are pushed" },
      h(
        "table",
        { className: "words" },
        h("caption", {}, "Probability of each token, and what moves it; ✓ is the right one"),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            ["token", "", "this weight alone", "before", "after the whole update"].map((each) =>
              h("th", { scope: "col" }, each),
            ),
          ),
        ),
        h("tbody", {}, push.up.map(one), push.down.slice().reverse().map(one)),
      ),
    ),
  ];
}
