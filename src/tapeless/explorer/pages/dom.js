// Elements and numbers for people. Text from a run reaches the page as text: nothing here parses HTML.

export function h(tag, properties = {}, ...children) {
  const made = document.createElement(tag);
  for (const [name, value] of Object.entries(properties)) {
    if (value === null || value === undefined || value === false) continue;
    if (name.startsWith("on")) made.addEventListener(name.slice(2), value);
    else if (name in made && name !== "list" && name !== "form") made[name] = value;
    else made.setAttribute(name, value === true ? "" : value);
  }
  made.append(...children.flat(Infinity).filter((child) => child !== null && child !== undefined && child !== false));
  return made;
}

export const whole = (value) => Math.round(value).toLocaleString("en");

export function short(value) {
  if (value === null || value === undefined || Number.isNaN(value)) return "–";
  if (value === 0) return "0";
  const size = Math.abs(value);
  if (!Number.isFinite(value)) return value > 0 ? "∞" : "−∞";
  return size >= 1e5 || size < 1e-3 ? value.toExponential(1) : String(Number(value.toPrecision(3)));
}

export function bytes(count) {
  let value = count;
  for (const unit of ["B", "KiB", "MiB", "GiB"]) {
    if (value < 1024) return unit === "B" ? `${value} B` : `${value.toFixed(1)} ${unit}`;
    value /= 1024;
  }
  return `${value.toFixed(1)} TiB`;
}

export const percent = (share) =>
  share === 0 || share === 1 ? `${100 * share} %` : `${(100 * share).toFixed(share < 0.1 ? 1 : 0)} %`;

export function table(caption, headings, rows) {
  const cell = (kind) => (value) =>
    h(kind, { className: typeof value === "number" ? "n" : "" }, typeof value === "number" ? short(value) : value);
  return h(
    "div",
    { className: "scroll", tabIndex: 0, role: "group", ariaLabel: caption },
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
        rows.map((row) => h("tr", {}, row.map(cell("td")))),
      ),
    ),
  );
}

// A table that is only built when somebody opens it: beside every canvas there is one.
export function tableBeside(summary, make) {
  const box = h("details", {}, h("summary", {}, summary));
  const fill = () => {
    if (box.open) {
      box.lastChild.tagName !== "SUMMARY" && box.lastChild.remove();
      box.append(make());
    }
  };
  box.addEventListener("toggle", fill);
  box.refresh = fill;
  return box;
}
