// What plans and actuators did about a node, as parts of its page.

import { count, note } from "./document_page.js";
import { element, table, UNKNOWN } from "./page_parts.js";
import { OUTCOMES, text } from "./relief_page.js";

// The pods that recent plans move off the node, and those that they expect to land on it.
export function moveParts(relief, node, address) {
  if (!relief?.plans) return [note(`Not known: ${relief?.problem || "the extender has no plans"}`)];
  const moves = relief.plans.flatMap((plan) => plan.pods
    .filter((pod) => plan.node === node || pod.target === node)
    .map((pod) => ({ plan, pod })));
  const stale = relief.problem ? [note(`Not up to date: ${relief.problem}`)] : [];
  if (!moves.length) return [...stale, note("No plan of the last 2 hours moves a pod off this node, or here.")];
  const link = (name) => (name === node ? "this node"
    : name ? element("a", { href: address({ node: name }) }, name) : UNKNOWN);
  return [...stale, table(`${count(moves.length, "pod")} in plans of the last 2 hours, newest first`,
    [["Planned", false], ["Pod", false], ["Class", false], ["From", false], ["To", false], ["Outcome", false], ["Why", false]],
    moves.map(({ plan, pod }) => [time(plan.at_seconds), pod.name ? `${pod.namespace}/${pod.name}` : pod.uid,
      pod.pod_class, link(plan.node), link(pod.target),
      pod.outcome === null ? "no action known" : OUTCOMES[pod.outcome] ?? pod.outcome,
      text([plan.why, pod.error].filter(Boolean).join("; "))]))];
}

// The last actions of node actuator, evictor and planner.
export function actionParts(actions) {
  if (actions?.problem) return [note(`Not known: ${actions.problem}`)];
  if (!actions?.items?.length) return [note("The extender has read no action of node actuator, evictor or planner.")];
  return [table("The last actions of node actuator, evictor and planner, newest first",
    [["Time", false], ["By", false], ["Action", false], ["Outcome", false], ["Changes", false], ["Why", false]],
    actions.items.map((action) => [time(action.at_seconds), action.actuator,
      action.action.replaceAll("_", " "), action.outcome, text(changes(action)),
      text([action.why, action.error].filter(Boolean).join("; "))]))];
}

function changes({ changes: listed, more_changes: more }) {
  const texts = listed.map(({ name, before, after }) => `${name}: ${before ?? "none"} → ${after ?? "none"}`);
  return [...texts, ...(more ? [`${more} more`] : [])].join("; ");
}

function time(seconds) {
  return `${new Date(seconds * 1000).toISOString().slice(0, 19)}Z`;
}
