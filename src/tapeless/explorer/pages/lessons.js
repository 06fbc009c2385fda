// Lessons are text: Markdown, with {names} for what the engine computed, ![name] for a picture, and fenced blocks for
// what is asked. A question whose answer is not known of this run is not asked.

import { h } from "./dom.js";
import { predict } from "./teach.js";

// `values`, `figures`, `answers`: by name, what stands in the text, what is drawn, and what is true.
export function lessonOf(text, { values = {}, figures = {}, answers = {}, question = null }) {
  const filled = (line) => line.replace(/\{(\w+)\}/g, (all, name) => (name in values ? String(values[name]) : all));
  const made = [];
  for (const block of blocksOf(text)) made.push(...[elementOf(block)].flat());
  return made.filter((each) => each !== null && each !== undefined);

  function elementOf({ kind, lines }) {
    if (kind.startsWith("predict ")) return asked(kind.slice(8), lines);
    if (kind.startsWith("question ")) return question?.(kind.slice(9), ...halves(lines));
    const [first] = lines;
    const figure = first.match(/^!\[(\w+)\]$/);
    if (figure) return figures[figure[1]];
    const heading = first.match(/^(#+) (.*)$/);
    if (heading) return heading[1].length === 1 ? null : h("h3", {}, filled(heading[2]));
    if (lines.every((line) => line.startsWith("    ")))
      return h("pre", { tabIndex: 0 }, lines.map((line) => filled(line.slice(4))).join("\n"));
    const items = itemsOf(lines);
    if (items)
      return h(items.numbered ? "ol" : "ul", {}, ...items.texts.map((each) => h("li", {}, inline(filled(each)))));
    return h("p", {}, inline(filled(lines.join(" "))));
  }

  function asked(id, lines) {
    const answer = answers[id];
    if (answer === undefined) return null;
    const [before, after] = halves(lines);
    const items = before.find(({ lines }) => itemsOf(lines));
    const list = items && itemsOf(items.lines);
    const figure = before.map(({ lines }) => lines[0].match(/^!\[(\w+)\]$/)?.[1]).find(Boolean);
    const choices = list?.texts.map(filled) ?? figures[figure] ?? null;
    const ask = filled(before[0].lines.join(" "));
    const how = typeof answer === "object" ? answer : { right: answer };
    return predict({
      ...how,
      id: how.id ?? id,
      ask,
      choices,
      keepOrder: !list || list.numbered,
      say: after.map(elementOf),
    });
  }
}

// A text cut into its blocks: what is fenced, and what stands between empty lines.
function blocksOf(text) {
  const found = [];
  let fence = null;
  let lines = [];
  const end = (kind = "") => {
    if (lines.length) found.push({ kind, lines });
    lines = [];
  };
  for (const line of text.split("\n")) {
    if (line.startsWith("```")) {
      end(fence ?? "");
      fence = fence === null ? line.slice(3).trim() : null;
    } else if (fence === null && !line.trim()) end();
    else lines.push(line);
  }
  end();
  return found;
}

// The blocks before and after the line that parts a question from its answer.
function halves(lines) {
  const cut = lines.indexOf("---");
  return [lines.slice(0, cut), lines.slice(cut + 1)].map((part) => blocksOf(part.join("\n")));
}

// The items of a list; a line that is indented goes on with the one before it.
function itemsOf(lines) {
  if (!/^(-|\d+\.) /.test(lines[0])) return null;
  const texts = [];
  for (const line of lines) {
    const item = line.match(/^(?:-|\d+\.) (.*)$/);
    if (item) texts.push(item[1]);
    else texts[texts.length - 1] += ` ${line.trim()}`;
  }
  return { texts, numbered: /^\d/.test(lines[0]) };
}

// `code` and **what is strong**.
export function inline(text) {
  return text.split(/(`[^`]+`|\*\*[^*]+\*\*)/).map((part) => {
    if (part.startsWith("`")) return h("code", {}, part.slice(1, -1));
    return part.startsWith("**") ? h("strong", {}, part.slice(2, -2)) : part;
  });
}
