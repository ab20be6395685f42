// The page of a node: figures, usage against predicted peaks, pods by class, terms and alerts.

import { age, cores, element, gibibytes, percent, renew, table, UNKNOWN } from "./page_parts.js";
import { Refused, now } from "./queries.js";
import uPlot from "./uplot.js";

const SPANS = { 1800: "30 minutes", 3600: "1 hour", 21600: "6 hours", 86400: "1 day" };
const RESOURCES = {
  cpu: { title: "CPU", column: "cpu_cores", unit: "cores", shown: (cpu) => cpu },
  memory: { title: "Memory", column: "memory_bytes", unit: "GiB", shown: (bytes) => bytes / 2 ** 30 },
};
const MEBIBYTE = 2 ** 20;

export class NodePage {
  constructor(node, navigate, address) {
    this.node = node;
    this.charts = [];
    this.state = null;
    this.heading = element("h1", { tabIndex: -1 }, node);
    this.spans = element("select", { name: "span" }, Object.entries(SPANS).map(([value, text]) =>
      element("option", { value }, text)));
    this.spans.addEventListener("change", () => navigate({ span: this.spans.value }, { replace: true }));
    this.facts = element("div");
    this.chartsRoot = element("div");
    this.details = element("div");
    this.root = element("div", {},
      element("p", {}, element("a", { href: address({ node: "" }) }, "All nodes")),
      this.heading, this.facts,
      element("h2", {}, "Usage against predicted peaks"),
      element("div", { className: "controls" }, element("label", {}, "Range", this.spans)),
      this.chartsRoot, this.details);
  }

  // Whether another range is asked for.
  update({ span }) {
    const old = this.span;
    this.span = Object.hasOwn(SPANS, span) ? span : "3600";
    this.spans.value = this.span;
    return this.span !== old;
  }

  async load(ask) {
    const path = `v1/nodes/${encodeURIComponent(this.node)}`;
    const [state, series, view] = await Promise.all([
      ask(path), ask(`${path}/series?last=${this.span}`).catch(problemOf), ask(`${path}/view`).catch(problemOf),
    ]);
    return { state, series, view };
  }

  draw({ state, series, view }) {
    this.state = state;
    this.series = series;
    this.view = view;
    if (state === null) {
      this.close();
      this.chartsRoot.replaceChildren();
      this.details.replaceChildren();
      this.facts.replaceChildren(element("p", { className: "note" },
        "No window of this node is known: it is unknown, or has published none yet."));
      return;
    }
    this.tick();
    this.drawCharts();
    renew(this.details,
      element("h2", {}, "Alerts"), alerts(state),
      element("h2", {}, "Predicted peaks"), peaks(state),
      element("h2", {}, "Pods by class"), ...pods(state, view),
      element("h2", {}, "Terms of Mid and Batch"), ...terms(view));
  }

  // The node gets older, also while nothing else changes.
  tick() {
    if (this.state) renew(this.facts, facts(this.state), figures(this.state, this.view));
  }

  resize() {
    if (this.state) this.drawCharts();
  }

  close() {
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
  }

  // New charts take the place of the old ones at once: a shorter page would scroll.
  drawCharts() {
    const { series } = this, width = this.chartsRoot.clientWidth;
    this.close();
    this.chartsRoot.replaceChildren(...(series?.as_of?.length
      ? Object.values(RESOURCES).flatMap((resource) => this.drawChart(resource, width))
      : [element("p", { className: "note" }, series?.problem ? `No usage is shown: ${series.problem}`
        : "The extender has no windows of this node in this range (extender.history_windows).")]));
  }

  drawChart({ title, column, unit, shown }, width) {
    const { state, series } = this;
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(["ink", "line", "usage", "peak", "faint"]
      .map((name) => [name, style.getPropertyValue(`--${name}`)]));
    const known = (amount) => (amount === null || amount === undefined ? null : shown(amount));
    const [times, usage] = withGaps(series.as_of.map((end) => Date.parse(end) / 1000),
      series.usage[column].map(known), state.window_seconds);
    const peak = known(state.peaks[state.predictor]?.[column]);
    const room = known(state.allocatable[column]);
    const constant = (value) => times.map(() => value);
    const lines = [["usage", usage, { stroke: colours.usage, width: 2 }]];
    if (peak !== null) {
      lines.push([`predicted peak by ${state.predictor}, now`, constant(peak),
        { stroke: colours.peak, width: 2, dash: [8, 5] }]);
    }
    if (room !== null) {
      lines.push(["allocatable", constant(room), { stroke: colours.faint, width: 1, dash: [2, 4] }]);
    }
    const values = usage.filter((value) => value !== null);
    const amount = (value) => (value === null ? "unknown" : `${value.toFixed(2)} ${unit}`);
    const highest = values.length ? values.reduce((most, value) => Math.max(most, value)) : null;
    const axis = { stroke: colours.ink, grid: { stroke: colours.line, width: 1 }, ticks: { stroke: colours.line } };
    const figure = element("div", { className: "chart", role: "img", "aria-label":
      `${title} of the last ${SPANS[this.span]}: highest window ${amount(highest)}, predicted peak ${amount(peak)}` });
    const parts = [element("h3", {}, `${title}, ${unit}`), figure,
      element("p", { className: "note" }, lines.map(([name], i) => `${["solid", "dashed", "dotted"][i === lines.length - 1 && room !== null && i ? 2 : Math.min(i, 1)]}: ${name}`).join(" · "))];
    this.charts.push(new uPlot({
      width, height: 220, legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 0.01) * 1.05] } },
      axes: [axis, { ...axis, size: 60 }],
      series: [{}, ...lines.map(([label, , look]) => ({ label, points: { show: times.length < 2 }, ...look }))],
    }, [times, ...lines.map(([, values]) => values)], figure));
    return parts;
  }
}

