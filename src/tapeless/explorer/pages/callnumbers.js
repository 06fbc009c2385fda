// A call with its real numbers: each formula with corners of the arrays in the place of their names, and a histogram of
// what came out.

import { h, percent, short, whole } from "./dom.js";
import { prepare } from "./draw.js";

const MATH = "http://www.w3.org/1998/Math/MathML",
  ROWS = 2,
  COLUMNS = 3;
const HAT = "̂";

function m(tag, ...children) {
  const made = document.createElementNS(MATH, tag);
  made.append(...children);
  return made;
}

function matrix(each) {
  const rows = each.corner.slice(0, ROWS),
    more = each.columns > COLUMNS,
    below = each.rows > ROWS;
  const cells = (row) => row.slice(0, COLUMNS).map((value) => m("mtd", m("mn", short(value).replace("-", "−"))));
  const dots = (text) => m("mtd", m("mo", text));
  const lines = rows.map((row, index) => m("mtr", ...cells(row), ...(more ? [dots(index === 0 ? "⋯" : "")] : [])));
  if (below) lines.push(m("mtr", dots("⋮")));
  return m("mrow", m("mo", "["), m("mtable", ...lines), m("mo", "]"));
}

// The formula cut at the names of the call's own arguments; a letter that carries a hat is a value of its own.
export function withNumbers(result, formula, given) {
  const names = [...given.keys()].sort((a, b) => b.length - a.length),
    parts = [];
  let rest = formula;
  while (rest) {
    const name = names.find(
      (each) => rest.startsWith(each) && !/^[A-Za-z0-9_]/.test(rest.slice(each.length)) && rest[each.length] !== HAT,
    );
    const before = parts.at(-1);
    if (name && !(typeof before === "string" && /[A-Za-z0-9_.]$/.test(before))) {
      parts.push(given.get(name));
      rest = rest.slice(name.length);
      continue;
    }
    if (typeof before === "string") parts[parts.length - 1] += rest[0];
    else parts.push(rest[0]);
    rest = rest.slice(1);
  }
  return m(
    "math",
    m(
      "mrow",
      matrix(result),
      m("mo", result.mode === "add" ? "⟵+" : "="),
      ...parts.map((part) => (typeof part === "string" ? m("mtext", part) : matrix(part))),
    ),
  );
}

export function callNumbers(answer, call) {
  const given = new Map(answer.arguments.filter((each) => each.mode === "read").map((each) => [each.name, each]));
  return answer.arguments
    .filter((each) => each.mode !== "read")
    .map((each) => {
      const described = call.results.find((result) => result.argument === each.name);
      const box = h(
        "div",
        { className: "numbers" },
        h("h3", {}, `${each.name}, ${each.shape.join("×")}`),
        h(
          "div",
          { className: "scroll", tabIndex: 0, role: "group", ariaLabel: `${each.name} with numbers` },
          described ? withNumbers(each, described.formula, given) : m("math", matrix(each)),
        ),
      );
      if (each.spread) box.append(...histogram(each));
      return box;
    });
}

function histogram({ name, spread, shape }) {
  const count = shape.reduce((product, size) => product * size, 1),
    canvas = h("canvas", {
      className: "histogram",
      role: "img",
      ariaLabel: `histogram of ${name}: ${whole(count)} values, at most ${short(spread.most)}`,
    });
  const draw = () => {
    const { context, width, height, ink } = prepare(canvas),
      most = Math.log1p(Math.max(...spread.counts)),
      unit = width / spread.counts.length;
    context.fillStyle = ink("accent");
    spread.counts.forEach((each, index) => {
      const high = most ? ((height - 2) * Math.log1p(each)) / most : 0;
      context.fillRect(index * unit, height - high, Math.max(1, unit - 1), high);
    });
  };
  requestAnimationFrame(draw);
  const told =
    `from −${short(spread.most)} to ${short(spread.most)}, counts on a log scale; ` +
    `${percent(spread.zeros / Math.max(1, count))} are ` +
    `zero${spread.wrong ? `, ${whole(spread.wrong)} are not finite` : ""}`;
  return [
    canvas,
    h("p", { className: "soft" }, told),
    h("details", {}, h("summary", {}, "as a table"), h("p", { className: "readout" }, spread.counts.join(" "))),
  ];
}
