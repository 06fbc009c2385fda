// The residual stream as a highway: every branch that joins it, how large it is beside what drives there already, and
// whether it goes the same way or against it. Left is the input, right the loss; forward above, backward below.

import { css, SIGNS } from "./colour.js";
import { h, percent, short, table, tableBeside } from "./dom.js";
import { onResize, prepare, tooltip } from "./draw.js";

const LEFT = 78,
  RIGHT = 10,
  LINE = 15,
  TALLEST = 1.5;
const ONE_LINE = 84,
  WORTH = 36; // pixels of a branch: for its numbers beside each other, and to be labelled at all

// What joins the stream, in words beside the engine's name: `blocks.1.attn.proj` is the attention of block 1.
export function readable(name) {
  const block = name.match(/^blocks\.(\d+)\./)?.[1];
  const part = name.includes("attn") ? "attention" : name.includes("mlp") ? "feed-forward" : "the block's end";
  return block === undefined ? name : `block ${block}, ${part}`;
}

export function highway({ choose }) {
  let found = null,
    at = -1;
  const canvas = h("canvas", {
    id: "highway",
    className: "highway",
    tabIndex: 0,
    role: "img",
    ariaLabel: "the residual stream and its branches",
  });
  const told = h("p", { className: "readout", id: "highway-told", ariaLive: "polite" });
  const said = h("p", { className: "soft", id: "highway-said" }, "nothing recorded yet");
  const beside = tableBeside("as a table", () =>
    table(
      "Branches of the residual stream",
      ["call", "way", "branch", "size", "of the stream", "cosine"],
      found.map((each) => [
        String(each.call),
        each.direction,
        each.name,
        each.size,
        percent(each.highway ? each.size / each.highway : 0),
        each.cosine,
      ]),
    ),
  );
  const picture = h("div", { hidden: true }, canvas, told, beside);
  const el = h(
    "section",
    { className: "card", ariaLabel: "Residual highway" },
    h("h2", {}, "The residual highway: what joins it, and which way"),
    said,
    picture,
  );

  // Forward in the order of its calls; of the backward, which comes from the loss, the last stands leftmost.
  const lanes = () => [
    found.filter((each) => each.direction === "forward"),
    found.filter((each) => each.direction === "backward").reverse(),
  ];

  function show(branches) {
    picture.hidden = false;
    found = branches;
    at = Math.min(at, found.length - 1);
    const told =
      "A bar is a branch, as tall as it is large beside the stream it joins: orange reinforces what " +
      "is there, blue cancels it, pale goes across. At the step that is chosen above, as it was " +
      "recorded.";
    if (said.textContent !== told) said.textContent = told;
    beside.refresh();
    draw();
  }

  function draw() {
    if (!found || picture.hidden) return;
    const { context, width, height, ink } = prepare(canvas),
      high = height / 2,
      across = width - LEFT - RIGHT;
    const room = across / Math.max(1, ...lanes().map((lane) => lane.length)),
      below = 10 + (room > ONE_LINE ? 2 : 3) * LINE;
    lanes().forEach((lane, number) => {
      const road = number * high + high - below,
        unit = across / Math.max(1, lane.length),
        tall = high - below - 16;
      context.fillStyle = ink("soft");
      context.textBaseline = "middle";
      context.textAlign = "left";
      context.fillText(number ? "gradient ←" : "forward →", 0, road - tall / 2);
      context.fillStyle = ink("line");
      context.fillRect(LEFT, road, across, 6);
      lane.forEach((each, index) => {
        const share = each.highway ? each.size / each.highway : 0,
          size = Math.max(2, (tall * Math.min(share, TALLEST)) / TALLEST),
          x = LEFT + index * unit;
        context.fillStyle = tone(each.cosine, ink("line"));
        context.fillRect(x + unit * 0.2, road - size, unit * 0.6, size);
        if (found.indexOf(each) === at) {
          context.strokeStyle = ink("mark");
          context.lineWidth = 2;
          context.strokeRect(x + unit * 0.2 - 3, road - size - 3, unit * 0.6 + 6, size + 6);
        }
        context.fillStyle = ink("soft");
        context.textAlign = "center";
        const numbers = [percent(share), `cos ${short(Number(each.cosine.toFixed(2)))}`];
        const labels = [
          room > ONE_LINE ? readable(each.name) : each.name.replace("blocks.", ""),
          ...(room > ONE_LINE ? [numbers.join(", ")] : numbers),
        ];
        if (room > WORTH)
          labels.forEach((text, line) => context.fillText(text, x + unit / 2, road + 16 + LINE * line, unit - 4));
      });
    });
    const label = `${found.length} branches of the residual stream; arrow keys go through them`,
      each = found[at];
    if (canvas.getAttribute("aria-label") !== label) canvas.setAttribute("aria-label", label);
    const text = each ? describe(each) : "Click a branch: its call is shown below.";
    if (told.textContent !== text) told.textContent = text;
  }

  function describe(each) {
    const way =
      each.cosine > 0.1 ? "reinforces what is there" : each.cosine < -0.1 ? "cancels part of it" : "goes across";
    const share = percent(each.highway ? each.size / each.highway : 0);
    return (
      `${each.direction}: ${readable(each.name)} (${each.name}) joins at call ${each.call}, ${share} as large as the ` +
      `stream, cosine ${short(each.cosine)}: it ${way}`
    );
  }

  function under(x, y, box) {
    const lane = lanes()[y < box.height / 2 ? 0 : 1];
    const index = Math.floor(((x - LEFT) / (box.width - LEFT - RIGHT)) * lane.length);
    return x < LEFT ? undefined : lane[Math.min(lane.length - 1, index)];
  }
  tooltip(canvas, (x, y, box) => {
    const each = found && under(x, y, box);
    return each ? describe(each) : "";
  });

  canvas.addEventListener("click", (event) => {
    if (!found) return;
    const box = canvas.getBoundingClientRect();
    const each = under(event.clientX - box.left, event.clientY - box.top, box);
    if (each) {
      at = found.indexOf(each);
      draw();
      choose(each.call);
    }
  });
  canvas.addEventListener("keydown", (event) => {
    const by = { ArrowLeft: -1, ArrowRight: 1 }[event.key];
    if (!by || !found?.length) return;
    event.preventDefault();
    at = Math.min(found.length - 1, Math.max(0, at + by));
    draw();
    choose(found[at].call);
  });
  const leave = onResize(canvas, draw);
  return {
    el,
    show,
    draw,
    leave,
    wait: () => {
      picture.hidden = true;
      said.textContent = "nothing recorded yet";
    },
  };
}

// The nearer to going across, the paler.
function tone(cosine, pale) {
  const share = Math.min(1, 0.25 + Math.abs(cosine) * 1.5);
  return Math.abs(cosine) < 0.03 ? pale : css(SIGNS[cosine > 0 ? 1 : 0]).replace(")", ` / ${share.toFixed(2)})`);
}
