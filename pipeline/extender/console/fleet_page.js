// The first page: totals, the heat map with its controls, and the first nodes as a table.

import { AMOUNTS, ORDERS, alertsOf, chosen, column, poolName, shares, totals } from "./fleet.js";
import { draw, drawKey } from "./heat_map.js";
import { age, cores, element, gibibytes, percent, table, visible } from "./page_parts.js";

const ROWS = 100;

export class FleetPage {
  constructor(navigate, address) {
    this.navigate = navigate;
    this.address = address;
    this.fleet = null;
    this.focus = -1;
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
        element("span", {}, "white mark: hot · grey: unknown · grey with a line: stale")),
      element("div", {}, this.map), this.readout, this.rows);
  }

  update(state) {
    this.state = state;
    for (const [name, control] of Object.entries(this.controls)) {
      if (control.type === "checkbox") control.checked = Boolean(state[name]);
      else if (control.value !== state[name]) control.value = state[name];
    }
    if (this.fleet) this.render();
  }

  load(ask) {
    return ask("v1/fleet");
  }

  draw(fleet, state) {
    if (this.fleet === fleet) return;
    this.fleet = fleet;
    const names = [["", "all"], ...fleet.pools.map((pool) => [pool, poolName(pool)])];
    const pools = this.controls.pool;
    if (pools.options.length !== names.length || fleet.pools.some((p, i) => pools.options[i + 1].value !== p)) {
      pools.replaceChildren(...names.map(([value, text]) => element("option", { value }, text)));
    }
    this.update(state);
  }

  resize() {
    if (this.fleet) this.paint();
  }

  render() {
    const { fleet, state } = this;
    const focused = this.nodes[this.focus];
    this.amount = state.amount in AMOUNTS ? state.amount : "cpu_usage";
    const sort = state.sort in ORDERS ? state.sort : "value";
    this.nodes = chosen(fleet, { ...state, amount: this.amount, sort });
    this.alerts = alertsOf(fleet);
    this.shares = shares(fleet, this.amount);
    this.focus = focused === undefined ? -1 : this.nodes.indexOf(focused);
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
    this.readout.textContent = node === undefined ? "" : this.describe(node);
  }

  describe(node) {
    const { fleet } = this;
    const cpu = ["usage", "peak", "allocatable"].map((of) => cores(column(fleet, `cpu_${of}`)[node]));
    const memory = ["usage", "peak", "allocatable"]
      .map((of) => gibibytes(column(fleet, `memory_${of}`)[node]));
    return visible(`${fleet.name[node]}: CPU ${cpu[0]}, peak ${cpu[1]} of ${cpu[2]} cores; memory `
      + `${memory[0]}, peak ${memory[1]} of ${memory[2]}`
      + `${this.alerts.has(node) ? "; hot" : ""}${fleet.stale[node] ? "; stale" : ""}`);
  }

  renderTotals() {
    const sums = totals(this.fleet, this.nodes);
    const hot = this.nodes.filter((node) => this.alerts.has(node)).length;
    const stale = this.nodes.filter((node) => this.fleet.stale[node]).length;
    const items = [
      [this.nodes.length, "nodes"], [hot, "hot"], [stale, "stale"],
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
    const now = Date.now() / 1000;
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
        age(end === null ? null : now - end) + (fleet.stale[node] ? " stale" : ""),
        element("span", { className: "hot" }, alerts.join(", ")),
      ];
    });
    const caption = nodes.length > ROWS
      ? `The first ${ROWS} of ${nodes.length} nodes` : `${nodes.length} nodes`;
    this.rows.replaceChildren(table(caption, columns, rows));
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
