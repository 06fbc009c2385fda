// A run as a whole: gradients by depth and step, the doctor's words, the curves of every run that is shown.

import { chart } from "./curves.js";
import { h, whole } from "./dom.js";
import { MARKS, heatmap } from "./heatmap.js";
import { replay } from "./replay.js";

const CHARTS = [
  ["loss", "Loss", "trained on (line) and held out (dots)", true],
  ["accuracy", "Right answers", "held out (dots), trained on (rings)", false],
  ["lr", "Learning rate", "of each update", false],
  ["gradient_norm", "Gradient norm", "of all gradients, before clipping", true],
  ["update_ratio", "Update / weight", "how far a layer moves, the middle layer", true],
  ["tokens_per_second", "Tokens per second", "while training", false],
];

export function render({ model, el }) {
  const difference = h("input", { type: "checkbox", id: "difference" });
  const heat = heatmap({ model, difference }),
    told = replay({ model, heat });
  const doctor = h("div", { className: "doctor" });
  const pick = (run, step) => {
    heat.choose(run, step);
    heat.el.scrollIntoView({ block: "start" });
  };
  const charts = CHARTS.map(([name, title, what, log]) => chart({ model, name, title, what, log, difference, pick }));
  const spikes = h("div", { className: "choices" });
  const hint = h("span", { className: "soft" });
  difference.addEventListener("change", () => {
    charts.forEach((each) => each.draw());
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
  return () => {
    model.listeners.delete(update);
    removeEventListener("theme", update);
    told.leave();
    heat.leave();
    charts.forEach((each) => each.leave());
  };
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
  box.append(
    h("p", { className: `verdict ${diagnosis.verdict}` }, `${MARKS[diagnosis.verdict] ?? ""} ${diagnosis.kind}`),
    h("p", {}, diagnosis.sentence),
    diagnosis.remedy && h("p", {}, `→ ${diagnosis.remedy}`),
    h(
      "ul",
      { className: "findings" },
      findings.map((each) =>
        h(
          "li",
          {},
          h("span", { className: each.verdict }, `${MARKS[each.verdict] ?? ""} ${each.kind}: `),
          each.sentence,
        ),
      ),
    ),
  );
  return box;
}
