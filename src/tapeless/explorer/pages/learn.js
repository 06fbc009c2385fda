// Lessons: one example from its probabilities to every gradient, then what gradients do to a model, exercises, a bug to
// find. Every number comes from the engine; the reader predicts it first.

import { json } from "./api.js";
import { h, percent, short, table, whole } from "./dom.js";
import { bugHunt, exercises } from "./practice.js";
import { questions } from "./questions.js";
import { bars, lines, plane, predict, progress } from "./teach.js";

const CHAPTERS = [
  ["begins", "Where it begins", begins],
  ["output", "Through the output", output],
  ["blocks", "Back through the blocks", blocks],
  ["words", "A word that stands twice", words],
  ["update", "The update", update],
  ["path", "The landscape, first step to last", path],
  ["wrong", "When gradients go wrong", wrong],
  ["practice", "Five exercises", exercises],
  ["bug", "Find the planted bug", bugHunt],
  ["questions", "Thirty-five questions", questions],
];

export function render({ model, el }) {
  const place = h("div", { id: "lesson", className: "lesson", tabIndex: -1 }),
    wait = h("p", { className: "soft", role: "status" });
  let now = CHAPTERS.findIndex(([name]) => name === model.chapter),
    at = null,
    turn = 0;
  if (now < 0) now = 0;
  const list = h(
    "ol",
    { className: "chapters" },
    CHAPTERS.map(([name, title], index) => {
      const button = h("button", { type: "button", onclick: () => open(index) }, title);
      button.dataset.chapter = name;
      return h("li", {}, button);
    }),
  );
  const forget = h(
    "button",
    {
      type: "button",
      className: "quiet",
      onclick: () => {
        progress.forget();
        open(now);
      },
    },
    "begin anew",
  );
  const done = h("p", { className: "soft", id: "learn-done" });
  el.append(
    h(
      "div",
      { className: "learn" },
      h("nav", { className: "card", ariaLabel: "Lessons" }, h("h2", {}, "Learn"), list, done, forget),
      h("section", { className: "card", ariaLabel: "Lesson" }, wait, place),
    ),
  );

  async function open(index, chosen = at) {
    const mine = (turn += 1);
    [now, at] = [index, chosen];
    model.chapter = CHAPTERS[index][0];
    for (const [number, button] of [...list.querySelectorAll("button")].entries()) {
      if (number === index) button.setAttribute("aria-current", "step");
      else button.removeAttribute("aria-current");
    }
    wait.textContent = "the engine computes …";
    place.classList.add("waiting");
    const fetched = await CHAPTERS[index][2]({
      model,
      lesson: (moment) => json(`/api/learn/lesson${moment === null ? "" : `?at=${moment}`}`),
      ask: (what) => json(`/api/learn/${what}`),
      at,
      choose: (moment) => open(now, moment),
    }).catch((error) => [h("p", { className: "error", role: "alert" }, error.message)]);
    if (mine !== turn) return;
    wait.textContent = "";
    place.classList.remove("waiting");
    const next =
      index + 1 < CHAPTERS.length &&
      h(
        "button",
        {
          type: "button",
          id: "learn-next",
          onclick: () => {
            open(index + 1);
            scrollTo(0, 0);
          },
        },
        `next: ${CHAPTERS[index + 1][1]} →`,
      );
    place.replaceChildren(h("h2", {}, `${index + 1}. ${CHAPTERS[index][1]}`), ...fetched, h("p", {}, next));
    tell();
  }

  function tell() {
    const known = progress.read(),
      count = Object.values(known).filter((how) => how === "right").length;
    done.textContent = count
      ? `${count} predicted rightly so far; kept in this browser`
      : "Predict first, then look. What you have done is kept in this browser.";
    for (const each of place.querySelectorAll("[data-predict]"))
      each.classList.toggle("done", known[each.dataset.predict] === "right");
  }
  addEventListener("learned", tell);
  open(now);
  return () => removeEventListener("learned", tell);
}

