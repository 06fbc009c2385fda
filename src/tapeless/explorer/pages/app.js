// The page: which runs, which view. Every view is render({ model, el }) and gives back how to take it away.

import { json, sealed } from "./api.js";
import { h, whole } from "./dom.js";
import { Model, Run } from "./model.js";
import { begin as entitled, entitle, here, link } from "./place.js";
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

// The view that the address names, and again when it names another.
function navigation(model) {
  const links = Object.entries(VIEWS).map(([name, [title]]) => h("a", { id: `to-${name}`, href: link(name) }, title));
  document.getElementById("views").replaceChildren(...links);
  entitled(Object.fromEntries(Object.entries(VIEWS).map(([name, [title]]) => [name, title])), (number) =>
    model.runs.length ? (model.runs[number] ?? model.runs[0]).name : "",
  );
  const open = () => {
    const { view, chosen } = here();
    const name = VIEWS[view] ? view : "run";
    if (name !== view) history.replaceState(null, "", link(name));
    leave?.();
    document.getElementById("tip")?.remove();
    main.replaceChildren();
    for (const each of links) {
      each.removeAttribute("aria-current");
      // Another view of the same run.
      each.href = link(each.id.slice(3), chosen.run === undefined ? {} : { run: chosen.run });
    }
    document.getElementById(`to-${name}`).setAttribute("aria-current", "page");
    entitle();
    leave = VIEWS[name][1]({ model, el: main });
  };
  addEventListener("hashchange", open);
  open();
}

function runs(model) {
  document.getElementById("runs").replaceChildren(
    ...model.runs.map((each) => {
      const key = h("span", { className: "key" });
      key.style.background = each.colour;
      const onchange = () => {
        each.shown = box.checked;
        model.tell("all");
      };
      const box = h("input", { type: "checkbox", checked: each.shown, onchange });
      const { error, preset, batch, time } = each.about;
      const about = error
        ? h("small", { className: "error" }, error)
        : h("small", {}, `${preset}, batch size ${whole(batch)}, sequence length ${whole(time)}`);
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
    await model.load();
    navigation(model);
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
