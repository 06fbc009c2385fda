// The five exercises, answered by the engine's own kernels, and a bug of the catalogue to be found by looking.

import { h, percent, short, table, whole } from "./dom.js";
import { lines, near, predict, progress } from "./teach.js";

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
const NAMES = { sgd: "plain descent", momentum: "with momentum 0.9", adamw: "Adam (0.9, 0.999)" };

export async function exercises({ ask, lesson, at }) {
  const [found, example] = await Promise.all([ask("exercises"), lesson(at)]);
  if (found.error) throw new Error(found.error);
  const { optimizers, quadratic, gradients } = found,
    { check } = example;
  return [
    h("h3", {}, "1. By hand: a whole backward pass"),
    h(
      "p",
      {},
      "x = [2, 1]; W₁ = [[0.5, −0.3], [0.2, 0.4]], b₁ = [0.1, −0.1]; W₂ = [[0.6], [0.3]], b₂ = [0.2]; target 1.5. Each line is checked by itself; go from top to bottom, and on the way back from the loss.",
    ),
    byHand(found.hand),
    h("h3", {}, "2. Is a gradient right?"),
    h("p", {}, "f(x) = x² + 3x + 2. By the rules f′(x) = 2x + 3; by a difference it is (f(x + ε) − f(x − ε)) / 2ε."),
    predict({
      id: "practice-difference",
      ask: "x = 2, ε = 0.01: what does the difference give?",
      right: 7,
      say: h(
        "p",
        {},
        "Exactly 7: the error of this difference is that of the third derivative, and a parabola has none. On a model it is not so: there is a best ε, as in lesson 5.",
      ),
    }),
    check &&
      predict({
        id: "practice-tolerance",
        ask: `${example.update.element} of your model: backward ${check.backward.toPrecision(6)}, difference with ε = 10⁻⁵ in float64. How near are they?`,
        choices: ["to about 10 digits", "to 2 digits", "they differ"],
        right: 0,
        say: h(
          "p",
          {},
          `The error is ${check.errors.float64[4].toExponential(1)}; in float32 it would be ${check.errors.float32[4].toExponential(1)}. A tolerance of 10⁻⁵ in float32 would pass bugs.`,
        ),
      }),
    h("h3", {}, "3. Read a flow"),
    table("Sizes of a gradient on its way back", ["where", "size"], GIVEN),
    predict({
      id: "practice-least",
      ask: "Where is it smallest?",
      choices: GIVEN.map(([name]) => name),
      right: GIVEN.length - 1,
      say: h("p", {}, "At the end of its way."),
    }),
    predict({
      id: "practice-ratio",
      ask: "What is the ratio of the last to the first?",
      right: 0.01 / 0.3,
      say: h("p", {}, "A thirtieth, over two blocks: no trouble. Vanishing is when it is a millionth."),
    }),
    example.back &&
      predict({
        id: "practice-own",
        ask: "And in your own model, for the example of the lessons: is what reaches the embeddings less than a tenth of what leaves the head?",
        choices: ["yes", "no"],
        right: example.back.at(-1).reads / example.back[0].writes < 0.1 ? 0 : 1,
        say: h(
          "p",
          {},
          `${short(example.back[0].writes)} leaves the head, ${short(example.back.at(-1).reads)} arrives: a ratio of ${short(example.back.at(-1).reads / example.back[0].writes)}.`,
        ),
      }),
    h("h3", {}, "4. Three optimizers, five gradients"),
    h("p", {}, `A weight begins at 0.5, the learning rate is 0.01, the gradients are ${gradients.join(", ")}.`),
    predict({
      id: "practice-sgd",
      ask: "Plain descent: where is the weight after all five?",
      right: optimizers.sgd[5],
      tolerance: 6e-5,
      say: h("p", {}, "0.5 + 0.01 · 0.5"),
    }),
    predict({
      id: "practice-who",
      ask: "Who has gone furthest?",
      choices: Object.values(NAMES),
      right: 2,
      say: lines({
        title: "The weight, step by step",
        series: Object.entries(optimizers).map(([op, path]) => ({
          name: NAMES[op],
          points: path.map((value, step) => [step, value]),
        })),
      }),
    }),
    predict({
      id: "practice-momentum",
      ask: "With momentum (m = 0.9 m + gradient, w −= 0.01 m): after the second step?",
      right: optimizers.momentum[2],
      tolerance: 6e-5,
      say: h("p", {}, "m = −0.1, then 0.9 · (−0.1) − 0.08 = −0.17: 0.501 + 0.0017."),
    }),
    h("h3", {}, "5. A learning rate on a parabola"),
    h("p", {}, "loss = ½ (w − 3)², from w = 0, ten steps. The gradient is w − 3."),
    predict({
      id: "practice-one",
      ask: "lr = 1: where is w after one step?",
      right: 3,
      say: h("p", {}, "At the bottom, in one step: lr = 1 is 1 over the curvature."),
    }),
    predict({
      id: "practice-critical",
      ask: "lr = 2.1: what happens?",
      choices: ["it jumps over the bottom, a little further each time", "it reaches 3 twice as fast", "it stays at 0"],
      right: 0,
      say: lines({
        title: "w, step by step",
        series: Object.entries(quadratic).map(([rate, path]) => ({
          name: `lr ${rate}`,
          points: path.map((value, step) => [step, value]),
        })),
      }),
    }),
    predict({
      id: "practice-border",
      ask: "From which learning rate on does it no longer come nearer?",
      right: 2,
      say: h("p", {}, "The distance is multiplied by 1 − lr at each step: |1 − lr| < 1 below 2."),
    }),
  ];
}

