// Predicted peaks of Prod held against what happened, by pool and predictor.

import { DocumentPage, count, note, oldness } from "./document_page.js";
import { poolName } from "./fleet.js";
import { age, element, table, UNKNOWN } from "./page_parts.js";
import { now } from "./queries.js";

const RESOURCES = { cpu: "CPU", memory: "memory" };

export class AccuracyPage extends DocumentPage {
  constructor(navigate, address) {
    super({ title: "Accuracy of predicted peaks", path: "v1/accuracy", kind: "Accuracy", navigate, address });
  }

  parts(accuracy) {
    const rows = this.rows();
    const pools = [...new Set(rows.map((row) => accuracy.pool[row]))];
    const span = age(accuracy.read_at_seconds - accuracy.since_seconds);
    return [
      ...oldness(accuracy),
      note(`Peaks of Prod that were judged in the ${span} until ${age(now() - accuracy.read_at_seconds)} ago. `
        + "A peak is judged when its horizon is over."),
      ...(pools.length ? pools.flatMap((pool) => [
        element("h2", {}, `Pool ${poolName(pool)}`),
        ...decisions(accuracy, rows.filter((row) => accuracy.pool[row] === pool)),
        groups(accuracy, pool, rows.filter((row) => accuracy.pool[row] === pool)),
      ]) : [note("No peak was judged in this time.")]),
    ];
  }
}

// A sentence for each resource about the predictor that decides for most nodes.
function decisions(accuracy, rows) {
  return Object.entries(RESOURCES).map(([resource, name]) => {
    const row = rows.filter((each) => accuracy.resource[each] === resource)
      .reduce((most, each) => (most === null || accuracy.deciding_nodes[each] > accuracy.deciding_nodes[most]
        ? each : most), null);
    if (row === null || !accuracy.deciding_nodes[row]) return null;
    const predictor = accuracy.predictor[row];
    const decides = `${predictor} decides for ${count(accuracy.deciding_nodes[row], "node")}`;
    if (accuracy.violation[row] === null) return element("p", {}, `${decides}: none of its peaks of ${name} was judged.`);
    return element("p", {}, `${decides}: usage of ${name} exceeded ${percent(accuracy.violation[row])} of `
      + `its ${accuracy.judged[row]} peaks. ${risk(accuracy, row)} It gave away ${percent(accuracy.savings[row])} `
      + `of the requests, of ${percent(accuracy.possible_savings[row])} that were possible.`);
  }).filter(Boolean);
}

function risk(accuracy, row) {
  const declared = accuracy.declared_risk[row];
  if (declared === null) return "No declared risk is known.";
  const within = accuracy.violation[row] <= declared;
  return `The declared risk is ${percent(declared)}: ${within ? "kept" : "exceeded"}.`;
}

function groups(accuracy, pool, rows) {
  return table(`Judged peaks of pool ${poolName(pool)}`,
    [["Predictor", false], ["Resource", false], ["Exceeded", true], ["Declared risk", true],
      ["Given away", true], ["Possible", true], ["Too low by", true], ["9 of 10 nodes below", true],
      ["Judged peaks", true], ["Not judged", true], ["Nodes", true], ["Decides for nodes", true],
      ["Newest", true]],
    rows.map((row) => [accuracy.predictor[row], RESOURCES[accuracy.resource[row]] ?? accuracy.resource[row],
      exceeded(accuracy, row), percent(accuracy.declared_risk[row]), percent(accuracy.savings[row]),
      percent(accuracy.possible_savings[row]), percent(accuracy.severity[row]),
      percent(accuracy.violation_p90[row]), accuracy.judged[row], accuracy.unjudged[row],
      accuracy.nodes[row], accuracy.deciding_nodes[row],
      accuracy.judged_until_seconds[row] === null ? UNKNOWN : age(now() - accuracy.judged_until_seconds[row])]));
}

function exceeded(accuracy, row) {
  const [share, declared] = [accuracy.violation[row], accuracy.declared_risk[row]];
  if (share === null || declared === null || share <= declared) return percent(share);
  return element("span", { className: "hot" }, `${percent(share)} above risk`);
}

function percent(share) {
  return share === null ? UNKNOWN : `${(share * 100).toFixed(1)}%`;
}
