// The first ten seconds: a run told again from its own weights and records. It is asked something and answers wrongly,
// the loss sends its gradient back through every call, the updates go by, and the answer becomes right.

import { json, sealed } from "./api.js";
import { css, logShare, scale } from "./colour.js";
import { h, percent, short, table, tableBeside, whole } from "./dom.js";
import { onResize, prepare, tooltip } from "./draw.js";
import { shownResults, together } from "./record.js";

const ASK = 1300; // milliseconds: the question, the backward pass, each moment after it
const CLIMB = 2900;
const MOMENT = 260;
const MOST_CALLS = 60;
const STILLS = 22;
const STRIP = 30; // pixels: of the one query that answers, above and below the tower
const HEAD = 20;
const FOOT = 18;
const LETTER = 8; // of a token that is written below a map; smaller ones are written beside it
const still = matchMedia("(prefers-reduced-motion: reduce)");
const mixed = (a, b, share) => a + (b - a) * share;

export function replay({ model, heat }) {
  const bars = h("canvas", { className: "replay-bars", role: "img" }),
    tower = h("canvas", { className: "replay-tower", role: "img" });
  const maps = h("canvas", { className: "replay-maps", role: "img" });
  const said = h("p", { className: "replay-said", id: "replay-said" }),
    happens = h("p", { className: "replay-happens", role: "status" });
  const play = h("button", { type: "button", id: "replay-play", onclick: () => start() }, "▶ Play again");
  const skip = h("button", { type: "button", id: "replay-skip", onclick: () => end() }, "Skip");
  const slider = h("input", {
    type: "range",
    min: 0,
    step: 1,
    id: "replay-at",
    ariaLabel: "moment of the training",
    oninput: () => {
      stop();
      show(Number(slider.value));
    },
  });
  const at = h("output", { id: "replay-step" });
  // Of several lines, as a text has them: Enter asks, Shift+Enter begins another line.
  const ask = h("textarea", {
    id: "replay-ask",
    rows: 1,
    cols: 12,
    title: "Enter asks, Shift+Enter begins another line",
    spellcheck: false,
    autocomplete: "off",
    onkeydown: (event) => {
      if (event.key === "Enter" && !event.shiftKey) {
        event.preventDefault();
        form.requestSubmit();
      }
    },
  });
  const asks = h("span");
  const form = h(
    "form",
    {
      className: "controls",
      onsubmit: (event) => {
        event.preventDefault();
        stop();
        const asked = ask.value === offered ? question : ask.value; // untouched, it is the same question
        gather(asked).then(() => (still.matches ? end() : start()));
      },
    },
    h("label", {}, asks, ask),
    h("button", { type: "submit" }, "Ask"),
  );
  const wrong = h("p", { className: "error", role: "alert" }),
    cut = h("p", { className: "soft", id: "replay-cut" });
  const left = h("div", {}, said, happens, bars, form, cut, wrong);
  const looked = h("p", { className: "soft replay-looked" });
  const right = h("div", {}, h("h3", {}, "What its heads look at"), maps, looked);
  const beside = tableBeside("as tables", asTables);
  const why = h("p", { className: "soft", id: "replay-why", role: "status" });
  const stage = h("div"); // folded where it is not the first thing to see
  const el = h(
    "section",
    { className: "card replay", ariaLabel: "Your run, replayed" },
    h(
      "div",
      { className: "replay-head" },
      h("h2", {}, "Your run, replayed"),
      h("div", { className: "controls" }, play, skip),
    ),
    stage,
  );
  stage.append(
    why,
    h(
      "div",
      { className: "replay-stage" },
      left,
      h("div", {}, h("h3", {}, "The backward pass, call by call"), tower),
      right,
    ),
    h("div", { className: "slider" }, h("label", { htmlFor: "replay-at" }, "update"), slider, at),
    beside,
  );
  let run = null,
    story = null,
    moments = [],
    rows = [],
    calls = [],
    range = [1, 1],
    now = null,
    frame = 0,
    begun = 0,
    known = "";
  let question = "",
    offered = ""; // what was asked, "" for what the run is asked by itself; and how the field shows it

  async function gather(asked = "") {
    const found = await json(run.path(`story${asked ? `?ask=${encodeURIComponent(asked)}` : ""}`)).catch((error) => ({
      error: error.message,
    }));
    wrong.textContent = story && found.error ? found.error : "";
    if (story && found.error) return; // what was asked before stays
    story = found.error || (found.lost && found.moments.length < 3) ? null : found; // of two moments there is no story
    why.textContent =
      found.error ?? (found.lost ? `Damaged snapshots cannot be read, and are left out: ${whole(found.lost)}.` : "");
    const flow = await run.heat("flow", 1024),
      steps = [...flow.steps];
    moments = story ? story.moments : stills(steps).map((step) => ({ step }));
    const nearest = moments.map(({ step }) =>
      steps.reduce((best, each, index) => (Math.abs(each - step) < Math.abs(steps[best] - step) ? index : best), 0),
    );
    rows = await Promise.all(nearest.map((index) => run.row(flow.rows[index])));
    calls = backwardCalls(run.record);
    range = extent(rows, calls);
    left.hidden = right.hidden = !story;
    form.hidden = !story || sealed;
    el.classList.toggle("no-story", !story);
    slider.max = moments.length - 1;
    question = asked;
    ask.value = asked || (story?.question ?? "");
    offered = ask.value;
    cut.textContent = story?.cut
      ? `The last ${whole(story.shown.length)} tokens alone are read: the ${whole(story.cut)} before them are left out.`
      : "";
    asks.textContent = story?.kind === "text" ? "let it go on from" : "ask another";
    [ask.cols, ask.rows] = story?.kind === "text" ? [26, 2] : [12, 1];
    known = [...new Set(calls.map(({ section }) => section))].join(", ");
  }

  // Where one run is shown that has ended, its story is told at once; else when somebody asks for it.
  async function begin() {
    const [only, second] = model.shown;
    if (!only?.record?.rows || only === run) return;
    run = only;
    moments = [];
    story = null;
    el.classList.remove("waiting");
    stage.hidden = Boolean(second || run.about.trains);
    play.textContent = stage.hidden ? `▶ Play ${run.name} again` : "▶ Play again";
    if (stage.hidden) {
      skip.hidden = true;
      heat.el.before(el);
      return;
    }
    if (run.record.rows > 2) {
      // it has its place before it can be told, so that nothing moves under somebody's hand
      now = null;
      skip.hidden = true;
      happens.textContent = "computing what it answered while it learned …";
      el.classList.add("waiting");
      heat.el.before(el);
    }
    const enough = await gather().then(
      () => moments.length > 2,
      () => false,
    );
    if (run !== only || !heat.el.isConnected) return;
    el.classList.remove("waiting");
    if (!enough) {
      run = null;
      el.remove();
      return;
    } // it is young: when more is there it is tried again
    if (!el.isConnected) heat.el.before(el);
    if (still.matches || model.replayed) return end();
    model.replayed = true;
    start();
  }

  async function start() {
    stop();
    if (!moments.length)
      await gather().catch((error) => {
        wrong.textContent = error.message;
      });
    if (!moments.length) return;
    stage.hidden = false;
    begun = performance.now();
    skip.hidden = false;
    play.hidden = true;
    const stepwise = still.matches;
    const tick = () => {
      const spent = performance.now() - begun,
        later = spent - ASK - CLIMB,
        place = later / MOMENT;
      if (place >= moments.length - 1) return end();
      if (later < 0) draw(0, spent < ASK ? "ask" : "climb", spent < ASK ? spent / ASK : (spent - ASK) / CLIMB);
      else draw(stepwise ? Math.floor(place) : place, "learn", place % 1);
      frame = requestAnimationFrame(tick);
    };
    frame = requestAnimationFrame(tick);
  }

  function stop() {
    cancelAnimationFrame(frame);
    frame = 0;
    skip.hidden = true;
    play.hidden = false;
    heat.reveal(Infinity);
  }

  function end() {
    stop();
    show(moments.length - 1);
    happens.textContent = `${judged(moments.at(-1))}Below is every recorded step: click any bright cell.`;
  }

  // What is seen of this one answer, and no more: the doctor below speaks of the whole run.
  const judged = ({ right, likely }) => {
    if (!story || right === null) return "";
    const how = right ? "right, at" : `wrong: “${story.answer}”, which is right, has`;
    return `In the end it is ${how} ${percent(likely[story.words.indexOf(story.answer)])}. `;
  };

  function show(index) {
    draw(index, "learn", 1);
    heat.reveal(Infinity);
    const moment = moments[index];
    happens.textContent = !story
      ? ""
      : story.answer === null
        ? `After ${whole(moment.step)} updates it would go on with “${moment.said}”.`
        : story.kind === "text"
          ? `After ${whole(moment.step)} updates it expects “${moment.said}”; “${story.answer}” is what stands there.`
          : `After ${whole(moment.step)} updates it says ${moment.said}; ${story.answer} is right.`;
  }

  // `place` is a moment, or somewhere between two; `share` is how far the phase has come.
  function draw(place, phase, share) {
    const index = Math.min(moments.length - 1, Math.floor(place)),
      next = Math.min(moments.length - 1, index + 1),
      part = place - index;
    const step = mixed(moments[index].step, moments[next].step, part);
    now = { place, phase, share };
    slider.value = Math.round(place);
    at.textContent = `${whole(step)} of ${whole(moments.at(-1).step)}`;
    if (phase !== "learn") heat.reveal(0);
    else if (frame) heat.reveal(step);
    if (story) {
      speak(moments[index], phase, share);
      paintBars(
        moments[index].likely.map((each, word) => mixed(each, moments[next].likely[word], part)),
        phase === "ask" ? share : 1,
      );
      paintMaps(moments[index].attention, moments[next].attention, part);
    }
    paintTower(index, next, part, phase, share);
    beside.refresh();
  }

  function speak(moment, phase, share) {
    const asking = phase === "ask" && share < 0.55,
      text = story.kind === "text",
      mark = moment.right === null ? "" : moment.right ? " ✓" : " ✗";
    said.classList.toggle("text", text);
    said.replaceChildren(
      story.cut ? "…" : "",
      story.question.replaceAll("\n", "⏎"),
      text ? " → " : " = ",
      h(
        "b",
        { className: asking || moment.right === null ? "" : moment.right ? "fine" : "bad" },
        asking ? "…" : `${moment.said}${mark}`,
      ),
    );
    if (!frame) return;
    const first =
      whole(moments[0].step) === "0"
        ? "Before its first update"
        : `After ${whole(moments[0].step)} updates, the first that are kept,`;
    const unseen = text ? " in a text that it will never be trained on" : " it will never be trained on";
    const asks =
      `${first} the model is asked ` + `${text ? "what comes next" : "something"}${story.held_out ? unseen : ""}.`;
    const verdict =
      `${moment.said} is ${moment.right ? "right, and still" : "wrong:"} the loss is ` + `${short(moment.loss)}.`;
    const falls = story.answer === null ? "At every update a loss is computed." : verdict;
    const now = moment.loss === null ? "" : `: the loss of this answer is ${short(moment.loss)}`;
    const told = {
      ask: asks,
      climb: `${falls} Its gradient goes back through every call, and each weight learns how it should change.`,
      learn: `${whole(moments.at(-1).step)} such backward passes, each followed by a small update${now}.`,
    }[phase];
    if (happens.textContent !== told) happens.textContent = told;
  }

  function paintBars(likely, share) {
    const { context, width, height, ink } = prepare(bars),
      digits = story.bars.map((index) => [story.words[index], likely[index]]);
    const wide = width / digits.length,
      room = height - 34;
    bars.setAttribute(
      "aria-label",
      `how likely each is: ${digits.map(([word, value]) => `${word} ${short(value)}`).join(", ")}`,
    );
    context.textAlign = "center";
    digits.forEach(([word, value], index) => {
      const tall = Math.max(1, room * value * Math.min(1, share * 1.6)),
        x = index * wide,
        good = word === story.answer;
      context.fillStyle = good ? ink("fine") : ink("line");
      context.fillRect(x + wide * 0.14, 16 + room - tall, wide * 0.72, tall);
      context.fillStyle = good ? ink("fine") : ink("soft");
      context.font = good ? "bold 13px system-ui" : "12px system-ui";
      context.fillText(word, x + wide / 2, height - 5, wide - 2);
      if (value > 0.15 && share > 0.6) context.fillText(`${Math.round(100 * value)} %`, x + wide / 2, 12 + room - tall);
    });
  }

  function paintTower(index, next, part, phase, share) {
    const { context, width, height, ink } = prepare(tower),
      count = calls.length,
      tall = (height - HEAD - FOOT) / count,
      middle = Math.round(Math.max(178, width * 0.46));
    tower.setAttribute(
      "aria-label",
      `gradients of ${count} backward calls, from the loss at the bottom through ${known}`,
    );
    context.textBaseline = "middle";
    const front =
      phase === "climb" ? share * (count + 4) - 2 : phase === "learn" && frame ? share * (count + 6) - 3 : Infinity;
    const forward = phase === "ask" ? share * (count + 4) : Infinity;
    let before = "";
    [...calls].reverse().forEach((call, place) => {
      // the first to run is the loss's, at the bottom, as in the picture of all steps
      const order = count - 1 - place,
        y = HEAD + place * tall,
        size = mixed(valueOf(rows[index], call), valueOf(rows[next], call), part);
      const reached = phase === "climb" ? order <= front : phase === "learn",
        near = Math.exp(-((order - front) ** 2) / 6);
      const asked = Math.exp(-((place - forward) ** 2) / 5) * (phase === "ask" ? 1 : 0);
      context.fillStyle = asked > 0.05 ? ink("accent") : ink("empty");
      context.globalAlpha = asked > 0.05 ? 0.25 + 0.75 * asked : 1;
      context.fillRect(middle - 30, y + 1, 26, tall - 2);
      context.globalAlpha = 1;
      context.fillStyle = reached ? css(scale(logShare(size, ...range))) : ink("empty");
      const long = reached ? 26 + (width - middle - 34) * Math.max(0, logShare(size, ...range)) : 26;
      context.fillRect(middle, y + 1, long, tall - 2);
      if (near > 0.08 && Number.isFinite(front)) {
        context.globalAlpha = near * (phase === "climb" ? 1 : 0.45);
        context.strokeStyle = context.fillStyle = ink("mark");
        context.lineWidth = 3;
        context.strokeRect(middle - 1, y, long + 2, tall);
        context.fillRect(middle - 12, y + 1, 8, tall - 2);
        context.lineWidth = 1;
        context.globalAlpha = 1;
      }
      context.fillStyle = ink("soft");
      context.font = `${Math.min(12, Math.max(8, tall))}px system-ui, sans-serif`;
      context.textAlign = "right";
      if (tall >= 8) context.fillText(call.label, middle - 36, y + tall / 2);
      if (call.section !== before) {
        // its name stands at its first line
        before = call.section;
        context.textAlign = "left";
        context.font = "11px system-ui, sans-serif";
        context.fillText(before, 0, Math.min(height - 6, y + Math.max(6, tall / 2)));
        context.strokeStyle = ink("line");
        context.beginPath();
        context.moveTo(0, y);
        context.lineTo(width, y);
        context.stroke();
      }
    });
    context.font = "bold 12px system-ui, sans-serif";
    context.textAlign = "center";
    context.fillStyle = phase === "climb" && share < 0.2 ? ink("mark") : ink("soft");
    context.fillText("the loss", middle, height - FOOT / 2 + 2);
    context.fillStyle = ink("soft");
    context.font = "11px system-ui, sans-serif";
    context.textAlign = "left";
    context.fillText("size of the gradient →", middle + 30, HEAD / 2);
    context.textAlign = "right";
    context.fillText("forward ↓   backward ↑", middle - 30, HEAD / 2);
  }

  function paintMaps(first, second, part) {
    const { context, width, height, ink } = prepare(maps),
      blocks = Object.keys(first),
      heads = Math.max(...blocks.map((name) => first[name].length));
    const shown = blocks.slice(-3),
      wide = width / Math.min(heads, 8),
      square = shown.filter((name) => first[name][0].length > 1).length;
    const size = Math.min(
      wide - 8,
      (height - 24 * shown.length - (shown.length - square) * (STRIP + 16) - 14) / Math.max(1, square),
    );
    maps.setAttribute(
      "aria-label",
      `attention of ${blocks.length} blocks with ${heads} heads each, the tokens ${story.shown.join(" ")}`,
    );
    let top = 0;
    looked.replaceChildren(...lookedAt(first[shown.at(-1)], shown.at(-1), size));
    for (const block of shown) {
      context.fillStyle = ink("soft");
      context.textAlign = "left";
      context.textBaseline = "alphabetic";
      context.font = "11px system-ui, sans-serif";
      const queries = first[block][0].length,
        one = queries === 1;
      context.fillText(
        one ? `${block}: the last token, which answers` : `${block}: each row a token, and what it takes from each`,
        0,
        top + 11,
      );
      first[block].slice(0, 8).forEach((rowsOf, head) => {
        const left = head * wide,
          cell = size / rowsOf[0].length,
          tall = one ? STRIP : cell,
          most = rowsOf.at(-1).indexOf(Math.max(...rowsOf.at(-1)));
        rowsOf.forEach((row, query) =>
          row.forEach((value, key) => {
            context.fillStyle = css(scale(mixed(value, second[block][head][query][key], part)));
            context.fillRect(left + key * cell, top + 17 + query * tall, cell + 0.4, tall + 0.4);
          }),
        );
        context.textAlign = "center";
        if (block === shown.at(-1) && cell >= LETTER)
          story.shown.forEach((word, key) => {
            context.fillStyle = ink(key === most ? "ink" : "soft");
            context.font = `${key === most ? "bold " : ""}${Math.min(12, cell + 1)}px system-ui, sans-serif`;
            context.fillText(
              word.length > 1 && cell < 20 ? word[0] : word,
              left + (key + 0.5) * cell,
              top + 17 + queries * tall + 12,
              cell + 4,
            );
          });
      });
      top += 24 + (one ? STRIP + 16 : size);
    }
  }

  // In words, and of a text, whose tokens have no room below the maps, the tokens themselves.
  function lookedAt(heads, block, size) {
    const most = heads
      .map((each) => each.at(-1))
      .map((row, head) => ({ row, head, key: row.indexOf(Math.max(...row)), share: Math.max(...row) }))
      .reduce((best, each) => (each.share > best.share ? each : best));
    const strongest =
      `The strongest: head ${most.head} of ${block} takes ${percent(most.share)} from ` +
      `“${story.shown[most.key]}” (position ${most.key + 1}).`;
    if (size / most.row.length >= LETTER) return [strongest];
    const chips = story.shown.map((word, key) => {
      const share = most.row[key] / most.share;
      const made = h("span", { className: "token", title: percent(most.row[key]) }, word);
      made.style.background = css(scale(share));
      made.style.color = share > 0.55 ? "#14181b" : "#ffffff";
      return made;
    });
    return [strongest, " What it takes from each token: ", ...chips];
  }

  function asTables() {
    const place = Math.round(now.place),
      parts = [];
    if (story) {
      parts.push(
        table(
          `${story.question}: what it answered`,
          ["after updates", "answer", "right", "loss"],
          moments.map((each) => [whole(each.step), each.said, each.right ? "yes" : "no", each.loss]),
        ),
      );
      parts.push(
        table(
          `What the last token of each head takes, after ${whole(moments[place].step)} updates`,
          ["block", "head", ...story.shown],
          Object.entries(moments[place].attention).flatMap(([block, heads]) =>
            heads.map((each, head) => [block, String(head), ...each.at(-1)]),
          ),
        ),
      );
    }
    parts.push(
      table(
        `Gradients, near update ${whole(moments[place].step)}`,
        ["call", "what", "section", "size per element"],
        calls.map((each) => [String(each.call), each.label, each.section, valueOf(rows[place], each)]),
      ),
    );
    return h("div", {}, parts);
  }

  const redraw = () => {
    if (now && el.isConnected) draw(now.place, now.phase, now.share);
  };
  tooltip(tower, (x, y, box) => {
    if (!now) return "";
    const call = calls[calls.length - 1 - Math.floor((y - HEAD) / ((box.height - HEAD - FOOT) / calls.length))];
    const row = rows[Math.min(rows.length - 1, Math.round(now.place))];
    return call ? `call ${call.call} ${call.label} in ${call.section}: ${short(valueOf(row, call))} per element` : "";
  });
  tooltip(bars, (x, y, box) => {
    const word = story?.bars[Math.floor((x / box.width) * story.bars.length)];
    return word === undefined || !now
      ? ""
      : `${story.words[word]}: ${percent(moments[Math.floor(now.place)].likely[word])}`;
  });
  const leaving = [bars, tower, maps].map((canvas) => onResize(canvas, redraw));
  addEventListener("theme", redraw);
  return {
    begin,
    leave: () => {
      stop();
      leaving.forEach((each) => each());
      removeEventListener("theme", redraw);
    },
  };
}

// The gradient that each backward call hands on, in the order they run; of a deep model one for each section.
function backwardCalls(record) {
  const found = record.calls
    .filter((call) => record.onward[call.call])
    .map((call) => ({ ...call, label: call.op, results: shownResults(record, call) }));
  if (found.length <= MOST_CALLS) return found;
  return Object.entries(record.flow).map(([section, result]) => {
    return { call: record.results[result][0], results: [{ result, weight: 1 }], label: "", section };
  });
}

const valueOf = (row, call) => together(row, call.results, "size");

function extent(rows, calls) {
  let [low, high] = [Infinity, 0];
  for (const row of rows)
    for (const call of calls) {
      const size = valueOf(row, call);
      if (size > 0) [low, high] = [Math.min(low, size), Math.max(high, size)];
    }
  return high > 0 ? [Math.max(low, high * 1e-8), high] : [1, 1];
}

// Steps about as far from each other as moments are, for a run that kept none.
function stills(steps) {
  const share = (index) => Math.round(steps.length ** (index / (STILLS - 1)) - 1);
  return [...new Set(Array.from({ length: STILLS }, (_, index) => steps[Math.min(steps.length - 1, share(index))]))];
}
