// Charts of a node: usage against what each predictor predicted at each time, and their legend.

import { age, element } from "./page_parts.js";
import { now } from "./queries.js";
import uPlot from "./uplot.js";

const SPANS = { 1800: "30 minutes", 3600: "hour", 21600: "6 hours", 86400: "day" };
const LONGEST_OF_WINDOWS = 3600;  // Beyond, the usage of a step is its highest window.
const RESOURCES = {
  cpu: { title: "CPU", column: "cpu_cores", unit: "cores", shown: (cpu) => cpu },
  memory: { title: "Memory", column: "memory_bytes", unit: "GiB", shown: (bytes) => bytes / 2 ** 30 },
};
const COLOURS = 4;
const DASHES = [[8, 5], [2, 3], [12, 4, 2, 4], [5, 3], [16, 5], [2, 7], [10, 3, 3, 3], [4, 8]];

export class PeakCharts {
  // `toggle` is told the name of a predictor whose line is to be shown or hidden.
  constructor(toggle) {
    this.toggle = toggle;
    this.charts = [];
    this.names = null;
    this.legend = element("fieldset", { className: "legend" });
    this.figures = element("div");
    this.root = element("div", {}, this.legend, this.figures);
  }

  // New charts take the place of the old ones at once: a shorter page would scroll.
  draw(node) {
    this.close();
    const { state, series, peaks, hidden, span } = node;
    const names = predictors(state, peaks);
    this.drawLegend(names, state.predictor, hidden);
    const isShort = Number(span) <= LONGEST_OF_WINDOWS, usage = isShort ? series : peaks;
    const problems = [
      !usage?.[isShort ? "as_of" : "begin"]?.length
        && (usage?.problem ? `No usage is shown: ${usage.problem}` : "The extender has no windows of this node in this range."),
      withoutHistory(names, state, peaks),
      peaks?.problem && `No earlier predictions are shown: ${peaks.problem}`,
      heldSince(peaks, span),
    ].filter(Boolean);
    const width = this.root.clientWidth;
    this.figures.replaceChildren(...problems.map((text) => element("p", { className: "note" }, text)),
      ...Object.values(RESOURCES).flatMap((resource) => this.drawChart(resource, node, names, isShort, width)),
      element("p", { className: "note" }, `${isShort ? "" : "Usage is the highest window of each five minutes. "}`
        + "A line of a predictor has at each time the peak that it predicted then. It should hold from "
        + "then on for model.horizon_seconds, a day unless set otherwise."));
  }

  close() {
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
  }

  // Boxes that are there again stay, and with them the focus.
  drawLegend(names, deciding, hidden) {
    const key = JSON.stringify([names, deciding]);
    if (key !== this.names) {
      this.names = key;
      this.boxes = names.map((name) => element("input", { type: "checkbox", onchange: () => this.toggle(name) }));
      this.legend.replaceChildren(element("legend", {}, "Lines"),
        element("span", {}, swatch("usage", []), "usage"),
        ...names.map((name, i) => element("label", {}, this.boxes[i], swatch(`peak-${i % COLOURS}`, DASHES[i % DASHES.length]),
          name === deciding ? `${name}, decides` : name)),
        element("span", {}, swatch("faint", [2, 4]), "allocatable"));
    }
    names.forEach((name, i) => { this.boxes[i].checked = !hidden.has(name); });
  }

  drawChart({ title, column, unit, shown }, { state, series, peaks, hidden, span }, names, isShort, width) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    const known = (amount) => (amount === null || amount === undefined ? null : shown(amount));
    const end = Date.parse(state.as_of) / 1000, step = peaks?.step_seconds ?? state.window_seconds;
    const steps = (values, last) => stepPoints(peaks, values?.map(known), end, last);
    const usage = isShort
      ? withGaps((series?.as_of ?? []).map((time) => Date.parse(time) / 1000), (series?.usage?.[column] ?? []).map(known), state.window_seconds)
      : steps(peaks?.usage?.[column], null);
    const lines = [{ label: "usage", table: usage, look: { stroke: colour("usage"), width: 2 } }];
    const said = [];
    names.forEach((name, i) => {
      if (hidden.has(name)) return;
      const peak = known(state.peaks[name]?.[column]);
      const look = { stroke: colour(`peak-${i % COLOURS}`), width: name === state.predictor ? 2.5 : 1.5, dash: DASHES[i % DASHES.length] };
      lines.push({ label: name, table: steps(peaks?.peaks?.[name]?.[column], peak), look });
      said.push(`${name} ${amount(peak, unit)}`);
    });
    const room = known(state.allocatable[column]);
    if (room !== null) {
      const times = lines.flatMap(({ table: [of] }) => (of.length ? [of[0], of.at(-1)] : []));
      const first = Math.min(end - step, ...times), last = Math.max(end, ...times);
      lines.push({ label: "allocatable", table: [[first, last], [room, room]], look: { stroke: colour("faint"), width: 1, dash: [2, 4] } });
    }
    const values = usage[1].filter((value) => value !== null);
    const highest = values.length ? values.reduce((most, value) => Math.max(most, value)) : null;
    const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    const figure = element("div", { className: "chart", role: "img", "aria-label":
      `${title} of the last ${SPANS[span]}: highest usage ${amount(highest, unit)}, allocatable ${amount(room, unit)}, predicted now: ${said.join(", ") || "nothing is shown"}` });
    this.charts.push(new uPlot({
      width, height: 240, legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 0.01) * 1.05] } },
      axes: [axis, { ...axis, size: 60 }],
      series: [{}, ...lines.map(({ label, look }) => ({ label, points: { show: label === "usage" && values.length < 2 }, ...look }))],
    }, uPlot.join(lines.map(({ table }) => table)), figure));
    return [element("h3", {}, `${title}, ${unit}`), figure];
  }
}

