// The page: which runs, which view. Every view is render({ model, el }) and gives back how to take it away.

import { firstView, json, remember, sealed } from "./api.js";
import { h } from "./dom.js";
import { Model, Run } from "./model.js";
import { render as attention } from "./attention.js";
import { render as flow } from "./flow.js";
import { render as learn } from "./learn.js";
import { render as memory } from "./memory.js";
import { render as run } from "./run.js";
import { render as trace } from "./trace.js";

const VIEWS = {
  run: ["Run", run],
  flow: ["Flow", flow],
  attention: ["Attention", attention],
  memory: ["Memory", memory],
  trace: ["Trace a weight", trace],
  learn: ["Learn", learn],
};
const main = document.getElementById("main");
const live = document.getElementById("live");
let leave = null;

function theme() {
  const button = document.getElementById("theme");
  const system = matchMedia("(prefers-color-scheme: dark)");
  let chosen = localStorage.getItem("theme");
  const show = () => {
    const dark = chosen ? chosen === "dark" : system.matches;
    document.documentElement.dataset.theme = dark ? "dark" : "light";
    button.textContent = dark ? "light" : "dark";
    dispatchEvent(new Event("theme"));
  };
  button.addEventListener("click", () => {
    chosen = document.documentElement.dataset.theme === "dark" ? "light" : "dark";
    localStorage.setItem("theme", chosen);
    show();
  });
  system.addEventListener("change", show);
  show();
}

function navigation(model) {
  const buttons = Object.entries(VIEWS).map(([name, [title]]) =>
    h("button", { type: "button", onclick: () => model.open(name), id: `to-${name}` }, title),
  );
  document.getElementById("views").replaceChildren(...buttons);
  model.open = (name) => {
    leave?.();
    main.replaceChildren();
    for (const button of buttons) button.toggleAttribute("aria-current", false);
    document.getElementById(`to-${name}`).setAttribute("aria-current", "page");
    remember(name);
    leave = VIEWS[name][1]({ model, el: main });
  };
}

function runs(model) {
  document.getElementById("runs").replaceChildren(
    ...model.runs.map((each) => {
      const key = h("span", { className: "key" });
      key.style.background = each.colour;
      const box = h("input", {
        type: "checkbox",
        checked: each.shown,
        onchange: () => {
          each.shown = box.checked;
          model.tell("all");
        },
      });
      const about = each.about.error
        ? h("small", { className: "error" }, each.about.error)
        : h("small", {}, `${each.about.preset}, batch ${each.about.batch}, time ${each.about.time}`);
      return h("label", {}, box, key, each.name, about);
    }),
  );
}

async function begin() {
  theme();
  document.getElementById("skip").addEventListener("click", (event) => {
    event.preventDefault();
    main.focus();
  });
  try {
    const model = new Model((await json("/api/runs")).map((about, number) => new Run(number, about)));
    runs(model);
    navigation(model);
    await model.load();
    model.open(VIEWS[firstView] ? firstView : "run");
    if (sealed) live.textContent = "saved as one file";
    else
      model.follow((text, wrong = false) => {
        live.textContent = text;
        live.classList.toggle("error", wrong);
      });
    document.documentElement.dataset.ready = "yes";
  } catch (error) {
    main.replaceChildren(h("p", { className: "error", role: "alert" }, error.message));
    document.documentElement.dataset.ready = "failed";
  }
}

begin();
