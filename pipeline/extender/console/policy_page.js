// The policy in force, resolved per node, and its warnings.

import { DocumentPage, count, note } from "./document_page.js";
import { poolName } from "./fleet.js";
import { element, table } from "./page_parts.js";

const NODES = 100;
const UNITS = { percent: "%", seconds: " s", minutes: " min", windows: " windows", samples: " samples" };
const PARTS = {
  overcommit: ["Mid and Batch", "Neither Mid nor Batch is offered."],
  strategy: ["Prediction", "The settings of the worker hold."],
  hot_nodes: ["Hot nodes", "No hot nodes are detected."],
};

export class PolicyPage extends DocumentPage {
  constructor(navigate, address) {
    super({ title: "Policy in force", path: "v1/policy", kind: "PolicyReport", navigate, address, hasSearch: true });
  }

  parts(report) {
    const rows = this.rows().filter((row) => report.name[row].toLowerCase().includes(this.state.search.toLowerCase()));
    const shown = new Set(rows.map((row) => report.policy[row]));
    return [
      element("h2", {}, "Warnings"), ...this.warnings(report),
      element("h2", {}, "Extender"), element("p", {}, extender(report)),
      element("h2", {}, "Policies"),
      ...report.policies.flatMap((policy, index) => (shown.has(index) ? policyParts(report, policy, index) : [])),
      ...(report.more_policies ? [note(`${count(report.more_policies, "further policy", "further policies")} of fewer nodes: not listed.`)] : []),
      element("h2", {}, "Nodes"), this.nodes(report, rows),
    ];
  }

  warnings({ warnings, more_warnings: more }) {
    const known = note("These are warnings that records of nodes and the settings of the extender show. "
      + "`springtide doctor` compares the records with the ConfigMap.");
    if (!warnings.length) return [element("p", {}, "No warning."), known];
    return [element("ul", {}, warnings.map(({ text, nodes, first_nodes: first }) => element("li", {},
      element("span", { className: "hot" }, text),
      ...(nodes === null ? [" (extender)"] : [` (${count(nodes, "node")}: `, ...this.links(first),
        nodes > first.length ? ", …)" : ")"])))),
    ...(more ? [note(`${count(more, "further warning")} about fewer nodes: not listed.`)] : []), known];
  }

  links(names) {
    return names.flatMap((name, index) => [index ? ", " : "",
      element("a", { href: this.address({ node: name, page: "" }) }, name)]);
  }

  nodes(report, rows) {
    if (!rows.length) return note(report.name.length ? "No node passes the filters." : "The extender knows no node yet.");
    const caption = rows.length > NODES ? `The first ${NODES} of ${rows.length} nodes` : count(rows.length, "node");
    return table(caption, [["Node", false], ["Pool", false], ["Policy", false]],
      rows.slice(0, NODES).map((row) => [...this.links([report.name[row]]).slice(1), poolName(report.pool[row]),
        policyName(report, report.policy[row])]));
  }
}

function policyName(report, index) {
  if (index === null) return "unknown";
  return `policy ${index + 1}${index < report.policies.length ? "" : ", not listed"}`;
}

function extender(report) {
  const statistic = report.threshold_statistic && `whose ${report.threshold_statistic} is `;
  const refuses = [["CPU", report.cpu_threshold_percent], ["memory", report.memory_threshold_percent]]
    .map(([name, percent]) => (percent === null ? `for ${name} it refuses no node`
      : `it refuses nodes ${statistic}above ${percent}% of ${name}`)).join(", ");
  const prod = Object.entries(report.prod_threshold_percent).map(([name, percent]) => `${percent}% of ${name}`);
  const forProd = prod.length ? ` To Prod pods it refuses nodes where Prod uses more than ${prod.join(" or ")} instead.` : "";
  return (report.mode === "act" ? `The extender acts: ${refuses}.`
    : `The extender observes, and changes nothing. If it acted: ${refuses}.`)
    + forProd + (statistic || forProd || refuses.includes("above") ? " An annotation of a node may set other thresholds for it." : "");
}

// Every value of the first policy, and of others what differs from it.
function policyParts(report, policy, index) {
  const parts = [element("h3", {}, `Policy ${index + 1}: ${count(policy.nodes, "node")}`)];
  for (const [part, [title, none]] of Object.entries(PARTS)) {
    if (policy[part] === null) {
      parts.push(note(`${title}: ${none}`));
      continue;
    }
    const first = index ? report.policies[0][part] ?? {} : {};
    const entries = Object.entries(policy[part])
      .filter(([name, value]) => JSON.stringify(first[name]) !== JSON.stringify(value));
    if (!entries.length) parts.push(note(`${title}: as policy 1.`));
    else parts.push(table(`${title}${index ? ": differs from policy 1" : ""}`,
      [["Setting", false], ["Value", false]],
      entries.map(([name, value]) => [name.replaceAll("_", " ").replace(/ percent$/, ""), valueText(name, value)])));
  }
  return parts;
}

// A value with its unit, which its name ends with.
function valueText(name, value) {
  const unit = UNITS[name.slice(name.lastIndexOf("_") + 1)] ?? "";
  if (value === null) return "no limit";
  if (value === "" || (typeof value === "object" && !Object.keys(value).length)) return "not set";
  if (typeof value === "object") return Object.entries(value).map(([of, each]) => `${of} ${each}${unit}`).join(", ");
  if (typeof value === "boolean") return value ? "yes" : "no";
  if (name === "resource_diff_threshold") return `${Number((value * 100).toPrecision(12))}%`;
  return `${value}${unit}`;
}
