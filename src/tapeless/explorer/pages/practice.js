// The five exercises, answered by the engine's own kernels, and a bug of the catalogue to be found by looking.

import { h, percent, short, table, tableBeside, whole } from "./dom.js";
import { here, link } from "./place.js";
import { lines, near, predict, progress, typed } from "./teach.js";

const GIVEN = [
  ["∂loss/∂logits", 0.3],
  ["block 2 out", 0.15],
  ["block 2 feed-forward", 0.08],
  ["block 2 attention", 0.12],
  ["block 1 out", 0.04],
  ["block 1 feed-forward", 0.02],
  ["block 1 attention", 0.03],
  ["embeddings", 0.01],
];
const NAMES = { sgd: "plain SGD", momentum: "with momentum 0.9", adamw: "Adam (0.9, 0.999)" };
const WRONG = 1e-9; // an error that is no rounding

export async function exercises({ ask, lesson, at }) {
  const [found, example] = await Promise.all([ask("exercises"), lesson(at)]);
  if (found.error) throw new Error(found.error);
  const { optimizers, quadratic, gradients } = found;
  const { check, keys = {}, update, back } = example;
  const curves = (paths, name) =>
    Object.entries(paths).map(([each, path]) => ({ name: name(each), points: path.map((value, at) => [at, value]) }));
  const [leaves, arrives] = back ? [back[0].writes, back.at(-1).reads] : [null, null];
  const values = {
    gradients: gradients.join(", "),
    element: update?.element,
    backward: check?.backward.toPrecision(6),
    error64: check?.errors.float64[4].toExponential(1),
    error32: check?.errors.float32[4].toExponential(1),
    leaves: short(leaves),
    arrives: short(arrives),
    ratio: short(arrives / leaves),
    slow: short(quadratic["0.1"][10]),
  };
  const figures = {
    hand: byHand(found.hand),
    flow: table("Sizes of a gradient on its way back", ["where", "size"], GIVEN),
    places: GIVEN.map(([name]) => name),
    optimizers: lines({ title: "The weight, step by step", series: curves(optimizers, (each) => NAMES[each]) }),
    rates: lines({ title: "w, step by step", series: curves(quadratic, (each) => `lr ${each}`) }),
  };
  const exact = 6e-5;
  const away = [[-0.1, "the gradient is taken away, not added"]];
  const answers = {
    "practice-difference": { right: 7, slips: [[2 * 2 + 2, "f′(x) = 2x + 3"]] },
    "practice-tolerance": keys["practice-tolerance"],
    "practice-least": GIVEN.length - 1,
    "practice-ratio": { right: 0.01 / 0.3 },
    "practice-own": keys["practice-own"],
    "practice-sgd": {
      right: optimizers.sgd[5],
      tolerance: exact,
      slips: [
        [0.495, "the gradients are negative, so the weight grows"],
        [0.005, "that is the change; asked is the weight"],
      ],
    },
    "practice-momentum": {
      right: optimizers.momentum[2],
      tolerance: exact,
      slips: [
        [0.5018, "that is SGD: momentum goes on with what it had"],
        [0.0027, "that is the change; asked is the weight"],
      ],
    },
    "practice-adam-m": { right: -0.1, slips: [[-0.01, "that is m; it is divided by 1 − 0.9"]] },
    "practice-adam-v": { right: 0.01, slips: [[1e-5, "that is v; it is divided by 1 − 0.999"]] },
    "practice-adam": {
      right: optimizers.adamw[1],
      tolerance: exact,
      slips: [
        [0.49, "the gradient is negative, so the weight grows"],
        [0.01, "that is the change; asked is the weight"],
        [0.501, "that is SGD: Adam divides by √v̂"],
        [0.6, "√v̂ is 0.1, not 0.01"],
      ],
    },
    "practice-who": 2,
    "practice-slow": { right: quadratic["0.1"][1], slips: [[-0.3, "the gradient is w − 3 = −3"]] },
    "practice-half": { right: quadratic["0.5"][2], slips: [[1.5, "that is after one step"]] },
    "practice-one": { right: 3, slips: [[-3, "the gradient is w − 3 = −3, and it is taken away"], ...away] },
    "practice-critical": 0,
    "practice-border": { right: 2, slips: [[1, "at 1 it is there in one step"]] },
  };
  return { values, figures, answers };
}

