// Published results of `springtide what-if`: what another policy would have done.

import { note, oldness } from "./document_page.js";
import { age, cores, element, gibibytes, renew, table, UNKNOWN } from "./page_parts.js";
import { now } from "./queries.js";
import uPlot from "./uplot.js";

const COMMAND = "springtide what-if --live --policy new.yaml --against old.yaml --publish NAME";
const USUAL = "batch_cpu_millicores";
const TEXTS = {
  millicores: cores,
  bytes: (value) => gibibytes(value / 2 ** 20),
  share: (value) => `${(100 * value).toFixed(1)}%`,
  count: (value) => value.toFixed(0),
  hours: (value) => `${value.toFixed(1)} h`,
};
const SCALES = { millicores: [1000, "cores"], bytes: [2 ** 30, "GiB"], share: [0.01, "%"], count: [1, ""], hours: [1, "h"] };

export class WhatIfPage {
  constructor(navigate) {
    this.document = null;
    this.charts = [];
    this.heading = element("h1", { tabIndex: -1 }, "What-if results");
    this.results = this.choice("result", navigate);
    this.measures = this.choice("measure", navigate);
    this.body = element("div", {}, note("Loading …"));
    this.figures = element("div");
    this.spread = element("div", { hidden: true }, element("h2", {}, "From node to node"),
      element("div", { className: "controls" }, element("label", {}, "Measure", this.measures)), this.figures);
    this.details = element("div");
    this.controls = element("div", { className: "controls", hidden: true }, element("label", {}, "Result", this.results));
    this.root = element("div", {}, this.heading, this.controls, this.body, this.spread, this.details);
  }

  choice(name, navigate) {
    const select = element("select", { name });
    select.addEventListener("change", () => navigate({ [name]: select.value }, { replace: true }));
    return select;
  }

  update(state) {
    this.state = state;
    if (this.document) this.render();
  }

  async load(ask) {
    const document = await ask("v1/what-if");
    if (document?.kind !== "WhatIf") throw new Error("the answer is no WhatIf of an extender");
    return document;
  }

  draw(document, state) {
    this.state = state;
    if (this.document === document) return this.tick();
    this.document = document;
    this.render();
  }

  // Ages grow, also while nothing else changes.
  tick() {
    if (this.document) renew(this.body, ...oldness(this.document), ...this.summary());
  }

  resize() {
    if (this.document) this.drawCharts();
  }

  close() {
    this.charts.forEach((chart) => chart.destroy());
    this.charts = [];
  }

  // The result that the URL names, else the newest.
  get result() {
    return this.state.result === "" ? this.document.items[0]
      : this.document.items.find(({ name }) => name === this.state.result);
  }

  render() {
    const { items } = this.document, { result } = this;
    const names = items.map(({ name }) => name);
    if (this.state.result && !names.includes(this.state.result)) names.push(this.state.result);
    offer(this.results, names.map((name) => [name, name]), this.state.result || names[0]);
    this.controls.hidden = !names.length;
    const measures = new Map((result?.traces ?? []).flatMap((trace) =>
      trace.measures.filter(hasSpread).map((each) => [each.key, measureName(each)])));
    this.measure = measures.has(this.state.measure) ? this.state.measure : measures.has(USUAL) ? USUAL : [...measures.keys()][0];
    offer(this.measures, [...measures], this.measure);
    this.spread.hidden = !measures.size;
    renew(this.details, ...(result ? difference(result) : []), ...this.others());
    this.tick();
    this.drawCharts();
  }

  summary() {
    const { result } = this;
    if (!this.document.items.length) {
      return [note("No result is published. This command replays past usage under two policies, and publishes what would have been:"),
        element("pre", { tabIndex: 0 }, COMMAND)];
    }
    if (!result) return [note("This result is not published, or is no longer listed.")];
    return [note(`${result.policy} compared with ${result.against || "the settings of the command alone"}, `
      + `published ${age(now() - result.published_at_seconds)} ago. Nothing was changed in the cluster.`),
    ...result.traces.flatMap((trace) => [traceTable(trace), ...trace.notes.map((text) => note(text))])];
  }

  others() {
    const { more, refused } = this.document, parts = [];
    if (more) parts.push(note(`Not listed: ${more} older.`));
    if (refused.length) {
      parts.push(element("h2", {}, "Refused records"), element("ul", {}, refused.map(({ name, reason }) =>
        element("li", {}, `${name || "without a name"}: ${reason}`))));
    }
    return parts;
  }