// What a part of the page shows whose query failed, while the others are shown.
function problemOf(error) {
  if (error instanceof Refused) throw error;
  return { problem: error.message };
}

// Times and values with a point of no value in each gap, so that no line is drawn over it.
function withGaps(times, values, windowSeconds) {
  const points = times.flatMap((time, i) => (time - times[i - 1] > 1.5 * windowSeconds
    ? [[times[i - 1] + windowSeconds, null], [time, values[i]]] : [[time, values[i]]]));
  return [points.map(([time]) => time), points.map(([, value]) => value)];
}

function amounts(usage) {
  const cpu = usage?.cpu_cores ?? null, memory = usage?.memory_bytes ?? null;
  return [cores(cpu === null ? null : cpu * 1000), gibibytes(memory === null ? null : memory / MEBIBYTE)];
}

function resources(amount) {
  const memory = amount?.memory_bytes ?? null;
  return [cores(amount?.cpu_millicores ?? null), gibibytes(memory === null ? null : memory / MEBIBYTE)];
}

function share(used, of) {
  return ["cpu_cores", "memory_bytes"].map((column) => {
    const value = used?.[column] ?? null, room = of?.[column] ?? null;
    return percent(value === null || !(room > 0) ? null : value / room);
  });
}

function facts(state) {
  const notes = [`Last window ${age(now() - Date.parse(state.as_of) / 1000)} ago${state.stale ? ", stale" : ""}`,
    `${Math.round(state.coverage * 100)}% measured`, `${state.pods} pods`,
    `predictor ${state.predictor || UNKNOWN}`, ...state.oddities];
  if (state.simulated) notes.push("simulated");
  return element("p", { className: "note" }, notes.join(" · "));
}

function figures(state, view) {
  const peak = state.peaks[state.predictor];
  const rows = [["Usage", state.usage], ["Predicted peak", peak], ["Predicted peak of Prod", state.prod_peak],
    ["Requested by Prod and not needed", state.prod_reclaimable], ["Allocatable", state.allocatable]]
    .map(([name, usage]) => {
      const [cpu, memory] = amounts(usage), [cpuShare, memoryShare] = share(usage, state.allocatable);
      return [name, cpu, cpuShare, memory, memoryShare];
    });
  for (const [name, offer] of [["Offered as Mid", view?.resources?.mid], ["Offered as Batch", view?.resources?.batch]]) {
    const [cpu, memory] = resources(offer);
    rows.push([name, cpu, "", memory, ""]);
  }
  return table("Figures of the last window",
    [["Figure", false], ["Cores", true], ["of allocatable", true], ["Memory", true], ["of allocatable", true]], rows);
}

function alerts(state) {
  if (!state.alerts.length) return element("p", { className: "note" }, "No alert is open.");
  return table("Open alerts",
    [["Rule", false], ["Severity", false], ["Usage", true], ["Threshold", true], ["Since", false]],
    state.alerts.map((alert) => [alert.rule, element("span", { className: "hot" }, alert.severity),
      alert.usage_percent === null ? UNKNOWN : `${alert.usage_percent.toFixed(1)}%`,
      alert.threshold_percent === null ? UNKNOWN : `${alert.threshold_percent.toFixed(1)}%`, alert.since]));
}

function peaks(state) {
  return table("Peak of the node by predictor, with the safety margin",
    [["Predictor", false], ["Cores", true], ["Memory", true], ["Role", false]],
    Object.entries(state.peaks).map(([name, peak]) =>
      [name, ...amounts(peak), name === state.predictor ? "decides" : ""]));
}

function pods(state, view) {
  const usage = table("Usage by class in the last window", [["Class", false], ["Cores", true], ["Memory", true]],
    Object.entries(state.class_usage).map(([name, used]) => [name, ...amounts(used)]));
  if (!view?.pods) {
    return [usage, element("p", { className: "note" }, view?.problem ? `No pods are shown: ${view.problem}`
      : "The extender has no list of its pods.")];
  }
  const order = ["prod", "mid", "batch", "free", "none"];
  const listed = [...view.pods].sort((a, b) =>
    order.indexOf(a.pod_class) - order.indexOf(b.pod_class) || a.name.localeCompare(b.name));
  return [usage, table(`${listed.length} pods`,
    [["Pod", false], ["Class", false], ["Phase", false], ["Requested cores", true], ["Requested memory", true]],
    listed.map((pod) => [`${pod.namespace}/${pod.name}`, pod.pod_class ?? "none",
      pod.deleting ? "being deleted" : pod.phase || UNKNOWN, ...resources(pod.requests)]))];
}

function terms(view) {
  const offered = view?.resources;
  if (!offered) return [element("p", { className: "note" }, "The extender has no Mid and Batch of this node.")];
  return [["Mid", offered.mid, offered.mid_terms], ["Batch", offered.batch, offered.batch_terms]]
    .map(([name, amount, parts]) => table(`Terms of ${name}`,
      [["Term", false], ["Cores", true], ["Memory", true]],
      [...Object.entries(parts ?? {}).map(([term, of]) => [term.replaceAll("_", " "), ...resources(of)]),
        [`${name} offered`, ...resources(amount)]]));
}