// How often usage of a step was above the peak that was predicted in it, of the steps where both are
// known; null where none is.
export function exceeded(peaks, name, column) {
  const predicted = peaks?.peaks?.[name]?.[column] ?? [], used = peaks?.usage?.[column] ?? [];
  const both = predicted.map((peak, i) => [peak, used[i]]).filter(([peak, usage]) => peak !== null && usage !== null);
  return both.length ? `${both.filter(([peak, usage]) => usage > peak).length} of ${both.length}` : null;
}

// The predictors with a peak now or in the range, the deciding one first.
export function predictors(state, peaks) {
  const names = new Set([...Object.keys(state.peaks), ...Object.keys(peaks?.peaks ?? {})]);
  return [...names].sort((a, b) => (b === state.predictor) - (a === state.predictor) || (a < b ? -1 : 1));
}

function amount(value, unit) {
  return value === null ? "unknown" : `${value.toFixed(2)} ${unit}`;
}

// What a reader must know of the begin of a history that is shorter than the range.
function heldSince(peaks, span) {
  const first = peaks?.held_from ? Date.parse(peaks.held_from) / 1000 : null;
  if (first === null || now() - first > span) return null;
  return `The extender has predictions of the last ${age(now() - first)} in memory: it started then, or the node came then.`;
}

// What a reader must know of predictors of which the extender holds no predictions.
function withoutHistory(names, state, peaks) {
  const known = ({ cpu_cores: cpu, memory_bytes: memory }) => (cpu ?? memory ?? null) !== null;
  const missing = peaks?.begin?.length
    ? names.filter((name) => !peaks.peaks[name] && known(state.peaks[name] ?? {})) : [];
  return missing.length ? `No earlier predictions of ${missing.join(", ")} are in memory: the extender holds those of a few predictors.` : null;
}

// A line of a length with a pattern, as in the charts.
function swatch(colour, dash) {
  const line = document.createElementNS("http://www.w3.org/2000/svg", "line");
  const attributes = { x1: 0, y1: 5, x2: 32, y2: 5, "stroke-width": 2.5, "stroke-dasharray": dash.join(" ") };
  for (const [name, value] of Object.entries(attributes)) line.setAttribute(name, value);
  line.style.stroke = `var(--${colour})`;
  const svg = document.createElementNS("http://www.w3.org/2000/svg", "svg");
  for (const [name, value] of Object.entries({ width: 32, height: 10, "aria-hidden": "true" })) svg.setAttribute(name, value);
  svg.append(line);
  return svg;
}

// Times and values of steps: a value from the begin of its step to the end, and none where it is not
// known. The last step ends with the node's last window, and there with the value `last`.
function stepPoints(peaks, values, end, last) {
  const times = [], amounts = [], length = peaks?.step_seconds ?? 60;
  const add = (time, value) => {
    if (time <= (times.at(-1) ?? -Infinity)) return;
    times.push(time);
    amounts.push(value);
  };
  (peaks?.begin ?? []).forEach((text, i) => {
    const begin = Date.parse(text) / 1000, value = values?.[i] ?? null;
    add(begin, value);
    if (value !== null) add(Math.min(begin + length - 1, end - 1), value);
  });
  if (last !== null) {
    if (!times.length) add(end - length, last);
    add(end, last);
  }
  return [times, amounts];
}

// Times and values with a point of no value in each gap, so that no line is drawn over it.
function withGaps(times, values, windowSeconds) {
  const points = times.flatMap((time, i) => (time - times[i - 1] > 1.5 * windowSeconds
    ? [[times[i - 1] + windowSeconds, null], [time, values[i]]] : [[time, values[i]]]));
  return [points.map(([time]) => time), points.map(([, value]) => value)];
}
