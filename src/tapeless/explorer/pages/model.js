// What the views are functions of: the runs, what is known of each, and who wants to hear of news.

import { json, listen, numbers } from "./api.js";
import { RUNS } from "./colour.js";

const CHUNK = 64; // rows of a record fetched together

export class Run {
  constructor(number, about) {
    this.number = number;
    this.about = about;
    this.name = about.name;
    this.shown = number < 4;
    this.colour = RUNS[number % RUNS.length];
    this.curves = { generation: 0, cursor: 0, steps: {}, evaluations: [], events: [], error: null };
    this.record = null;
    this.recordError = "";
    this.doctor = null;
    this.heats = new Map();
    this.chunks = new Map();
  }

  path(what) {
    return `/api/runs/${this.number}/${what}`;
  }

  async readCurves() {
    const { generation, cursor, steps } = this.curves;
    const found = await json(this.path(`curves?generation=${generation}&cursor=${cursor}`));
    if (!found.fresh) {
      for (const [name, values] of Object.entries(found.steps)) found.steps[name] = (steps[name] ?? []).concat(values);
    }
    this.curves = found;
  }

  async readDoctor() {
    this.doctor = await json(this.path("doctor")).catch((error) => ({ error: error.message }));
  }

  async readRecord() {
    this.heats.clear();
    this.chunks.clear();
    const found = await json(this.path("record")).catch((error) => ({ error: error.message }));
    this.record = found.error ? null : found;
    this.recordError = found.error ?? "";
  }

  heat(what, bins, span = null) {
    const key = `${what} ${bins} ${span}`;
    if (!this.heats.has(key)) {
      const made = numbers(
        this.path(`heat?what=${what}&bins=${bins}${span ? `&from=${span[0]}&to=${span[1]}` : ""}`),
        Float64Array,
      ).then(([head, values]) => {
        const lines = head.lines.length,
          wide = 2 + 2 * lines;
        const column = (at) => Float64Array.from({ length: head.bins }, (_, bin) => values[bin * wide + at]);
        return {
          ...head,
          values,
          wide,
          steps: column(0),
          rows: column(1),
          low: (bin, line) => values[bin * wide + 2 + line],
          high: (bin, line) => values[bin * wide + 2 + lines + line],
        };
      });
      this.heats.set(key, made);
      made.catch(() => this.heats.delete(key));
    }
    return this.heats.get(key);
  }

  // The steps from one to another: asked for anew where several steps stand in one bin, else cut out of the whole.
  async zoomed(what, bins, span) {
    const whole = await this.heat(what, bins);
    if (!span) return whole;
    if (whole.bins < this.record.rows) {
      const found = await this.heat(what, bins, span).catch(() => null); // a page that was saved has the whole alone
      if (found?.bins) return found;
    }
    const inside = [...whole.steps].flatMap((step, bin) => (step >= span[0] && step <= span[1] ? [bin] : [])),
      first = inside[0] ?? 0;
    return {
      ...whole,
      bins: inside.length,
      steps: whole.steps.slice(first, first + inside.length),
      rows: whole.rows.slice(first, first + inside.length),
      low: (bin, line) => whole.low(bin + first, line),
      high: (bin, line) => whole.high(bin + first, line),
    };
  }

  // One row of the record; rows come in chunks, so that a slider does not wait for each.
  async row(index) {
    const chunk = Math.floor(index / CHUNK);
    if (!this.chunks.has(chunk)) {
      const made = numbers(this.path(`rows?from=${chunk * CHUNK}&to=${(chunk + 1) * CHUNK}`), Float32Array);
      this.chunks.set(chunk, made);
      made.catch(() => this.chunks.delete(chunk));
    }
    const [head, values] = await this.chunks.get(chunk);
    const at = Math.min(index - head.from, head.rows - 1);
    return values.subarray(at * head.width, (at + 1) * head.width);
  }
}

export class Model {
  constructor(runs) {
    this.runs = runs;
    this.listeners = new Set();
    this.span = null; // the steps that are looked at, where it is not all of them
    this.states = new Map();
  }

  get shown() {
    return this.runs.filter((run) => run.shown);
  }

  tell(what) {
    for (const listener of [...this.listeners]) listener(what);
  }

  async load() {
    await Promise.all(
      this.runs.map((run) =>
        Promise.all([
          run.readCurves().catch((error) => {
            run.curves.error = error.message;
          }),
          run.readRecord(),
          run.readDoctor(),
        ]),
      ),
    );
    this.tell("all");
  }

  // Follow what the server says while the page is seen; a hidden one closes its stream. A server that was started again
  // has another token, and will never answer this page.
  follow(said) {
    let stop = null,
      refused = false;
    const begin = async () => {
      stop?.abort();
      if (document.hidden || refused) return;
      stop = new AbortController();
      const mine = stop,
        error = await listen((state) => this.hear(state, said), mine.signal).catch((each) => each);
      if (mine.signal.aborted) return;
      if (!error) return begin(); // after a while the server ends every stream
      refused = Boolean(error.refused);
      said(refused || error.status ? error.message : "the server does not answer; trying again", true);
      if (!refused) setTimeout(() => mine === stop && begin(), 2000);
    };
    document.addEventListener("visibilitychange", begin);
    window.addEventListener("pagehide", () => stop?.abort());
    begin();
  }

  async hear(state, said) {
    const run = this.runs[state.run],
      before = this.states.get(state.run);
    if (!run) return;
    this.states.set(state.run, state);
    run.about.trains = state.trains;
    const training = this.runs.filter((each) => each.about.trains).length;
    said(training ? `live: ${training} ${training === 1 ? "run trains" : "runs train"} now` : "nothing trains now");
    const left = Boolean(before) && before.there !== state.there;
    if (!before || left || String(before.metrics) !== String(state.metrics)) await run.readCurves().catch(() => {});
    if (before && (left || String(before.record) !== String(state.record))) await run.readRecord();
    if (before && before.trains && !state.trains) await run.readDoctor();
    if (before) this.tell("news");
  }
}
