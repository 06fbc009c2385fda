// Lessons: one example from its probabilities to every gradient, then what gradients do to a model, exercises, a bug to
// find. Every number comes from the engine; the reader predicts it first. The words are data: lessons/*.md.

import { json } from "./api.js";
import { h, percent, short, table, whole } from "./dom.js";
import { inline, lessonOf } from "./lessons.js";
import { here, keep, link } from "./place.js";
import { bugHunt, exercises } from "./practice.js";
import { bars, lines, plane, progress } from "./teach.js";

const CHAPTERS = {
  begins,
  output,
  blocks,
  attention,
  norm,
  words,
  update,
  path,
  wrong,
  practice: exercises,
  bug: bugHunt,
  questions,
};
const NAMES = Object.keys(CHAPTERS);
const VIEWS = { run: "Run", flow: "Flow", memory: "Memory" };
const UNUSUAL =
  "No attention of this model is the textbook's, with a query for every token and heads of keys of its own for each: " +
  "train the teaching model with `tapeless train` to see its numbers.";
const DIGITS = 6; // of a probability that is to be computed with

export function render({ model, el }) {
  const given = here().chosen;
  const name = CHAPTERS[given.chapter] ? given.chapter : NAMES[0];
  let at = given.at === undefined ? null : Number(given.at);
  let gone = false;
  const place = h("div", { id: "lesson", className: "lesson", tabIndex: -1 });
  const wait = h("p", { className: "soft", role: "status" });
  const list = h("ol", { className: "chapters" });
  const done = h("p", { className: "soft", id: "learn-done" });
  const button = (text, id, onclick) => h("button", { type: "button", className: "quiet", id, onclick }, text);
  const check = (id, text, chosen) => {
    const box = h("input", { type: "checkbox", id, checked: given[chosen] === "1" });
    const show = () => {
      document.documentElement.classList.toggle(id, box.checked);
      keep({ [chosen]: box.checked ? "1" : null });
    };
    box.addEventListener("change", show);
    show();
    return h("label", {}, box, text);
  };
  const language = h("select", { id: "learn-language", onchange: () => speak(language.value) });
  const speak = (chosen) => {
    keep({ lang: chosen === "en" ? null : chosen });
    open(chosen);
  };
  const forClass = h(
    "details",
    { open: Boolean(given.hidden ?? given.large) },
    h("summary", {}, "For a class"),
    h("div", {}, check("no-answers", "hide the answers", "hidden")),
    h("div", {}, check("large-type", "large type", "large")),
    h("label", {}, "language", language),
    button("print this chapter as a sheet", "learn-print", () => print()),
  );
  el.append(
    h(
      "div",
      { className: "learn" },
      h(
        "nav",
        { className: "card", ariaLabel: "Lessons" },
        h("h2", {}, "Learn"),
        list,
        done,
        button("begin this chapter anew", "learn-again", () => {
          progress.forget([...place.querySelectorAll("[data-predict]")].map((each) => each.dataset.predict));
          open();
        }),
        button("begin all anew", "learn-forget", () => {
          progress.forget();
          open();
        }),
        forClass,
      ),
      h("section", { className: "card", ariaLabel: "Lesson" }, wait, place),
    ),
  );

  async function open(spoken = given.lang ?? "en") {
    wait.textContent = "the engine computes …";
    place.classList.add("waiting");
    const texts = await json("/api/learn/texts").catch(() => ({ en: {} }));
    if (gone) return;
    const text = (chapter) => texts[spoken]?.[chapter] ?? texts.en[chapter] ?? `# ${chapter}`;
    const title = (chapter) => text(chapter).match(/^# (.*)$/m)?.[1] ?? chapter;
    const kept = { at, hidden: given.hidden, large: given.large, lang: spoken === "en" ? null : spoken };
    const to = (chapter) => link("learn", { ...kept, chapter });
    language.replaceChildren(...Object.keys(texts).map((each) => h("option", { selected: each === spoken }, each)));
    list.replaceChildren(
      ...NAMES.map((chapter) => {
        const made = h("a", { href: to(chapter) }, title(chapter));
        made.dataset.chapter = chapter;
        if (chapter === name) made.setAttribute("aria-current", "step");
        return h("li", {}, made);
      }),
    );
    const choose = (moment) => {
      at = moment;
      keep({ chapter: name, at });
      open(spoken);
    };
    const how = {
      model,
      lesson: (moment) => json(`/api/learn/lesson${moment === null ? "" : `?at=${moment}`}`),
      ask: (what) => json(`/api/learn/${what}`),
      at,
      choose,
    };
    const fetched = await CHAPTERS[name](how).then(
      ({ before = [], ...found }) => [...before, ...lessonOf(text(name), found)],
      (error) => [h("p", { className: "error", role: "alert" }, error.message)],
    );
    if (gone) return;
    wait.textContent = "";
    place.classList.remove("waiting");
    const number = NAMES.indexOf(name);
    const after = NAMES[number + 1];
    const next = after && h("p", {}, h("a", { id: "learn-next", href: to(after) }, `next: ${title(after)} →`));
    place.lang = texts[spoken]?.[name] ? spoken : "en";
    place.replaceChildren(h("h2", {}, `${number + 1}. ${title(name)}`), ...fetched, next ?? "");
    tell();
  }

  function tell() {
    const known = progress.read();
    const count = Object.values(known).filter((how) => how === "right").length;
    done.textContent = count
      ? `${count} predicted rightly so far; kept in this browser`
      : "Predict first, then look. What you have done is kept in this browser.";
    for (const each of place.querySelectorAll("[data-predict]"))
      each.classList.toggle("done", ["right", "done"].includes(known[each.dataset.predict]));
  }
  addEventListener("learned", tell);
  scrollTo(0, 0);
  open();
  return () => {
    gone = true;
    removeEventListener("learned", tell);
    document.documentElement.classList.remove("no-answers", "large-type");
  };
}

// Every chapter is told at a moment of the training; the reader may take another.
async function told({ lesson, at, choose, model }) {
  const found = await lesson(at);
  if (found.error) throw new Error(found.error);
  const when = (step) => (step === 0 ? "before the first update" : `after ${whole(step)} updates`);
  const options = found.steps.map((step, index) =>
    h("option", { value: index, selected: index === found.at }, when(step)),
  );
  const moment = h("select", { id: "learn-at", onchange: () => choose(Number(moment.value)) }, options);
  const right = found.words[found.target];
  const asked = h("span", { className: "soft" }, `${found.question} → ${right}`);
  const head = h("div", { className: "controls" }, h("label", {}, `${found.run}, `, moment), asked);
  const values = { question: found.question, right, count: found.words.length, parameters: whole(found.parameters) };
  return { found, before: [...notOurs(model, found), head], values, right };
}

// Who shows a run that the course cannot be taught with is told why it speaks of another.
function notOurs(model, found) {
  if (!model.runs.length || model.runs.some((run) => run.name === found.run)) return [];
  return [
    h(
      "p",
      { className: "soft", id: "learn-other" },
      `${model.runs[0].name} did not learn the course's task, so these pages speak of the teaching model ` +
        `(${whole(found.parameters)} parameters, untrained): each of its numbers can be followed by hand, and its ` +
        ("answers can be checked. The mathematics is the same; only sizes differ. `tapeless train` " +
          "trains one to look at."),
    ),
  ];
}

const named = (found, values) => found.words.map((word, index) => [word, values[index]]);

async function begins(how) {
  const { found, before, values, right } = await told(how);
  const slope = found.slope[found.target];
  const likely = found.likely[found.target];
  Object.assign(values, {
    loss: short(found.loss),
    likeliest: found.words[found.likely.indexOf(Math.max(...found.likely))],
    probability: Number(likely.toPrecision(DIGITS)),
    sum: short(found.slope.reduce((a, b) => a + b)),
  });
  const figures = {
    likely: bars({ title: "The probability of each token", rows: named(found, found.likely), mark: found.target }),
    slope: bars({
      title: "∂loss/∂logits, as the backward call of the classifier wrote it",
      rows: named(found, found.slope),
      mark: found.target,
    }),
  };
  const slips = [
    [likely, `that is the probability of ${right}; 1 is taken away at the right token`],
    [1 - likely, "look at the sign: p − y, and y is 1"],
  ];
  // What is shown of a probability near 1 leaves few digits of p − 1.
  const tolerance = Math.max(0.012 * Math.abs(slope), 10 ** -DIGITS);
  const answers = {
    "begins-sign": found.keys["begins-sign"],
    "begins-slope": { id: `begins-slope-${found.at}`, right: slope, slips, tolerance },
    "begins-sum": { right: 0, tolerance: 1e-6, slips: [[1, "that is the sum of p alone"]] },
  };
  return { before, values, figures, answers };
}

async function output(how) {
  const { found, before, values, right } = await told(how);
  const { x, dweight, terms, dx } = found.head;
  const slope = found.slope[found.target];
  Object.assign(values, { channels: found.channels, x: short(x[0]), slope: short(slope) });
  const sum = short(terms.reduce((a, b) => a + b));
  const figures = {
    weights: table(
      `The first six of the row of ${right}`,
      ["i", "x[i]", "· slope", "= x[i] · slope", "the engine wrote"],
      x.map((value, index) => [String(index), value, slope, value * slope, dweight[index]]),
    ),
    terms: bars({
      title: `What each token sends to x[0]: together ${sum}, and the engine wrote ${short(dx[0])}`,
      rows: named(found, terms),
      mark: found.target,
    }),
  };
  const slips = [
    [x[0] + slope, "that is the sum; a weight's gradient is a product"],
    [slope / x[0], "that is the ratio; a weight's gradient is a product"],
  ];
  const answers = { "output-weight": { id: `output-weight-${found.at}`, right: dweight[0], slips }, "output-sum": 0 };
  return { before, values, figures, answers };
}

async function blocks(how) {
  const { found, before, values } = await told(how);
  const handing = found.back.filter((call) => call.writes && call.reads);
  const kinds = [...new Set(handing.map(({ op }) => op))].sort();
  const weakest = handing.reduce((least, call) =>
    call.writes / call.reads < least.writes / least.reads ? call : least,
  );
  const relu = found.back.filter(({ op }) => op === "relu");
  const post = found.placement === "post";
  Object.assign(values, {
    calls: found.back.length,
    zeros: relu.map((call) => `${call.section}: ${percent(call.zeros)}`).join("; "),
    weakest: `Call ${weakest.call}, ${weakest.op} in ${weakest.section}`,
    reads: short(weakest.reads),
    writes: short(weakest.writes),
    residual: post
      ? "Beside each branch runs the residual path, along which the gradient is added unchanged; but this model is " +
        "post-norm, so after each addition a LayerNorm stands on that path too, and rescales whatever passes."
      : "Beside each branch runs the residual path, along which the gradient is added unchanged: " +
        "nothing stands on it " +
        "in a pre-norm model.",
  });
  const detail = h("div", { role: "status" });
  const show = (call) => {
    const zeros = call.zeros ? `; ${percent(call.zeros)} of it is exactly 0` : "";
    detail.replaceChildren(
      h("h3", {}, `call ${call.call}: ${call.op}, backward, in ${call.section}`),
      ...call.formulas.map((each) => h("pre", { tabIndex: 0 }, each)),
      h("p", {}, `It reads a gradient of RMS ${short(call.reads)} and hands on ${short(call.writes)}${zeros}.`),
    );
  };
  const sized = found.back.filter((call) => call.writes !== null).map((call) => [call.call, call.writes]);
  const pick = (call) => h("button", { type: "button", onclick: () => show(call) }, `${call.call} ${call.op}`);
  const figures = {
    kinds,
    sizes: lines({
      title: "RMS of the gradient that each call hands on, in the order they run",
      series: [{ name: "RMS per element", points: sized }],
      log: true,
      across: "call",
    }),
    each: [
      h("div", { className: "choices", role: "group", ariaLabel: "calls, in order" }, found.back.map(pick)),
      detail,
      h("p", {}, h("a", { href: link("flow") }, "see the whole step in Flow")),
    ],
  };
  const answers = {
    "blocks-relu": found.keys["blocks-relu"],
    "blocks-weak": { id: `blocks-weak-${found.at}`, right: found.keys["blocks-weak"] },
  };
  return { before, values, figures, answers };
}

async function attention(how) {
  const { found, before, values } = await told(how);
  const { attention: a } = found;
  if (!a) throw new Error(UNUSUAL);
  const { query, key } = a;
  const words = found.shown;
  const unscaled = a.ds[query].reduce((sum, each, at) => sum + each * a.k[at], 0);
  const sent = a.p.map((row, at) => row[key] * a.dy[at]);
  Object.assign(values, {
    call: a.call,
    section: a.section,
    head: a.head,
    tokens: words.length,
    width: a.width,
    query: query + 1,
    keyword: words[key],
    p: short(a.p[query][key]),
    dy: short(a.dy[query]),
    dv: short(sent.reduce((x, y) => x + y)),
    dvengine: short(a.dv),
    dp: short(a.dp[query][key]),
    mean: short(a.mean[query]),
    ds: short(a.ds[query][key]),
    sum: short(a.ds[query].reduce((x, y) => x + y)),
    unscaled: short(unscaled),
    dq: short(unscaled * a.scale),
    dqengine: short(a.dq),
    dk: short(a.dk),
  });
  const square = (title, rows) =>
    table(
      title,
      ["query ↓ key →", ...words.map((word, at) => `${at + 1} “${word}”`), "sum"],
      rows.map((row, at) => [`${at + 1} “${words[at]}”`, ...row, row.reduce((x, y) => x + y)]),
    );
  const to = { run: how.model.runs.findIndex((run) => run.name === found.run), call: a.call };
  const figures = {
    weights: square(`P: the weights of head ${a.head}, each row a query`, a.p),
    values: bars({
      title: `What each query sends to the first number of dv of “${words[key]}”`,
      rows: words.map((word, at) => [`${at + 1} “${word}”`, sent[at]]),
      mark: query,
    }),
    scores: square("dS: the gradient of every score, each row with the sum 0", a.ds),
    paths: bars({
      title: "RMS per element: what comes in, and the three gradients that go on",
      rows: Object.entries(a.sizes),
    }),
    flow: to.run < 0 ? null : h("p", {}, h("a", { href: link("flow", to) }, `see call ${a.call} in Flow`)),
  };
  const [p, dp, mean] = [a.p[query][key], a.dp[query][key], a.mean[query]];
  // Of numbers with three digits, a small difference of two keeps fewer.
  const lost = 0.006 * p * (Math.abs(dp) + Math.abs(mean)) + 0.006 * Math.abs(a.ds[query][key]);
  const answers = {
    "attention-value": { id: `attention-value-${found.at}`, right: sent[query] },
    "attention-score": {
      id: `attention-score-${found.at}`,
      right: a.ds[query][key],
      tolerance: lost,
      slips: [
        [p * dp, "that would be a softmax whose outputs are independent; take the mean of the row away first"],
        [dp - mean, "times the weight p"],
        [p * (1 - p) * dp, "that is the diagonal of the Jacobian alone; all others of the row count too"],
      ],
    },
    "attention-sum": { right: 0, tolerance: 1e-6, slips: [[1, "that is what the weights add up to"]] },
    "attention-scale": {
      id: `attention-scale-${found.at}`,
      right: a.dq,
      slips: [
        [unscaled, "the scale 1/√D is a factor on the way back, too"],
        [unscaled / a.width, `the scale is 1/√${a.width}, not 1/${a.width}`],
      ],
    },
    "attention-paths": 0,
  };
  return { before, values, figures, answers };
}

async function norm(how) {
  const { found, before, values } = await told(how);
  const { norm: n } = found;
  if (!n) throw new Error("This model has no LayerNorm.");
  const { rstd, mean, along } = n;
  const [x, g] = [n.x[0], n.g[0]];
  Object.assign(values, {
    call: n.call,
    section: n.section,
    channels: n.channels,
    g: short(g),
    x: short(x),
    mean: short(mean),
    along: short(along),
    rstd: short(rstd),
    sum: short(n.sum),
  });
  const rows = n.x.map((hat, at) => {
    return [String(at), n.g[at], -mean, -hat * along, rstd * (n.g[at] - mean - hat * along), n.dx[at]];
  });
  const headings = ["element", "g", "− mean(g)", "− x̂ · mean(g · x̂)", "their sum / σ", "the engine wrote"];
  const figures = { terms: table(`The first six of ${n.channels} elements`, headings, rows) };
  const tolerance = 0.006 * rstd * (Math.abs(g) + Math.abs(mean) + 2 * Math.abs(x * along)) + 0.006 * Math.abs(n.dx[0]);
  const slips = [
    [g * rstd, "that is g / σ: both correction terms are missing"],
    [(g - mean) * rstd, "the second term is missing: the deviation moves too"],
    [(g - x * along) * rstd, "the first term is missing: the mean moves too"],
    [g - mean - x * along, "times 1/σ"],
  ];
  const answers = {
    "norm-dx": { id: `norm-dx-${found.at}`, right: n.dx[0], tolerance, slips },
    "norm-sum": { right: 0, tolerance: 1e-6 },
  };
  return { before, values, figures, answers };
}

async function words(how) {
  const { found, before, values } = await told(how);
  const { word, places, parts, whole: sum } = found.repeated;
  Object.assign(values, {
    word,
    places: places.join(" and "),
    channels: found.channels,
    parts: parts.map((each) => short(each[0])).join(" and "),
  });
  const rows = sum.map((value, index) => {
    const each = parts.map((part) => part[index]);
    return [String(index), ...each, each.reduce((total, part) => total + part, 0), value];
  });
  const from = places.map((place) => `from position ${place}`);
  const headings = ["number", ...from, "sum", "the engine wrote"];
  const figures = { sum: table(`The gradient of “${word}”, its first six numbers`, headings, rows) };
  // Numbers with three digits that cancel leave fewer.
  const tolerance = Math.max(
    0.012 * Math.abs(sum[0]),
    0.006 * parts.reduce((total, each) => total + Math.abs(each[0]), 0),
  );
  const slips = [
    ...parts.map((each) => [each[0], "that is one of them; the row was read more than once"]),
    [sum[0] / parts.length, "they are added, not averaged"],
  ];
  const answers = { "words-sum": { id: `words-sum-${found.at}`, right: sum[0], tolerance, slips }, "words-bug": 0 };
  return { before, values, figures, answers };
}

async function update(how) {
  const { found, before, values } = await told(how);
  const { element, value, gradient, lr, sgd, adam } = found.update;
  const { widths, errors, backward, complex_step: complex } = found.check;
  const apart = Math.abs(complex - backward) / Math.max(Math.abs(complex), 1e-300);
  Object.assign(values, {
    element,
    value: value.toFixed(6),
    gradient: short(gradient),
    lr: short(lr),
    sgd: sgd.value.toFixed(6),
    adam: adam.value.toFixed(6),
    backward: backward.toPrecision(12),
    complex: complex.toPrecision(12),
    digits: apart ? Math.floor(-Math.log10(apart)) : "all",
  });
  const arithmetic = [
    ["m = 0.1 · gradient", adam.m],
    ["v = 0.001 · gradient²", adam.v],
    ["m̂ = m / (1 − 0.9)", adam.m / 0.1],
    ["v̂ = v / (1 − 0.999)", adam.v / 0.001],
    ["lr · m̂ / (√v̂ + 10⁻⁸)", value - adam.value],
  ];
  const curves = Object.entries(errors).map(([name, found]) => {
    return { name, points: widths.map((width, index) => [width, Math.max(found[index], 1e-17)]) };
  });
  const title = "Error of the difference, in two types of number";
  const figures = {
    adam: table("Adam's arithmetic, first step", ["", "value"], arithmetic),
    errors: lines({ title, series: curves, log: true, across: "ε", logAcross: true }),
  };
  const slips = [
    [sgd.value, "that is where it ends; asked is by how much it changes"],
    [gradient, "that is the gradient; the change is lr times it, taken away"],
    [lr, "that would be Adam's first step"],
    [value - sgd.value, "it is taken away"],
  ];
  const answers = {
    "update-sgd": { id: `update-sgd-${found.at}`, right: sgd.value - value, slips },
    "update-adam": found.keys["update-adam"],
    "update-eps": found.keys["update-eps"],
  };
  return { before, values, figures, answers };
}

async function path({ ask }) {
  const found = await ask("landscape");
  if (found.error) throw new Error(found.error);
  const { on_path: losses, fallen } = found;
  const [early, middle, late] = fallen.map(short);
  const [first, last] = [losses[0], losses.at(-1)];
  const values = { parameters: whole(found.parameters), examples: found.examples, early, middle, late };
  Object.assign(values, { first: short(first), last: short(last), fall: short(first - last) });
  const points = found.steps.map((step, index) => [step + 1, losses[index]]);
  const figures = {
    plane: plane({
      title: "The loss around the path of your training",
      x: found.x,
      y: found.y,
      losses: found.losses,
      path: found.path,
      steps: found.steps,
      onPath: losses,
    }),
    curve: lines({
      title: "Loss along the path, by update",
      series: [{ name: "validation loss", points }],
      log: true,
      across: "update + 1",
      logAcross: true,
    }),
  };
  return { values, figures, answers: found.keys };
}

async function wrong({ ask }) {
  const found = await ask("pathologies");
  if (found.error) throw new Error(found.error);
  const drawn = (set) => {
    const series = Object.entries(set).map(([name, norms]) => ({ name, points: norms.map((norm, at) => [at, norm]) }));
    return lines({ title: "Norm of the gradient of each block's weights", series, log: true, across: "block" });
  };
  const [post, pre] = Object.values(found.vanishing).map((norms) => norms[0] / norms.at(-1));
  const [, large] = Object.values(found.exploding);
  const { units, dead } = found.dead;
  const values = { post: short(post), pre: short(pre), units: units.length, dead };
  const figures = {
    vanishing: drawn(found.vanishing),
    exploding: drawn(found.exploding),
    units: lines({
      title: "RMS of the gradient of each unit's weights",
      series: [{ name: "gradient", points: units.map((value, unit) => [unit, value]) }],
      across: "unit",
    }),
  };
  const largest = large.indexOf(Math.max(...large));
  const answers = {
    "wrong-vanish": post < 0.01 ? 2 : post < 0.3 ? 1 : 0,
    "wrong-explode": largest === 0 ? 1 : largest === large.length - 1 ? 0 : 2,
    "wrong-dead": { right: 0 },
  };
  return { values, figures, answers };
}

// The questions at the end of the founding document, each with a short answer and where to see it.
async function questions() {
  const known = progress.read();
  let number = 0;
  const question = (where, [asked], answer) => {
    const id = `question-${number}`;
    number += 1;
    const summary = `${number}. ${asked.lines.join(" ")}`;
    const to = VIEWS[where] ? link(where) : link("learn", { chapter: where });
    const says = answer.map(({ lines }) => h("p", {}, inline(lines.join(" "))));
    const look = h("a", { href: to }, VIEWS[where] ? `look: ${VIEWS[where]}` : "look: the lesson");
    const box = h("details", { className: "question" }, h("summary", {}, summary), ...says, look);
    if (known[id]) box.classList.add("done");
    box.addEventListener("toggle", () => {
      if (!box.open) return;
      progress.set(id, "seen");
      box.classList.add("done");
    });
    return box;
  };
  return { question };
}