// Every chapter is told at a moment of the training; the reader may take another.
async function told({ lesson, at, choose }) {
  const found = await lesson(at);
  if (found.error) throw new Error(found.error);
  const moment = h(
    "select",
    { id: "learn-at", onchange: () => choose(Number(moment.value)) },
    found.steps.map((step, index) =>
      h(
        "option",
        { value: index, selected: index === found.at },
        step === 0 ? "before the first update" : `after ${whole(step)} updates`,
      ),
    ),
  );
  return [
    found,
    h(
      "div",
      { className: "controls" },
      h("label", {}, `${found.run}, `, moment),
      h("span", { className: "soft" }, `${found.question} → ${found.words[found.target]}`),
    ),
  ];
}

async function begins(how) {
  const [found, head] = await told(how),
    right = found.words[found.target],
    likeliest = found.likely.indexOf(Math.max(...found.likely));
  const named = found.words.map((word, index) => [word, found.likely[index]]);
  return [
    head,
    h(
      "p",
      {},
      `The model has read ${found.question} and gives every word a probability. The right one is ${right}; the loss is −log of what ${right} got: ${short(found.loss)}.`,
    ),
    bars({ title: "How likely it thinks each word is", rows: named, mark: found.target }),
    h(
      "p",
      {},
      "Everything begins with one vector: how the loss changes when a score changes, ∂loss/∂score. It is the probability, less 1 at the right word: p − y.",
    ),
    predict({
      id: "begins-sign",
      ask: "Which of its twenty numbers are negative?",
      choices: [
        "only that of the right word",
        `that of the likeliest word, ${found.words[likeliest]}`,
        "about half of them",
      ],
      right: 0,
      say: h(
        "p",
        {},
        `p − 1 is negative, every other p is positive: the loss falls when the score of ${right} rises and every other falls.`,
      ),
    }),
    predict({
      id: `begins-slope-${found.at}`,
      ask: `${right} got ${Number(found.likely[found.target].toPrecision(6))}. What is ∂loss/∂score of ${right}?`,
      right: found.slope[found.target],
      say: bars({
        title: "∂loss/∂score, as the backward call of the classifier wrote it",
        rows: found.words.map((word, index) => [word, found.slope[index]]),
        mark: found.target,
      }),
    }),
    predict({
      id: "begins-sum",
      ask: "What do the twenty numbers add up to?",
      right: 0,
      tolerance: 1e-6,
      say: h(
        "p",
        {},
        `Probabilities add up to 1, and 1 is taken away: here the sum is ${short(found.slope.reduce((a, b) => a + b))}.`,
      ),
    }),
  ];
}

async function output(how) {
  const [found, head] = await told(how),
    { x, dweight, terms, dx } = found.head,
    slope = found.slope[found.target],
    right = found.words[found.target];
  return [
    head,
    h(
      "p",
      {},
      `A score is a product: the last position's vector x (64 numbers) times the row of weights of its word. So the gradient of one weight is what came in times what comes back: ∂loss/∂W[${right}, i] = x[i] · ∂loss/∂score[${right}].`,
    ),
    predict({
      id: `output-weight-${found.at}`,
      ask: `x[0] = ${short(x[0])} and ∂loss/∂score[${right}] = ${short(slope)}. What is ∂loss/∂W[${right}, 0]?`,
      right: dweight[0],
      say: table(
        `The first six of the row of ${right}`,
        ["i", "x[i]", "· slope", "= x[i] · slope", "the engine wrote"],
        x.map((value, index) => [String(index), value, slope, value * slope, dweight[index]]),
      ),
    }),
    h(
      "p",
      {},
      "And back to x, through all twenty rows at once: ∂loss/∂x[0] = Σ over the words of ∂loss/∂score · W[word, 0].",
    ),
    predict({
      id: "output-sum",
      ask: "Twenty words each send something to x[0]. How do they become one number?",
      choices: ["they are added", "the largest wins", "they are averaged"],
      right: 0,
      say: bars({
        title: `What each word sends to x[0]: together ${short(dx[0])}, by the engine ${short(terms.reduce((a, b) => a + b))}`,
        rows: found.words.map((word, index) => [word, terms[index]]),
        mark: found.target,
      }),
    }),
  ];
}

