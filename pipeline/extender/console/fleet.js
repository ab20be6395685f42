// The fleet document as columns: figures, filters and order of nodes. No part of it touches the page.

export const AMOUNTS = {
  cpu_usage: "CPU usage", cpu_peak: "CPU predicted peak", cpu_mid: "CPU as Mid",
  cpu_batch: "CPU as Batch", memory_usage: "Memory usage", memory_peak: "Memory predicted peak",
  memory_mid: "Memory as Mid", memory_batch: "Memory as Batch",
};
export const ORDERS = { value: "colour, highest first", name: "name", pool: "pool", age: "oldest" };
const DEFAULT_POOL = "__default_node_pool__";

export function poolName(pool) {
  return pool === DEFAULT_POOL ? "default" : pool;
}

// A column in millicores or mebibytes, such as cpu_usage.
export function column(fleet, amount) {
  return fleet[`${amount}_${amount.startsWith("cpu") ? "millicores" : "mebibytes"}`];
}

// The share of allocatable of each node; null is unknown.
export function shares(fleet, amount) {
  const values = column(fleet, amount);
  const allocatable = column(fleet, `${amount.split("_")[0]}_allocatable`);
  return values.map((value, node) =>
    (value === null || !(allocatable[node] > 0) ? null : value / allocatable[node]));
}

// The alerts of each hot node, by index.
export function alertsOf(fleet) {
  const alerts = new Map();
  for (const alert of fleet.alerts) {
    if (!alerts.has(alert.node)) alerts.set(alert.node, []);
    alerts.get(alert.node).push(alert);
  }
  return alerts;
}

// The indexes of the nodes that pass the filters, in the order that is asked for.
export function chosen(fleet, { amount, sort, pool, search, hot, stale }) {
  const alerts = alertsOf(fleet);
  const wanted = search.toLowerCase();
  const nodes = [];
  for (let node = 0; node < fleet.name.length; node += 1) {
    if (pool !== "" && fleet.pools[fleet.pool[node]] !== pool) continue;
    if (hot && !alerts.has(node)) continue;
    if (stale && !fleet.stale[node]) continue;
    if (wanted && !fleet.name[node].toLowerCase().includes(wanted)) continue;
    nodes.push(node);
  }
  if (sort === "name") return nodes;
  const value = {
    value: () => shares(fleet, amount).map((share) => -(share ?? -1)),
    pool: () => fleet.pool,
    age: () => fleet.as_of_seconds.map((end) => end ?? -1),
  }[sort]();
  return nodes.sort((a, b) => value[a] - value[b] || a - b);
}

// Sums over nodes whose figure is known, and as shares of allocatable where that is known, too.
export function totals(fleet, nodes) {
  const sums = {};
  for (const amount of Object.keys(AMOUNTS)) {
    const values = column(fleet, amount);
    const allocatable = column(fleet, `${amount.split("_")[0]}_allocatable`);
    let sum = 0, known = 0, part = 0, room = 0;
    for (const node of nodes) {
      if (values[node] === null) continue;
      sum += values[node];
      known += 1;
      if (allocatable[node] === null) continue;
      part += values[node];
      room += allocatable[node];
    }
    sums[amount] = { sum: known ? sum : null, share: room > 0 ? part / room : null };
  }
  return sums;
}
