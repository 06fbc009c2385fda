// What every head looks at, for one example, and where the loss wants it to look instead; over training, step by step.

import { json, numbers } from "./api.js";
import { scale, sided } from "./colour.js";
import { h, percent, short, table, tableBeside, whole } from "./dom.js";
import { onResize, prepare, tooltip } from "./draw.js";
import { here, keep } from "./place.js";

const ORDINALS = { 2: "second", 3: "third" };
const LABEL = 92,
  GAP = 10,
  TITLE = 18,
  PLAY = 700; // milliseconds a step is shown while it plays

export function render({ model, el }) {
  let listed = null,
    at = 0,
    maps = null,
    head = { block: 0, head: 0 },
    cell = { query: 0, key: 0 },
    asked = 0,
    playing = 0,
    chosen = false;
  const kept = new Map();
  let given = here().chosen; // what the address asks for, until it is shown
  const run = () => model.runs[Number(runs.value)];
  const runs = h(
    "select",
    { id: "attention-run", onchange: () => open() },
    model.runs.map((each, index) => h("option", { value: index, selected: index === Number(given.run) }, each.name)),
  );
  const example = h("select", {
    id: "attention-example",
    onchange: () => {
      text.value = "";
      again();
    },
  });
  const text = h("input", {
    type: "text",
    id: "attention-text",
    maxLength: 400,
    placeholder: "or write one",
    ariaLabel: "an example of your own",
    onchange: () => again(),
  });
  const slider = h("input", {
    type: "range",
    min: 0,
    step: 1,
    id: "attention-step",
    ariaLabel: "step",
    oninput: () => {
      stop();
      at = Number(slider.value);
      look();
    },
  });
  const where = h("output", { id: "attention-at" });
  const play = h(
    "button",
    { type: "button", id: "attention-play", onclick: () => (playing ? stop() : start()) },
    "▶ watch it learn",
  );
  const said = h("p", { id: "attention-said", role: "status" });
  const answer = h("p", { className: "headline", id: "attention-answer", ariaLive: "polite" });
  const all = h("canvas", { id: "attention-all", tabIndex: 0, role: "img", ariaLabel: "all heads" });
  const weights = h("canvas", { id: "attention-weights", tabIndex: 0, role: "img", ariaLabel: "weights" });
  const pulls = h("canvas", { id: "attention-pulls", tabIndex: 0, role: "img", ariaLabel: "gradients" });
  const title = h("h2", { id: "attention-head" });
  const told = h("p", { className: "readout", id: "attention-cell", ariaLive: "polite" });
  const axes = h("p", { className: "soft", id: "attention-axes" });
  const beside = tableBeside("this head as a table", asTable);
  const result = h(
    "div",
    { id: "attention-result", className: "attention", hidden: true },
    h(
      "section",
      { className: "card", ariaLabel: "All heads" },
      h("h2", {}, "Every head"),
      h(
        "p",
        { className: "soft" },
        "A line per block, a pair per head: left what it looks at, right what the loss asks for. " +
          "Click one, or go with the arrow keys.",
      ),
      all,
    ),
    h(
      "section",
      { className: "card", ariaLabel: "One head" },
      title,
      h(
        "div",
        { className: "maps" },
        h(
          "figure",
          {},
          h("figcaption", {}, "looks at", h("span", { className: "soft" }, " (dark 0, bright 1)")),
          weights,
        ),
        h(
          "figure",
          {},
          h("figcaption", {}, "the loss asks for", h("span", { className: "soft" }, " (orange more, blue less)")),
          pulls,
        ),
      ),
      axes,
      told,
      beside,
    ),
  );
  el.append(
    h(
      "section",
      { className: "card", ariaLabel: "Example" },
      h("h2", {}, "What does it look at, and where should it look?"),
      h(
        "p",
        { className: "soft" },
        "Down the side the token that looks, across the tokens it can look at. Beside every map is the " +
          "gradient of the same scores, with its sign turned: where training pulls.",
      ),
      h(
        "div",
        { className: "controls" },
        h("label", {}, "run", runs),
        h("label", {}, "validation example", example),
        text,
        play,
      ),
      h("div", { className: "slider" }, h("label", { htmlFor: "attention-step" }, "after update"), slider, where),
      said,
      answer,
    ),
    result,
  );

  const fail = (error) => {
    said.textContent = error.message;
    said.className = "error";
    result.hidden = true;
    answer.textContent = "";
    stop();
  };

  async function open() {
    const mine = (asked += 1);
    said.textContent = "reading …";
    said.className = "soft";
    try {
      const found = await json(run().path("examples"));
      if (mine !== asked) return;
      if (found.error) throw new Error(found.error);
      if (!found.steps.length) throw new Error("this run keeps no weights yet: the first checkpoint is not made.");
      listed = found;
      example.replaceChildren(
        ...found.examples.map((words, index) => h("option", { value: index }, words.join("").slice(0, 40))),
      );
      slider.max = found.steps.length - 1;
      const wanted = found.steps.indexOf(Number(given.step ?? NaN));
      at = wanted < 0 ? found.steps.length - 1 : wanted;
      if (Number(given.example) < found.examples.length) example.value = given.example;
      text.value = given.text ?? "";
      again();
    } catch (error) {
      if (mine === asked) fail(error);
    }
  }

  function again() {
    kept.clear();
    chosen = false;
    look();
  }

  function fetched(index) {
    if (!kept.has(index)) {
      const query = new URLSearchParams({ step: listed.steps[index], example: example.value || 0, text: text.value });
      const made = numbers(run().path(`attention?${query}`), Float32Array).then(([found, values]) =>
        split(found, values),
      );
      kept.set(index, made);
      made.catch(() => kept.delete(index));
    }
    return kept.get(index);
  }

  async function look() {
    if (!listed) return;
    const mine = (asked += 1);
    slider.value = at;
    try {
      const found = await fetched(at);
      if (mine !== asked) return;
      maps = found;
      const all = whole(maps.words.length);
      said.textContent = maps.cut
        ? `Only its first ${all} tokens are looked at: ${whole(maps.cut)} more are left out.`
        : "";
      result.hidden = false;
      if (!chosen) pick();
      const [block, number] = [Number(given.block), Number(given.head)];
      if (number < maps.blocks[block]?.heads) head = { block, head: number };
      given = {};
      show();
    } catch (error) {
      if (mine === asked) fail(error);
    }
  }

  // The head that the loss pulls at the most, and its query that is pulled the most.
  function pick() {
    let most = -1;
    maps.blocks.forEach((block, number) =>
      block.gradients.forEach((value, index) => {
        if (Math.abs(value) > most) {
          most = Math.abs(value);
          const square = block.queries * block.keys,
            inside = index % square;
          [head, cell] = [
            { block: number, head: Math.floor(index / square) },
            { query: Math.floor(inside / block.keys), key: inside % block.keys },
          ];
        }
      }),
    );
    chosen = true;
  }

  async function start() {
    play.textContent = "■ stop";
    const mine = (playing = performance.now());
    if (at >= listed.steps.length - 1) at = -1;
    while (playing === mine && at < listed.steps.length - 1) {
      at += 1;
      await look();
      await new Promise((done) => setTimeout(done, PLAY));
    }
    if (playing === mine) stop();
  }

  function stop() {
    playing = 0;
    play.textContent = "▶ watch it learn";
  }

  function show() {
    where.textContent = `${whole(maps.step)}, this example’s loss ${short(maps.loss)}`;
    const [[word, share]] = maps.answers,
      right = word === maps.target;
    answer.replaceChildren(
      h("q", {}, maps.words.join(""), maps.cut ? "…" : ""),
      ...(maps.target === null
        ? [` → “${word}” with ${percent(share)}`]
        : [
            " → ",
            h("strong", { className: right ? "fine" : "bad" }, `${word} ${right ? "✓" : "✗"}`),
            ` with ${percent(share)}${right ? "" : `; right is ${maps.target}`}`,
          ]),
    );
    draw();
  }

  function draw() {
    if (!maps || result.hidden) return;
    const { step } = maps;
    keep({ run: runs.value, step, example: example.value, text: text.value, ...head });
    drawAll();
    const block = maps.blocks[head.block],
      size = block.queries * block.keys,
      start = head.head * size;
    title.textContent = `${block.name}, head ${head.head}`;
    cell = { query: Math.min(cell.query, block.queries - 1), key: Math.min(cell.key, block.keys - 1) };
    drawMap(weights, block, block.weights.subarray(start, start + size), (value) => scale(value), "what it looks at");
    const every = labelled(weights.getBoundingClientRect().width, block);
    axes.textContent =
      every > 1
        ? `For want of room only every ${ORDINALS[every] ?? `${every}th`} word is written beside the ` +
          "maps; all are drawn."
        : "";
    const most = largest(block.gradients);
    drawMap(
      pulls,
      block,
      block.gradients.subarray(start, start + size),
      (value) => sided(-value / most),
      "what the loss asks for",
    );
    const index = start + cell.query * block.keys + cell.key,
      gradient = block.gradients[index];
    told.replaceChildren(
      "“",
      h("b", {}, queryWord(block, cell.query)),
      "” looks at “",
      h("b", {}, maps.words[cell.key]),
      `” with ${percent(block.weights[index])}; the gradient of that score is ${short(gradient)}: ` +
        `the loss asks for ${gradient === 0 ? "no change" : gradient < 0 ? "more" : "less"}`,
    );
    beside.refresh();
  }

  // Where only the last position goes on, the one query is the last word.
  const queryWord = (block, query) => maps.words[maps.words.length - block.queries + query];

  function tiles(width) {
    const heads = Math.max(...maps.blocks.map((block) => block.heads)),
      wide = Math.min(230, (width - 60) / heads - GAP),
      side = Math.max(8, (wide - 3) / 2);
    return { heads, wide: 2 * side + 3, side };
  }

  function drawAll() {
    const { side } = tiles(all.getBoundingClientRect().width);
    all.style.height = `${maps.blocks.length * (side + GAP) + TITLE}px`;
    const { context, width, ink } = prepare(all),
      { heads, wide } = tiles(width);
    context.textBaseline = "top";
    context.fillStyle = ink("soft");
    for (let each = 0; each < heads && wide > 26; each += 1)
      context.fillText(`head ${each}`, 60 + each * (wide + GAP), 0, wide);
    maps.blocks.forEach((block, number) => {
      const y = TITLE + number * (side + GAP),
        most = largest(block.gradients),
        size = block.queries * block.keys;
      context.fillStyle = ink("soft");
      context.fillText(block.name.replace("blocks.", "block "), 0, y + side / 2 - 6, 56);
      for (let each = 0; each < block.heads; each += 1) {
        const x = 60 + each * (wide + GAP),
          part = (values) => values.subarray(each * size, (each + 1) * size);
        paint(context, part(block.weights), block, (value) => scale(value), x, y, side, side);
        paint(context, part(block.gradients), block, (value) => sided(-value / most), x + side + 3, y, side, side);
        if (number === head.block && each === head.head) {
          context.strokeStyle = ink("mark");
          context.lineWidth = 2;
          context.strokeRect(x - 3, y - 3, wide + 6, side + 6);
        }
      }
    });
    all.setAttribute(
      "aria-label",
      `${maps.blocks.length} blocks of up to ${heads} heads; block ${head.block}, head ${head.head} ` +
        "is chosen; arrow keys choose another",
    );
  }

  function paint(context, values, block, colour, x, y, wide, high) {
    const image = new ImageData(block.keys, block.queries);
    values.forEach((value, index) => image.data.set([...colour(value), 255], 4 * index));
    const small = new OffscreenCanvas(block.keys, block.queries);
    small.getContext("2d").putImageData(image, 0, 0);
    context.imageSmoothingEnabled = false;
    context.drawImage(small, x, y, wide, high);
  }

  function drawMap(canvas, block, values, colour, what) {
    const { width } = canvas.getBoundingClientRect(),
      unit = unitOf(width, block),
      every = labelled(width, block);
    const top = topOf(maps.words);
    canvas.style.height = `${top + Math.max(unit * block.queries, 24)}px`;
    const { context, ink } = prepare(canvas),
      high = Math.max(unit * block.queries, 24) / block.queries;
    paint(context, values, block, colour, LABEL, top, unit * block.keys, high * block.queries);
    context.textBaseline = "middle";
    for (let key = 0; key < block.keys; key += 1) {
      if (!written(key, cell.key, every)) continue;
      context.save();
      context.translate(LABEL + (key + 0.5) * unit, top - 6);
      context.rotate(-Math.PI / 3);
      context.textAlign = "left";
      context.fillStyle = key === cell.key ? ink("accent") : ink("soft");
      context.fillText(maps.words[key].slice(0, 12), 0, 0);
      context.restore();
    }
    context.textAlign = "right";
    for (let query = 0; query < block.queries; query += 1) {
      if (!written(query, cell.query, every)) continue;
      context.fillStyle = query === cell.query ? ink("accent") : ink("soft");
      context.fillText(queryWord(block, query).slice(0, 12), LABEL - 6, top + (query + 0.5) * high, LABEL - 10);
    }
    context.strokeStyle = ink("mark");
    context.lineWidth = 2;
    context.strokeRect(LABEL + cell.key * unit + 1, top + cell.query * high + 1, unit - 2, high - 2);
    canvas.dataset.unit = unit;
    canvas.dataset.high = high;
    canvas.setAttribute(
      "aria-label",
      `${block.name}, head ${head.head}, ${what}: ${block.queries} words that look, ${block.keys} to ` +
        "look at; arrow keys choose a pair",
    );
  }

  function asTable() {
    const block = maps.blocks[head.block],
      size = block.queries * block.keys,
      rows = [];
    for (let query = 0; query < block.queries; query += 1) {
      const order = Array.from({ length: block.keys }, (_, key) => key).sort(
        (a, b) =>
          block.weights[head.head * size + query * block.keys + b] -
          block.weights[head.head * size + query * block.keys + a],
      );
      for (const key of order.slice(0, 3)) {
        const index = head.head * size + query * block.keys + key;
        if (block.weights[index] > 0)
          rows.push([queryWord(block, query), maps.words[key], percent(block.weights[index]), block.gradients[index]]);
      }
    }
    return table(
      `${block.name}, head ${head.head}: the three that each token looks at the most`,
      ["token", "looks at", "weight", "gradient of the score"],
      rows,
    );
  }

  const ARROWS = { ArrowLeft: [0, -1], ArrowRight: [0, 1], ArrowUp: [-1, 0], ArrowDown: [1, 0] };
  const within = (value, count) => Math.min(count - 1, Math.max(0, value));
  const headAt = (x, y, box) => {
    const { wide, side } = tiles(box.width);
    const block = within(Math.floor((y - TITLE) / (side + GAP)), maps.blocks.length);
    return { block, head: within(Math.floor((x - 60) / (wide + GAP)), maps.blocks[block].heads) };
  };
  const cellAt = (canvas, x, y) => {
    const block = maps.blocks[head.block];
    const query = within(Math.floor((y - topOf(maps.words)) / canvas.dataset.high), block.queries);
    return { query, key: within(Math.floor((x - LABEL) / canvas.dataset.unit), block.keys) };
  };
  const pairOf = ({ query, key }) => {
    const block = maps.blocks[head.block];
    const at = head.head * block.queries * block.keys + query * block.keys + key;
    const [weight, gradient] = [percent(block.weights[at]), short(block.gradients[at])];
    return `“${queryWord(block, query)}” → “${maps.words[key]}”: weight ${weight}, gradient of the score ${gradient}`;
  };
  tooltip(all, (x, y, box) => {
    const at = maps && headAt(x, y, box);
    return at ? `${maps.blocks[at.block].name}, head ${at.head}` : "";
  });
  all.addEventListener("click", (event) => {
    if (!maps) return;
    const box = all.getBoundingClientRect();
    head = headAt(event.clientX - box.left, event.clientY - box.top, box);
    draw();
  });
  all.addEventListener("keydown", (event) => {
    const [down, across] = ARROWS[event.key] ?? [];
    if (down === undefined || !maps) return;
    event.preventDefault();
    const block = within(head.block + down, maps.blocks.length);
    head = { block, head: within(head.head + across, maps.blocks[block].heads) };
    draw();
  });
  for (const canvas of [weights, pulls]) {
    tooltip(canvas, (x, y) => (maps ? pairOf(cellAt(canvas, x, y)) : ""));
    canvas.addEventListener("click", (event) => {
      if (!maps) return;
      const box = canvas.getBoundingClientRect();
      cell = cellAt(canvas, event.clientX - box.left, event.clientY - box.top);
      draw();
    });
    canvas.addEventListener("keydown", (event) => {
      const [down, across] = ARROWS[event.key] ?? [];
      if (down === undefined || !maps) return;
      event.preventDefault();
      const block = maps.blocks[head.block];
      cell = { query: within(cell.query + down, block.queries), key: within(cell.key + across, block.keys) };
      draw();
    });
  }
  const leave = onResize(result, draw);
  addEventListener("theme", draw);
  if (model.runs.length) open();
  return () => {
    asked += 1;
    stop();
    leave();
    removeEventListener("theme", draw);
  };
}

// How wide a word of a map is, and which of them have room to be written: every first, every second, …
const unitOf = (width, block) => Math.min(46, (width - LABEL) / block.keys);
const labelled = (width, block) => Math.max(1, Math.ceil(12 / unitOf(width, block)));
const written = (at, chosen, every) => at === chosen || (at % every === 0 && Math.abs(at - chosen) >= every);
// Room for the longest word above a map, written at a slant.
const topOf = (words) => 16 + 6 * Math.min(12, Math.max(...words.map((word) => word.length)));
const largest = (values) => values.reduce((most, value) => Math.max(most, Math.abs(value)), 0) || 1;

// Block by block the weights of all heads, then their gradients.
function split(found, values) {
  let from = 0;
  const blocks = found.blocks.map((block) => {
    const size = block.heads * block.queries * block.keys,
      weights = values.subarray(from, from + size),
      gradients = values.subarray(from + size, from + 2 * size);
    from += 2 * size;
    return { ...block, weights, gradients };
  });
  return { ...found, blocks };
}
