// Lines over a common axis: every line chart of the pages is drawn here.

import { short, whole } from "./dom.js";
import { prepare, stepAxis, valueAxis } from "./draw.js";

const PLOT = { left: 58, top: 8, right: 12, bottom: 22 };

export function extent(values) {
  let [low, high] = [Infinity, -Infinity];
  for (const each of values) {
    if (each < low) low = each;
    if (each > high) high = each;
  }
  return [low, high];
}

// The index of the point whose x is the nearest.
export function nearest(points, x) {
  let [low, high] = [0, points.length - 1];
  while (low < high) {
    const middle = (low + high) >> 1;
    if (points[middle][0] < x) low = middle + 1;
    else high = middle;
  }
  return low > 0 && x - points[low - 1]?.[0] < points[low]?.[0] - x ? low - 1 : low;
}

// A mean that forgets: what is drawn of a line that jumps.
export function smoothed(points, share) {
  let mean = null;
  return points.map(([x, y]) => [x, (mean = mean === null ? y : mean + (1 - share) * (y - mean))]);
}

// `series`: of each a colour and points, dots or rings. `log`, `logAcross`: the axes. Gives back from where to where it
// goes, and how a place across becomes a value.
export function drawLines(
  canvas,
  { series, log = false, logAcross = false, bounds = null, cursor = null, empty = "" },
) {
  const painted = prepare(canvas);
  const { context, width, height, ink } = painted;
  const plot = { left: PLOT.left, top: PLOT.top, width: width - PLOT.left - PLOT.right };
  plot.height = height - PLOT.top - PLOT.bottom;
  const drawn = series.map(({ colour, points = [], dots = [], rings = [] }) => ({
    colour,
    points: log ? points.filter(([, y]) => y > 0) : points,
    dots: log ? dots.filter(([, y]) => y > 0) : dots,
    rings: log ? rings.filter(([, y]) => y > 0) : rings,
  }));
  const all = drawn.flatMap(({ points, dots, rings }) => [...points, ...dots, ...rings]);
  if (!all.length) {
    context.fillStyle = ink("soft");
    context.fillText(empty, plot.left, height / 2);
    return null;
  }
  const up = (y) => (log ? Math.log10(y) : y);
  const along = (x) => (logAcross ? Math.log10(x) : x);
  let [low, high] = bounds ?? extent(all.map(([, y]) => up(y)));
  const pad = (high - low) * 0.06 || Math.abs(high) * 0.1 || 0.5;
  [low, high] = [low - pad, high + pad];
  const [from, to] = extent(all.map(([x]) => along(x)));
  const wide = to - from || 1;
  valueAxis(painted, plot, low, high, log);
  stepAxis(painted, plot, from, to, logAcross);
  const x = (value) => plot.left + (plot.width * (along(value) - from)) / wide;
  const y = (value) => plot.top + plot.height * (1 - (up(value) - low) / (high - low));
  for (const { colour, points, dots, rings } of drawn) {
    context.strokeStyle = context.fillStyle = colour;
    context.lineWidth = 1.6;
    context.beginPath();
    points.forEach(([at, value], index) => context[index ? "lineTo" : "moveTo"](x(at), y(value)));
    context.stroke();
    const round = (at, size, how) => {
      context.beginPath();
      context.arc(x(at[0]), y(at[1]), size, 0, 7);
      context[how]();
    };
    for (const each of dots) round(each, 2.6, "fill");
    for (const each of rings) round(each, 4, "stroke");
  }
  if (cursor !== null) {
    context.strokeStyle = ink("soft");
    context.lineWidth = 1;
    context.beginPath();
    context.moveTo(x(cursor), plot.top);
    context.lineTo(x(cursor), plot.top + plot.height);
    context.stroke();
  }
  const back = (place) => {
    const at = from + wide * Math.min(1, Math.max(0, (place - plot.left) / Math.max(1, plot.width)));
    return logAcross ? 10 ** at : at;
  };
  const span = logAcross ? [10 ** from, 10 ** to] : [from, to];
  return { span, back };
}

// What stands under the pointer: of every line its nearest point.
export function pointed(series, at) {
  return series
    .filter(({ points }) => points.length)
    .map(({ name, points }) => {
      const [x, y] = points[nearest(points, at)];
      return `${name ? `${name}: ` : ""}${short(y)} at ${Number.isInteger(x) ? whole(x) : short(x)}`;
    })
    .join("; ");
}
