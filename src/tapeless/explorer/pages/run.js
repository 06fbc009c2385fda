// A run as a whole: gradients by depth and step, the doctor's words, the curves of every run that is shown.

import { chart } from "./curves.js";
import { h, whole } from "./dom.js";
import { MARKS, heatmap } from "./heatmap.js";
import { here, link } from "./place.js";
import { replay } from "./replay.js";

const CHARTS = [
  ["loss", "Loss", "training (line) and validation (dots)", true],
  ["accuracy", "Accuracy", "validation (dots), training (rings)", false],
  ["lr", "Learning rate", "of each update", true],
  ["gradient_norm", "Gradient norm", "of all gradients, before clipping", true],
  ["update_ratio", "Update / weight", "how far a layer moves, the middle layer", true],
  ["tokens_per_second", "Tokens per second", "while training", false],
];

export function render({ model, el }) {
  const check = (id) => h("input", { type: "checkbox", id });
  const how = { difference: check("difference"), smooth: check("smooth"), linear: check("linear") };
  const { difference } = how;
  const intro = h("p", { id: "intro" });
  const heat = heatmap({ model, difference }),
    told = replay({ model, heat });
  const doctor = h("div", { className: "doctor" });
  const pick = (run, step) => {
    heat.choose(run, step);
    heat.el.scrollIntoView({ block: "start" });
  };
  const charts = CHARTS.map(([name, title, what, log]) => chart({ model, name, title, what, log, how, pick }));
  const spikes = h("div", { className: "choices" });
  const hint = h("span", { className: "soft" });
  const redraw = () => charts.forEach((each) => each.draw());
  how.smooth.addEventListener("change", redraw);
  how.linear.addEventListener("change", redraw);
  difference.addEventListener("change", () => {
    redraw();
    heat.update();
  });
  el.append(
    heat.el,
    h("section", { className: "card", ariaLabel: "Doctor" }, h("h2", {}, "What the doctor says"), doctor),
    h(
      "section",
      { className: "card", ariaLabel: "Curves" },
      h("h2", {}, "Curves"),
      h(
        "p",
        { className: "soft" },
        "Click a spike to see whose gradient it was. Zooming the picture above zooms these.",
      ),
      spikes,
      h(
        "div",
        { className: "controls" },
        h("label", {}, how.smooth, "smooth the lines"),
        h("label", {}, how.linear, "linear axes"),
        h("label", {}, difference, "difference of the first two runs, here and in the picture above"),
        hint,
      ),
      h(
        "div",
        { className: "charts" },
        charts.map((each) => each.el),
      ),
    ),
  );
  const update = () => {
    difference.disabled = model.shown.length < 2;
    if (difference.disabled) difference.checked = false;
    const [first, second] = model.shown;
    hint.textContent = second ? `${first.name} − ${second.name}` : "give two runs to see how they differ";
    spikes.replaceChildren(
      ...model.shown.flatMap((run) =>
        run.curves.events
          .filter((each) => each.kind === "spike")
          .slice(-6)
          .map((each) =>
            h(
              "button",
              { type: "button", title: each.text, onclick: () => pick(run, each.step) },
              `${model.shown.length > 1 ? `${run.name}: ` : ""}spike at step ${whole(each.step)}`,
            ),
          ),
      ),
    );
    doctor.replaceChildren(...model.shown.map(said));
    const says = introduced(model.shown[0]);
    intro.replaceChildren(...says);
    if (says.length) el.prepend(intro);
    else intro.remove();
    heat.update();
    CHARTS.forEach(([name], index) => {
      charts[index].el.hidden = name === "accuracy" && unanswered(model.shown);
    });
    charts.forEach((each) => each.draw());
    told.begin();
  };
  model.listeners.add(update);
  addEventListener("theme", update);
  update();
  if (here().chosen.step) heat.el.scrollIntoView({ block: "start" });
  return () => {
    model.listeners.delete(update);
    removeEventListener("theme", update);
    told.leave();
    heat.leave();
    charts.forEach((each) => each.leave());
  };
}

// What the first screen shows, in a sentence, and where it is explained.
function introduced(run) {
  if (!run || run.about.error) return [];
  const { architecture, preset, task } = run.about;
  const learns =
    { operations: "learns to compute expressions such as Max(1,6,2)", text: "learns to continue a text" }[task] ??
    "learns to label signals";
  const size = `${whole(architecture.layers)} blocks, d_model ${whole(architecture.channels)}`;
  return [
    `${run.name} is a transformer (${preset}: ${size}, ${whole(architecture.heads)} heads) that ${learns}. This page `,
    "replays its training from its own weights and records. ",
    h("a", { href: link("learn") }, "The course"),
    " explains backpropagation with the numbers of a run, and ",
    h("a", { href: link("flow", { run: run.number }) }, "Flow"),
    " shows every call of a training step.",
  ];
}

// Whether runs have nothing to answer, as those that learn text: what was evaluated would show it.
const unanswered = (runs) =>
  runs.length > 0 &&
  runs.every(
    ({ about, curves }) =>
      (curves.evaluations.length || !about.trains) &&
      curves.evaluations.every((each) => typeof each.accuracy !== "number"),
  );

function said(run) {
  const { doctor, curves } = run;
  const box = h("div", {}, h("h3", {}, run.name));
  if (curves.error) box.append(h("p", { className: "error" }, curves.error));
  if (!doctor || doctor.error) {
    box.append(h("p", { className: "soft" }, doctor?.error ?? "not asked yet"));
    return box;
  }
  const { diagnosis, findings } = doctor;
  const last = run.record?.steps.at(-1);
  // The cell that a sentence means, or the last that was recorded.
  const linked = ({ sentence, section, step }) => {
    if (last === undefined) return sentence;
    return h("a", { href: link("run", { run: run.number, step: step ?? last, section: section || null }) }, sentence);
  };
  box.append(
    h("p", { className: `verdict ${diagnosis.verdict}` }, `${MARKS[diagnosis.verdict] ?? ""} ${diagnosis.kind}`),
    h("p", {}, linked(diagnosis)),
    diagnosis.remedy && h("p", {}, `→ ${diagnosis.remedy}`),
    h(
      "ul",
      { className: "findings" },
      findings.map((each) =>
        h(
          "li",
          {},
          h("span", { className: each.verdict }, `${MARKS[each.verdict] ?? ""} ${each.kind}: `),
          linked(each),
        ),
      ),
    ),
  );
  return box;
}