function byHand(steps) {
  const total = h("p", { role: "status", className: "soft" });
  const boxes = steps.map(({ name, rows }, number) => {
    const right = rows.flat();
    const verdict = h("span", { role: "status" });
    const field = (_, at) =>
      h("input", { inputMode: "decimal", size: 6, autocomplete: "off", ariaLabel: `${name}, number ${at + 1}` });
    const fields = right.map(field);
    const judge = (event) => {
      event.preventDefault();
      const good = fields.every((each, at) => near(typed(each.value), right[at]));
      verdict.className = good ? "fine" : "bad";
      verdict.textContent = good ? " ✓" : " ✗ not yet";
      if (good) progress.set(`hand-${number}`, "right");
      tell();
    };
    const fill = () => {
      fields.forEach((each, at) => {
        each.value = Number(right[at].toPrecision(6));
      });
      verdict.textContent = "";
    };
    const show = h("button", { type: "button", className: "quiet reveal", onclick: fill }, "show me");
    const check = h("button", { type: "submit" }, "check");
    const label = h("span", { className: "hand-name" }, name);
    return h("form", { className: "hand", onsubmit: judge }, label, fields, check, show, verdict);
  });
  const tell = () => {
    const known = progress.read();
    const count = steps.filter((_, number) => known[`hand-${number}`]).length;
    total.textContent =
      count === steps.length ? "You have computed a whole backward pass by hand." : `${count} of ${steps.length} lines`;
  };
  tell();
  return h("div", { id: "by-hand" }, boxes, total);
}

export async function bugHunt({ ask }) {
  const number = Number(here().chosen.bug ?? 0);
  const found = await ask(`planted?number=${number}`);
  if (found.error) throw new Error(found.error);
  const verdict = h("p", { role: "status" });
  const after = h("div", { hidden: true });
  const worst = Math.max(...found.calls.map((call) => call.error));
  const first = found.calls.find((call) => call.call === found.begins);
  const guess = (call) => {
    const good = call.call === found.begins;
    const given = call.call > found.begins ? "was given wrong ones" : "is not the first";
    verdict.className = good ? "fine" : "bad";
    if (good)
      verdict.textContent = `✓ It begins at call ${call.call}, ${call.op}: it reads what is right and writes wrong.`;
    else if (call.error > WRONG)
      verdict.textContent = `✗ call ${call.call} writes wrong numbers, but it ${given}: look further down.`;
    else verdict.textContent = `✗ call ${call.call} is right.`;
    after.hidden = !good;
    if (good) progress.set(`bug-where-${found.number}`, "right");
  };
  // At first what one sees of a training: sizes alone. How far each is from what is right is shown on demand.
  const row = (call) => {
    const wrong = call.error > WRONG;
    const bar = h("i", { className: "bug-bar", hidden: !wrong });
    bar.style.width = `${(100 * call.error) / worst}%`;
    const error = call.error < 0.001 ? `${short(100 * call.error)} %` : percent(call.error);
    return h(
      "button",
      { type: "button", className: "bug-row", onclick: () => guess(call) },
      h("span", {}, `${call.call} ${call.op}`),
      h("small", {}, call.section),
      h("span", { className: "bug-size" }, `${short(call.size)} (usually ${short(call.usual)})`),
      h("span", { className: "bug-track bug-error" }, bar),
      h("span", { className: "bug-error" }, wrong ? error : "right"),
    );
  };
  const calls = h("div", { className: "bug sizes", id: "bug-calls" }, [...found.calls].reverse().map(row));
  const compare = () => {
    calls.classList.toggle("sizes");
    more.textContent = calls.classList.contains("sizes") ? "compare with what is right" : "show sizes alone";
  };
  const more = h("button", { type: "button", id: "bug-compare", onclick: compare }, "compare with what is right");
  const say = [
    h("p", {}, `${found.name}. What one would notice: ${found.seen}`),
    found.public && h("p", {}, `It has bitten people: ${found.public}`),
    h(
      "p",
      { className: "soft" },
      "The catalogue has more of them; ",
      h("code", {}, "tapeless check --bugs"),
      " plants them all and shows that each is found.",
    ),
  ];
  const id = `bug-what-${found.number}`;
  after.append(predict({ id, ask: "And what is wrong with it?", choices: found.choices, right: found.right, say }));
  const next = link("learn", { ...here().chosen, chapter: "bug", bug: (number + 1) % found.count });
  const asTable = () => {
    const rows = found.calls.map((call) => [
      whole(call.call),
      call.op,
      call.section,
      call.size,
      call.usual,
      call.error,
    ]);
    const headings = ["call", "what", "section", "size", "usually", "error"];
    return table("Backward calls of the model with the bug", headings, rows);
  };
  const figures = {
    calls: [calls, more],
    what: [verdict, after],
    next: h(
      "div",
      { className: "choices" },
      h("a", { id: "bug-next", href: next }, `another bug (${found.number + 1} of ${found.count})`),
      h("button", { type: "button", className: "quiet reveal", onclick: () => guess(first) }, "show me"),
    ),
    table: tableBeside("as a table, with the errors", asTable),
  };
  return { figures };
}
