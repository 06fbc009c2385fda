// Colours that people with colour blindness tell apart, and one scale from dark blue to yellow for sizes.

export const RUNS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#b8860b", "#56b4e9"];
export const KINDS = {
  weight: "#0072b2",
  master: "#004c78",
  frozen: "#7f9db0",
  gradient: "#d55e00",
  state: "#009e73",
  constant: "#8c8c8c",
  input: "#56b4e9",
  output: "#b8860b",
  saved: "#cc79a7",
  scratch: "#e6c229",
  "kernel scratch": "#9a6fb0",
};
const ANCHORS = [
  [8, 29, 88],
  [37, 82, 148],
  [65, 137, 168],
  [128, 187, 160],
  [213, 218, 122],
  [255, 240, 110],
];

export function scale(share) {
  const at = Math.min(1, Math.max(0, share)) * (ANCHORS.length - 1);
  const low = Math.min(ANCHORS.length - 2, Math.floor(at));
  return ANCHORS[low].map((value, part) => Math.round(value + (at - low) * (ANCHORS[low + 1][part] - value)));
}

/** @param {number[]} colour */
export const css = ([red, green, blue]) => `rgb(${red} ${green} ${blue})`;
/** @param {number[]} colour */
export const faint = ([red, green, blue]) => `rgb(${red} ${green} ${blue} / .5)`;

// What takes away and what adds: blue and orange, from nearly nothing to full.
export const SIGNS = [
  [0, 114, 178],
  [213, 94, 0],
];
const NOTHING = [28, 34, 38];

export function sided(value) {
  const end = value < 0 ? [86, 180, 233] : [255, 150, 40],
    share = Math.sqrt(Math.min(1, Math.abs(value)));
  return NOTHING.map((low, part) => Math.round(low + share * (end[part] - low)));
}

// A ratio in orders of magnitude as a colour: blue where it is below one, orange where it is above, pale where it is
// none.
const PALE = [236, 232, 224];
export function ratioColour(share) {
  const end = share < 0 ? [0, 82, 150] : [190, 70, 0],
    part = Math.min(1, Math.abs(share));
  return PALE.map((low, index) => Math.round(low + part * (end[index] - low)));
}

// Where a size lies between the least and the greatest, in orders of magnitude.
export function logShare(value, low, high) {
  if (!(value > 0)) return 0;
  return high > low ? (Math.log10(value) - Math.log10(low)) / (Math.log10(high) - Math.log10(low)) : 0.5;
}
