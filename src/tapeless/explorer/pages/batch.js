// The examples of a step, the costliest first, each token as strong as the gradient that reached it.

import { json } from "./api.js";
import { css, scale } from "./colour.js";
import { h, short, whole } from "./dom.js";

const SHOWN = 12;

export async function batchOf(run, step) {
  const found = await json(run.path(`batch?step=${step}`));
  if (found.error) throw new Error(found.error);
  const most = Math.max(...found.rows.flatMap((row) => row.sizes)),
    blamed = found.rows[0],
    strongest = blamed.sizes.indexOf(Math.max(...blamed.sizes)),
    text = found.kind === "text";
  const token = (word, size, index) => {
    const share = Math.sqrt(size / most),
      colour = scale(share),
      made = h("span", { className: "token", title: `position ${index + 1}: ${short(size)}` }, word);
    made.style.background = css(colour);
    made.style.color = share > 0.55 ? "#14181b" : "#ffffff";
    return made;
  };
  const { words, said, answer } = blamed;
  const least =
    said === null
      ? ""
      : ` What it expected least stands after position ${whole(blamed.place + 1)}: “${answer}”; it said “${said}”.`;
  const reached = `most of its gradient reached “${words[strongest]}”, position`;
  const costliest = text
    ? `Step ${whole(step)} learned from ${whole(found.count)} rows of ${whole(found.time)} tokens. The costliest was ` +
      `row ${blamed.row + 1}; ${reached} ${whole(blamed.first + strongest + 1)}.${least}`
    : `Step ${whole(step)} learned from ${found.rows.length} examples. The costliest was ${words.join("")}, answered ` +
      `${said} for ${answer}; ${reached} ${strongest + 1}.`;
  const caption = text
    ? `The ${Math.min(SHOWN, found.rows.length)} costliest rows, around the token that got the most; a ` +
      `token is as bright as the gradient that reached ${found.where}`
    : `The ${Math.min(SHOWN, found.rows.length)} costliest examples; a token is as bright as the ` +
      "gradient that reached its embedding";
  const headings = text
    ? ["row", "loss", "tokens", "it said", "there stands"]
    : ["loss", "example", "answered", "right"];
  return h(
    "div",
    { className: "batch" },
    h("p", {}, costliest),
    h(
      "p",
      { className: "soft" },
      "The batch is the step's own. Losses and gradients are computed with the weights after " +
        `${whole(found.weights_of)} updates, the last that were kept before it.`,
    ),
    h(
      "div",
      { className: "scroll", tabIndex: 0, role: "group", ariaLabel: "examples of the step" },
      h(
        "table",
        {},
        h("caption", {}, caption),
        h(
          "thead",
          {},
          h(
            "tr",
            {},
            headings.map((each) => h("th", { scope: "col" }, each)),
          ),
        ),
        h(
          "tbody",
          {},
          found.rows.slice(0, SHOWN).map((row) =>
            h(
              "tr",
              {},
              text && h("td", { className: "n" }, whole(row.row + 1)),
              h("td", { className: "n" }, short(row.loss)),
              h(
                "td",
                {},
                row.words.map((word, index) => token(word, row.sizes[index], (row.first ?? 0) + index)),
              ),
              h("td", { className: row.said === row.answer ? "fine" : "bad" }, row.said ?? "–"),
              h("td", {}, row.answer ?? "–"),
            ),
          ),
        ),
      ),
    ),
  );
}
