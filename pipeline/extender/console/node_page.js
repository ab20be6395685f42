// The page of a node: figures, usage against predicted peaks, pods by class, terms and alerts.

import { age, cores, element, gibibytes, percent, table, UNKNOWN } from "./page_parts.js";
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
    this.span = 3600;
    this.heading = element("h1", { tabIndex: -1 }, node);
    const spans = element("select", { name: "span" }, Object.entries(SPANS).map(([value, text]) =>
      element("option", { value, selected: Number(value) === this.span }, text)));
    spans.addEventListener("change", () => {
      this.span = Number(spans.value);
      navigate({}, { replace: true });
    });
    this.facts = element("div");
    this.chartsRoot = element("div");
    this.details = element("div");
    this.root = element("div", {},
      element("p", {}, element("a", { href: address({ node: "" }) }, "All nodes")),
      this.heading, this.facts,
      element("h2", {}, "Usage against predicted peaks"),
      element("div", { className: "controls" }, element("label", {}, "Range", spans)),
      this.chartsRoot, this.details);
  }

  update() {}

  async load(ask) {
    const path = `v1/nodes/${encodeURIComponent(this.node)}`;
    const [state, series, view] = await Promise.all([
      ask(path), ask(`${path}/series?last=${this.span}`).catch(without), ask(`${path}/view`).catch(without),
    ]);
    return { state, series, view };
  }

  draw({ state, series, view }) {
    if (state === null) {
      this.facts.replaceChildren(element("p", { className: "note" },
        "No window of this node is known: it is unknown, or has published none yet."));
      return;
    }
    this.series = series;
    this.state = state;
    this.facts.replaceChildren(facts(state), figures(state, view));
    this.drawCharts();
    this.details.replaceChildren(
      element("h2", {}, "Alerts"), alerts(state),
      element("h2", {}, "Predicted peaks"), peaks(state),
      element("h2", {}, "Pods by class"), ...pods(state, view),
      element("h2", {}, "Terms of Mid and Batch"), ...terms(view));
  }

  resize() {
    if (this.state) this.drawCharts();
  }

  close() {
    this.charts.forEach((chart) => chart.destroy());
  }

  drawCharts() {
    this.close();
    this.charts = [];
    this.chartsRoot.replaceChildren();
    if (!this.series || !this.series.as_of.length) {
      this.chartsRoot.append(element("p", { className: "note" },
        "The extender has no windows of this node in this range (extender.history_windows)."));
      return;
    }
    for (const [resource, of] of Object.entries(RESOURCES)) this.drawChart(resource, of);
  }

  drawChart(resource, { title, column, unit, shown }) {
    const { state, series } = this;
    const style = getComputedStyle(document.documentElement);
    const colours = Object.fromEntries(["ink", "line", "usage", "peak", "faint"]
      .map((name) => [name, style.getPropertyValue(`--${name}`)]));
    const times = series.as_of.map((end) => Date.parse(end) / 1000);
    const known = (amount) => (amount === null || amount === undefined ? null : shown(amount));
    const usage = series.usage[column].map(known);
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
    const highest = usage.reduce((most, value) => Math.max(most, value ?? 0), 0);
    const axis = { stroke: colours.ink, grid: { stroke: colours.line, width: 1 }, ticks: { stroke: colours.line } };
    const figure = element("div", { className: "chart", role: "img", "aria-label":
      `${title} of the last ${SPANS[this.span]}: highest window ${highest.toFixed(2)} ${unit}, `
      + `predicted peak ${peak === null ? "unknown" : `${peak.toFixed(2)} ${unit}`}` });
    this.chartsRoot.append(element("h3", {}, `${title}, ${unit}`), figure,
      element("p", { className: "note" }, lines.map(([name], i) => `${["solid", "dashed", "dotted"][i === lines.length - 1 && room !== null && i ? 2 : Math.min(i, 1)]}: ${name}`).join(" · ")));
    this.charts.push(new uPlot({
      width: this.chartsRoot.clientWidth, height: 220, legend: { show: false },
      cursor: { drag: { x: false, y: false } },
      scales: { y: { range: (_, low, high) => [0, Math.max(high, 0.01) * 1.05] } },
      axes: [axis, { ...axis, size: 60 }],
      series: [{}, ...lines.map(([label, , look]) => ({ label, points: { show: times.length < 2 }, ...look }))],
    }, [times, ...lines.map(([, values]) => values)], figure));
  }
}

// What an optional part of the page shows when its query fails: nothing.
function without() {
  return null;
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
  const notes = [`Last window ${age(state.age_seconds)} ago${state.stale ? ", stale" : ""}`,
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
  if (!view) return [usage, element("p", { className: "note" }, "The extender has no list of its pods.")];
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
  if (!offered) return [element("p", { className: "note" }, "The node has no Mid and Batch.")];
  return [["Mid", offered.mid, offered.mid_terms], ["Batch", offered.batch, offered.batch_terms]]
    .map(([name, amount, parts]) => table(`Terms of ${name}`,
      [["Term", false], ["Cores", true], ["Memory", true]],
      [...Object.entries(parts ?? {}).map(([term, of]) => [term.replaceAll("_", " "), ...resources(of)]),
        [`${name} offered`, ...resources(amount)]]));
}
