// Where one is: the view and what is chosen in it. The address is the one place where that is kept, so that a link,
// Back and a reload lead there.

import { lead } from "./api.js";

// The view that the address names, and what is chosen in it, each by its name.
export function here() {
  const [view = "", query = ""] = location.hash.slice(1 + lead.length).split("/");
  return { view, chosen: Object.fromEntries(new URLSearchParams(query)) };
}

// The address of a view with what is chosen in it; what is null is left out.
export function link(view, chosen = {}) {
  const said = Object.entries(chosen).filter(([, value]) => value !== null && value !== undefined && value !== "");
  const query = new URLSearchParams(said.map(([name, value]) => [name, String(value)]));
  return `#${lead}${view}${said.length ? `/${query}` : ""}`;
}

export const go = (view, chosen = {}) => {
  location.hash = link(view, chosen);
};

let waiting = null; // what the address is to say in a moment
let soon = 0;
const WAIT = 150; // milliseconds: a slider that is dragged changes the address once

// What is chosen now: the address follows, without a step for Back.
export function keep(chosen) {
  waiting = { view: here().view, chosen: { ...waiting?.chosen, ...chosen } };
  clearTimeout(soon);
  soon = setTimeout(settle, WAIT);
}

function settle() {
  const { view, chosen } = here();
  if (waiting?.view === view) {
    const address = link(view, { ...chosen, ...waiting.chosen });
    if (address !== location.hash) history.replaceState(null, "", address);
    entitle();
  }
  waiting = null;
}
addEventListener("hashchange", () => {
  waiting = null; // it was of another view
});

let titles = {};
/** @type {(run: number) => string} */
let named = () => "";
// `views`: the title of each; `name`: of a run by its number.
export function begin(views, name) {
  [titles, named] = [views, name];
}

export function entitle() {
  const { view, chosen } = here();
  const parts = [
    chosen.chapter ?? titles[view],
    chosen.step && `step ${chosen.step}`,
    chosen.call && `call ${chosen.call}`,
  ];
  document.title = [...parts, named(Number(chosen.run ?? 0)), "Tapeless"].filter(Boolean).join(" · ");
}
