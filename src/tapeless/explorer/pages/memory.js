// The arena: address against call, every buffer a rectangle from its first to its last use.

import { json } from "./api.js";
import { KINDS } from "./colour.js";
import { bytes, h, table, tableBeside, whole } from "./dom.js";
import { onResize, prepare, tooltip } from "./draw.js";
import { here, keep } from "./place.js";

const LEFT = 74,
  BOTTOM = 22,
  RIGHT = 8;

export function render({ model, el }) {
  let plan = null,
    of = null,
    chosen = here().chosen.buffer ?? null,
    asked = 0;
  const runs = h(
    "select",
    {
      id: "memory-run",
      onchange: () => {
        reset();
        keep({ run: runs.value, buffer: null });
        load();
      },
    },
    model.runs.map((run, index) =>
      h("option", { value: index, selected: index === Number(here().chosen.run) }, run.name),
    ),
  );
  const number = (id) => h("input", { type: "number", min: 1, step: 1, id, onchange: () => load() });
  const batch = number("memory-batch"),
    time = number("memory-time");
  const recompute = h("input", { type: "checkbox", id: "memory-recompute", onchange: () => load() });
  const backend = h(
    "select",
    {
      id: "memory-backend",
      onchange: () => {
        precision.value = "";
        load();
      },
    },
    ["cpu", "reference", "cuda"].map((value) => h("option", { value }, value)),
  );
  const precision = h("select", { id: "memory-precision", onchange: () => load() });
  const said = h("p", { id: "memory-said", role: "status" });
  const total = h("p", { id: "memory-total" });
  const arena = h("canvas", { className: "arena", tabIndex: 0, role: "img", id: "arena" });
  const live = h("canvas", { className: "live-bytes", role: "img", id: "live-bytes" });
  const panel = h("section", { className: "card sticky", ariaLabel: "Buffer", id: "buffer", ariaLive: "polite" });
  const kinds = h("div", { className: "kinds" });
  const beside = tableBeside("every buffer as a table", () =>
    table(
      "Buffers, the largest first",
      ["buffer", "kind", "shape", "bytes", "from byte", "calls"],
      [...plan.buffers]
        .sort((a, b) => b.bytes - a.bytes)
        .slice(0, 400)
        .map((each) => [
          each.name,
          each.kind,
          each.shape.join("×"),
          whole(each.bytes),
          whole(each.offset),
          each.ranges.map(([a, b]) => `${a}–${b}`).join(", "),
        ]),
    ),
  );
  const pictures = h(
    "div",
    { className: "two", hidden: true },
    h(
      "section",
      { className: "card", ariaLabel: "Arena" },
      h("h2", {}, "Address (up) against call (across)"),
      arena,
      h(
        "p",
        { className: "soft" },
        "Bytes in use during each call of the list that runs (tapeless explain --lowered); the peak is marked.",
      ),
      live,
      beside,
    ),
    panel,
  );
  const row = (label, input) => h("label", {}, label, input);
  el.append(
    h(
      "section",
      { className: "card", ariaLabel: "Sizes" },
      h("h2", {}, "Memory of a training step, to the byte"),
      h("p", { className: "soft" }, "Planned before anything is allocated: change a size and see what it would take."),
      h(
        "div",
        { className: "controls" },
        row("run", runs),
        row("batch size", batch),
        row("sequence length", time),
        row("recompute (activation checkpointing)", recompute),
        row("backend", backend),
        row("precision", precision),
      ),
      said,
      total,
      kinds,
    ),
    pictures,
  );

  function reset() {
    batch.value = time.value = "";
    chosen = null;
    recompute.dataset.given = backend.dataset.given = "";
    precision.replaceChildren();
  }

  async function load() {
    const mine = (asked += 1),
      run = model.runs[Number(runs.value)],
      query = new URLSearchParams();
    if (batch.value) query.set("batch", batch.value);
    if (time.value) query.set("time", time.value);
    if (recompute.dataset.given) query.set("recompute", recompute.checked ? "yes" : "no");
    if (backend.dataset.given) query.set("backend", backend.value);
    if (precision.value) query.set("precision", precision.value);
    said.textContent = plan ? "" : "planning …";
    try {
      const found = await json(run.path(`plan?${query}`));
      if (mine !== asked) return;
      if (found.error) throw new Error(found.error);
      [plan, of, pictures.hidden] = [found, run, false];
      said.textContent = "";
      said.className = "";
      if (!plan.buffers.some((each) => each.name === chosen)) chosen = null;
      show();
    } catch (error) {
      if (mine !== asked) return;
      said.textContent = error.message;
      said.className = "error";
      if (of !== run) {
        // another run's plan is none of this one's
        pictures.hidden = true;
        [total, kinds].forEach((each) => each.replaceChildren());
      }
    }
  }

  function show() {
    [batch.value, time.value, recompute.checked, backend.value] = [plan.batch, plan.time, plan.recompute, plan.backend];
    recompute.dataset.given = backend.dataset.given = "yes";
    precision.replaceChildren(...plan.precisions.map((value) => h("option", { value }, value)));
    precision.value = plan.precision;
    total.replaceChildren(
      h("strong", {}, `${whole(plan.peak_bytes)} bytes`),
      ` (${bytes(plan.peak_bytes)}), ${whole(plan.parameters)} parameters, ${plan.calls} calls; the ` +
        `peak is at call ${plan.peak_call}, ` +
        `${plan.titles[plan.peak_call]}${plan.sections[plan.peak_call] ? ` in ${plan.sections[plan.peak_call]}` : ""}`,
    );
    const seen = [...new Set(plan.buffers.map((each) => each.kind))];
    kinds.replaceChildren(
      ...seen.map((kind) => {
        const key = h("i");
        key.style.background = KINDS[kind] ?? "#777";
        const size = plan.kinds[kind];
        return h("span", {}, key, size === undefined ? kind : `${kind} ${bytes(size)}`);
      }),
      h("span", { className: "soft" }, `workspace, shared by saved and scratch: ${bytes(plan.kinds.workspace)}`),
    );
    beside.refresh();
    draw();
  }

  const plotOf = (width, height) => ({
    left: LEFT,
    top: 4,
    width: Math.max(10, width - LEFT - RIGHT),
    height: height - BOTTOM - 4,
  });

  function place(plot, each, [first, last]) {
    const unit = plot.width / plan.calls,
      scale = plot.height / plan.peak_bytes;
    return [
      plot.left + first * unit,
      plot.top + plot.height - (each.offset + each.bytes) * scale,
      Math.max(1, (last - first + 1) * unit),
      Math.max(0.5, each.bytes * scale),
    ];
  }

  function draw() {
    if (!plan) return;
    const painted = prepare(arena),
      { context, width, height, ink } = painted,
      plot = plotOf(width, height);
    context.fillStyle = ink("empty");
    context.fillRect(plot.left, plot.top, plot.width, plot.height);
    for (const each of plan.buffers) {
      context.fillStyle = KINDS[each.kind] ?? "#777";
      for (const range of each.ranges) {
        const box = place(plot, each, range);
        context.globalAlpha = each.name === chosen ? 1 : 0.78;
        context.fillRect(...box);
        if (box[3] > 3) {
          context.strokeStyle = ink("card");
          context.lineWidth = 0.5;
          context.strokeRect(...box);
        }
      }
    }
    context.globalAlpha = 1;
    const picked = plan.buffers.find((each) => each.name === chosen);
    for (const range of picked?.ranges ?? []) {
      const [x, y, wide, high] = place(plot, picked, range);
      context.strokeStyle = ink("ink");
      context.lineWidth = 2;
      context.strokeRect(x - 1, y - 1, wide + 2, Math.max(3, high) + 2);
    }
    context.fillStyle = ink("soft");
    context.textAlign = "right";
    context.textBaseline = "middle";
    for (let part = 0; part <= 4; part += 1)
      context.fillText(
        bytes(Math.round((plan.peak_bytes * part) / 4)),
        LEFT - 6,
        Math.max(10, plot.top + plot.height * (1 - part / 4)),
      );
    phases(painted, plot);
    peak(painted, plot);
    arena.setAttribute(
      "aria-label",
      `${plan.buffers.length} buffers in ${whole(plan.peak_bytes)} bytes over ${plan.calls} calls; ` +
        "arrow keys go through them by size",
    );
    drawLive();
    tell(picked);
  }

  function phases({ context, ink }, plot) {
    let start = 0;
    context.textAlign = "left";
    context.textBaseline = "top";
    const named = (phase) => (phase === "recompute" ? "backward" : phase === "clip" ? "update" : phase);
    for (let call = 1; call <= plan.calls; call += 1) {
      if (call < plan.calls && named(plan.phases[call]) === named(plan.phases[start])) continue;
      const x = plot.left + (start / plan.calls) * plot.width,
        wide = ((call - start) / plan.calls) * plot.width;
      context.strokeStyle = ink("soft");
      context.lineWidth = 1;
      context.beginPath();
      context.moveTo(Math.round(x) + 0.5, plot.top);
      context.lineTo(Math.round(x) + 0.5, plot.top + plot.height + 4);
      context.stroke();
      context.fillStyle = ink("soft");
      if (wide > 54) context.fillText(named(plan.phases[start]), x + 4, plot.top + plot.height + 5);
      start = call;
    }
  }

  function peak({ context, ink }, plot) {
    const x = plot.left + ((plan.peak_call + 0.5) / plan.calls) * plot.width;
    context.strokeStyle = ink("mark");
    context.lineWidth = 1.5;
    context.setLineDash([5, 4]);
    context.beginPath();
    context.moveTo(x, plot.top);
    context.lineTo(x, plot.top + plot.height);
    context.stroke();
    context.setLineDash([]);
  }

  function drawLive() {
    const painted = prepare(live),
      { context, width, height, ink } = painted,
      plot = { left: LEFT, top: 2, width: Math.max(10, width - LEFT - RIGHT), height: height - 4 };
    const most = plan.live_bytes[plan.peak_call],
      unit = plot.width / plan.calls;
    context.fillStyle = ink("accent");
    plan.live_bytes.forEach((size, call) => {
      const high = (plot.height * size) / most;
      context.fillRect(plot.left + call * unit, plot.top + plot.height - high, Math.max(1, unit - 0.5), high);
    });
    context.fillStyle = ink("soft");
    context.textAlign = "right";
    context.textBaseline = "top";
    context.fillText(bytes(most), LEFT - 6, 2);
    peak(painted, plot);
    live.setAttribute("aria-label", `bytes in use, at most ${whole(most)} at call ${plan.peak_call}`);
  }

  function tell(each) {
    if (!each) {
      panel.replaceChildren(
        h("h2", {}, "A buffer"),
        h(
          "p",
          { className: "soft" },
          "Click a rectangle, or go through them with the arrow keys, the largest first: what it is, and why it lives.",
        ),
      );
      return;
    }
    const pair = (name, value) => [h("dt", {}, name), h("dd", {}, value)];
    panel.replaceChildren(
      h("h2", {}, each.name),
      h(
        "dl",
        {},
        pair("kind", each.kind),
        pair("shape", `${each.shape.join("×")} ${each.dtype}`),
        pair("bytes", `${whole(each.bytes)} (${bytes(each.bytes)})`),
        pair("at byte", whole(each.offset)),
        pair("calls", each.ranges.map(([first, last]) => (first === last ? first : `${first} to ${last}`)).join(", ")),
      ),
      h("h3", {}, "Why it lives"),
      h("p", {}, plan.why[each.name] ?? ""),
    );
  }

  // The smallest buffer at a place of the picture.
  function under(x, y, box) {
    const plot = plotOf(box.width, box.height);
    const holds = (each, range) => {
      const [left, top, wide, high] = place(plot, each, range);
      return x >= left && x <= left + wide && y >= top - 1 && y <= top + high + 1;
    };
    const hit = plan?.buffers.filter((each) => each.ranges.some((range) => holds(each, range))) ?? [];
    return hit.sort((a, b) => a.bytes - b.bytes)[0];
  }
  const take = (name) => {
    chosen = name;
    keep({ run: runs.value, buffer: name });
    draw();
  };
  tooltip(arena, (x, y, box) => {
    const each = under(x, y, box);
    return each ? `${each.name}: ${each.kind}, ${bytes(each.bytes)}` : "";
  });
  tooltip(live, (x, y, box) => {
    const call = Math.floor(((x - LEFT) / (box.width - LEFT - RIGHT)) * (plan?.calls ?? 0));
    return plan?.titles[call] ? `call ${call} ${plan.titles[call]}` : "";
  });
  arena.addEventListener("click", (event) => {
    const box = arena.getBoundingClientRect();
    take(under(event.clientX - box.left, event.clientY - box.top, box)?.name ?? null);
  });
  arena.addEventListener("keydown", (event) => {
    const by = { ArrowRight: 1, ArrowDown: 1, ArrowLeft: -1, ArrowUp: -1 }[event.key];
    if (!by || !plan) return;
    event.preventDefault();
    const order = [...plan.buffers].sort((a, b) => b.bytes - a.bytes),
      at = order.findIndex((each) => each.name === chosen);
    take(order[Math.min(order.length - 1, Math.max(0, at + by))].name);
  });
  const leave = onResize(arena, draw);
  addEventListener("theme", draw);
  load();
  return () => {
    leave();
    removeEventListener("theme", draw);
  };
}
