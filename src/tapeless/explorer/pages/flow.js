// The training step as two facing columns: forward down on the left, on the right the backward call of each, coloured
// by what it wrote at a recorded step.

import { json } from "./api.js";
import { callNumbers } from "./callnumbers.js";
import { css, logShare, scale } from "./colour.js";
import { h, percent, short, whole } from "./dom.js";
import { legend } from "./grid.js";
import { highway } from "./highway.js";
import { here, keep } from "./place.js";
import { branchesOf, lossOf, measured, shownResults, statistics, stepOf, together } from "./record.js";

const COLOURED = {
  size: "size per element",
  zeros: "fraction of zeros",
  largest: "largest value",
  error: "error against the reference",
  time: "time against the machine’s ceiling",
};
const COMPUTED = ["error", "time"]; // on request, at the nearest step whose weights are kept
const WAIT = 250; // milliseconds until a call that is passed over is asked for, and what is out of sight is painted
const FOLD_FROM = 5; // blocks; of more, only the outer ones are open
const NOT_COLOURED =
  "Click one: its formula with the names of what it reads, what it wrote at this step, and its source.";

export function render({ model, el }) {
  const runs = model.runs.filter((run) => run.record);
  if (!runs.length) {
    el.append(
      h(
        "section",
        { className: "card" },
        h("h2", {}, "Flow"),
        model.runs.map((run) => h("p", { className: "soft" }, run.recordError)),
      ),
    );
    return () => {};
  }
  const given = here().chosen;
  const named = model.runs[Number(given.run)];
  let run = runs.includes(named) ? named : (runs.find((each) => each.shown) ?? runs[0]);
  let row = given.step === undefined ? null : rowOf(run, Number(given.step));
  let chosen = Number(given.call) < run.record.calls.length ? Number(given.call) : null;
  let values = null;
  let cells = new Map();
  let asked = 0;
  let later = 0;
  let seen = null; // the cells in the window: while the step is dragged they alone are painted, then all
  let settling = 0;
  const which = h(
    "select",
    {
      id: "flow-run",
      onchange: () => {
        run = runs[Number(which.value)];
        row = chosen = values = null;
        keep({ run: run.number, step: null, call: null });
        build();
      },
    },
    runs.map((each, index) => h("option", { value: index, selected: each === run }, each.name)),
  );
  const by = h(
    "select",
    {
      id: "flow-by",
      onchange: () => {
        keep({ by: by.value });
        if (COMPUTED.includes(by.value)) compute();
        else paint();
      },
    },
    Object.entries(COLOURED).map(([value, text]) => h("option", { value, selected: value === given.by }, text)),
  );
  const slider = h("input", {
    type: "range",
    min: 0,
    step: 1,
    id: "flow-step",
    ariaLabel: "recorded step",
    oninput: () => {
      row = Number(slider.value);
      later ||= requestAnimationFrame(() => {
        later = 0;
        look((seen ??= inWindow()));
      });
    },
  });
  const at = h("output", { id: "flow-at" });
  const kept = h("div", { className: "choices", id: "flow-whole" });
  const through = h("input", {
    type: "range",
    min: 0,
    step: 1,
    value: 0,
    id: "flow-through",
    ariaLabel: "call",
    oninput: () => choose(Number(through.value)),
  });
  const passing = h("output", { id: "flow-which" }, "every call, in order");
  const said = h("p", { className: "soft", id: "flow-said", role: "status" });
  const ramp = (share) => css(scale(share));
  const scales = {
    forward: legend("colours of the forward pass", ramp, false),
    backward: legend("of the backward pass", ramp, false),
  };
  const legends = Object.entries(scales).map(([way, each]) => h("span", { className: "scale" }, `${way}:`, each.el));
  const road = highway({ choose: (call) => choose(call) });
  const exact = h("div", { id: "flow-numbers" });
  let computed = null,
    numbersOf = null,
    waiting = 0;
  const columns = h("div", { id: "flow-columns" });
  const panel = h("section", { className: "card sticky", ariaLabel: "Call", id: "flow-call", ariaLive: "polite" });
  el.append(
    h(
      "section",
      { className: "card", ariaLabel: "Recorded step" },
      h("h2", {}, "One training step, call by call"),
      h("div", { className: "controls" }, h("label", {}, "run", which), h("label", {}, "coloured by", by)),
      h("div", { className: "slider" }, h("label", { htmlFor: "flow-step" }, "step"), slider, at),
      kept,
      h("div", { className: "slider" }, h("label", { htmlFor: "flow-through" }, "call"), through, passing),
      said,
      h("div", { className: "controls flow-scales" }, legends),
    ),
    road.el,
    h(
      "div",
      { className: "two" },
      h(
        "section",
        { className: "card", ariaLabel: "Calls" },
        h(
          "div",
          { className: "headings" },
          h("span", {}, "forward pass ↓, the loss at the bottom"),
          h("span", {}, "backward pass ↑, beside its forward (↻ recomputed)"),
        ),
        columns,
      ),
      panel,
    ),
  );

  function build() {
    const { record } = run;
    cells = new Map();
    seen = null;
    const blocks = record.sections.filter((name) => name.startsWith("blocks."));
    const open = (name) =>
      blocks.length < FOLD_FROM ||
      !blocks.slice(1, -1).includes(name) ||
      (chosen !== null && record.calls[chosen]?.section === name);
    const groups = record.sections.map((name) => {
      const here = record.calls.filter((call) => call.section === name);
      const forward = here.filter((call) => call.phase === "forward"),
        taken = new Set();
      const pairs = forward.flatMap((call) => {
        const back = here.filter((each) => each.partner === call.call && each.phase !== "forward");
        back.forEach((each) => taken.add(each.call));
        return [
          h("div", {}, button(call)),
          h(
            "div",
            {},
            back.map((each) => button(each)),
          ),
        ];
      });
      const alone = here.filter((call) => call.phase !== "forward" && !taken.has(call.call));
      pairs.push(...alone.flatMap((call) => [h("div"), h("div", {}, button(call))]));
      return h(
        "details",
        { className: "section", open: open(name), ontoggle: () => paint() },
        h("summary", {}, name),
        h("div", { className: "pairs" }, pairs),
      );
    });
    const rest = record.calls.filter((call) => !call.section);
    groups.push(
      h(
        "details",
        { className: "section", ontoggle: () => paint() },
        h("summary", {}, "zero, clip and update"),
        h(
          "div",
          { className: "pairs" },
          rest.map((call) => h("div", {}, button(call))),
        ),
      ),
    );
    columns.replaceChildren(...groups);
    slider.max = Math.max(0, record.rows - 1);
    row = Math.min(row ?? record.rows - 1, record.rows - 1);
    slider.value = row;
    offerWhole();
    through.max = record.calls.length - 1;
    computed = numbersOf = null;
    clearTimeout(waiting); // what was chosen in another run is not asked of this one
    look();
    tell();
    if (record.rows < 1) road.wait();
    if (COMPUTED.includes(by.value)) compute();
    if (chosen !== null) choose(chosen);
  }

  // The steps whose tensors are kept whole: of them the numbers of a call are those that it wrote then.
  function offerWhole() {
    const take = (at) => () => {
      slider.value = row = at;
      look();
      clearTimeout(waiting);
      if (chosen !== null) waiting = setTimeout(numbersNow, WAIT);
    };
    const buttons = run.record.whole.map(([number, at]) =>
      h("button", { type: "button", onclick: take(at) }, whole(number)),
    );
    kept.replaceChildren(...(buttons.length ? ["tensors are kept of step", ...buttons] : []));
  }

  // Everything that is computed on request is of the list of calls as it is now; an old record may be of another.
  async function answered(path) {
    const answer = await json(run.path(path)).catch((error) => ({ error: error.message }));
    return !answer.error && answer.listing !== run.record.listing
      ? { error: "The program has changed since this run was recorded, so its calls cannot be computed again." }
      : answer;
  }

  const step = () => (values ? stepOf(values) : 0);

  // The highway of the row at hand: what joins the stream at this step, as it was recorded.
  function drive() {
    if (!values) return;
    road.show(branchesOf(run.record, values));
  }

  async function compute() {
    const what = by.value,
      mine = run;
    said.textContent = what === "error" ? "running every call on the reference, in float64 …" : "timing every call …";
    const answer = await answered(`calls?near=${step()}&what=${what}`);
    if (by.value !== what || mine !== run) return;
    if (answer.error) {
      said.textContent = answer.error;
      return;
    }
    computed = { what, of: new Map(answer.calls.map((each) => [each.call, each])) };
    const sound = answer.calls.every((each) => each.ok);
    said.textContent =
      what === "error"
        ? `After update ${whole(answer.step)}: how far each call’s result is from the reference’s in ` +
          "float64, given the " +
          `same inputs, relative to its largest element. ${sound ? "All are" : "Those without ✗ are"} within what ` +
          "rounding of their inputs explains."
        : `After update ${whole(answer.step)}: the fraction of the machine’s ceiling that each call ` +
          "reaches (matmuls as " +
          "fast as its fastest, or memory as fast as a copy).";
    paint();
    tell();
  }

  function choose(call) {
    chosen = call;
    keep({ run: run.number, call });
    through.value = call;
    const each = run.record.calls[call];
    passing.textContent = `${call}: ${each.op}.${each.direction}`;
    const folder = cells.get(call)?.made.closest("details");
    if (folder && !folder.open) folder.open = true;
    paint();
    tell();
    clearTimeout(waiting);
    waiting = setTimeout(numbersNow, WAIT);
  }

  async function numbersNow() {
    const call = chosen,
      mine = run;
    const answer = await answered(`call?near=${step()}&call=${call}`);
    if (call !== chosen || mine !== run) return;
    numbersOf = { call, answer };
    tell();
  }

  function button(call) {
    const colour = h("i");
    const value = h("span", { className: "value" }, "");
    const results = shownResults(run.record, call);
    const written = results.map(({ result }) => call.results[run.record.results[result][1]]);
    const [first = call.results[0]] = written;
    const names = written.length > 1 ? written.map(({ argument }) => argument).join(", ") : "";
    const target = names || local(first?.buffer ?? "", call.section);
    const what = `${call.op}${call.phase === "recompute" ? " ↻" : ""} → ${target}`;
    const made = h(
      "button",
      { type: "button", className: "call", ariaPressed: "false", onclick: () => choose(call.call) },
      colour,
      h("span", { className: "no" }, String(call.call)),
      h("span", { className: "what" }, what),
      value,
    );
    made.dataset.call = call.call;
    cells.set(call.call, { made, colour, value, results, back: call.phase === "backward", folder: null });
    return made;
  }

  const inWindow = () =>
    new Map(
      [...cells].filter(([, { made }]) => {
        const { top, bottom } = made.getBoundingClientRect();
        return bottom > 0 && top < innerHeight;
      }),
    );

  async function look(some = cells) {
    const mine = (asked += 1);
    if (run.record.rows < 1) {
      at.textContent = "nothing recorded yet";
      return;
    }
    try {
      const found = await run.row(row);
      if (mine !== asked) return;
      values = found;
      paint(some);
      if (some !== seen) drive();
      if (some !== seen) keep({ run: run.number, step: step() });
      clearTimeout(settling);
      if (some === seen) settling = setTimeout(rest, WAIT);
    } catch (error) {
      if (mine === asked) at.textContent = error.message;
    }
  }

  // The slider has come to rest: what is out of sight, and what takes longer than a frame.
  function rest() {
    seen = null;
    paint();
    drive();
    keep({ run: run.number, step: step() });
    if (chosen !== null) numbersNow();
  }

  function paint(some = cells) {
    if (!values) return;
    at.replaceChildren(`${whole(step())}, its batch’s loss ${short(lossOf(values))}`);
    const statistic = by.value,
      now = COMPUTED.includes(statistic);
    if (now) {
      paintComputed();
      return;
    }
    const ranges =
      statistic === "zeros" ? {} : { forward: rangeOf(statistic, false), backward: rangeOf(statistic, true) };
    for (const [way, each] of Object.entries(scales)) each.draw(ranges[way]?.map(short) ?? ["0 %", "100 %"]);
    for (const [call, cell] of some) {
      const { made, colour, value: text, results, back } = cell;
      cell.folder ??= made.closest("details");
      if (!cell.folder.open) continue; // what is folded is painted when it is opened
      const pressed = String(call === chosen);
      if (made.getAttribute("aria-pressed") !== pressed) made.setAttribute("aria-pressed", pressed);
      if (!results.length) continue;
      const first = together(values, results, statistic);
      const wrong = together(values, results, "not finite") > 0;
      colour.style.backgroundColor = css(
        scale(statistic === "zeros" ? first : logShare(first, ...ranges[back ? "backward" : "forward"])),
      );
      const said = wrong ? "not finite" : statistic === "zeros" ? percent(first) : short(first);
      if (text.firstChild.data !== said) text.firstChild.data = said;
      text.classList.toggle("wrong", wrong);
    }
    if (chosen !== null) tell();
  }

  function paintComputed() {
    if (computed?.what !== by.value) return;
    for (const [call, { made, colour, value: text }] of cells) {
      const each = computed.of.get(call),
        pressed = String(call === chosen);
      if (made.getAttribute("aria-pressed") !== pressed) made.setAttribute("aria-pressed", pressed);
      if (!each) {
        text.firstChild.data = "";
        colour.style.backgroundColor = "";
        continue;
      }
      const error = by.value === "error";
      colour.style.backgroundColor = css(scale(error ? logShare(each.error ?? 1, 1e-9, 1e-3) : each.share));
      text.firstChild.data = error ? `${each.ok ? "" : "✗ "}${short(each.error)}` : percent(each.share);
      text.classList.toggle("wrong", error && !each.ok);
    }
  }

  // Values forward and gradients back differ by orders of magnitude: each column has its own scale.
  function rangeOf(statistic, back) {
    let [low, high] = [Infinity, 0];
    for (const [call, cell] of cells) {
      if (cell.back !== back || !cell.results.length) continue;
      if (back && !run.record.onward[call]) continue; // a weight's gradient is a sum over all positions
      const size = together(values, cell.results, statistic);
      if (size > 0) [low, high] = [Math.min(low, size), Math.max(high, size)];
    }
    return high > 0 ? [Math.max(low, high * 1e-12), high] : [1, 1];
  }

  function tell() {
    const call = chosen === null ? null : run.record.calls[chosen];
    if (!call) {
      panel.replaceChildren(h("h2", {}, "A call"), h("p", { className: "soft" }, NOT_COLOURED));
      return;
    }
    const at = new Map();
    run.record.results.forEach(([number, result], index) => number === call.call && at.set(result, index));
    const pair = (name, said) => [h("dt", {}, name), h("dd", {}, said)];
    const numbers = (result) =>
      statistics.map((name) => {
        const value = measured(values, at.get(result), name);
        return pair(name === "size" ? "size per element" : name, name === "zeros" ? percent(value) : short(value));
      });
    const partner = call.partner === null ? "" : `; its forward is call ${call.partner}`;
    panel.replaceChildren(
      h("h2", {}, `${call.call} ${call.op}.${call.direction}`),
      h(
        "p",
        { className: "soft" },
        `${call.section || "the whole model"}, ${call.phase}${partner}; ${whole(call.flops)} FLOP`,
      ),
      ...call.results.map((each, result) =>
        h(
          "div",
          {},
          h("pre", { tabIndex: 0 }, `${local(each.buffer, call.section)} ${each.sign} ${each.reads_as}`),
          h("dl", {}, pair("shape", each.shape.join("×")), at.has(result) && values ? numbers(result) : []),
        ),
      ),
      told(call),
      exact,
      h("h3", {}, "Reads"),
      h(
        "dl",
        {},
        Object.entries(call.reads).map(([name, buffer]) => pair(name, buffer)),
      ),
      h("h3", {}, `Made at ${call.source}`),
      h("pre", { tabIndex: 0 }, run.record.sources[call.source] ?? "its source was not kept"),
    );
  }

  // What was computed of this call, and its numbers once they are there.
  function told(call) {
    const each = computed?.of.get(call.call);
    exact.replaceChildren(
      ...(numbersOf?.call === call.call
        ? [
            h(
              "h3",
              {},
              numbersOf.answer.error
                ? "Its numbers"
                : numbersOf.answer.kept
                  ? `Its numbers at step ${whole(numbersOf.answer.step)}, as they were kept`
                  : `Its numbers after update ${whole(numbersOf.answer.step)}`,
            ),
            ...(numbersOf.answer.error
              ? [h("p", { className: "soft" }, numbersOf.answer.error)]
              : callNumbers(numbersOf.answer, call)),
          ]
        : []),
    );
    if (!each) return "";
    return h(
      "p",
      { id: "flow-computed" },
      computed.what === "time"
        ? `${short(each.ms)} ms, ${percent(each.share)} of the ceiling of ${each.by}`
        : `farthest from the reference in ${each.argument} at [${each.position.join(", ")}]: ${each.found}, the ` +
            (`reference has ${each.true}; ${short(each.error)} of its largest element, ` +
              `${short(each.tolerance)} is what `) +
            "rounding explains",
    );
  }

  const news = (what) => {
    if (what !== "news" || !run.record) return;
    const last = row === Number(slider.max);
    slider.max = Math.max(0, run.record.rows - 1);
    offerWhole();
    if (last) {
      row = Number(slider.max);
      slider.value = row;
      look();
    }
  };
  model.listeners.add(news);
  const again = () => {
    paint();
    road.draw();
  };
  addEventListener("theme", again);
  build();
  return () => {
    model.listeners.delete(news);
    removeEventListener("theme", again);
    clearTimeout(waiting);
    clearTimeout(settling);
    road.leave();
  };
}

// The recorded row that is the nearest to a step.
function rowOf(run, step) {
  const { steps } = run.record;
  return steps.reduce((best, each, at) => (Math.abs(each - step) < Math.abs(steps[best] - step) ? at : best), 0);
}

const local = (name, section) => (section && name.startsWith(`${section}.`) ? name.slice(section.length + 1) : name);
