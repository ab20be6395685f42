// The page of a node: figures, usage against predicted peaks, pods by class, terms and alerts.

import { actionParts, moveParts } from "./node_actions.js";
import { age, cores, element, gibibytes, percent, renew, table, UNKNOWN } from "./page_parts.js";
import { PeakCharts, exceeded, predictors } from "./peak_charts.js";
import { Refused, now } from "./queries.js";

const SPANS = { 1800: "30 minutes", 3600: "1 hour", 21600: "6 hours", 86400: "1 day" };
const MEBIBYTE = 2 ** 20;

export class NodePage {
  constructor(node, navigate, address) {
    this.node = node;
    this.address = address;
    this.state = null;
    this.hidden = new Set();
    this.charts = new PeakCharts((name) => {
      const hidden = this.hidden.has(name) ? [...this.hidden].filter((each) => each !== name) : [...this.hidden, name];
      navigate({ hide: listed(hidden) }, { replace: true });
    });
    this.heading = element("h1", { tabIndex: -1 }, node);
    this.spans = element("select", { name: "span" }, Object.entries(SPANS).map(([value, text]) =>
      element("option", { value }, text)));
    this.spans.addEventListener("change", () => navigate({ span: this.spans.value }, { replace: true }));
    this.facts = element("div");
    this.details = element("div");
    this.root = element("div", {},
      element("p", {}, element("a", { href: address({ node: "" }) }, "All nodes")),
      this.heading, this.facts,
      element("h2", {}, "Usage against predicted peaks"),
      element("div", { className: "controls" }, element("label", {}, "Range", this.spans)),
      this.charts.root, this.details);
  }

  // Whether another range is asked for.
  update({ span, hide }) {
    const old = this.span;
    this.hidden = new Set(names(hide));
    this.span = Object.hasOwn(SPANS, span) ? span : "3600";
    this.spans.value = this.span;
    if (this.span !== old) return true;
    this.resize();
    return false;
  }

  async load(ask) {
    const path = `v1/nodes/${encodeURIComponent(this.node)}`;
    const [state, series, peaks, view, actions, relief] = await Promise.all([
      ask(path), ask(`${path}/series?last=${this.span}`).catch(problemOf),
      ask(`${path}/peaks?last=${this.span}`).catch(problemOf), ask(`${path}/view`).catch(problemOf),
      ask(`${path}/actions`).catch(problemOf), ask("v1/relief").catch(problemOf),
    ]);
    return { state, series, peaks, view, actions, relief };
  }

  draw({ state, series, peaks, view, actions, relief }) {
    Object.assign(this, { state, series, peaks, view });
    this.charts.root.hidden = state === null;
    if (state === null) {
      this.close();
      this.details.replaceChildren();
      this.facts.replaceChildren(element("p", { className: "note" },
        "No window of this node is known: it is unknown, or has published none yet."));
      return;
    }
    this.tick();
    this.charts.draw(this);
    renew(this.details,
      element("h2", {}, "Alerts"), alerts(state),
      element("h2", {}, "Predicted peaks"), peakTable(state, peaks),
      element("h2", {}, "Moves"), ...moveParts(relief, this.node, this.address),
      element("h2", {}, "What was done"), ...actionParts(actions),
      element("h2", {}, "Pods by class"), ...pods(state, view),
      element("h2", {}, "Terms of Mid and Batch"), ...terms(view));
  }

  // The node gets older, also while nothing else changes.
  tick() {
    if (this.state) renew(this.facts, facts(this.state), figures(this.state, this.view));
  }

  resize() {
    if (this.state) this.charts.draw(this);
  }

  close() {
    this.charts.close();
  }
}

// Names as one parameter of the URL, and back: a name may have a comma, too.
function listed(all) {
  return all.map((name) => name.replaceAll("%", "%25").replaceAll(",", "%2C")).join(",");
}

function names(list) {
  return list.split(",").filter(Boolean).map((name) => name.replaceAll("%2C", ",").replaceAll("%25", "%"));
}

// What a part of the page shows whose query failed, while the others are shown.
function problemOf(error) {
  if (error instanceof Refused) throw error;
  return { problem: error.message };
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

function peakTable(state, peaks) {
  return table("Peak of the node by predictor, with the safety margin; and the steps of five minutes in the range in which usage was above it",
    [["Predictor", false], ["Cores", true], ["Steps above", true], ["Memory", true], ["Steps above", true], ["Role", false]],
    predictors(state, peaks).map((name) => {
      const [cpu, memory] = amounts(state.peaks[name]);
      const [cpuSteps, memorySteps] = ["cpu_cores", "memory_bytes"].map((column) => exceeded(peaks, name, column) ?? UNKNOWN);
      return [name, cpu, cpuSteps, memory, memorySteps, name === state.predictor ? "decides" : ""];
    }));
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
