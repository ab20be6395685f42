// The first page: totals, the heat map with its controls, and the first nodes as a table.

import { count } from "./document_page.js";
import { AMOUNTS, ORDERS, alertsOf, chosen, column, poolName, shares, totals } from "./fleet.js";
import { draw, drawKey } from "./heat_map.js";
import { age, cores, element, gibibytes, percent, renew, table, visible } from "./page_parts.js";
import { now } from "./queries.js";

const ROWS = 100;

export class FleetPage {
  constructor(navigate, address) {
    this.navigate = navigate;
    this.address = address;
    this.fleet = null;
    this.focus = -1;  // Index of a cell.
    this.focused = null;  // Name of its node: indexes change when nodes come and go.
    this.grid = null;
    this.nodes = [];
    this.heading = element("h1", { tabIndex: -1 }, "Fleet");
    this.totals = element("ul", { className: "totals" });
    this.controls = {
      amount: choice(AMOUNTS),
      sort: choice(ORDERS),
      pool: element("select"),
      search: element("input", { type: "search", autocomplete: "off", spellcheck: false }),
      hot: element("input", { type: "checkbox" }),
      stale: element("input", { type: "checkbox" }),
    };
    const labels = { amount: "Colour", sort: "Order", pool: "Pool", search: "Name contains",
      hot: "hot only", stale: "stale only" };
    for (const [name, control] of Object.entries(this.controls)) {
      control.name = name;
      const event = name === "search" ? "input" : "change";
      control.addEventListener(event, () => {
        const value = control.type === "checkbox" ? (control.checked ? "1" : "") : control.value;
        navigate({ [name]: value }, { replace: true });
      });
    }
    const controls = Object.entries(this.controls).map(([name, control]) =>
      (control.type === "checkbox"
        ? element("label", { className: "inline" }, control, labels[name])
        : element("label", {}, labels[name], control)));
    this.map = element("canvas", { className: "map", tabIndex: 0, role: "application",
      "aria-label": "Heat map of nodes. Arrow keys choose a node, Enter opens it.",
      "aria-describedby": "readout" });
    this.map.addEventListener("keydown", (event) => this.press(event));
    this.map.addEventListener("pointermove", (event) => this.point(this.nodeAt(event)));
    this.map.addEventListener("pointerleave", () => this.point(-1));
    this.map.addEventListener("click", (event) => this.open(this.nodeAt(event)));
    this.readout = element("p", { className: "readout", id: "readout", "aria-live": "polite" });
    this.ramp = element("canvas", { width: 160, height: 12, role: "img",
      "aria-label": "Colours from dark blue, 0%, to yellow, 100%" });
    drawKey(this.ramp);
    this.rows = element("div");
    this.root = element("div", {}, this.heading, this.totals,
      element("div", { className: "controls" }, controls),
      element("p", { className: "key" }, "0%", this.ramp, "100% of allocatable",
        element("span", {}, "white mark: hot · empty with a dot: unknown · empty with a line: stale")),
      element("div", {}, this.map), this.readout, this.rows);
  }

  update(state) {
    this.state = {
      ...state,
      amount: Object.hasOwn(AMOUNTS, state.amount) ? state.amount : "cpu_usage",
      sort: Object.hasOwn(ORDERS, state.sort) ? state.sort : "value",
      hot: state.hot === "1",
      stale: state.stale === "1",
    };
    this.offerPools();
    for (const [name, control] of Object.entries(this.controls)) {
      if (control.type === "checkbox") control.checked = this.state[name];
      else if (control.value !== this.state[name]) control.value = this.state[name];
    }
    if (this.fleet) this.render();
  }

  // The pools of the fleet, and the one that the URL asks for.
  offerPools() {
    const known = this.fleet?.pools ?? [];
    const offered = [...new Set(["", ...known, this.state.pool])];
    const pools = this.controls.pool;
    if (offered.join("\n") === [...pools.options].map((option) => option.value).join("\n")) return;
    pools.replaceChildren(...offered.map((pool) =>
      element("option", { value: pool }, pool === "" ? "all" : poolName(pool))));
  }

  async load(ask) {
    const fleet = await ask("v1/fleet");
    if (fleet?.kind !== "Fleet") throw new Error("the answer is no fleet document of an extender");
    return fleet;
  }

  draw(fleet, state) {
    if (this.fleet === fleet) return this.tick();
    this.fleet = fleet;
    this.update(state);
  }

  // Nodes get older, also while nothing else changes.
  tick() {
    if (this.fleet) this.renderRows();
  }

  resize() {
    if (this.fleet) this.paint();
  }

  close() {}

  render() {
    const { fleet, state } = this;
    this.nodes = chosen(fleet, state);
    this.alerts = alertsOf(fleet);
    this.shares = shares(fleet, state.amount);
    this.focus = this.nodes.findIndex((node) => fleet.name[node] === this.focused);
    this.paint();
    this.renderTotals();
    this.renderRows();
  }

