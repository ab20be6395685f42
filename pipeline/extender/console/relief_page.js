// Hot nodes now, what the planner cannot relieve, and plans with what became of each pod.

import { DocumentPage, count, note } from "./document_page.js";
import { poolName } from "./fleet.js";
import { age, cores, element, gibibytes, table, UNKNOWN } from "./page_parts.js";
import { now } from "./queries.js";

const PLANS = 50;
const RULES = {
  node_cpu: "CPU of the node", node_memory: "memory of the node", prod_cpu: "CPU of Prod",
  prod_memory: "memory of Prod", all_nodes_hot: "no node of the pool can take pods",
  nothing_can_be_done: "no pod can leave the node", plans_do_not_help: "plans are paused",
  pool_cpu_level: "CPU of the pool changed its level",
  pool_memory_level: "memory of the pool changed its level",
  workload_cpu_level: "CPU of the workload changed its level",
  workload_memory_level: "memory of the workload changed its level",
};
export const OUTCOMES = {
  intended: "is being evicted", done: "evicted", failed: "failed", refused: "refused",
  marked: "another agent was asked", observed: "would be evicted (mode observe)",
  recommended: "recommended",
};

export class ReliefPage extends DocumentPage {
  constructor(navigate, address) {
    super({ title: "Hot nodes and plans", path: "v1/relief", kind: "Relief", navigate, address });
  }

  parts(relief) {
    return [totals(relief),
      element("h2", {}, "Hot now"), this.hot(relief),
      element("h2", {}, "What the planner cannot relieve"), this.troubles(relief),
      element("h2", {}, "Plans of the last 2 hours"), ...this.plans(relief)];
  }

  hot(relief) {
    const rows = this.rows();
    if (!rows.length) return note(relief.hot_nodes ? "No hot node of this pool is listed." : "No node is hot.");
    const cut = relief.node.length < relief.hot_alerts
      ? `, of the first ${relief.node.length} of ${relief.hot_alerts}` : "";
    const caption = `${count(rows.length, "open alert")}${cut}`;
    return table(caption,
      [["Node", false], ["Pool", false], ["Hot", false], ["Severity", false], ["Hot for", true],
        ["Usage", true], ["Threshold", true]],
      rows.map((row) => [this.link(relief.node[row]), poolName(relief.pool[row]),
        RULES[relief.rule[row]] ?? relief.rule[row],
        element("span", { className: "hot" }, relief.severity[row]),
        age(now() - relief.since_seconds[row]) + (relief.stale[row] ? ", stale" : ""),
        percent(relief.usage_percent[row]), percent(relief.threshold_percent[row])]));
  }

  troubles({ troubles, more_troubles: more, problem }) {
    if (troubles === null) return note(`Not known: ${problem}`);
    const listed = troubles.filter(({ pool }) => this.state.pool === "" || pool === this.state.pool);
    if (!listed.length) return note(more ? "No alert of the planner about this pool is listed." : "Nothing.");
    const cut = more ? `, of the first ${troubles.length} of ${troubles.length + more}` : "";
    return table(count(listed.length, "alert of the planner", "alerts of the planner") + cut,
      [["About", false], ["What", false], ["Severity", false], ["For", true], ["Why", false]],
      listed.map((of) => [
        of.node ? this.link(of.node) : of.workload || `pool ${poolName(of.pool)}`,
        RULES[of.rule] ?? of.rule, of.severity, age(now() - of.since_seconds), text(of.why)]));
  }

  plans({ plans, troubles, has_all_plans: hasAll, problem }) {
    if (plans === null) return [note(`Not known: ${problem}`)];
    const parts = problem && troubles ? [note(`Not up to date: ${problem}`)] : [];
    if (!plans.length) return [...parts, note("No plan was made.")];
    if (this.state.pool) parts.push(note("Of all pools: a plan names no pool."));
    if (plans.length > PLANS) parts.push(note(`The newest ${PLANS} of ${hasAll ? "" : "at least "}${plans.length} plans.`));
    return [...parts, ...plans.slice(0, PLANS).flatMap((plan) => this.plan(plan))];
  }

  plan(plan) {
    const by = [plan.strategy || plan.planner, `plan ${plan.id}`].filter(Boolean).join(", ");
    return [
      element("h3", {}, this.link(plan.node), `, ${age(now() - plan.at_seconds)} ago`),
      element("p", {}, [`${plan.why || "No reason is given"}.`, ...outcome(plan), verdict(plan)].join(" ")),
      table(`${count(plan.pods.length + plan.more_pods, "pod")} by ${by}`
        + (plan.more_pods ? `; ${plan.more_pods} more are not listed` : ""),
      [["Pod", false], ["Class", false], ["To node", false], ["Frees cores", true],
        ["Frees memory", true], ["Outcome", false], ["Reason", false]],
      plan.pods.map((pod) => [pod.name ? `${pod.namespace}/${pod.name}` : pod.uid, pod.pod_class,
        pod.target ? this.link(pod.target) : UNKNOWN, cores(pod.cpu_millicores),
        gibibytes(pod.memory_mebibytes),
        pod.outcome === null ? "no action known" : OUTCOMES[pod.outcome] ?? pod.outcome,
        text(pod.error)]))];
  }

  link(node) {
    return element("a", { href: this.address({ node, page: "" }) }, node);
  }
}

function totals(relief) {
  const plans = relief.plans;
  const pods = plans?.flatMap((plan) => plan.pods) ?? [];
  const least = relief.has_all_plans === false ? "at least " : "";
  const leastPods = least || (plans?.some((plan) => plan.more_pods) ? "at least " : "");
  const with_ = (outcomes) => (plans === null ? UNKNOWN
    : leastPods + pods.filter((pod) => outcomes.includes(pod.outcome)).length);
  const items = [[relief.hot_nodes, "hot nodes"], [relief.critical_nodes, "of them critical"],
    [plans === null ? UNKNOWN : least + plans.length, "plans in 2 hours"],
    [with_(["done"]), "pods evicted"], [with_(["observed", "recommended"]), "pods would be evicted"],
    [with_(["refused", "failed"]), "pods refused or failed"]];
  return element("ul", { className: "totals" }, items.map(([figure, words]) =>
    element("li", {}, element("b", {}, figure), element("span", {}, words))));
}

// Sentences about the plan as a whole.
function outcome({ waiting, outcome: whole, error }) {
  const sentences = waiting ? [`It makes room for ${waiting}.`] : [];
  if (whole === null) return sentences;
  return [...sentences, `The plan as a whole: ${OUTCOMES[whole] ?? whole}${error ? `: ${error}` : ""}.`];
}

function verdict(plan) {
  if (plan.helped === null) {
    return plan.valid_until_seconds !== null && plan.valid_until_seconds > now()
      ? `Valid for ${age(plan.valid_until_seconds - now())} more.` : "Not judged.";
  }
  return `${plan.helped ? "It helped" : "It did not help"}: ${plan.verdict}.`;
}

function percent(value) {
  return value === null ? UNKNOWN : `${value.toFixed(1)}%`;
}

// Sentences, which may take several lines.
export function text(sentence) {
  return element("span", { className: "sentence" }, sentence);
}