  drawCharts() {
    this.close();
    const width = this.figures.clientWidth;
    this.figures.replaceChildren(...(this.result?.traces ?? []).flatMap((trace) => {
      const measure = trace.measures.find(({ key }) => key === this.measure);
      return measure && hasSpread(measure) ? this.drawChart(trace, measure, width) : [];
    }));
  }

  drawChart(trace, measure, width) {
    const style = getComputedStyle(document.documentElement);
    const colour = (name) => style.getPropertyValue(`--${name}`);
    const [scale, unit] = SCALES[measure.unit];
    const lines = [["before", measure.old_by_node, { stroke: colour("peak-0"), width: 2, dash: [8, 5] }],
      ["after", measure.new_by_node, { stroke: colour("usage"), width: 2.5 }]].filter(([, values]) => values.length);
    const tables = lines.map(([, values]) => [values.map((_, i) => (100 * i) / Math.max(values.length - 1, 1)), values.map((value) => value / scale)]);
    const axis = { stroke: colour("ink"), grid: { stroke: colour("line"), width: 1 }, ticks: { stroke: colour("line") } };
    const half = (values) => TEXTS[measure.unit](values[Math.floor(values.length / 2)]);
    const figure = element("div", { className: "chart", role: "img", "aria-label":
      `${measureName(measure)} from node to node: ${lines.map(([name, values]) => `${name} half of the nodes are below ${half(values)}`).join(", ")}` });
    this.charts.push(new uPlot({
      width, height: 220, cursor: { drag: { x: false, y: false } }, legend: { show: false },
      scales: { x: { time: false }, y: { range: (_, low, high) => [Math.min(low, 0), Math.max(high, 0.01) * 1.05] } },
      axes: [{ ...axis, values: (_, ticks) => ticks.map((tick) => `${tick}%`) }, { ...axis, size: 60 }],
      series: [{}, ...lines.map(([label, , look]) => ({ label, points: { show: false }, ...look }))],
    }, uPlot.join(tables), figure));
    return [element("h3", {}, `${traceName(trace)}: ${measure.label.replaceAll("_", " ")}${unit && `, ${unit}`}`), figure,
      note("Nodes from the lowest to the highest. Dashed: before; solid: after.")];
  }
}

function offer(select, options, value) {
  if (JSON.stringify(options) !== JSON.stringify([...select.options].map((each) => [each.value, each.text]))) {
    select.replaceChildren(...options.map(([name, text]) => element("option", { value: name }, text)));
  }
  select.value = value ?? "";
}

function hasSpread({ old_by_node: old, new_by_node: renewed }) {
  return old.length > 0 || renewed.length > 0;
}

function traceName({ dataset, scenario }) {
  return dataset === scenario ? dataset : `${dataset}/${scenario}`;
}

function measureName({ label, unit }) {
  return `${label.replaceAll("_", " ")}${unit === "millicores" ? ", cores" : ""}`;
}

function traceTable(trace) {
  const rows = trace.measures.filter((each) => each.old || each.new).map((each) => {
    const text = TEXTS[each.unit], shown = (value) => (value === null ? UNKNOWN : text(value));
    return [measureName(each), shown(each.old), shown(each.new), change(each, text)];
  });
  const caption = `${traceName(trace)}: ${trace.days.toFixed(1)} days, ${trace.nodes} nodes`;
  return rows.length ? table(caption, [["All nodes", false], ["Before", true], ["After", true], ["Change", true]], rows)
    : note(`${caption}. Every amount is 0 or unknown.`);
}

function change({ old, new: renewed }, text) {
  if (old === null || renewed === null) return UNKNOWN;
  const size = text(Math.abs(renewed - old));
  return size === text(0) ? "0" : `${renewed < old ? "−" : "+"}${size}`;
}

function difference({ difference: lines, against }) {
  if (!lines.length) return [element("h2", {}, "Policy difference"), note("The files are equal.")];
  return [element("h2", {}, "Policy difference"),
    note(against ? "Lines with − were before, lines with + are of the policy that was tried." : "Every line is of the policy that was tried."),
    element("pre", { tabIndex: 0, className: "difference" }, lines.map((line) =>
      element("span", { className: { "+": "added", "-": "removed" }[line[0]] ?? "" }, line)))];
}