async function blocks(how) {
  const [found, head] = await told(how),
    sized = found.back.filter((call) => call.writes !== null),
    relu = found.back.filter((call) => call.op === "relu");
  const weakest = found.back
    .filter((call) => call.writes !== null && call.reads)
    .reduce((least, call) => (call.writes / call.reads < least.writes / least.reads ? call : least));
  const detail = h("div", { role: "status" });
  const show = (call) =>
    detail.replaceChildren(
      h("h3", {}, `call ${call.call}: ${call.op}, backward, in ${call.section}`),
      ...call.formulas.map((each) => h("pre", { tabIndex: 0 }, each)),
      h(
        "p",
        {},
        `It reads a gradient of size ${short(call.reads)} per element and hands on ${short(call.writes)}${call.zeros ? `; ${percent(call.zeros)} of it is exactly 0` : ""}.`,
      ),
    );
  return [
    head,
    h(
      "p",
      {},
      `From the output the gradient goes back through both blocks: ${found.back.length} calls, each the derivative of one step forward. Each hands on a gradient to the call that ran before its own.`,
    ),
    predict({
      id: "blocks-relu",
      ask: "ReLU passes a gradient where its input was positive. What share of it does it set to zero here?",
      choices: ["nothing", "about half", "nearly all"],
      right: relu.every((call) => call.zeros > 0.85) ? 2 : relu.some((call) => call.zeros > 0.2) ? 1 : 0,
      say: h(
        "p",
        {},
        relu.map((call) => `${call.section}: ${percent(call.zeros)}`).join("; "),
        ". The units that were off learn nothing from this example.",
      ),
    }),
    predict({
      id: `blocks-weak-${found.at}`,
      ask: "Which kind of call weakens the gradient the most?",
      choices: [...new Set(["layernorm", "linear", "relu", "attention", weakest.op])],
      right: [...new Set(["layernorm", "linear", "relu", "attention", weakest.op])].indexOf(weakest.op),
      say: h(
        "p",
        {},
        `${weakest.op} in ${weakest.section}: it reads ${short(weakest.reads)} and hands on ${short(weakest.writes)}. Beside it runs the residual path, along which the gradient is added unchanged.`,
      ),
    }),
    lines({
      title: "Size of the gradient that each call hands on, in the order they run",
      series: [{ name: "size per element", points: sized.map((call) => [call.call, call.writes]) }],
      log: true,
      across: "call",
    }),
    h(
      "div",
      { className: "choices", role: "group", ariaLabel: "calls, in the order they run" },
      found.back.map((call) => h("button", { type: "button", onclick: () => show(call) }, `${call.call} ${call.op}`)),
    ),
    detail,
    h("p", {}, h("button", { type: "button", onclick: () => how.model.open("flow") }, "see the whole step in Flow")),
  ];
}

async function words(how) {
  const [found, head] = await told(how),
    { word, places, parts, whole: sum } = found.repeated;
  return [
    head,
    h(
      "p",
      {},
      `At the bottom is the table of embeddings, one row a word. “${word}” stands at places ${places.join(" and ")} of ${found.question}, so one row was read twice, and two gradients come back for it.`,
    ),
    predict({
      id: `words-sum-${found.at}`,
      ask: `For the first of its 64 numbers they are ${parts.map((each) => short(each[0])).join(" and ")}. What does the row's gradient get?`,
      right: sum[0],
      say: table(
        `The gradient of “${word}”, its first six numbers`,
        ["number", ...places.map((place) => `from place ${place}`), "sum", "the engine wrote"],
        sum.map((value, index) => [
          String(index),
          ...parts.map((each) => each[index]),
          parts.reduce((total, each) => total + each[index], 0),
          value,
        ]),
      ),
    }),
    predict({
      id: "words-bug",
      ask: "A faulty kernel writes = where it should write +=. What happens to frequent words?",
      choices: [
        "they learn from one of their places only",
        "nothing: both gradients are equal",
        "their gradient becomes too large",
      ],
      right: 0,
      say: h(
        "p",
        {},
        "The last write wins. The loss still falls, so nobody notices; the bug is in the catalogue as repeated-tokens-set, and you may meet it two lessons on.",
      ),
    }),
  ];
}