  paint() {
    const cells = this.nodes.map((node) => ({
      share: this.shares[node], hot: this.alerts.has(node), stale: this.fleet.stale[node],
    }));
    this.grid = draw(this.map, cells, this.focus);
    const node = this.nodes[this.focus];
    const name = node === undefined ? "" : visible(this.fleet.name[node]);
    const text = node === undefined ? "" : this.describe(node);
    if (this.readout.textContent === name + text) return;  // A screen reader speaks each change.
    this.readout.replaceChildren(element("bdi", {}, name), text);
  }

  describe(node) {
    const { fleet } = this;
    const cpu = ["usage", "peak", "allocatable"].map((of) => cores(column(fleet, `cpu_${of}`)[node]));
    const memory = ["usage", "peak", "allocatable"]
      .map((of) => gibibytes(column(fleet, `memory_${of}`)[node]));
    return (`: CPU ${cpu[0]}, peak ${cpu[1]} of ${cpu[2]} cores; memory `
      + `${memory[0]}, peak ${memory[1]} of ${memory[2]}`
      + `${this.alerts.has(node) ? "; hot" : ""}${fleet.stale[node] ? "; stale" : ""}`);
  }

  renderTotals() {
    const sums = totals(this.fleet, this.nodes);
    const hot = this.nodes.filter((node) => this.alerts.has(node)).length;
    const stale = this.nodes.filter((node) => this.fleet.stale[node]).length;
    const items = [
      [this.nodes.length, this.nodes.length === 1 ? "node" : "nodes"], [hot, "hot"], [stale, "stale"],
      [percent(sums.cpu_usage.share), "of CPU used"], [percent(sums.cpu_peak.share), "CPU at peak"],
      [percent(sums.memory_usage.share), "of memory used"],
      [percent(sums.memory_peak.share), "memory at peak"],
      [cores(sums.cpu_mid.sum), "cores as Mid"], [cores(sums.cpu_batch.sum), "cores as Batch"],
    ];
    this.totals.replaceChildren(...items.map(([figure, text]) =>
      element("li", {}, element("b", {}, figure), element("span", {}, text))));
  }

  renderRows() {
    const { fleet, nodes } = this;
    const columns = [["Node", false], ["Pool", false], ["CPU", true], ["CPU peak", true],
      ["of cores", true], ["Memory", true], ["Memory peak", true], ["of memory", true],
      ["Mid cores", true], ["Batch cores", true], ["Age", true], ["Alerts", false]];
    const rows = nodes.slice(0, ROWS).map((node) => {
      const of = (name) => column(fleet, name)[node];
      const end = fleet.as_of_seconds[node];
      const alerts = (this.alerts.get(node) ?? []).map(({ rule, severity }) => `${rule} (${severity})`);
      return [
        element("a", { href: this.address({ node: fleet.name[node] }) }, fleet.name[node]),
        poolName(fleet.pools[fleet.pool[node]]),
        cores(of("cpu_usage")), cores(of("cpu_peak")), cores(of("cpu_allocatable")),
        gibibytes(of("memory_usage")), gibibytes(of("memory_peak")),
        gibibytes(of("memory_allocatable")), cores(of("cpu_mid")), cores(of("cpu_batch")),
        age(end === null ? null : now() - end) + (fleet.stale[node] ? " stale" : ""),
        element("span", { className: "hot" }, alerts.join(", ")),
      ];
    });
    const caption = nodes.length > ROWS
      ? `The first ${ROWS} of ${nodes.length} nodes` : count(nodes.length, "node");
    renew(this.rows, nodes.length ? table(caption, columns, rows)
      : element("p", { className: "note" }, fleet.name.length
        ? "No node passes the filters." : "The extender knows no node yet."));
  }

  nodeAt(event) {
    if (!this.grid) return -1;
    const box = this.map.getBoundingClientRect();
    const across = Math.floor((event.clientX - box.left) / this.grid.size);
    const down = Math.floor((event.clientY - box.top) / this.grid.size);
    const index = down * this.grid.columns + across;
    return across < this.grid.columns && index < this.nodes.length ? index : -1;
  }

  point(index) {
    if (!this.fleet || index === this.focus) return;
    this.focus = index;
    this.focused = index < 0 ? null : this.fleet.name[this.nodes[index]];
    this.paint();
  }

  press(event) {
    if (!this.grid || !this.nodes.length || event.ctrlKey || event.metaKey || event.altKey) return;
    const last = this.nodes.length - 1;
    const steps = { ArrowRight: 1, ArrowLeft: -1, ArrowDown: this.grid.columns, ArrowUp: -this.grid.columns };
    if (event.key === "Enter") {
      this.open(this.focus);
    } else if (event.key in steps) {
      const next = this.focus < 0 ? 0 : this.focus + steps[event.key];
      if (next >= 0 && next <= last) this.point(next);
    } else if (event.key === "Home" || event.key === "End") {
      this.point(event.key === "Home" ? 0 : last);
    } else {
      return;
    }
    event.preventDefault();
  }

  open(index) {
    const node = this.nodes[index];
    if (node !== undefined) this.navigate({ node: this.fleet.name[node] });
  }
}

function choice(texts) {
  return element("select", {}, Object.entries(texts).map(([value, text]) =>
    element("option", { value }, text)));
}
