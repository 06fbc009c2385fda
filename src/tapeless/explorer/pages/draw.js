// Canvas: as many pixels as the screen has, colours from the page, axes, tooltips.

import { h, short } from "./dom.js";

export function prepare(canvas) {
  const { width, height } = canvas.getBoundingClientRect();
  const ratio = Math.min(3, window.devicePixelRatio || 1);
  const wide = Math.max(1, Math.round(width * ratio)),
    high = Math.max(1, Math.round(height * ratio));
  if (canvas.width !== wide || canvas.height !== high) {
    canvas.width = wide;
    canvas.height = high;
  }
  const context = canvas.getContext("2d");
  context.setTransform(ratio, 0, 0, ratio, 0, 0);
  context.clearRect(0, 0, width, height);
  context.font = "12px system-ui, sans-serif";
  const style = getComputedStyle(document.documentElement);
  const ink = (name) => style.getPropertyValue(`--${name}`).trim();
  return { context, width, height, ratio, ink };
}

// Round values that cover a stretch, about so many.
export function ticks(low, high, count) {
  if (!(high > low)) return [low];
  const rough = (high - low) / Math.max(1, count);
  const power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough * (1 - 1e-9));
  const found = [];
  for (let at = Math.ceil(low / step - 1e-9) * step; at <= high + step * 1e-9; at += step)
    found.push(Math.abs(at) < step * 1e-9 ? 0 : Number(at.toPrecision(12)));
  return found;
}

// The same of a logarithmic axis, whose ends are powers of ten: whole decades; where hardly one is seen, round values.
export function logTicks(low, high, count) {
  const first = Math.ceil(low - 1e-9);
  const decades = Math.floor(high + 1e-9) - first + 1;
  if (decades > 2) {
    const every = Math.ceil(decades / Math.max(2, count));
    return Array.from({ length: decades }, (_, at) => first + at).filter((power) => power % every === 0);
  }
  for (const digits of [[1], [1, 3], [1, 2, 5], [1, 2, 3, 4, 6, 8]]) {
    const found = [];
    for (let power = Math.floor(low); power <= high; power += 1)
      for (const digit of digits) {
        const at = power + Math.log10(digit);
        if (at >= low - 1e-9 && at <= high + 1e-9) found.push(at);
      }
    if (found.length >= 3) return found;
  }
  return ticks(10 ** low, 10 ** high, 2 * count).map(Math.log10);
}

// Numbers below a plot; `logarithmic`: its ends are powers of ten.
export function stepAxis(painted, plot, low, high, logarithmic = false) {
  const { context, ink } = painted;
  context.fillStyle = ink("soft");
  context.textAlign = "center";
  context.textBaseline = "top";
  const wanted = Math.max(3, plot.width / 90);
  const right = plot.left + plot.width;
  let free = -Infinity; // so far to the right it is written already
  for (const tick of logarithmic ? logTicks(low, high, wanted) : ticks(low, high, wanted)) {
    const text = logarithmic ? short(10 ** tick) : tick.toLocaleString("en");
    const half = context.measureText(text).width / 2;
    const at = plot.left + (plot.width * (tick - low)) / Math.max(1e-12, high - low);
    const x = Math.min(right + 8 - half, Math.max(half, at));
    if (x - half < free) continue;
    free = x + half + 8;
    context.fillText(text, x, plot.top + plot.height + 4);
  }
  context.textAlign = "left";
}

// Numbers beside a plot and a line across it for each.
export function valueAxis(painted, plot, low, high, logarithmic) {
  const { context, ink } = painted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  for (const mark of logarithmic ? logTicks(low, high, 4) : ticks(low, high, 4)) {
    const y = plot.top + plot.height * (1 - (mark - low) / Math.max(1e-300, high - low));
    context.strokeStyle = ink("line");
    context.beginPath();
    context.moveTo(plot.left, Math.round(y) + 0.5);
    context.lineTo(plot.left + plot.width, Math.round(y) + 0.5);
    context.stroke();
    context.fillStyle = ink("soft");
    context.fillText(short(logarithmic ? 10 ** mark : mark), plot.left - 6, Math.min(plot.top + plot.height, y));
  }
  context.textAlign = "left";
}

// What stands under the pointer, in words beside it. `at`: from a place in the canvas to text, or to nothing.
export function tooltip(canvas, at) {
  const hide = () => document.getElementById("tip")?.remove();
  canvas.addEventListener("pointermove", (event) => {
    const box = canvas.getBoundingClientRect();
    const text = at(event.clientX - box.left, event.clientY - box.top, box);
    if (!text) return hide();
    const tip = document.getElementById("tip") ?? document.body.appendChild(h("div", { id: "tip", role: "tooltip" }));
    tip.textContent = text;
    const { width, height } = tip.getBoundingClientRect();
    tip.style.left = `${Math.max(4, Math.min(innerWidth - width - 4, event.clientX + 14))}px`;
    tip.style.top = `${event.clientY + 18 + height > innerHeight ? event.clientY - height - 10 : event.clientY + 18}px`;
  });
  canvas.addEventListener("pointerleave", hide);
  canvas.addEventListener("pointerdown", hide);
}

// Calls back when the element has another size.
export function onResize(element, draw) {
  const watcher = new ResizeObserver(() => requestAnimationFrame(draw));
  watcher.observe(element);
  return () => watcher.disconnect();
}