async function update(how) {
  const [found, head] = await told(how),
    { element, value, gradient, lr, sgd, adam } = found.update;
  const { widths, errors, backward, complex_step: complex } = found.check;
  return [
    head,
    h(
      "p",
      {},
      `One of ${whole(found.parameters)} weights: ${element} is ${value.toFixed(6)}, and its gradient for this example is ${short(gradient)}. The learning rate is ${short(lr)}.`,
    ),
    predict({
      id: `update-sgd-${found.at}`,
      ask: "Plain gradient descent takes lr · gradient away. By how much does the weight change?",
      right: sgd.value - value,
      say: h(
        "p",
        {},
        `${value.toFixed(6)} − ${short(lr)} · ${short(gradient)} = ${sgd.value.toFixed(6)}. Tiny: training is thousands of these.`,
      ),
    }),
    predict({
      id: `update-adam-${found.at}`,
      ask: "And Adam's first step: by how much, about, does it move this weight?",
      choices: [
        "by the learning rate, whatever the size of the gradient",
        "by the same as plain descent",
        "by a tenth of that: m = 0.1 · gradient",
      ],
      right: 0,
      say: [
        table(
          "Adam's arithmetic, first step",
          ["", "value"],
          [
            ["m = 0.1 · gradient", adam.m],
            ["v = 0.001 · gradient²", adam.v],
            ["m / (1 − 0.9)", adam.m / 0.1],
            ["v / (1 − 0.999)", adam.v / 0.001],
            ["lr · m̂ / (√v̂ + 10⁻⁸)", value - adam.value],
          ],
        ),
        h(
          "p",
          {},
          `${value.toFixed(6)} → ${adam.value.toFixed(6)}: m̂/√v̂ is the sign of the gradient, so the first step is ± lr.`,
        ),
      ],
    }),
    h("h3", {}, "Is the gradient right?"),
    h(
      "p",
      {},
      `The backward says ${backward.toPrecision(12)}. A difference of two losses, (loss(w + ε) − loss(w − ε)) / 2ε, says nearly the same. How near depends on ε:`,
    ),
    predict({
      id: "update-eps",
      ask: "What happens to the error when ε is made smaller and smaller?",
      choices: ["it falls, then rises again", "it falls until it is zero", "it stays the same"],
      right: 0,
      say: [
        lines({
          title: "Error of the difference, in two types of number",
          series: Object.entries(errors).map(([name, values]) => ({
            name,
            points: widths.map((width, index) => [width, Math.max(values[index], 1e-17)]),
          })),
          log: true,
          across: "ε",
          logAcross: true,
        }),
        h(
          "p",
          {},
          `Two nearly equal losses lose their digits when they are subtracted. The complex step, Im loss(w + ih)/h, subtracts nothing: ${complex.toPrecision(12)}, the backward to ${Math.abs(complex - backward) < 1e-13 ? "thirteen" : "many"} digits. That is how `,
          h("code", {}, "tapeless check"),
          " proves every gradient.",
        ),
      ],
    }),
  ];
}

