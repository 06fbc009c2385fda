// Canvas: as many pixels as the screen has, colours from the page, axes.

import { short } from "./dom.js";

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
  const rough = (high - low) / Math.max(1, count),
    power = 10 ** Math.floor(Math.log10(rough));
  const step = [1, 2, 5, 10].map((each) => each * power).find((each) => each >= rough);
  const found = [];
  for (let at = Math.ceil(low / step) * step; at <= high + step * 1e-9; at += step)
    found.push(Math.abs(at) < step * 1e-9 ? 0 : at);
  return found;
}

export function stepAxis(painted, plot, low, high) {
  const { context, ink } = painted;
  context.fillStyle = ink("soft");
  context.textAlign = "center";
  context.textBaseline = "top";
  for (const tick of ticks(low, high, Math.max(3, plot.width / 90))) {
    const x = plot.left + (plot.width * (tick - low)) / Math.max(1e-12, high - low);
    if (x > plot.left + plot.width - 8 && x > plot.left + 20) {
      context.textAlign = "right";
    }
    context.fillText(tick.toLocaleString("en"), x, plot.top + plot.height + 4);
  }
  context.textAlign = "left";
}

export function valueAxis(painted, plot, low, high, logarithmic) {
  const { context, ink } = painted;
  context.textAlign = "right";
  context.textBaseline = "middle";
  const span = logarithmic ? Math.max(1, Math.ceil((high - low) / 4)) : 0;
  const marks =
    logarithmic && high - low >= 1
      ? ticks(Math.ceil(low), Math.floor(high), 4).filter(
          (each) => Number.isInteger(each) && (span < 2 || each % span === 0),
        )
      : ticks(low, high, 4);
  for (const mark of marks) {
    const y = plot.top + plot.height * (1 - (mark - low) / Math.max(1e-300, high - low));
    context.strokeStyle = ink("line");
    context.beginPath();
    context.moveTo(plot.left, Math.round(y) + 0.5);
    context.lineTo(plot.left + plot.width, Math.round(y) + 0.5);
    context.stroke();
    context.fillStyle = ink("soft");
    context.fillText(short(logarithmic ? 10 ** mark : mark), plot.left - 6, y);
  }
  context.textAlign = "left";
}

// Calls back when the element has another size.
export function onResize(element, draw) {
  const watcher = new ResizeObserver(() => requestAnimationFrame(draw));
  watcher.observe(element);
  return () => watcher.disconnect();
}