function byHand(steps) {
  const total = h("p", { role: "status", className: "soft" });
  const boxes = steps.map(({ name, rows }, number) => {
    const verdict = h("span", { role: "status" }),
      fields = rows
        .flat()
        .map((right, index) =>
          h("input", { inputMode: "decimal", size: 6, autocomplete: "off", ariaLabel: `${name}, number ${index + 1}` }),
        );
    const good = () =>
      fields.every(
        (field, index) => field.value.trim() !== "" && near(Number(field.value.replace("−", "-")), rows.flat()[index]),
      );
    const judge = (event) => {
      event.preventDefault();
      verdict.className = good() ? "fine" : "bad";
      verdict.textContent = good() ? " ✓" : " ✗ not yet";
      if (good()) progress.set(`hand-${number}`, "right");
      tell();
    };
    const show = h(
      "button",
      {
        type: "button",
        className: "quiet",
        onclick: () => {
          fields.forEach((field, index) => {
            field.value = Number(rows.flat()[index].toPrecision(6));
          });
          verdict.textContent = "";
        },
      },
      "show me",
    );
    return h(
      "form",
      { className: "hand", onsubmit: judge },
      h("span", { className: "hand-name" }, name),
      fields,
      h("button", { type: "submit" }, "check"),
      show,
      verdict,
    );
  });
  const tell = () => {
    const known = progress.read(),
      count = steps.filter((_, number) => known[`hand-${number}`]).length;
    total.textContent =
      count === steps.length ? "You have computed a whole backward pass by hand." : `${count} of ${steps.length} lines`;
  };
  tell();
  return h("div", { id: "by-hand" }, boxes, total);
}

export async function bugHunt({ ask, model }) {
  const number = model.bug ?? 0,
    found = await ask(`planted?number=${number}`);
  if (found.error) throw new Error(found.error);
  const verdict = h("p", { role: "status" }),
    after = h("div", { hidden: true });
  const worst = Math.max(...found.calls.map((call) => call.error)),
    first = found.calls.find((call) => call.call === found.begins);
  const guess = (call) => {
    const good = call.call === found.begins;
    verdict.className = good ? "fine" : "bad";
    verdict.textContent = good
      ? `✓ It begins at call ${call.call}, ${call.op}: what it reads is right, what it writes is not.`
      : call.error > 1e-9
        ? `✗ call ${call.call} writes wrong numbers, but it was ${call.call > found.begins ? "given wrong ones, or is not the first" : "right"}: look further down, where it began.`
        : `✗ call ${call.call} is right.`;
    after.hidden = !good;
    if (good) progress.set(`bug-where-${found.number}`, "right");
  };
  const row = (call) => {
    const bar = h("i", { className: "bug-bar" });
    bar.style.width = `${call.error > 1e-9 ? Math.max(4, 100 * Math.min(1, call.error / worst)) : 0}%`;
    return h(
      "button",
      { type: "button", className: "bug-row", onclick: () => guess(call) },
      h("span", {}, `${call.call} ${call.op}`),
      h("small", {}, call.section),
      h("span", { className: "bug-track" }, bar),
      h("span", {}, call.error > 1e-9 ? percent(Math.min(1, call.error)) : "right"),
    );
  };
  after.append(
    predict({
      id: `bug-what-${found.number}`,
      ask: "And what is wrong with it?",
      choices: found.choices,
      right: found.right,
      say: [
        h("p", {}, `${found.name}. What one would notice: ${found.seen}`),
        found.public && h("p", {}, `It has bitten people: ${found.public}`),
        h(
          "p",
          { className: "soft" },
          `The catalogue has more of them; `,
          h("code", {}, "tapeless check --bugs"),
          " plants them all and shows that each is found.",
        ),
      ],
    }),
  );
  return [
    h(
      "p",
      {},
      `A bug of the catalogue is in the teaching model. The forward is right, the loss falls, nothing crashes. Below is every backward call in the order they run, the loss at the bottom: how far what it wrote is from what is right. Where does it begin? Click the call.`,
    ),
    h("div", { className: "bug", id: "bug-calls" }, [...found.calls].reverse().map(row)),
    verdict,
    after,
    h(
      "div",
      { className: "choices" },
      h(
        "button",
        {
          type: "button",
          id: "bug-next",
          onclick: () => {
            model.bug = (number + 1) % found.count;
            model.chapter = "bug";
            model.open("learn");
          },
        },
        `another bug (${found.number + 1} of ${found.count})`,
      ),
      h(
        "button",
        {
          type: "button",
          className: "quiet",
          onclick: () => {
            guess(first);
          },
        },
        "show me",
      ),
    ),
    table(
      "Backward calls of the model with the bug",
      ["call", "what", "section", "size", "error"],
      found.calls.map((call) => [whole(call.call), call.op, call.section, call.size, call.error]),
    ),
  ];
}