async function path({ ask }) {
  const found = await ask("landscape");
  if (found.error) return [h("p", { className: "soft" }, found.error)];
  const falls = found.on_path.slice(1).map((loss, index) => Math.log(found.on_path[index] / loss)),
    most = falls.indexOf(Math.max(...falls));
  return [
    h(
      "p",
      {},
      `${whole(found.parameters)} weights are a point in a space of as many dimensions. Here is a plane in it: along from the first weights to the last, across where the path bends most. Each colour is a loss over ${found.examples} held-out examples, computed by the engine with the weights of that point.`,
    ),
    plane({
      title: "The loss around the path of your training",
      x: found.x,
      y: found.y,
      losses: found.losses,
      path: found.path,
      steps: found.steps,
      onPath: found.on_path,
    }),
    predict({
      id: "path-shape",
      ask: "Follow your training from its first weights. What does the loss do along the path, from moment to moment?",
      choices: [
        "it falls, with some steps up on the way",
        "it falls at every single moment",
        "it rises first, over a ridge",
      ],
      right: found.on_path.some((loss, index) => index && loss > found.on_path[index - 1]) ? 0 : 1,
      say: [
        lines({
          title: "Loss along the path, by update",
          series: [
            { name: "held-out loss", points: found.steps.map((step, index) => [step + 1, found.on_path[index]]) },
          ],
          log: true,
          across: "update + 1",
          logAcross: true,
        }),
        h(
          "p",
          {},
          `From ${short(found.on_path[0])} to ${short(found.on_path.at(-1))}; each update follows the gradient of 32 examples, not of these.`,
        ),
      ],
    }),
    predict({
      id: "path-when",
      ask: "When does the model learn the most?",
      choices: ["in its first ten updates", "later: first little happens, then it falls fast", "in the last quarter"],
      right: found.steps[most + 1] <= 10 ? 0 : found.steps[most] < 0.75 * found.steps.at(-1) ? 1 : 2,
      say: h(
        "p",
        {},
        `The steepest fall is between updates ${whole(found.steps[most])} and ${whole(found.steps[most + 1])}: from ${short(found.on_path[most])} to ${short(found.on_path[most + 1])}. Before it, it has learned which words are answers at all; then, how to compute them. Replay it on the first page and watch the heads find the digit.`,
      ),
    }),
  ];
}

async function wrong({ ask }) {
  const found = await ask("pathologies");
  if (found.error) return [h("p", { className: "soft" }, found.error)];
  const series = (set) =>
    Object.entries(set).map(([name, norms]) => ({ name, points: norms.map((norm, block) => [block, norm]) }));
  const [post, pre] = Object.values(found.vanishing),
    [, large] = Object.values(found.exploding),
    dead = found.dead.units;
  return [
    h("h3", {}, "They vanish"),
    h(
      "p",
      {},
      "Two models of 24 blocks that differ in where their norms stand, each after eight updates. The gradient comes in at block 23, at the right.",
    ),
    predict({
      id: "wrong-vanish",
      ask: "The norm after each addition (post-norm) divides the gradient at every block. How much is left at block 0, of what block 23 gets?",
      choices: ["about as much", "a tenth", "less than a hundredth"],
      right: post[0] / post.at(-1) < 0.01 ? 2 : 1,
      say: [
        lines({
          title: "Norm of the gradient of each block's weights",
          series: series(found.vanishing),
          log: true,
          across: "block",
        }),
        h(
          "p",
          {},
          `Post-norm: ${short(post[0] / post.at(-1))} of it. Pre-norm: ${short(pre[0] / pre.at(-1))}, as nothing stands in the residual path. `,
          h("code", {}, "make twins"),
          " trains both and shows it step by step.",
        ),
      ],
    }),
    h("h3", {}, "They explode"),
    predict({
      id: "wrong-explode",
      ask: "Twelve blocks whose weights begin eight times too large. Where is the gradient largest?",
      choices: ["at the last block, where it comes in", "at the first block, at the end of its way", "in the middle"],
      right: large[0] > large.at(-1) ? 1 : 0,
      say: [
        lines({
          title: "Norm of the gradient of each block's weights",
          series: series(found.exploding),
          log: true,
          across: "block",
        }),
        h(
          "p",
          {},
          "Each product on the way back makes it larger. Clipping scales the whole gradient down to a limit; weights that begin at the right size need it less.",
        ),
      ],
    }),
    h("h3", {}, "They die"),
    predict({
      id: "wrong-dead",
      ask: `Of the 256 ReLU units of the first block, the first ${found.dead.dead} have a bias of −100. What gradient do their weights get?`,
      right: 0,
      say: [
        lines({
          title: "Size of the gradient of each unit's weights",
          series: [{ name: "gradient", points: dead.map((value, unit) => [unit, value]) }],
          across: "unit",
        }),
        h(
          "p",
          {},
          "Exactly 0: no input wakes them, so nothing can ever tell them to wake. The doctor counts them: ",
          h("code", {}, "tapeless doctor"),
          ".",
        ),
      ],
    }),
  ];
}
